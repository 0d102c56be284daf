"""The plain values of the Mooncake-shaped module: result codes, ReplicateConfig and its enumerations, and what we refuse."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

from kvist._types import Code

OK = 0
INTERNAL = -1
NO_AVAILABLE_HANDLE = -200
INVALID_PARAMS = -600
OBJECT_NOT_FOUND = -704
OBJECT_ALREADY_EXISTS = -705
TRANSFER_FAIL = -800
RPC_FAIL = -900
RPC_TIMEOUT = -901
DFS_SERVICE_UNAVAILABLE = -1601

#: What a block's result is called here, by the number of its kvist.Code. A value that is there already was put before: 0.
#: Callers take some codes, -800 say, to mean that their memory may still be read or written after the call (vLLM's then never
#: uses it, or the store, again). With us nothing is under way when a call has returned, so those are not used for that.
CODES = {
    Code.OK: OK,
    Code.ALREADY_EXISTS: OK,
    Code.INVALID_ARGUMENT: INVALID_PARAMS,
    Code.OUT_OF_RANGE: INVALID_PARAMS,
    Code.NOT_FOUND: OBJECT_NOT_FOUND,
    Code.RESOURCE_EXHAUSTED: NO_AVAILABLE_HANDLE,
    Code.DATA_LOSS: OBJECT_NOT_FOUND,  # it was not handed out, and the node takes it away
    Code.ABORTED: NO_AVAILABLE_HANDLE,  # the node took the room back
    Code.FAILED_PRECONDITION: OBJECT_NOT_FOUND,  # the namespace was flushed during the call
    Code.DEADLINE_EXCEEDED: RPC_TIMEOUT,
    Code.UNAVAILABLE: RPC_FAIL,
    Code.PERMISSION_DENIED: RPC_FAIL,
    Code.UNAUTHENTICATED: RPC_FAIL,
    Code.CANCELLED: RPC_FAIL,
    Code.INTERNAL: INTERNAL,
    Code.UNKNOWN: INTERNAL,
    Code.UNIMPLEMENTED: INTERNAL,
}

#: The same of reads: a key that cannot be was never put.
READ_CODES = {**CODES, Code.INVALID_ARGUMENT: OBJECT_NOT_FOUND}


class Unsupported(NotImplementedError):
    """A call of Mooncake Store's that Kvist does not mean anything by. The text says why, and what to use."""


class SoftPinAction(enum.IntEnum):
    PRESERVE = 0
    ENABLE = 1
    DISABLE = 2


class ObjectDataType(enum.IntEnum):
    UNKNOWN = 0
    KVCACHE = 1
    TENSOR = 2
    WEIGHT = 3
    SAMPLE = 4
    ACTIVATION = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    METADATA = 8
    GENERAL = 9


class ReplicaStatus(enum.IntEnum):
    UNDEFINED = 0
    INITIALIZED = 1
    PROCESSING = 2
    COMPLETE = 3
    REMOVED = 4
    FAILED = 5


def number(value: object, name: str) -> int:
    """A whole number from 0 on, as a C++ caller would have it."""
    if isinstance(value, int):
        found = value
    elif hasattr(value, "__index__"):
        found = value.__index__()
    else:
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}")
    if not 0 <= found < 1 << 64:
        raise TypeError(f"{name} must be from 0 to 2**64 - 1, not {found}")
    return int(found)


def possible(address: int, size: int) -> bool:
    """Whether a process can have `size` bytes there (it need not)."""
    return 4096 <= address and address + size <= 1 << 56


