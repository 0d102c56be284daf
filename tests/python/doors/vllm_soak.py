"""A soak of the vLLM connector: conversations on a real engine with too few KV blocks, random aborts, and a node that is killed
and started again every minute. Another engine, without a connector, computes every answer a second time.

    PYTHONPATH=build/python python tests/python/doors/vllm_soak.py --seconds 600 [--seed N] [--sessions 16] [--load async]

Prints its seed, a line every ten seconds, and a summary as JSON; ends with 1 if an answer was wrong, a request hung, or
anything was left: requests, KV blocks, pins. The tiny model, float32, one thread.
"""

import argparse
import collections
import faulthandler
import json
import os
import pathlib
import queue
import random
import signal
import sys
import tempfile
import threading
import time

import kvist
from vllm_engines import ENVIRONMENT, VOCABULARY, Engine, external_hits, tiny_model

MAX_LEN, BLOCKS, SHARED = 768, 110, 96  # tokens, KV blocks for all (24 for one at its longest), tokens that all begin with
HANG = 90.0  # seconds without a token of a request after which it counts as hung


class Checker:
    """An engine without a connector, in a process of its own and behind: a queue of what has to be equal."""

    def __init__(self, model, folder):
        self._engine = Engine(model, folder / "plain.log", max_model_len=MAX_LEN, kv_cache_memory_bytes=256 << 20)
        self._asked = queue.Queue()
        self.checked, self.wrong, self.failure = 0, [], None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def ask(self, prompt, tokens):
        self._asked.put((prompt, tokens))

    @property
    def behind(self):
        return self._asked.qsize()

    def finish(self):
        self._asked.put(None)
        self._thread.join()
        self._engine.close()

    def _run(self):
        try:
            for batch in iter(self._batch, []):
                answers = self._engine.generate([prompt for prompt, _ in batch], max(len(tokens) for _, tokens in batch))
                for (prompt, tokens), answer in zip(batch, answers):
                    self.checked += 1
                    if answer["tokens"][: len(tokens)] != tokens:
                        self.wrong.append({"prompt": prompt, "tokens": tokens, "right": answer["tokens"]})
        except BaseException as failure:
            self.failure = failure

    def _batch(self):
        batch = []
        while not batch or (len(batch) < 8 and not self._asked.empty()):
            one = self._asked.get()
            if one is None:
                self._asked.put(None)
                break
            batch.append(one)
        return batch


class Session:
    """One conversation: what was said so far, and the turn that is asked for."""

    def __init__(self, number, rng, shared):
        self.number, self._rng, self._shared = number, rng, shared
        self.turns = 0
        self._begin()

    def _begin(self):
        self.said = self._shared + self._words(20 + self._rng.randrange(80))

    def _words(self, count):
        return [self._rng.randrange(10, VOCABULARY - 10) for _ in range(count)]

    def turn(self):
        """Begins one: prompt and number of tokens to answer with."""
        self.turns += 1
        count = self._rng.randrange(8, 40)
        if len(self.said) + 60 + count >= MAX_LEN:
            self._begin()
        self.prompt = self.said + self._words(self._rng.randrange(1, 60))
        self.count, self.tokens, self.since, self.steps = count, [], time.monotonic(), 0
        self.abort_at = self._rng.randrange(0, 25) if self._rng.random() < 0.2 else None
        return self.prompt, count

    def answered(self):
        """It goes on from the answer; after an abort with the same prompt, or with something else."""
        if len(self.tokens) == self.count:
            self.said = self.prompt + self.tokens
        elif self._rng.random() < 0.5:
            self.said = self.prompt


class Restarts(threading.Thread):
    """The node: killed every `every` seconds, and there again, empty, a few seconds later."""

    def __init__(self, socket, every, rng):
        super().__init__(daemon=True)
        self._socket, self._every, self._rng = socket, every, rng
        self._over = threading.Event()
        self.node, self.kills = self._start(), 0

    def _start(self):
        return kvist.Node("48MiB", socket=self._socket, admin=None)  # less than what is said in a minute: it evicts

    def run(self):
        while not self._over.wait(self._every):
            os.kill(self.node.pid, signal.SIGKILL)
            self.kills += 1
            self.node.close()
            self._over.wait(self._rng.uniform(0.5, 6))
            self.node = self._start()

    def finish(self):
        self._over.set()
        self.join(60)
        return self.node


