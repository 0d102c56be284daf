"""The LMCache door: the contract of a native_plugin on a real node, its faults, and LMCache itself where it is installed.

Tests of LMCache itself need its package: `make test-engines ENGINE=lmcache`, or KVIST_TEST_PYTHON=VENV/bin/python.
"""

import ctypes
import gc
import os
import re
import select
import signal
import threading
import time
import weakref

import pytest

import kvist
from conftest import wait_until
from kvist.lmcache import KvistConnector

KIB, MIB = 1 << 10, 1 << 20
SOON = 30.0  # seconds in which something must have happened, on a machine that has other things to do


class Driver:
    """What LMCache's adapter does with a connector: polls its descriptor, drains, and keeps the answers by future."""

    def __init__(self, **parameters):
        self.connector = KvistConnector(**parameters)
        self.fd = self.connector.event_fd()
        self.poller = select.poll()
        self.poller.register(self.fd, select.POLLIN)
        self.answers = {}

    def wait(self, future, seconds=SOON):
        end = time.monotonic() + seconds
        while future not in self.answers:
            left = end - time.monotonic()
            assert left > 0, f"future {future} did not end within {seconds} s: {self.connector.state}"
            if self.poller.poll(left * 1000):
                for number, ok, error, by_key in self.connector.drain_completions():
                    assert number not in self.answers, f"future {number} ended twice"
                    assert type(ok) is bool and type(error) is str and all(type(each) is bool for each in by_key)
                    self.answers[number] = (ok, error, by_key)
        return self.answers.pop(future)

    def set(self, keys, values):
        return self.wait(self.connector.submit_batch_set(keys, [memoryview(value) for value in values]))

    def get(self, keys, sizes):
        """By key: the bytes, or None."""
        buffers = [bytearray(size) for size in sizes]
        _, _, by_key = self.wait(self.connector.submit_batch_get(keys, [memoryview(buffer) for buffer in buffers]))
        return [bytes(buffer) if there else None for buffer, there in zip(buffers, by_key, strict=True)]

    def exists(self, keys):
        return self.wait(self.connector.submit_batch_exists(keys))[2]

    def delete(self, keys):
        return self.wait(self.connector.submit_batch_delete(keys))[2]

    def close(self):
        self.connector.close()


@pytest.fixture
def drive(request):
    """Makes drivers, and closes them."""
    made = []

    def make(node=None, **parameters):
        if node is not None:
            parameters["socket"] = node.socket
        parameters.setdefault("deadline", 20)  # tests that promise a time say their own; the others need success alone
        parameters.setdefault("namespace", re.sub(r"\W", "-", request.node.name)[:80])
        made.append(Driver(**parameters))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def own_node():
    """A node for tests that fill it or do it harm."""
    with kvist.Node(memory="64MiB", admin=None) as running:
        wait_ready(running)
        yield running


def wait_ready(node):
    """Until all of its memory is there, so that how much fits is known."""
    with node.client() as client:
        wait_until(lambda: client.report()["ready_bytes"] == client.report()["capacity_bytes"], "it has its memory")


