"""The LMCache door: many threads and futures at once, bounds of what waits, and how connectors end."""

import ctypes
import gc
import os
import threading
import time
import weakref

import pytest

import kvist
from conftest import in_threads, stopped, wait_until
from lmcache_rig import KIB, MIB, SOON, Driver, drive, name, own_node, value  # noqa: F401


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

    drainer = threading.Thread(target=drain)
    drainer.start()
    try:
        in_threads(submit, range(8))
        wait_until(lambda: len(answers) == len(futures), "all futures ended")
    finally:
        stop.set()
        drainer.join(SOON)
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


def test_a_full_queue_fails_at_once_and_is_counted(own_node, drive):
    mine = drive(own_node, queue=4, writers=1, deadline=1)
    assert mine.set(["there"], [value(1, KIB)])[0]
    with stopped(own_node):
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


def test_buffers_are_held_until_the_end_and_no_longer(own_node, drive):
    class Arena(ctypes.Array):
        _type_, _length_ = ctypes.c_ubyte, KIB

    mine = drive(own_node, deadline=1, writers=1)
    with stopped(own_node):
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
            time.sleep(0.002 * turn)  # each turn is closed at another point of its work
        mine.close()
        others = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(4)]
        assert mine.fd in others, "the number is used again"
        for each in buffers:
            each[:] = b"\x55" * len(each)
            each.append(0)  # a BufferError if anybody still had a view of it
        time.sleep(0.01)  # time for whatever still ran to touch what is no longer its own
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
    time.sleep(0.05)  # the end comes in the middle of the work, not before it
"""


@pytest.mark.parametrize("when", ["soon", "late"])
def test_a_process_that_ends_without_closing_ends_well(own_node, program, when):
    code, out = program(EXITS, own_node.socket, when).finish()
    assert (code, out) == (0, "")
