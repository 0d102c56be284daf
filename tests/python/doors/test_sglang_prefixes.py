"""kvist.sglang: how far a prefix reaches, and what the pool knows of what a page continues.

Run by `make test-engines ENGINE=sglang`.
"""

import logging

import kvist
from sglang_rig import (  # noqa: F401
    PAGE,
    PoolName,
    PoolTransfer,
    before,
    blocks_of,
    equal,
    fill,
    hashes,
    make,
    mha_pool,
    model,
    pytestmark,
    torch,
    wipe,
)


def test_a_hole_ends_the_prefix(make, node):
    """Known failure 4: a missing first page, and one in the middle."""
    pool = mha_pool()
    backend = make(pool)
    fill(pool, 1)
    keys, indices = hashes(12), pool.alloc(12 * PAGE)
    assert all(backend.batch_set_v1(keys, indices, before()))
    with blocks_of(node, backend) as (space, _):
        space.remove(space.digests(keys[7:8]))
        assert backend.batch_exists(keys) == 7 and backend.batch_exists(keys[8:], before(*keys[:8])) == 4
        assert backend.batch_get_v1(keys, indices) == [True] * 7 + [False] + [True] * 4
        space.remove(space.digests(keys[:1]))
        assert backend.batch_exists(keys) == 0 and backend.batch_exists(keys[1:], before(keys[0])) == 6
    assert all(backend.batch_set_v1(keys, indices, before())) and backend.batch_exists(keys) == 12


def test_the_pool_knows_what_a_page_continues(make, node):
    pool = mha_pool()
    backend = make(pool)
    fill(pool, 1)
    keys, indices = hashes(12), pool.alloc(12 * PAGE)
    assert all(backend.batch_set_v1(keys[:5], indices[: 5 * PAGE], before()))
    assert all(backend.batch_set_v1(keys[5:], indices[5 * PAGE :], before(*keys[:5])))
    with blocks_of(node, backend) as (space, listed):
        chain = space.digests(keys)
        assert [listed[chain[i]].depth for i in range(12)] == list(range(12))
        assert [listed[chain[i]].parent for i in range(1, 12)] == [chain[i] for i in range(11)]


def test_a_batch_that_is_cut_keeps_the_chain(make, node):
    pool = mha_pool(tokens=300 * PAGE, layers=1, heads=1)
    backend = make(pool)
    keys = hashes(290)
    transfer = PoolTransfer(name=PoolName.KV, host_indices=torch.arange(288 * PAGE), keys=keys[2:])
    assert all(backend.batch_set_v2([transfer], before(*keys[:2]))[PoolName.KV])
    with blocks_of(node, backend) as (space, listed):
        chain = space.digests(keys)
        assert [listed[chain[i]].depth for i in range(2, 290)] == list(range(2, 290))


def test_without_prefix_keys_pages_stand_for_themselves(make, node, caplog):
    pool = mha_pool()
    backend = make(pool)
    fill(pool, 1)
    keys, indices = hashes(12), pool.alloc(12 * PAGE)
    with caplog.at_level(logging.WARNING, "kvist.sglang"):
        for first in (0, 4):
            assert all(backend.batch_set_v1(keys[first : first + 4], indices[first * PAGE : (first + 4) * PAGE]))
    assert [record.message for record in caplog.records].count(caplog.messages[0]) == 1
    assert '"hicache_storage_pass_prefix_keys": true' in caplog.text
    assert backend.batch_exists(keys) == 8
    # From here on with them: what is there stays, what comes is stored all the same, and the rest is a chain again.
    assert all(backend.batch_set_v1(keys, indices, before()))
    assert all(backend.batch_set_v1(keys[10:], indices[10 * PAGE :], before(*keys[:10])))
    assert backend.batch_exists(keys) == 12 and backend.counts == {}
    original = pool.kv_buffer.clone()
    wipe(pool)
    assert all(backend.batch_get_v1(keys, indices))
    assert equal(pool.kv_buffer[:, : 12 * PAGE], original[:, : 12 * PAGE])


def test_a_page_that_cannot_hang_on_what_is_before_it_is_not_begun_after_the_deadline(make, monkeypatch):
    """What came before it was stored without its depth, so that it is stored by itself: as long as there is time."""
    from kvist.sglang._backend import _Before

    pool = mha_pool()
    backend = make(pool)
    fill(pool, 1)
    keys, indices = hashes(8), pool.alloc(8 * PAGE)
    assert all(backend.batch_set_v1(keys[:4], indices[: 4 * PAGE]))
    now, here = backend._pool("kv")
    space = now.space()
    before_them = kvist.Digests(bytes(space.digests(keys[4:])), 4, space.digests(keys[3:4])[0])
    blocks = here.pages.blocks(indices[4 * PAGE :])[0]
    monkeypatch.setattr("kvist.sglang._backend._left", lambda until: 5.0)
    asked = []
    arguments = now.link, space, before_them, blocks, here.own[0], _Before(4, keys[3]), asked.append
    assert backend._put(*arguments, 0.0) == [False, True, True, True] and not asked
    assert backend.counts == {"deadline_exceeded": 1}
