"""What of an SGLang engine tells its pages apart from others', and which ranks share which of them.

A page of a request is one position of a Kvist namespace; what one rank holds of one host pool's page is one part of it. So
a position counts as a hit only once every rank's part of it is there, and all ranks see the same longest prefix.

| pool of | parts of a position |
| --- | --- |
| attention heads, spread over the ranks (MHA, GQA) | "kv.tp0" ... one for each tensor-parallel rank |
| the same in layout page_head with tp_lcm_size | "kv.h0" ... one for each of tp_lcm_size groups of heads, whatever the rank count |
| the same content on every rank (MLA) | "kv", written by one rank, read by all |
| recurrent state (Mamba) | one for each tensor-parallel rank, in every model |

With attention context parallelism each of these once more for each of its ranks. Pipeline stages hold other layers, so each
has a namespace of its own; SGLang itself agrees on the shortest prefix over stages.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from kvist._door import Settings, setting, text
from kvist._identity import Identity, Part
from kvist.sglang._pages import HostPages

_MOST_PARTS = 64  # of an identity

# What host pools call the extents of their pages; a pool has some of them.
_EXTENTS = (
    "layer_num",
    "target_layer_num",
    "start_layer",
    "end_layer",
    "head_dim",
    "v_head_dim",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "kv_cache_dim",
    "num_mamba_layers",
    "temporal_dtype",
    "temporal_state_shape",
    "conv_state_shapes",
    "indexer_dtype",
    "indexer_page_stride_size",
    "item_bytes",
    "state_page_bytes",
    "row_bytes",
)

# What else SGLang's extra config may hold: for SGLang itself, or left from another backend.
FOREIGN = frozenset(
    {
        "backend_name",
        "module_path",
        "class_name",
        "interface_v1",
        "allocator",
        "prefetch_threshold",
        "prefetch_timeout_base",
        "prefetch_timeout_per_ki_token",
        "hicache_storage_pass_prefix_keys",
        "tp_lcm_size",
    }
)


@dataclasses.dataclass(frozen=True)
class SglangSettings(Settings):
    """kvist._door.Settings, and what SGLang cannot tell of the weights.

    model: in place of the served model's name, for engines that serve the same weights under several names. revision: of
    the weights; default: SGLang's --revision. weights_epoch: anything that changes when the weights do; SGLang's own
    weight version, which a weight update can set, is part of it already.
    """

    model: str = setting("", text)
    revision: str = setting("", text)
    weights_epoch: str = setting("", text)


@dataclasses.dataclass(frozen=True)
class Place:
    """Which of the engine's ranks this is. Sizes are 1 where there is no such parallelism."""

    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int
    cp_rank: int
    cp_size: int
    replicated: bool  # the model's KV is the same on every tensor-parallel rank
    writer: bool  # of replicated pools: this rank writes them
    head_groups: int  # into how many groups all ranks' heads are cut for storage; 0: not

    @classmethod
    def of(cls, config: Any) -> Place:
        """From a HiCacheStorageConfig, of this or another version of SGLang. ValueError: what cannot be stored."""

        def number(name: str, default: int) -> int:
            value = getattr(config, name, None)
            return default if value is None else int(value)

        if number("dcp_size", 1) > 1:
            raise ValueError("kvist.sglang cannot store pages under decode context parallelism (dcp_size > 1)")
        replicated = bool(getattr(config, "is_mla_model", False))
        tp_rank, tp_size = number("tp_rank", 0), number("tp_size", 1)
        groups = 0 if replicated else number("tp_lcm_size", 0)
        if groups % tp_size:
            raise ValueError(f"tp_lcm_size must be a multiple of the tensor-parallel size {tp_size}, not {groups}")
        return cls(
            tp_rank,
            tp_size,
            number("pp_rank", 0),
            number("pp_size", 1),
            number("attn_cp_rank", 0),
            number("attn_cp_size", 1),
            replicated,
            bool(getattr(config, "is_storage_writer", not replicated or tp_rank == 0)),
            groups,
        )


@dataclasses.dataclass(frozen=True)
class Pool:
    """One host pool of this rank and its parts in the namespace.

    pages: None for an anchor that only counts slots. own: the parts that this rank has, in the order of pages.blocks();
    all: those of every rank. writes: whether this rank stores them.
    """

    name: str
    host: Any
    pages: HostPages | None
    own: tuple[str, ...]
    all: tuple[str, ...]
    writes: bool
    shape: str  # all that tells pages of the same length apart

    def narrowed(self) -> Pool:
        """The same where other ranks' parts are in namespaces of their own."""
        if len(self.own) == 1:
            return dataclasses.replace(self, own=(self.name,), all=(self.name,))
        own = tuple(f"{self.name}.{i}" for i in range(len(self.own)))
        return dataclasses.replace(self, own=own, all=own)


def is_spread(host: Any, name: str, place: Place) -> bool:
    """Whether each tensor-parallel rank has its own part of this pool's pages."""
    if not place.replicated or name == "mamba":
        return True
    # An MHA draft model beside an MLA one: its heads are spread all the same.
    return any(cls.__name__ == "MHATokenToKVPoolHost" for cls in type(host).__mro__)


