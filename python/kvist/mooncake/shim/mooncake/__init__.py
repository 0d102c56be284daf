"""Stands before an installed `mooncake`: its other parts are found, mooncake.store is kvist.mooncake."""

import pkgutil

from kvist.mooncake import BufferPool, RegisteredBufferPool

__path__ = pkgutil.extend_path(__path__, __name__)
__all__ = ["BufferPool", "RegisteredBufferPool"]
