"""kvist.sglang in engines of several ranks: who writes which part, and when a page counts.

Run by `make test-engines ENGINE=sglang`.
"""

import pytest

from sglang_rig import (  # noqa: F401
    PAGE,
    before,
    blocks_of,
    buffers_of,
    equal,
    fill,
    hashes,
    make,
    mha_pool,
    mla_pool,
    page_of,
    model,
    pytestmark,
    torch,
    wipe,
)


def test_a_page_counts_when_all_ranks_have_stored_theirs(make):
    """Known failure 21: ranks that see different hit lengths."""
    pools = [mha_pool(), mha_pool()]
    ranks = [make(pool, tp=(rank, 2)) for rank, pool in enumerate(pools)]
    originals = [fill(pool, 10 + rank) for rank, pool in enumerate(pools)]
    keys, indices = hashes(8), [pool.alloc(8 * PAGE) for pool in pools]
    assert all(ranks[0].batch_set_v1(keys, indices[0], before()))
    assert [rank.batch_exists(keys) for rank in ranks] == [0, 0]
    assert all(ranks[1].batch_set_v1(keys[:5], indices[1][: 5 * PAGE], before()))
    assert [rank.batch_exists(keys) for rank in ranks] == [5, 5]
    for rank, pool in enumerate(pools):
        wipe(pool)
        assert ranks[rank].batch_get_v1(keys[:5], indices[rank][: 5 * PAGE]) == [True] * 5
        for i in range(5):
            first = int(indices[rank][i * PAGE])
            assert equal(pool.get_data_page(first), page_of(originals[rank], pool, first))
    assert ranks[1].batch_get_v1(keys, indices[1]) == [True] * 5 + [False] * 3


def test_latent_pages_are_written_by_one_rank_and_read_by_all(make):
    pools = [mla_pool(), mla_pool()]
    ranks = [make(pool, tp=(rank, 2), mla=True) for rank, pool in enumerate(pools)]
    original, keys = fill(pools[0], 1), hashes(6)
    fill(pools[1], 2)
    indices = [pool.alloc(6 * PAGE) for pool in pools]
    assert ranks[1].batch_set_v1(keys, indices[1], before()) == [False] * 6, "the other rank writes"
    assert ranks[0].batch_exists(keys) == 0
    assert all(ranks[0].batch_set_v1(keys, indices[0], before()))
    assert all(ranks[1].batch_set_v1(keys, indices[1], before())), "they are there now"
    assert [rank.batch_exists(keys) for rank in ranks] == [6, 6]
    assert all(ranks[1].batch_get_v1(keys, indices[1]))
    for i in range(6):
        read = pools[1].get_data_page(int(indices[1][i * PAGE])).view(torch.uint8)
        assert equal(read, page_of(original, pools[0], int(indices[0][i * PAGE])))


def test_latent_pages_are_shared_by_engines_of_any_rank_count(make):
    one, many = mla_pool(), mla_pool()
    writer, reader = make(one, mla=True), make(many, mla=True, tp=(3, 8))
    fill(one, 1)
    assert all(writer.batch_set_v1(hashes(3), one.alloc(3 * PAGE), before()))
    assert reader.batch_exists(hashes(3)) == 3


@pytest.mark.parametrize("writers, readers", [(1, 2), (2, 4), (4, 1), (2, 2)])
def test_groups_of_heads_are_shared_by_engines_of_other_rank_counts(make, writers, readers):
    """page_head with tp_lcm_size: 8 heads in all, cut into 4 groups, whoever holds how many of them."""
    groups, heads, keys = 4, 8, hashes(5)

    def engine(size):
        pools = [mha_pool("page_head", heads=heads // size) for _ in range(size)]
        return pools, [make(p, layout="page_head", tp=(r, size), lcm=groups) for r, p in enumerate(pools)]

    pools, backends = engine(writers)
    for rank, (pool, backend) in enumerate(zip(pools, backends)):
        fill(pool, rank)
        assert backend.batch_exists(keys) == 0
        assert all(backend.batch_set_v1(keys, torch.arange(5 * PAGE), before()))
    # (2, pages, heads, tokens, layers, dim): all heads of the first five pages
    whole = torch.cat([pool.kv_buffer[:, :5] for pool in pools], dim=2)
    pools, backends = engine(readers)
    for rank, (pool, backend) in enumerate(zip(pools, backends)):
        assert backend.batch_exists(keys) == 5
        at = torch.arange(3 * PAGE, 8 * PAGE)
        assert all(backend.batch_get_v1(keys, at))
        mine = heads // readers
        assert equal(pool.kv_buffer[:, 3:8], whole[:, :, rank * mine : (rank + 1) * mine])
        flat = backend.get(keys[2], pool.get_dummy_flat_data_page())
        assert equal(flat, pool.get_data_page(5 * PAGE))


def test_a_page_that_lacks_a_group_of_heads_is_not_read(make, node):
    pool = mha_pool("page_head", heads=8)
    backend = make(pool, layout="page_head", lcm=4)
    fill(pool, 1)
    keys, indices = hashes(4), torch.arange(4 * PAGE)
    assert all(backend.batch_set_v1(keys, indices, before()))
    with blocks_of(node, backend) as (space, _):
        for page, part in ((1, "kv.h0"), (2, "kv.h3")):
            space.remove(space.digests(keys[page : page + 1]), part=part)
    assert backend.batch_exists(keys) == 1
    assert backend.batch_get_v1(keys, indices) == [True, False, False, True]
    page = pool.get_dummy_flat_data_page()
    assert [one is not None for one in backend.batch_get(keys, [page.clone() for _ in keys])] == [True, False, False, True]


def test_context_parallel_ranks_have_parts_of_their_own(make):
    pools = [mla_pool(), mla_pool()]
    ranks = [make(pool, cp=(rank, 2), mla=True) for rank, pool in enumerate(pools)]
    for rank, pool in enumerate(pools):
        fill(pool, rank)
        indices = pool.alloc(2 * PAGE)
        assert ranks[rank].batch_exists(hashes(2)) == 0
        assert all(ranks[rank].batch_set_v1(hashes(2), indices, before()))
    original = [page_of(buffers_of(pool), pool, 0).clone() for pool in pools]
    for rank, pool in enumerate(pools):
        wipe(pool)
        assert ranks[rank].batch_exists(hashes(2)) == 2
        assert all(ranks[rank].batch_get_v1(hashes(2), torch.arange(2 * PAGE)))
        assert equal(page_of(buffers_of(pool), pool, 0), original[rank])


def test_pipeline_stages_have_namespaces_of_their_own(make):
    for other in (mha_pool(first_layer=4, layers=3), mha_pool()):  # also where a pool does not say which layers it has
        stages = [mha_pool(), other]
        backends = [make(pool, pp=(stage, 2)) for stage, pool in enumerate(stages)]
        fill(stages[0], 1)
        assert all(backends[0].batch_set_v1(hashes(2), stages[0].alloc(2 * PAGE), before()))
        assert [backend.batch_exists(hashes(2)) for backend in backends] == [2, 0]


def test_more_ranks_than_parts_count_each_for_itself(make):
    pools = [mha_pool(heads=1, layers=1), mha_pool(heads=1, layers=1)]
    ranks = [make(pool, tp=(rank, 96)) for rank, pool in enumerate(pools)]
    fill(pools[0], 1)
    assert all(ranks[0].batch_set_v1(hashes(2), pools[0].alloc(2 * PAGE), before()))
    assert [rank.batch_exists(hashes(2)) for rank in ranks] == [2, 0]
