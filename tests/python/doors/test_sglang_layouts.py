"""kvist.sglang on SGLang's own host pools: pages of every layout, and the three ways to come by them.

Run by `make test-engines ENGINE=sglang`.
"""

import pytest

from sglang_rig import (  # noqa: F401
    MHA_LAYOUTS,
    MLA_LAYOUTS,
    PAGE,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    TwoBuffers,
    before,
    buffers_of,
    equal,
    fill,
    hashes,
    make,
    mamba_pool,
    mha_pool,
    mla_pool,
    page_of,
    paged_pool,
    model,
    pytestmark,
    same,
    shuffled,
    torch,
    wipe,
)
from kvist.sglang._pages import pages_of


@pytest.mark.parametrize("allocator", ["default", "shm"])
@pytest.mark.parametrize("layout", MHA_LAYOUTS)
def test_pages_come_back_to_the_byte_and_touch_nothing_else(make, layout, allocator):
    pool = mha_pool(layout, allocator=allocator)
    backend = make(pool, layout=layout)
    original = fill(pool, 1)
    keys, indices = hashes(32), shuffled(pool, 32)
    assert backend.batch_exists(keys) == 0
    assert backend.batch_set_v1(keys, indices, before()) == [True] * 32
    assert backend.batch_exists([*keys, "other"]) == 32

    # Into other pages: what is read lies where it was asked for, and everything else is as it was.
    free = shuffled(pool, 8, seed=8)
    was = fill(pool, 2)
    assert backend.batch_get_v1(keys[4:12], free) == [True] * 8
    for i in range(8):
        source, target = int(indices[(4 + i) * PAGE]), int(free[i * PAGE])
        read = pool.get_data_page(target, flat=True).view(-1).view(torch.uint8)
        assert equal(read, page_of(original, pool, source))
        pool.set_from_flat_data_page(target, page_of(was, pool, target).view(pool.dtype))
    assert same(pool, was)
    assert backend.counts == {}


@pytest.mark.parametrize("layout", MLA_LAYOUTS)
def test_latent_pages_come_back_to_the_byte(make, layout):
    pool = mla_pool(layout)
    backend = make(pool, layout=layout, mla=True)
    original = fill(pool, 1)
    keys, indices = hashes(40), pool.alloc(40 * PAGE)
    assert all(backend.batch_set_v1(keys, indices, before()))
    pages = [page_of(original, pool, int(indices[i * PAGE])) for i in range(40)]
    wipe(pool)
    assert all(backend.batch_get_v1(keys, indices))
    for i in range(40):
        assert equal(pool.get_data_page(int(indices[i * PAGE])).view(torch.uint8), pages[i])


def test_keys_and_values_of_different_widths(make):
    for layout in ("page_first", "page_first_direct"):
        pool = mha_pool(layout, v_dim=16)
        backend = make(pool, layout=layout)
        original, indices = fill(pool, 1), shuffled(pool, pool.page_num)
        keys = hashes(pool.page_num)
        assert all(backend.batch_set_v1(keys, indices, before()))
        wipe(pool)
        assert all(backend.batch_get_v1(keys, indices)) and same(pool, original)


def test_more_pages_than_a_batch(make):
    """SGLang cuts its v1 calls into 128 pages; v2 calls may have more."""
    pool = mha_pool(tokens=300 * PAGE, layers=1, heads=1)
    backend = make(pool)
    original, keys = fill(pool, 1), hashes(pool.page_num)
    indices = shuffled(pool, pool.page_num)
    transfer = PoolTransfer(name=PoolName.KV, host_indices=indices, keys=keys)
    assert backend.batch_set_v2([transfer], before()) == {PoolName.KV: [True] * len(keys)}
    wipe(pool)
    assert backend.batch_exists(keys) == len(keys)
    assert backend.batch_get_v2([transfer], before()) == {PoolName.KV: [True] * len(keys)}
    assert same(pool, original)


