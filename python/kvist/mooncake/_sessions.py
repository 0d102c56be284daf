"""Values written and read piece by piece: put sessions, get sessions, and ranges of many values into many buffers."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

from kvist._kvist import Batch, Pinned
from kvist._types import Code, Error
from kvist.mooncake import _config
from kvist.mooncake._config import (
    CODES,
    INTERNAL,
    INVALID_PARAMS,
    NO_AVAILABLE_HANDLE,
    OBJECT_ALREADY_EXISTS,
    OBJECT_NOT_FOUND,
    OK,
    ReplicateConfig,
    number,
    possible,
)
from kvist.mooncake._pool import key_bytes, key_list, names
from kvist.mooncake._store import Store

_MOST = 4096  # sessions of each kind that a store has open: each holds memory of the pool


class _Writing:
    """A value's room in the pool until its session ends."""

    def __init__(self, batch: Batch, size: int) -> None:
        self.batch, self.size = batch, size
        self.lock = threading.Lock()
        self.ended = False
        self.written: list[tuple[int, int]] = []  # from, to

    def write(self, pieces: list[tuple[int, int, int]]) -> int:
        """Copies (address, bytes, where to). Bytes, or a code."""
        if any(not possible(address, size) or at + size > self.size for address, size, at in pieces if size):
            return INVALID_PARAMS
        with self.lock:
            if self.ended:
                return INVALID_PARAMS
            room = (ctypes.c_char * self.size).from_buffer(self.batch[0])  # type: ignore[arg-type]
            start = ctypes.addressof(room)
            for address, size, at in pieces:
                ctypes.memmove(start + at, address, size)
                self.written.append((at, at + size))
        return sum(size for _, size, _ in pieces)

    def end(self, timeout: float) -> int:
        with self.lock:
            if self.ended:
                return INVALID_PARAMS
            self.ended = True
            self._clear_gaps()
            return CODES.get(self.batch.commit(timeout=timeout)[0], INTERNAL)

    def revoke(self) -> int:
        with self.lock:
            if self.ended:
                return INVALID_PARAMS
            self.ended = True
            self.batch.abort()
            return OK

    def _clear_gaps(self) -> None:
        """What nobody wrote is zero: the room had another value before, of whomever."""
        room = (ctypes.c_char * self.size).from_buffer(self.batch[0])  # type: ignore[arg-type]
        start, done = ctypes.addressof(room), 0
        for begin, end in sorted(self.written) + [(self.size, self.size)]:
            if begin > done:
                ctypes.memset(start + done, 0, begin - done)
            done = max(done, end)


