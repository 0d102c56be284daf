"""Real vLLM engines on this machine's processor for tests: a tiny model with weights that matter, and an engine as a process."""

import json
import math
import os
import pathlib
import subprocess
import sys

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


def tiny_model(folder):
    """A Llama of 4 layers with seeded weights, large enough that a wrong byte of KV changes tokens (vLLM's dummy weights are
    near zero). Made once per folder."""
    import torch
    from safetensors.torch import save_file

    folder = pathlib.Path(folder)
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    hidden, layers, heads, kv_heads, head, inner = 256, 4, 4, 2, 64, 512
    generator = torch.Generator().manual_seed(5)

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
    """

    def __init__(self, model, log, transfer=None, *, in_process=True, **options):
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
        try:
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError("the engine ended; what it said last:\n" + self.log.read_text(errors="replace")[-4000:])
        return json.loads(line)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _main():
    say = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever an engine prints is log

    def answer(what):
        say.write(json.dumps(what) + "\n")
        say.flush()

    from prometheus_client import REGISTRY
    from vllm import LLM, SamplingParams

    engine = LLM(**json.loads(sys.stdin.readline()))
    answer("ready")
    for line in sys.stdin:
        asked = json.loads(line)
        if "prompts" in asked:
            parameters = SamplingParams(temperature=0, max_tokens=asked["tokens"], ignore_eos=True, detokenize=False)
            prompts = [{"prompt_token_ids": prompt} for prompt in asked["prompts"]]
            done = engine.generate(prompts, parameters, use_tqdm=False)
            answer([{"tokens": list(one.outputs[0].token_ids), "cached": one.num_cached_tokens} for one in done])
        else:
            values = {}
            for family in REGISTRY.collect():
                for sample in family.samples:
                    labels = {k: v for k, v in sample.labels.items() if k not in ("engine", "model_name")}
                    values.setdefault(sample.name, {})[json.dumps(labels, sort_keys=True)] = sample.value
            answer(values)


if __name__ == "__main__":
    _main()
