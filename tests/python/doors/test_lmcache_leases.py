"""The LMCache door: what a look-up found is held until it was loaded, for so long and for so much."""

import time

import kvist
from conftest import wait_until
from lmcache_rig import KIB, MIB, drive, name, own_node, pins, value  # noqa: F401


def fill(node, seconds=2.5):
    """Stores many times what the node has room for by another client, for longer than the pool spares what was just stored,
    so that all that nobody holds is evicted."""
    end = time.monotonic() + seconds
    with node.client() as client:
        space = client.open(kvist.Identity("filler", "filler", key_kind="opaque"))
        while time.monotonic() < end:
            names = space.digests([b"filler %d %d" % (time.monotonic_ns(), i) for i in range(4)])
            space.put(names, bytes(4 * MIB), unchained=True).check()
            time.sleep(0.02)  # it is time that has to pass: no need to store any faster


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
