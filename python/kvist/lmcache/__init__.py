"""Kvist as a second tier of LMCache: a `native_plugin` adapter.

    lmcache server ... --l2-adapter '{"type": "native_plugin", "module_path": "kvist.lmcache",
        "class_name": "KvistConnector", "adapter_params": {"socket": "/run/kvist/node.sock", "namespace": "my-model bf16"}}'

The guide is docs/engines/lmcache.md. Nothing of LMCache is imported here: it finds the class by name, and calls it.
"""

from __future__ import annotations

import atexit
import dataclasses
import hashlib
import importlib.metadata
import logging
import os
import re
import threading
import weakref
from collections.abc import Callable
from typing import Any

from kvist._door import Link, Settings, count, seconds, setting, size, text
from kvist._identity import Identity
from kvist.lmcache._crew import Completion, Crew
from kvist.lmcache._leases import Leases
from kvist.lmcache._values import PARTS, Values

__all__ = ["KvistConnector", "LMCacheSettings"]

_log = logging.getLogger("kvist.lmcache")


def _threads(value: object) -> int:
    number = count(value)
    if number > 64:
        raise ValueError("must be at most 64")
    return number


def _bytes(value: object) -> int:
    given = size(value)
    if isinstance(given, int):
        return given
    found = re.fullmatch(r"([0-9.]+)([KMGT])iB", given)
    assert found is not None  # size() saw to it
    return int(float(found[1]) * 1024 ** (1 + "KMGT".index(found[2])))


def _cores() -> int:
    return len(os.sched_getaffinity(0))


@dataclasses.dataclass(frozen=True)
class LMCacheSettings(Settings):
    """`adapter_params`, beside what every door has (kvist._door.Settings; deadline is that of a whole batch, from its
    submission to its completion).

    namespace, model, revision, dtype, layout: texts that say what makes values interchangeable, as far as LMCache's keys do
    not: servers share values when all of these are equal. lease: seconds that what a look-up found is kept for its load.
    leases, lease_bytes: blocks and bytes that leases hold at most (and a quarter of the pool). readers, writers: threads
    that load and that store; None: by the number of cores. queue: batches that may wait.
    """

    namespace: str = setting("default", text)
    model: str = setting("", text)
    revision: str = setting("", text)
    dtype: str = setting("", text)
    layout: str = setting("", text)
    lease: float = setting(10.0, seconds)
    leases: int = setting(4096, count)
    lease_bytes: int = setting(1 << 30, _bytes)
    readers: int | None = setting(None, _threads)
    writers: int | None = setting(None, _threads)
    queue: int = setting(4096, count)


