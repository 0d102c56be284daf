"""Real vLLM engines on this machine's processor for tests: a tiny model with weights that matter, and an engine as a process."""

import json
import math
import os
import pathlib
import subprocess
import sys
import time

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",  # one thread: the same numbers each time
    "PYTHONHASHSEED": "0",
}
VOCABULARY = 1024


def tiny_model(folder, seed=5):
    """A Llama of 4 layers with seeded weights, large enough that a wrong byte of KV changes tokens (vLLM's dummy weights are
    near zero). seed: of the weights. Made once per folder."""
    import torch
    from safetensors.torch import save_file

    folder = pathlib.Path(folder)
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    hidden, layers, heads, kv_heads, head, inner = 256, 4, 4, 2, 64, 512
    generator = torch.Generator().manual_seed(seed)

    def weight(rows, columns, gain):
        return (torch.randn(rows, columns, generator=generator) * gain / math.sqrt(columns)).bfloat16()

    tensors = {
        "model.embed_tokens.weight": weight(VOCABULARY, hidden, math.sqrt(hidden)),
        "lm_head.weight": weight(VOCABULARY, hidden, 1),
        "model.norm.weight": torch.ones(hidden).bfloat16(),
    }
    shapes = {
        "self_attn.q_proj": (heads * head, hidden, 1.5),
        "self_attn.k_proj": (kv_heads * head, hidden, 1.5),
        "self_attn.v_proj": (kv_heads * head, hidden, 2),
        "self_attn.o_proj": (hidden, heads * head, 2),
        "mlp.gate_proj": (inner, hidden, 1),
        "mlp.up_proj": (inner, hidden, 1),
        "mlp.down_proj": (hidden, inner, 1),
    }
    for layer in range(layers):
        for name, shape in shapes.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = weight(*shape)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{norm}.weight"] = torch.ones(hidden).bfloat16()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 8192,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


class Engine:
    """An engine in a process of its own. What it logs goes to the file `log`.

    with Engine(model, log, transfer) as engine:
        engine.generate([[12, 13, ...], ...], 24)    # -> [{"tokens": [...], "cached": n}, ...]

    in_process: its core and its worker in one process, else in three, as in production. seed: PYTHONHASHSEED, None: none.
    """

    def __init__(self, model, log, transfer=None, *, in_process=True, seed="0", **options):
        self.log = pathlib.Path(log)
        config = {
            "model": str(model),
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "seed": 0,
            "dtype": "float32",
            "block_size": 32,
            "max_model_len": 1024,
            "max_num_seqs": 8,
            "disable_log_stats": False,
            "prefix_caching_hash_algo": "sha256_cbor",
            "kv_cache_memory_bytes": 64 << 20,
            **options,
        }
        if transfer is not None:
            config["kv_transfer_config"] = transfer
        environment = {**ENVIRONMENT, **os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if in_process else "1"}
        if seed is not None:
            environment["PYTHONHASHSEED"] = seed
        else:
            del environment["PYTHONHASHSEED"]
        with open(self.log, "ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out, env=environment, text=True
            )
        self._ask(config)

    def generate(self, prompts, tokens):
        """Of all prompts at once, greedy."""
        return self._ask({"prompts": prompts, "tokens": tokens})

    def metrics(self):
        """{name: {labels as text: value}} of all that the process would show to Prometheus."""
        return self._ask({"metrics": True})

    def serve(self, prompts, tokens, **how):
        """Of all prompts at once, step by step: [[{"tokens", "reason"}, ...], what each reset said]. A prompt may be a dict as
        vLLM takes it. abort: {index: number of steps after which it is aborted}; again: an aborted one is sent again at once,
        under the same id; lora: [name, folder] of an adapter for all; reset: {number of steps: arguments of
        reset_prefix_cache}, which is called then."""
        return self._ask({"serve": prompts, "tokens": tokens, **how})

    def begin_churn(self, prompts, tokens, seconds, fresh=0):
        """Serves these prompts again and again for so many seconds, each time with an engine that has forgotten them, and
        `fresh` prompts that are new each time. Returns at once; end_churn() has what came of it."""
        self._send({"churn": prompts, "tokens": tokens, "seconds": seconds, "fresh": fresh})

    def end_churn(self):
        """[{"at": seconds since the start, "hits": tokens from the connector, "out": [tokens of each prompt], "fresh": [[prompt,
        tokens], ...], "wall": seconds, "reset": whether nothing was in use before}, ...]"""
        return self._receive()

    def reset(self, **how):
        """vLLM's reset_prefix_cache(): False where blocks are in use."""
        return self._ask({"reset": how})

    def scheduler(self):
        """{"free": KV blocks, "requests": n, "connector": n of its own}, of an engine in one process."""
        return self._ask({"scheduler": True})

    @property
    def pid(self):
        return self._process.pid

    def close(self):
        if self._process.poll() is None:
            self._process.stdin.close()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait(30)
        self._process.stdout.close()

    def _ask(self, what):
        self._send(what)
        return self._receive()

    def _send(self, what):
        try:
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass

    def _receive(self):
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError("the engine ended; what it said last:\n" + self.log.read_text(errors="replace")[-4000:])
        return json.loads(line)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def serve(engine, prompts, tokens, abort=None, again=False, reset=None, lora=None, name="r"):
    """Steps the engine until all is done; see Engine.serve()."""
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    adapter = LoRARequest(lora[0], 1, lora[1]) if lora else None

    def add(i):
        prompt = prompts[i] if isinstance(prompts[i], dict) else {"prompt_token_ids": prompts[i]}
        parameters = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        core.add_request(f"{name}-{i}", prompt, parameters, lora_request=adapter)
        out[i] = {"tokens": [], "reason": None}

    core = engine.llm_engine
    abort = {int(i): step for i, step in (abort or {}).items()}
    reset = {int(step): how for step, how in (reset or {}).items()}
    out, steps, resets = {}, 0, []
    for i in range(len(prompts)):
        add(i)
    while True:
        for i in [i for i, step in abort.items() if step <= steps]:
            del abort[i]
            if out[i]["reason"] is None:
                core.abort_request([f"{name}-{i}"])
                out[i]["reason"] = "aborted"
                if again:
                    add(i)
        if steps in reset:
            resets.append(engine.reset_prefix_cache(**reset.pop(steps)))
        if not core.has_unfinished_requests():
            break
        for one in core.step():
            state = out[int(one.request_id.rsplit("-", 1)[1])]
            if state["reason"] is None and one.outputs:
                state["tokens"] = list(one.outputs[0].token_ids)
                if one.finished:
                    state["reason"] = one.outputs[0].finish_reason
        steps += 1
    return [[out[i] for i in range(len(prompts))], resets]


