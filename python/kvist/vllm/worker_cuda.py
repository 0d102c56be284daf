"""KV tensors on a GPU: blocks go through pinned host memory, on streams of their own.

**Untested on hardware.** It is written to torch's documented API (streams, events, pinned memory, non-blocking copies);
what is tested is the bookkeeping, with copies in host memory that finish late (tests/python/doors/test_vllm_staging.py).

A load is read from the pool into free places of the staging memory, then copied to the device on the load stream; it is
done when the event behind the copy is. A store is copied from the device on the store stream, which waits for the step's
own stream first, and is put when its event has come. Before a later step may overwrite the blocks, its stream waits for
that event: nobody on the host does. Longer loads than there is staging memory go piece by piece; stores without room are
refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import kvist

STAGING_BYTES = 256 << 20  # pinned, for all columns of a worker together


class Codes(Sequence[kvist.Code]):
    """Results of several calls as those of one."""

    def __init__(self, size: int) -> None:
        self._codes = [kvist.Code.CANCELLED] * size

    def put(self, start: int, results: Sequence[Any]) -> None:
        self._codes[start : start + len(results)] = [kvist.Code(code) for code in results]

    @property
    def ok(self) -> bool:
        return all(code == kvist.Code.OK for code in self._codes)

    @property
    def done(self) -> int:
        return self._codes.count(kvist.Code.OK)

    def count(self, value: Any) -> int:
        return self._codes.count(value)

    def __len__(self) -> int:
        return len(self._codes)

    def __getitem__(self, index: Any) -> Any:
        return self._codes[index]

    def __iter__(self) -> Iterator[kvist.Code]:
        return iter(self._codes)


class Call:
    """What the worker has of a load or a store under way: like a kvist.Submitted."""

    def __init__(self, size: int) -> None:
        self.results = Codes(size)
        self.left = size  # blocks that are not through
        self.done = size == 0


class _Piece:
    """Blocks of a call that are in the staging memory."""

    def __init__(self, call: Call, column: int, start: int, ids: list[int], places: list[int]) -> None:
        self.call, self.column, self.start, self.ids, self.places = call, column, start, ids, places
        self.event: Any = None
        self.finish: Callable[[], Any] | None = None  # the put to make when the event has come
        self.results: Any = None


class CudaStreams:
    """The device's side: two streams, and copies between rows of device arrays and pinned rows."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._load, self._store = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def staging(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def to_device(self, arrays: list[torch.Tensor], ids: list[int], rows: torch.Tensor) -> Any:
        """rows[i] into row ids[i] of the arrays, side by side; returns the event behind it."""
        with torch.cuda.stream(self._load):
            where = torch.tensor(ids, dtype=torch.int64).pin_memory().to(self.device, non_blocking=True)
            there = rows.to(self.device, non_blocking=True)
            start = 0
            for array in arrays:
                array.index_copy_(0, where, there[:, start : start + array.shape[1]])
                start += array.shape[1]
            event = torch.cuda.Event()
            event.record(self._load)
        return event

    def to_host(self, arrays: list[torch.Tensor], ids: list[int], rows: torch.Tensor) -> Any:
        """Row ids[i] of the arrays, side by side, into rows[i], after what the step has computed; returns the event."""
        self._store.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._store):
            where = torch.tensor(ids, dtype=torch.int64).pin_memory().to(self.device, non_blocking=True)
            rows.copy_(torch.cat([array.index_select(0, where) for array in arrays], dim=1), non_blocking=True)
            event = torch.cuda.Event()
            event.record(self._store)
        return event

    def hold(self, event: Any) -> None:
        """What the step's stream does from now on comes after the event."""
        torch.cuda.current_stream(self.device).wait_event(event)


class _Staging:
    """Pinned places for blocks of one column."""

    def __init__(self, memory: torch.Tensor, page_bytes: int, count: int) -> None:
        self.rows = memory.view(count, page_bytes)
        self.pages = kvist.Pages([self.rows])
        self.free = list(range(count))

    def take(self, count: int) -> list[int]:
        taken, self.free = self.free[:count], self.free[count:]
        return taken


