"""The engine's KV tensors as arrays for kvist.Pages: where the bytes of a block lie.

A block of a layer is opaque: on CPU the kernels keep all K first and then all V of each head, in an order that depends on
the instruction set, whatever the tensor's shape says. So whole blocks are copied, as the runs of bytes that they are, and
what decides the order within them is part of the identity. Where a block is not one run (a layout that keeps heads
outermost, say), each run is an array of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_MAX_RUNS = 256  # of one block in one layer; more would make the copies small and slow


class UnknownLayout(ValueError):
    """KV tensors that this version does not know how to copy. The engine should not start with them."""


def arrays_of(kv_caches: Mapping[str, Any], group: Any, num_blocks: int, placed: Mapping[str, Any]) -> list[torch.Tensor]:
    """Arrays for kvist.Pages: one KV group's (a KVCacheGroupSpec) in the order of its layers, num_blocks rows of bytes
    each. Empty: no layer of it is here (another pipeline stage has them). placed: the KVCacheTensor of each layer.
    UnknownLayout."""
    arrays: list[torch.Tensor] = []
    seen: set[tuple[int, int]] = set()
    for layer in group.layer_names:
        if layer not in kv_caches:
            continue
        value = kv_caches[layer]
        for tensor in value if isinstance(value, (list, tuple)) else [value]:
            where = placed.get(layer)
            _check_stride(layer, tensor, num_blocks, where)
            for array in _runs(layer, tensor, num_blocks):
                key = (array.data_ptr(), array.shape[1])
                if key not in seen:  # layers that share one cache are stored once
                    seen.add(key)
                    arrays.append(array)
    return arrays


def _per_block(layer: str, tensor: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """With the engine's blocks as first dimension: kernels may see each of them as several."""
    if tensor.dim() < 2:
        raise UnknownLayout(f"KV tensor of {layer} has the shape {tuple(tensor.shape)}")
    if tensor.shape[0] == num_blocks:
        return tensor
    if tensor.shape[0] and tensor.shape[0] % num_blocks == 0:
        return tensor.unflatten(0, (num_blocks, -1))
    raise UnknownLayout(
        f"KV tensor of {layer} has the shape {tuple(tensor.shape)}, and the engine {num_blocks} blocks: which dimension "
        "counts blocks is not to be seen"
    )


def _check_stride(layer: str, tensor: torch.Tensor, num_blocks: int, placed: Any) -> None:
    """The tensor must lie as the engine says that it does."""
    if placed is None or isinstance(placed, int):
        return
    view = _per_block(layer, tensor, num_blocks)
    stride = view.stride(0) * view.element_size()
    if num_blocks > 1 and stride != placed.block_stride:
        raise UnknownLayout(
            f"blocks of {layer} lie {stride} bytes apart, and the engine's KV configuration says {placed.block_stride}"
        )


def _runs(layer: str, tensor: torch.Tensor, num_blocks: int) -> list[torch.Tensor]:
    """Arrays of num_blocks rows, each row one run of a block's bytes, that together are the block."""
    if tensor.layout is not torch.strided:
        raise UnknownLayout(f"KV tensor of {layer} is not strided")
    view = _per_block(layer, tensor, num_blocks)
    size = view.element_size()
    # Dimensions from the widest stride to the narrowest: the narrow ones that follow each other make up the run.
    dims = sorted(((view.stride(d), view.shape[d]) for d in range(1, view.dim()) if view.shape[d] > 1), reverse=True)
    run = 1
    while dims and dims[-1][0] == run:
        run *= dims.pop()[1]
    if any(stride <= 0 for stride, _ in dims):
        raise UnknownLayout(f"KV tensor of {layer} shows the same bytes twice: strides {tuple(view.stride())}")
    offsets = [view.storage_offset()]
    for stride, count in dims:
        offsets = [offset + i * stride for offset in offsets for i in range(count)]
    if len(offsets) > _MAX_RUNS:
        raise UnknownLayout(
            f"a block of {layer} lies in {len(offsets)} pieces: shape {tuple(view.shape)}, strides {tuple(view.stride())}"
        )
    data = torch.empty(0, dtype=torch.uint8, device=view.device).set_(view.untyped_storage())
    step = view.stride(0) * size if num_blocks > 1 else run * size
    if step < run * size and num_blocks > 1:
        raise UnknownLayout(f"blocks of {layer} overlap: shape {tuple(view.shape)}, strides {tuple(view.stride())}")
    return [data.as_strided((num_blocks, run * size), (step, 1), offset * size) for offset in offsets]
