"""What every door to an engine has in common: its settings, and a link to a node that may come late, stall, or go.

    settings = Settings.read({"socket": "/run/kvist/node.sock", "deadline": "50ms"}, door="kvist.vllm")
    link = Link(settings, identity, name="vllm worker 0", log=logger)
    space = link.space()                       # None: there is no node now; that is counted, and nothing waited
    if space is not None:
        try:
            results = link.tally(space.get(chain, pages[ids], timeout=settings.deadline))
        except kvist.Error as error:
            link.failed(error)                 # counted by reason, told in one line each ten seconds, mended behind it

An engine must run as well without a node as with one, so nothing here raises because of the node, and after the first
bounded attempt to connect nothing waits for it: a daemon thread tries again, less and less often.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar, cast

from kvist._identity import Identity
from kvist._kvist import Client, Results, Space
from kvist._types import Code, Error, FailedPrecondition, Forked, PermissionDenied, Unauthenticated

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}
_VERIFY = ("never", "sampled", "always")
_FAILURES = {
    Code.DEADLINE_EXCEEDED: "blocks were not done by the deadline: the node is stalled or overloaded",
    Code.RESOURCE_EXHAUSTED: "the pool has no room that is not pinned, or this client is over its quota",
    Code.UNAVAILABLE: "the node is not there",
    Code.DATA_LOSS: "blocks failed their verification and were not used",
    Code.FAILED_PRECONDITION: "the namespace was flushed",
    Code.OUT_OF_RANGE: "blocks have another length than this engine's",
    Code.INVALID_ARGUMENT: "blocks were refused as they cannot be",
    Code.ABORTED: "blocks were taken back by the node before they were stored",
    Code.CANCELLED: "the client was closed during a call",
    Code.INTERNAL: "the node reports a defect of its own",
}
_Self = TypeVar("_Self", bound="Settings")


def seconds(value: object) -> float:
    """A span of time from a number of seconds or a text with a unit: 2, 0.5, "50ms", "2s", "1m"."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        span = float(value)
    else:
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(us|ms|s|m)", value) if isinstance(value, str) else None
        if found is None:
            raise ValueError('must be seconds, or text with a unit like "50ms" or "2s"')
        span = float(found.group(1)) * _UNITS[found.group(2)]
    if not 0 < span <= 3600:
        raise ValueError("must be more than 0 and at most an hour")
    return span


def flag(value: object) -> bool:
    """True or false, as JSON has them or as text."""
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return value == "true"
    raise ValueError("must be true or false")


def text(value: object) -> str:
    """A text without NUL."""
    if isinstance(value, str) and "\0" not in value:
        return value
    raise ValueError("must be a text")


def count(value: object) -> int:
    """A whole number from 1 on."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise ValueError("must be a whole number from 1 on")


def size(value: object) -> int | str:
    """Bytes, or text with a binary unit ("64MiB"), which the client reads."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]+(?:\.[0-9]+)?[KMGT]iB", value):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise ValueError('must be bytes, or text with a unit like "64MiB"')


def one_of(*choices: str) -> Callable[[object], str]:
    """One of these texts."""

    def read(value: object) -> str:
        if value in choices:
            return cast(str, value)
        raise ValueError("must be " + " or ".join(map(repr, choices)))

    return read


def setting(default: Any, read: Callable[[object], Any]) -> Any:
    """A field of Settings: its value where none is given, and how a given one is read (ValueError: what is wrong)."""
    return dataclasses.field(default=default, metadata={"read": read})


