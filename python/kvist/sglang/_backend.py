"""KvistHiCache: SGLang's HiCacheStorage over a pool of Kvist.

A call copies within its own time, a batch in one call into Kvist with the GIL released, and nothing goes on behind it. So a
prefetch that SGLang ends (best_effort, timeout) has nothing left to cancel once its call is back, and its host memory can be
given away at once. What a batch may take is bounded by the setting `deadline`, with a node that is gone, stopped or full too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import kvist
from kvist._door import Link, Notices
from kvist.sglang import _hits
from kvist.sglang._figures import Figures
from kvist.sglang._identity import (
    FOREIGN,
    Place,
    Pool,
    SglangSettings,
    identity_of,
    make_pool,
    splits,
    weight_version,
)
from kvist.sglang._pages import pages_of
from sglang.srt.mem_cache import hicache_storage

_log = logging.getLogger("kvist.sglang")
_BATCH = 128  # pages a call into the pool, each with the whole deadline; SGLang's own STORAGE_BATCH_SIZE
_KV = "kv"
_THERE = (int(kvist.Code.OK), int(kvist.Code.ALREADY_EXISTS))

# What a put is given of some pages of its batch, or all of them: for each part its blocks.
_Take = Callable[[Sequence[int] | None], list[Any]]


class _Open(NamedTuple):
    """The namespace that belongs to the pools that are registered."""

    link: Link
    identity: kvist.Identity
    pools: dict[str, Pool]
    weights: str  # SGLang's name of the weights that its pages are of

    def space(self) -> kvist.Space | None:
        """None: no node now, or this is about pools or weights that are not SGLang's any more."""
        space = self.link.space()
        return space if space is not None and space.identity.alias == self.identity.alias else None


class _Before(NamedTuple):
    """What lies before the first page of a call in its sequence."""

    pages: int
    last: str | None  # the last one's key


