"""What must be equal for two engines to share KV blocks, as far as vLLM can tell.

vLLM's block hashes commit to the tokens, to multimodal inputs, to salts and to the LoRA's name. Everything else that
decides what the bytes of a block are and mean is here: weights, types, layout, geometry. Rather too much than too little:
what is named differently is a miss, what is named alike and is not would be wrong tokens.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from typing import Any

import torch

import kvist
from kvist._door import Notices
from kvist.vllm.plan import Plan
from kvist.vllm.settings import Settings
from kvist.vllm.step import Name

_SAMPLES, _SAMPLE = 16, 4096  # of each weights file
_RANDOM_ALGORITHMS = ("xxhash", "xxhash_cbor")


def none_hash(vllm_config: Any) -> str | None:
    """The hash that an engine's chains begin with, in hexadecimal. None: it is random, and known only to the process that
    schedules, once it has hashed something."""
    from vllm.v1.core import kv_cache_utils
    from vllm.utils.hashing import get_hash_fn_by_name

    algorithm = vllm_config.cache_config.prefix_caching_hash_algo
    if os.environ.get("PYTHONHASHSEED") is None and (
        algorithm in _RANDOM_ALGORITHMS or not hasattr(kv_cache_utils, "resolve_none_hash_seed")
    ):
        return None
    function = get_hash_fn_by_name(algorithm)
    resolve = getattr(kv_cache_utils, "resolve_none_hash_seed", lambda _: os.environ["PYTHONHASHSEED"])
    return bytes(function(resolve(function))).hex()


def none_hash_in_use() -> str:
    """What this process hashes with; only after its first request."""
    from vllm.v1.core import kv_cache_utils

    return bytes(kv_cache_utils.NONE_HASH).hex()


def fresh_epoch(settings: Settings, before: str, notices: Notices) -> str:
    """A weights epoch after a reset of the caches: the one that the operator names in epoch_file, if it is another one than
    before; else one that no other engine has, because nobody says which weights these are."""
    try:
        named = settings.epoch()
    except (OSError, UnicodeDecodeError) as error:
        notices.say(
            "epoch_file", f"Kvist: epoch_file is not readable ({error}); this engine's blocks are its own from now on"
        )
        named = ""
    if named and named != before.split("#")[0]:
        return named
    return f"{before.split('#')[0]}#{uuid.uuid4().hex}"


class Maker:
    """Identities of one engine, which differ in seed and epoch only."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, plan: Plan, settings: Settings) -> None:
        model, cache, parallel = vllm_config.model_config, vllm_config.cache_config, vllm_config.parallel_config
        self._title = os.path.basename(os.path.normpath(str(model.model)))[:80] or "model"
        algorithm = str(cache.prefix_caching_hash_algo)
        self._fields: dict[str, Any] = {
            "model": settings.model or _weights(str(model.model)),
            "revision": settings.revision or _revision(model),
            "kv_dtype": f"{model.dtype}/{cache.cache_dtype}".replace("torch.", ""),
            "quantization": str(model.quantization or ""),
            "layout": _layout(vllm_config, kv_cache_config),
            "hash_algorithm": algorithm,
            "block_tokens": plan.tokens,
            "key_form": "block_hash" if algorithm.startswith("sha256") else "hashed",
            "extra": {
                "config": _config_digest(model),
                "geometry": (
                    f"tp{parallel.tensor_parallel_size}/{plan.replicas} pp{parallel.pipeline_parallel_size} "
                    f"pcp{getattr(parallel, 'prefill_context_parallel_size', 1)} "
                    f"dcp{parallel.decode_context_parallel_size}"
                ),
                "weights": "dummy" if getattr(vllm_config.load_config, "load_format", "") == "dummy" else "",
            },
        }
        self._parts = plan.parts()

    def identity(self, name: Name) -> kvist.Identity:
        """Of the namespace for this seed and epoch. The alias says which model, and is another one for another identity."""
        seed, epoch = name
        fields = dict(self._fields, hash_seed=seed, weights_epoch=epoch)
        text = json.dumps([fields, [str(part) for part in self._parts]], sort_keys=True)
        alias = f"vllm/{self._title}/{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        return kvist.Identity(alias, parts=self._parts, **fields)

    def seeds(self) -> kvist.Identity:
        """Of the namespace in which engines that differ in nothing but the seed leave theirs."""
        fields = dict(self._fields, hash_seed="", key_kind="opaque", key_form="hashed")
        text = json.dumps([fields, len(self._parts)], sort_keys=True)
        alias = f"vllm/{self._title}/seeds-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        return kvist.Identity(alias, parts=[kvist.Part("seed")], **fields)


