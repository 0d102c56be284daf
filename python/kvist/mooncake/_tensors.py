"""Tensors as values: a header of 304 bytes, then the elements. torch is imported when a tensor is used, and only then.

The header: "KVISTTEN", the version (u16), the dtype's place in _DTYPES (u16), the number of dimensions (u32), eight sizes
(u64, unused ones 0), the number of bytes that follow (u64); the rest is 0. Little-endian. It is not the header of Mooncake
Store, which has the same length.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

from kvist._kvist import Addresses, BufferHandle
from kvist.mooncake import _config
from kvist.mooncake._codes import INVALID_PARAMS, OK
from kvist.mooncake._config import ReplicateConfig, number, possible
from kvist.mooncake._pool import key_list
from kvist.mooncake._sessions import Sessions
from kvist.mooncake._store import _refuse

HEADER_BYTES = 304
_MAGIC, _VERSION, _DIMENSIONS = b"KVISTTEN", 1, 8
_LAYOUT = struct.Struct("<8sHHI8QQ")
# A dtype's number is its place: only ever add at the end.
_DTYPES = (
    "float32",
    "float16",
    "bfloat16",
    "float64",
    "int8",
    "uint8",
    "int16",
    "int32",
    "int64",
    "bool",
    "uint16",
    "float8_e4m3fn",
    "float8_e5m2",
)
_BYTES = (4, 2, 2, 8, 1, 1, 2, 4, 8, 1, 2, 1, 1)


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        return None
    return torch


def tensor_metadata_size() -> int:
    """Bytes of the header before a tensor's elements."""
    return HEADER_BYTES


class _Packed:
    """A tensor's header and elements as addresses; keeps both."""

    def __init__(self, header: Any, tensor: Any) -> None:
        self.header, self.tensor = header, tensor
        self.ptrs = (ctypes.addressof(header), tensor.data_ptr())
        self.sizes = (HEADER_BYTES, tensor.numel() * tensor.element_size())


def _pack(tensor: Any) -> _Packed | None:
    """None: no tensor, or one of a dtype or with dimensions that have no place in the header."""
    torch = _torch()
    if torch is None or not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        return None
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in _DTYPES or tensor.dim() > _DIMENSIONS:
        return None
    plain = tensor.detach().cpu().contiguous()
    shape = tuple(plain.shape) + (0,) * (_DIMENSIONS - plain.dim())
    nbytes = plain.numel() * plain.element_size()
    packed = _LAYOUT.pack(_MAGIC, _VERSION, _DTYPES.index(dtype), plain.dim(), *shape, nbytes)
    return _Packed(ctypes.create_string_buffer(packed, HEADER_BYTES), plain)


def _read_header(header: bytes, available: int) -> tuple[str, tuple[int, ...], int] | None:
    """(dtype, shape, bytes of elements); None: it is no tensor's, or does not agree with itself or with what is there."""
    if len(header) < _LAYOUT.size:
        return None
    magic, version, kind, dimensions, *rest = _LAYOUT.unpack_from(header)
    if magic != _MAGIC or version != _VERSION or kind >= len(_DTYPES) or dimensions > _DIMENSIONS:
        return None
    shape, nbytes = tuple(rest[:dimensions]), rest[-1]
    if math.prod(shape) * _BYTES[kind] != nbytes or HEADER_BYTES + nbytes > available:
        return None
    return _DTYPES[kind], shape, nbytes


def _over(memory: Any, header: bytes, available: int) -> Any:
    """A tensor over `memory`, which it keeps; None: what is there is no tensor."""
    torch, found = _torch(), _read_header(header, available)
    if torch is None or found is None:
        return None
    dtype, shape, nbytes = found
    if nbytes == 0:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    elements = torch.frombuffer(memory, dtype=torch.uint8, offset=HEADER_BYTES, count=nbytes)
    return elements.view(getattr(torch, dtype)).reshape(shape)