class KvistHiCache(hicache_storage.HiCacheStorage):
    """Pages of SGLang's host pools in a Kvist node of the same host.

    storage_config: SGLang's HiCacheStorageConfig; its extra_config holds the settings (kvist.sglang._identity.SglangSettings).
    ValueError at once: a setting that is not known, or cannot be. A pool is looked at when it is registered; ValueError then:
    one whose pages cannot be stored. The namespace is opened when SGLang has registered its pools, or by the first call.

    No call raises because of the node: pages that cannot be had are misses, pages that cannot be stored are False, and
    `counts` says why. Threads: any. One object for each rank's process.
    """

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        extra = dict(getattr(storage_config, "extra_config", None) or {})
        self._settings = SglangSettings.read(extra, door="kvist.sglang", ignored=FOREIGN)
        self._place = Place.of(storage_config)
        self._model = str(getattr(storage_config, "model_name", None) or "")
        self._figures = Figures(bool(getattr(storage_config, "enable_storage_metrics", False)))
        self._notices = Notices(_log)
        self._lock = threading.Lock()
        self._pools: dict[str, Pool] = {}
        self._link: Link | None = None
        self._open: _Open | None = None
        self._closed = False
        self._told_of_prefixes = False

    # ---- host pools ----

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """The anchor: what v1 calls are about. ValueError: its pages cannot be stored."""
        super().register_mem_pool_host(mem_pool_host)
        self._add(mem_pool_host, _KV)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """A pool by name, at any time: from then on the namespace is one that has its pages too. ValueError as above."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self._add(host_pool, str(host_pool_name))

    def on_host_pools_registered(self) -> None:
        """All pools are known: connects, for at most the time of Link's first attempt. ValueError: there is no namespace for
        them, as without a name of the model."""
        self._open_for(weight_version())

    def _add(self, host: Any, name: str) -> None:
        with self._lock:
            known = self._pools.get(name)
            if known is None or known.host is not host:
                pages = pages_of(host, splits(host, name, self._place))
                self._pools[name] = make_pool(host, name, self._place, pages)
                self._open = None

    def _work(self) -> _Open | None:
        """What to work with now; None: closed, no pool has pages, or there is no namespace for them."""
        now, weights = self._open, weight_version()
        if now is not None and now.weights == weights:
            return now
        try:
            return self._open_for(weights)
        except ValueError as error:
            self._notices.say("identity", f"Kvist: nothing is stored: {error}", logging.ERROR)
            return None

    def _open_for(self, weights: str) -> _Open | None:
        with self._lock:
            now = self._open
            if self._closed or not any(pool.pages for pool in self._pools.values()):
                return None
            if now is not None and now.weights == weights:
                return now
            identity, pools = identity_of(self._model, self._settings, self._place, self._pools)
            if self._link is None:
                self._link = Link(self._settings, identity, name=f"sglang tp{self._place.tp_rank}", log=_log)
            else:
                self._link.reopen(identity)
            self._open = _Open(self._link, identity, pools, weights)
            self._tell(self._open)
            return self._open

    def _tell(self, now: _Open) -> None:
        told = "; ".join(
            f"{name} as {', '.join(pool.own)} of {len(pool.all)} parts, {pool.pages.page_bytes * len(pool.own)} bytes a page, "
            f"{pool.pages.way}"
            for name, pool in now.pools.items()
            if pool.pages
        )
        _log.info("Kvist: %s: %s; %s", now.identity.alias, told, now.link.state)

    # ---- v1: the anchor pool ----

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        """How many pages from the first on can be read now, each on every rank. Moves and pins nothing."""
        found = self._pool(_KV)
        return self._leading(*found, keys) if found else 0

    def batch_get_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Reads pages to where host_indices (int64, page_size entries a page) says. False: that page has no valid content."""
        return self._get(_KV, keys, host_indices)

    def batch_set_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Stores pages, unless they are there. True: it is there now."""
        return self._set(_KV, keys, host_indices, _before(extra_info))

    # ---- v2: several pools ----

    def batch_exists_v2(self, keys: Sequence[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
        """The longest prefix that can be restored with all pools, each by its policy (see _hits), and what each has. A
        PoolTransferResult."""
        anchor, transfers = self._pools.get(_KV), list(pool_transfers or ())
        if anchor is not None and anchor.pages is None:  # it only counts slots: the others decide
            there = len(keys) if any(_policy(one) != "block_groups" for one in transfers) else 0
        else:
            there = self.batch_exists(keys, extra_info)
        hits: dict[Any, int] = {hicache_storage.PoolName.KV: there} if there else {}
        restorable = list(range(1, there + 1))
        for one in transfers:
            if not restorable:
                break
            if _policy(one) == "block_groups":
                reach = self._groups(one, keys)
            elif _policy(one) == "trailing_pages":
                good = _hits.windows(self._present(str(one.name), keys[:there]), max(1, len(one.keys or ())))
                reach = max(good, default=0)
                restorable = [pages for pages in restorable if pages in good]
            else:
                found = self._pool(str(one.name))
                reach = self._leading(*found, keys[:there]) if found else 0
                restorable = [pages for pages in restorable if pages <= reach]
            if reach:
                hits[one.name] = reach
        return hicache_storage.PoolTransferResult(restorable[-1] if restorable else 0, hits, restorable)

    def batch_get_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        """batch_get_v1 for each of several pools, by pool."""
        return {one.name: self._get(str(one.name), one.keys or [], one.host_indices) for one in transfers}

    def batch_set_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        """batch_set_v1 for each of several pools, by pool."""
        stored: dict[Any, list[bool]] = {}
        for one in transfers:
            # Only a pool that has all pages has chains; states and windows stand for themselves.
            chained = _policy(one) == "all_pages"
            before = _before(extra_info) if chained else None
            stored[one.name] = self._set(str(one.name), one.keys or [], one.host_indices, before, chained)
        return stored

    # ---- the old interface: flat pages of the anchor pool ----

    def exists(self, key: str) -> bool:
        """Whether a page can be read now, on every rank."""
        return self.batch_exists([key]) == 1

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """Reads a page into the tensor target_location and returns it; None: a miss."""
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys: Sequence[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        """get() for several: a tensor or None for each."""
        targets = list(target_locations or ())
        read = self._flat(keys, targets, lambda now, pool, take: self._read(now, pool, keys, take(None)))
        targets += [None] * (len(keys) - len(targets))
        return [target if ok else None for target, ok in zip(targets, read, strict=False)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Stores a page from the tensor `value`, in the order of the host pool's flat pages."""
        return self.batch_set([key], [value])

    def batch_set(
        self, keys: Sequence[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        """set() for several: whether all are there now."""
        pages = list(values or ())
        return all(self._flat(keys, pages, lambda now, pool, take: self._store(now, pool, keys, take, None)))

    # ---- the rest ----

    def clear(self) -> bool:
        """Forgets all pages of this namespace, of all ranks and of all engines that share it."""
        now = self._work()
        space = now.space() if now else None
        if now is None or space is None:
            return False
        try:
            space.flush(timeout=self._settings.deadline)
        except kvist.FailedPrecondition:
            pass  # another rank was first
        except kvist.Error as error:
            now.link.failed(error)
            return False
        now.link.reopen(now.identity)
        return True

    def get_stats(self) -> Any:
        """A StorageMetrics of the calls since the last time."""
        return self._figures.take()

    @property
    def counts(self) -> dict[str, int]:
        """How many pages and calls failed, by reason."""
        return self._link.counts if self._link else {}

    @property
    def state(self) -> str:
        """For people: "connected", or why not."""
        return self._link.state if self._link else "closed" if self._closed else "no host pool is registered"

    def close(self) -> None:
        """Says goodbye to the node; every call after it misses. SGLang does so when it detaches the backend."""
        with self._lock:
            self._closed = True
            self._open = None
            self._pools = {}
        if self._link is not None:
            self._link.close()

    # ---- how: looking up ----

    def _pool(self, name: str) -> tuple[_Open, Pool] | None:
        now = self._work()
        pool = now.pools.get(name) if now else None
        return (now, pool) if now is not None and pool is not None and pool.pages is not None else None

    def _leading(self, now: _Open, pool: Pool, keys: Sequence[str]) -> int:
        space = now.space()
        if space is None or not keys:
            return 0
        try:
            return len(space.prefix(space.digests(keys), hint=True, parts=pool.all, timeout=self._settings.deadline))
        except kvist.Error as error:
            now.link.failed(error)
            return 0

    def _present(self, name: str, keys: Sequence[str]) -> list[bool]:
        """Of which pages every rank's parts are there."""
        found = self._pool(name)
        space = found[0].space() if found else None
        if found is None or space is None or not keys:
            return [False] * len(keys)
        try:
            digests = space.digests(keys)
            codes = [bytes(space.contains(digests, part=part)) for part in found[1].all]
        except kvist.Error as error:
            found[0].link.failed(error)
            return [False] * len(keys)
        return [not any(each) for each in zip(*codes, strict=True)]

    def _groups(self, transfer: Any, keys: Sequence[str]) -> int:
        block, group = int(getattr(transfer, "block_pages", 0)), int(getattr(transfer, "group_pages", 0))
        named = transfer.keys
        if named is None and 0 < group <= block:  # the last pages of each block name its group
            named = [key for end in range(block, len(keys) + 1, block) for key in keys[end - group : end]]
        return _hits.groups(self._present(str(transfer.name), named or []), block, group, len(keys))

    # ---- how: moving pages ----

    def _get(self, name: str, keys: Sequence[str], host_indices: Any) -> list[bool]:
        def move(now: _Open, pool: Pool, keys: Sequence[str], indices: Any) -> list[bool]:
            assert pool.pages is not None
            blocks = pool.pages.blocks(indices)
            done = self._read(now, pool, keys, blocks)
            pool.pages.filled(indices, blocks, done)
            return done

        return self._moved("prefetch", name, keys, host_indices, move)

    def _set(
        self, name: str, keys: Sequence[str], host_indices: Any, before: _Before | None, chained: bool = True
    ) -> list[bool]:
        if chained and before is None and not self._told_of_prefixes:
            self._told_of_prefixes = True
            _log.warning(
                "Kvist: SGLang does not say what lies before a page, so the pool cannot keep beginnings of prompts longer than"
                ' their ends: add "hicache_storage_pass_prefix_keys": true to the extra config'
            )

        def move(now: _Open, pool: Pool, keys: Sequence[str], indices: Any) -> list[bool]:
            nonlocal before
            pages, here = pool.pages, before
            assert pages is not None
            if before is not None:
                before = _Before(before.pages + len(keys), keys[-1])

            def take(which: Sequence[int] | None) -> list[Any]:
                return pages.blocks(indices if which is None else indices.view(-1, pages.unit)[list(which)].view(-1))

            return self._store(now, pool, keys, take, here)

        return self._moved("backup", name, keys, host_indices, move)

    def _moved(
        self,
        what: str,
        name: str,
        keys: Sequence[str],
        host_indices: Any,
        move: Callable[[_Open, Pool, Sequence[str], Any], list[bool]],
    ) -> list[bool]:
        """Moves pages between a host pool and Kvist, a batch after the other, until nothing comes of one."""
        count = len(keys)
        known = self._pools.get(name)
        if known is not None and known.pages is None:
            return [True] * count  # it only counts slots: there is nothing to move
        found = self._pool(name)
        if found is None or not count:
            return [False] * count
        now, pool = found
        assert pool.pages is not None
        unit = pool.pages.unit
        if host_indices is None or len(host_indices) != count * unit:
            told = "no" if host_indices is None else len(host_indices)
            self._misused(now, f"pool {name}: {told} host indices came with {count} pages of {unit}")
            return [False] * count
        done: list[bool] = []
        begun = time.perf_counter()
        try:
            for at in range(0, count, _BATCH):
                some, indices = keys, host_indices
                if count > _BATCH:
                    some, indices = keys[at : at + _BATCH], host_indices[at * unit : (at + _BATCH) * unit]
                done += move(now, pool, some, indices)
                if not any(done[at:]):
                    break
        except (AssertionError, IndexError, ValueError, TypeError, BufferError, RuntimeError) as error:
            self._misused(now, f"pool {name}: {error!r}")
        if self._figures.wanted:
            moved = sum(done)
            self._figures.add(what, moved, moved * pool.pages.page_bytes * len(pool.own), time.perf_counter() - begun)
        return done + [False] * (count - len(done))

    def _misused(self, now: _Open, told: str) -> None:
        now.link.count("misused")
        now.link.notices.say("misused", f"Kvist: {told}; the engine goes on without these pages")

    def _read(self, now: _Open, pool: Pool, keys: Sequence[str], blocks: list[Any]) -> list[bool]:
        """A call for each part that this rank has of a page: one, unless heads are split."""
        space = now.space()
        if space is None:
            return [False] * len(keys)
        done = [True] * len(keys)
        until = time.monotonic() + self._settings.deadline
        try:
            digests = space.digests(keys)
            for part, block in zip(pool.own, blocks, strict=True):
                results = now.link.tally(space.get(digests, block, part=part, timeout=_left(until)))
                if not results.ok:
                    done = [so_far and not code for so_far, code in zip(done, bytes(results), strict=True)]
        except kvist.Error as error:
            now.link.failed(error)
            return [False] * len(keys)
        return done

    def _store(self, now: _Open, pool: Pool, keys: Sequence[str], take: _Take, before: _Before | None) -> list[bool]:
        if not pool.writes:  # it is the same on all ranks, and another one writes it
            return self._present(pool.name, keys)
        space = None if now.link.rests() else now.space()
        if space is None:
            return [False] * len(keys)
        done = [True] * len(keys)
        until = time.monotonic() + self._settings.deadline
        try:
            chain = space.digests(keys)
            if before is not None and before.last is not None:
                chain = kvist.Digests(bytes(chain), before.pages, space.digests([before.last])[0])
            for number, block in enumerate(take(None)):
                stored = self._put(now.link, space, chain, block, pool.own[number], before, lambda i: take(i)[number], until)
                done = [so_far and one for so_far, one in zip(done, stored, strict=True)]
        except kvist.Error as error:
            now.link.failed(error)
            return [False] * len(keys)
        return done

    def _put(
        self,
        link: Link,
        space: kvist.Space,
        chain: kvist.Digests,
        block: Any,
        part: str,
        before: _Before | None,
        take: Callable[[Sequence[int]], Any],
        until: float,
    ) -> list[bool]:
        results = space.put(chain, block, part=part, unchained=before is None, timeout=_left(until))
        refused = results.where(kvist.Code.INVALID_ARGUMENT) if before is not None else []
        if not refused:
            link.tally(results, put=True)
            return [True] * len(chain) if results.ok else [code in _THERE for code in bytes(results)]
        # What lies before such a page came from an engine that did not say its depth. So nothing can hang on it, but the page
        # can be stored as the beginning of what follows.
        link.tally(results, put=True, but=(kvist.Code.INVALID_ARGUMENT,))
        stored = [code in _THERE for code in bytes(results)]
        for number, i in enumerate(refused):
            if time.monotonic() >= until:
                link.count("deadline_exceeded", len(refused) - number)
                break
            alone = kvist.Digests(chain[i], chain.first + i)
            stored[i] = link.tally(space.put(alone, take([i]), part=part, timeout=_left(until)), put=True).ok
        return stored

    def _flat(
        self, keys: Sequence[str], tensors: list[Any], move: Callable[[_Open, Pool, _Take], list[bool]]
    ) -> list[bool]:
        """Moves pages of the anchor pool from or to tensors of their own."""
        found = self._pool(_KV)
        if found is None or not keys:
            return [False] * len(keys)
        now, pool = found
        assert pool.pages is not None
        parts, size = pool.pages.parts, pool.pages.page_bytes * pool.pages.parts
        try:
            pages = [_bytes_of(tensor) for tensor in tensors]
            if len(pages) != len(keys) or any(page.nbytes != size for page in pages):
                raise ValueError(f"{len(keys)} pages of {size} bytes, not {[page.nbytes for page in pages]}")
            cut = [pages] if parts == 1 else [[_heads(page, part, parts) for page in pages] for part in range(parts)]
            return move(now, pool, lambda which: [[blocks[i] for i in which] for blocks in cut] if which else list(cut))
        except (AttributeError, TypeError, ValueError, BufferError, RuntimeError) as error:
            self._misused(now, f"tensors that should be pages: {error}")
            return [False] * len(keys)


def _before(extra_info: Any) -> _Before | None:
    """None: unknown."""
    keys = getattr(extra_info, "prefix_keys", None)
    return None if keys is None else _Before(len(keys), keys[-1] if keys else None)


def _left(until: float) -> float:
    return max(until - time.monotonic(), 0.001)


def _policy(transfer: Any) -> str:
    policy = getattr(transfer, "hit_policy", "all_pages")
    return str(getattr(policy, "value", policy))


def _bytes_of(tensor: Any) -> memoryview:
    """The memory of a contiguous tensor."""
    import torch

    if not tensor.is_contiguous():
        raise ValueError("one is not contiguous")
    return memoryview(tensor.detach().view(-1).view(torch.uint8).numpy())


def _heads(page: memoryview, part: int, parts: int) -> list[memoryview]:
    """A group of heads of a flat page_head page: its share of the keys, and of the values."""
    half = page.nbytes // 2
    share = half // parts
    return [page[at + part * share : at + (part + 1) * share] for at in (0, half)]