def value(number, size):
    unit = b"value %08d|" % number
    return bytearray((unit * (size // len(unit) + 1))[:size])


def name(number, model="org/model", salt=""):
    """A key as LMCache makes them: model, rank, object group, hash of the tokens, salt."""
    return f"{model}@01000100@0@{number:064x}" + (f"@{salt}" if salt else "")


def pins(node):
    with node.client() as client:
        return client.report()["pinned"]


# ---- the contract -----------------------------------------------------------------------------------------------


def test_values_of_all_sizes_are_found_and_loaded(node, drive):
    mine = drive(node)
    sizes = [1, 63, 4 * KIB, 100_000, 2 * MIB, 5 * MIB + 3]
    keys, values = [name(i) for i in range(len(sizes))], [value(i, size) for i, size in enumerate(sizes)]
    assert mine.exists(keys) == [False] * len(keys)
    ok, error, _ = mine.set(keys, values)
    assert ok and not error
    assert mine.exists([name(99), *keys]) == [False] + [True] * len(keys)
    assert mine.get([*keys, name(99)], [*sizes, 10]) == [bytes(each) for each in values] + [None]


def test_buffers_are_raw_memory_as_lmcache_gives_it(node, drive):
    mine = drive(node)
    arena = (ctypes.c_ubyte * (8 * KIB)).from_buffer(value(1, 8 * KIB))
    address = ctypes.addressof(arena)
    views = [memoryview((ctypes.c_ubyte * size).from_address(address + at)) for at, size in ((64, 1000), (4096, 4096))]
    assert all(view.format == "<B" and not view.readonly for view in views)
    assert mine.wait(mine.connector.submit_batch_set(["a", "b"], views))[0]
    before = bytes(arena)
    ctypes.memset(address, 0, 8 * KIB)
    assert mine.wait(mine.connector.submit_batch_get(["a", "b"], views))[2] == [True, True]
    assert bytes(arena) == bytes(64) + before[64:1064] + bytes(4096 - 1064) + before[4096:]


def test_a_key_that_is_there_is_stored_without_being_written(node, drive):
    mine = drive(node)
    assert mine.set(["k"], [value(1, KIB)])[0]
    assert mine.set(["k"], [value(2, KIB)])[0]
    assert mine.set(["new", "k", "new"], [value(3, KIB)] * 3)[0]
    assert mine.get(["k", "new"], [KIB, KIB]) == [value(1, KIB), value(3, KIB)]


def test_another_length_is_a_miss_of_that_key_alone_and_touches_no_buffer(node, drive):
    """Known failure 2 as far as lengths show it."""
    mine = drive(node)
    assert mine.set(["a", "b"], [value(1, KIB), value(2, KIB)])[0]
    longer = bytearray(b"#" * (KIB + 1))
    shorter = bytearray(b"#" * (KIB - 1))
    right = bytearray(KIB)
    future = mine.connector.submit_batch_get(["a", "b", "a"], [memoryview(each) for each in (longer, right, shorter)])
    assert mine.wait(future)[2] == [False, True, False]
    assert right == value(2, KIB) and set(longer) == set(shorter) == {ord("#")}
    assert mine.connector.counts["out_of_range"] == 2


def test_a_set_is_whole_or_not_ok(node, drive):
    mine = drive(node)
    ok, error, by_key = mine.set(["good", ""], [value(1, KIB), value(2, KIB)])
    assert not ok and "invalid_argument" in error and by_key == [True, False]
    assert mine.exists(["good", ""]) == [True, False]


def test_keys_of_up_to_4096_bytes(node, drive):
    mine = drive(node)
    longest, longer, other = "k" * 4096, "k" * 4097, "ö" * 2048
    assert mine.set([longest, other], [value(1, 100), value(2, 100)])[0]
    assert not mine.set([longer], [value(3, 100)])[0]
    assert mine.exists([longest, longer, other]) == [True, False, True]
    assert mine.get([longest, longer, other], [100] * 3) == [value(1, 100), None, value(2, 100)]
    assert not mine.set(["\ud800"], [value(3, 100)])[0]  # no text that has bytes
    assert mine.exists(["\ud800"]) == [False]


def test_salts_ranks_and_models_are_part_of_the_name(node, drive):
    mine = drive(node)
    keys = [name(1), name(1, salt="user"), name(1, salt="user2"), name(1, model="org/model-2"), name(2)]
    assert mine.set(keys, [value(i, 500) for i in range(len(keys))])[0]
    assert mine.get(keys, [500] * len(keys)) == [value(i, 500) for i in range(len(keys))]


def test_deleted_values_are_gone_and_absent_ones_count_as_gone(node, drive):
    mine = drive(node)
    assert mine.set(["a", "b"], [value(1, KIB), value(2, KIB)])[0]
    assert mine.delete(["a", "never"]) == [True, True]
    assert mine.exists(["a", "b"]) == [False, True]
    assert mine.set(["a"], [value(3, KIB)])[0]
    assert mine.get(["a"], [KIB]) == [value(3, KIB)]


def test_a_batch_of_nothing_ends(node, drive):
    mine = drive(node)
    assert mine.set([], []) == (True, "", [])
    assert mine.get([], []) == []
    assert mine.exists([]) == [] and mine.delete([]) == []


def test_arguments_that_cannot_be(node, drive):
    mine = drive(node)
    with pytest.raises(ValueError, match="2 keys with 1 buffers"):
        mine.connector.submit_batch_get(["a", "b"], [memoryview(bytearray(8))])
    assert mine.set(["a"], [value(1, 8)])[0]
    ok, error, by_key = mine.wait(mine.connector.submit_batch_get(["a"], [memoryview(bytes(8))]))
    assert not ok and "for reading only" in error and by_key == [False]
    assert mine.connector.counts["refused"] == 1
    assert mine.set(["c"], [b"read-only is enough to store"])[0]


def test_buffers_of_other_items_count_in_bytes(own_node, drive):
    mine = drive(own_node)
    numbers = memoryview(value(1, 9 * MIB)).cast("d")  # in pieces, which are cut by bytes
    assert mine.wait(mine.connector.submit_batch_set(["k"], [numbers]))[0]
    assert mine.get(["k"], [9 * MIB]) == [value(1, 9 * MIB)]


def test_thousands_of_keys_in_a_batch(node, drive):
    mine = drive(node)
    keys = [name(i) for i in range(5000)]
    assert mine.set(keys[::2], [value(i, 64) for i in range(0, 5000, 2)])[0]
    assert mine.exists(keys) == [i % 2 == 0 for i in range(5000)]
    assert mine.get(keys, [64] * 5000) == [None if i % 2 else value(i, 64) for i in range(5000)]
    assert all(mine.delete(keys)) and not any(mine.exists(keys))


def test_draining_empties_the_descriptor(node, drive):
    mine = drive(node)
    assert mine.connector.drain_completions() == []
    futures = {mine.connector.submit_batch_exists([name(i)]) for i in range(10)}
    wait_until(lambda: mine.connector.state["open"] == 0, "all ended")
    assert mine.poller.poll(0)
    assert mine.poller.poll(0), "poll is level-triggered: only draining clears it"
    assert {each[0] for each in mine.connector.drain_completions()} == futures
    assert not mine.poller.poll(0)
    assert os.get_blocking(mine.fd) is False and os.get_inheritable(mine.fd) is False


def test_servers_share_values_when_all_that_the_operator_says_is_equal(node, drive):
    """Known failure 2: another dtype, revision or layout under one model name is a miss."""
    told = dict(namespace="shared", model="m", revision="r1", dtype="bfloat16", layout="KV_2LTD")
    assert drive(node, **told).set(["k"], [value(1, KIB)])[0]
    assert drive(node, **told).get(["k"], [KIB]) == [value(1, KIB)]
    for other in ("namespace", "model", "revision", "dtype", "layout"):
        assert drive(node, **{**told, other: "other"}).exists(["k"]) == [False], other


def test_settings_that_cannot_be(node):
    with pytest.raises(ValueError, match="did you mean 'namespace'"):
        KvistConnector(socket=node.socket, namespaces="x")
    wrong = {"lease": 0, "leases": 0, "readers": 65, "queue": "x", "lease_bytes": "1GB", "deadline": "soon"}
    for key, given in wrong.items():
        with pytest.raises(ValueError, match=f"kvist.lmcache: {key} must be"):
            KvistConnector(socket=node.socket, **{key: given})


# ---- values that are longer than a block ------------------------------------------------------------------------


def test_a_value_longer_than_a_block_is_stored_in_pieces(own_node, drive):
    mine = drive(own_node)
    size = 9 * MIB + 5  # a pool of 64 MiB has blocks of 4 MiB at most
    small, large = value(1, KIB), value(2, size)
    assert mine.set(["small", "large"], [small, large])[0]
    assert mine.set(["large"], [large])[0]
    assert mine.exists(["large", "none", "small"]) == [True, False, True]
    assert mine.connector.state["leased_blocks"] == 4
    assert mine.get(["small", "large"], [KIB, size]) == [small, large]
    assert mine.connector.state["leased_blocks"] == 0
    assert mine.set(["even"], [value(3, 8 * MIB)])[0]
    lengths = [size - 1, 4 * MIB, 8 * MIB, 9 * MIB]
    assert mine.get(["large", "large", "even", "even"], lengths) == [None, None, value(3, 8 * MIB), None]
    assert mine.delete(["large", "even"]) == [True, True]
    assert mine.delete(["large"]) == [True]
    assert mine.exists(["large", "small"]) == [False, True]
    with own_node.client() as client:
        assert client.report()["blocks"] == 1, "no piece is left behind"


def test_a_value_of_which_a_piece_is_gone_is_a_miss(own_node, drive):
    """Known failures 5 and 17: never a value of which a part is missing."""
    mine = drive(own_node, namespace="torn")
    size = 9 * MIB
    assert mine.set(["large"], [value(1, size)])[0]
    space = mine.connector._link.space()
    names = mine.connector._store.__self__._pieces(space, space.digests(["large"]), size, 4 * MIB)
    assert space.remove(names[1:2], part="piece").ok
    assert mine.exists(["large"]) == [False]
    assert mine.get(["large"], [size]) == [None]
    assert mine.set(["large"], [value(1, size)])[0]  # what is missing is stored again
    assert mine.get(["large"], [size]) == [value(1, size)]


# ---- leases -----------------------------------------------------------------------------------------------------


def fill(node, seconds=2.5):
    """Stores many times what the node has room for by another client, for longer than the pool spares what was just stored,
    so that all that nobody holds is evicted."""
    end = time.monotonic() + seconds
    with node.client() as client:
        space = client.open(kvist.Identity("filler", "filler", key_kind="opaque"))
        while time.monotonic() < end:
            names = space.digests([b"filler %d %d" % (time.monotonic_ns(), i) for i in range(4)])
            space.put(names, bytes(4 * MIB), unchained=True).check()
            time.sleep(0.02)


def test_what_was_found_stays_until_it_was_loaded(own_node, drive):
    mine = drive(own_node, lease=120)
    keys = [name(i) for i in range(8)]
    assert mine.set(keys, [value(i, MIB) for i in range(8)])[0]
    assert all(mine.exists(keys))
    assert mine.connector.state["leased_bytes"] == 8 * MIB
    fill(own_node)
    assert mine.get(keys, [MIB] * 8) == [value(i, MIB) for i in range(8)]
    assert mine.connector.state["leased_blocks"] == 0
    fill(own_node)
    assert mine.get(keys, [MIB] * 8) == [None] * 8, "without a lease it was evicted, so the lease is what kept it"


def test_a_lease_ends_by_itself(own_node, drive):
    mine = drive(own_node, lease=0.2)
    assert mine.set(["k"], [value(1, MIB)])[0]
    assert mine.exists(["k"]) == [True]
    wait_until(lambda: mine.connector.state["leased_blocks"] == 0, "the lease is over, with no call of ours")
    assert mine.connector.state["leases_expired"] == 1
    wait_until(lambda: pins(own_node) == 0, "the node sees no pin")
    fill(own_node)
    assert mine.get(["k"], [MIB]) == [None], "gone in between: told as a miss"


def test_leases_hold_a_bounded_number_of_blocks_and_the_newest_win(node, drive):
    mine = drive(node, leases=8, lease=120)
    keys = [name(i) for i in range(40)]
    assert mine.set(keys, [value(i, KIB) for i in range(40)])[0]
    for first in range(0, 40, 4):
        assert all(mine.exists(keys[first : first + 4]))
        assert mine.connector.state["leased_blocks"] <= 8
    assert set(mine.connector._leases._by_key) == set(keys[32:])
    assert all(mine.exists(keys)), "beyond the bound it is told without being held"
    assert set(mine.connector._leases._by_key) == set(keys[:8]) and mine.connector.counts["unleased"] == 32


def test_leases_hold_a_quarter_of_the_pool_at_most(own_node, drive):
    mine = drive(own_node, lease=120)
    keys = [name(i) for i in range(12)]
    assert mine.set(keys, [value(i, 2 * MIB) for i in range(12)])[0]
    for key in keys:
        assert mine.exists([key]) == [True]
    assert mine.connector.state["leased_bytes"] == 16 * MIB
    many = [name(100 + i) for i in range(40)]
    assert mine.set(many, [value(i, MIB // 2) for i in range(40)])[0]
    assert all(mine.exists(many)), "one look-up alone finds more than that"
    assert mine.connector.state["leased_blocks"] == 32 and mine.connector.counts["unleased"] == 8
    assert set(mine.connector._leases._by_key) == set(many[:32]), "the first are held, which are loaded first"


def test_each_look_up_has_its_lease(node, drive):
    mine = drive(node, lease=120)
    assert mine.set(["a", "b"], [value(1, KIB), value(2, KIB)])[0]
    for _ in range(3):
        assert mine.exists(["a", "b", "a"]) == [True] * 3
    for left in (6, 3):
        assert mine.connector.state["leased_blocks"] == left + 3
        mine.get(["a", "b"], [KIB, KIB])
    mine.get(["a"], [KIB])
    assert mine.connector.state["leased_blocks"] == 3
    mine.get(["b"], [5])  # asked for, and not to be had: it is over too
    assert mine.connector.state["leased_blocks"] == 0 and not mine.connector._leases._by_key


def test_many_times_a_small_pool_leaves_no_lease_and_a_steady_hit_rate(own_node, drive):
    """Known failure 35: leases and locks do not leak, and the hit rate does not sink, however much goes through a pool."""
    mine = drive(own_node, lease=120)
    size, batch, rates = 256 * KIB, 16, []
    for turn in range(200):  # 800 MiB
        keys = [name(turn * batch + i) for i in range(batch)]
        assert mine.set(keys, [value(i, size) for i in range(batch)])[0], mine.connector.counts
        recent = [name((turn - back) * batch + i) for back in range(4) for i in range(batch) if turn >= back]
        found = mine.exists(recent)
        got = mine.get(recent, [size] * len(recent))
        assert [each is not None for each in got] == found, "what was found was there"
        rates.append(sum(found) / len(recent))
        assert mine.connector.state["leased_blocks"] == 0 or not all(found)
    assert min(rates) == 1.0
    assert not mine.connector._leases._by_key and mine.connector._leases.held == (0, 0)


# ---- threads, bounds, ends --------------------------------------------------------------------------------------


def test_many_threads_submit_at_once(node, drive):
    """Known failures 6 and 29: each future ends once, with its own answer."""
    mine = drive(node, queue=100_000)
    futures, answers, lock = {}, {}, threading.Lock()
    size, stop = 8 * KIB, threading.Event()

    def submit(thread):
        for i in range(60):
            key = name(thread * 1000 + i)
            stored = mine.connector.submit_batch_set([key], [memoryview(value(thread * 1000 + i, size))])
            absent = mine.connector.submit_batch_exists([f"absent {key}"])
            with lock:
                futures[stored], futures[absent] = (True, [True]), (True, [False])

    def drain():
        while not stop.is_set():
            if mine.poller.poll(50):
                for number, ok, _, by_key in mine.connector.drain_completions():
                    assert number not in answers
                    answers[number] = (ok, by_key)

    threads = [threading.Thread(target=submit, args=(i,)) for i in range(8)] + [threading.Thread(target=drain)]
    for thread in threads:
        thread.start()
    for thread in threads[:-1]:
        thread.join()
    wait_until(lambda: len(answers) == len(futures), "all futures ended")
    stop.set()
    threads[-1].join()
    assert answers == futures and len(futures) == 8 * 60 * 2
    keys = [thread * 1000 + i for thread in range(8) for i in range(60)]
    assert mine.get([name(key) for key in keys], [size] * len(keys)) == [value(key, size) for key in keys]


def test_ten_thousand_futures(node, drive):
    mine = drive(node, queue=10_000)
    assert mine.set([name(i) for i in range(0, 100, 2)], [value(i, 100) for i in range(0, 100, 2)])[0]
    futures = [mine.connector.submit_batch_exists([name(i % 100)]) for i in range(10_000)]
    assert futures == list(range(futures[0], futures[0] + 10_000))
    assert [mine.wait(future)[2] for future in futures] == [[i % 2 == 0] for i in range(10_000)]
    assert mine.connector.state["open"] == 0 and "queue_full" not in mine.connector.counts


@pytest.fixture
def stopped():
    """Stops a node's process, and lets it go on at the end."""
    halted = []

    def stop(node):
        os.kill(node.pid, signal.SIGSTOP)
        halted.append(node)

    yield stop
    for node in halted:
        os.kill(node.pid, signal.SIGCONT)


def test_a_full_queue_fails_at_once_and_is_counted(own_node, drive, stopped):
    mine = drive(own_node, queue=4, writers=1, deadline=1)
    assert mine.set(["there"], [value(1, KIB)])[0]
    stopped(own_node)
    futures = [mine.connector.submit_batch_set([f"k{i}"], [memoryview(value(i, KIB))]) for i in range(12)]
    told = mine.connector.drain_completions()
    assert [each[0] for each in told] == futures[4:], "those beyond the bound have ended as they were submitted"
    assert all(each[1:] == (False, "4 batches are waiting already", [False]) for each in told)
    assert mine.connector.counts["queue_full"] == 8
    for future in futures[:4]:
        assert mine.wait(future)[0] is False


def test_look_ups_go_before_loads_and_each_kind_in_its_order(node, drive, monkeypatch):
    mine = drive(node, readers=1)
    going, go_on = threading.Event(), threading.Event()
    find = mine.connector._find

    def wait(*_):
        going.set()
        go_on.wait(SOON)

    monkeypatch.setattr(mine.connector, "_find", wait)
    futures = [mine.connector.submit_batch_exists(["first"])]
    assert going.wait(SOON)
    monkeypatch.setattr(mine.connector, "_find", find)
    into = memoryview(bytearray(8))
    loads = [mine.connector.submit_batch_get([f"{i}"], [into]) for i in range(5)]
    futures += [mine.connector.submit_batch_exists([f"{i}"]) for i in range(5)]
    go_on.set()
    wait_until(lambda: mine.connector.state["open"] == 0, "all ended")
    assert [each[0] for each in mine.connector.drain_completions()] == futures + loads


def test_several_connectors_store_the_same_keys_at_once(node, drive):
    """Known failure 29: several in one process, each store a success, whoever was first."""
    drivers = [drive(node, namespace="at once") for _ in range(4)]
    for turn in range(20):
        keys = [name(turn * 16 + i) for i in range(16)] * 2
        values = [memoryview(value(turn * 16 + i, 300 * KIB)) for i in range(16)] * 2
        futures = [each.connector.submit_batch_set(keys, values) for each in drivers]
        for each, future in zip(drivers, futures, strict=True):
            assert each.wait(future)[:2] == (True, "")
    assert drivers[0].get(keys, [300 * KIB] * 32) == [bytes(each) for each in values]


def test_who_never_drains_is_refused(node, drive):
    mine = drive(node, queue=2)
    with pytest.raises(kvist.ResourceExhausted, match="were not drained"):
        for _ in range(100):
            mine.connector.submit_batch_exists(["k"])
            wait_until(lambda: mine.connector.state["open"] == 0, "it ended")
    assert len(mine.connector.drain_completions()) == 8
    assert mine.exists(["k"]) == [False]


def test_buffers_are_held_until_the_end_and_no_longer(own_node, drive, stopped):
    class Arena(ctypes.Array):
        _type_, _length_ = ctypes.c_ubyte, KIB

    mine = drive(own_node, deadline=1, writers=1)
    stopped(own_node)
    arena = Arena()
    gone = weakref.ref(arena)
    future = mine.connector.submit_batch_set(["k"], [memoryview(arena)])
    del arena
    gc.collect()
    assert gone() is not None, "the submitted batch holds it"
    assert mine.wait(future)[0] is False
    gc.collect()
    assert gone() is None, "LMCache's memory is let go of"


def test_after_close_nothing_touches_buffers_or_the_descriptor(own_node, drive):
    for turn in range(10):
        mine = Driver(socket=own_node.socket, namespace="close")
        buffers = [value(i, 2 * MIB) for i in range(6)]
        keys = [name(turn * 6 + i) for i in range(6)]
        for _ in range(3):
            mine.connector.submit_batch_set(keys, [memoryview(each) for each in buffers])
            mine.connector.submit_batch_get(keys, [memoryview(each) for each in buffers])
        if turn % 2:
            time.sleep(0.002 * turn)
        mine.close()
        others = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(4)]
        assert mine.fd in others, "the number is used again"
        for each in buffers:
            each[:] = b"\x55" * len(each)
            each.append(0)  # a BufferError if anybody still had a view of it
        time.sleep(0.01)
        assert all(set(each[:-1]) == {0x55} for each in buffers)
        for other in others:
            with pytest.raises(BlockingIOError):
                os.eventfd_read(other)
            os.close(other)
        assert mine.connector.drain_completions() == []
        with pytest.raises(kvist.FailedPrecondition, match="was closed"):
            mine.connector.submit_batch_exists(["k"])
        with pytest.raises(kvist.FailedPrecondition):
            mine.connector.event_fd()
        mine.close()
        del mine


def test_nothing_is_left_of_connectors(node):
    def counted():
        gc.collect()
        names = [thread.name for thread in threading.enumerate() if thread.name.startswith("kvist-lm")]
        return len(os.listdir("/proc/self/fd")), names

    before = counted()
    for i in range(20):
        mine = Driver(socket=node.socket, namespace="leaks")
        mine.set(["k"], [value(i, KIB)])
        mine.exists(["k"])  # a lease is left
        if i % 2:
            mine.close()
        del mine  # not closed: its threads end all the same
    wait_until(lambda: counted() == before, f"descriptors and threads are those before: {before}, {counted()}")


def test_one_that_is_dropped_in_a_cycle_ends_wherever_it_is_collected(node):
    """The collector may run in a thread of the connector's own, while that holds the connector's lock."""
    before = threading.active_count()
    mine = Driver(socket=node.socket, namespace="cycle")
    mine.connector.own = mine  # LMCache's adapter is in a cycle with its thread, too
    gone, crew = weakref.ref(mine.connector), mine.connector._crew
    del mine
    with crew._lock:
        gc.collect()
    assert gone() is None
    wait_until(lambda: threading.active_count() <= before, "all threads ended")


def test_a_fork_has_no_part_in_it(node, drive):
    mine = drive(node)
    assert mine.set(["k"], [value(1, KIB)])[0]
    assert mine.exists(["k"]) == [True]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for call in (
                lambda: mine.connector.submit_batch_exists(["k"]),
                lambda: mine.connector.submit_batch_set(["k"], [memoryview(b"x")]),
                mine.connector.drain_completions,
            ):
                try:
                    call()
                    os._exit(2)
                except kvist.Forked:
                    pass
            mine.connector.close()
            mine.connector.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not mine.poller.poll(0)
    assert mine.get(["k"], [KIB]) == [value(1, KIB)]
    assert mine.connector.state["link"] == "connected"


EXITS = """
import sys, time
from kvist.lmcache import KvistConnector
connector = KvistConnector(socket=sys.argv[1], namespace="exits")
buffers = [memoryview(bytearray(4 << 20)) for _ in range(8)]
for i in range(20):
    connector.submit_batch_set([f"{i} {j}" for j in range(8)], buffers)
    connector.submit_batch_get([f"{i} {j}" for j in range(8)], buffers)
if sys.argv[2] == "late":
    time.sleep(0.05)
"""


@pytest.mark.parametrize("when", ["soon", "late"])
def test_a_process_that_ends_without_closing_ends_well(own_node, program, when):
    code, out = program(EXITS, own_node.socket, when).finish()
    assert (code, out) == (0, "")


# ---- faults -----------------------------------------------------------------------------------------------------


def test_a_node_that_comes_late_is_found(drive, tmp_path, caplog):
    """Known failures 9 and 26: the engine starts without, every answer is a miss, and hits come with the node."""
    mine = drive(socket=str(tmp_path / "node.sock"))
    assert mine.exists(["k"]) == [False]
    ok, error, by_key = mine.set(["k"], [value(1, KIB)])
    assert not ok and error == "unavailable" and by_key == [False]
    assert mine.get(["k"], [KIB]) == [None] and mine.delete(["k"]) == [False]
    assert mine.connector.counts["unavailable"] >= 4
    time.sleep(2)
    with kvist.Node(memory="64MiB", admin=None, socket=tmp_path / "node.sock"):
        wait_until(lambda: mine.set(["k"], [value(1, KIB)])[0], "it stores")
        assert mine.exists(["k"]) == [True]
        assert mine.get(["k"], [KIB]) == [value(1, KIB)]
    told = [record for record in caplog.records if record.name == "kvist.lmcache" and record.levelname == "WARNING"]
    assert 1 <= len(told) <= 3, "told once, not at each call"


def test_a_node_that_is_stopped_costs_a_deadline_and_no_more(own_node, drive, stopped, caplog):
    """Known failures 8 and 9: what waits for an answer that does not come fails by its deadline; the rest goes on."""
    mine = drive(own_node, deadline=1)
    assert mine.set(["k"], [value(1, MIB)])[0]
    stopped(own_node)
    begun = time.monotonic()
    futures = [mine.connector.submit_batch_set([f"k{i}"], [memoryview(value(i, MIB))]) for i in range(50)]
    futures += [mine.connector.submit_batch_delete([f"k{i}"]) for i in range(50)]
    assert time.monotonic() - begun < 0.9, "submitting does not wait for the node"
    assert mine.get(["k"], [MIB]) == [value(1, MIB)], "reading needs no node"
    assert mine.exists(["k", "k1"]) == [True, False]
    answers = [mine.wait(future) for future in futures]
    assert not any(ok and all(by_key) for ok, _, by_key in answers[1:])
    assert mine.connector.counts["late"] + mine.connector.counts["deadline_exceeded"] >= 90
    told = [record.getMessage() for record in caplog.records if record.name == "kvist.lmcache"]
    assert any("wait longer than their deadline" in line for line in told) and len(told) <= 4, told
    os.kill(own_node.pid, signal.SIGCONT)
    wait_until(lambda: mine.set(["after"], [value(9, MIB)])[0], "it stores again")
    assert mine.get(["after"], [MIB]) == [value(9, MIB)]


def test_a_node_killed_during_loads(drive, tmp_path):
    """Known failures 5 and 23: a load is complete or a miss, never other bytes; a node that comes back empty is used."""
    socket = tmp_path / "node.sock"
    size, batch = 2 * MIB, 8
    mine = drive(socket=str(socket), deadline=2)
    for turn in range(2):
        with kvist.Node(memory="128MiB", admin=None, socket=socket) as node:
            keys = [name(i) for i in range(batch)]
            wait_until(lambda: mine.exists(["k"]) == [False] and mine.set(["k"], [value(0, 10)])[0], "it is connected")
            assert mine.exists(keys) == [False] * batch, "a node that was started again is empty"
            assert mine.set(keys, [value(i + turn, size) for i in range(batch)])[0]
            loads, buffers = [], []
            for i in range(40):
                buffers.append([bytearray(size) for _ in range(batch)])
                loads.append(mine.connector.submit_batch_get(keys, [memoryview(each) for each in buffers[-1]]))
                if i == 15:
                    os.kill(node.pid, signal.SIGKILL)
            for future, into in zip(loads, buffers, strict=True):
                for i, there in enumerate(mine.wait(future)[2]):
                    assert not there or into[i] == value(i + turn, size)
            wait_until(lambda: mine.exists(keys) == [False] * batch, "without the node there is nothing")
            ok, error, _ = mine.set(["later"], [value(1, KIB)])
            assert not ok and error
        assert mine.connector.counts["unavailable"] > 0


def test_a_flushed_namespace_is_opened_again(node, drive):
    mine = drive(node)
    assert mine.set(["k"], [value(1, KIB)])[0]
    mine.connector._link.space().flush()
    wait_until(lambda: mine.set(["k"], [value(2, KIB)])[0], "it stores again")
    assert mine.get(["k"], [KIB]) == [value(2, KIB)]


def test_a_pool_full_of_pinned_blocks_fails_stores_and_nothing_else(own_node, drive):
    """Known failure 9: a store that finds no room is told as failed, and what is there is still loaded."""
    mine = drive(own_node, deadline=0.5)
    assert mine.set(["k"], [value(1, MIB)])[0]
    with own_node.client() as other:
        space = other.open(kvist.Identity("pinner", "pinner"))
        held = []
        for i in range(80):
            names = space.digests([b"%d" % i])
            if not space.put(names, bytes(MIB), timeout=0.2).ok:
                break
            held.append(space.pin(names))
        assert len(held) >= 40
        ok, error, _ = mine.set([name(i) for i in range(20)], [value(i, MIB) for i in range(20)])
        assert not ok and error in ("resource_exhausted", "deadline_exceeded")
        for each in held:
            each.close()
    wait_until(lambda: mine.set(["new"], [value(2, MIB)])[0], "there is room again")
    assert mine.get(["new"], [MIB]) == [value(2, MIB)]


def damage(node, sought):
    """Changes a byte of what the node has in memory, where `sought` is."""
    with open(f"/proc/{node.pid}/maps") as maps, open(f"/proc/{node.pid}/mem", "r+b", buffering=0) as memory:
        for line in maps:
            found = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw.s .*memfd:", line)
            if found is None:
                continue
            first, last = (int(end, 16) for end in found.groups())
            for at in range(first, last, MIB):
                memory.seek(at)
                place = memory.read(min(MIB + len(sought), last - at)).find(sought)
                if place >= 0:
                    memory.seek(at + place + len(sought) // 2)
                    memory.write(b"\0")
                    return
    raise AssertionError("the block is not in the node's memory")


def test_damaged_bytes_are_a_miss(own_node, drive):
    """Known failures 5 and 40: with every read verified, bytes that are not those that were stored are not handed out."""
    mine = drive(own_node, verify="always")
    keys, marks = [name(i) for i in range(3)], [os.urandom(64) * 100 for _ in range(3)]
    assert mine.set(keys, [bytearray(mark) for mark in marks])[0]
    damage(own_node, marks[1])
    assert mine.get(keys, [6400] * 3) == [marks[0], None, marks[2]]
    assert mine.connector.counts["data_loss"] == 1
    wait_until(lambda: mine.exists(keys) == [True, False, True], "the node has taken it out of use")


def test_a_wrong_token_is_no_pool(drive, tmp_path):
    (tmp_path / "token").write_text("right\n")
    (tmp_path / "mine").write_text("wrong\n")
    with kvist.Node(memory="64MiB", admin=None, arguments=["--token-file", str(tmp_path / "token")]) as node:
        mine = drive(node, token_file=str(tmp_path / "mine"))
        assert mine.set(["k"], [value(1, KIB)])[0] is False
        assert mine.exists(["k"]) == [False]
        assert mine.connector.counts["unauthenticated"] >= 1
        (tmp_path / "mine").write_text("right\n")
        wait_until(lambda: mine.set(["k"], [value(1, KIB)])[0], "the right token is read at the next attempt")


def test_a_domain_of_the_nodes(drive):
    with kvist.Node(memory="64MiB", admin=None, arguments=["--domain", "team=128MiB"]) as node:
        mine, theirs = drive(node, domain="team"), drive(node)
        assert mine.set(["k"], [value(1, 20 * MIB)])[0]  # in pieces of 8 MiB, by the size of the domain's pool
        assert mine.exists(["k"]) == [True] and theirs.exists(["k"]) == [False]
        assert mine.connector.state["leased_blocks"] == 3


@pytest.mark.slow
def test_a_million_requests_over_a_pool_of_a_hundredth_of_them(drive, rng):
    """Known failure 35: the hit rate is steady, and nothing is left locked or leased."""
    size, keys, batch, batches = 16 * KIB, 100_000, 500, 2000
    with kvist.Node(memory="16MiB", admin=None) as node:
        wait_ready(node)
        mine = drive(node, deadline=20)
        source, into = memoryview(bytearray(size)), [memoryview(bytearray(size)) for _ in range(batch)]
        rates = []
        for _ in range(batches):
            asked = sorted({f"key {int(keys * rng.random() ** 8)}" for _ in range(batch)})
            found = [key for key, there in zip(asked, mine.exists(asked), strict=True) if there]
            got = mine.wait(mine.connector.submit_batch_get(found, into[: len(found)]))[2] if found else []
            rates.append(sum(got) / len(asked))
            absent = [key for key in asked if key not in set(found)]
            stored, error, _ = mine.wait(mine.connector.submit_batch_set(absent, [source] * len(absent)))
            assert stored, error
        tenth = batches // 10
        early, late = (sum(part) / tenth for part in (rates[tenth : 2 * tenth], rates[-tenth:]))
        print(f"hit rates: {early:.3f} early, {late:.3f} late")
        assert early > 0.1 and late > 0.9 * early
        assert mine.connector._leases.held == (0, 0) and not mine.connector._leases._by_key
        wait_until(lambda: pins(node) == 0, "no pin is left")


def test_an_error_of_our_own_ends_the_future(node, drive, monkeypatch):
    """Known failure 8: whatever goes wrong, the future ends."""
    mine = drive(node)

    def broken(*_):
        raise MemoryError("none left")

    monkeypatch.setattr(mine.connector, "_find", broken)
    ok, error, by_key = mine.wait(mine.connector.submit_batch_exists(["a", "b"]))
    assert not ok and error == "MemoryError: none left" and by_key == [False, False]
    assert mine.connector.counts["internal"] == 1
    assert mine.set(["a"], [value(1, 10)])[0], "the thread is there still"
