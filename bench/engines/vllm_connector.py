"""What the vLLM connector costs and gives, measured in one real engine, beside the ceilings that it is held to.

    PYTHONPATH=build/python VENV/bin/python bench/engines/vllm_connector.py --model FOLDER            # all; FOLDER: a model
    PYTHONPATH=build/python VENV/bin/python bench/engines/vllm_connector.py --model FOLDER ttft hooks # only these
    ... --tiny                                                                              # random weights instead, seconds

ttft      time to first token of a restored context, beside the engine's own warm prefix cache, and beside recomputing it
hooks     share of wall time in the connector's hooks, with prompts that never repeat
switch    steps with the connector beside steps with a null one, in turns in one engine, and a control of null beside null
lookup    one look-up in the scheduler
restore   blocks from the pool into the engine's KV tensors, beside a memcpy of the same pages

Engine core and worker live in this process, on one thread, as float32. A node is started for it, and ended.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import statistics
import tempfile
import time
from typing import Any

os.environ.update(
    {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        **{key: os.environ.get(key, value) for key, value in (("PYTHONHASHSEED", "0"), ("OMP_NUM_THREADS", "1"))},
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
    }
)

import torch  # noqa: E402

from tiny_model import make_tiny  # noqa: E402

import kvist  # noqa: E402
from kvist.vllm.step import IDLE  # noqa: E402

BLOCK = 32
HOOKS = (
    "on_new_request get_num_new_matched_tokens update_state_after_alloc build_connector_meta update_connector_output "
    "request_finished_all_groups take_events get_kv_connector_stats has_pending_push_work has_pending_block_frees "
    "handle_preemptions bind_connector_metadata start_load_kv wait_for_save get_transfer_results "
    "get_block_ids_with_load_errors get_kv_connector_kv_cache_events build_connector_worker_meta clear_connector_metadata "
    "has_connector_metadata wait_for_layer_load save_kv_layer"
).split()


# What a null connector answers to the hooks of a step.
NULL: dict[str, Any] = {
    "get_num_new_matched_tokens": lambda *_: (0, False),
    "build_connector_meta": lambda *_: IDLE,
    "update_connector_output": lambda *_: None,
    "get_transfer_results": lambda *_: _nothing(),
    "get_kv_connector_stats": lambda: None,
    "handle_preemptions": lambda *_: None,
    "start_load_kv": lambda *_, **__: None,
    "wait_for_save": lambda: None,
    "get_block_ids_with_load_errors": set,
    "build_connector_worker_meta": lambda: None,
}


def _nothing() -> Any:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults

    return KVConnectorTransferResults()


class Bench:
    def __init__(self, model: str, node: kvist.Node, rounds: int) -> None:
        from vllm import LLM

        with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
            self.vocabulary = json.load(file)["vocab_size"]
        self.llm = LLM(
            model=model,
            skip_tokenizer_init=True,
            enforce_eager=True,
            seed=0,
            block_size=BLOCK,
            max_model_len=8192,
            max_num_seqs=32,
            max_num_batched_tokens=2048,
            enable_prefix_caching=True,
            prefix_caching_hash_algo="sha256_cbor",
            dtype="float32",
            kv_cache_memory_bytes=1 << 30,
            disable_log_stats=True,
            kv_transfer_config={
                "kv_connector": "KvistConnector",
                "kv_connector_module_path": "kvist.vllm",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {"socket": node.socket},
            },
        )
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        self.core = self.llm.llm_engine.engine_core.engine_core
        self.scheduler = self.core.scheduler.connector
        self.worker = get_kv_transfer_group()
        self._served: list[int] | None = None
        self.totals: dict[str, int] = {}
        for side in (self.scheduler, self.worker):
            self._total(side._counters)
        self.rounds = rounds
        self.random = random.Random(1)
        self.count = 0
        self.real: dict[tuple[Any, str], Any] = {}  # hooks that a null one stands in for now

    def _total(self, counters: Any) -> None:
        """The engine takes what was counted at every step: keeps the sums."""
        add, because = counters.add, counters.because

        def adds(name: str, by: int = 1) -> None:
            self.totals[name] = self.totals.get(name, 0) + by
            add(name, by)

        def reasons(name: str, reason: str, by: int = 1) -> None:
            self.totals[f"{name}: {reason}"] = self.totals.get(f"{name}: {reason}", 0) + by
            because(name, reason, by)

        counters.add, counters.because = adds, reasons

    def words(self, count: int) -> list[int]:
        return [self.random.randrange(10, self.vocabulary - 10) for _ in range(count)]

    def switch(self, on: bool) -> None:
        for side in (self.scheduler, self.worker):
            for name, null in NULL.items():
                if on and (side, name) in self.real:
                    setattr(side, name, self.real.pop((side, name)))
                elif not on and (side, name) not in self.real:
                    self.real[side, name] = getattr(side, name)
                    setattr(side, name, null)

    def generate(self, prompts: list[list[int]], tokens: int, step: Any = None) -> tuple[float, float]:
        """Seconds to the first token of the first prompt, and in all. step: called before each step."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        engine, first = self.llm.llm_engine, 0.0
        begin = time.perf_counter()
        for prompt in prompts:
            self.count += 1
            engine.add_request(str(self.count), {"prompt_token_ids": prompt}, params)
        while engine.has_unfinished_requests():
            if step is not None:
                step()
            if engine.step() and first == 0.0:
                first = time.perf_counter() - begin
        return first, time.perf_counter() - begin

    def served(self, context: int) -> list[int]:
        """A context of so many tokens that is in the pool, and not in the engine's cache."""
        if self._served is None or len(self._served) != context:
            self._served = self.words(context)
            self.generate([self._served + self.words(1)], 2)
            self.settle()
        assert self.llm.reset_prefix_cache()
        return self._served

    def settle(self) -> None:
        """Until the node has answered to all stores."""
        ours, end = self.worker._worker, time.monotonic() + 30
        while ours._puts and time.monotonic() < end:
            time.sleep(0.005)
            ours._poll()

    # ---- what is measured -----------------------------------------------------------------------------------------

    def ttft(self, context: int, tails: list[int]) -> None:
        blocks = context // BLOCK
        copy = self._memcpy(self.words_ids(blocks))
        self.switch(False)
        recompute, _ = self.generate([self.words(blocks * BLOCK) + self.words(16)], 1)
        self.switch(True)
        head = self.served(blocks * BLOCK)
        rows = []
        for tail in tails:
            own, restored = [], []
            for _ in range(self.rounds):
                self.generate([head + self.words(tail)], 1)  # the head is in the engine's cache
                own.append(self.generate([head + self.words(tail)], 1)[0])
                assert self.llm.reset_prefix_cache()
                before = self.totals.get("hit_tokens", 0)
                restored.append(self.generate([head + self.words(tail)], 1)[0])
                assert self.totals["hit_tokens"] - before == blocks * BLOCK, "the context did not come from the pool"
            mine, theirs = statistics.median(restored), statistics.median(own)
            rows.append(
                {
                    "tail": tail,
                    "own_cache_ms": round(theirs * 1e3, 1),
                    "restored_ms": round(mine * 1e3, 1),
                    "over_own_ms": round((mine - theirs) * 1e3, 1),
                    "over_own_in_memcpys": round((mine - theirs) / copy, 2),
                    "ratio_to_own": round(mine / theirs, 3),
                    "times_faster_than_recomputing": round(recompute / mine, 1),
                }
            )
        say("ttft", context=blocks * BLOCK, memcpy_ms=round(copy * 1e3, 1), recompute_s=round(recompute, 2), rows=rows)

    def hooks(self, tokens: int) -> None:
        shares, top = [], {}
        for _ in range(self.rounds):
            spent: dict[str, list[float]] = {}
            undo = [self._timed(side, name, spent) for side in (self.scheduler, self.worker) for name in HOOKS]
            _, wall = self.generate([self.words(400) for _ in range(6)], tokens)
            for put_back in undo:
                put_back()
            shares.append(sum(sum(times) for times in spent.values()) / wall)
            top = {name: round(sum(times) / wall * 100, 4) for name, times in spent.items()}
        worst = dict(sorted(top.items(), key=lambda item: -item[1])[:6])
        say("hooks", percent_of_wall=round(statistics.median(shares) * 100, 3), most_percent=worst)

    def _timed(self, side: Any, name: str, spent: dict[str, list[float]]) -> Any:
        method, clock, times = getattr(side, name), time.perf_counter, spent.setdefault(name, [])
        own = name in vars(side)

        def timed(*arguments: Any, **named: Any) -> Any:
            begin = clock()
            try:
                return method(*arguments, **named)
            finally:
                times.append(clock() - begin)

        setattr(side, name, timed)
        return lambda: setattr(side, name, method) if own else delattr(side, name)

    def switched(self, tokens: int) -> None:
        times: dict[str, list[float]] = {"null": [], "control": [], "kvist": []}
        last: list[Any] = [None, 0.0]

        def step() -> None:
            now = time.perf_counter()
            if last[0] is not None:
                times[last[0]].append(now - last[1])
            last[0] = self.random.choice(("null", "control", "kvist", "kvist"))
            self.switch(last[0] == "kvist")
            last[1] = time.perf_counter()

        for _ in range(self.rounds):
            self.generate([self.words(40) for _ in range(8)], tokens, step)
            last[0] = None
        self.switch(True)
        mean = {name: _trimmed(values) for name, values in times.items()}
        say(
            "switch",
            steps={name: len(values) for name, values in times.items()},
            null_ms=round(mean["null"] * 1e3, 3),
            kvist_to_null=round(mean["kvist"] / mean["null"], 4),
            control_to_null=round(mean["control"] / mean["null"], 4),
        )

    def lookup(self, context: int) -> None:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        context = context // BLOCK * BLOCK
        head = self.served(context)
        ours = self.scheduler._scheduler
        first, again, miss = [], [], []
        for i in range(300):
            for prompt, times in ((head, first), (self.words(context), miss)):
                request = Request(
                    f"l{i}", prompt + [10], SamplingParams(max_tokens=1), None, block_hasher=self.core.request_block_hasher
                )
                ours.add(request)
                begin = time.perf_counter()
                found, _ = ours.match(request, 0)
                times.append(time.perf_counter() - begin)
                assert found == (context if prompt is head else 0)
                begin = time.perf_counter()
                ours.match(request, 0)
                if prompt is head:
                    again.append(time.perf_counter() - begin)
                ours.finished(request.request_id)
            if i == 20 and statistics.median(miss) > 0.01:
                break
        say("lookup", context=context, hit_us=_us(first), miss_us=_us(miss), again_us=_us(again))

    def restore(self, context: int) -> None:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        blocks = context // BLOCK
        head = self.served(blocks * BLOCK)
        request = Request("r", head, SamplingParams(max_tokens=1), None, block_hasher=self.core.request_block_hasher)
        link = self.worker._names.link
        space, pages = link.space(), self.worker._worker._pages
        chain = space.digests(list(request.block_hashes)[:blocks])
        ids = self.words_ids(blocks)
        nbytes = blocks * pages.page_bytes(0)
        ours, copies = [], []
        for _ in range(max(5, self.rounds)):
            begin = time.perf_counter()
            results = pages.read(space, chain, 0, ids, 0, 10.0)
            ours.append(time.perf_counter() - begin)
            assert results.ok
            copies.append(self._memcpy(ids))
        assert self.llm.reset_prefix_cache()
        mine, copy = statistics.median(ours), statistics.median(copies)
        say(
            "restore",
            blocks=blocks,
            block_kib=pages.page_bytes(0) // 1024,
            kvist_gib_s=round(nbytes / mine / 2**30, 2),
            memcpy_gib_s=round(nbytes / copy / 2**30, 2),
            ratio=round(copy / mine, 3),
        )

    def words_ids(self, count: int) -> list[int]:
        return self.random.sample(range(1, self.worker._kv_cache_config.num_blocks), count)

    def _memcpy(self, ids: list[int]) -> float:
        """Seconds to copy as many pages from one buffer into the engine's tensors, without the calls' own time."""
        from kvist.vllm import layout

        arrays = layout.arrays_of(
            self.caches, self.worker._kv_cache_config.kv_cache_groups[0], self.worker._kv_cache_config.num_blocks, {}
        )
        page = sum(array.shape[1] for array in arrays)
        if getattr(self, "_source", None) is None or self._source.numel() < page * len(ids):
            self._source = torch.randint(0, 255, (page * len(ids),), dtype=torch.uint8)
        move, source = ctypes.memmove, self._source.data_ptr()
        plan = []
        for block in ids:
            for array in arrays:
                plan.append((array.data_ptr() + block * array.stride(0), source, array.shape[1]))
                source += array.shape[1]
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            for target, origin, _ in plan:
                move(target, origin, 0)
            middle = time.perf_counter()
            for target, origin, length in plan:
                move(target, origin, length)
            times.append(time.perf_counter() - middle - (middle - begin))
        return statistics.median(times)

    @property
    def caches(self) -> dict[str, torch.Tensor]:
        context = self.worker._vllm_config.compilation_config.static_forward_context
        names = self.worker._kv_cache_config.kv_cache_groups[0].layer_names
        return {
            name: context[name].kv_cache if torch.is_tensor(context[name].kv_cache) else context[name].kv_cache[0]
            for name in names
        }


