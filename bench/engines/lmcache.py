"""LMCache's own benchmark of second tiers over Kvist and over its fs_native adapter on tmpfs, in turns.

    PYTHONPATH=build/python VENV/bin/python bench/engines/lmcache.py [--runs 3] [--json]      # VENV has lmcache
    ... bench/engines/lmcache.py --in-turns                   # on a machine that has other things to do

Each run starts `lmcache bench l2` (store, look up, load and verify fresh keys, in rounds) for both, one after the other, a
fresh tmpfs folder and fresh keys each time, after a measurement of the ceiling: memcpy of as many bytes between two buffers
of this process, by one thread. Of each run the median of its rounds counts, of all runs the median. With --in-turns all is
done in this process, by the same functions of LMCache's, round by round: memcpy, the one adapter, the other. What else runs
on the machine then slows all three alike, which it does not where each has half a minute of its own.

The node is given the time to have its memory in huge pages first, as one that serves has had.
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
from typing import Any

import kvist

MIB = 1 << 20
ROUNDS, WARMUP = 10, 2
Runs = dict[str, list[dict[str, float]]]  # by name, of each run


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


def ours(node: kvist.Node, options: argparse.Namespace, run: int) -> dict[str, object]:
    parameters = {"socket": node.socket, "namespace": f"run {run}", **json.loads(options.parameters)}
    plugin = {"type": "native_plugin", "module_path": "kvist.lmcache", "class_name": "KvistConnector"}
    return {**plugin, "adapter_params": parameters}


def theirs(folder: str) -> dict[str, object]:
    return {"type": "fs_native", "base_path": folder}


def measure(options: argparse.Namespace, node: kvist.Node) -> Runs:
    """By whole runs of `lmcache bench l2`."""
    runs: Runs = {"memcpy": [], "kvist": [], "fs_native": []}
    nbytes = options.keys * options.kib * 1024
    for run in range(options.runs):
        copied = ceiling(nbytes)
        runs["memcpy"].append({"store": copied, "load": copied})
        for name in ("kvist", "fs_native") if run % 2 == 0 else ("fs_native", "kvist"):
            with tempfile.TemporaryDirectory(dir=options.tmpfs) as folder:
                adapter = ours(node, options, run) if name == "kvist" else theirs(folder)
                runs[name].append(bench_l2(adapter, options.keys, options.kib))
    return runs


def measure_in_turns(options: argparse.Namespace, node: kvist.Node) -> Runs:
    """Round by round, in this process; each round is a run, but for those of the warm-up."""
    here = pathlib.Path(__file__).resolve().parent
    sys.path[:] = [each for each in sys.path if pathlib.Path(each).resolve() != here]  # where this file is `lmcache`
    from lmcache.cli.commands.bench.l2_adapter_bench import data, runner
    from lmcache.v1.distributed.l2_adapters import create_l2_adapter
    from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config

    count, size = options.keys, options.kib * 1024
    arena = data.make_aligned_tensor(2 * count * size, 64)
    known = data.create_l1_memory_desc(arena, align_bytes=64)

    def create(spec: dict[str, object]) -> Any:
        given = parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=[json.dumps(spec)]))
        return create_l2_adapter(given.adapters[0], l1_memory_desc=known)

    def turn(adapter: Any, number: int) -> dict[str, float]:
        keys = data.make_object_keys(count, key_offset=number * count)
        stored = data.make_memory_objects(arena, count, size, 0, fill_offset=number)
        loaded = data.make_memory_objects(arena, count, size, count * size, fill_offset=number + 1)
        one = dict(rounds=1, keys_for_round=lambda _: [keys], log=lambda _: None)
        shape = dict(in_flight=1, num_keys=count, data_size=size)
        store = runner.bench_store(adapter, **shape, objs_for_round=lambda _: [stored], **one)
        found = runner.bench_lookup(adapter, 1, count, **one)
        load = runner.bench_load(adapter, **shape, objs_for_round=lambda _: [loaded], **one)
        told: list[str] = []
        if [each.success_counts for each in (store, found, load)] != [[count]] * 3:
            raise SystemExit("not all keys were stored, found and loaded")
        if not data.verify_round_trip(keys, stored, loaded, told.append):
            raise SystemExit("the bytes that were loaded are not those that were stored: " + "; ".join(told))
        rates = {
            what: count * size / each.round_durations[0] / MIB for what, each in (("store", store), ("load", load))
        }
        return {**rates, "lookup": found.round_durations[0] * 1e3}

    runs: Runs = {"memcpy": [], "kvist": [], "fs_native": []}
    with tempfile.TemporaryDirectory(dir=options.tmpfs) as folder:
        adapters = {"kvist": create(ours(node, options, 0)), "fs_native": create(theirs(folder))}
        rounds = options.runs * ROUNDS
        for number in range(-WARMUP, rounds):
            copied = ceiling(count * size, rounds=1)
            results = {"memcpy": {"store": copied, "load": copied}}
            for name in sorted(adapters, reverse=number % 2 == 0):
                results[name] = turn(adapters[name], number + WARMUP)
            for file in pathlib.Path(folder).iterdir():
                file.unlink()  # its memory would grow with each round, where a pool's does not
            if number >= 0:
                for name, result in results.items():
                    runs[name].append(result)
        for adapter in adapters.values():
            adapter.close()
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--in-turns", action="store_true", help="round by round in one process; a run is 10 rounds")
    parser.add_argument("--keys", type=int, default=16, help="in a batch")
    parser.add_argument("--kib", type=int, default=4096, help="a value, in KiB")
    parser.add_argument("--tmpfs", default="/dev/shm", help="a folder on tmpfs, for fs_native")
    parser.add_argument("--parameters", default="{}", help="further adapter_params, as JSON")
    parser.add_argument("--json", action="store_true", help="print all runs as JSON, not the table")
    options = parser.parse_args()
    nbytes = options.keys * options.kib * 1024
    with kvist.Node(memory=max(2 * (ROUNDS + WARMUP) * nbytes, 256 * MIB), admin=None) as node:
        wait_settled(node, 60)
        runs = (measure_in_turns if options.in_turns else measure)(options, node)
    if options.json:
        print(json.dumps(runs, indent=1))
        return
    of = {name: {what: statistics.median(run[what] for run in each) for what in each[0]} for name, each in runs.items()}
    what = f"{len(runs['kvist'])} rounds in turns" if options.in_turns else f"{options.runs} runs"
    print(f"{options.keys} x {options.kib} KiB, MiB/s, medians of {what} (least to most)")
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
