"""MooncakeDistributedStore: life cycle, single values, batches. Sessions and tensors are in files of their own."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from kvist._kvist import Addresses, BufferHandle, Results, Space
from kvist._types import Code
from kvist.mooncake import _codes, _config, _pool
from kvist.mooncake._codes import CODES, INTERNAL, INVALID_PARAMS, NO_AVAILABLE_HANDLE, OK, READ_CODES
from kvist.mooncake._config import ReplicateConfig, Unsupported, number, text
from kvist.mooncake._pool import key_list, names

_PLAIN = frozenset((bytes, bytearray))  # values whose len() is their size, and that are what they show
_VIEWED = frozenset((bytes, bytearray, memoryview))  # values without elements exactly where len() is 0
_SETUP = (
    "local_hostname",
    "metadata_server",
    "global_segment_size",
    "local_buffer_size",
    "protocol",
    "rdma_devices",
    "master_server_addr",
    "engine",
    "enable_ssd_offload",
    "ssd_offload_path",
    "tenant_id",
    "enable_client_http_server",
    "client_http_port",
)
# Of a look-up: 1 there, 0 not; a key that cannot be is not there. Other results are looked at one by one.
_PRESENT = bytes({Code.OK: 1, Code.NOT_FOUND: 0, Code.INVALID_ARGUMENT: 0}.get(code, 255) for code in range(256))  # type: ignore[call-overload]
_PINS_AT_ONCE = 1024
_TRIES = 4  # for what may be replaced between a look at its length and its copy


class Store:
    """See kvist.mooncake.MooncakeDistributedStore."""

    def __init__(self) -> None:
        self._pool: _pool.Pool | None = None
        self._hostname = ""
        self._registered: dict[int, int] = {}
        self._registering = threading.Lock()
        _stores.add(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"cannot pickle {type(self).__name__!r} object: set one up in each process")

    # ---- life cycle ----

    def setup(self, *args: Any, **kwargs: Any) -> int:
        """setup(local_hostname, metadata_server, global_segment_size, local_buffer_size, protocol, rdma_devices,
        master_server_addr, ...) or setup(config: dict) -> 0, or -1: no node answers, -600: a wrong setting (the log says more).

        Connects to this host's Kvist node. Sizes, protocol, devices and metadata server are taken and left aside: the node
        has the memory, and nothing is sent over a network. master_server_addr may be the node's socket
        ("unix:/run/kvist/node.sock"); else it is $KVIST_SOCKET, or where a node listens by default. Settings of Kvist's own
        are the dict's "kvist", or JSON in $KVIST_MOONCAKE_SETTINGS.
        """
        given = _setup_arguments(args, kwargs)
        if given is None:
            return INVALID_PARAMS
        return self._connect(given)

    def setup_dummy(self, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int:
        """As setup(): every client of a node is one that works in shared memory."""
        number(mem_pool_size, "mem_pool_size"), number(local_buffer_size, "local_buffer_size")
        return self._connect({"local_hostname": "", "master_server_addr": text(server_address, "server_address")})

    def _connect(self, given: Mapping[str, Any]) -> int:
        try:
            settings = _pool.read_settings(given.get("kvist"), given.get("master_server_addr"))
        except ValueError as error:
            _pool.log.error("%s", error)
            return INVALID_PARAMS
        self.close()
        pool = _pool.Pool(settings, given.get("tenant_id", "default"))
        if not pool.ready and not settings.late:
            _pool.log.error("Kvist: setup ends with -1 and does not try again (the setting late would): %s", pool.state)
            pool.close()
            return INTERNAL
        self._hostname = given["local_hostname"]
        self._pool = pool
        weakref.finalize(self, pool.close).atexit = False  # a store that is dropped needs no close()
        return OK

    def close(self) -> int:
        """0. Calls end with -600 (or b"") from now on; setup() may be called again. What was put stays in the pool."""
        pool, self._pool = self._pool, None
        if pool is not None:
            self._end_sessions()
            pool.close()
        return OK

    def health_check(self) -> int:
        """0: the node answers. 1: not set up. 2: no node."""
        pool = self._pool
        if pool is None:
            return 1
        return 0 if pool.connected else 2

    def get_hostname(self) -> str:
        """What setup() was told."""
        return self._hostname if self._pool is not None else ""

    @property
    def counts(self) -> dict[str, int]:
        """Ours: how often what failed, by reason."""
        pool = self._pool
        return pool.counts if pool is not None else {}

    def _end_sessions(self) -> None:
        """For _sessions.py."""

    def _forked(self) -> None:
        """In a forked child, before anything else. Locks may have been held by threads that are not here."""
        self._registering = threading.Lock()
        if self._pool is not None:
            self._pool.forget()

    # ---- values ----

    def put(self, key: Any, value: Any, config: ReplicateConfig | None = None) -> int:
        """0: stored, or there already (the first value stays). The bytes that `value` shows, whatever its dtype."""
        if config is not None and (refused := _config.refusal(config, 1)):
            return refused
        return self._put((key,), (value if type(value) in _PLAIN else _value(value),))[0]

    def put_batch(self, keys: Any, values: Any, config: ReplicateConfig | None = None) -> int:
        """0: all are there now. -600: a key or value is empty, and nothing was stored. Else the first failure's code."""
        keys = keys if type(keys) is list else key_list(keys)
        values, some = _values(values)
        if config is not None and (refused := _config.refusal(config, len(keys))):
            return refused
        if len(keys) != len(values) or not some or not all(keys):
            return INVALID_PARAMS
        try:
            return _first_failure(self._put(keys, values))
        except BufferError:  # a strided view: the bytes that it shows, as a copy
            return _first_failure(self._put(keys, [_value(value) for value in values]))

    def put_parts(self, key: Any, *parts: Any, config: ReplicateConfig | None = None) -> int:
        """put() of the parts one behind the other. Without any it is -600: there is nothing to store."""
        if config is not None and (refused := _config.refusal(config, 1)):
            return refused
        return self._put((key,), ([_value(part) for part in parts],))[0]

    def put_from(self, key: Any, buffer_ptr: int, size: int, config: ReplicateConfig | None = None) -> int:
        """put() of memory known by its address. -600: size 0 or a null address."""
        return self.batch_put_from((key,), (buffer_ptr,), (size,), config)[0]

    def put_from_with_metadata(
        self,
        key: Any,
        buffer_ptr: int,
        metadata_buffer_ptr: int,
        size: int,
        metadata_size: int,
        config: ReplicateConfig | None = None,
    ) -> int:
        """put() of the metadata with the buffer behind it."""
        pieces = ((metadata_buffer_ptr, buffer_ptr),), ((metadata_size, size),)
        return self.batch_put_from_multi_buffers((key,), *pieces, config)[0]

    def batch_put_from(self, keys: Any, buffer_ptrs: Any, sizes: Any, config: ReplicateConfig | None = None) -> list[int]:
        """A code for each key: 0, -600 (empty key or size, null address), -200 (no room, or too long for the pool), ..."""
        keys = keys if type(keys) is list else key_list(keys)
        if not len(keys) == len(buffer_ptrs) == len(sizes):
            return [INVALID_PARAMS] * len(keys)
        if config is not None and (refused := _config.refusal(config, len(keys))):
            return [refused] * len(keys)
        return self._with_addresses(self._put, keys, buffer_ptrs, sizes)

    def batch_put_from_multi_buffers(
        self, keys: Any, all_buffer_ptrs: Any, all_sizes: Any, config: ReplicateConfig | None = None
    ) -> list[int]:
        """batch_put_from() whose values are gathered: lists of addresses and sizes for each key."""
        return self.batch_put_from(keys, all_buffer_ptrs, all_sizes, config)

    # ---- replacing ----

    def upsert(self, key: Any, value: Any, config: ReplicateConfig | None = None) -> int:
        """put() that replaces: remove(), then put(). Not atomic: between the two the key is missing, and where the put
        fails it stays so."""
        if config is not None and (refused := _config.refusal(config, 1)):
            return refused
        return self._upsert((key,), (_value(value),))[0]

    def upsert_batch(self, keys: Any, values: Any, config: ReplicateConfig | None = None) -> int:
        keys, (values, some) = key_list(keys), _values(values)
        if config is not None and (refused := _config.refusal(config, len(keys))):
            return refused
        if len(keys) != len(values) or not some or not all(keys):
            return INVALID_PARAMS
        return _first_failure(self._upsert(keys, [_value(value) for value in values]))

    def upsert_parts(self, key: Any, *parts: Any, config: ReplicateConfig | None = None) -> int:
        if config is not None and (refused := _config.refusal(config, 1)):
            return refused
        return self._upsert((key,), ([_value(part) for part in parts],))[0]

    def upsert_from(self, key: Any, buffer_ptr: int, size: int, config: ReplicateConfig | None = None) -> int:
        return self.batch_upsert_from((key,), (buffer_ptr,), (size,), config)[0]

    def batch_upsert_from(self, keys: Any, buffer_ptrs: Any, sizes: Any, config: ReplicateConfig | None = None) -> list[int]:
        keys = key_list(keys)
        if not len(keys) == len(buffer_ptrs) == len(sizes):
            return [INVALID_PARAMS] * len(keys)
        if config is not None and (refused := _config.refusal(config, len(keys))):
            return [refused] * len(keys)
        return self._with_addresses(self._upsert, keys, buffer_ptrs, sizes)

    # ---- reading ----

    def get(self, key: Any, /) -> bytes:
        """The value, or b"" where it cannot be had for whatever reason."""
        return self.get_batch((key,))[0]

    def get_batch(self, keys: Any, /) -> list[bytes]:
        """The values in the keys' order, b"" where one cannot be had."""
        keys = keys if type(keys) is list else key_list(keys)
        if len(keys) <= _PINS_AT_ONCE:
            return self._values_of(keys)
        parts = (keys[i : i + _PINS_AT_ONCE] for i in range(0, len(keys), _PINS_AT_ONCE))
        return [value for part in parts for value in self._values_of(part)]

    def get_into(self, key: Any, buffer_ptr: int, size: int) -> int:
        """The value's length, copied to that address; -704: missing; -600: `size` is less than it."""
        return self.batch_get_into((key,), (buffer_ptr,), (size,))[0]

    def batch_get_into(self, keys: Any, buffer_ptrs: Any, sizes: Any) -> list[int]:
        """get_into() of each. A value that fails its verification is -704, and leaves garbage in its buffer."""
        keys = keys if type(keys) is list else key_list(keys)
        if not len(keys) == len(buffer_ptrs) == len(sizes):
            return [INVALID_PARAMS] * len(keys)
        return self._with_addresses(self._get_into, keys, buffer_ptrs, sizes)

    def batch_get_into_multi_buffers(
        self, keys: Any, all_buffer_ptrs: Any, all_sizes: Any, prefer_alloc_in_same_node: bool = False
    ) -> list[int]:
        """Values scattered over buffers whose sizes add up to theirs; more is -800, less -600."""
        keys = key_list(keys)
        if not len(keys) == len(all_buffer_ptrs) == len(all_sizes):
            return [INVALID_PARAMS] * len(keys)
        return self._with_addresses(self._scatter, keys, all_buffer_ptrs, all_sizes)

    def get_buffer(self, key: Any, /) -> BufferHandle | None:
        """A private copy that can be written, or None."""
        return self.batch_get_buffer((key,))[0]

    def batch_get_buffer(self, keys: Any, /) -> list[BufferHandle | None]:
        keys = key_list(keys)
        handles: list[BufferHandle | None] = [None] * len(keys)
        left = list(range(len(keys)))
        for _ in range(_TRIES):
            lengths = self._lengths([keys[i] for i in left])
            left = [i for i, length in zip(left, lengths) if length >= 0]
            if not left:
                break
            made = [BufferHandle(length) for length in lengths if length >= 0]
            found, other, _ = self._fetch([keys[i] for i in left], made)
            for i, length, handle in zip(left, found, made):
                if length >= 0:
                    handles[i] = handle
            left = [left[i] for i in other]  # replaced meanwhile
        return handles

    # ---- looking ----

    def is_exist(self, key: Any, /) -> int:
        """1 or 0, or -900 without a node. A hint: it keeps nothing from eviction."""
        return self.batch_is_exist((key,))[0]

    def batch_is_exist(self, keys: Any, /) -> list[int]:
        keys = keys if type(keys) is list else key_list(keys)
        results = self._call(lambda space, timeout: space.contains(names(space, keys)))
        if isinstance(results, int):
            return [results] * len(keys)
        flags = bytes(results).translate(_PRESENT)
        if 255 not in flags:
            return list(flags)
        self._note(results)
        return [flag if flag != 255 else CODES[code] for flag, code in zip(flags, results)]

    def longest_prefix(self, keys: Any, /) -> int:
        """Ours: how many keys from the first on are there, up to the first that is not; 0 also without a node. One call
        instead of batch_is_exist() and a count."""
        keys = keys if type(keys) is list else key_list(keys)
        found = self._call(lambda space, timeout: space.prefix(names(space, keys), hint=True, timeout=timeout))
        return 0 if isinstance(found, int) else len(found)

    def get_size(self, key: Any, /) -> int:
        """Bytes, or -704."""
        return self._lengths((key,))[0]

    # ---- removing ----

    def remove(self, key: Any, force: bool = False) -> int:
        """0, or -704. Kvist has no leases, so never -706: who reads the value goes on reading it."""
        return self.batch_remove((key,), force)[0]

    def batch_remove(self, keys: Any, force: bool = False) -> list[int]:
        keys = key_list(keys)
        results = self._call(lambda space, timeout: space.remove(names(space, keys), timeout=timeout))
        return self._codes(results, len(keys), READ_CODES)

    def remove_all(self, force: bool = False) -> int:
        """How many values went: all of this tenant, of every process."""
        return int(self._call(lambda space, timeout: space.flush(timeout=timeout)))

    def batch_replica_clear(self, keys: Any, segment_name: str = "") -> list[str]:
        """Removes the values (there is one copy of each) and returns the keys that were there."""
        if segment_name:
            raise Unsupported("batch_replica_clear: there are no segments to choose from. Leave segment_name empty")
        return [key for key, code in zip(keys, self.batch_remove(keys)) if code == OK]

    # ---- buffers ----

    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """0; -600: null, size 0, or a part of it is registered. Nothing needs it: a node's clients copy by themselves."""
        start, end = number(buffer_ptr, "buffer_ptr"), number(buffer_ptr, "buffer_ptr") + number(size, "size")
        with self._registering:
            overlaps = any(start < other_end and other < end for other, other_end in self._registered.items())
            if self._pool is None or start == 0 or start == end or overlaps:
                return INVALID_PARAMS
            self._registered[start] = end
        return OK

    def unregister_buffer(self, buffer_ptr: int) -> int:
        """0; -600: nothing registered begins there."""
        with self._registering:
            found = self._registered.pop(number(buffer_ptr, "buffer_ptr"), None)
        return OK if found is not None and self._pool is not None else INVALID_PARAMS

    def alloc_from_mem_pool(self, size: int, /) -> int:
        """0: an ordinary client has no such pool."""
        number(size, "size")
        return 0

    # ---- how it is done ----

    def _call(self, work: Callable[[Space, float], Any]) -> Any:
        """work(space, timeout), or the code of what came between."""
        pool = self._pool
        if pool is None:
            return INVALID_PARAMS
        return pool.call(work)

    def _note(self, results: Results) -> None:
        pool = self._pool
        if pool is not None:
            pool.note(results)

    def _codes(self, results: Results | int, count: int, codes: Mapping[Code, int] = CODES) -> list[int]:
        if isinstance(results, int):
            return [results] * count
        if results.ok:
            return [OK] * count
        self._note(results)
        return [codes.get(code, INTERNAL) for code in results]

    def _with_addresses(self, work: Callable[..., list[int]], keys: Any, ptrs: Any, sizes: Any) -> list[int]:
        """work(keys, Addresses(ptrs, sizes), ptrs, sizes); keys whose memory cannot be are -600 by themselves."""
        try:
            memory = Addresses(ptrs, sizes)
        except ValueError:
            pass
        else:
            return work(keys, memory, ptrs, sizes)
        good = [i for i in range(len(keys)) if _can_be(ptrs[i], sizes[i])]
        codes = [INVALID_PARAMS] * len(keys)
        if len(good) < len(keys):
            done = self._with_addresses(work, *([of[i] for i in good] for of in (keys, ptrs, sizes)))
            for i, code in zip(good, done):
                codes[i] = code
        return codes

    def _put(self, keys: Sequence[Any], sources: Any, ptrs: Any = None, sizes: Any = None) -> list[int]:
        """Codes. `sources`: whatever Space.put() takes."""
        results = self._call(
            lambda space, timeout: space.put(names(space, keys), sources, unchained=True, timeout=timeout)
        )
        codes = self._codes(results, len(keys))
        if INVALID_PARAMS in codes and not isinstance(results, int):
            self._tell_too_long(keys, sources, codes)
        return codes

    def _tell_too_long(self, keys: Sequence[Any], sources: Any, codes: list[int]) -> None:
        """A key and a value that are something are refused only for the value's length."""
        lengths = _lengths_of(sources)
        for i, code in enumerate(codes):
            if code != INVALID_PARAMS or not keys[i] or lengths[i] == 0:
                continue
            codes[i] = NO_AVAILABLE_HANDLE
            if self._pool is not None:
                told = f"Kvist: a value of {lengths[i]} bytes is longer than the pool's largest slot (64 MiB at most)"
                self._pool.say("too long", told)

    def _upsert(self, keys: Sequence[Any], sources: Any, ptrs: Any = None, sizes: Any = None) -> list[int]:
        later = [OK] * len(keys)
        lengths = _lengths_of(sources)
        if not all(keys) or not all(lengths):  # what cannot be put must not remove what is there
            good = [i for i, key in enumerate(keys) if key and lengths[i]]
            codes = [INVALID_PARAMS] * len(keys)
            some = [sources[i] for i in good] if ptrs is None else Addresses([ptrs[i] for i in good], [sizes[i] for i in good])
            lists = (None, None) if ptrs is None else ([ptrs[i] for i in good], [sizes[i] for i in good])
            for i, code in zip(good, self._upsert([keys[i] for i in good], some, *lists) if good else ()):
                codes[i] = code
            return codes

        def replace(space: Space, timeout: float) -> Results:
            end = time.monotonic() + timeout
            left = lambda: max(0.0, end - time.monotonic())  # noqa: E731
            chain = names(space, keys)
            if space.contains(chain).done > 0:
                space.remove(chain, timeout=timeout)
            results = space.put(chain, sources, unchained=True, timeout=left())
            # Twice in the batch, so that the last value stays; or somebody else put it after our remove.
            for i in results.where(Code.ALREADY_EXISTS):
                one = (sources[i],) if ptrs is None else Addresses((ptrs[i],), (sizes[i],))
                for _ in range(_TRIES):
                    space.remove(chain[i], timeout=left())
                    code = space.put(chain[i], one, unchained=True, timeout=left())[0]
                    later[i] = _codes.OBJECT_ALREADY_EXISTS if code == Code.ALREADY_EXISTS else CODES[code]
                    if code != Code.ALREADY_EXISTS:
                        break
            return results

        results = self._call(replace)
        codes = [code or again for code, again in zip(self._codes(results, len(keys)), later)]
        if INVALID_PARAMS in codes and not isinstance(results, int):
            self._tell_too_long(keys, sources, codes)
        return codes

    def _values_of(self, keys: Sequence[Any]) -> list[bytes]:
        pinned = self._call(lambda space, timeout: space.pin(names(space, keys), timeout=timeout))
        if isinstance(pinned, int):
            return [b""] * len(keys)
        with pinned:
            values = pinned.copies()
        if pinned.hits == len(keys):
            return values
        self._note(pinned.results)
        return [b"" if value is None else value for value in values]

    def _fetch(self, keys: Sequence[Any], into: Any) -> tuple[list[int], list[int], list[int]]:
        """Copies values whose lengths are those of `into`: (lengths or codes, which have another length, what it is)."""
        results = self._call(
            lambda space, timeout: space.get(names(space, keys), into, timeout=timeout, sizes=True)
        )
        if isinstance(results, int):
            return [results] * len(keys), [], []
        lengths = results.sizes
        if results.done == len(keys):
            return lengths, [], []
        self._note(results)
        other = results.where(Code.OUT_OF_RANGE)
        codes = [length if code == OK else READ_CODES.get(code, INTERNAL) for code, length in zip(results, lengths)]
        return codes, other, [lengths[i] for i in other]

    def _get_into(self, keys: Sequence[Any], memory: Addresses, ptrs: Any, sizes: Any) -> list[int]:
        found, other, lengths = self._fetch(keys, memory)
        room = memory.sizes if other else []
        for _ in range(_TRIES):
            fitting = [(i, length) for i, length in zip(other, lengths) if length <= room[i]]
            if not fitting:
                break
            some = [i for i, _ in fitting]
            exact = Addresses([ptrs[i] for i in some], [length for _, length in fitting])
            more, still, lengths = self._fetch([keys[i] for i in some], exact)
            for i, code in zip(some, more):
                found[i] = code
            other = [some[i] for i in still]  # replaced meanwhile
        return found

    def _scatter(self, keys: Sequence[Any], memory: Addresses, ptrs: Any, sizes: Any) -> list[int]:
        found, other, lengths = self._fetch(keys, memory)
        for i, length in zip(other, lengths):
            if length < memory.sizes[i]:
                found[i] = _codes.TRANSFER_FAIL
        return found

    def _lengths(self, keys: Sequence[Any]) -> list[int]:
        """Bytes, or a code."""
        nowhere = ((),) * len(keys)  # no length fits it, so that nothing is copied
        found, other, lengths = self._fetch(keys, Addresses(nowhere, nowhere))
        for i, length in zip(other, lengths):
            found[i] = length
        return found


