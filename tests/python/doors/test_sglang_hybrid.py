"""kvist.sglang with several host pools: a hit is what all of them have.

Run by `make test-engines ENGINE=sglang`.
"""

import random

from sglang_rig import (  # noqa: F401
    PAGE,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    before,
    blocks_of,
    buffers_of,
    equal,
    every,
    fill,
    hashes,
    hybrid,
    make,
    mamba_pool,
    mha_pool,
    mla_pool,
    model,
    pytestmark,
    torch,
    wipe,
)
from kvist.sglang import _hits


def test_a_hit_shrinks_to_what_all_pools_have(make, node):
    """Known failure 17: a page that one of several pools has lost."""
    pools, backend = hybrid(make)
    keys = hashes(10)
    kv, index = every(pools, PoolName.KV, keys), every(pools, PoolName.INDEXER, keys)
    asked = [every(pools, PoolName.INDEXER, keys)]
    assert backend.batch_exists_v2(keys, asked).kv_hit_pages == 0
    assert all(map(all, backend.batch_set_v2([kv], before()).values()))
    assert backend.batch_exists_v2(keys, asked).kv_hit_pages == 0, "the indexer has nothing yet"
    assert all(map(all, backend.batch_set_v2([index], before()).values()))
    found = backend.batch_exists_v2(keys, asked, before())
    assert (found.kv_hit_pages, found.extra_pool_hit_pages) == (10, {"kv": 10, "indexer": 10})
    with blocks_of(node, backend) as (space, _):
        space.remove(space.digests(keys[6:7]), part="indexer.tp0")
        found = backend.batch_exists_v2(keys, asked, before())
        assert (found.kv_hit_pages, found.extra_pool_hit_pages) == (6, {"kv": 10, "indexer": 6})
        assert found.restorable_prefix_pages == [1, 2, 3, 4, 5, 6]
        # Lost between the question and the read: each pool says what it read.
        space.remove(space.digests(keys[2:3]), part="indexer.tp0")
        read = backend.batch_get_v2([every(pools, PoolName.KV, keys[:6]), every(pools, PoolName.INDEXER, keys[:6])])
        assert read == {"kv": [True] * 6, "indexer": [True, True, False, True, True, True]}


def test_states_count_where_they_are(make):
    pools, backend = hybrid(make)
    keys = hashes(8)
    assert all(backend.batch_set_v1(keys, torch.arange(8 * PAGE), before()))

    def found(window):
        return backend.batch_exists_v2(
            keys, [every(pools, PoolName.MAMBA, keys[8 - window :], policy=PoolHitPolicy.TRAILING_PAGES)]
        )

    assert (found(1).kv_hit_pages, found(1).restorable_prefix_pages) == (0, [])
    for page in (2, 4, 5):
        state = every(pools, PoolName.MAMBA, [keys[page]], first=page, policy=PoolHitPolicy.TRAILING_PAGES)
        assert backend.batch_set_v2([state], before(*keys[:page])) == {PoolName.MAMBA: [True]}
    assert (found(1).kv_hit_pages, found(1).restorable_prefix_pages) == (6, [3, 5, 6])
    assert (found(2).kv_hit_pages, found(2).restorable_prefix_pages) == (6, [6])
    assert found(3).kv_hit_pages == 0 and found(1).extra_pool_hit_pages == {"kv": 8, "mamba": 6}
    original = [buffer.clone() for buffer in buffers_of(pools[PoolName.MAMBA])]
    wipe(pools[PoolName.MAMBA])
    state = every(pools, PoolName.MAMBA, [keys[5]], first=5, policy=PoolHitPolicy.TRAILING_PAGES)
    assert backend.batch_get_v2([state]) == {PoolName.MAMBA: [True]}
    assert all(equal(a[5], b[5]) for a, b in zip(buffers_of(pools[PoolName.MAMBA]), original))


def test_groups_tell_how_far_they_reach_and_gate_nothing(make):
    pools, backend = hybrid(make)
    keys = hashes(12)
    assert all(backend.batch_set_v1(keys[:9], torch.arange(9 * PAGE), before()))

    def found(named, block=4, group=2):
        one = PoolTransfer(
            name=PoolName.INDEXER, keys=named, hit_policy=PoolHitPolicy.BLOCK_GROUPS, block_pages=block, group_pages=group
        )
        return backend.batch_exists_v2(keys, [one])

    assert (found(None).kv_hit_pages, found(None).extra_pool_hit_pages) == (9, {"kv": 9})
    for at in (2, 6, 7, 10):  # the last two pages of a block of four name its group
        assert all(backend.batch_set_v2([every(pools, PoolName.INDEXER, keys[at : at + 1], policy=PoolHitPolicy.BLOCK_GROUPS)])["indexer"])
    assert found(None).extra_pool_hit_pages == {"kv": 9}
    assert all(backend.batch_set_v2([every(pools, PoolName.INDEXER, keys[3:4], policy=PoolHitPolicy.BLOCK_GROUPS)])["indexer"])
    assert found(None).extra_pool_hit_pages == {"kv": 9, "indexer": 8} and found(None).kv_hit_pages == 9
    assert found([keys[2], keys[3], keys[10], "none"]).extra_pool_hit_pages == {"kv": 9, "indexer": 4}
    assert found(None, block=0).kv_hit_pages == 9 and found(None, group=0).kv_hit_pages == 9