def test_a_page_that_is_there_is_a_success_and_is_not_written_again(make):
    pool = mha_pool()
    backend = make(pool)
    original, keys, indices = fill(pool, 1), hashes(4), pool.alloc(4 * PAGE)
    assert all(backend.batch_set_v1(keys, indices, before()))
    fill(pool, 2)
    assert all(backend.batch_set_v1(keys, indices, before()))
    assert all(backend.batch_get_v1(keys, indices))
    assert equal(pool.get_data_page(int(indices[0])), page_of(original, pool, int(indices[0])))


def test_a_miss_leaves_its_page_alone_and_the_others_are_read(make):
    pool = mha_pool()
    backend = make(pool)
    fill(pool, 1)
    keys, indices = hashes(6), pool.alloc(6 * PAGE)
    backend.batch_set_v1(keys[:3], indices[: 3 * PAGE], before())
    assert backend.batch_get_v1(keys, indices) == [True] * 3 + [False] * 3
    was = fill(pool, 2)
    assert backend.batch_get_v1(["a", "b"], indices[: 2 * PAGE]) == [False, False]
    assert same(pool, was) and backend.counts == {}


def test_indices_that_do_not_fit_the_keys_are_refused(make):
    pool = mha_pool()
    backend = make(pool)
    was, indices = fill(pool, 1), pool.alloc(4 * PAGE)
    assert backend.batch_set_v1(hashes(5), indices, before()) == [False] * 5
    assert backend.batch_get_v1(hashes(5), indices) == [False] * 5
    assert backend.batch_get_v2([PoolTransfer(name=PoolName.KV, keys=hashes(2))]) == {PoolName.KV: [False, False]}
    beyond = torch.arange(pool.size, pool.size + PAGE)
    assert backend.batch_set_v1(hashes(1), beyond, before()) == [False]
    assert backend.batch_get_v1([], indices[:0]) == [] and backend.batch_exists([]) == 0
    assert backend.counts == {"misused": 4} and same(pool, was)


# ---- the three ways to come by a page ----------------------------------------------------------------------------------


def test_pages_that_move_are_asked_for_at_each_call(make):
    pool = mha_pool("layer_first")
    pool.shared_allocation_domain = object()
    backend = make(pool, layout="layer_first")
    assert pages_of(pool).way == "asked at each call"
    original, keys, indices = fill(pool, 1), hashes(20), shuffled(pool, 20)
    assert all(backend.batch_set_v1(keys, indices, before()))
    still = mha_pool("layer_first")  # the same bytes as those of a pool that stays
    other = make(still, layout="layer_first")
    at = shuffled(still, 20)
    assert all(other.batch_get_v1(keys, at))
    for i in range(20):
        assert equal(still.get_data_page(int(at[i * PAGE])), page_of(original, pool, int(indices[i * PAGE])))


def test_indices_between_pages_are_followed(make):
    """A page may begin at any token in the layouts that have tokens one behind the other."""
    pool = mha_pool("page_first")
    backend = make(pool)
    original = fill(pool, 1)
    odd = torch.arange(5, 5 + 2 * PAGE)
    assert all(backend.batch_set_v1(hashes(2), odd, before()))
    wipe(pool)
    assert all(backend.batch_get_v1(hashes(2), odd))
    assert equal(pool.kv_buffer[:, 5 : 5 + 2 * PAGE], original[0][:, 5 : 5 + 2 * PAGE])
    assert not pool.kv_buffer[:, :5].any() and not pool.kv_buffer[:, 5 + 2 * PAGE :].any()


