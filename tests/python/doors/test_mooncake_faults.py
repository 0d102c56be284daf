"""kvist.mooncake when something is not there, goes away, stalls, is full, or is given nonsense: codes in time, nothing else.

Each call is timed: the deadline is a second here, and none may take longer than it and a little.
"""

import contextlib
import ctypes
import os
import random
import signal
import threading
import time

import pytest

import kvist
import kvist.mooncake as ours
from conftest import in_threads, stopped, wait_for_pins, wait_until
from mooncake_rig import INVALID, MISSING, NO_ROOM, Memory, kvist_store, set_up  # noqa: F401

DEADLINE = 1.0
NO_NODE, TOO_LATE = -900, -901


@pytest.fixture
def own_node(tmp_path):
    """A node that a test may hurt."""
    with kvist.Node(memory="64MiB", admin=None, socket=tmp_path / "node.sock") as running:
        yield running


@pytest.fixture
def store(own_node):
    made = set_up(own_node, deadline=DEADLINE)
    yield made
    made.close()


@contextlib.contextmanager
def in_time(seconds=DEADLINE + 2):
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds


def settings(path, **more):
    return {
        "local_hostname": "localhost",
        "metadata_server": "P2PHANDSHAKE",
        "kvist": {"socket": str(path), "deadline": DEADLINE, **more},
    }


def test_setup_without_a_node_is_minus_one_in_time(tmp_path):
    store = ours.MooncakeDistributedStore()
    with in_time(5):
        assert store.setup(settings(tmp_path / "none.sock")) == -1
    assert store.health_check() == 1 and store.put("k", b"v") == INVALID and store.close() == 0


def test_a_late_node_is_found_by_itself(tmp_path):
    """Known failure 26: with the setting `late` a program starts before its node."""
    store = ours.MooncakeDistributedStore()
    path = tmp_path / "node.sock"
    with in_time(5):
        assert store.setup(settings(path, late=True)) == 0
    with in_time():
        assert store.health_check() == 2 and store.put("k", b"v") == NO_NODE and store.get("k") == b""
        assert store.is_exist("k") == NO_NODE and store.longest_prefix(["k"]) == 0 and store.get_buffer("k") is None
    with kvist.Node(memory="64MiB", admin=None, socket=path):
        wait_until(lambda: store.put("k", b"v") == 0, "the node is found")
        assert store.get("k") == b"v" and store.health_check() == 0
    store.close()


def test_wrong_settings_are_told(node, caplog, monkeypatch):
    store = ours.MooncakeDistributedStore()
    for bad in ({"soket": "/x"}, {"deadline": "soon"}, 5, "no json", "[1]"):
        assert store.setup({**settings("x"), "kvist": bad}) == INVALID
    assert "did you mean 'socket'" in caplog.text and "deadline must be seconds" in caplog.text
    for bad in ({"local_hostname": 5}, {"global_segment_size": "1 GiB"}, {"local_buffer_size": -5}, {"tenant_id": 3}):
        assert store.setup({**settings(node.socket), **bad}) == INVALID
    assert store.setup({**settings(node.socket), "global_segment_size": "1024", "local_buffer_size": 5, "unknown": 1}) == 0
    monkeypatch.setenv("KVIST_MOONCAKE_SETTINGS", '{"soket": 1}')
    assert store.setup("localhost", "P2PHANDSHAKE", 0, 0, "tcp", "", "") == INVALID
    monkeypatch.setenv("KVIST_MOONCAKE_SETTINGS", '{"socket": "%s"}' % node.socket)
    assert store.setup("localhost", "P2PHANDSHAKE", 0, 0, "rdma", "", "127.0.0.1:50051") == 0
    assert store.setup_dummy(1 << 30, 1 << 20, "127.0.0.1:1") == 0 and store.put("dummy", b"1") == 0
    assert store.remove("dummy") == 0
    with pytest.raises(TypeError):
        store.setup("localhost", "P2PHANDSHAKE", -1, 0, "tcp", "", "")
    with pytest.raises(TypeError):
        store.setup_dummy(-1, 0, "x")
    store.close()


