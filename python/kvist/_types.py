"""The small values of kvist: result codes, exceptions, and what the extension hands out as named tuples."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Code(enum.IntEnum):
    """How a call, or one block of it, ended. The numbers are the canonical ones of gRPC."""

    OK = 0  # done
    CANCELLED = 1  # the client was closed first
    UNKNOWN = 2  # the node answered something that this version does not know
    INVALID_ARGUMENT = 3  # a length, part or name that cannot be
    DEADLINE_EXCEEDED = 4  # the time was up before its turn, or before it came from disk; what was sent may take effect
    NOT_FOUND = 5  # a miss: never put, evicted, being put, or on a disk that is not read now
    ALREADY_EXISTS = 6  # put of a block that is there: nothing was written
    PERMISSION_DENIED = 7  # refused by token, credentials or mode
    RESOURCE_EXHAUSTED = 8  # a bound was reached: pool full of pinned blocks, or this client over its quota
    FAILED_PRECONDITION = 9  # flushed namespace, absent parent under strict, closed client
    ABORTED = 10  # lost a race; trying again may work
    OUT_OF_RANGE = 11  # the block has another length than its destination
    UNIMPLEMENTED = 12  # this build, or the node, cannot do it
    INTERNAL = 13  # a defect of Kvist
    UNAVAILABLE = 14  # no node, or it went away before it answered
    DATA_LOSS = 15  # the bytes failed their verification and were not handed out
    UNAUTHENTICATED = 16  # no token, or a wrong one


class Error(Exception):
    """A whole call failed. ``code`` says how, the text says what to do. What becomes of single blocks is in Results."""

    code: Code = Code.UNKNOWN

    def __init__(self, message: str = "", code: Code | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code

    def __reduce__(self) -> tuple[type[Error], tuple[str, Code]]:
        return type(self), (str(self), self.code)


class InvalidArgument(Error, ValueError):
    """The call can never work as it was made."""

    code = Code.INVALID_ARGUMENT


class DeadlineExceeded(Error):
    """The timeout came first."""

    code = Code.DEADLINE_EXCEEDED


class NotFound(Error):
    """No such block, namespace or client."""

    code = Code.NOT_FOUND


class AlreadyExists(Error):
    """It is there already."""

    code = Code.ALREADY_EXISTS


class PermissionDenied(Error):
    """Refused by token, peer credentials or mode."""

    code = Code.PERMISSION_DENIED


class Unauthenticated(Error):
    """No token, or a wrong one."""

    code = Code.UNAUTHENTICATED


class ResourceExhausted(Error):
    """A bound was reached; the text names it."""

    code = Code.RESOURCE_EXHAUSTED


class FailedPrecondition(Error):
    """The state forbids it: a flushed namespace, a closed client."""

    code = Code.FAILED_PRECONDITION


class Forked(FailedPrecondition):
    """This process is a fork of the one that made the object: connect again in it."""


class Unavailable(Error):
    """There is no node now; a client that had one reconnects by itself."""

    code = Code.UNAVAILABLE


class DataLoss(Error):
    """Bytes failed their verification; they were not handed out."""

    code = Code.DATA_LOSS


class PinsLeftWarning(RuntimeWarning):
    """A client was closed while objects or views over pool memory were left. Make it an error in tests:
    ``warnings.simplefilter("error", kvist.PinsLeftWarning)``."""


_CLASSES = {cls.code: cls for cls in Error.__subclasses__()}  # Forked is not among them: its base has the code


def error_class(code: Code) -> type[Error]:
    """The exception of a code: a subclass of Error, or Error itself for codes that have none."""
    return _CLASSES.get(code, Error)


class Run(NamedTuple):
    """A stretch of positions that a look-up found in one place."""

    begin: int  # index into the call's positions
    end: int
    part_mask: int  # bit p: part p is there at each of them
    source: str  # "dram"; "disk": some of it is on disk only
    predicted_us: int  # microseconds until the bytes could be used


class Stats(NamedTuple):
    """What a client has done since it connected. Bytes and blocks are counts."""

    hits: int
    misses: int
    bytes_got: int
    bytes_put: int
    blocks_put: int
    already_there: int
    verified: int
    corrupt: int
    pins_refused: int
    put_refused: int
    unavailable: int
    deadline_exceeded: int
    reconnects: int
    reports_dropped: int  # blocks that failed their verification, and of which the node was not told
    brought: int = 0  # blocks that a read waited for while they came from disk
    bring_failed: int = 0  # and that it did not get: lost, late, no room, or a disk that is not read


class Listing(NamedTuple):
    """A block as Space.list() tells of it."""

    position: bytes  # 16 bytes, as in Digests
    parent: bytes | None
    part: int
    nbytes: int
    depth: int
    children: int
    resident: bool  # has its bytes in DRAM
    on_disk: bool = False  # a copy of them is on disk. Neither: known only as somebody's parent
