"""The asyncio form: calls that wait for the node, or copy, are awaited.

    async with kvist.aio.Client(node.socket) as client:
        space = await client.open(identity)
        results = await space.get(chain, out)            # copied by the client's own thread
        results = await space.put(chain, sources)        # sources may be used again when it returns
        with space.prefix(chain) as found: ...           # in place: does not wait, so it is not awaited
        with await space.bring(chain) as found: ...      # the same with what is on disk

Finished calls are announced by an eventfd that the running loop watches: no thread waits for them. A client belongs to the
loop that first awaits one of its calls. Up to 64 puts and gets are under way at once; further ones wait for their turn.
A cancelled await leaves the call running: its `out` must not be used again until its timeout is over.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Callable

from kvist import _kvist
from kvist._identity import Identity
from kvist._kvist import Batch, Digests, Pinned, Prefix, Results, Submitted
from kvist._types import FailedPrecondition, Stats

_MOST = 64  # Client.kMaxSubmitted of the library

__all__ = ["Client", "Space"]


class Client:
    """kvist.Client for asyncio: the same arguments, or an existing kvist.Client as ``client=``. Connects at its first use,
    or when its ``async with`` block is entered."""

    def __init__(self, socket: Any = None, *, client: _kvist.Client | None = None, **options: Any) -> None:
        self._client = client
        self._make: Callable[[], _kvist.Client] = lambda: _kvist.Client(socket, **options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[int, tuple[Submitted, asyncio.Future[None]]] = {}
        self._turns = asyncio.Semaphore(_MOST)
        self._connecting = asyncio.Lock()
        self._fd = -1
        self._closed = False

    async def connect(self) -> _kvist.Client:
        """The kvist.Client behind this; connects if need be."""
        async with self._connecting:
            self._refuse_if_closed()
            if self._client is None:
                self._client = await asyncio.to_thread(self._make)
            if self._loop is None:
                loop = asyncio.get_running_loop()
                self._fd = self._client.completion_fd()
                loop.add_reader(self._fd, self._collect)
                self._loop = loop
        if self._loop is not asyncio.get_running_loop():
            raise RuntimeError("this kvist.aio.Client belongs to another event loop: make one for each")
        return self._client

    async def open(self, identity: Identity, *, timeout: float | None = None) -> Space:
        """See kvist.Client.open()."""
        client = await self.connect()
        return Space(self, await asyncio.to_thread(lambda: client.open(identity, timeout=timeout)))

    async def report(self, what: str = "node", *, timeout: float | None = None) -> Any:
        """See kvist.Client.report()."""
        client = await self.connect()
        return await asyncio.to_thread(lambda: client.report(what, timeout=timeout))

    def stats(self) -> Stats:
        """See kvist.Client.stats()."""
        if self._client is None:
            raise RuntimeError("this client is not connected yet: await connect()")
        return self._client.stats()

    async def close(self) -> int:
        """See kvist.Client.close(); returns what it does: how many pins and rooms are left. Calls that are under way end
        with CancelledError, those that wait for their turn with FailedPrecondition."""
        self._closed = True
        if self._loop is not None and self._fd >= 0:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._fd)
            self._fd = -1
        for _, future in self._waiting.values():
            future.cancel()
            self._turns.release()  # nobody collects it any more, and others wait for their turn to be told
        self._waiting.clear()
        return 0 if self._client is None else await asyncio.to_thread(self._client.close)

    async def __aenter__(self) -> Client:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise FailedPrecondition("this client was closed: connect again")

    # ---- submitted calls ----

    async def _finish(self, submit: Callable[[], Submitted], in_thread: bool) -> Results:
        await self.connect()
        await self._turns.acquire()
        try:
            self._refuse_if_closed()  # while it waited: what close() cancelled still fills the client's places
            call = await asyncio.to_thread(submit) if in_thread else submit()
        except BaseException:
            self._turns.release()
            raise
        if call.done:  # before we could wait for it: its turn is over all the same
            self._turns.release()
            return call.results
        if self._closed:  # while it was submitted
            self._turns.release()
            raise asyncio.CancelledError
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[id(call)] = (call, future)  # keeps the call, so that its id stays its own
        await future
        return call.results

    def _collect(self) -> None:
        assert self._client is not None
        for call in self._client.poll():
            waiting = self._waiting.pop(id(call), None)
            if waiting is None:
                continue  # finished before its task came to wait: it sees `done`
            self._turns.release()
            if not waiting[1].done():
                waiting[1].set_result(None)


class Space:
    """kvist.Space for asyncio: what copies or waits is awaited, what only looks is not. Arguments and results are those of
    kvist.Space."""

    def __init__(self, client: Client, space: _kvist.Space) -> None:
        self._client = client
        self.space = space  #: the kvist.Space behind this

    @property
    def identity(self) -> Identity:
        return self.space.identity

    def digests(self, keys: Any, *, width: int | None = None) -> Digests:
        return self.space.digests(keys, width=width)

    def prefix(self, chain: Any, **options: Any) -> Prefix:
        """Ends before what is on disk: waiting for that would hold up the loop. A hint counts it, and begins to read it."""
        if not options.get("hint"):
            options["on_disk"] = "leave"
        return self.space.prefix(chain, **options)

    async def bring(self, chain: Any, **options: Any) -> Prefix:
        """prefix() that waits for what is on disk."""
        return await asyncio.to_thread(lambda: self.space.prefix(chain, **options))

    def pin(self, digests: Any, *, part: int | str = 0, timeout: float | None = None) -> Pinned:
        """What is on disk is a miss, as for prefix()."""
        return self.space.pin(digests, part=part, timeout=timeout, on_disk="leave")

    def contains(self, digests: Any, *, part: int | str = 0) -> Results:
        return self.space.contains(digests, part=part)

    async def get(self, digests: Any, out: Any, *, part: int | str = 0, timeout: float | None = None) -> Results:
        results = await self._client._finish(
            lambda: self.space.submit_get(digests, out, part=part, timeout=timeout), in_thread=False
        )
        return self.space._check(results)

    async def put(self, chain: Any, sources: Any, **options: Any) -> Results:
        # Copying, and waiting for room, is a thread's work; the node's answer is not waited for there.
        results = await self._client._finish(
            lambda: self.space.submit_put(chain, sources, **options), in_thread=True
        )
        return self.space._check(results)

    async def reserve(self, chain: Any, nbytes: Any = None, **options: Any) -> Batch:
        return await asyncio.to_thread(lambda: self.space.reserve(chain, nbytes, **options))

    async def commit(self, batch: Batch, *, timeout: float | None = None) -> Results:
        return await asyncio.to_thread(lambda: batch.commit(timeout=timeout))

    async def touch(self, digests: Any, **options: Any) -> None:
        await asyncio.to_thread(lambda: self.space.touch(digests, **options))

    async def remove(self, digests: Any, *, part: int | str = 0, timeout: float | None = None) -> Results:
        return await asyncio.to_thread(lambda: self.space.remove(digests, part=part, timeout=timeout))

    async def flush(self, *, timeout: float | None = None) -> int:
        return await asyncio.to_thread(lambda: self.space.flush(timeout=timeout))
