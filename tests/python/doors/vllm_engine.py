"""A real vLLM engine in a process of its own, spoken to by lines of JSON: python vllm_engine.py '{"model": ..., ...}'.

From a test: Engine(model, node.socket, **changes) and its generate(), reset(), metrics(), close().
"""

import json
import os
import subprocess
import sys
import threading

BLOCK = 32
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
}


def connector(socket, role="kv_both", **extra):
    return {
        "kv_connector": "KvistConnector",
        "kv_connector_module_path": "kvist.vllm",
        "kv_role": role,
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"socket": socket, **extra},
    }


class Engine:
    """transfer: its kv_transfer_config, or None for an engine without a connector. processes: as in production."""

    def __init__(self, model, transfer, processes=False, environment=None, **changes):
        settings = {
            "model": str(model),
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "seed": 0,
            "block_size": BLOCK,
            "max_model_len": 2048,
            "max_num_seqs": 16,
            "enable_prefix_caching": True,
            "prefix_caching_hash_algo": "sha256_cbor",
            "dtype": "float32",
            "kv_cache_memory_bytes": 128 << 20,
            "disable_log_stats": False,
            "kv_transfer_config": transfer,
            **changes,
        }
        environment = os.environ | ENVIRONMENT | (environment or {})
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(processes))
        self.process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.log = []
        self._reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True)
        self._reader.start()
        try:
            self.call("ready")
        except BaseException:
            self.close()
            raise

    def call(self, what, **arguments):
        self.process.stdin.write(json.dumps({"call": what, **arguments}) + "\n")
        self.process.stdin.flush()
        while True:
            line = self.process.stdout.readline()
            assert line, f"the engine ended with {self.process.wait(20)}: {''.join(self.log[-30:])}"
            if line.startswith("\x1e"):
                return json.loads(line[1:])

    def generate(self, prompts, tokens=8):
        """One after the other: of each its tokens, the log-probabilities of these, and how many came from a cache."""
        return [self.call("generate", prompt=prompt, tokens=tokens) for prompt in prompts]

    def reset(self):
        assert self.call("reset"), "blocks are still in use"

    def metrics(self):
        return self.call("metrics")

    def close(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self._reader.join(10)
        self.process.stdout.close()
        self.process.stderr.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def main():
    settings = json.loads(sys.argv[1])
    import kvist.vllm
    import prometheus_client
    from vllm import LLM, SamplingParams

    if settings["kv_transfer_config"] and not settings["kv_transfer_config"].get("kv_connector_module_path"):
        kvist.vllm.register()  # as the entry point of an installed wheel does
    llm = LLM(**settings)

    def generate(prompt, tokens):
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, logprobs=0)
        (out,) = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        one = out.outputs[0]
        chosen = [logprobs[token].logprob.hex() for logprobs, token in zip(one.logprobs, one.token_ids)]
        return {"tokens": list(one.token_ids), "logprobs": chosen, "cached": out.num_cached_tokens}

    def metrics():
        found = {}
        for family in prometheus_client.REGISTRY.collect():
            for sample in family.samples:
                if family.name.startswith("kvist") or "external_prefix_cache" in sample.name:
                    found[sample.name] = found.get(sample.name, 0) + sample.value
        return found

    calls = {
        "ready": lambda: True,
        "generate": generate,
        "reset": lambda: bool(llm.reset_prefix_cache()),
        "metrics": metrics,
    }
    for line in sys.stdin:
        asked = json.loads(line)
        print("\x1e" + json.dumps(calls[asked.pop("call")](**asked)), flush=True)


if __name__ == "__main__":
    main()