def soak(engine, sessions, seconds, rng, restarts, checker, say):
    """Steps the engine until the time is over and all turns are done. Returns what was counted, and what went wrong."""
    from vllm import SamplingParams

    core, counted, wrong = engine.llm_engine, collections.Counter(), []
    asked = {}  # request id -> its session
    began = said = time.monotonic()

    def ask(session):
        prompt, count = session.turn()
        name = f"{session.number}:{session.turns}"
        parameters = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
        core.add_request(name, {"prompt_token_ids": prompt}, parameters)
        asked[name] = session

    def end(name, session, what):
        del asked[name]
        counted[what] += 1
        if session.tokens:
            checker.ask(session.prompt, session.tokens)
        session.answered()

    for session in sessions:
        ask(session)
    while asked:
        for one in core.step():
            session = asked.get(one.request_id)
            if session is None or not one.outputs:
                continue
            session.tokens, session.since = list(one.outputs[0].token_ids), time.monotonic()
            if one.finished:
                if one.outputs[0].finish_reason != "length":
                    wrong.append(f"request {one.request_id} ended with {one.outputs[0].finish_reason}")
                end(one.request_id, session, "answers")
        counted["steps"] += 1
        now = time.monotonic()
        for name, session in list(asked.items()):
            session.steps += 1
            if session.abort_at is not None and session.steps >= session.abort_at:
                core.abort_request([name])
                end(name, session, "aborts")
            elif now - session.since > HANG:
                wrong.append(f"request {name} has been without a token for {HANG:.0f} s")
                core.abort_request([name])
                end(name, session, "hung")
        if now - began < seconds and not wrong and not checker.wrong and checker.failure is None:
            busy = set(map(id, asked.values()))
            for session in sessions:
                if id(session) not in busy and checker.behind < 200:
                    ask(session)
        if not asked and now - began < seconds and not wrong and not checker.wrong:
            time.sleep(0.05)  # the check is far behind
            ask(sessions[0])
        if now - said >= 10:
            said = now
            say(now - began, counted, restarts)
    return counted, wrong


def left_over(engine, node, free, rng):
    """What is still held after the last turn, as text; [] if nothing."""
    scheduler = engine.llm_engine.engine_core.engine_core.scheduler
    ours = scheduler.connector._scheduler
    parameters_prompt = [rng.randrange(10, VOCABULARY - 10) for _ in range(20)]
    end = time.monotonic() + 30
    while True:
        engine.generate([{"prompt_token_ids": parameters_prompt}], use_tqdm=False)  # late reports come with a step
        held = []
        if scheduler.requests or scheduler.running or scheduler.waiting:
            held.append("requests in the scheduler")
        if ours.requests or ours._flying or ours._landing or ours._keys:
            held.append(f"requests {list(ours.requests)} or loads {list(ours._flying)} in the connector")
        if not engine.reset_prefix_cache():
            held.append("KV blocks are in use")
        if scheduler.kv_cache_manager.block_pool.get_num_free_blocks() != free:
            held.append(f"{scheduler.kv_cache_manager.block_pool.get_num_free_blocks()} of {free} KV blocks are free")
        with node.client() as client:
            pinned = client.report()["pinned"]
        if pinned:
            held.append(f"{pinned} blocks of the node are pinned")
        if not held or time.monotonic() > end:
            return held
        time.sleep(0.5)


def metric(name):
    from prometheus_client import REGISTRY

    found = {}
    for family in REGISTRY.collect():
        for sample in family.samples:
            if sample.name == name:
                reason = sample.labels.get("reason", "")
                found[reason] = found.get(reason, 0) + int(sample.value)
    return found if "" not in found else found[""]