def every_call(store, memory):
    """The code of each kind of call that needs the node."""
    p = memory.ptr
    return {
        "put": store.put("new", b"v"),
        "put_batch": store.put_batch(["new"], [b"v"]),
        "batch_put_from": store.batch_put_from(["new"], [p], [8])[0],
        "upsert": store.upsert("new", b"v"),
        "remove": store.remove("new"),
        "batch_remove": store.batch_remove(["new"])[0],
        "remove_all": store.remove_all(),
        "session": store.batch_put_session_start(["new"], [8])[0],
    }


def test_a_killed_node_is_codes_and_comes_back(own_node, store, tmp_path, caplog):
    """Known failures 9 and 28: the program serves on, what failed is counted, and nobody gets old bytes."""
    memory = Memory(8)
    assert store.put("k", b"value") == 0
    handle, pinned = store.get_buffer("k"), store.batch_get_session_start(["k"])
    own_node._process._signal(signal.SIGKILL)
    wait_until(lambda: store.is_exist("k") == NO_NODE, "the client sees that the node is gone")
    with in_time():
        assert set(every_call(store, memory).values()) == {NO_NODE}
        assert store.get("k") == b"" and store.get_batch(["k", "l"]) == [b"", b""] and store.get_buffer("k") is None
        assert store.get_into("k", memory.ptr, 8) == store.get_size("k") == NO_NODE
        assert store.batch_is_exist(["k", "l"]) == [NO_NODE] * 2 and store.health_check() == 2
    assert bytes(memoryview(handle)) == b"value" and pinned == [0]
    assert store.batch_get_into_multi_buffer_ranges(["k"], [[memory.ptr]], [[5]], [[0]]) == [5] and memory[:5] == b"value"
    assert store.counts["unavailable"] > 10
    assert sum("the engine goes on without" in record.message for record in caplog.records) <= 3
    with kvist.Node(memory="64MiB", admin=None, socket=tmp_path / "node.sock"):
        wait_until(lambda: store.put("k", b"anew") == 0, "the store works again")
        assert store.get("k") == b"anew" and store.health_check() == 0
        assert store.batch_get_session_end(["k"]) == 0


def test_a_stopped_node_costs_no_more_than_the_deadline(own_node, store):
    memory = Memory(8)
    assert store.put("k", b"value") == 0
    with stopped(own_node):
        with in_time(0.5):  # reads need no node
            assert store.get("k") == b"value" and store.is_exist("k") == 1 and store.get_into("k", memory.ptr, 8) == 5
        for name in ("put", "remove", "remove_all"):
            arguments = {"put": ("new", bytes(1 << 16)), "remove": ("k",), "remove_all": ()}[name]
            with in_time():
                assert getattr(store, name)(*arguments) in (TOO_LATE, NO_NODE), name
        started = time.monotonic()
        in_threads(lambda i: store.put(f"t{i}", bytes(4096)), range(8))
        assert time.monotonic() - started < 2 * DEADLINE + 3
    wait_until(lambda: store.put("after", b"1") == 0, "the node works again")


def test_threads_that_must_open_the_namespace_again_do_not_queue(own_node, store):
    """All of them at once, while the node is stopped: one tries, the others do not wait for it one after the other."""
    with own_node.client() as client:
        assert client.open(store._pool._identity).flush() == 0  # under its hands
    with stopped(own_node):
        codes, started = [], time.monotonic()
        in_threads(lambda _: codes.append(store.is_exist("k")), range(10))
        assert time.monotonic() - started < 2 * DEADLINE + 2 and len(codes) == 10 and set(codes) <= {NO_NODE, TOO_LATE}
    wait_until(lambda: store.is_exist("k") == 0, "the namespace is open again")


def test_close_ends_what_sessions_hold(own_node, store):
    assert store.put("k", bytes(4096)) == 0 and store.batch_get_session_start(["k"]) == [0]
    assert store.batch_put_session_start(["s"], [4096]) == [0]
    with own_node.client() as client:
        wait_for_pins(client, 1)
        assert store.close() == 0
        wait_for_pins(client, 0)


