"""The LMCache door with a node that is late, stopped, killed, full, damaged or refuses: misses in time, nothing else."""

import os
import signal
import time

import pytest

import kvist
from conftest import damage, stopped, wait_until
from lmcache_rig import KIB, MIB, drive, name, own_node, pins, value, wait_ready  # noqa: F401


def test_a_node_that_comes_late_is_found(drive, tmp_path, caplog, monkeypatch):
    """Known failures 9 and 26: the engine starts without, every answer is a miss, and hits come with the node."""

    def told():
        return [record for record in caplog.records if record.name == "kvist.lmcache" and record.levelname == "WARNING"]

    mine = drive(socket=str(tmp_path / "node.sock"))
    assert mine.exists(["k"]) == [False]
    ok, error, by_key = mine.set(["k"], [value(1, KIB)])
    assert not ok and error == "unavailable" and by_key == [False]
    assert mine.get(["k"], [KIB]) == [None] and mine.delete(["k"]) == [False]
    assert mine.connector.counts["unavailable"] >= 4
    attempts, connect = [], mine.connector._link._connect
    monkeypatch.setattr(mine.connector._link, "_connect", lambda: attempts.append(1) or connect())
    wait_until(lambda: len(attempts) >= 2, "it is tried again and again")
    assert mine.exists(["k"]) == [False] and len(told()) == 1, "told once, not at each attempt"
    with kvist.Node(memory="64MiB", admin=None, socket=tmp_path / "node.sock"):
        wait_until(lambda: mine.set(["k"], [value(1, KIB)])[0], "it stores")
        assert mine.exists(["k"]) == [True]
        assert mine.get(["k"], [KIB]) == [value(1, KIB)]
    assert 1 <= len(told()) <= 3, "told once, not at each call"


def test_a_node_that_is_stopped_costs_a_deadline_and_no_more(own_node, drive, caplog):
    """Known failures 8 and 9: what waits for an answer that does not come fails by its deadline; the rest goes on."""
    mine = drive(own_node, deadline=5)
    assert mine.set(["k"], [value(1, MIB)])[0]
    with stopped(own_node):
        begun = time.monotonic()
        futures = [mine.connector.submit_batch_set([f"k{i}"], [memoryview(value(i, MIB))]) for i in range(50)]
        futures += [mine.connector.submit_batch_delete([f"k{i}"]) for i in range(50)]
        assert time.monotonic() - begun < 5, "submitting does not wait for the node"
        assert mine.get(["k"], [MIB]) == [value(1, MIB)], "reading needs no node"
        assert mine.exists(["k", "k1"]) == [True, False]
        answers = [mine.wait(future) for future in futures]
        assert not any(ok and all(by_key) for ok, _, by_key in answers[1:])
        assert mine.connector.counts["late"] + mine.connector.counts["deadline_exceeded"] >= 90
        told = [record.getMessage() for record in caplog.records if record.name == "kvist.lmcache"]
        assert any("wait longer than their deadline" in line for line in told) and len(told) <= 4, told
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
                    told = [mine.wait(loads[0])[2]]
                    os.kill(node.pid, signal.SIGKILL)
            told += [mine.wait(future)[2] for future in loads[1:]]
            assert told[0] == [True] * batch
            for by_key, into in zip(told, buffers, strict=True):
                for i, there in enumerate(by_key):
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
        mine = drive(node)
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