def _refuse(name: str, reason: str) -> Callable[..., NoReturn]:
    def refused(self: Store, *args: Any, **kwargs: Any) -> NoReturn:
        raise Unsupported(f"{name}: {reason}")

    refused.__name__ = refused.__qualname__ = name
    refused.__doc__ = f"Raises Unsupported: {reason}."
    return refused


_SEGMENTS = "the node has all memory, and no client lends any: give it more by `kvist node --memory`"
_REPLICAS = "there is one copy of each value, in this host's node, and no other place for it"
_UNSUPPORTED = {
    "remove_by_regex": "the pool keeps digests of keys, not keys, so no pattern can be searched for. Remove by key "
    "(batch_remove), or give each group of keys a tenant_id of its own and use remove_all",
    "init_all": "there is no transfer engine: setup() is all that is needed",
    "allocate_and_mount_segment": _SEGMENTS,
    "mount_segment": _SEGMENTS,
    "unmount_segment": _SEGMENTS,
    "unmount_and_free_segment": _SEGMENTS,
    "unmount_local_disk_segment": _SEGMENTS,
    "get_replica_desc": _REPLICAS + ". Use is_exist() or get_size()",
    "batch_get_replica_desc": _REPLICAS + ". Use batch_is_exist()",
    "create_copy_task": _REPLICAS,
    "create_move_task": _REPLICAS,
    "query_task": _REPLICAS + ", so that there are no tasks",
    "get_offload_rpc_read_count": "nothing is offloaded",
}
for _name, _reason in _UNSUPPORTED.items():
    setattr(Store, _name, _refuse(_name, _reason))


