"""An SGLang host pool's pages as Kvist's calls take them: where each one's bytes lie, or how to come by them.

    pages = pages_of(host_pool)                         # looked at once, when the pool is registered
    blocks = pages.blocks(host_indices)                 # one thing for each part: sources of a put, destinations of a get
    pages.filled(host_indices, blocks, done)            # after a get: what was read gets to where the engine looks for it

Nothing here knows a layout. A pool says where the pieces of a page are (``get_page_buffer_meta``); asked about a few pages,
that tells whether page p's piece j lies at ``first[j] + p * step[j]``, as it does in every layout that SGLang has for such
pools. Then a batch is a kvist.Pages selection: no Python object a page or piece. A pool whose pages do not lie so is asked at
each call, and one that has no addresses to tell (but flat copies of its pages) is read and written through those copies.

A page's bytes are the same on all three ways: where all pieces lie in the pool's one buffer, in the order of their addresses,
which is the order of the pool's own flat page; else in the order in which the pool tells them, as several buffers lie in no
order that would be the same in another process.

Threads: any; a pool's memory belongs to the engine, which does not touch pages that are being read or written.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Protocol

import kvist

_LONGEST = 64 << 20  # bytes of a block, at most
_LAYOUTS = "layer_first, page_first, page_first_direct or page_head"


class HostPages(Protocol):
    """Pages of one pool. ``unit``: indices a page in host_indices; ``page_bytes``: of one part of a page; ``parts``: of a page:
    1, or as many as its heads are split into; ``way``: how they are come by, for people."""

    unit: int
    page_bytes: int
    parts: int
    way: str

    def blocks(self, host_indices: Any) -> list[Any]:
        """For each part what Space.put() takes as sources and Space.get() as destinations, a block for each page."""
        ...

    def filled(self, host_indices: Any, blocks: list[Any], done: Sequence[bool]) -> None:
        """Ends a get: done[i] says whether page i was read."""
        ...


def pages_of(pool: Any, split: int = 1) -> HostPages | None:
    """How to come by the pages of `pool`; None where it has none of its own (an anchor that only counts slots).

    split: parts that a page's heads are split into, so that engines of other tensor-parallel sizes find theirs (page_head
    only). ValueError: a pool or layout that cannot be stored; the text says what to use.
    """
    if getattr(pool, "kv_buffer", pool) is None:
        return None
    layout = getattr(pool, "layout", "")
    if layout == "page_unified":
        raise ValueError(f"kvist.sglang cannot store pages of layout page_unified; use --hicache-mem-layout {_LAYOUTS}")
    if type(pool).__name__ == "PageInterleaveHostPool":
        raise ValueError("kvist.sglang cannot store pages that are sharded over ranks; leave --enable-kv-cache-sharding out")
    try:
        pages = _pages_of(pool, split)
    except (NotImplementedError, ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"kvist.sglang cannot store pages of {type(pool).__name__} in layout {layout!r}: {error}") from error
    if pages.page_bytes > _LONGEST:
        raise ValueError(
            f"kvist.sglang cannot store pages of {pages.page_bytes} bytes, a block has at most {_LONGEST}; use a smaller --page-size"
        )
    return pages


def _pages_of(pool: Any, split: int) -> HostPages:
    try:
        return _Addressed(pool, split)
    except _Unusable:
        raise
    except (NotImplementedError, ValueError, TypeError):
        if split > 1:
            raise
        return _Flat(pool)


class _Unusable(ValueError):
    """The pool tells addresses, but not such as can be used."""


class _Memory:
    """Memory at an address, for numpy: `pages` stretches of `size` bytes, `step` apart."""

    def __init__(self, address: int, pages: int, size: int, step: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "data": (address, False),
            "shape": (pages, size),
            "strides": (step, 1),
        }


class _Addressed:
    """A pool that tells where its pages are."""

    def __init__(self, pool: Any, split: int) -> None:
        self.pool, self.parts = pool, split
        self.unit = _unit(pool)
        # The memory outlives this object, whatever becomes of the pool.
        self._keep = [getattr(pool, "kv_buffer", None), *getattr(pool, "get_hybrid_pool_buffer", list)()]
        buffer = self._keep[0]
        self._buffer = (buffer.data_ptr(), buffer.data_ptr() + buffer.nbytes) if hasattr(buffer, "data_ptr") else (0, 0)
        count = int(getattr(pool, "size", 0)) // int(getattr(pool, "page_size", 1) or 1)
        # Pools that move their pages at times must be asked each time.
        moves = getattr(pool, "shared_allocation_domain", None) is not None
        probes = [0] if moves or count < 2 else sorted({0, 1, count // 2, count - 1})
        found = self._probe(probes)
        sizes = [[size for _, size in part] for part in found[0]]
        self.page_bytes = sum(sizes[0])
        if self.page_bytes == 0 or any(sum(part) != self.page_bytes for part in sizes):
            raise _Unusable(f"the pieces of a page have {sizes} bytes")
        self._pages = None if moves or count < 2 else self._even(probes, found, count)
        self.way = "asked at each call" if self._pages is None else f"{len(sizes[0])} pieces a page"

    def blocks(self, host_indices: Any) -> list[Any]:
        unit = self.unit
        firsts = host_indices[::unit].tolist()
        if self._pages is not None:
            numbers = [first // unit for first in firsts]
            if sum(numbers) * unit == sum(firsts):  # none is between pages
                return [pages[numbers] for pages in self._pages]
        found = self._pieces(host_indices, len(firsts))
        return [
            kvist.Addresses([[at for at, _ in page[part]] for page in found], [[size for _, size in page[part]] for page in found])
            for part in range(self.parts)
        ]

    def filled(self, host_indices: Any, blocks: list[Any], done: Sequence[bool]) -> None:
        pass  # it was read to where it belongs

    def _probe(self, probes: list[int]) -> list[list[list[tuple[int, int]]]]:
        import torch

        return self._pieces(torch.cat([torch.arange(self.unit) + page * self.unit for page in probes]), len(probes))

    def _pieces(self, indices: Any, pages: int) -> list[list[list[tuple[int, int]]]]:
        """(address, bytes) of the pieces, by page and part."""
        told = (
            self.pool.get_split_heads_page_buffer_meta(indices, self.parts)
            if self.parts > 1
            else self.pool.get_page_buffer_meta(indices)
        )
        if told is None:
            raise NotImplementedError("it tells no addresses")
        pieces = list(zip(*told, strict=True))
        if not pieces or len(pieces) % (pages * self.parts):
            raise _Unusable(f"it tells {len(pieces)} pieces for {pages} pages of {self.parts} parts")
        each = len(pieces) // (pages * self.parts)
        groups = [pieces[at : at + each] for at in range(0, len(pieces), each)]
        first, end = self._buffer
        if all(first <= address < end for address, _ in groups[0]):
            groups = [sorted(group) for group in groups]
        return [groups[at : at + self.parts] for at in range(0, len(groups), self.parts)]

    def _even(self, probes: list[int], found: list[Any], count: int) -> list[kvist.Pages] | None:
        """kvist.Pages a part, if the pages lie at even distances."""
        import numpy

        made = []
        for part in range(self.parts):
            arrays = []
            for j, (first, size) in enumerate(found[0][part]):
                step = found[1][part][j][0] - first
                for page, pieces in zip(probes, found, strict=True):
                    if pieces[part][j] != (first + page * step, size):
                        return None
                if step < size:
                    return None
                arrays.append(numpy.asarray(_Memory(first, count, size, step)))
            made.append(kvist.Pages(arrays))
        return made


class _Flat:
    """A pool that only gives and takes copies of its pages."""

    way = "copied page by page"
    parts = 1

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.unit = _unit(pool)
        empty = pool.get_dummy_flat_data_page()
        page = pool.get_data_page(0, flat=True)
        self.page_bytes = page.numel() * page.element_size()
        self._dtype = page.dtype
        if self.page_bytes == 0 or empty.numel() * empty.element_size() != self.page_bytes:
            raise ValueError(f"its pages have {self.page_bytes} bytes, its empty ones {empty.nbytes}")

    def blocks(self, host_indices: Any) -> list[Any]:
        firsts = host_indices[:: self.unit].tolist()
        return [[self.pool.get_data_page(first, flat=True).contiguous() for first in firsts]]

    def filled(self, host_indices: Any, blocks: list[Any], done: Sequence[bool]) -> None:
        for first, page, read in zip(host_indices[:: self.unit].tolist(), blocks[0], done, strict=True):
            if read:
                self.pool.set_from_flat_data_page(first, page)


def _unit(pool: Any) -> int:
    return operator.index(getattr(pool, "logical_page_size", None) or getattr(pool, "page_size", None) or 1)
