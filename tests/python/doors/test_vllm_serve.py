"""`vllm serve` as deploy/systemd/kvist-vllm@.service starts it, over HTTP: what operators are given, run as it stands there."""

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import shlex
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from conftest import wait_until

import kvist

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed here: `make test-engines ENGINE=vllm WHICH=slow` runs this", allow_module_level=True)

ROOT = pathlib.Path(__file__).parents[3]
MODEL = ROOT / "build/models/smollm2"
UNIT = ROOT / "deploy/systemd/kvist-vllm@.service"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (MODEL / "config.json").exists(), reason=f"{MODEL} is not there: `make run ENGINE=1` fetches it"),
]
START = 500.0  # seconds at most: a server is several processes, and the machine may be busy


def unit():
    """Its command lines and its variables, by systemd's rules as far as the file uses them."""
    text = UNIT.read_text()
    variables = {}
    for line in re.findall(r"^Environment=(.*)$", text, re.M):
        for word in shlex.split(line):
            name, _, value = word.partition("=")
            variables[name] = value
    commands = {key: value for key, value in re.findall(r"^(ExecStart(?:Pre)?)=(.*)$", text, re.M)}
    return commands, variables


def command(line, variables):
    """${NAME} is one word whatever it holds, $NAME is split at blanks."""
    words = []
    for word in line.lstrip("-").split():
        if word.startswith("$") and not word.startswith("${"):
            words += variables.get(word[1:], "").split()
        else:
            words.append(re.sub(r"\$\{(\w+)\}", lambda found: variables[found.group(1)], word))
    folder = os.path.dirname(sys.executable)
    words[0] = words[0].replace("/opt/vllm/bin", folder)
    return words


@contextlib.contextmanager
def serving(node_socket, log, *, examined=True):
    commands, variables = unit()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables["KV_TRANSFER_CONFIG"] = variables["KV_TRANSFER_CONFIG"].replace("/run/kvist/node.sock", node_socket)
    arguments = "--dtype float32 --block-size 32 --max-model-len 2048 --enforce-eager --served-model-name small"
    variables |= {"MODEL": str(MODEL), "PORT": str(port), "ARGUMENTS": arguments, "HOME": str(log.parent)}
    here = {"HF_HUB_OFFLINE": "1", "VLLM_HOST_IP": "127.0.0.1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    here |= {"VLLM_CPU_KVCACHE_SPACE": "1"}
    environment = {**os.environ, **here, **variables}
    if not any(found.metadata["Name"] == "vllm" for found in importlib.metadata.distributions()):
        # The command asks for the version of a distribution of this name; in the environment of the tests it is vllm-cpu.
        named = log.parent / f"vllm-{importlib.metadata.version('vllm-cpu')}.dist-info"
        named.mkdir(exist_ok=True)
        (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {importlib.metadata.version('vllm-cpu')}+cpu\n")
        environment["PYTHONPATH"] = f"{log.parent}:{environment.get('PYTHONPATH', '')}"
    if examined:
        before = command(commands["ExecStartPre"], variables)
        doctor = subprocess.run(before, env=environment, capture_output=True, text=True, timeout=START)
        assert doctor.returncode == 0 and "config        KvistConnector, kv_both" in doctor.stdout, doctor.stdout + doctor.stderr
    with open(log, "wb") as out:
        server = subprocess.Popen(command(commands["ExecStart"], variables), env=environment, stdout=out, stderr=out)
    try:

        def answers():
            assert server.poll() is None, log.read_text(errors="replace")[-4000:]
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                return urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).status == 200

        wait_until(answers, "vLLM serves", START)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(30)


def complete(url, prompt):
    body = json.dumps({"model": "small", "prompt": prompt, "max_tokens": 16, "temperature": 0}).encode()
    asked = urllib.request.Request(url + "/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=120) as answer:
        return json.load(answer)["choices"][0]["text"]


def samples(url):
    with urllib.request.urlopen(url + "/metrics", timeout=30) as answer:
        return answer.read().decode()


def total(text, name):
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + "{"))


def names_used():
    """The series that the rules and the dashboard ask for; those of the offloading tier are another connector's."""
    text = (ROOT / "deploy/prometheus/alerts_vllm.yaml").read_text() + (ROOT / "deploy/grafana/kvist-vllm.json").read_text()
    return set(re.findall(r"\b(?:kvist|vllm):[a-z_]+", text)) - {"kvist:tier_failures_total", "kvist:failures_total"}


def test_what_the_unit_starts_uses_the_pool_and_has_what_alerts_and_dashboard_ask_for(tmp_path):
    story = " ".join(f"The keeper of light number {i} wrote down the wind and went to bed." for i in range(40))
    with kvist.Node(memory="256MiB", admin=None) as node:
        with serving(node.socket, tmp_path / "first.log") as url:
            first = complete(url, story)
            with node.client() as client:
                wait_until(lambda: client.report()["blocks"] > 10, "its blocks are stored")
        with serving(node.socket, tmp_path / "second.log", examined=False) as url:
            assert complete(url, story) == first
            for _ in range(20):  # what was counted is told of after some steps
                complete(url, "short")
                if total(samples(url), "kvist:hit_tokens_total") > 0:
                    break
            text = samples(url)
            assert total(text, "kvist:hit_tokens_total") >= 256
            missing = {name for name in names_used() if name + "{" not in text}
            assert not missing - {"kvist:dropped_blocks_total"}  # by reason: there when the first one is