def test_another_store_removes_all(own_node, store):
    """A flush under a store's hands is a miss, not an error."""
    other = ours.MooncakeDistributedStore()
    assert other.setup({**settings(own_node.socket), "tenant_id": "default"}) == 0
    mine = ours.MooncakeDistributedStore()
    assert mine.setup(settings(own_node.socket)) == 0
    for round in range(20):
        assert mine.put("a", b"%d" % round) == 0 and other.get("a") == b"%d" % round
        assert other.remove_all() == 1
        assert mine.get("a") == b"" and mine.is_exist("a") == 0 and mine.get_size("a") == MISSING
        assert mine.batch_put_session_start(["s"], [4]) == [0] and other.remove_all() == 0
        assert mine.batch_put_session_end(["s"]) != [0] and mine.is_exist("s") == 0
    assert mine.counts.get("failed_precondition", 0) == 0
    mine.close(), other.close()


def test_threads_that_flush_and_use_one_store(own_node):
    store = set_up(own_node, deadline=20)  # what is promised here is right values, not when
    end, wrong, read = time.monotonic() + 2, [], []

    def work(number):
        rng = random.Random(number)
        while time.monotonic() < end:
            name = f"k{rng.randrange(20)}"
            value = name.encode() * 100
            codes = (store.put(name, value), store.is_exist(name), store.upsert(name, value))
            got = store.get(name)
            if got not in (b"", value) or codes[0] not in (0, MISSING) or codes[1] not in (0, 1) or codes[2] not in (0, -705, MISSING):
                wrong.append((codes, got[:20]))
            if got:
                read.append(number)
            if rng.random() < 0.02 and store.remove_all() < 0:
                wrong.append("remove_all")

    in_threads(work, range(6))
    store.close()
    assert not wrong, wrong[:5]
    assert read, "not all was flushed before it was read"


def test_a_pool_full_of_held_values(store):
    """Everything is held by get sessions: a put is -200 within the deadline, and goes on when they end."""
    keys = []
    while store.put(f"k{len(keys)}", os.urandom(1 << 20)) == 0 and store.batch_get_session_start([f"k{len(keys)}"]) == [0]:
        keys.append(f"k{len(keys)}")
        assert len(keys) < 100
    assert len(keys) > 10
    with in_time():
        assert store.put("one more", bytes(1 << 20)) == NO_ROOM
    assert store.batch_is_exist(keys) == [1] * len(keys)
    assert store.batch_get_session_end(keys) == 0
    assert store.put("one more", bytes(1 << 20)) == 0


def test_what_is_evicted_is_a_miss(store):
    """Known failure 17: between the look and the read a value may go. What is read is the value, or nothing."""
    values = {f"k{i}": bytes([i]) * (1 << 20) for i in range(150)}
    for name, value in values.items():
        assert store.put(name, value) == 0
    there = [name for name, flag in zip(values, store.batch_is_exist(list(values))) if flag]
    assert 10 < len(there) < 100
    for name in values:
        assert store.get(name) in ((values[name],) if name in there else (b"", values[name]))


def stored_at(store, name, nbytes):
    """Stores zeros, and says where: the room of a put session stays writable."""
    assert store.batch_put_session_start([name], [nbytes]) == [0]
    room = (ctypes.c_char * nbytes).from_buffer(store._writing[name.encode()].group.batch[0])
    where = ctypes.addressof(room)
    del room
    assert store.batch_put_session_end([name]) == [0]
    return where


def test_a_flipped_byte_is_never_handed_out(own_node):
    """Known failure 40: with verify="always" a value whose bytes changed in the pool is a failure, then a miss."""
    store = set_up(own_node, verify="always")
    where = stored_at(store, "k", 8192)
    assert store.get("k") == bytes(8192)
    ctypes.memset(where + 5000, 1, 1)
    memory = Memory(8192)
    assert store.get("k") == b"" and store.get_into("k", memory.ptr, 8192) == MISSING
    assert store.counts["data_loss"] >= 1
    assert store.upsert("k", b"good") == 0 and store.get("k") == b"good"
    store.close()


def test_what_has_more_room_than_it_needs_is_no_failure(own_node):
    """Where another key of the batch is one, that alone is counted."""
    store = set_up(own_node, verify="always")
    ctypes.memset(stored_at(store, "damaged", 8192) + 5000, 1, 1)
    assert store.put("sound", bytes(100)) == 0
    memory, room = Memory(8192), Memory(8192)
    assert store.batch_get_into(["damaged", "sound"], [memory.ptr, room.ptr], [8192, 8192]) == [MISSING, 100]
    assert store.counts == {"data_loss": 1}
    store.close()


