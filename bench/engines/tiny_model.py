"""A model folder of random weights, for engines: small, and such that a wrong byte of KV changes what it says."""

from __future__ import annotations

import json
import math
import os

import torch
from safetensors.torch import save_file


def make_tiny(folder: str) -> str:
    """A Llama with seeded weights that are as large as real ones (an engine's own dummy weights are near zero). Returns the
    folder."""
    hidden, layers, heads, kv_heads, dim, ffn, vocab = 256, 4, 4, 2, 64, 512, 1024
    generator = torch.Generator().manual_seed(1)

    def weights(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * gain / math.sqrt(columns)

    tensors = {
        "model.embed_tokens.weight": weights(vocab, hidden, math.sqrt(hidden)),
        "lm_head.weight": weights(vocab, hidden),
        "model.norm.weight": torch.ones(hidden),
    }
    for i in range(layers):
        name = f"model.layers.{i}."
        for part, rows, columns in (
            ("self_attn.q_proj", heads * dim, hidden),
            ("self_attn.k_proj", kv_heads * dim, hidden),
            ("self_attn.v_proj", kv_heads * dim, hidden),
            ("self_attn.o_proj", hidden, heads * dim),
            ("mlp.gate_proj", ffn, hidden),
            ("mlp.up_proj", ffn, hidden),
            ("mlp.down_proj", hidden, ffn),
        ):
            tensors[f"{name}{part}.weight"] = weights(rows, columns, 1.5)
        tensors[name + "input_layernorm.weight"] = torch.ones(hidden)
        tensors[name + "post_attention_layernorm.weight"] = torch.ones(hidden)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "vocab_size": vocab,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": dim,
        "max_position_embeddings": 8192,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    os.makedirs(folder, exist_ok=True)
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    return folder