def external_hits():
    """Tokens that the connector gave, of all requests of this process's engine."""
    from prometheus_client import REGISTRY

    return int(
        sum(
            sample.value
            for family in REGISTRY.collect()
            for sample in family.samples
            if sample.name == "vllm:external_prefix_cache_hits_total"
        )
    )


def _churn(engine, prompts, tokens, seconds, fresh):
    import random

    began, rounds = time.monotonic(), []
    while time.monotonic() - began < seconds:
        at, before = time.monotonic() - began, external_hits()
        emptied = bool(engine.reset_prefix_cache())
        rng = random.Random(1000 + len(rounds))
        new = [[rng.randrange(10, VOCABULARY - 10) for _ in range(150 + 40 * i)] for i in range(fresh)]
        out, _ = serve(engine, prompts + new, tokens, name=f"c{len(rounds)}")
        out = [one["tokens"] for one in out]
        rounds.append(
            {
                "at": round(at, 2),
                "wall": round(time.monotonic() - began - at, 2),
                "hits": external_hits() - before,
                "reset": emptied,
                "out": out[: len(prompts)],
                "fresh": [[prompt, got] for prompt, got in zip(new, out[len(prompts) :])],
            }
        )
    return rounds


def _scheduler(engine):
    scheduler = engine.llm_engine.engine_core.engine_core.scheduler
    ours = getattr(scheduler.connector, "_scheduler", None)
    return {
        "free": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        "requests": len(scheduler.requests) + len(scheduler.running) + len(scheduler.waiting),
        "connector": 0 if ours is None else len(ours.requests) + len(ours._flying) + len(ours._landing) + len(ours._keys),
    }


def _main():
    say = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever an engine prints is log

    def answer(what):
        say.write(json.dumps(what) + "\n")
        say.flush()

    from prometheus_client import REGISTRY
    from vllm import LLM, SamplingParams

    def generate(asked):
        parameters = SamplingParams(temperature=0, max_tokens=asked["tokens"], ignore_eos=True, detokenize=False)
        prompts = [{"prompt_token_ids": prompt} for prompt in asked["prompts"]]
        done = engine.generate(prompts, parameters, use_tqdm=False)
        return [{"tokens": list(one.outputs[0].token_ids), "cached": one.num_cached_tokens} for one in done]

    def metrics():
        values = {}
        for family in REGISTRY.collect():
            for sample in family.samples:
                labels = {k: v for k, v in sample.labels.items() if k not in ("engine", "model_name")}
                values.setdefault(sample.name, {})[json.dumps(labels, sort_keys=True)] = sample.value
        return values

    engine = LLM(**json.loads(sys.stdin.readline()))
    answer("ready")
    for line in sys.stdin:
        asked = json.loads(line)
        if "prompts" in asked:
            answer(generate(asked))
        elif "serve" in asked:
            answer(serve(engine, asked.pop("serve"), **asked))
        elif "churn" in asked:
            answer(_churn(engine, asked.pop("churn"), **asked))
        elif "reset" in asked:
            answer(bool(engine.reset_prefix_cache(**asked["reset"])))
        elif "scheduler" in asked:
            answer(_scheduler(engine))
        else:
            answer(metrics())


if __name__ == "__main__":
    _main()
