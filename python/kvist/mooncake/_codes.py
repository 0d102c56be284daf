"""The result codes of the Mooncake-shaped module, and which of Kvist's becomes which."""

from __future__ import annotations

from kvist._types import Code

OK = 0
INTERNAL = -1
NO_AVAILABLE_HANDLE = -200
INVALID_PARAMS = -600
OBJECT_NOT_FOUND = -704
OBJECT_ALREADY_EXISTS = -705
TRANSFER_FAIL = -800
RPC_FAIL = -900
RPC_TIMEOUT = -901
DFS_SERVICE_UNAVAILABLE = -1601

#: What a block's result is called here, by the number of its kvist.Code. A value that is there already was put before: 0.
#: Callers take some codes, -800 say, to mean that their memory may still be read or written after the call (vLLM's then never
#: uses it, or the store, again). With us nothing is under way when a call has returned, so those are not used for that.
CODES = {
    Code.OK: OK,
    Code.ALREADY_EXISTS: OK,
    Code.INVALID_ARGUMENT: INVALID_PARAMS,
    Code.OUT_OF_RANGE: INVALID_PARAMS,
    Code.NOT_FOUND: OBJECT_NOT_FOUND,
    Code.RESOURCE_EXHAUSTED: NO_AVAILABLE_HANDLE,
    Code.DATA_LOSS: OBJECT_NOT_FOUND,  # it was not handed out, and the node takes it away
    Code.ABORTED: NO_AVAILABLE_HANDLE,  # the node took the room back
    Code.FAILED_PRECONDITION: OBJECT_NOT_FOUND,  # the namespace was flushed during the call
    Code.DEADLINE_EXCEEDED: RPC_TIMEOUT,
    Code.UNAVAILABLE: RPC_FAIL,
    Code.PERMISSION_DENIED: RPC_FAIL,
    Code.UNAUTHENTICATED: RPC_FAIL,
    Code.CANCELLED: RPC_FAIL,
    Code.INTERNAL: INTERNAL,
    Code.UNKNOWN: INTERNAL,
    Code.UNIMPLEMENTED: INTERNAL,
}

#: The same of reads: a key that cannot be was never put.
READ_CODES = {**CODES, Code.INVALID_ARGUMENT: OBJECT_NOT_FOUND}