class StagedPages:
    """KV tensors on a device behind the interface of HostPages (kvist/vllm/worker.py). One thread."""

    ask = 1  # what is staged moves on with advance() only

    def __init__(self, columns: list[list[torch.Tensor]], streams: Any, staging_bytes: int = STAGING_BYTES) -> None:
        self._arrays, self._streams = columns, streams
        self._bytes = [sum(array.shape[1] for array in arrays) for arrays in columns]
        share = staging_bytes // max(1, sum(1 for size in self._bytes if size))
        self._staging: list[_Staging | None] = []
        for size in self._bytes:
            count = max(1, share // size) if size else 0
            self._staging.append(_Staging(streams.staging(count * size), size, count) if size else None)
        self._reads: deque[tuple[Call, kvist.Space, kvist.Digests, int, int, list[int], int, float]] = (
            deque()
        )  # wait for room
        self._reading: dict[int, tuple[kvist.Submitted, _Piece]] = {}
        self._copying: list[_Piece] = []  # to the device
        self._leaving: list[_Piece] = []  # to the host
        self._putting: dict[int, tuple[kvist.Submitted, _Piece]] = {}

    def page_bytes(self, column: int) -> int:
        return self._bytes[column]

    def read(
        self, space: kvist.Space, chain: kvist.Digests, column: int, ids: list[int], part: int, timeout: float
    ) -> Codes:
        """Fills the blocks, and waits for it."""
        staging = self._staging[column]
        assert staging is not None
        call = Call(len(ids))
        for start in range(0, len(ids), len(staging.rows)):
            some = ids[start : start + len(staging.rows)]
            places = staging.take(len(some))
            try:
                if len(places) < len(some):
                    continue  # asynchronous calls have the rest: these blocks stay as failed
                results = space.get(chain[start : start + len(some)], staging.pages[places], part=part, timeout=timeout)
                self._streams.to_device(self._arrays[column], some, self._rows(staging, places)).synchronize()
                call.results.put(start, results)
            finally:
                staging.free += places
        return call.results

    def begin_read(
        self, space: kvist.Space, chain: kvist.Digests, column: int, ids: list[int], part: int, timeout: float
    ) -> Call:
        call = Call(len(ids))
        self._reads.append((call, space, chain, column, 0, ids, part, timeout))
        self._start_reads()
        return call

    def begin_write(
        self, space: kvist.Space, chain: kvist.Digests, column: int, ids: list[int], part: int, session: str, timeout: float
    ) -> Call | None:
        """None: there is no room for the blocks."""
        staging = self._staging[column]
        assert staging is not None
        if len(staging.free) < len(ids):
            return None
        call = Call(len(ids))
        places = staging.take(len(ids))
        piece = _Piece(call, column, 0, ids, places)
        piece.event = self._out(column, ids, places)
        piece.finish = lambda: space.submit_put(
            chain, staging.pages[places], part=part, session=session or None, timeout=timeout
        )
        self._leaving.append(piece)
        return call

    def before_step(self) -> None:
        """Blocks of stores under way may be overwritten by the step that begins."""
        for piece in self._leaving:
            self._streams.hold(piece.event)

    def advance(self, finished: Sequence[kvist.Submitted]) -> list[Call]:
        """What came out of Client.poll(); returns the calls that are done now."""
        done: list[Call] = []
        for submitted in finished:
            read = self._reading.pop(id(submitted), None)
            if read is not None:
                self._arrived(read[1], submitted.results)
            put = self._putting.pop(id(submitted), None)
            if put is not None:
                self._through(put[1], submitted.results, done)
        for piece in [piece for piece in self._copying if piece.event.query()]:
            self._copying.remove(piece)
            self._through(piece, piece.results, done)
        for piece in [piece for piece in self._leaving if piece.event.query()]:
            self._leaving.remove(piece)
            self._put(piece, done)
        self._start_reads(done)
        return done

    def forget(self) -> None:
        """The client that calls went to is closed: what waits for it gets no answer, and gives its places back."""
        for waiting in (self._reading, self._putting):
            for _, piece in list(waiting.values()):
                self._through(piece, [kvist.Code.UNAVAILABLE] * len(piece.ids), None)
            waiting.clear()

    def _rows(self, staging: _Staging, places: list[int]) -> torch.Tensor:
        return staging.rows[places[0] : places[0] + len(places)] if _in_a_row(places) else staging.rows[places]

    def _out(self, column: int, ids: list[int], places: list[int]) -> Any:
        """Copies device rows into pinned places, a copy for each run of places; the event behind the last one."""
        staging, event = self._staging[column], None
        assert staging is not None
        start = 0
        for end in range(1, len(places) + 1):
            if end == len(places) or places[end] != places[end - 1] + 1:
                rows = staging.rows[places[start] : places[start] + end - start]
                event = self._streams.to_host(self._arrays[column], ids[start:end], rows)
                start = end
        return event

    def _start_reads(self, done: list[Call] | None = None) -> None:
        while self._reads:
            call, space, chain, column, start, ids, part, timeout = self._reads[0]
            staging = self._staging[column]
            assert staging is not None
            if not staging.free:
                return
            self._reads.popleft()
            places = staging.take(len(ids) - start)
            some = ids[start : start + len(places)]
            if start + len(some) < len(ids):
                self._reads.appendleft((call, space, chain, column, start + len(some), ids, part, timeout))
            piece = _Piece(call, column, start, some, places)
            try:
                submitted = space.submit_get(
                    chain[start : start + len(some)], staging.pages[places], part=part, timeout=timeout
                )
            except kvist.Error as error:
                self._through(piece, [error.code] * len(some), done)
                continue
            if submitted.done:
                self._arrived(piece, submitted.results)
            else:
                self._reading[id(submitted)] = (submitted, piece)

    def _arrived(self, piece: _Piece, results: kvist.Results) -> None:
        staging = self._staging[piece.column]
        assert staging is not None
        piece.results = list(results)
        piece.event = self._streams.to_device(self._arrays[piece.column], piece.ids, self._rows(staging, piece.places))
        self._copying.append(piece)

    def _put(self, piece: _Piece, done: list[Call]) -> None:
        assert piece.finish is not None
        try:
            submitted = piece.finish()
        except kvist.Error as error:
            self._through(piece, [error.code] * len(piece.ids), done)
            return
        if submitted.done:
            self._through(piece, submitted.results, done)
        else:
            self._putting[id(submitted)] = (submitted, piece)

    def _through(self, piece: _Piece, results: Sequence[Any], done: list[Call] | None) -> None:
        staging = self._staging[piece.column]
        assert staging is not None
        staging.free += piece.places
        call = piece.call
        call.results.put(piece.start, results)
        call.left -= len(piece.ids)
        if call.left == 0:
            call.done = True
            if done is not None:
                done.append(call)


def _in_a_row(places: list[int]) -> bool:
    return all(later == earlier + 1 for earlier, later in zip(places, places[1:]))


def cuda_pages(columns: list[list[torch.Tensor]]) -> StagedPages:
    """For the arrays of each column, which lie on one CUDA device."""
    device = next(array.device for arrays in columns for array in arrays)
    return StagedPages(columns, CudaStreams(device))
