"""Values written and read piece by piece: put sessions, get sessions, and ranges of many values into many buffers."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

from kvist._kvist import Addresses, Batch, Pinned
from kvist._types import Code, Error
from kvist.mooncake import _config
from kvist.mooncake._codes import CODES, INTERNAL, INVALID_PARAMS, NO_AVAILABLE_HANDLE, OBJECT_ALREADY_EXISTS, OK, READ_CODES
from kvist.mooncake._config import ReplicateConfig, number, possible
from kvist.mooncake._pool import key_bytes, key_list, names
from kvist.mooncake._store import Store

_START_CODES = {**CODES, Code.ALREADY_EXISTS: OBJECT_ALREADY_EXISTS, Code.INVALID_ARGUMENT: NO_AVAILABLE_HANDLE}
_MOST = 4096  # sessions of each kind that a store has open: each holds memory of the pool


class _Group:
    """The room of the sessions that one call started, and which of them are open."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.lock = threading.Lock()  # of what follows; held before the locks of writings
        self.open: set[int] = set()  # places in the batch
        self.whole = True  # none was ended or revoked without the others

    def close(self, index: int) -> None:
        self.open.discard(index)
        self.whole = False
        if not self.open:
            self.batch.abort()


class _Writing:
    """A value's room in the pool until its session ends."""

    def __init__(self, group: _Group, index: int, size: int) -> None:
        self.group, self.index, self.size = group, index, size
        self.lock = threading.Lock()
        self.ended = False
        self._written: list[tuple[int, int]] = []  # from, to

    def write(self, pieces: list[tuple[int, int, int]]) -> int:
        """Copies (address, bytes, where to). Bytes, or a code."""
        if any(not possible(address, size) or at + size > self.size for address, size, at in pieces if size):
            return INVALID_PARAMS
        with self.lock:
            if self.ended:
                return INVALID_PARAMS
            start = self.address()
            for address, size, at in pieces:
                ctypes.memmove(start + at, address, size)
                self._written.append((at, at + size))
        return sum(size for _, size, _ in pieces)

    def address(self) -> int:
        # Valid beyond the view that tells it: the room stays until the batch ends, and that needs our lock.
        return ctypes.addressof(ctypes.c_char.from_buffer(self.group.batch[self.index]))  # type: ignore[arg-type]

    def clear_gaps(self) -> None:
        """What nobody wrote is zero: the room had another value before, of whomever."""
        start, done = self.address(), 0
        for begin, end in sorted(self._written) + [(self.size, self.size)]:
            if begin > done:
                ctypes.memset(start + done, 0, begin - done)
            done = max(done, end)