def test_a_forked_child_connects_for_itself(node, program):
    code = """
import os, sys, kvist.mooncake as m
s = m.MooncakeDistributedStore()
assert s.setup("h", "P2PHANDSHAKE", 0, 0, "tcp", "", sys.argv[1]) == 0
assert s.upsert("forked", b"parent") == 0
assert s.batch_put_session_start(["open"], [10]) == [0] and s.batch_get_session_start(["forked"]) == [0]
pid = os.fork()
if pid == 0:
    ok = s.get("forked") == b"parent" and s.put("child", b"c") == 0 and s.batch_put_session_end(["open"]) == [-600]
    ok = ok and s.close() == 0 and s.get("forked") == b""
    os._exit(0 if ok else 1)
assert os.waitpid(pid, 0)[1] == 0
assert s.get("child") == b"c" and s.batch_put_session_end(["open"]) == [0] and s.get_size("open") == 10
assert s.batch_remove(["child", "open", "forked"]) == [0, 0, 0] and s.batch_get_session_end(["forked"]) == 0
assert s.close() == 0
print("done")
"""
    assert program(code, node.socket).finish() == (0, "done\n")


def test_nonsense_is_refused_and_nothing_else(kvist_store, rng):
    """Known failure 39 in this module's terms: whatever the arguments are, there is a code or a TypeError."""
    memory = Memory(256)
    texts = ["", "a", "k" * 5000, b"\xff\xfe", b"", bytearray(b"x"), None, 5, "\ud800", ("a",)]
    values = [b"", b"v", memoryview(b"abc"), bytearray(9), None, "text", [b"a"], 5, memoryview(b"")]

    def lists(of):
        return rng.choice([[rng.choice(of) for _ in range(rng.randrange(4))], rng.choice(of), None])

    def pick(kind):
        # Sizes that are more than the memory has are not among what is given with its address.
        if kind == "key":
            return rng.choice(texts)
        if kind == "keys":
            return lists(texts)
        if kind == "value":
            return rng.choice(values)
        if kind == "values":
            return lists(values)
        if kind == "ptr":
            return rng.choice([0, memory.ptr, -1, 2**63, 2**64, None, "x", 1.5, 77])
        if kind == "size":
            return rng.choice([0, 1, 8, 256, -1, 2**60, 2**64, None, "x", 1.5])
        if kind == "ptrs":
            return lists([0, memory.ptr, -1, 2**64, None, 77])
        if kind == "sizes":
            return lists([0, 1, 8, 256, -1, 2**60, None])
        return lists([[], [memory.ptr], [0, memory.ptr], [-1], None, 5]) if kind == "many" else lists([[], [8], [1, 255], [-1], 5])

    calls = {
        "put": ("key", "value"),
        "get": ("key",),
        "get_batch": ("keys",),
        "put_batch": ("keys", "values"),
        "put_parts": ("key", "value", "value"),
        "upsert": ("key", "value"),
        "upsert_batch": ("keys", "values"),
        "put_from": ("key", "ptr", "size"),
        "get_into": ("key", "ptr", "size"),
        "batch_put_from": ("keys", "ptrs", "sizes"),
        "batch_upsert_from": ("keys", "ptrs", "sizes"),
        "batch_get_into": ("keys", "ptrs", "sizes"),
        "batch_put_from_multi_buffers": ("keys", "many", "pieces"),
        "batch_get_into_multi_buffers": ("keys", "many", "pieces"),
        "is_exist": ("key",),
        "batch_is_exist": ("keys",),
        "longest_prefix": ("keys",),
        "get_size": ("key",),
        "get_buffer": ("key",),
        "remove": ("key",),
        "batch_remove": ("keys",),
        "batch_put_session_start": ("keys", "sizes"),
        "batch_put_from_multi_buffer_ranges": ("keys", "many", "pieces", "pieces"),
        "batch_put_session_end": ("keys",),
        "batch_get_session_start": ("keys",),
        "batch_get_into_multi_buffer_ranges": ("keys", "many", "pieces", "pieces"),
        "batch_get_session_end": ("keys",),
        "get_tensor": ("key",),
        "put_tensor_from": ("key", "ptr", "size"),
        "register_buffer": ("ptr", "size"),
        "unregister_buffer": ("ptr",),
    }
    for _ in range(6000):
        name = rng.choice(list(calls))
        arguments = [pick(kind) for kind in calls[name]]
        try:
            getattr(kvist_store, name)(*arguments)
        except TypeError:
            pass
        except Exception as error:
            pytest.fail(f"{name}{tuple(arguments)}: {error!r}")
    assert kvist_store.put("still works", b"1") == 0 and kvist_store.get("still works") == b"1"


