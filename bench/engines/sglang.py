"""What SGLang's calls cost through Kvist: 128 pages in and out of its own host pools, beside what they could cost at best.

    PYTHONPATH=build/python build/venv-sglang/bin/python bench/engines/sglang.py [--rounds 25] [--json] [--quick]

For each layout and page size four sides take turns on one node: `door`, batch_set_v1 and batch_get_v1 as SGLang calls them
(keys as text, host_indices as a tensor); `batch`, Kvist's own put and get of the same pages of the same pool, names and page
numbers ready; `copy`, the same pages copied by numpy within the process, piece by piece, which is the ceiling; `file`,
SGLang's own HiCacheFile on the temporary folder, by its v2 calls (it has no v1). A put stores pages that are not there yet.
A figure is of the median call, in GB/s; the ratio door / batch is that of these. `names` is what the door has to do before that
call of Kvist's own, names from keys and page numbers from indices, by itself: microseconds of processor time.
Bytes that were read are compared, untimed. `--shm` makes the host pools in shared memory, as SGLang's allocator "shm" does.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

# In place of this file's own folder, in which it would be found as SGLang.
sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2] / "tests/python/doors")
import numpy
from sglang_pools import (
    PAGE,
    HiCacheFile,
    HiCacheStorageExtraInfo,
    PoolName,
    PoolTransfer,
    backend_of,
    config,
    fill,
    mha_pool,
    mla_pool,
    torch,
)

import kvist

PAGES = 128
OPS = ("put", "get")
# name, pool, layers, heads (0: MLA), elements a head
POOLS = [
    ("MHA 16 layers x 8 heads x 64", dict(layers=16, heads=8, dim=64)),
    ("MHA 32 layers x 8 heads x 128", dict(layers=32, heads=8, dim=128)),
    ("MLA 61 layers x 576", dict(layers=61, rank=512, rope=64)),
]
LAYOUTS = ["page_first", "page_first_direct", "layer_first", "page_head"]


class Case:
    """One pool with its four sides."""

    def __init__(self, node: kvist.Node, shape: dict[str, int], layout: str, allocator: str, folder: str | None) -> None:
        mla = "rank" in shape
        # Pages of the source, and as many for what is read.
        make = mla_pool if mla else mha_pool
        self.pool = make(layout, tokens=2 * PAGES * PAGE, allocator=allocator, **shape)
        self.buffer = self.pool.kv_buffer
        given = dict(layout=layout, mla=mla, model=f"bench/{layout}/{shape}")
        self.door = backend_of(config(node.socket, deadline="10s", **given), self.pool)
        self.pages = self.door._open.pools["kv"].pages
        self.space = self.door._open.link.space()
        self.part = self.door._open.pools["kv"].own[0]
        fill(self.pool, 1)
        order = torch.randperm(PAGES, generator=torch.Generator().manual_seed(1))
        every = torch.arange(2 * PAGES * PAGE).view(-1, PAGE)
        self.source = every[order].reshape(-1)
        self.target = every[PAGES + order].reshape(-1)
        self.bytes = PAGES * self.pages.page_bytes
        self.file = None
        if folder is not None:
            self.file = HiCacheFile(config(mla=mla, model=given["model"]), folder)
            self.file.register_mem_pool_host(self.pool)
            self.file.register_mem_host_pool_v2(self.pool, PoolName.KV)
        self.pieces = self._pieces()
        self.extra = HiCacheStorageExtraInfo(prefix_keys=[])

    def _pieces(self) -> list[numpy.ndarray]:
        """Each piece of every page as rows of an array."""
        from kvist.sglang._pages import _Memory

        ask = torch.cat([torch.arange(PAGE), torch.arange(PAGE, 2 * PAGE)])
        addresses, sizes = self.pool.get_page_buffer_meta(ask)
        each = len(addresses) // 2
        return [
            numpy.asarray(_Memory(addresses[j], 2 * PAGES, sizes[j], addresses[each + j] - addresses[j])) for j in range(each)
        ]

    def keys(self, side: str, number: int) -> list[str]:
        return [f"{abs(hash((side, number, i))):064x}" for i in range(PAGES)]

    def put(self, side: str, number: int) -> float:
        keys = self.keys(side, number)
        if side == "door":
            begun = time.perf_counter()
            done = self.door.batch_set_v1(keys, self.source, self.extra)
            took = time.perf_counter() - begun
            assert all(done), self.door.counts
        elif side == "batch":
            chain, blocks = self.space.digests(keys), self.pages.blocks(self.source)[0]
            begun = time.perf_counter()
            results = self.space.put(chain, blocks, part=self.part, timeout=10)
            took = time.perf_counter() - begun
            assert results.done == PAGES
        else:
            one = [PoolTransfer(name=PoolName.KV, host_indices=self.source, keys=keys)]
            begun = time.perf_counter()
            done = self.file.batch_set_v2(one)
            took = time.perf_counter() - begun
            assert all(done[PoolName.KV])
        return took

    def get(self, side: str, number: int) -> float:
        keys = self.keys(side, number)
        if side == "door":
            begun = time.perf_counter()
            done = self.door.batch_get_v1(keys, self.target, self.extra)
            took = time.perf_counter() - begun
            assert all(done), self.door.counts
        elif side == "batch":
            chain, blocks = self.space.digests(keys), self.pages.blocks(self.target)[0]
            begun = time.perf_counter()
            results = self.space.get(chain, blocks, part=self.part, timeout=10)
            took = time.perf_counter() - begun
            assert results.done == PAGES
        else:
            one = [PoolTransfer(name=PoolName.KV, host_indices=self.target, keys=keys)]
            begun = time.perf_counter()
            done = self.file.batch_get_v2(one)
            took = time.perf_counter() - begun
            assert all(done[PoolName.KV])
        source, target = (indices[::PAGE] // PAGE for indices in (self.source, self.target))
        for piece in self.pieces[:: max(1, len(self.pieces) // 4)]:
            assert (piece[target.numpy()] == piece[source.numpy()]).all(), f"{side}: wrong bytes"
            piece[target.numpy()] = 0
        return took

    def names(self, number: int) -> float:
        """Seconds of this thread's processor time."""
        keys = self.keys("names", number)
        begun = time.thread_time()
        self.space.digests(keys), self.pages.blocks(self.source)
        return time.thread_time() - begun

    def copy(self) -> float:
        source, target = ((indices[::PAGE] // PAGE).tolist() for indices in (self.source, self.target))
        pairs = [(piece[t], piece[s]) for s, t in zip(source, target) for piece in self.pieces]
        copy = numpy.copyto
        begun = time.perf_counter()
        for to, of in pairs:
            copy(to, of)
        return time.perf_counter() - begun

    def remove(self, side: str, number: int) -> None:
        if side in ("door", "batch"):
            self.space.remove(self.space.digests(self.keys(side, number)), part=self.part)


def measure(case: Case, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of each call, by operation and side. Door and batch follow each other directly, now this first, now that."""
    took: dict[str, dict[str, list[float]]] = {op: {side: [] for side in ("door", "batch", "copy", "file")} for op in OPS}
    for number in range(rounds + 2):
        pair = ["door", "batch"] if number % 2 == 0 else ["batch", "door"]
        for op in OPS:
            for side in pair * (3 if op == "get" else 1):
                seconds = getattr(case, op)(side, number)
                if number >= 2:  # the first ones touch new memory
                    took[op][side].append(seconds)
            took[op]["copy"].append(case.copy())
            if case.file is not None and number < 5:
                took[op]["file"].append(getattr(case, op)("file", number))
        for side in pair:
            case.remove(side, number)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--json", action="store_true", help="one JSON line a figure")
    parser.add_argument("--quick", action="store_true", help="without the file backend")
    parser.add_argument("--shm", action="store_true", help="host pools in shared memory")
    options = parser.parse_args()
    worst = {"put": 9.0, "get": 9.0}
    with tempfile.TemporaryDirectory() as folder, kvist.Node(memory="3GiB", admin=None) as node, node.client() as client:
        while (report := client.report())["ready_bytes"] < report["capacity_bytes"]:
            time.sleep(0.01)
        for name, shape in POOLS:
            for layout in LAYOUTS:
                if "rank" in shape and layout == "page_head":
                    continue
                case = Case(node, shape, layout, "shm" if options.shm else "default", None if options.quick else folder)
                names_us = statistics.median(case.names(number) for number in range(options.rounds + 2)) * 1e6
                for op, sides in measure(case, options.rounds).items():
                    rates = {side: case.bytes / statistics.median(values) / 1e9 for side, values in sides.items() if values}
                    ratio = rates["door"] / rates["batch"]
                    worst[op] = min(worst[op], ratio)
                    told = {"bench": "sglang", "op": op, "pool": name, "layout": layout, "page_bytes": case.pages.page_bytes,
                            "pages": PAGES, "pieces": len(case.pieces), "door_over_batch": round(ratio, 3), "names_us": round(names_us, 1),
                            "load": round(os.getloadavg()[0], 1), **{f"{side}_GBps": round(rate, 3) for side, rate in rates.items()}}
                    if options.json:
                        print(json.dumps(told), flush=True)
                    else:
                        print(f"{op}  {name:30} {layout:18} {case.pages.page_bytes >> 10:5} KiB in {len(case.pieces):3} pieces  "
                              + "  ".join(f"{side} {rate:6.2f}" for side, rate in rates.items())
                              + f" GB/s  door/batch {ratio:.2f}  names {names_us:.0f} us", flush=True)
                case.door.clear()
                case.door.close()
                if case.file is not None:
                    case.file.clear()
    if not options.json:
        print(f"the least of door/batch: put {worst['put']:.2f}, get {worst['get']:.2f}   (load {os.getloadavg()[0]:.1f})")


if __name__ == "__main__":
    main()