def test_a_pool_that_nobody_registered_has_nothing(make):
    pools, backend = hybrid(make)
    assert all(backend.batch_set_v1(hashes(2), torch.arange(2 * PAGE), before()))
    one = PoolTransfer(name=PoolName.SWA, host_indices=torch.arange(2), keys=hashes(2))
    assert backend.batch_set_v2([one]) == {"swa": [False, False]} == backend.batch_get_v2([one])
    assert backend.batch_exists_v2(hashes(2), [one]).kv_hit_pages == 0


def test_an_anchor_that_only_counts_slots_leaves_it_to_the_others(make):
    from sglang.srt.mem_cache.memory_pool_host import LogicalHostPool

    pools = {PoolName.KV: LogicalHostPool(640, PAGE), PoolName.DEEPSEEK_V4_C4: mla_pool()}
    backend = make(pools, mla=True)
    keys, indices = hashes(6), torch.arange(6 * PAGE)
    original = fill(pools[PoolName.DEEPSEEK_V4_C4], 1)
    asked = [every(pools, PoolName.DEEPSEEK_V4_C4, keys)]
    assert backend.batch_set_v1(keys, indices) == [True] * 6 == backend.batch_get_v1(keys, indices)
    assert backend.batch_exists_v2(keys, asked).kv_hit_pages == 0 == backend.batch_exists_v2(keys).kv_hit_pages
    assert all(backend.batch_set_v2(asked, before())[PoolName.DEEPSEEK_V4_C4])
    assert backend.batch_exists_v2([*keys, "none"], asked).kv_hit_pages == 6
    wipe(pools[PoolName.DEEPSEEK_V4_C4])
    assert all(backend.batch_get_v2(asked)[PoolName.DEEPSEEK_V4_C4])
    assert equal(pools[PoolName.DEEPSEEK_V4_C4].kv_buffer[: 6 * PAGE], original[0][: 6 * PAGE])


def test_states_are_each_ranks_own_beside_latent_pages(make):
    """A model with replicated KV and recurrent states that are spread over the ranks."""
    ranks = []
    for rank in range(2):
        pools = {PoolName.KV: mla_pool(), PoolName.MAMBA: mamba_pool()}
        backend = make(pools, mla=True, tp=(rank, 2))
        for pool in pools.values():
            fill(pool, 5 + rank)
        ranks.append((pools, backend))
    keys = hashes(3)
    state = [every(pools, PoolName.MAMBA, keys[2:], policy=PoolHitPolicy.TRAILING_PAGES) for pools, _ in ranks]
    (pools, zero), (_, one) = ranks
    assert all(zero.batch_set_v1(keys, torch.arange(3 * PAGE), before()))
    assert zero.batch_set_v2([state[0]]) == {"mamba": [True]}
    assert zero.batch_exists_v2(keys, [state[0]]).kv_hit_pages == 0, "rank 1 has no state yet"
    assert one.batch_set_v2([state[1]]) == {"mamba": [True]}
    assert [b.batch_exists_v2(keys, [s]).kv_hit_pages for (_, b), s in zip(ranks, state)] == [3, 3]
    for (pools, backend), s in zip(ranks, state):
        was = [buffer.clone() for buffer in buffers_of(pools[PoolName.MAMBA])]
        wipe(pools[PoolName.MAMBA])
        assert backend.batch_get_v2([s]) == {"mamba": [True]}
        assert all(equal(a[0], b[0]) for a, b in zip(buffers_of(pools[PoolName.MAMBA]), was))


def test_a_pool_that_comes_later_is_part_of_it_from_then_on(make):
    pool, states = mha_pool(), mamba_pool()
    backend = make(pool)
    fill(pool, 1), fill(states, 2)
    assert all(backend.batch_set_v1(hashes(3), torch.arange(3 * PAGE), before()))
    backend.register_mem_host_pool_v2(states, PoolName.MAMBA)
    backend.register_mem_host_pool_v2(states, PoolName.MAMBA)
    one = PoolTransfer(name=PoolName.MAMBA, host_indices=torch.arange(1), keys=hashes(1), hit_policy=PoolHitPolicy.TRAILING_PAGES)
    assert backend.batch_set_v2([one]) == {"mamba": [True]}
    assert all(backend.batch_set_v1(hashes(3), torch.arange(3 * PAGE), before()))
    assert backend.batch_exists_v2(hashes(3), [one]).restorable_prefix_pages == [1] and backend.counts == {}


# ---- the numbers of _hits ------------------------------------------------------------------------------------------------


def test_windows_are_those_of_the_definition():
    for seed in range(200):
        pick = random.Random(seed)
        there = [pick.random() < 0.7 for _ in range(pick.randrange(0, 12))]
        for window in range(1, 5):
            said = {p for p in range(1, len(there) + 1) if all(there[max(0, p - window) : p])}
            assert _hits.windows(there, window) == said, (there, window)
        assert _hits.leading(there) == ([*there, False].index(False))