def _trimmed(values: list[float]) -> float:
    """The mean without the slowest hundredth: another program had the core."""
    return statistics.fmean(sorted(values)[: max(1, len(values) * 99 // 100)])


def _us(times: list[float]) -> float:
    return round(statistics.median(times) * 1e6, 1)


def say(what: str, **figures: Any) -> None:
    print(json.dumps({"measured": what, **figures}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=[], help="ttft, hooks, switch, lookup, restore; default: all")
    parser.add_argument("--model", help="folder of a small model")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--tails", type=int, nargs="*", default=[1, 8, 16, 31])
    parser.add_argument("--tokens", type=int, default=64, help="decoded for hooks and switch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", default="3GiB", help="of the node")
    options = parser.parse_args()
    if not options.model and not options.tiny:
        parser.error("--model FOLDER or --tiny")
    what = options.what or ["lookup", "restore", "hooks", "switch", "ttft"]
    with tempfile.TemporaryDirectory() as folder, kvist.Node(memory=options.memory, admin=None) as node:
        bench = Bench(make_tiny(folder) if options.tiny else options.model, node, options.rounds)
        bench.generate([bench.words(50)], 4)
        for name in what:
            if name == "ttft":
                bench.ttft(options.context, options.tails)
            elif name == "hooks":
                bench.hooks(options.tokens)
            elif name == "switch":
                bench.switched(options.tokens * 4)
            elif name == "lookup":
                bench.lookup(options.context)
            elif name == "restore":
                bench.restore(options.context)
            else:
                parser.error(f"there is no {name!r}")


if __name__ == "__main__":
    main()
