"""What must be equal for two KV blocks to be interchangeable."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Literal, Mapping, Sequence

from kvist._kvist import check_identity, check_part


@dataclass(frozen=True)
class Part:
    """One piece of a position's state: a KV group, a TP rank, a PP stage, K or V.

    name: 1 to 64 bytes, unique in the identity. block_bytes: the length of each of its blocks ("2MiB" or bytes), which then
    get slots of exactly that size; 0: lengths vary. need: which positions must have it for a prefix to be usable: "all"
    (full attention), "window" (the last `window` positions: sliding-window attention) or "last" (recurrent state). A value
    that cannot be is a ValueError at once.
    """

    name: str
    block_bytes: int | str = 0
    _: KW_ONLY
    need: Literal["all", "window", "last"] = "all"
    window: int = 0  # positions; only with need="window"

    def __post_init__(self) -> None:
        check_part(self)


@dataclass(frozen=True)
class Identity:
    """Two engines share blocks exactly when every field (but the alias) is equal.

    alias: the name under which the node lists the namespace. model: required. A weight update of a running engine is a new
    weights_epoch: old blocks are unreachable at once. key_kind: "chained" keys commit to their whole prefix, "opaque" ones
    say nothing about other positions. key_form: "hashed" takes keys of any bytes; "block_hash" keys are cryptographic
    hashes of at least 16 bytes already. tenant_secret makes names unguessable to other tenants; it is never stored. What
    follows `parts` is given by name only. A value that cannot be is a ValueError at once.
    """

    alias: str
    model: str
    parts: Sequence[Part] = (Part("kv"),)
    _: KW_ONLY
    revision: str = ""
    weights_epoch: str = ""
    kv_dtype: str = ""
    quantization: str = ""
    layout: str = ""
    hash_algorithm: str = ""
    hash_seed: str = ""
    block_tokens: int = 0
    key_kind: Literal["chained", "opaque"] = "chained"
    key_form: Literal["hashed", "block_hash"] = "hashed"
    extra: Mapping[str, str] = field(default_factory=dict)
    tenant_secret: str | bytes = field(default="", repr=False)

    def __post_init__(self) -> None:
        check_identity(self)