_stores: weakref.WeakSet[Store] = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_stores):
        store._forked()


os.register_at_fork(after_in_child=_after_fork)


# ---- arguments ----


def _setup_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any] | None:
    """What setup() was given, by name; None: a dict without what is required, or with sizes that are no numbers."""
    if len(args) + len(kwargs) == 1 and isinstance(given := args[0] if args else kwargs.get("config"), Mapping):
        if not all(isinstance(given.get(name), str) for name in _SETUP[:2]):
            return None
        for name in ("global_segment_size", "local_buffer_size"):
            size = given.get(name, 0)
            if not str(size).isascii() or not str(size).isdecimal():
                return None
        return given if isinstance(given.get("tenant_id", ""), str) else None
    if len(args) > len(_SETUP):
        raise TypeError(f"setup() takes at most {len(_SETUP)} arguments, not {len(args)}")
    named = dict(zip(_SETUP, args))
    for name, value in kwargs.items():
        if name not in _SETUP or name in named:
            raise TypeError(f"setup() has no argument {name!r}" if name not in _SETUP else f"setup() got {name!r} twice")
        named[name] = value
    missing = [name for name in _SETUP[:7] if name not in named]
    if missing:
        raise TypeError(f"setup() needs {', '.join(missing)}")
    for name in ("local_hostname", "metadata_server", "protocol", "rdma_devices", "master_server_addr", "tenant_id"):
        text(named.get(name, ""), name)
    for name in ("global_segment_size", "local_buffer_size"):
        number(named[name], name)
    return named


