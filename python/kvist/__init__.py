"""Kvist: one pool of KV-cache blocks for the LLM engines of a host.

    with kvist.Node(memory="4GiB") as node, node.client() as client:
        space = client.open(kvist.Identity("demo", "my/model", [kvist.Part("kv", block_bytes="64KiB")]))
        chain = space.digests([b"key 0", b"key 1"])          # names, once a key
        space.put(chain, blocks).check()                      # one buffer of 2 * 64 KiB, or a buffer for each block
        with space.prefix(chain) as found:                    # the longest usable prefix, pinned, without a copy
            views = [memoryview(block) for block in found.blocks]

The guide is docs/python.md. ``python -m kvist.doctor`` checks the machine. Neither numpy nor torch is needed; both can look
at blocks without a copy. kvist.aio has the asyncio form.
"""

from kvist._identity import Identity, Part
from kvist._kvist import (
    Addresses,
    Batch,
    Block,
    Client,
    Digests,
    Pages,
    Pinned,
    Prefix,
    Results,
    Room,
    Space,
    Submitted,
    version as __version__,
)
from kvist._types import (
    AlreadyExists,
    Code,
    DataLoss,
    DeadlineExceeded,
    Error,
    FailedPrecondition,
    Forked,
    InvalidArgument,
    Listing,
    NotFound,
    PermissionDenied,
    PinsLeftWarning,
    ResourceExhausted,
    Run,
    Stats,
    Unauthenticated,
    Unavailable,
)
from kvist.node import Node

__all__ = [
    "Addresses",
    "AlreadyExists",
    "Batch",
    "Block",
    "Client",
    "Code",
    "DataLoss",
    "DeadlineExceeded",
    "Digests",
    "Error",
    "FailedPrecondition",
    "Forked",
    "Identity",
    "InvalidArgument",
    "Listing",
    "Node",
    "NotFound",
    "Pages",
    "Part",
    "PermissionDenied",
    "Pinned",
    "PinsLeftWarning",
    "Prefix",
    "ResourceExhausted",
    "Results",
    "Room",
    "Run",
    "Space",
    "Stats",
    "Submitted",
    "Unauthenticated",
    "Unavailable",
    "__version__",
]