class Sessions(Store):
    def __init__(self) -> None:
        super().__init__()
        self._sessions = threading.Lock()
        self._writing: dict[bytes, _Writing] = {}
        self._reading: dict[bytes, tuple[Pinned, int]] = {}

    # ---- writing ----

    def batch_put_session_start(self, keys: Any, sizes: Any, config: ReplicateConfig | None = None) -> list[int]:
        """Room for values that nobody can see until their session ends: 0, -705 (it is there), -600 (open already, size 0),
        -200 (no room). Fastest where the sessions of one call are ended by one call."""
        keys = key_list(keys)
        if len(keys) != len(sizes):
            return [INVALID_PARAMS] * len(keys)
        if config is not None and (refused := _config.refusal(config, len(keys))):
            return [refused] * len(keys)
        sizes = [number(size, "a size") for size in sizes]
        named = [key_bytes(key) for key in keys]
        codes = [INVALID_PARAMS] * len(keys)
        wanted: dict[bytes, int] = {}  # name -> place among the keys
        with self._sessions:
            room = _MOST - len(self._writing)
            for i, (name, size) in enumerate(zip(named, sizes)):
                if name and size and name not in self._writing and name not in wanted:
                    if size >= 1 << 32 or len(wanted) >= room:
                        codes[i] = NO_AVAILABLE_HANDLE
                    else:
                        wanted[name] = i
        places = list(wanted.values())
        if places:
            done = self._reserve([keys[i] for i in places], [sizes[i] for i in places], list(wanted))
            for i, code in zip(places, done):
                codes[i] = code
        return codes

    def _reserve(self, keys: list[Any], sizes: list[int], named: list[bytes]) -> list[int]:
        batch = self._call(
            lambda space, timeout: space.reserve(names(space, keys), sizes, unchained=True, timeout=timeout)
        )
        if isinstance(batch, int):
            return [batch] * len(keys)
        group, codes = _Group(batch), []
        with self._sessions:
            for i, code in enumerate(batch.results):
                if code == Code.OK and (self._pool is None or named[i] in self._writing):
                    codes.append(INVALID_PARAMS)  # closed, or started by another thread meanwhile
                    group.whole = False
                elif code == Code.OK:
                    self._writing[named[i]] = _Writing(group, i, sizes[i])
                    group.open.add(i)
                    codes.append(OK)
                else:
                    codes.append(_START_CODES.get(code, INTERNAL))
            if not group.open:
                batch.abort()
        return codes

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
        return self._end(keys, self._store)

    def batch_put_session_revoke(self, keys: Any) -> list[int]:
        """Gives the room back: 0, or -600 without a session."""
        return self._end(keys, lambda keys, group, writings: [OK] * len(keys))

    def _end(self, keys: Any, work: Callable[[list[Any], _Group, list[_Writing]], list[int]]) -> list[int]:
        keys = key_list(keys)
        named = [key_bytes(key) for key in keys]
        codes = [INVALID_PARAMS] * len(keys)
        with self._sessions:
            ended = [(i, self._writing.pop(name)) for i, name in enumerate(named) if name in self._writing]
        groups: dict[int, list[tuple[int, _Writing]]] = {}
        for i, writing in ended:
            groups.setdefault(id(writing.group), []).append((i, writing))
        for of_one in groups.values():
            writings = [writing for _, writing in of_one]
            group = writings[0].group
            with group.lock:
                for writing in writings:
                    with writing.lock:  # a write that is under way ends first, and no other begins
                        writing.ended = True
                try:
                    done = work([keys[i] for i, _ in of_one], group, writings)
                    for writing in writings:
                        group.close(writing.index)
                except Error as error:  # this is a forked child, say
                    done = [CODES.get(error.code, INTERNAL)] * len(writings)
            for (i, _), code in zip(of_one, done):
                codes[i] = code
        return codes

    def _store(self, keys: list[Any], group: _Group, writings: list[_Writing]) -> list[int]:
        pool = self._pool
        if pool is None:
            return [INVALID_PARAMS] * len(keys)
        for writing in writings:
            writing.clear_gaps()
        if group.whole and len(group.open) == len(writings):
            results = group.batch.commit(timeout=pool.deadline)
            return [CODES.get(results[writing.index], INTERNAL) for writing in writings]
        # A batch is committed whole or not at all: what ends without the others is copied.
        return self._put(keys, Addresses([w.address() for w in writings], [w.size for w in writings]))

    # ---- reading ----

    def batch_get_session_start(self, keys: Any) -> list[int]:
        """Keeps values from eviction until their session ends: 0, or -704. The sessions that one call started hold all their
        values until the last of them ends."""
        keys = key_list(keys)
        named = [key_bytes(key) for key in keys]
        with self._sessions:
            if len(self._reading) + len(keys) > _MOST:
                return [NO_AVAILABLE_HANDLE] * len(keys)
        pinned = self._call(lambda space, timeout: space.pin(names(space, keys), timeout=timeout))
        if isinstance(pinned, int):
            return [pinned] * len(keys)
        results = pinned.results
        with self._sessions:
            if self._pool is None:
                return [INVALID_PARAMS] * len(keys)
            for i, code in enumerate(results):
                if code == Code.OK:
                    self._reading[named[i]] = (pinned, i)
        if pinned.hits == len(keys):
            return [OK] * len(keys)
        self._note(results)
        return [READ_CODES.get(code, INTERNAL) for code in results]

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
                held = self._reading.get(key_bytes(key))
            codes.append(INVALID_PARAMS if held is None or pieces is None else _read(*held, pieces))
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
                    codes.append([READ_CODES.get(pinned.results[i], INTERNAL)] * len(pieces))
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
            open_ones = list(self._writing)
            self._reading = {}
        self.batch_put_session_revoke(open_ones)


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
