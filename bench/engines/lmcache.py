"""LMCache's own benchmark of second tiers over Kvist and over its fs_native adapter on tmpfs, in turns.

    PYTHONPATH=build/python VENV/bin/python bench/engines/lmcache.py [--runs 3] [--json]      # VENV has lmcache

Each run starts `lmcache bench l2` (store, look up, load and verify fresh keys, in rounds) for both, one after the other, a
fresh tmpfs folder and fresh keys each time, after a measurement of the ceiling: memcpy of as many bytes between two buffers
of this process, by one thread, which is also the memory traffic of a load. Of each run the median of its rounds counts, of
all runs the median. The node is given the time to have its memory in huge pages first, as one that serves has had.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import kvist

MIB = 1 << 20
ROUNDS, WARMUP = 10, 2


def ceiling(nbytes: int, rounds: int = ROUNDS) -> float:
    """MiB/s of memcpy between two buffers that are there already; the median of rounds."""
    ends = [mmap.mmap(-1, nbytes) for _ in range(2)]
    addresses = [ctypes.addressof(ctypes.c_char.from_buffer(end)) for end in ends]
    for address in addresses:
        ctypes.memset(address, 1, nbytes)
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        ctypes.memmove(addresses[1], addresses[0], nbytes)
        times.append(time.perf_counter() - begun)
    return nbytes / statistics.median(times) / MIB


def bench_l2(adapter: dict[str, object], keys: int, kib: int) -> dict[str, float]:
    """MiB/s of `store` and `load`, and milliseconds of `lookup`: medians of the rounds of one run."""
    program = pathlib.Path(sys.executable).parent / "lmcache"
    command = [str(program), "bench", "l2", "--l2-adapter", json.dumps(adapter), "--format", "json", "--no-skip-verify"]
    command += ["--rounds", str(ROUNDS), "--warmup-rounds", str(WARMUP), "--lookup-max-hit-rate", "0.5"]
    command += ["--num-keys", str(keys), "--data-size-kb", str(kib)]
    environment = {**os.environ, "LMCACHE_DISABLE_BANNER": "1", "LMCACHE_LOG_LEVEL": "WARNING"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    if ran.returncode != 0:
        raise SystemExit(f"lmcache bench l2 ended with {ran.returncode}:\n{ran.stdout}\n{ran.stderr}")
    if f"All {keys} keys data verified OK" not in ran.stdout:
        raise SystemExit(f"the bytes that were loaded are not those that were stored:\n{ran.stdout}")
    metrics = json.JSONDecoder().raw_decode(ran.stdout, ran.stdout.index("\n{\n") + 1)[0]["metrics"]
    by_name = {each["operation"]: each for each in metrics.values() if isinstance(each, dict) and "operation" in each}
    for name in ("Store", "Load"):
        done, all_keys = by_name[name]["total_success"], by_name[name]["total_keys"]
        if done != all_keys:
            raise SystemExit(f"{name}: {done} of {all_keys} keys")
    moved = keys * kib / 1024
    found = {name.lower(): moved / by_name[name]["duration_p50_ms"] * 1e3 for name in ("Store", "Load")}
    return {**found, "lookup": by_name["Lookup"]["duration_p50_ms"]}


def wait_settled(node: kvist.Node, seconds: float) -> None:
    """Until all memory of the node is there and in huge pages, as far as it is to be."""
    end = time.monotonic() + seconds
    with node.client() as client:
        while time.monotonic() < end:
            report = client.report()
            if report["ready_bytes"] == report["capacity_bytes"] and not report["pools"][0]["gathering"]:
                return
            time.sleep(0.1)
    print(f"the node's memory was not settled within {seconds} s: figures may be low", file=sys.stderr)


def measure(options: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    runs: dict[str, list[dict[str, float]]] = {"memcpy": [], "kvist": [], "fs_native": []}
    nbytes = options.keys * options.kib * 1024
    memory = max(2 * (ROUNDS + WARMUP) * nbytes, 256 * MIB)
    with kvist.Node(memory=memory, admin=None) as node:
        wait_settled(node, 60)

        def ours(run: int) -> dict[str, float]:
            parameters = {"socket": node.socket, "namespace": f"run {run}", **json.loads(options.parameters)}
            return bench_l2(
                {
                    "type": "native_plugin",
                    "module_path": "kvist.lmcache",
                    "class_name": "KvistConnector",
                    "adapter_params": parameters,
                },
                options.keys,
                options.kib,
            )

        def theirs(_: int) -> dict[str, float]:
            with tempfile.TemporaryDirectory(dir=options.tmpfs) as folder:
                return bench_l2({"type": "fs_native", "base_path": folder}, options.keys, options.kib)

        turns: list[tuple[str, Callable[[int], dict[str, float]]]] = [("kvist", ours), ("fs_native", theirs)]
        for run in range(options.runs):
            copied = ceiling(nbytes)
            runs["memcpy"].append({"store": copied, "load": copied})
            for name, turn in turns if run % 2 == 0 else reversed(turns):
                runs[name].append(turn(run))
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keys", type=int, default=16, help="in a batch")
    parser.add_argument("--kib", type=int, default=4096, help="a value, in KiB")
    parser.add_argument("--tmpfs", default="/dev/shm", help="a folder on tmpfs, for fs_native")
    parser.add_argument("--parameters", default="{}", help="further adapter_params, as JSON")
    parser.add_argument("--json", action="store_true", help="print all runs as JSON, not the table")
    options = parser.parse_args()
    runs = measure(options)
    if options.json:
        print(json.dumps(runs, indent=1))
        return
    of = {name: {what: statistics.median(run[what] for run in each) for what in each[0]} for name, each in runs.items()}
    print(f"{options.keys} x {options.kib} KiB, MiB/s, medians of {options.runs} runs (least to most)")
    print(f"{'':8}{'kvist':>22}{'fs_native on tmpfs':>22}{'memcpy':>22}{'/ fs_native':>13}{'/ memcpy':>10}")
    for what in ("store", "load"):
        row = f"{what:8}"
        for name in ("kvist", "fs_native", "memcpy"):
            values = [run[what] for run in runs[name]]
            row += f"{of[name][what]:8.0f} ({min(values):5.0f}-{max(values):5.0f})"
        ours = of["kvist"][what]
        print(f"{row}{ours / of['fs_native'][what]:13.2f}{ours / of['memcpy'][what]:10.2f}")
    print(f"look-up of {options.keys} keys, ms: {of['kvist']['lookup']:.2f}, fs_native {of['fs_native']['lookup']:.2f}")


if __name__ == "__main__":
    main()
