"""LMCache's values as blocks of a pool: find, load, store and remove batches of them.

A value is one block named by its key. One that is longer than a block can be is stored in pieces: their names come of the
key's digest, the length and the place, and a head under the key itself says how long the whole is and how long a piece.
The head is written last, so that whoever finds it finds a value that was complete; pieces are evicted one by one, so a
value counts only with all of them.

Nothing here raises because of the node: a miss, a value of another length than asked for, one that fails its verification,
and a node that is not there are all "not found", counted by reason at the link.

Threads: any; each call is one slice of a batch (see _crew).
"""

from __future__ import annotations

import math
import struct
import time
from typing import NamedTuple

from kvist._door import Link
from kvist._identity import Part
from kvist._kvist import Digests, Pinned, Results, Space
from kvist._types import Code, Error
from kvist.lmcache._crew import Job
from kvist.lmcache._leases import Leases

_HEAD = struct.Struct("<QQ")  # bytes of the value, bytes of a piece
PARTS = (Part("value"), Part("head", _HEAD.size), Part("piece"))
_VALUE, _HEADS, _PIECES = range(3)

_LARGEST_PIECE = 16 << 20  # bytes; more would not fill the pool's extents of 64 MiB well
_SMALLEST_POOL_PIECE = 1 << 20  # bytes, which every pool has room for in one block
_PINNED_AT_ONCE = 16  # keys, between two looks at what leases may hold
_ASK, _ASK_AGAIN = 0.25, 10.0  # seconds for the node to answer what memory it has, and until it is asked again
_MOST_PIECES = 1 << 16  # of a value: what a head says is not trusted with more


class _Shape(NamedTuple):
    """What the node's memory allows."""

    piece: int  # bytes of the longest block
    leased: int  # bytes that leases may hold


class _Found:
    """What a look-up has pinned."""

    def __init__(self, pins: list[Pinned] | None = None) -> None:
        self.pins = pins or []
        self.keys: list[str] = []
        self.blocks = self.nbytes = 0

    def add(self, more: _Found) -> None:
        self.pins += more.pins
        self.keys += more.keys
        self.blocks += more.blocks
        self.nbytes += more.nbytes

    def close(self) -> None:
        for pins in self.pins:
            pins.close()


