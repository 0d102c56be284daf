"""The asyncio form: any method of the store as async_<name>, on the loop's default executor. The calls themselves give the
GIL up, so that as many run at once as the executor has threads."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

from kvist.mooncake import MooncakeDistributedStore


class MooncakeDistributedStoreAsync(MooncakeDistributedStore):
    """MooncakeDistributedStore; ``await store.async_get(key)`` is ``store.get(key)`` that does not block the loop."""

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        called = name.removeprefix("async_")
        plain = getattr(type(self), called, None) if called != name else None
        if not callable(plain):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

        @functools.wraps(plain)
        async def run(*args: Any, **kwargs: Any) -> Any:
            work = functools.partial(plain, self, *args, **kwargs)
            return await asyncio.get_running_loop().run_in_executor(None, work)

        return run