@dataclasses.dataclass(frozen=True)
class Settings:
    """What an engine's operator can set for a door. A door with more of its own adds fields in a subclass.

    socket: of the node; None: $KVIST_SOCKET, else where a node listens by default. token_file: a file whose first line is
    the token, where the node asks for one. domain: of a node with several. deadline: seconds that one call into the pool
    may take. verify: which reads check the block's checksum. pins: blocks held in place at once. stock: bytes of empty
    slots kept ready for puts.
    """

    socket: str | None = setting(None, text)
    token_file: str | None = setting(None, text)
    domain: str = setting("", text)
    deadline: float = setting(2.0, seconds)
    verify: str = setting("sampled", one_of(*_VERIFY))
    pins: int = setting(16384, count)
    stock: int | str = setting("64MiB", size)

    @classmethod
    def read(cls: type[_Self], given: Mapping[str, Any] | None, *, door: str, ignored: frozenset[str] = frozenset()) -> _Self:
        """From what the engine's configuration holds for us. ValueError: an unknown key, with the nearest known one, or a
        value that cannot be, by its key. None stands for the default. ignored: keys that are the engine's own."""
        fields = {field.name: field for field in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for key, value in (given or {}).items():
            if key in ignored or (key in fields and value is None):
                continue
            if key not in fields:
                near = difflib.get_close_matches(str(key), fields, n=1)
                hint = f"did you mean {near[0]!r}?" if near else "known are " + ", ".join(sorted(fields))
                raise ValueError(f"{door}: there is no setting {key!r}; {hint}")
            try:
                values[key] = fields[key].metadata["read"](value)
            except ValueError as error:
                raise ValueError(f"{door}: {key} {error}, not {value!r}") from None
        return cls(**values)

    def token(self) -> str:
        """The token, or "" without a file. Read at each call: a new token needs no restart. OSError, UnicodeDecodeError."""
        if self.token_file is None:
            return ""
        with open(self.token_file, encoding="utf-8") as file:
            return file.readline(4096).strip()


class Notices:
    """Log lines that come at most once in `every` seconds each kind, with the number of those left out. Any thread."""

    def __init__(self, log: logging.Logger, every: float = 10.0) -> None:
        self._log, self._every = log, every
        self._lock = threading.Lock()
        self._kinds: dict[str, tuple[float, int]] = {}  # kind -> when last told, how many were left out since

    def say(self, kind: str, message: str, level: int = logging.WARNING) -> None:
        now = time.monotonic()
        with self._lock:
            told, left_out = self._kinds.get(kind, (-self._every, 0))
            if now - told < self._every:
                self._kinds[kind] = (told, left_out + 1)
                return
            self._kinds[kind] = (now, 0)
        more = f" ({left_out} more like it in the last {now - told:.0f} s)" if left_out else ""
        self._log.log(level, "%s%s", message, more)

    def forget(self, kind: str) -> None:
        """The next of this kind is told at once: what it was about has been mended since."""
        with self._lock:
            self._kinds.pop(kind, None)


class Link:
    """A namespace of a node that may not be there. Any thread may use it.

    identity: of the namespace; name: how `kvist clients` shows us; log: where to say what an operator must know. The
    constructor tries once, for at most `first` seconds; from then on a daemon thread connects and opens whenever that is
    due, with pauses from half a second to `longest`. A client whose node went away connects again by itself.
    """

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        *,
        name: str,
        log: logging.Logger,
        first: float = 2.0,
        longest: float = 10.0,
    ) -> None:
        self._settings, self._identity, self._name = settings, identity, name
        self._first, self._longest = first, longest
        self.notices = Notices(log)
        self._due = threading.Condition()
        self._client: Client | None = None
        self._space: Space | None = None
        self._state = "not connected yet"
        self._counts: dict[str, int] = {}
        self._closed = False
        self._rest = self._rested_at = 0.0  # how long puts are left out; until when
        self._process = os.getpid()
        self._thread: threading.Thread | None = None
        if not self._connect():
            self._mend()

    @property
    def client(self) -> Client | None:
        """The client behind it, for its stats and its completions; None as long as there has been no node."""
        return self._client

    @property
    def identity(self) -> Identity:
        """Of the namespace that is open, or will be."""
        return self._identity

    @property
    def state(self) -> str:
        """For people: "connected", or why not."""
        client = self._client
        if self._space is not None and client is not None and not client.closed:
            return "connected" if client.connected else "the node went away"
        return self._state

    @property
    def counts(self) -> dict[str, int]:
        """How often what failed, by reason: the codes of kvist.Code in small letters. A copy."""
        with self._due:
            return dict(self._counts)

    def space(self) -> Space | None:
        """What to work with now; None: nothing, which counts as "unavailable"."""
        space = self._space
        if space is None:
            self.count("unavailable")
        return space

    def count(self, reason: str, by: int = 1) -> None:
        """Adds to `counts`."""
        with self._due:
            self._counts[reason] = self._counts.get(reason, 0) + by

    def failed(self, error: Error) -> None:
        """What to do with an error of a call on space(): it is counted and told. Where the namespace was flushed, the
        process forked, or the node no longer knows us, a thread opens it anew; until then space() is None."""
        reason = error.code.name.lower()
        self.count(reason)
        self.notices.say(reason, f"Kvist: {error}; the engine goes on without")
        if isinstance(error, (FailedPrecondition, Forked, Unauthenticated, PermissionDenied)):
            self._space = None
            self._mend()

    def tally(self, results: Results, *, put: bool = False, but: Collection[Code] = ()) -> Results:
        """Counts the blocks of a call that failed, by reason; a miss and a block that is there already are no failures. A call
        that ran to its end does not raise: a stalled node or a full pool shows here. put: it needed the node's answer, so how
        it went decides on rests(). but: codes that this caller expects, and sees to. Returns what it was given."""
        if not results.ok:
            for code in _FAILURES:
                failed = 0 if code in but else results.count(code)
                if failed:
                    reason = code.name.lower()
                    self.count(reason, failed)
                    self.notices.say(reason, f"Kvist: {_FAILURES[code]}; the engine goes on without these blocks")
                    if put and code is Code.DEADLINE_EXCEEDED:
                        self.rest()
        elif put:
            self.went_well()
        return results

    def rests(self) -> bool:
        """Whether calls that need the node's answer (puts) had better be left out now. Counts as "resting". Reads of what is
        there need no answer."""
        if time.monotonic() >= self._rested_at:
            return False
        self.count("resting")
        return True

    def rest(self) -> None:
        """A put was late or cost its caller too much time: none is tried for half a second, and longer each time until one
        went well. tally() calls it for those that met their deadline. Several that were under way at once count as one."""
        with self._due:
            now = time.monotonic()
            if now >= self._rested_at:
                self._rest = min(max(0.5, 2 * self._rest), self._longest)
                self._rested_at = now + self._rest

    def went_well(self) -> None:
        """The next rest is a short one again; one that has begun is kept to its end. tally() calls it too."""
        self._rest = 0.0

    def reopen(self, identity: Identity) -> None:
        """Another namespace from now on: after a weight update, say. What was read or put through the old one has ended
        before anything goes through the new one only if the caller sees to it."""
        with self._due:
            self._identity = identity
            self._space = None
        if not self._open():
            self._mend()

    def close(self) -> None:
        """Ends the thread and says goodbye to the node. May be called again."""
        with self._due:
            self._closed = True
            self._due.notify_all()
            thread, client = self._thread, self._client
            self._space = None
            self._state = "closed"
        if thread is not None and thread is not threading.current_thread():
            thread.join(self._first + 1)
        if client is not None:
            client.close()

    def _connect(self) -> bool:
        """One attempt to have a client and the namespace."""
        if self._client is None:
            try:
                made = Client(
                    self._settings.socket,
                    domain=self._settings.domain,
                    token=self._settings.token() or None,
                    name=self._name,
                    verify=self._settings.verify,  # type: ignore[arg-type]
                    pins=self._settings.pins,
                    stock=self._settings.stock,
                    timeout=self._first,
                )
            except (Error, OSError, UnicodeDecodeError) as error:
                return self._no_luck(error)
            with self._due:
                if self._closed:
                    made.close()
                    return True
                self._client = made
        return self._open()

    def _open(self) -> bool:
        client, identity = self._client, self._identity
        if client is None:
            return False
        try:
            space = client.open(identity, timeout=self._first)
        except Error as error:
            if isinstance(error, (Forked, Unauthenticated, PermissionDenied)) or client.closed:
                self._client = None  # the next attempt begins with a new one, and reads the token anew
            return self._no_luck(error)
        with self._due:
            if self._closed or identity is not self._identity:
                return self._closed
            self._space = space
            mended = list(self._counts)
        for reason in mended:
            self.notices.forget(reason)
        return True

    def _no_luck(self, error: Exception) -> bool:
        self._state = str(error)
        reason = error.code.name.lower() if isinstance(error, Error) else "token_file"
        self.count(reason)
        self.notices.say(reason, f"Kvist: no pool yet: {error}; the engine runs without, and this is tried again")
        return False

    def _mend(self) -> None:
        """Sees to it that a thread of this process is at work."""
        with self._due:
            if self._process != os.getpid():  # the thread and the client stayed with the parent
                self._process, self._thread, self._client = os.getpid(), None, None
            if self._closed or (self._thread is not None and self._thread.is_alive()):
                return
            self._thread = threading.Thread(target=self._run, name="kvist-link", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        pause = 0.5
        while True:
            with self._due:
                if not self._closed and self._space is None:
                    self._due.wait(pause)
                if self._closed or self._space is not None:
                    self._thread = None
                    return
            if self._connect():
                self.notices.say("connected", f"Kvist: connected, {self._name}", logging.INFO)
            pause = min(pause * 2, self._longest)