class Values:
    """lease_bytes: what leases hold at most, of a pool that is large enough."""

    def __init__(self, link: Link, leases: Leases, domain: str, lease_bytes: int) -> None:
        self._link, self._leases = link, leases
        self._domain, self._lease_bytes = domain, lease_bytes
        self._shapes: tuple[Space, _Shape, float] | None = None  # the last: until when it holds

    # ---- what the threads call ----

    def store(self, job: Job, begin: int, end: int) -> None:
        """Stores what is not there yet."""
        space = self._link.space()
        if space is None:
            job.error = "unavailable"
            return
        assert job.buffers is not None
        keys, buffers = job.keys[begin:end], job.buffers[begin:end]
        try:
            largest = max(buffer.nbytes for buffer in buffers)
            most = largest if largest <= _SMALLEST_POOL_PIECE else self._shape(space, job).piece
            if largest <= most:
                names = space.digests(keys)
                results = space.put(names, buffers, unchained=True, timeout=job.remaining())
                self._note_stored(job, begin, results)
                return
            for i, (key, buffer) in enumerate(zip(keys, buffers, strict=True), begin):
                if job.over:
                    self._link.count(Code.DEADLINE_EXCEEDED.name.lower(), end - i)
                    job.error = job.error or Code.DEADLINE_EXCEEDED.name.lower()
                    break
                if buffer.nbytes > most:
                    job.found[i] = self._store_pieces(space, job, key, buffer, most)
                else:
                    results = space.put(space.digests([key]), [buffer], unchained=True, timeout=job.remaining())
                    self._note_stored(job, i, results)
        except Error as error:
            self._failed(job, error)

    def load(self, job: Job, begin: int, end: int) -> None:
        """Copies what is there, and as long as its buffer, into the buffers."""
        keys = job.keys[begin:end]
        space = self._link.space()
        try:
            if space is None:
                job.error = "unavailable"
                return
            assert job.buffers is not None
            buffers = job.buffers[begin:end]
            names = space.digests(keys)
            results = self._link.tally(space.get(names, buffers, timeout=job.remaining()))
            for i, code in enumerate(_codes(results)):
                if code is Code.OK:
                    job.found[begin + i] = True
                elif code is Code.NOT_FOUND and not job.over:
                    job.found[begin + i] = self._load_pieces(space, job, names[i : i + 1], buffers[i])
        except Error as error:
            self._failed(job, error)
        finally:
            self._leases.loaded(keys)

    def find(self, job: Job, begin: int, end: int) -> None:
        """Says what is there, and keeps it for the load that follows: as much of it, from the first key on, as leases may
        hold. What lies beyond is told all the same; should it go before it is loaded, the load says so."""
        space = self._link.space()
        if space is None:
            job.error = "unavailable"
            return
        found = _Found()
        try:
            most_bytes = self._shape(space, job).leased
            names = space.digests(job.keys[begin:end])
            step, full = min(_PINNED_AT_ONCE, self._leases.most_blocks), False
            for first in range(begin, end, step):
                last = min(first + step, end)
                some = self._find_some(space, job, first, names[first - begin : last - begin])
                blocks, nbytes = found.blocks + some.blocks, found.nbytes + some.nbytes
                full = full or blocks > self._leases.most_blocks or nbytes > most_bytes
                if full:
                    self._link.count("unleased", len(some.keys))
                    some.close()
                else:
                    found.add(some)
            if found.keys:
                self._leases.grant(found.keys, found.pins, found.blocks, found.nbytes, most_bytes)
        except Error as error:
            found.close()
            self._failed(job, error)

    def remove(self, job: Job, begin: int, end: int) -> None:
        """Takes values away. One that is not there is gone, too: LMCache then need not count it any longer."""
        space = self._link.space()
        if space is None:
            job.error = "unavailable"
            return
        try:
            names = space.digests(job.keys[begin:end])
            results = self._link.tally(space.remove(names, timeout=job.remaining()))
            for i, code in enumerate(_codes(results)):
                if code is Code.NOT_FOUND:
                    self._remove_pieces(space, job, names[i : i + 1])
                job.found[begin + i] = code in (Code.OK, Code.NOT_FOUND)
        except Error as error:
            self._failed(job, error)

    # ---- one block a value ----

    def _note_stored(self, job: Job, begin: int, results: Results) -> None:
        self._link.tally(results)
        for i, code in enumerate(_codes(results)):
            job.found[begin + i] = code in (Code.OK, Code.ALREADY_EXISTS)
        if results.count(Code.INVALID_ARGUMENT):
            self._shapes = None  # perhaps a smaller pool than it was
        if not all(job.found[begin : begin + len(results)]):
            job.error = job.error or _why(results)

    def _find_some(self, space: Space, job: Job, first: int, names: Digests) -> _Found:
        pinned = space.pin(names, part=_VALUE, timeout=job.remaining())
        found = _Found(pins=[pinned])
        for i, code in enumerate(_codes(self._link.tally(pinned.results))):
            name = names[i : i + 1]
            if code is Code.OK:
                block = pinned[i]
                assert block is not None
                found.blocks += 1
                found.nbytes += block.nbytes
            elif code is Code.NOT_FOUND:
                pieces = self._pin_pieces(space, job, name)
                if pieces is None:
                    continue
                found.pins.append(pieces[0])
                found.blocks += len(pieces[0])
                found.nbytes += pieces[1]
            elif code is not Code.RESOURCE_EXHAUSTED or not space.contains(name, part=_VALUE).ok:
                continue  # no more pins are to be had: it may be there all the same
            found.keys.append(job.keys[first + i])
            job.found[first + i] = True
        return found

    # ---- values in pieces ----

    @staticmethod
    def _pieces(space: Space, name: Digests, nbytes: int, piece: int) -> Digests:
        stem = bytes(name)
        return space.digests([b"%b%d/%d/%d" % (stem, nbytes, piece, at) for at in range(0, nbytes, piece)])

    def _head(self, space: Space, job: Job, name: Digests) -> tuple[int, int] | None:
        room = bytearray(_HEAD.size)
        if not space.get(name, room, part=_HEADS, timeout=job.remaining()).ok:
            return None
        nbytes, piece = _HEAD.unpack(room)
        return (nbytes, piece) if piece and 1 < nbytes / piece <= _MOST_PIECES else None

    def _store_pieces(self, space: Space, job: Job, key: str, buffer: memoryview, piece: int) -> bool:
        name = space.digests([key])
        parts = [buffer[at : at + piece] for at in range(0, buffer.nbytes, piece)]
        names = self._pieces(space, name, buffer.nbytes, piece)
        results = space.put(names, parts, part=_PIECES, unchained=True, timeout=job.remaining())
        if _stored(self._link.tally(results)):
            head = _HEAD.pack(buffer.nbytes, piece)
            results = space.put(name, head, part=_HEADS, unchained=True, timeout=job.remaining())
            if _stored(self._link.tally(results)):
                return True
        job.error = job.error or _why(results)
        return False

    def _load_pieces(self, space: Space, job: Job, name: Digests, buffer: memoryview) -> bool:
        head = self._head(space, job, name)
        if head is None:
            return False
        nbytes, piece = head
        if nbytes != buffer.nbytes:
            self._link.count(Code.OUT_OF_RANGE.name.lower())
            return False
        parts = [buffer[at : at + piece] for at in range(0, nbytes, piece)]
        names = self._pieces(space, name, nbytes, piece)
        return self._link.tally(space.get(names, parts, part=_PIECES, timeout=job.remaining())).ok

    def _pin_pieces(self, space: Space, job: Job, name: Digests) -> tuple[Pinned, int] | None:
        head = self._head(space, job, name)
        if head is None:
            return None
        pinned = space.pin(self._pieces(space, name, *head), part=_PIECES, timeout=job.remaining())
        if pinned.hits < len(pinned):
            pinned.close()
            return None
        return pinned, head[0]

    def _remove_pieces(self, space: Space, job: Job, name: Digests) -> None:
        head = self._head(space, job, name)
        if head is not None:
            space.remove(name, part=_HEADS, timeout=job.remaining())
            space.remove(self._pieces(space, name, *head), part=_PIECES, timeout=job.remaining())

    # ---- the rest ----

    def _shape(self, space: Space, job: Job) -> _Shape:
        """What the node says of its memory, asked once a connection. One that does not answer is taken to be small, and
        asked again after a while."""
        now = time.monotonic()
        if self._shapes is not None and self._shapes[0] is space and now < self._shapes[2]:
            return self._shapes[1]
        client = self._link.client
        assert client is not None
        try:
            pools = client.report(timeout=min(_ASK, job.remaining()))["pools"]
            capacity = next((pool["capacity_bytes"] for pool in pools if pool["domain"] == self._domain), 0)
        except Error:
            shape, until = _Shape(_SMALLEST_POOL_PIECE, self._lease_bytes), now + _ASK_AGAIN
        else:
            # A node's extents, which no block is longer than, are a power of two of at most a sixteenth of its memory.
            piece = min(1 << max(capacity // 16, _SMALLEST_POOL_PIECE).bit_length() - 1, _LARGEST_PIECE)
            shape, until = _Shape(piece, min(self._lease_bytes, capacity // 4)), math.inf
        self._shapes = (space, shape, until)
        return shape

    def _failed(self, job: Job, error: Error) -> None:
        self._link.failed(error)
        job.error = job.error or f"{error.code.name.lower()}: {error}"


def _codes(results: Results) -> list[Code]:
    return [Code.OK] * len(results) if results.ok else [results[i] for i in range(len(results))]


def _stored(results: Results) -> bool:
    return results.count(Code.OK) + results.count(Code.ALREADY_EXISTS) == len(results)


def _why(results: Results) -> str:
    """The first failure's code."""
    fine = (Code.OK, Code.ALREADY_EXISTS)
    return next((code.name.lower() for code in _codes(results) if code not in fine), "")
