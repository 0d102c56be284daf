"""kvist.mooncake beside the real Mooncake Store on one host: the same calls, in turns, in one run.

    PYTHONPATH=build/python build/venv-mooncake/bin/python bench/engines/mooncake.py [--rounds 9] [--json] [--only put ...]

Sides, each a process of its own that waits while another is at work:

    kvist         kvist.mooncake, and a node
    same-process  Mooncake Store whose process owns the pool: bytes by memcpy
    shm           Mooncake Store's client of a mooncake_client on the host: control by RPC, bytes in shared memory
    two-process   Mooncake Store whose pool is another process': every byte crosses loopback TCP

A figure is the median over rounds of the median call of that round. The first ratio is the median over rounds of the best other
side's figure to kvist's. The second is the same of the tenth fastest call of a hundred: what calls cost while nothing else wants
the processors. The third is that of the calls a second, in which a call that the system kept waiting weighs by its length.

Pools are touched once before anything is timed; reads walk over more than the last-level cache holds; every round's last call is compared byte by byte, untimed. Without the real package
(make test-engines ENGINE=mooncake makes build/venv-mooncake) only kvist is measured, which is said.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time

KIB, MIB = 1 << 10, 1 << 20
POOL = 1 << 30
SOURCE, OUT = 96 * MIB, 64 * MIB
LO = "127.0.0.1"
# This file has the name of a package that it needs.
sys.path[:] = [path for path in sys.path if os.path.realpath(path) != os.path.dirname(os.path.realpath(__file__))]
SIDES = ("kvist", "same-process", "shm", "two-process")
# name: (bytes, keys a call, calls a round)
OPS = {
    "put 4KiB": (4 * KIB, 1, 200),
    "get 4KiB": (4 * KIB, 1, 400),
    "put_batch 32x4KiB": (4 * KIB, 32, 60),
    "get_batch 32x4KiB": (4 * KIB, 32, 100),
    "batch_put_from 32x4KiB": (4 * KIB, 32, 60),
    "batch_get_into 32x4KiB": (4 * KIB, 32, 100),
    "put 1MiB": (MIB, 1, 60),
    "get 1MiB": (MIB, 1, 60),
    "put_from 1MiB": (MIB, 1, 60),
    "get_into 1MiB": (MIB, 1, 60),
    "batch_put_from 16x1MiB": (MIB, 16, 8),
    "batch_get_into 16x1MiB": (MIB, 16, 8),
    "is_exist": (0, 1, 400),
    "batch_is_exist 1000": (0, 1000, 30),
    "longest_prefix 1000": (0, 1000, 30),
}
RESIDENT = {4 * KIB: 16384, MIB: 192}


class Side:
    """One store, in this process; asked line by line: "op number" -> microseconds a call, then how many bytes were wrong."""

    def __init__(self, kind: str, arguments: list[str]) -> None:
        if kind == "kvist":
            import kvist.mooncake as module

            self.store = module.MooncakeDistributedStore()
            code = self.store.setup(LO, "P2PHANDSHAKE", 0, 0, "tcp", "", arguments[0])
        else:
            import mooncake.store as module

            self.store = module.MooncakeDistributedStore()
            metadata, master, client = arguments
            if kind == "shm":
                end = time.monotonic() + 20  # the client listens before it has its memory
                while (code := self.store.setup_dummy(SOURCE + OUT + POOL, 128 * MIB, f"{LO}:{client}")) != 0:
                    if time.monotonic() > end:
                        break
                    time.sleep(0.1)
            else:
                segment = POOL if kind == "same-process" else 0
                code = self.store.setup(LO, metadata, segment, 128 * MIB, "tcp", "", master)
        if code != 0:
            raise SystemExit(f"{kind}: setup ended with {code}")
        self.allocator = module.MooncakeHostMemAllocator()
        self.source, self.out = self.allocator.alloc(SOURCE), self.allocator.alloc(OUT)
        for ptr, size in ((self.source, SOURCE), (self.out, OUT)):
            ctypes.memset(ptr, 0, size)
            if self.store.register_buffer(ptr, size) != 0:
                raise SystemExit(f"{kind}: a buffer could not be registered")
        pattern = random.Random(1).randbytes(MIB)
        for at in range(0, SOURCE, MIB):
            ctypes.memmove(self.source + at, pattern[at // MIB :] + pattern[: at // MIB], MIB)
        self.view = memoryview((ctypes.c_char * SOURCE).from_address(self.source)).cast("B")
        self.seen = memoryview((ctypes.c_char * OUT).from_address(self.out)).cast("B")
        self.used = self.next = 0
        self.resident = 0  # block size of the keys that are there
        for _ in range(2):  # touches the pool's pages
            self.empty()
            self.fill(MIB, POOL * 85 // 100 // MIB)
        self.empty()

    def empty(self) -> None:
        self.store.remove_all(True)
        self.used, self.resident = 0, 0

    def place(self, number: int, size: int) -> int:
        return (number * size + number // (SOURCE // size) * 64) % (SOURCE - size)

    def fill(self, size: int, count: int) -> None:
        for first in range(0, count, 16):
            numbers = range(first, min(first + 16, count))
            keys, ptrs = [f"r{i}" for i in numbers], [self.source + self.place(i, size) for i in numbers]
            if any(self.store.batch_put_from(keys, ptrs, [size] * len(keys))):
                raise SystemExit("fill: a put was refused")

    def run(self, op: str, calls: int) -> tuple[list[float], int]:
        name = op.split()[0]
        size, batch, _ = OPS[op]
        if name in ("is_exist", "batch_is_exist", "longest_prefix"):
            return self.look(name, calls)
        return self.puts(name, size, batch, calls) if "put" in name else self.gets(name, size, batch, calls)

    def puts(self, name: str, size: int, batch: int, calls: int) -> tuple[list[float], int]:
        if self.resident or self.used + size * batch * calls > POOL * 6 // 10:
            self.empty()
        took, call = [], getattr(self.store, name)
        for _ in range(calls):
            numbers = range(self.next, self.next + batch)
            self.next += batch
            self.used += batch * size
            keys, places = [f"k{i}" for i in numbers], [self.place(i, size) for i in numbers]
            values = [self.view[at : at + size] for at in places]
            ptrs, sizes = [self.source + at for at in places], [size] * batch
            arguments = {
                "put": (keys[0], values[0]),
                "put_batch": (keys, values),
                "put_from": (keys[0], ptrs[0], size),
                "batch_put_from": (keys, ptrs, sizes),
            }[name]
            code = self.time(took, call, arguments)
            if any(code) if isinstance(code, list) else code:
                raise SystemExit(f"{name}: {code}")
        return took, 0 if self.store.get(keys[-1]) == values[-1] else size

    def gets(self, name: str, size: int, batch: int, calls: int) -> tuple[list[float], int]:
        count = RESIDENT[size]
        if self.resident != size:
            self.empty()
            self.fill(size, count)
            self.resident = size
        took, call = [], getattr(self.store, name)
        for n in range(calls):
            numbers = [(self.next + j) % count for j in range(batch)]
            self.next += batch
            keys = [f"r{i}" for i in numbers]
            places = [(n * batch + j) % (OUT // size) * size for j in range(batch)]
            ptrs, sizes = [self.out + at for at in places], [size] * batch
            arguments = {
                "get": (keys[0],),
                "get_batch": (keys,),
                "get_into": (keys[0], ptrs[0], size),
                "batch_get_into": (keys, ptrs, sizes),
            }[name]
            got = self.time(took, call, arguments)
        got = got if isinstance(got, list) else [got]
        if isinstance(got[0], int):
            got = [self.seen[at : at + size] if length == size else b"" for at, length in zip(places, got)]
        wanted = [self.view[(at := self.place(i, size)) : at + size] for i in numbers]
        return took, sum(size for one, other in zip(got, wanted) if one != other)

    def look(self, name: str, calls: int) -> tuple[list[float], int]:
        if self.resident != 4 * KIB:
            self.gets("get", 4 * KIB, 1, 1)
        keys = [f"r{i}" for i in range(700)] + [f"absent{i}" for i in range(300)]
        store = self.store
        prefix = getattr(store, "longest_prefix", None) or (
            lambda keys: next(i for i, there in enumerate(store.batch_is_exist(keys)) if there != 1)
        )
        call, arguments, want = {
            "is_exist": (store.is_exist, (keys[350],), 1),
            "batch_is_exist": (store.batch_is_exist, (keys,), [1] * 700 + [0] * 300),
            "longest_prefix": (prefix, (keys,), 700),
        }[name]
        took: list[float] = []
        for _ in range(calls):
            got = self.time(took, call, arguments)
        return took, int(got != want)

    def time(self, took: list[float], call, arguments):
        start = time.perf_counter_ns()
        result = call(*arguments)
        took.append((time.perf_counter_ns() - start) / 1e3)
        return result

    def serve(self) -> None:
        print("ready", flush=True)
        for line in sys.stdin:
            op, calls = line.rstrip("\n").rsplit(" ", 1)
            took, wrong = self.run(op, int(calls))
            print(json.dumps([took, wrong]), flush=True)


class Asked:
    """A Side in a process of its own, and what it needs."""

    def __init__(self, kind: str, stack: contextlib.ExitStack) -> None:
        self.kind = kind
        arguments = self.start_kvist(stack) if kind == "kvist" else self.start_mooncake(stack)
        self.process = self.spawn(stack, sys.executable, __file__, "--side", kind, *arguments)
        self.line()

    def spawn(self, stack: contextlib.ExitStack, *argv: str, piped: bool = True) -> subprocess.Popen:
        # What they log goes to a file that is shown when they fail.
        self.log = stack.enter_context(tempfile.TemporaryFile("w+"))
        pipe = subprocess.PIPE if piped else subprocess.DEVNULL
        process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=self.log, text=True)
        stack.callback(self.stop, process)
        return process

    @staticmethod
    def stop(process: subprocess.Popen) -> None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def start_kvist(self, stack: contextlib.ExitStack) -> list[str]:
        import kvist

        node = stack.enter_context(kvist.Node(memory=POOL, admin=None))
        with node.client() as client:
            while (report := client.report())["ready_bytes"] < report["capacity_bytes"]:
                time.sleep(0.02)
        return [node.socket]

    def start_mooncake(self, stack: contextlib.ExitStack) -> list[str]:
        import mooncake

        where = os.path.join(mooncake.__path__[0], "mooncake_")
        with contextlib.ExitStack() as ports:
            opened = [ports.enter_context(socket.create_server((LO, 0))) for _ in range(4)]
            rpc, metadata, metrics, client = (str(one.getsockname()[1]) for one in opened)
        url, master = f"http://{LO}:{metadata}/metadata", f"{LO}:{rpc}"
        flags = [f"--rpc_port={rpc}", f"--rpc_address={LO}", "--enable_http_metadata_server=true"]
        flags += [f"--http_metadata_server_host={LO}", f"--http_metadata_server_port={metadata}"]
        flags += [f"--metrics_host={LO}", f"--metrics_port={metrics}"]
        self.spawn(stack, where + "master", *flags, piped=False)
        self.wait_for(rpc)
        if self.kind == "shm":
            flags = [f"--host={LO}", f"--port={client}", f"--global_segment_size={POOL}", f"--master_server_address={master}"]
            self.spawn(stack, where + "client", *flags, f"--metadata_server={url}", "--threads=2", piped=False)
            self.wait_for(client)
        elif self.kind == "two-process":
            provider = self.spawn(stack, sys.executable, __file__, "--provider", url, master)
            provider.stdout.readline()
        return [url, master, client]

    def wait_for(self, port: str) -> None:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection((LO, int(port)), timeout=1):
                return
            time.sleep(0.05)
        sys.exit(f"{self.kind}: nothing listens at port {port} within 20 s: {self.logged()}")

    def logged(self) -> str:
        """The end of what the process that was started last has logged."""
        self.log.seek(0)
        return self.log.read()[-2000:]

    def line(self) -> str:
        text = self.process.stdout.readline()
        if not text:
            sys.exit(f"{self.kind} ended with {self.process.wait()}: {self.logged()}")
        return text

    def run(self, op: str, calls: int) -> list[float]:
        self.process.stdin.write(f"{op} {calls}\n")
        self.process.stdin.flush()
        took, wrong = json.loads(self.line())
        if wrong:
            sys.exit(f"{self.kind}, {op}: {wrong} wrong bytes or answers")
        return took


def measure(sides: list[Asked], op: str, rounds: int, as_json: bool) -> None:
    size, batch, calls = OPS[op]
    rates: dict[str, list[float]] = {side.kind: [] for side in sides}
    p50: dict[str, list[float]] = {side.kind: [] for side in sides}
    p10: dict[str, list[float]] = {side.kind: [] for side in sides}
    for number in range(rounds + 1):
        for side in sides if number % 2 else reversed(sides):
            took = side.run(op, calls)
            if number > 0:  # the first round warms up
                rates[side.kind].append(len(took) / sum(took) * 1e6)
                p50[side.kind].append(statistics.median(took))
                p10[side.kind].append(sorted(took)[len(took) // 10])
    figures = {kind: statistics.median(of) for kind, of in p50.items()}
    faster = ratio_to_best(p50, rounds, min, lambda ours, best: best / ours)
    undisturbed = ratio_to_best(p10, rounds, min, lambda ours, best: best / ours)
    by_rate = ratio_to_best(rates, rounds, max, lambda ours, best: ours / best)
    if as_json:
        rest = {"bytes": size, "keys": batch, "ratio": faster, "ratio_p10": undisturbed, "ratio_by_rate": by_rate, "load": round(os.getloadavg()[0], 1)}
        quiet = {kind: statistics.median(of) for kind, of in p10.items()}
        cells = {kind: {"p50_us": round(of, 2), "p10_us": round(quiet[kind], 2), "calls_per_s": round(statistics.median(rates[kind]))} for kind, of in figures.items()}
        print(json.dumps({"bench": "mooncake", "op": op, **rest, **cells}), flush=True)
        return
    ends = "" if faster is None else f"   {faster:6.1f} x {undisturbed:6.1f} x {by_rate:6.1f} x"
    print(f"{op:24}" + " ".join(f"{of:9.1f}" for of in figures.values()) + ends, flush=True)


def ratio_to_best(of: dict[str, list[float]], rounds: int, best, ratio) -> float | None:
    others = [kind for kind in of if kind != "kvist"]
    if not others:
        return None
    each = (ratio(of["kvist"][i], best(of[kind][i] for kind in others)) for i in range(rounds))
    return round(statistics.median(each), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="one JSON line an operation")
    parser.add_argument("--only", nargs="*", help="operations that begin with one of these")
    parser.add_argument("--sides", nargs="*", default=SIDES, choices=SIDES)
    options = parser.parse_args()
    os.environ["MC_TCP_BIND_ADDRESS"] = LO
    kinds = [kind for kind in SIDES if kind in options.sides or kind == "kvist"]
    try:
        import mooncake.store  # noqa: F401
    except Exception as error:
        print(f"only kvist is measured: Mooncake Store is not usable here ({error})", file=sys.stderr)
        kinds = ["kvist"]
    with contextlib.ExitStack() as stack:
        sides = [Asked(kind, stack) for kind in kinds]
        if not options.json:
            print(f"p50, us a call{'':10}" + " ".join(f"{kind[:9]:>9}" for kind in kinds) + "   best other to kvist: p50, p10, rate")
        for op in OPS:
            if not options.only or op.startswith(tuple(options.only)):
                measure(sides, op, options.rounds, options.json)
        if not options.json:
            print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        Side(sys.argv[2], sys.argv[3:]).serve()
        os._exit(0)  # the real library's threads outlive its close()
    elif sys.argv[1:2] == ["--provider"]:
        import mooncake.store

        url, master = sys.argv[2:]
        owner = mooncake.store.MooncakeDistributedStore()
        print(owner.setup(LO, url, POOL, 16 * MIB, "tcp", "", master), flush=True)
        sys.stdin.read()
        os._exit(0)
    else:
        main()