class KvistConnector:
    """What LMCache's NativeConnectorL2Adapter drives. Keys are texts of 1 to 4096 bytes, values memoryviews of any length.

    Submitting returns the number of a future and never waits; drain_completions() hands out (future, ok, error, by key)
    when event_fd() is readable. Every future ends within the deadline. A batch that cannot be done, because there is no node
    say, ends as "not found" or "not stored"; nothing raises because of the node. ValueError: a setting that cannot be.
    FailedPrecondition: after close(). Forked: in a child of the process that made it. ResourceExhausted: many thousand
    futures have ended and nobody drains them.
    """

    def __init__(self, **adapter_params: Any) -> None:
        settings = LMCacheSettings.read(adapter_params, door="kvist.lmcache")
        self._link = Link(settings, _identity(settings), name=f"lmcache {settings.namespace}", log=_log)
        self._leases = Leases(settings.lease, settings.leases)
        values = Values(self._link, self._leases, settings.domain, settings.lease_bytes)
        self._store, self._load, self._find, self._remove = values.store, values.load, values.find, values.remove
        try:
            self._crew = Crew(
                readers=settings.readers or min(_cores(), 4),
                writers=settings.writers or min(_cores(), 2),
                bound=settings.queue,
                deadline=settings.deadline,
                note=_notes(self._link),
                upkeep=self._leases.expire,
            )
        except BaseException:
            self._link.close()
            raise
        self._parts = (os.getpid(), self._crew, self._leases, self._link)
        self._finalizer = weakref.finalize(self, _collected, *self._parts)
        self._finalizer.atexit = False  # then _close_all() is there
        _open.add(self)

    def event_fd(self) -> int:
        """The descriptor that is readable while drain_completions() has something to give. It stays ours."""
        return self._crew.event

    def submit_batch_set(self, keys: list[str], buffers: list[memoryview]) -> int:
        """Stores values; one that is there already is left as it is. ok: all of them are stored."""
        return self._crew.write(self._store, list(keys), _views(keys, buffers))

    def submit_batch_get(self, keys: list[str], buffers: list[memoryview]) -> int:
        """Loads values into writable buffers. By key: whether it was there, with the buffer's length, and undamaged; where
        not, the buffer's bytes are anything."""
        return self._crew.read(self._load, list(keys), _views(keys, buffers))

    def submit_batch_exists(self, keys: list[str]) -> int:
        """By key: whether it is there. What is there is kept for a load that follows within the lease."""
        return self._crew.read(self._find, list(keys))

    def submit_batch_delete(self, keys: list[str]) -> int:
        """By key: whether it is gone now."""
        return self._crew.write(self._remove, list(keys))

    def drain_completions(self) -> list[Completion]:
        """Futures that have ended: (future, ok, why not, a truth value for each key)."""
        return self._crew.drain()

    def close(self) -> None:
        """Ends the threads, lets go of the pool, and closes the descriptor. Futures that have not ended never do. When it
        returns no buffer is touched any more. May be called again."""
        self._finalizer.detach()
        _open.discard(self)
        _close(*self._parts)

    @property
    def counts(self) -> dict[str, int]:
        """How often what went wrong, by reason: those of the link, and "queue_full", "late" (a deadline passed in the
        queue), "refused" (arguments), "internal" (no memory, say), "unleased" (found, but beyond what leases hold)."""
        return self._link.counts

    @property
    def state(self) -> dict[str, Any]:
        """For people and tests: the link's state, open batches, and blocks and bytes under a lease."""
        blocks, nbytes = self._leases.held
        return {
            "link": self._link.state,
            "open": self._crew.open,
            "leased_blocks": blocks,
            "leased_bytes": nbytes,
            "leases_expired": self._leases.expired,
        }


def _notes(link: Link) -> Callable[[str, str], None]:
    """Counts at the link, and says a line now and then. A function of the link's, because the threads must not hold the
    connector: one that is dropped shall end."""

    def note(reason: str, line: str) -> None:
        link.count(reason)
        link.notices.say(reason, line)

    return note


# Closed at the interpreter's exit: no thread may be within the library when the interpreter goes.
_open: weakref.WeakSet[KvistConnector] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for connector in list(_open):
        connector.close()


def _collected(*parts: Any) -> None:
    """A connector was dropped without close(). Whatever thread was just allocating runs this, with whatever locks, ours
    perhaps among them; so another does it."""
    try:
        threading.Thread(target=_close, args=parts, name="kvist-lmcache-close", daemon=True).start()
    except RuntimeError:  # no thread is to be had: the connector's own threads stay, idle
        _log.warning("Kvist: a connector was dropped without being closed, and its threads stay")


def _close(process: int, crew: Crew, leases: Leases, link: Link) -> None:
    crew.close()
    if os.getpid() == process:  # a child has neither the threads nor the connection
        leases.clear()
        link.close()


def _views(keys: list[str], buffers: list[memoryview]) -> list[memoryview]:
    views = [buffer if isinstance(buffer, memoryview) else memoryview(buffer) for buffer in buffers]
    if len(views) != len(keys):
        raise ValueError(f"{len(keys)} keys with {len(views)} buffers")
    # LMCache's are bytes in one dimension already, of a format that cannot be cast.
    return [view if view.itemsize == 1 and view.ndim == 1 else view.cast("B") for view in views]


def _identity(settings: LMCacheSettings) -> Identity:
    """LMCache's key names model, rank, object group, tokens and salt. What it leaves out must be equal between servers that
    share values: how its version lays a value out, and what only the operator knows."""
    try:
        version = importlib.metadata.version("lmcache")
    except importlib.metadata.PackageNotFoundError:
        version = ""
    told = (settings.model, settings.revision, settings.dtype, settings.layout, version)
    # An alias belongs to one identity. Servers that differ each need their own, or the second could not open its.
    mark = hashlib.sha256("\0".join((settings.namespace, *told)).encode()).hexdigest()[:8]
    return Identity(
        f"lmcache/{settings.namespace}/{mark}",
        settings.model or "named by each key",
        PARTS,
        revision=settings.revision,
        kv_dtype=settings.dtype,
        layout=settings.layout,
        key_kind="opaque",
        extra={"door": "lmcache", "namespace": settings.namespace, "lmcache": version},
    )