def memory():
    """MiB of this process: its own, and shared ones (the pool's) that it has touched."""
    with open("/proc/self/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return [int(fields[name].split()[0]) >> 10 for name in ("RssAnon", "RssShmem")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--every", type=float, default=60, help="seconds from one kill of the node to the next")
    parser.add_argument("--load", default="auto", choices=["auto", "sync", "async"])
    parser.add_argument("--folder", type=pathlib.Path, help="for logs and the model; kept. Default a temporary one")
    options = parser.parse_args()
    say = os.fdopen(os.dup(1), "w", buffering=1)
    print(f"seed {options.seed}, {options.sessions} sessions, {options.seconds:.0f} s, load {options.load}", file=say)
    with tempfile.TemporaryDirectory() as folder:
        status = run(options, options.folder or pathlib.Path(folder), say)
    sys.exit(status)


def run(options, folder, say):
    folder.mkdir(parents=True, exist_ok=True)
    log = os.open(folder / "engine.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1), os.dup2(log, 2)
    for name, value in {**ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}.items():
        os.environ.setdefault(name, value)
    faulthandler.register(signal.SIGUSR1)
    rng = random.Random(options.seed)
    model = tiny_model(folder / "tiny")
    checker = Checker(model, folder)
    socket = str(folder / "k.sock")
    restarts = Restarts(socket, options.every, random.Random(options.seed + 1))

    from vllm import LLM

    transfer = {
        "kv_connector": "KvistConnector",
        "kv_connector_module_path": "kvist.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"socket": socket, "load": options.load},
    }
    engine = LLM(
        model=str(model),
        skip_tokenizer_init=True,
        enforce_eager=True,
        seed=0,
        dtype="float32",
        block_size=32,
        max_model_len=MAX_LEN,
        max_num_seqs=options.sessions,
        num_gpu_blocks_override=BLOCKS,
        kv_cache_memory_bytes=64 << 20,
        prefix_caching_hash_algo="sha256_cbor",
        disable_log_stats=False,
        kv_transfer_config=transfer,
    )
    free = engine.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    shared = [rng.randrange(10, VOCABULARY - 10) for _ in range(SHARED)]
    sessions = [Session(i, random.Random(rng.random()), shared) for i in range(options.sessions)]
    restarts.start()
    first = memory()

    def progress(passed, counted, restarts):
        print(
            f"{passed:5.0f} s: {counted['steps']} steps, {counted['answers']} answers, {counted['aborts']} aborts, "
            f"{metric('vllm:num_preemptions_total')} preemptions, {external_hits()} tokens from the pool, "
            f"{restarts.kills} kills, {checker.checked} checked, {checker.behind} to be checked, "
            f"{memory()} MiB",
            file=say,
        )

    counted, wrong = soak(engine, sessions, options.seconds, rng, restarts, checker, progress)
    last = memory()
    node = restarts.finish()
    wrong += left_over(engine, node, free, rng)
    checker.finish()
    if checker.failure is not None:
        wrong.append(f"the engine that checks failed: {checker.failure!r}")
    wrong += [f"wrong tokens: {json.dumps(one)}" for one in checker.wrong[:3]]
    engine.llm_engine.engine_core.shutdown()
    node.close()
    summary = {
        "seed": options.seed,
        "ok": not wrong,
        **counted,
        "checked": checker.checked,
        "wrong_answers": len(checker.wrong),
        "preemptions": metric("vllm:num_preemptions_total"),
        "hit_tokens": external_hits(),
        "failed_loads": metric("kvist:failed_loads_total"),
        "dropped_blocks": metric("kvist:dropped_blocks_total"),
        "failures": metric("kvist:failures_total"),
        "kills": restarts.kills,
        "memory_mib": [first, last],
        "warnings": (folder / "engine.log").read_text(errors="replace").count("] Kvist: "),
        "wrong": wrong,
    }
    print(json.dumps(summary), file=say)
    return 1 if wrong else 0


if __name__ == "__main__":
    main()