def _value(value: Any) -> Any:
    """What Space.put() can take as one block: the bytes that `value` shows, copied only where it is strided."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, (str, list, tuple)) or value is None:
        raise TypeError(f"a value is bytes, or an object with a buffer, not {type(value).__name__}")
    try:
        view = memoryview(value)
    except ValueError:  # a dtype that the protocol has no name for; the extension reads it all the same
        return value
    return view if view.c_contiguous else view.tobytes()


def _values(values: Any) -> tuple[Sequence[Any], bool]:
    """What Space.put() can take as blocks, though it may find some strided; and whether none of them is empty."""
    if not isinstance(values, (list, tuple)):
        raise TypeError(f"values must be a list, not {type(values).__name__}")
    if _VIEWED.issuperset(map(type, values)):
        try:
            return values, all(map(len, values))
        except TypeError:
            pass  # a view without dimensions has no len()
    made = [_value(value) for value in values]
    return made, all(map(_size, made))


def _size(value: Any) -> int:
    """Bytes of what _value() made, or of a list of them."""
    if isinstance(value, list):
        return sum(map(_size, value))
    return value.nbytes if hasattr(value, "nbytes") else len(value)


def _lengths_of(sources: Any) -> list[int]:
    return sources.sizes if isinstance(sources, Addresses) else [_size(source) for source in sources]


def _first_failure(codes: Iterable[int]) -> int:
    return next(filter(None, codes), OK)


def _can_be(ptrs: Any, sizes: Any) -> bool:
    """Whether this key's memory can be; TypeError where it is negative, as for a C++ caller."""
    for value in (ptrs, sizes):
        for one in value if isinstance(value, (list, tuple)) else (value,):
            number(one, "an address or a size")
    try:
        Addresses((ptrs,), (sizes,))
    except ValueError:
        return False
    return True
