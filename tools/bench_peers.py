"""Runs Kvist's and the peer's benchmark in turns and prints one table of medians.

Every round runs the peer in each of its same-host set-ups, then `kvist bench batch --json`, so that whatever else the
machine does in that minute hits both. A figure is the median over the rounds of payload blocks per second of one client
at batches of 32 x 4 KiB; "best" is the peer's fastest set-up for that operation. The aims (10 x put, 12 x get) are printed
beside the ratios. Exits with 1 if either side returned a wrong byte or a figure is missing, never for a ratio.
"""

import argparse
import collections
import json
import statistics
import subprocess
import sys

BLOCK_BYTES, BATCH = 4096, 32
SETUPS = ("same-process", "two-process", "shm")
PEER_OPS = {"batch_put_from": "put", "batch_get_into": "get"}
AIMS = {"put": 10, "get": 12}


LOG = "build/bench-peers.log"  # what the programs say on standard error


def run_lines(command, limit_s):
    """The JSON lines that a command prints; ends this program if it fails or does not end in time."""
    try:
        with open(LOG, "a", encoding="utf-8") as log:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, timeout=limit_s, check=False, text=True)
    except subprocess.TimeoutExpired:
        sys.exit(f"bench_peers: {command[0]} did not end within {limit_s} s; see {LOG}")
    if done.returncode != 0:
        sys.exit(f"bench_peers: {' '.join(command)} ended with {done.returncode}; see {LOG}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def measure_peer(script, setup, seconds):
    """(operation, blocks a second, p50, p99, wrong bytes) of one run of the peer in one set-up."""
    command = [sys.executable, script, "--setup", setup, "--seconds", str(seconds), "--only", *PEER_OPS]
    for line in run_lines(command, 300):
        if line["size"] == BLOCK_BYTES and line["batch"] == BATCH:
            yield PEER_OPS[line["op"]], line["keys_per_s"], line["p50_us"], line["p99_us"], line["bad_bytes"]


def measure_kvist(kvist):
    """(case, operation, blocks a second, p50, p99, wrong bytes) of one run of ours."""
    for line in run_lines([kvist, "bench", "batch", "--json"], 600):
        if line["block_bytes"] == BLOCK_BYTES and line["batch"] == BATCH and line["clients"] == 1 and line["op"] in AIMS:
            yield line["case"], line["op"], line["blocks_per_s"], line["p50_us"], line["p99_us"], line["wrong_bytes"]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--kvist", required=True, help="the kvist command")
    arguments.add_argument("--peer", required=True, help="the peer's benchmark program")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--seconds", type=float, default=2, help="of each of the peer's operations")
    options = arguments.parse_args()

    figures = collections.defaultdict(list)  # (operation, system, set-up or case) -> [(blocks/s, p50, p99)]
    wrong_bytes = 0
    for number in range(options.rounds):
        for setup in SETUPS:
            print(f"round {number + 1} of {options.rounds}: Mooncake Store, {setup}", file=sys.stderr, flush=True)
            for op, rate, p50, p99, wrong in measure_peer(options.peer, setup, options.seconds):
                figures[op, "Mooncake Store", setup].append((rate, p50, p99))
                wrong_bytes += wrong
        print(f"round {number + 1} of {options.rounds}: Kvist", file=sys.stderr, flush=True)
        for case, op, rate, p50, p99, wrong in measure_kvist(options.kvist):
            figures[op, "Kvist", case].append((rate, p50, p99))
            wrong_bytes += wrong

    medians = {key: [statistics.median(column) for column in zip(*values)] for key, values in figures.items()}
    missing = False
    print(f"Batches of {BATCH} x {BLOCK_BYTES} bytes, one client, medians of {options.rounds} rounds in turns")
    print(f"{'op':4} {'system':15} {'set-up':22} {'blocks/s':>11} {'p50 us':>9} {'p99 us':>9}  x best peer (aim)")
    for op, aim in AIMS.items():
        peers = [values[0] for (key_op, system, _), values in medians.items() if key_op == op and system != "Kvist"]
        ours = [values[0] for (key_op, system, _), values in medians.items() if key_op == op and system == "Kvist"]
        missing = missing or len(peers) < len(SETUPS) or not ours
        for (key_op, system, variant), (rate, p50, p99) in sorted(medians.items(), key=lambda item: item[1][0]):
            if key_op != op:
                continue
            ratio = f"{rate / max(peers):10.2f} ({aim})" if system == "Kvist" and peers else ""
            print(f"{op:4} {system:15} {variant:22} {rate:11,.0f} {p50:9.1f} {p99:9.1f}  {ratio}")
    print(f"wrong bytes: {wrong_bytes}")
    if missing:
        print("bench_peers: figures are missing: not every set-up printed its lines", file=sys.stderr)
    return 1 if wrong_bytes or missing else 0


if __name__ == "__main__":
    sys.exit(main())