class ReplicateConfig:
    """How a value is kept. Kvist keeps one copy, in the node's memory, so most of this is a wish that changes nothing:

    replica_num: one is kept (0 makes a put -600). soft_pin_action, soft_pin_ttl_ms, with_soft_pin (of older callers),
    preferred_segment, preferred_segments, preferred_nof_segments, prefer_alloc_in_same_node, data_type: taken and left aside.
    group_ids: one for each key (else -600), and left aside. dfs_replica_num: other than 0 makes a put -1601, as without a file system.
    What would be a promise that Kvist cannot keep raises Unsupported where it is set: with_hard_pin, nof_replica_num.
    """

    __slots__ = tuple(
        "_" + name
        for name in (
            "replica_num",
            "soft_pin_action",
            "soft_pin_ttl_ms",
            "with_hard_pin",
            "preferred_segment",
            "preferred_segments",
            "prefer_alloc_in_same_node",
            "data_type",
            "group_ids",
            "nof_replica_num",
            "preferred_nof_segments",
            "dfs_replica_num",
        )
    )

    def __init__(self) -> None:
        self._replica_num = 1
        self._soft_pin_action = SoftPinAction.PRESERVE
        self._soft_pin_ttl_ms: int | None = None
        self._preferred_segment = ""
        self._preferred_segments: list[str] = []
        self._prefer_alloc_in_same_node = False
        self._data_type = ObjectDataType.UNKNOWN
        self._group_ids: list[str] | None = None
        self._preferred_nof_segments: list[str] = []
        self._dfs_replica_num = 0

    @property
    def replica_num(self) -> int:
        return self._replica_num

    @replica_num.setter
    def replica_num(self, value: int) -> None:
        self._replica_num = number(value, "replica_num")

    @property
    def dfs_replica_num(self) -> int:
        return self._dfs_replica_num

    @dfs_replica_num.setter
    def dfs_replica_num(self, value: int) -> None:
        self._dfs_replica_num = number(value, "dfs_replica_num")

    @property
    def soft_pin_action(self) -> SoftPinAction:
        return self._soft_pin_action

    @soft_pin_action.setter
    def soft_pin_action(self, value: SoftPinAction) -> None:
        if not isinstance(value, SoftPinAction):
            raise TypeError(f"soft_pin_action must be a SoftPinAction, not {type(value).__name__}")
        self._soft_pin_action = value

    @property
    def with_soft_pin(self) -> bool:
        return self._soft_pin_action is SoftPinAction.ENABLE

    @with_soft_pin.setter
    def with_soft_pin(self, value: bool) -> None:
        self._soft_pin_action = SoftPinAction.ENABLE if value else SoftPinAction.PRESERVE

    @property
    def soft_pin_ttl_ms(self) -> int | None:
        return self._soft_pin_ttl_ms

    @soft_pin_ttl_ms.setter
    def soft_pin_ttl_ms(self, value: int | None) -> None:
        self._soft_pin_ttl_ms = None if value is None else number(value, "soft_pin_ttl_ms")

    @property
    def with_hard_pin(self) -> bool:
        return False

    @with_hard_pin.setter
    def with_hard_pin(self, value: bool) -> None:
        if value:
            raise Unsupported(
                "with_hard_pin: Kvist keeps a value from eviction only while somebody reads it in place, so that a process "
                "that dies leaves nothing pinned. Leave it False, and give the node the memory (kvist node --memory)"
            )

    @property
    def nof_replica_num(self) -> int:
        return 0

    @nof_replica_num.setter
    def nof_replica_num(self, value: int) -> None:
        if number(value, "nof_replica_num") != 0:
            raise Unsupported("nof_replica_num: Kvist has no replicas on NVMe over Fabrics. Leave it 0")

    @property
    def preferred_segment(self) -> str:
        return self._preferred_segment

    @preferred_segment.setter
    def preferred_segment(self, value: str) -> None:
        self._preferred_segment = _text(value, "preferred_segment")

    @property
    def preferred_segments(self) -> list[str]:
        return self._preferred_segments

    @preferred_segments.setter
    def preferred_segments(self, value: Sequence[str]) -> None:
        self._preferred_segments = _texts(value, "preferred_segments")

    @property
    def preferred_nof_segments(self) -> list[str]:
        return self._preferred_nof_segments

    @preferred_nof_segments.setter
    def preferred_nof_segments(self, value: Sequence[str]) -> None:
        self._preferred_nof_segments = _texts(value, "preferred_nof_segments")

    @property
    def prefer_alloc_in_same_node(self) -> bool:
        return self._prefer_alloc_in_same_node

    @prefer_alloc_in_same_node.setter
    def prefer_alloc_in_same_node(self, value: bool) -> None:
        self._prefer_alloc_in_same_node = bool(value)

    @property
    def data_type(self) -> ObjectDataType:
        return self._data_type

    @data_type.setter
    def data_type(self, value: ObjectDataType) -> None:
        if not isinstance(value, ObjectDataType):
            raise TypeError(f"data_type must be an ObjectDataType, not {type(value).__name__}")
        self._data_type = value

    @property
    def group_ids(self) -> list[str] | None:
        return self._group_ids

    @group_ids.setter
    def group_ids(self, value: Sequence[str] | None) -> None:
        self._group_ids = None if value is None else _texts(value, "group_ids")

    def __repr__(self) -> str:
        set_ones = [f"{name[1:]}={getattr(self, name[1:])!r}" for name in self.__slots__]
        return f"ReplicateConfig({', '.join(set_ones)})"


def refusal(config: Any, keys: int) -> int:
    """The code that a put of `keys` keys with this config ends with; 0: it may go on. TypeError: it is no config."""
    if not isinstance(config, ReplicateConfig):
        raise TypeError(f"config must be a ReplicateConfig, not {type(config).__name__}")
    if config.replica_num == 0:
        return INVALID_PARAMS
    if config.dfs_replica_num != 0:
        return DFS_SERVICE_UNAVAILABLE
    if config.group_ids is not None and len(config.group_ids) != keys:
        return INVALID_PARAMS
    return OK


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be str, not {type(value).__name__}")
    return value


def _texts(value: object, name: str) -> list[str]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise TypeError(f"{name} must be a list of str, not {type(value).__name__}")
    return [_text(item, name) for item in value]