def test_stores_that_come_and_go_leave_nothing(node, tmp_path):
    """Known failure 35 in this module's terms: no thread, descriptor or mapping stays, whether close() was called or not."""

    def used():
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    def one(close):
        store = set_up(node)
        assert store.put("k", b"v") == 0 and store.batch_put_session_start(["s"], [10]) == [0]
        assert store.batch_get_session_start(["k"]) == [0] and store.remove_all() == 1
        assert not close or store.close() == 0
        late = ours.MooncakeDistributedStore()
        assert late.setup(settings(tmp_path / "none.sock", late=True)) == 0
        assert not close or late.close() == 0

    one(True)
    before = used()
    for i in range(6):
        one(close=i % 2 == 0)
    wait_until(lambda: all(now <= then for now, then in zip(used(), before)), f"{before} threads and descriptors at most")


def test_threads_whose_store_is_closed_and_set_up_again(own_node):
    config = settings(own_node.socket)
    store = ours.MooncakeDistributedStore()
    assert store.setup(config) == 0
    end, wrong, puts = time.monotonic() + 3, [], set()
    value, memory = b"v" * 1000, [Memory(1000) for _ in range(4)]

    def work(number):
        p = memory[number].ptr
        try:
            while time.monotonic() < end:
                codes = [store.put("k", value), store.get_into("k", p, 1000), store.is_exist("k")]
                codes += store.batch_put_session_start([f"s{number}"], [10]) + store.batch_put_session_end([f"s{number}"])
                codes += store.batch_get_session_start(["k"]) + store.batch_get_into_multi_buffer_ranges(["k"], [[p]], [[9]], [[0]])
                handle = store.get_buffer("k")
                if store.get("k") not in (b"", value) or (handle is not None and len(handle) != 1000):
                    wrong.append("bytes")
                if not set(codes) <= {0, 1, 9, 1000, INVALID, MISSING, NO_NODE, -705}:
                    wrong.append(codes)
                puts.add(codes[0])
        except Exception as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while time.monotonic() < end:
        assert store.close() == 0 and store.setup(config) == 0
        time.sleep(0.05)  # so long it is of use, before it is closed under the threads again
    for thread in threads:
        thread.join()
    store.close()
    assert not wrong, wrong[:5]
    assert puts >= {0, INVALID}, "there were calls that found it open, and calls that found it closed"


def test_sizes_beyond_what_a_length_can_be(kvist_store):
    memory = Memory(64)
    for size in (1 << 32, (1 << 32) + 8, 5 << 30, 1 << 40, 1 << 55):
        assert kvist_store.put_from("huge", memory.ptr, size) == NO_ROOM
        assert kvist_store.batch_put_from_multi_buffers(["huge"], [[memory.ptr, memory.ptr]], [[size, size]]) == [NO_ROOM]
        assert kvist_store.get_into("huge", memory.ptr, size) == MISSING
    assert kvist_store.is_exist("huge") == 0
    assert kvist_store.put("small", b"12345678") == 0
    assert kvist_store.get_into("small", memory.ptr, (1 << 32) + 8) == 8 and memory[:8] == b"12345678"
    assert kvist_store.batch_get_into_multi_buffers(["small"], [[memory.ptr] * 2], [[1 << 32, 8]]) == [-800]


def test_it_starts_without_any_device_or_other_package(node, program):
    """Known failure 36: no RDMA, no CUDA, no numpy, no torch."""
    code = """
import sys
for name in ("numpy", "torch", "mooncake"):
    sys.modules[name] = None
import kvist.mooncake as m
s = m.MooncakeDistributedStore()
assert s.setup("h", "P2PHANDSHAKE", 0, 0, "rdma", "mlx5_0", sys.argv[1]) == 0
assert s.upsert("k", b"v") == 0 and s.get("k") == b"v" and s.remove("k") == 0
assert s.put_tensor("t", 1) == -600 and s.get_tensor("t") is None
s.close()
print("done")
"""
    assert program(code, node.socket).finish() == (0, "done\n")
