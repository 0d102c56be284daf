"""Memory for callers: MooncakeHostMemAllocator and BufferPool."""

from __future__ import annotations

import ctypes
import mmap
import threading
import time
from types import TracebackType
from typing import Any

from kvist.mooncake._codes import OK
from kvist.mooncake._config import number


class MooncakeHostMemAllocator:
    """Page-aligned memory by address. What is left when the allocator goes is freed with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[int, mmap.mmap] = {}

    def alloc(self, size: int, /) -> int:
        """An address. RuntimeError: there is no memory, or size is 0."""
        size = number(size, "size")
        try:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError, OverflowError) as error:
            raise RuntimeError(f"no memory of {size} bytes: {error}") from None
        address = _address(memory)
        with self._lock:
            self._held[address] = memory
        return address

    def free(self, address: int, /) -> int:
        """0, or -1: it was not allocated here."""
        with self._lock:
            memory = self._held.pop(number(address, "address"), None)
        if memory is None:
            return -1
        memory.close()
        return OK


class BufferLease:
    """A piece of a BufferPool until release() or the end of its ``with`` block. Drop views of it before."""

    def __init__(self, pool: BufferPool, memory: memoryview, size: int) -> None:
        self._pool: BufferPool | None = pool
        self._memory = memory
        self._size = size

    @property
    def ptr(self) -> int:
        self._check()
        return _address(self._memory)

    @property
    def size(self) -> int:
        self._check()
        return self._size

    @property
    def buffer(self) -> memoryview:
        """The `size` bytes, writable."""
        if self._pool is None:
            raise BufferError("this lease was released")
        return self._memory[: self._size]

    def release(self) -> None:
        """Gives it back. May be called again."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool._give_back(self._memory)

    def _check(self) -> None:
        if self._pool is None:
            raise RuntimeError("this lease was released")

    def __enter__(self) -> BufferLease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()


class BufferPool:
    """Buffers that are used again, in sizes of min_size_class times powers of two, registered with the store.

    max_bytes: of all together; 0: no limit. max_size_class: the largest buffer; None: as large as is asked for. alignment is
    taken and left aside: buffers begin at a page. When there is no room acquire() waits for it (block=None:
    block_on_exhaustion) for `timeout` seconds (None: default_timeout, and without that 30 s: nothing waits for ever), then
    raises RuntimeError. Threads: any.
    """

    def __init__(
        self,
        store: Any,
        max_bytes: int = 0,
        min_size_class: int = 65536,
        max_size_class: int | None = None,
        alignment: int = 8388608,
        block_on_exhaustion: bool = True,
        default_timeout: float | None = None,
        max_regions: int | None = None,
        prewarm_size: int | None = None,
        prewarm_count: int = 0,
    ) -> None:
        self._store = store
        self._limit = number(max_bytes, "max_bytes")
        self._least = max(number(min_size_class, "min_size_class"), 1)
        self._largest = None if max_size_class is None else number(max_size_class, "max_size_class")
        self._regions = None if max_regions is None else number(max_regions, "max_regions")
        number(alignment, "alignment")
        self._block = block_on_exhaustion
        self._timeout = 30.0 if default_timeout is None else float(default_timeout)
        self._free: dict[int, list[memoryview]] = {}
        self._made = 0  # buffers
        self._bytes = 0
        self._out = 0
        self._closed = False
        self._changed = threading.Condition()
        if prewarm_size is not None:
            self.prewarm(prewarm_size, prewarm_count)

    def acquire(self, size: int, block: bool | None = None, timeout: float | None = None) -> BufferLease:
        """A buffer of at least `size` bytes. RuntimeError: there is no room, not even by the timeout; closed."""
        size = number(size, "size")
        wait = self._block if block is None else bool(block)
        end = time.monotonic() + (self._timeout if timeout is None else float(timeout))
        kind = self._class_of(size)
        possible = not self._limit or kind <= self._limit
        with self._changed:
            while True:
                if self._closed:
                    raise RuntimeError("this buffer pool is closed")
                memory = self._take(kind) if possible else None
                if memory is not None:
                    self._out += 1
                    return BufferLease(self, memory, size)
                left = end - time.monotonic()
                if not wait or not possible or left <= 0:
                    raise RuntimeError(f"buffer pool is exhausted: no room for {size} bytes")
                self._changed.wait(left)

    buffer = acquire

    def prewarm(self, size: int, count: int) -> None:
        """Makes `count` buffers for `size` bytes now."""
        leases = [self.acquire(size, block=False) for _ in range(number(count, "count"))]
        for lease in leases:
            lease.release()

    def close(self) -> None:
        """Frees all. RuntimeError while leases are out. May be called again."""
        with self._changed:
            if self._out:
                raise RuntimeError(f"{self._out} buffers of this pool are still leased")
            self._closed = True
            for kind in list(self._free):
                while self._free[kind]:
                    self._drop(self._free[kind].pop())

    def _class_of(self, size: int) -> int:
        kind = self._least
        while kind < size:
            kind *= 2
        if self._largest is not None and size > self._largest:
            raise RuntimeError(f"buffer pool is exhausted: {size} bytes are more than max_size_class, {self._largest}")
        return kind

    def _take(self, kind: int) -> memoryview | None:
        if self._free.get(kind):
            return self._free[kind].pop()
        # Free buffers of other sizes make room for one of this.
        for other in sorted(self._free, reverse=True):
            while self._free[other] and not self._has_room(kind):
                self._drop(self._free[other].pop())
        if not self._has_room(kind):
            return None
        try:
            memory = memoryview(mmap.mmap(-1, kind, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        except (OSError, OverflowError):
            return None
        self._made += 1
        self._bytes += kind
        self._store.register_buffer(_address(memory), kind)
        return memory

    def _has_room(self, kind: int) -> bool:
        fits = not self._limit or self._bytes + kind <= self._limit
        return fits and (self._regions is None or self._made < self._regions)

    def _drop(self, memory: memoryview) -> None:
        self._store.unregister_buffer(_address(memory))
        self._made -= 1
        self._bytes -= memory.nbytes
        # Its pages go with the last view that a caller may have left.

    def _give_back(self, memory: memoryview) -> None:
        with self._changed:
            self._out -= 1
            self._free.setdefault(memory.nbytes, []).append(memory)
            self._changed.notify_all()  # they wait for buffers of different sizes: it may not be enough for the first of them


def _address(memory: memoryview | mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