def splits(host: Any, name: str, place: Place) -> int:
    """Into how many parts this rank's heads of a page are cut: 1 where they are not."""
    if name != "kv" or not place.head_groups or getattr(host, "layout", "") != "page_head":
        return 1
    return place.head_groups // place.tp_size


def make_pool(host: Any, name: str, place: Place, pages: HostPages | None) -> Pool:
    """The parts of a host pool. See the head of this file."""
    if pages is None:
        return Pool(name, host, None, (), (), False, "")
    spread = is_spread(host, name, place)
    if not spread:
        own, everyone = [name], [name]
    elif name == "kv" and place.head_groups and getattr(host, "layout", "") == "page_head":
        first = place.tp_rank * pages.parts
        own = [f"{name}.h{first + i}" for i in range(pages.parts)]
        everyone = [f"{name}.h{i}" for i in range(place.head_groups)]
    else:
        own = [f"{name}.tp{place.tp_rank}"]
        everyone = [f"{name}.tp{rank}" for rank in range(place.tp_size)]
    if place.cp_size > 1:
        own = [f"{part}.cp{place.cp_rank}" for part in own]
        everyone = [f"{part}.cp{rank}" for part in everyone for rank in range(place.cp_size)]
    return Pool(name, host, pages, tuple(own), tuple(everyone), spread or place.writer, _shape(host, pages))


def _shape(host: Any, pages: HostPages) -> str:
    """Kind, layout, dtype and extents of a pool's pages."""
    facts = {
        "kind": type(host).__name__,
        "layout": getattr(host, "layout", ""),
        "dtype": _dtype(host),
        "tokens": pages.unit,
        "bytes": pages.page_bytes,
    }
    heads = getattr(host, "head_num", None)
    if isinstance(heads, int):
        facts["heads"] = heads // pages.parts
    for key in _EXTENTS:
        value = getattr(host, key, None)
        if isinstance(value, (int, tuple, list)) or type(value).__name__ == "dtype":
            facts[key] = str(value).replace(" ", "")
    return " ".join(f"{key}={value}" for key, value in facts.items())


def _dtype(host: Any) -> str:
    return str(getattr(host, "dtype", "")).removeprefix("torch.")


def identity_of(model: str, settings: SglangSettings, place: Place, pools: Mapping[str, Pool]) -> tuple[Identity, dict[str, Pool]]:
    """The namespace of these pools, and the pools with the parts that they have in it. ValueError: no name of a model."""
    model = settings.model or model
    if not model:
        raise ValueError('kvist.sglang: SGLang gave no name of the model; say "model" in the extra config')
    named = dict(pools)
    extra = {}
    if place.pp_size > 1:
        extra["pipeline stage"] = f"{place.pp_rank} of {place.pp_size}"
    if sum(len(pool.all) for pool in named.values()) > _MOST_PARTS:
        named = {name: pool.narrowed() for name, pool in named.items()}
        extra["rank"] = f"tp {place.tp_rank} of {place.tp_size}, cp {place.cp_rank} of {place.cp_size}"
    parts = [
        Part(part, pool.pages.page_bytes) for _, pool in sorted(named.items()) if pool.pages for part in pool.all
    ]
    for name, pool in sorted(named.items()):
        if pool.pages is not None:
            extra[f"pool {name}"] = pool.shape
    facts = engine_facts()
    main = next((pool for name, pool in sorted(named.items(), key=lambda item: item[0] != "kv") if pool.pages), None)
    kv_dtype = _dtype(main.host) if main else ""
    if main is not None and getattr(getattr(main.host, "dtype", None), "itemsize", 0) == 1 and facts["kv_cache_dtype"]:
        kv_dtype += f" ({facts['kv_cache_dtype']})"  # both kinds of fp8 may be held as plain bytes
    fields: dict[str, Any] = dict(
        model=model,
        revision=settings.revision or facts["revision"],
        weights_epoch=" ".join(filter(None, (settings.weights_epoch, weight_version()))),
        kv_dtype=kv_dtype,
        quantization=facts["quantization"],
        layout=getattr(main.host, "layout", "") if main else "",
        hash_algorithm="sglang-sha256",
        block_tokens=main.pages.unit if main and main.pages else 0,
        extra=extra,
    )
    told = json.dumps([fields, [(part.name, part.block_bytes) for part in parts]], sort_keys=True)
    short = model.encode()[:150].decode(errors="ignore")
    alias = f"sglang/{short}/{hashlib.sha256(told.encode()).hexdigest()[:12]}"
    return Identity(alias, parts=parts or [Part("kv")], **fields), named


def engine_facts() -> dict[str, str]:
    """What SGLang's own arguments say of the weights and the KV cache; empty texts outside an engine."""
    facts = dict.fromkeys(("revision", "quantization", "kv_cache_dtype"), "")
    try:
        from sglang.srt import runtime_context

        arguments = runtime_context.get_server_args()
    except Exception:  # not within an engine, or another version of it
        return facts
    for name in facts:
        value = getattr(arguments, name, None)
        if isinstance(value, str) and value != "auto":
            facts[name] = value
    return facts


def weight_version() -> str:
    """What SGLang calls the version of the weights that it computes with; "" outside an engine."""
    try:
        from sglang.srt import runtime_context

        version = runtime_context.get_serving().weight_version
    except Exception:
        return ""
    return "" if version in (None, "default") else str(version)
