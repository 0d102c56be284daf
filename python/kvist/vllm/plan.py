"""How an engine's KV groups and ranks become positions and parts of a namespace.

A position is the fewest tokens that are whole blocks of every group: the engine's own unit of a prefix hit. Of each position
every worker stores one block for each of its groups (all the group's layers together), as a part of its own; where a group's
blocks are shorter than a position, it has several, numbered `sub`. A position then counts for a prefix when all parts are
there that its groups need: "all" positions for full attention, the last "window" for sliding windows, the "last" for
recurrent state.

Scheduler and workers make the same plan, each for itself, from what vLLM gives to both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import kvist

MAX_PARTS = 64  # of a namespace
NULL_BLOCK = 0  # vLLM's block that stands for one which is not needed any more

Run = tuple[int, int, list[int]]  # column, first position (counted from the chain's), block ids of consecutive positions


@dataclass(frozen=True)
class Group:
    """A KV group of the engine. index: in its list; blocks: engine blocks a position; page_bytes: of one block of all its
    layers, 0 where workers differ in that."""

    index: int
    need: Literal["all", "window", "last"]
    window: int
    blocks: int
    page_bytes: int
    by_boundary: bool  # states that the engine hands over by name, and which its block table does not show


@dataclass(frozen=True)
class Column:
    """One part of each position, as every rank has it: sub-block `sub` of a group's position."""

    group: Group
    sub: int


@dataclass(frozen=True)
class Plan:
    """tokens: of a position. columns: what a rank stores of one. ranks: that store; replicas: workers that hold the same."""

    tokens: int
    columns: tuple[Column, ...]
    ranks: int
    replicas: int

    def part(self, column: int, rank: int) -> int:
        """The part's index: of this column, for the worker of this rank (of all workers)."""
        return column * self.ranks + rank // self.replicas

    def writes(self, rank: int) -> bool:
        """Whether this worker stores; another one has the same bytes and does it where not."""
        return rank % self.replicas == 0

    def parts(self) -> list[kvist.Part]:
        """For the identity, in the order of part()."""
        made = []
        for column in self.columns:
            group = column.group
            for rank in range(self.ranks):
                name = f"g{group.index}.{column.sub}.r{rank}"
                window = group.window if group.need == "window" else 0
                made.append(kvist.Part(name, group.page_bytes, need=group.need, window=window))
        return made

    def runs(self, block_ids: Sequence[Sequence[int]], first: int, last: int, *, load: bool) -> list[Run]:
        """The blocks of positions first..last of a request, by columns and without null blocks; for a load only those that
        the engine will read: of a group with state the last one. Positions in the result count from `first`."""
        found: list[Run] = []
        for number, column in enumerate(self.columns):
            group = column.group
            if group.by_boundary and not load:
                continue
            ids = list(block_ids[group.index][first * group.blocks + column.sub : last * group.blocks : group.blocks])
            if load and group.need == "last":
                if len(ids) == last - first and ids and ids[-1] != NULL_BLOCK:
                    found.append((number, last - first - 1, ids[-1:]))
                continue
            if NULL_BLOCK not in ids:
                if ids:
                    found.append((number, 0, ids))
                continue
            start = 0
            for end in range(len(ids) + 1):
                if end == len(ids) or ids[end] == NULL_BLOCK:
                    if end > start:
                        found.append((number, start, ids[start:end]))
                    start = end + 1
        return found


class CannotServe(Exception):
    """Why this engine's KV cannot be shared through a pool; it runs without."""


def make(vllm_config: Any, kv_cache_config: Any) -> Plan:
    """The plan for an engine. CannotServe: it has none."""
    if not vllm_config.cache_config.enable_prefix_caching:
        raise CannotServe("prefix caching is switched off (enable_prefix_caching)")
    _refuse_drafts(vllm_config)
    parallel = vllm_config.parallel_config
    alike = parallel.pipeline_parallel_size == 1
    indices = getattr(kv_cache_config, "prefix_cacheable_group_ids", range(len(kv_cache_config.kv_cache_groups)))
    specs = [(index, kv_cache_config.kv_cache_groups[index]) for index in indices]
    if not specs:
        raise CannotServe("the model has no KV that could be shared")
    sizes = [_block_tokens(group.kv_cache_spec, parallel) for _, group in specs]
    tokens = math.lcm(*sizes)
    columns = []
    for (index, group), size in zip(specs, sizes):
        need, window, by_boundary = _need(group.kv_cache_spec, tokens)
        page = _page_bytes(group) if alike else 0
        made = Group(index, need, window, tokens // size, page, by_boundary)
        columns += [Column(made, sub) for sub in range(made.blocks)]
    replicas = max(1, getattr(kv_cache_config, "kv_tp_replicas", 1))
    plan = Plan(tokens, tuple(columns), max(1, parallel.world_size // replicas), replicas)
    if len(plan.columns) * plan.ranks > MAX_PARTS:
        raise CannotServe(
            f"{plan.ranks} workers with {len(plan.columns)} blocks a position each are more than {MAX_PARTS} parts"
        )
    return plan


def _refuse_drafts(vllm_config: Any) -> None:
    """The KV of draft layers depends on the token behind the block too, which the block's hash does not name."""
    speculative = vllm_config.speculative_config
    method = getattr(speculative, "method", None)
    if speculative is not None and not str(method).startswith(("ngram", "suffix")):
        raise CannotServe(f"speculative decoding with draft layers (method {method!r})")


def _block_tokens(spec: Any, parallel: Any) -> int:
    sharded = getattr(spec, "dcp_sharded", True)
    return int(spec.block_size) * (parallel.decode_context_parallel_size if sharded else 1)


def _layer_specs(group: Any) -> list[Any]:
    spec = group.kv_cache_spec
    by_layer = getattr(spec, "kv_cache_specs", None)
    return list(by_layer.values()) if by_layer is not None else [spec] * len(group.layer_names)


def _need(spec: Any, tokens: int) -> tuple[Literal["all", "window", "last"], int, bool]:
    """What a hit needs of a group. By names of fields and not by classes, which come and go."""
    one = next(iter(getattr(spec, "kv_cache_specs", {}).values()), spec)
    mode = getattr(one, "mamba_cache_mode", None)
    if mode is not None:
        if mode not in ("all", "align"):
            raise CannotServe(f"a recurrent state that the engine keeps for no prefix (mamba_cache_mode {mode!r})")
        return "last", 0, mode == "align"
    whole = type(one).__name__.endswith("FullAttentionSpec") or type(one).__name__ == "MLAAttentionSpec"
    window = getattr(one, "sliding_window", None)
    if window is not None and not whole:
        kept = window - 1 + getattr(one, "extra_retained_tokens", 0)
        return "window", max(1, -(-kept // tokens)), False
    chunk = getattr(one, "attention_chunk_size", None)
    if chunk is not None and not whole:
        return "window", max(1, -(-chunk // tokens)), False
    return "all", 0, False


def _page_bytes(group: Any) -> int:
    """Bytes of one block of all layers of a group, without padding; 0: not to be known from the configuration."""
    try:
        from vllm.v1.kv_cache_interface import compute_layer_kv_cache_shape_bytes as shape
    except ImportError:
        return 0
    total = 0
    for spec in _layer_specs(group):
        if getattr(spec, "mamba_cache_mode", None) is not None:
            return 0
        total += math.prod(shape(spec, 1)[1:])
    return total