def lora_mark(lora_request: Any) -> bytes:
    """What the keys of a LoRA's blocks are hashed together with: its name, where it lies, and what the files there look
    like. vLLM's own hash has the name (before 0.32 untagged, so that another request's salt could equal it), and not what
    an adapter that was replaced in place contains."""
    path = str(getattr(lora_request, "lora_path", ""))
    parts = ["lora", str(lora_request.lora_name), path]
    try:
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            if entry.is_file():
                about = entry.stat()
                parts.append(f"{entry.name} {about.st_size} {about.st_mtime_ns}")
    except OSError:
        pass  # a name of a hub, and no folder
    return hashlib.sha256(json.dumps(parts).encode()).digest()


def _layout(vllm_config: Any, kv_cache_config: Any) -> str:
    """What decides the order of the bytes within a block. Kernels of other versions may order them otherwise."""
    import vllm
    from vllm.platforms import current_platform

    where = str(current_platform.device_type)
    if where == "cpu":
        where += f"/{torch.backends.cpu.get_cpu_capability()}"
    backend = getattr(getattr(vllm_config, "attention_config", None), "backend", None)
    order = getattr(kv_cache_config, "kv_cache_layout", None)
    return f"vllm {vllm.__version__} {where} {getattr(backend, 'name', backend) or 'auto'} {order or 'default'}"


def _revision(model: Any) -> str:
    """The commit that the hub gave, or the one that was asked for."""
    return str(getattr(model.hf_config, "_commit_hash", None) or model.revision or "")


def _config_digest(model: Any) -> str:
    """Of the model's configuration as it is used: rope scaling, head counts, overrides, ..."""
    config = model.hf_config.to_dict()
    for name in ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "_commit_hash"):
        config.pop(name, None)
    return hashlib.sha256(json.dumps(config, sort_keys=True, default=_kind).encode()).hexdigest()[:32]


def _kind(value: object) -> str:
    """Of what JSON does not know; its text may have an address in it, which no other process has."""
    return type(value).__name__


def _weights(name: str) -> str:
    """The hub's name; of a folder a digest of its files: two folders of one name need not hold the same model. Files of
    weights are sampled, since reading all of them would take longer than loading them."""
    if not os.path.isdir(name):
        return name
    digest = hashlib.sha256()
    for entry in sorted(os.scandir(name), key=lambda entry: entry.name):
        weights = entry.name.endswith((".safetensors", ".bin", ".pt", ".pth", ".gguf"))
        if not entry.is_file() or not (weights or entry.name in ("config.json", "quantize_config.json")):
            continue
        length = entry.stat().st_size
        digest.update(f"{entry.name}\0{length}\0".encode())
        with open(entry.path, "rb") as file:
            if length <= _SAMPLES * _SAMPLE:
                digest.update(file.read())
                continue
            for i in range(_SAMPLES):
                file.seek((length - _SAMPLE) * i // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE))
    return "sha256:" + digest.hexdigest()


def compare_seeds(names: Any, seed: str, log: Any) -> None:
    """Leaves this engine's seed in the pool, or says that another one is there: two such engines never hit what the other
    stored, and nothing else would tell. Waits for a node; for a thread of its own."""
    for _ in range(120):
        link = names.link
        client = link.client if link is not None else None
        if client is not None and client.connected:
            break
        time.sleep(0.5)
    else:
        return
    try:
        space = client.open(names.maker.seeds(), timeout=2.0)
        where = space.digests([b"seed"])
        if space.put(where, [seed.encode()], unchained=True, timeout=2.0)[0] == kvist.Code.OK:
            return
        there = bytearray(len(seed))
        result = space.get(where, [there], timeout=2.0)[0]
    except kvist.Error:
        return
    if result == kvist.Code.OK and there.decode() != seed:
        log.warning(
            "Kvist: an engine with this model uses the pool with another hash seed (%s..., here %s...): neither finds what "
            "the other stores. Give all of them the same PYTHONHASHSEED and --prefix-caching-hash-algo",
            there.decode()[:8],
            seed[:8],
        )
