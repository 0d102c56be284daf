"""The plain values of the Mooncake-shaped module: ReplicateConfig and its enumerations, numbers, and what we refuse."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from kvist.mooncake._codes import DFS_SERVICE_UNAVAILABLE, INVALID_PARAMS, OK

_T = TypeVar("_T")


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


def text(value: object, name: str) -> str:
    """A str."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be str, not {type(value).__name__}")
    return value


def _texts(value: object, name: str) -> list[str]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise TypeError(f"{name} must be a list of str, not {type(value).__name__}")
    return [text(item, name) for item in value]


def _flag(value: object, name: str) -> bool:
    return bool(value)


def _no_hard_pin(value: object, name: str) -> bool:
    if value:
        raise Unsupported(
            "with_hard_pin: Kvist keeps a value from eviction only while somebody reads it in place, so that a process "
            "that dies leaves nothing pinned. Leave it False, and give the node the memory (kvist node --memory)"
        )
    return False


def _no_nof_replicas(value: object, name: str) -> int:
    if number(value, name) != 0:
        raise Unsupported("nof_replica_num: Kvist has no replicas on NVMe over Fabrics. Leave it 0")
    return 0


def _member_of(kind: type[_T]) -> Callable[[object, str], _T]:
    def read(value: object, name: str) -> _T:
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be a {kind.__name__}, not {type(value).__name__}")
        return value

    return read


def _or_none(read: Callable[[object, str], _T]) -> Callable[[object, str], _T | None]:
    return lambda value, name: None if value is None else read(value, name)


class _Field(Generic[_T]):
    """An attribute of ReplicateConfig: what it is at first, and what a value that is set is read by."""

    def __init__(self, first: object, read: Callable[[object, str], _T]) -> None:
        self.first, self.read = first, read

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, config: ReplicateConfig, owner: type | None = None) -> _T:
        if config is None:
            return self  # type: ignore[return-value]
        value: _T = config._values[self.name]
        return value

    def __set__(self, config: ReplicateConfig, value: object) -> None:
        config._values[self.name] = self.read(value, self.name)


class ReplicateConfig:
    """How a value is kept. Kvist keeps one copy, in the node's memory, so most of this is a wish that changes nothing:

    replica_num: one is kept (0 makes a put -600). soft_pin_action, soft_pin_ttl_ms, with_soft_pin (of older callers),
    preferred_segment, preferred_segments, preferred_nof_segments, prefer_alloc_in_same_node, data_type: taken and left aside.
    group_ids: one for each key (else -600), and left aside. dfs_replica_num: other than 0 makes a put -1601, as without a file system.
    What would be a promise that Kvist cannot keep raises Unsupported where it is set: with_hard_pin, nof_replica_num.
    """

    __slots__ = ("_values",)
    _values: dict[str, Any]

    replica_num = _Field(1, number)
    soft_pin_action = _Field(SoftPinAction.PRESERVE, _member_of(SoftPinAction))
    soft_pin_ttl_ms = _Field(None, _or_none(number))
    with_hard_pin = _Field(False, _no_hard_pin)
    preferred_segment = _Field("", text)
    preferred_segments = _Field((), _texts)
    prefer_alloc_in_same_node = _Field(False, _flag)
    data_type = _Field(ObjectDataType.UNKNOWN, _member_of(ObjectDataType))
    group_ids = _Field(None, _or_none(_texts))
    nof_replica_num = _Field(0, _no_nof_replicas)
    preferred_nof_segments = _Field((), _texts)
    dfs_replica_num = _Field(0, number)

    def __init__(self) -> None:
        self._values = {}
        for name, field in vars(ReplicateConfig).items():
            if isinstance(field, _Field):
                setattr(self, name, field.first)

    @property
    def with_soft_pin(self) -> bool:
        return self.soft_pin_action is SoftPinAction.ENABLE

    @with_soft_pin.setter
    def with_soft_pin(self, value: bool) -> None:
        self.soft_pin_action = SoftPinAction.ENABLE if value else SoftPinAction.PRESERVE

    def __repr__(self) -> str:
        return f"ReplicateConfig({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"


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