class Sessions(Store):
    def __init__(self) -> None:
        super().__init__()
        self._sessions = threading.Lock()
        self._writing: dict[bytes, _Writing] = {}
        self._reading: dict[bytes, Pinned] = {}

    # ---- writing ----

    def batch_put_session_start(self, keys: Any, sizes: Any, config: ReplicateConfig | None = None) -> list[int]:
        """Room for values that nobody can see until their session ends: 0, -705 (it is there), -600 (open already, size 0),
        -200 (no room)."""
        keys = key_list(keys)
        if len(keys) != len(sizes):
            return [INVALID_PARAMS] * len(keys)
        if config is not None and (refused := _config.refusal(config, len(keys))):
            return [refused] * len(keys)
        return [self._start(key, number(size, "a size")) for key, size in zip(keys, sizes)]

    def _start(self, key: Any, size: int) -> int:
        if not key or size == 0:
            return INVALID_PARAMS
        if size >= 1 << 32:
            return NO_AVAILABLE_HANDLE
        name = key_bytes(key)
        with self._sessions:
            if name in self._writing:
                return INVALID_PARAMS
            if len(self._writing) >= _MOST:
                return NO_AVAILABLE_HANDLE
        batch = self._call(
            lambda space, timeout: space.reserve(names(space, (key,)), (size,), unchained=True, timeout=timeout)
        )
        if isinstance(batch, int):
            return batch
        code = batch.results[0]
        if code == Code.ALREADY_EXISTS:
            return OBJECT_ALREADY_EXISTS
        if code != Code.OK:
            return NO_AVAILABLE_HANDLE if code == Code.INVALID_ARGUMENT else CODES.get(code, INTERNAL)
        with self._sessions:
            if self._pool is not None and self._writing.setdefault(name, _Writing(batch, size)).batch is batch:
                return OK
        batch.abort()
        return INVALID_PARAMS

    def batch_put_from_multi_buffer_ranges(
        self, keys: Any, all_buffer_ptrs: Any, all_sizes: Any, all_dst_offsets: Any
    ) -> list[int]:
        """Copies pieces to where they belong in the value: bytes, or -600 (no session, beyond its size)."""
        keys = key_list(keys)
        if not len(keys) == len(all_buffer_ptrs) == len(all_sizes) == len(all_dst_offsets):
            return [INVALID_PARAMS] * len(keys)
        codes = []
        for key, *lists in zip(keys, all_buffer_ptrs, all_sizes, all_dst_offsets):
            pieces = _pieces(*lists)
            with self._sessions:
                writing = self._writing.get(key_bytes(key))
            codes.append(INVALID_PARAMS if writing is None or pieces is None else writing.write(pieces))
        return codes

    def batch_put_session_end(self, keys: Any) -> list[int]:
        """Makes the values readable: 0, or -600 without a session. Bytes that nobody wrote are zero."""
        return [self._end(key, commit=True) for key in key_list(keys)]

    def batch_put_session_revoke(self, keys: Any) -> list[int]:
        """Gives the room back: 0, or -600 without a session."""
        return [self._end(key, commit=False) for key in key_list(keys)]

    def _end(self, key: Any, commit: bool) -> int:
        pool = self._pool
        with self._sessions:
            writing = self._writing.pop(key_bytes(key), None)
        if writing is None or pool is None:
            return INVALID_PARAMS
        try:
            return writing.end(pool.deadline) if commit else writing.revoke()
        except Error as error:  # the node went away, or this is a forked child
            return CODES.get(error.code, INTERNAL)

    # ---- reading ----

    def batch_get_session_start(self, keys: Any) -> list[int]:
        """Keeps values from eviction until their session ends: 0, or -704."""
        return [self._hold(key) for key in key_list(keys)]

    def _hold(self, key: Any) -> int:
        with self._sessions:
            if len(self._reading) >= _MOST and key_bytes(key) not in self._reading:
                return NO_AVAILABLE_HANDLE
        pinned = self._call(lambda space, timeout: space.pin(names(space, (key,)), timeout=timeout))
        if isinstance(pinned, int):
            return pinned
        code = pinned.results[0]
        if code != Code.OK:
            self._note(pinned.results)
            return OBJECT_NOT_FOUND if code == Code.INVALID_ARGUMENT else CODES.get(code, INTERNAL)
        with self._sessions:
            self._reading[key_bytes(key)] = pinned
        return OK

    def batch_get_into_multi_buffer_ranges(
        self, keys: Any, all_buffer_ptrs: Any, all_sizes: Any, all_src_offsets: Any
    ) -> list[int]:
        """Copies pieces of values whose session is open: bytes, or -600 (no session, beyond the value's end)."""
        keys = key_list(keys)
        if not len(keys) == len(all_buffer_ptrs) == len(all_sizes) == len(all_src_offsets):
            return [INVALID_PARAMS] * len(keys)
        codes = []
        for key, *lists in zip(keys, all_buffer_ptrs, all_sizes, all_src_offsets):
            pieces = _pieces(*lists)
            with self._sessions:
                pinned = self._reading.get(key_bytes(key))
            codes.append(INVALID_PARAMS if pinned is None or pieces is None else _read(pinned, 0, pieces))
        return codes

    def batch_get_session_end(self, keys: Any) -> int:
        """0."""
        with self._sessions:
            ended = [self._reading.pop(key_bytes(key), None) for key in key_list(keys)]
        del ended  # a read that is under way in another thread has the pins too
        return OK

    # ---- many ranges ----

    def get_into_ranges(
        self, buffer_ptrs: Any, all_keys: Any, all_dst_offsets: Any, all_src_offsets: Any, all_sizes: Any
    ) -> list[list[list[int]]]:
        """For each buffer, for each key, for each range: bytes copied, -704 (missing) or -600 (beyond the value's end)."""
        if not len(buffer_ptrs) == len(all_keys) == len(all_dst_offsets) == len(all_src_offsets) == len(all_sizes):
            return [[[INVALID_PARAMS] for _ in keys] for keys in all_keys]
        rows = zip(buffer_ptrs, all_keys, all_dst_offsets, all_src_offsets, all_sizes)
        return [self._ranges(number(ptr, "an address"), key_list(keys), *lists) for ptr, keys, *lists in rows]

    def _ranges(self, ptr: int, keys: Sequence[Any], to: Any, where: Any, sizes: Any) -> list[list[int]]:
        if not len(keys) == len(to) == len(where) == len(sizes):
            return [[INVALID_PARAMS] for _ in keys]
        wanted = [_pieces([ptr + number(at, "an offset") for at in a], s, w) for a, w, s in zip(to, where, sizes)]
        if ptr == 0:
            wanted = [None] * len(keys)
        pinned = self._call(lambda space, timeout: space.pin(names(space, keys), timeout=timeout))
        if isinstance(pinned, int):
            return [[pinned] * len(one) for one in sizes]
        codes = []
        with pinned:
            for i, pieces in enumerate(wanted):
                if pieces is None:
                    codes.append([INVALID_PARAMS] * max(1, len(sizes[i])))
                elif pinned[i] is None:
                    code = pinned.results[i]
                    missing = OBJECT_NOT_FOUND if code == Code.INVALID_ARGUMENT else CODES.get(code, INTERNAL)
                    codes.append([missing] * len(pieces))
                else:
                    codes.append([_read(pinned, i, [piece]) for piece in pieces])
        self._note(pinned.results)
        return codes

    def _forked(self) -> None:
        super()._forked()
        self._sessions = threading.Lock()
        self._writing, self._reading = {}, {}  # the parent's

    def _end_sessions(self) -> None:
        with self._sessions:
            writing, self._writing = self._writing, {}
            self._reading = {}
        for one in writing.values():
            try:
                one.revoke()
            except Error:
                pass  # a forked child: the room is the parent's


def _pieces(ptrs: Any, sizes: Any, offsets: Any) -> list[tuple[int, int, int]] | None:
    """(address, bytes, offset) of each; None: lists of unequal length. TypeError: what is no number from 0 on."""
    if not len(ptrs) == len(sizes) == len(offsets):
        return None
    return [
        (number(ptr, "an address"), number(size, "a size"), number(offset, "an offset"))
        for ptr, size, offset in zip(ptrs, sizes, offsets)
    ]


def _read(pinned: Pinned, index: int, pieces: list[tuple[int, int, int]]) -> int:
    """Copies (address, bytes, where from). Bytes, or -600."""
    block = pinned[index]
    if block is None or any(not possible(address, size) or at + size > len(block) for address, size, at in pieces if size):
        return INVALID_PARAMS
    view = memoryview(block)  # holds the pins
    try:
        start = block.address
        for address, size, at in pieces:
            ctypes.memmove(address, start + at, size)
    finally:
        view.release()
    return sum(size for _, size, _ in pieces)
