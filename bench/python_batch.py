"""What a batch call from Python costs beside the same call from C++: 32 blocks of 4 KiB, one node, in turns.

    PYTHONPATH=build/python build/venv/bin/python bench/python_batch.py [--rounds 25] [--json]

Each round times CALLS calls of each kind from each side; a figure is the median over rounds of the blocks a second within
the calls. The ratio is that of one run. Bytes that were read are compared, untimed. Needs the target python_batch_peer.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time

import kvist

BLOCK, BATCH, CHAINS, CALLS = 4096, 32, 512, 200


class Cpp:
    """bench/python/batch_peer.cc, asked line by line."""

    def __init__(self, program: pathlib.Path, socket: str) -> None:
        self.process = subprocess.Popen([program, socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, op: str, number: int) -> list[float]:
        self.process.stdin.write(f"{op} {CALLS} {number}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"the C++ side ended with {self.process.wait()}")
        return [float(word) for word in line.split()]

    def end(self) -> None:
        self.process.communicate()


class Python:
    """The same calls, through the package."""

    def __init__(self, client: kvist.Client) -> None:
        self.space = client.open(
            kvist.Identity("python-batch", "python-batch", [kvist.Part("kv", block_bytes=BLOCK)])
        )
        self.source = b"\x07" * (BATCH * BLOCK)
        self.out = bytearray(BATCH * BLOCK)
        self.resident = [self.chain("resident", number) for number in range(CHAINS)]
        for chain in self.resident:
            self.space.put(chain, self.source).check()

    def chain(self, kind: str, number: int) -> kvist.Digests:
        return self.space.digests([f"{kind}-{number}-{i}" for i in range(BATCH)])

    def run(self, op: str, number: int) -> list[float]:
        pick = random.Random(number)
        if op == "put":
            chains = [self.chain("python", number + call) for call in range(CALLS)]
        else:
            chains = [self.resident[pick.randrange(CHAINS)] for _ in range(CALLS)]
        took, now = [], time.perf_counter_ns
        for chain in chains:
            if op == "put":
                start = now()
                results = self.space.put(chain, self.source)
                end = now()
            else:
                start = now()
                results = self.space.get(chain, self.out)
                end = now()
            took.append((end - start) / 1e3)
            if results.done != BATCH:
                sys.exit(f"{op}: {results}")
        if op == "get" and self.out != self.source:
            sys.exit("wrong bytes")
        return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--json", action="store_true", help="one JSON line a figure")
    default = pathlib.Path(kvist.__file__).parent.parent.parent / "python_batch_peer"
    parser.add_argument("--peer", type=pathlib.Path, default=default, help="the C++ side; default: in the build folder")
    options = parser.parse_args()
    with kvist.Node(memory="1GiB", admin=None, block_bytes=BLOCK) as node, node.client() as client:
        python, cpp = Python(client), Cpp(options.peer, node.socket)
        while (report := client.report())["ready_bytes"] < report["capacity_bytes"]:
            time.sleep(0.01)
        for op in ("get", "put"):
            rates: dict[str, list[float]] = {"C++": [], "Python": []}
            calls: dict[str, list[float]] = {"C++": [], "Python": []}
            for number in range(options.rounds):
                order = [("C++", cpp), ("Python", python)]
                for name, side in order if number % 2 == 0 else reversed(order):
                    took = side.run(op, number * CALLS)
                    rates[name].append(CALLS * BATCH / sum(took) * 1e6)
                    calls[name] += took
            report_figures(op, rates, calls, options.json)
        cpp.end()


def report_figures(op: str, rates: dict[str, list[float]], calls: dict[str, list[float]], as_json: bool) -> None:
    medians = {name: statistics.median(values) for name, values in rates.items()}
    ratio = statistics.median(p / c for p, c in zip(rates["Python"], rates["C++"]))
    for name, values in calls.items():
        p50 = statistics.median(values)
        if as_json:
            print(
                json.dumps(
                    {
                        "bench": "python_batch",
                        "op": op,
                        "side": name,
                        "block_bytes": BLOCK,
                        "batch": BATCH,
                        "blocks_per_s": round(medians[name]),
                        "p50_us": round(p50, 2),
                        "ratio": round(ratio, 3),
                        "load": os.getloadavg()[0],
                    }
                )
            )
        else:
            print(f"{op}  {BATCH} x {BLOCK}  {name:7} {medians[name] / 1e6:6.3f} M blocks/s  p50 {p50:7.2f} us a call")
    if not as_json:
        print(f"{op}  Python / C++ = {ratio:.2f}   (load {os.getloadavg()[0]:.1f})")


if __name__ == "__main__":
    main()
