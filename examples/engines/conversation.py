"""A conversation that two engines answer in turns, each from the KV that the other one computed: `make run ENGINE=1`.

    PYTHONPATH=build/python build/venv-vllm/bin/python examples/engines/conversation.py --model FOLDER

A page of text and questions about it go to vLLM engines with a real, small model. First an engine without Kvist answers every
turn from nothing, as an engine must that has not seen the conversation: that gives the times to compare with, and the tokens
that are right. Then two engine processes with one Kvist node answer the same turns, one after the other. The table says how
many tokens of each turn came from where, the time to the first token without and with, and whether the tokens are the same.

Ends with 1 if tokens differ, if nothing came from the pool, or if it is not done in --seconds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import pathlib
import signal
import sys
import tempfile
import time
from typing import Any

BLOCK_TOKENS = 32
PAGE = pathlib.Path(__file__).parent / "page.txt"
QUESTIONS = (
    "Who built the tower of grey granite?",
    "What did Ingrid do in the night of the third of March 1849?",
    "How is the lens cleaned, and why never with soap?",
    "What must the keeper on watch do if the light goes out?",
)
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process an engine: it starts in a third of the time
    "OMP_NUM_THREADS": "1",  # one thread an engine: the same rounding each time, so that tokens can be compared
    "PYTHONHASHSEED": "0",  # engines that share must hash alike
}


def transfer(socket: str, tier: bool) -> dict[str, Any]:
    """What an operator gives as --kv-transfer-config."""
    if not tier:
        return {
            "kv_connector": "KvistConnector",
            "kv_connector_module_path": "kvist.vllm",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"socket": socket},
        }
    extra = {
        "spec_name": "KvistOffloadingSpec",
        "spec_module_path": "kvist.vllm.tier",
        "cpu_bytes_to_use": 512 << 20,
        "offload_prompt_only": False,
        "secondary_tiers": [{"type": "KvistTier", "module_path": "kvist.vllm.tier", "socket": socket}],
    }
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


# ---- an engine, in its own process ----------------------------------------------------------------------------------


def serve(pipe: Any, model: str, log: str, connector: dict[str, Any] | None) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's business
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    from vllm import LLM, SamplingParams

    options = {} if connector is None else {"kv_transfer_config": connector}
    llm = LLM(
        model=model,
        dtype="float32",
        block_size=BLOCK_TOKENS,
        max_model_len=4096,
        max_num_batched_tokens=4096,
        kv_cache_memory_bytes=512 << 20,
        enforce_eager=True,
        disable_log_stats=False,
        prefix_caching_hash_algo="sha256_cbor",
        disable_hybrid_kv_cache_manager=None,
        seed=0,
        **options,
    )
    pipe.send("ready")
    for number in range(1 << 30):
        asked = pipe.recv()
        if asked is None:
            return
        messages, tokens, forget = asked
        prompt = llm.get_tokenizer().apply_chat_template(messages, add_generation_prompt=True)
        prompt = list(prompt if isinstance(prompt, list) else prompt["input_ids"])
        if forget:
            llm.reset_prefix_cache()
        before, began, first = pool_tokens(llm), time.perf_counter(), 0.0
        llm.llm_engine.add_request(str(number), {"prompt_token_ids": prompt}, SamplingParams(temperature=0, max_tokens=tokens))
        while llm.llm_engine.has_unfinished_requests():
            for answer in llm.llm_engine.step():
                first = first or time.perf_counter() - began
        said = answer.outputs[0]
        pool = pool_tokens(llm) - before
        pipe.send((said.text.strip(), list(said.token_ids), len(prompt), answer.num_cached_tokens - pool, pool, first))


def pool_tokens(llm: Any) -> int:
    return int(sum(m.value for m in llm.get_metrics() if m.name == "vllm:external_prefix_cache_hits"))


class Engine:
    def __init__(self, name: str, model: str, folder: str, connector: dict[str, Any] | None, end: float) -> None:
        self.name, self._end, self._log = name, end, os.path.join(folder, f"engine-{name}.log")
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, model, self._log, connector), daemon=True)
        self._process.start()
        theirs.close()

    def ready(self) -> None:
        """Waits until it has started, and shows that: a line that moves on a terminal, elsewhere one every ten seconds."""
        began = time.monotonic()
        while not self._pipe.poll(1.0) and time.monotonic() < self._end:
            waited = int(time.monotonic() - began)
            if sys.stdout.isatty():
                print(f"\r\033[K    engine {self.name} starts, {waited} s", end="", flush=True)
            elif waited % 10 == 0:
                say(f"    engine {self.name} starts, {waited} s")
        if sys.stdout.isatty():
            print("\r\033[K", end="", flush=True)
        self._receive()

    def answer(self, *asked: Any) -> Any:
        self._pipe.send(asked)
        return self._receive()

    def _receive(self) -> Any:
        if not self._pipe.poll(max(0.0, self._end - time.monotonic())):
            raise SystemExit("conversation: not done in the time that --seconds gives; a slower machine needs more of it")
        try:
            return self._pipe.recv()
        except EOFError:
            with open(self._log, errors="replace") as log:
                sys.stderr.write("".join(log.readlines()[-25:]))
            raise SystemExit(f"conversation: engine {self.name} ended (above: what it said last)") from None

    def close(self) -> None:
        if self._process.is_alive():
            try:
                self._pipe.send(None)
            except OSError:
                pass
            self._process.join(15)
        self._process.kill()
        self._process.join(15)


# ---- the conversation -----------------------------------------------------------------------------------------------


def dim(text: str) -> str:
    return f"\033[2m{text}\033[0m" if sys.stdout.isatty() else text


def say(text: str) -> None:
    print(text, flush=True)


def clock(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


def talk(engines: list[Engine], text: str, tokens: int, script: list[Any] | None) -> list[Any]:
    """The turns, the engines taking turns. script: what was said without Kvist, which is then what was said before each turn;
    None: this is that conversation, and each turn starts with an empty cache."""
    messages = [{"role": "system", "content": "You answer questions about this page, in short.\n\n" + text}]
    turns = []
    for i, question in enumerate(QUESTIONS):
        engine = engines[i % len(engines)]
        messages.append({"role": "user", "content": question})
        turn = engine.answer(messages, tokens, script is None)
        turns.append(turn)
        said, _, prompt, own, pool, first = turn
        if script is None:
            say(f"    turn {i + 1}: {prompt:,} tokens, the first token of the answer after {clock(first)}")
        else:
            say(f"    You: {question}\n    {engine.name}:   {said}")
            say(dim(f"         {prompt:,} tokens: {pool:,} from the pool, {own:,} from its own cache; first token after {clock(first)}"))
            time.sleep(0.3)  # nobody asks faster; what the answer added to the KV is on its way to the pool
        messages.append({"role": "assistant", "content": said if script is None else script[i][0]})
    return turns


def table(names: list[str], without: list[Any], turns: list[Any]) -> bool:
    """Prints it; whether all is as it should be."""
    row = "    {:<6}{:<8}{:>8}{:>10}{:>12}{:>11}{:>18}{:>9}{:>9}   {}".format
    say(row("", "", "prompt", "of these", "from its", "", "time to first", "", "", "the answer's"))
    say(row("turn", "engine", "tokens", "the pool", "own cache", "computed", "token without", "with", "ratio", "tokens are"))
    same = True
    for i, (plain, turn) in enumerate(zip(without, turns)):
        _, tokens, prompt, own, pool, first = turn
        alike = tokens == plain[1]
        same = same and alike
        ratio = f"{plain[5] / first:.1f} x"
        where = (f"{prompt:,}", f"{pool:,}", f"{own:,}", f"{prompt - own - pool:,}", clock(plain[5]), clock(first), ratio)
        say(row(i + 1, names[i % len(names)], *where, "the same" if alike else "DIFFERENT"))
    return same and sum(turn[4] for turn in turns) > 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a folder, see smollm2.py")
    parser.add_argument("--page", type=pathlib.Path, default=PAGE, help="the text to talk about (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=40, help="an answer's length at most (default %(default)s)")
    parser.add_argument("--memory", default="512MiB", help="the pool (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=240, help="for all of it (default %(default)s)")
    parser.add_argument("--tier", action="store_true", help="vLLM's OffloadingConnector with Kvist as its second tier")
    options = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the engines end too
    import kvist

    end, text = time.monotonic() + options.seconds, options.page.read_text()
    began, engines = time.monotonic(), list[Engine]()
    with tempfile.TemporaryDirectory(prefix="kvist-engines-") as folder:
        try:
            say("==> Without Kvist: an engine that has not seen the conversation computes every turn anew")
            engines.append(Engine("plain", options.model, folder, None, end))
            engines[0].ready()
            without = talk(engines, text, options.tokens, None)
            engines.pop().close()

            say(f"==> With Kvist: a node with {options.memory}, and two engines, A and B, that answer in turns")
            with kvist.Node(memory=options.memory, admin=None) as node:
                connector = transfer(node.socket, options.tier)
                engines += [Engine(name, options.model, folder, connector, end) for name in "AB"]
                for engine in engines:
                    engine.ready()
                names, turns = [engine.name for engine in engines], talk(engines, text, options.tokens, without)
                while engines:
                    engines.pop().close()
        finally:
            while engines:
                engines.pop().close()
    say("==> Where each turn's KV came from, and the time to its first token")
    right = table(names, without, turns)
    if right:
        say("    Each answer is, token for token, the one of the engine without Kvist.")
    else:
        say("    Something is wrong: tokens differ, or nothing came from the pool.")
    say(f"==> Done after {time.monotonic() - began:.0f} s")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