class Tensors(Sessions):
    # ---- whole ----

    def put_tensor(self, key: Any, tensor: Any) -> int:
        """0: stored, or there already. -600: no tensor, an unknown dtype, more than 8 dimensions, no torch."""
        return self.batch_put_tensor([key], [tensor])[0]

    def batch_put_tensor(self, keys: Any, tensors_list: Any) -> list[int]:
        return self._put_tensors(self._put, keys, tensors_list, None)

    def pub_tensor(self, key: Any, tensor: Any, config: ReplicateConfig | None = None) -> int:
        return self._put_tensors(self._put, [key], [tensor], config)[0]

    def batch_pub_tensor(self, keys: Any, tensors_list: Any, config: ReplicateConfig | None = None) -> list[int]:
        return self._put_tensors(self._put, keys, tensors_list, config)

    def upsert_tensor(self, key: Any, tensor: Any) -> int:
        """put_tensor() that replaces, as upsert() does."""
        return self._put_tensors(self._upsert, [key], [tensor], None)[0]

    def batch_upsert_tensor(self, keys: Any, tensors_list: Any) -> list[int]:
        return self._put_tensors(self._upsert, keys, tensors_list, None)

    def upsert_pub_tensor(self, key: Any, tensor: Any, config: ReplicateConfig | None = None) -> int:
        return self._put_tensors(self._upsert, [key], [tensor], config)[0]

    def batch_upsert_pub_tensor(self, keys: Any, tensors_list: Any, config: ReplicateConfig | None = None) -> list[int]:
        return self._put_tensors(self._upsert, keys, tensors_list, config)

    def get_tensor(self, key: Any) -> Any:
        """The tensor, in memory of its own, or None."""
        return self.batch_get_tensor([key])[0]

    def batch_get_tensor(self, keys: Any) -> list[Any]:
        return [None if handle is None else _of_handle(handle) for handle in self.batch_get_buffer(key_list(keys))]

    # ---- in callers' memory: the header, then the elements ----

    def get_tensor_into(self, key: Any, buffer_ptr: int, size: int) -> Any:
        """A tensor over that memory, which the caller keeps; None: missing, no tensor, or `size` is too small."""
        return self.batch_get_tensor_into([key], [buffer_ptr], [size])[0]

    def batch_get_tensor_into(self, keys: Any, buffer_ptrs: Any, sizes: Any) -> list[Any]:
        lengths = self.batch_get_into(keys, buffer_ptrs, sizes)
        return [_at(number(ptr, "an address"), length) for ptr, length in zip(buffer_ptrs, lengths)]

    def put_tensor_from(self, key: Any, buffer_ptr: int, size: int) -> int:
        """Stores what get_tensor_into() left. -600: that is no tensor."""
        return self.batch_put_tensor_from([key], [buffer_ptr], [size])[0]

    def batch_put_tensor_from(self, keys: Any, buffer_ptrs: Any, sizes: Any) -> list[int]:
        return self._put_from_memory(self._put, keys, buffer_ptrs, sizes)

    def upsert_tensor_from(self, key: Any, buffer_ptr: int, size: int) -> int:
        return self.batch_upsert_tensor_from([key], [buffer_ptr], [size])[0]

    def batch_upsert_tensor_from(self, keys: Any, buffer_ptrs: Any, sizes: Any) -> list[int]:
        return self._put_from_memory(self._upsert, keys, buffer_ptrs, sizes)

    # ---- cut for tensor parallelism: the shard of rank r is the value of "<key>_tp_<r>" ----

    def put_tensor_with_tp(self, key: Any, tensor: Any, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0) -> int:
        """Cuts the tensor along split_dim into tp_size equal shards and stores them all. -600: it cannot be cut so."""
        return self.batch_put_tensor_with_tp([key], [tensor], tp_rank, tp_size, split_dim)[0]

    def batch_put_tensor_with_tp(
        self, base_keys: Any, tensors_list: Any, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> list[int]:
        return self._put_shards(base_keys, tensors_list, None, tp_size, split_dim)

    def pub_tensor_with_tp(
        self,
        key: Any,
        tensor: Any,
        config: ReplicateConfig | None = None,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> int:
        return self._put_shards([key], [tensor], config, tp_size, split_dim)[0]

    def batch_pub_tensor_with_tp(
        self,
        base_keys: Any,
        tensors_list: Any,
        config: ReplicateConfig | None = None,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        return self._put_shards(base_keys, tensors_list, config, tp_size, split_dim)

    def get_tensor_with_tp(self, key: Any, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0) -> Any:
        """The shard of that rank, or None."""
        return self.batch_get_tensor_with_tp([key], tp_rank, tp_size)[0]

    def batch_get_tensor_with_tp(self, base_keys: Any, tp_rank: int = 0, tp_size: int = 1) -> list[Any]:
        return self.batch_get_tensor([_shard(key, tp_rank, tp_size) for key in key_list(base_keys)])

    def get_tensor_with_tp_into(
        self, key: Any, buffer_ptr: int, size: int, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> Any:
        return self.batch_get_tensor_with_tp_into([key], [buffer_ptr], [size], tp_rank, tp_size)[0]

    def batch_get_tensor_with_tp_into(
        self, base_keys: Any, buffer_ptrs: Any, sizes: Any, tp_rank: int = 0, tp_size: int = 1
    ) -> list[Any]:
        keys = [_shard(key, tp_rank, tp_size) for key in key_list(base_keys)]
        return self.batch_get_tensor_into(keys, buffer_ptrs, sizes)

    def put_tensor_with_tp_from(
        self, key: Any, buffer_ptr: int, size: int, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> int:
        return self.batch_put_tensor_with_tp_from([key], [buffer_ptr], [size], tp_rank, tp_size, split_dim)[0]

    def batch_put_tensor_with_tp_from(
        self, base_keys: Any, buffer_ptrs: Any, sizes: Any, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> list[int]:
        keys = key_list(base_keys)
        if not len(keys) == len(buffer_ptrs) == len(sizes):
            return [INVALID_PARAMS] * len(keys)
        tensors = [_at(number(p, "an address"), number(s, "a size")) for p, s in zip(buffer_ptrs, sizes)]
        return self._put_shards(keys, tensors, None, tp_size, split_dim)

    # ---- how it is done ----

    def _put_tensors(
        self, work: Callable[..., list[int]], keys: Any, tensors: Any, config: ReplicateConfig | None
    ) -> list[int]:
        keys = key_list(keys)
        if config is not None and (refused := _config.refusal(config, len(keys))):
            return [refused] * len(keys)
        if len(keys) != len(tensors):
            return [INVALID_PARAMS] * len(keys)
        packed = [_pack(tensor) for tensor in tensors]
        good = [i for i, one in enumerate(packed) if one is not None]
        ptrs, sizes = [packed[i].ptrs for i in good], [packed[i].sizes for i in good]  # type: ignore[union-attr]
        return _spread(len(keys), good, work([keys[i] for i in good], Addresses(ptrs, sizes), ptrs, sizes))

    def _put_from_memory(self, work: Callable[..., list[int]], keys: Any, ptrs: Any, sizes: Any) -> list[int]:
        keys = key_list(keys)
        if not len(keys) == len(ptrs) == len(sizes):
            return [INVALID_PARAMS] * len(keys)
        used = [_bytes_at(number(p, "an address"), number(s, "a size")) for p, s in zip(ptrs, sizes)]
        good = [i for i, one in enumerate(used) if one > 0]
        ptrs, sizes = [ptrs[i] for i in good], [used[i] for i in good]
        return _spread(len(keys), good, self._with_addresses(work, [keys[i] for i in good], ptrs, sizes))

    def _put_shards(
        self, keys: Any, tensors: Any, config: ReplicateConfig | None, tp_size: int, split_dim: int
    ) -> list[int]:
        keys = key_list(keys)
        if len(keys) != len(tensors):
            return [INVALID_PARAMS] * len(keys)
        parts = max(1, number(tp_size, "tp_size"))
        cut = [_cut(tensor, parts, split_dim) for tensor in tensors]
        good = [i for i, shards in enumerate(cut) if shards is not None]
        shard_keys = [_shard(keys[i], rank, parts) for i in good for rank in range(parts)]
        done = self._put_tensors(self._put, shard_keys, [shard for i in good for shard in cut[i] or ()], config)
        firsts = range(0, len(done), parts)
        return _spread(len(keys), good, [next(filter(None, done[at : at + parts]), OK) for at in firsts])


def _cut(tensor: Any, parts: int, dimension: int) -> Sequence[Any] | None:
    torch = _torch()
    if torch is None or not isinstance(tensor, torch.Tensor):
        return None
    if parts <= 1:
        return [tensor]
    if not -tensor.dim() <= dimension < tensor.dim() or tensor.shape[dimension] % parts != 0:
        return None
    shards: Sequence[Any] = tensor.chunk(parts, dimension)
    return shards if len(shards) == parts else None


def _shard(key: Any, rank: int, parts: int) -> Any:
    if number(parts, "tp_size") <= 1:
        return key
    end = f"_tp_{number(rank, 'tp_rank')}"
    return key + end if isinstance(key, str) else bytes(key) + end.encode()


def _spread(count: int, places: list[int], codes: list[int]) -> list[int]:
    spread = [INVALID_PARAMS] * count
    for place, code in zip(places, codes):
        spread[place] = code
    return spread


def _of_handle(handle: BufferHandle) -> Any:
    return _over(handle, bytes(memoryview(handle)[: _LAYOUT.size].cast("B")), len(handle))


def _at(ptr: int, length: int) -> Any:
    """A tensor over raw memory that is kept by somebody else."""
    if length < HEADER_BYTES or not possible(ptr, length):
        return None
    memory = (ctypes.c_char * length).from_address(ptr)
    return _over(memory, ctypes.string_at(ptr, _LAYOUT.size), length)


def _bytes_at(ptr: int, length: int) -> int:
    """Of header and elements of the tensor there; 0: there is none."""
    if length < HEADER_BYTES or not possible(ptr, length):
        return 0
    found = _read_header(ctypes.string_at(ptr, _LAYOUT.size), length)
    return 0 if found is None else HEADER_BYTES + found[2]


_PARALLELISM = (
    "only tensor parallelism along one dimension is known here (the calls with _with_tp). Cut the tensor, and put the shards "
    "under keys of their own"
)
_CUDA = "copying into device memory is torch's work: get_tensor(key).to(device), or get_into() a pinned buffer and copy that"
_FILES = "files are the safetensors package's work: read the tensor there and put_tensor() it, or get_tensor() and save it"
_UNSUPPORTED = {
    **{
        name: _PARALLELISM
        for one in ("put_tensor", "upsert_tensor")
        for name in (
            f"{one}_with_parallelism",
            f"{one}_with_parallelism_from",
            f"batch_{one}_with_parallelism",
            f"batch_{one}_with_parallelism_from",
        )
    },
    "get_tensor_with_parallelism": _PARALLELISM,
    "get_tensor_with_parallelism_into": _PARALLELISM,
    "batch_get_tensor_with_parallelism": _PARALLELISM,
    "batch_get_tensor_with_parallelism_into": _PARALLELISM,
    "get_tensor_into_cuda": _CUDA,
    "batch_get_tensor_into_cuda": _CUDA,
    "load_tensor_from_safetensor": _FILES,
    "save_tensor_to_safetensor": _FILES,
}
for _name, _reason in _UNSUPPORTED.items():
    setattr(Tensors, _name, _refuse(_name, _reason))
