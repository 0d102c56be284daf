"""Kvist by the names of Mooncake Store's Python module: programs written for `mooncake.store` work with a Kvist node.

    from kvist.mooncake import MooncakeDistributedStore      # instead of: from mooncake.store import ...

    store = MooncakeDistributedStore()
    store.setup("localhost", "P2PHANDSHAKE", 0, 0, "tcp", "", "")     # 0; the node is found by $KVIST_SOCKET
    store.put("key", b"value")                                        # 0
    store.get("key")                                                  # b"value"

Without a change to the program: ``python -m kvist.mooncake program.py``, or
``PYTHONPATH=$(python -m kvist.mooncake --path)`` for it and all that it starts, or as_mooncake() before its imports.
docs/migrating-from-mooncake.md says what maps, what differs, and why. What Kvist means nothing by raises Unsupported. No
call raises because of the node, and none waits longer than its deadline.
"""

from __future__ import annotations

import importlib
import os
import sys
import types


from kvist._kvist import BufferHandle
from kvist.mooncake._buffers import BufferLease, BufferPool, MooncakeHostMemAllocator
from kvist.mooncake._config import ObjectDataType, ReplicaStatus, ReplicateConfig, SoftPinAction, Unsupported
from kvist.mooncake._tensors import Tensors, tensor_metadata_size as _tensor_metadata_size

RegisteredBufferPool = BufferPool
RegisteredBufferLease = BufferLease


class MooncakeDistributedStore(Tensors):
    """A store: setup() it once, use it from any thread, close() it.

    Keys are str or bytes (UTF-8), of any length. Values are bytes, or whatever has a buffer: the bytes that it shows. The
    first value of a key stays; upsert() replaces. A call before setup(), after close(), or that the node does not answer
    returns a code (or b"", None): -600 not set up, or an argument that cannot be; -704 missing; -200 no room; -900 no node;
    -901 the deadline (2 s, the setting "deadline") came first. Wrong types are TypeError.
    """


def as_mooncake() -> None:
    """Makes ``import mooncake.store`` (and ``mooncake.async_store``) mean this module, for what is imported from now on in
    this process. Other parts of an installed `mooncake` stay what they are. RuntimeError: mooncake.store was imported."""
    this = sys.modules[__name__]
    if sys.modules.get("mooncake.store", this) is not this:
        raise RuntimeError("mooncake.store was imported already: call kvist.mooncake.as_mooncake() before whatever imports it")
    # Before the package itself, which imports its store; the real one's library then is never loaded.
    asynchronous = importlib.import_module("kvist.mooncake.async_store")
    modules = {"store": this, "async_store": asynchronous}
    sys.modules.update({f"mooncake.{name}": module for name, module in modules.items()})
    try:
        parent = importlib.import_module("mooncake")
    except ImportError:
        parent = types.ModuleType("mooncake", "Stands where the package `mooncake` is not installed.")
        parent.__path__ = []
        sys.modules["mooncake"] = parent
    for name, module in modules.items():
        setattr(parent, name, module)


def shim_path() -> str:
    """A folder that, first in PYTHONPATH, makes ``import mooncake.store`` mean this module, in child processes too."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "shim")


__all__ = [
    "BufferHandle",
    "BufferLease",
    "BufferPool",
    "MooncakeDistributedStore",
    "MooncakeHostMemAllocator",
    "ObjectDataType",
    "RegisteredBufferLease",
    "RegisteredBufferPool",
    "ReplicaStatus",
    "ReplicateConfig",
    "SoftPinAction",
    "Unsupported",
    "as_mooncake",
    "shim_path",
]