def test_a_pool_without_addresses_goes_by_flat_copies(make):
    states = mamba_pool(side_states=True)
    assert pages_of(states).way == "copied page by page"
    backend = make({PoolName.KV: mha_pool(), PoolName.MAMBA: states})
    original, keys, indices = fill(states, 1), hashes(states.size), states.alloc(states.size)
    order = torch.randperm(states.size, generator=torch.Generator().manual_seed(1))
    transfer = PoolTransfer(
        name=PoolName.MAMBA, host_indices=indices[order], keys=keys, hit_policy=PoolHitPolicy.TRAILING_PAGES
    )
    assert all(backend.batch_set_v2([transfer])[PoolName.MAMBA])
    wipe(states)
    assert all(backend.batch_get_v2([transfer])[PoolName.MAMBA])
    assert same(states, original)
    wipe(states)
    missing = PoolTransfer(name=PoolName.MAMBA, host_indices=indices[:2], keys=["no", keys[1]])
    assert backend.batch_get_v2([missing])[PoolName.MAMBA] == [False, True]
    assert not any(buffer[int(indices[0])].any() for buffer in buffers_of(states))


@pytest.mark.parametrize("layout", MLA_LAYOUTS)
def test_side_pools_of_compressed_models(make, layout):
    side = paged_pool(layout)
    assert pages_of(side).way == f"{3 if layout == 'layer_first' else 1} pieces a page"
    backend = make({PoolName.KV: mla_pool(), PoolName.DEEPSEEK_V4_C4: side}, mla=True)
    original, keys, indices = fill(side, 1), hashes(40), torch.arange(40 * PAGE)
    one = PoolTransfer(name=PoolName.DEEPSEEK_V4_C4, host_indices=indices, keys=keys)
    assert all(backend.batch_set_v2([one], before())["deepseek_v4_c4"])
    wipe(side)
    assert all(backend.batch_get_v2([one])["deepseek_v4_c4"]) and same(side, original) and backend.counts == {}


def test_several_buffers_are_told_apart_wherever_they_lie(make):
    """Which of two buffers lies first differs from process to process: what a page is must not depend on it."""
    pools = [TwoBuffers(swapped) for swapped in (False, True)]
    writer, reader = (make(pool) for pool in pools)
    pools[0].kv_buffer[:] = 1
    pools[0].other[:] = 2
    assert all(writer.batch_set_v1(hashes(4), torch.arange(4 * PAGE), before()))
    assert all(reader.batch_get_v1(hashes(4), torch.arange(4 * PAGE)))
    assert (pools[1].kv_buffer == 1).all() and (pools[1].other == 2).all()


@pytest.mark.parametrize("layout", MHA_LAYOUTS)
def test_flat_pages_are_the_same_blocks(make, layout):
    """What the old interface stores can be read by the new one, and the other way round."""
    pool = mha_pool(layout)
    backend = make(pool, layout=layout)
    original, keys, indices = fill(pool, 1), hashes(8), shuffled(pool, 8)
    pages = [page_of(original, pool, int(indices[i * PAGE])).view(pool.dtype) for i in range(8)]
    assert backend.batch_set(keys[:4], pages[:4]) and backend.set(keys[4], pages[4])
    assert all(backend.batch_set_v1(keys[5:], indices[5 * PAGE :], before(*keys[:5])))
    targets = [pool.get_dummy_flat_data_page() for _ in range(9)]
    read = backend.batch_get([*keys, "none"], targets)
    assert read[8] is None and all(got is target for got, target in zip(read[:8], targets))
    assert all(equal(got, page) for got, page in zip(read, pages))
    wipe(pool)
    assert backend.batch_get_v1(keys, indices) == [True] * 8
    for i in range(8):
        assert equal(pool.get_data_page(int(indices[i * PAGE])), pages[i])


def test_tensors_that_are_no_pages_are_refused(make):
    pool = mha_pool()
    backend = make(pool)
    page = pool.get_dummy_flat_data_page()
    assert not backend.set("a", page[:-1]) and not backend.set("a", None) and not backend.set("a", 5)
    assert not backend.set("a", torch.zeros(2, page.numel(), dtype=page.dtype).t())
    assert not backend.batch_set(["a", "b"], [page]) and backend.batch_get(["a", "b"], [page]) == [None, None]
    assert backend.get("a") is None and backend.batch_get(["a"], None) == [None]
    assert not backend.exists("a") and backend.batch_set([], []) and backend.batch_get([], []) == []
    assert backend.set("a", page) and backend.exists("a")
    assert set(backend.counts) == {"misused"}
