"""The namespace behind a MooncakeDistributedStore: found, lost and found again, with a code for whatever fails."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from kvist import _door
from kvist._identity import Identity, Part
from kvist._kvist import Digests, Results, Space
from kvist._types import Code, Error, FailedPrecondition, PermissionDenied, PinsLeftWarning, Unauthenticated
from kvist.mooncake._codes import CODES, INTERNAL, INVALID_PARAMS, RPC_FAIL, RPC_TIMEOUT

log = logging.getLogger("kvist.mooncake")

_T = TypeVar("_T")
_NO_NAME = bytes(16)  # what Space.digests() gives for a key that cannot be one
_LONGEST_KEY = 4096  # bytes, of Kvist
# What a caller is told by a code of its own, or what was asked for on purpose: neither the node's nor the pool's fault.
_NO_TROUBLE = (Code.FAILED_PRECONDITION, Code.OUT_OF_RANGE, Code.INVALID_ARGUMENT)


@dataclasses.dataclass(frozen=True)
class Settings(_door.Settings):
    """late: setup() of a store whose node is not there yet returns 0 all the same: calls are -900 until it is."""

    late: bool = _door.setting(False, _door.flag)


def read_settings(given: object, master: object) -> Settings:
    """What `setup` was given for Kvist: a mapping or JSON text; without one $KVIST_MOONCAKE_SETTINGS, as JSON. `master` may
    be a node's socket ("unix:/run/kvist/node.sock" or an absolute path). ValueError says what is wrong."""
    if given is None:
        given = os.environ.get("KVIST_MOONCAKE_SETTINGS")
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise ValueError(f"kvist.mooncake: the settings are no JSON: {error}") from None
    if given is not None and not isinstance(given, Mapping):
        raise ValueError(f"kvist.mooncake: the settings must be an object with names and values, not {given!r}")
    settings = Settings.read(given, door="kvist.mooncake")
    if settings.socket is None and isinstance(master, str) and master.startswith(("unix:", "/")):
        settings = dataclasses.replace(settings, socket=master.removeprefix("unix:"))
    return settings


def identity_of(tenant: str) -> Identity:
    """All stores of one tenant share one namespace: values are what their keys say, whatever program put them."""
    if tenant == "default":
        return Identity("mooncake", "mooncake", [Part("value")], key_kind="opaque")
    # A tenant's name may be anything, an alias may not.
    name = hashlib.sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()
    return Identity(f"mooncake-{name[:16]}", "mooncake", [Part("value")], key_kind="opaque", extra={"tenant": name})


def key_list(keys: object) -> Sequence[Any]:
    """The keys of a batch. TypeError: no sequence, or a single key."""
    if isinstance(keys, (list, tuple)):
        return keys
    if hasattr(keys, "tolist") and not isinstance(keys, memoryview):
        keys = keys.tolist()  # an array
    if isinstance(keys, (str, bytes, bytearray, memoryview)) or not isinstance(keys, Sequence):
        raise TypeError(f"keys must be a list of str, not {type(keys).__name__}")
    return list(keys)


def names(space: Space, keys: Sequence[Any]) -> Digests:
    """The keys' names. A key that Kvist would find too long goes by its SHA-256, behind a byte that begins no text."""
    try:
        found = space.digests(keys)
        if _NO_NAME not in bytes(found):
            return found
        return space.digests([_short(key) for key in keys])
    except ValueError as error:
        if isinstance(error, Error):
            raise
        raise TypeError(f"keys are str, or bytes of UTF-8: {error}") from None


def key_bytes(key: Any) -> bytes:
    """A key as it is named: TypeError where it cannot be one."""
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError as error:
            raise TypeError(f"keys are str, or bytes of UTF-8: {error}") from None
    if isinstance(key, (bytes, bytearray, memoryview)):
        return bytes(key)
    raise TypeError(f"keys are str, or bytes of UTF-8, not {type(key).__name__}")


def _short(key: Any) -> Any:
    data = key_bytes(key)
    return key if len(data) <= _LONGEST_KEY else b"\xffmooncake" + hashlib.sha256(data).digest()


class Pool:
    """What a set up store works with. Any thread may use it. Nothing raises because of the node."""

    def __init__(self, settings: Settings, tenant: str) -> None:
        self.deadline = settings.deadline
        self._settings = settings
        self._identity = identity_of(tenant)
        self._lock = threading.Lock()
        self._closed = False
        self._link: _door.Link | None = None
        self._space: Space | None = None
        self._acquire(None)

    @property
    def ready(self) -> bool:
        """Whether there is a namespace to work with."""
        return self._space is not None

    @property
    def connected(self) -> bool:
        link = self._link
        client = link.client if link is not None else None
        return client is not None and client.connected

    @property
    def counts(self) -> dict[str, int]:
        link = self._link
        return link.counts if link is not None else {}

    @property
    def state(self) -> str:
        link = self._link
        return link.state if link is not None else "not connected yet"

    def call(self, work: Callable[[Space, float], _T]) -> _T | int:
        """work(space, timeout), again where the namespace was flushed, or the process forked, since. An int: the code of what
        came between."""
        space: Space | int | None = self._space
        end = None
        while True:
            if space is None:
                space = self._acquire(None)
            if isinstance(space, int):
                return space
            try:
                return work(space, self.deadline)
            except FailedPrecondition:
                now = time.monotonic()
                end = now + self.deadline if end is None else end
                space = self._acquire(space) if now < end else RPC_TIMEOUT
            except Error as error:
                return self._failed(error)

    def note(self, results: Results) -> None:
        """Counts, and tells of, what the node or the pool is to blame for."""
        link = self._link
        if link is not None:
            link.tally(results, but=_NO_TROUBLE)

    def say(self, kind: str, message: str) -> None:
        """A warning, at most one in ten seconds of its kind."""
        link = self._link
        if link is not None:
            link.notices.say(kind, message)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            link, self._link, self._space = self._link, None, None
        if link is not None:
            with contextlib.suppress(PinsLeftWarning):  # of a call in another thread; an exception where warnings are
                link.close()

    def _acquire(self, used_up: Space | None) -> Space | int:
        """A namespace other than the used up one. An int: there is none."""
        if not self._lock.acquire(timeout=self.deadline):
            return RPC_TIMEOUT  # another thread waits for the node with it
        try:
            if self._closed:
                return INVALID_PARAMS
            if self._space is not None and self._space is not used_up:
                return self._space
            if self._link is None:
                first = min(2.0, max(0.2, self.deadline))
                self._link = _door.Link(self._settings, self._identity, name="mooncake", log=log, first=first)
            elif used_up is not None and self._space is used_up:
                self._link.reopen(self._identity)  # where that fails the link goes on trying, and nobody else waits for it
            self._space = self._link.space()
            return RPC_FAIL if self._space is None else self._space
        finally:
            self._lock.release()

    def _failed(self, error: Error) -> int:
        link = self._link
        if link is None:
            return INVALID_PARAMS  # closed meanwhile
        link.failed(error)
        if isinstance(error, (Unauthenticated, PermissionDenied)):
            self._space = None  # the link looks for a better one
        return CODES.get(error.code, INTERNAL)

    def forget(self) -> None:
        """In a forked child: what there was stays the parent's, and the next call connects anew."""
        self._lock = threading.Lock()
        self._link, self._space = None, None
