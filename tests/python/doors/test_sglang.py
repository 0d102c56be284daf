"""kvist.sglang on SGLang's own host pools: layouts, ranks, pools, and what its own file backend does with the same calls.

Run by `make test-engines ENGINE=sglang`, which has SGLang in an environment of its own.
"""

import importlib.util
import itertools
import logging
import os
import random
import threading

import pytest

if importlib.util.find_spec("sglang") is None:
    pytest.skip("SGLang is not here: make test-engines ENGINE=sglang", allow_module_level=True)

import kvist
from sglang_pools import (
    PAGE,
    HiCacheFile,
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    backend_of,
    buffers_of,
    config,
    fill,
    mamba_pool,
    mha_pool,
    mla_pool,
    paged_pool,
    torch,
)
from kvist.sglang import KvistHiCache, _hits
from kvist.sglang._pages import pages_of

pytestmark = pytest.mark.filterwarnings("default", "error::kvist.PinsLeftWarning")

MHA_LAYOUTS = ["layer_first", "page_first", "page_first_direct", "page_head"]
MLA_LAYOUTS = ["layer_first", "page_first", "page_first_direct"]
_names = itertools.count()


@pytest.fixture
def model():
    """The name of a model that no other test uses: a namespace of its own."""
    return f"org/model-{os.getpid()}-{next(_names)}"


@pytest.fixture
def make(node, model):
    """Backends on the node, closed at the end. Nothing may have failed in them that the test does not know of."""
    made = []

    def backend(pools, **given):
        made.append(backend_of(config(given.pop("socket", node.socket), **{"model": model, **given}), pools))
        return made[-1]

    yield backend
    for one in made:
        one.close()


def hashes(count, first=0):
    return [f"{i:064x}" for i in range(first, first + count)]


def before(*keys):
    return HiCacheStorageExtraInfo(prefix_keys=list(keys))


def page_of(buffers, pool, first):
    """A page's bytes in copies of a pool's buffers, as the pool itself cuts it out."""
    kept = pool.kv_buffer
    pool.kv_buffer = buffers[0]
    try:
        return pool.get_data_page(first, flat=True).clone().view(-1).view(torch.uint8)
    finally:
        pool.kv_buffer = kept


def equal(a, b):
    """To the byte: as numbers some are not even equal to themselves."""
    return bytes(a.contiguous().view(-1).view(torch.uint8).numpy()) == bytes(b.contiguous().view(-1).view(torch.uint8).numpy())


def same(pool, buffers):
    return all(equal(a, b) for a, b in zip(buffers_of(pool), buffers, strict=True))


def wipe(pool):
    for buffer in buffers_of(pool):
        buffer.zero_()


def shuffled(pool, pages, seed=7):
    """Indices of pages in no order."""
    indices = pool.alloc(pages * pool.page_size).view(pages, pool.page_size)
    order = torch.randperm(pages, generator=torch.Generator().manual_seed(seed))
    return indices[order].reshape(-1)


# ---- v1: every layout ---------------------------------------------------------------------------------------------------


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
        assert equal(
            still.get_data_page(int(at[i * PAGE])), page_of(original, pool, int(indices[i * PAGE]))
        )


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


class TwoBuffers:
    """A pool whose pages have a piece in each of two buffers, one of them its kv_buffer. swapped: how they lie in memory."""

    layout, page_size, size, dtype = "page_first", PAGE, 4 * PAGE, torch.uint8

    def __init__(self, swapped):
        self.whole = torch.zeros(2, 4, 64, dtype=torch.uint8)
        self.kv_buffer, self.other = (self.whole[1], self.whole[0]) if swapped else (self.whole[0], self.whole[1])

    def get_page_buffer_meta(self, indices):
        pages = (indices[:: self.page_size] // self.page_size).tolist()
        told = [buffer.data_ptr() + page * 64 for page in pages for buffer in (self.kv_buffer, self.other)]
        return told, [64] * len(told)


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


# ---- ranks --------------------------------------------------------------------------------------------------------------


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
    client, space, _ = blocks_of(node, backend)
    with client:
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


# ---- what keeps pages apart -----------------------------------------------------------------------------------------------


OTHERS = {
    "model": dict(model="org/other"),
    "revision": dict(revision="abc"),
    "weights_epoch": dict(weights_epoch="2"),
    "tensor-parallel size": dict(tp=(0, 2)),
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_is_not_the_same_misses(make, other):
    """Known failure 2: the same name of a model with other weights."""
    first, second = mha_pool(), mha_pool()
    writer, reader = make(first), make(second, **OTHERS[other])
    fill(first, 1)
    assert all(writer.batch_set_v1(hashes(2), first.alloc(2 * PAGE), before()))
    at = second.alloc(2 * PAGE)
    assert reader.batch_exists(hashes(2)) == 0 and reader.batch_get_v1(hashes(2), at) == [False, False]
    assert not second.kv_buffer.any()


@pytest.mark.parametrize("first, second", list(itertools.permutations(MHA_LAYOUTS, 2)))
def test_another_layout_misses(make, first, second):
    pools = [mha_pool(first), mha_pool(second)]
    writer, reader = make(pools[0], layout=first), make(pools[1], layout=second)
    fill(pools[0], 1)
    assert all(writer.batch_set_v1(hashes(1), pools[0].alloc(PAGE), before()))
    assert writer.batch_exists(hashes(1)) == 1 and reader.batch_exists(hashes(1)) == 0


@pytest.mark.parametrize(
    "given", [dict(dtype=torch.float16), dict(dtype=torch.float8_e5m2, dim=64), dict(heads=2, dim=64), dict(first_layer=4)]
)
def test_pages_of_the_same_length_but_another_shape_miss(make, given):
    pools = [mha_pool(), mha_pool(**given)]
    assert pages_of(pools[0]).page_bytes == pages_of(pools[1]).page_bytes
    writer, reader = make(pools[0]), make(pools[1])
    fill(pools[0], 1)
    assert all(writer.batch_set_v1(hashes(1), pools[0].alloc(PAGE), before()))
    assert reader.batch_exists(hashes(1)) == 0


def test_engines_of_the_same_kind_share(make):
    """Data-parallel replicas, and an engine that is started again."""
    pools = [mha_pool(), mha_pool(tokens=320)]
    writer, reader = make(pools[0]), make(pools[1])
    original = fill(pools[0], 1)
    assert all(writer.batch_set_v1(hashes(4), torch.arange(4 * PAGE), before()))
    assert reader.batch_get_v1(hashes(4), torch.arange(4 * PAGE)) == [True] * 4
    assert equal(pools[1].kv_buffer[:, : 4 * PAGE], original[0][:, : 4 * PAGE])


def test_new_weights_are_another_namespace(make, monkeypatch):
    """Known failure 15: a weight update of the running engine."""
    from sglang.srt import runtime_context

    class Serving:
        weight_version = "default"

    monkeypatch.setattr(runtime_context, "get_serving", lambda: Serving)
    pool = mha_pool()
    backend = make(pool)
    fill(pool, 1)
    indices = pool.alloc(4 * PAGE)
    assert all(backend.batch_set_v1(hashes(4), indices, before()))
    Serving.weight_version = "step-17"
    assert backend.batch_exists(hashes(4)) == 0 and backend.batch_get_v1(hashes(4), indices) == [False] * 4
    fill(pool, 2)
    assert all(backend.batch_set_v1(hashes(4), indices, before()))
    updated = pool.kv_buffer.clone()
    Serving.weight_version = "default"
    assert all(backend.batch_get_v1(hashes(4), indices)) and not equal(pool.kv_buffer, updated)
    Serving.weight_version = "step-17"
    assert all(backend.batch_get_v1(hashes(4), indices))
    assert equal(pool.kv_buffer, updated) and backend.counts == {}


# ---- prefixes and lineage ---------------------------------------------------------------------------------------------------


def blocks_of(node, backend):
    """What the node knows of a backend's namespace: {digest: Listing}, and the backend's digests of keys."""
    client = node.client()
    space = client.open(backend._open.identity)
    listed, cursor = space.list(0)
    assert cursor == 0
    return client, space, {one.position: one for one in listed}


def test_a_hole_ends_the_prefix(make, node):
    """Known failure 4: a missing first page, and one in the middle."""
    pool = mha_pool()
    backend = make(pool)
    fill(pool, 1)
    keys, indices = hashes(12), pool.alloc(12 * PAGE)
    assert all(backend.batch_set_v1(keys, indices, before()))
    client, space, _ = blocks_of(node, backend)
    with client:
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
    client, space, listed = blocks_of(node, backend)
    with client:
        chain = space.digests(keys)
        assert [listed[chain[i]].depth for i in range(12)] == list(range(12))
        assert [listed[chain[i]].parent for i in range(1, 12)] == [chain[i] for i in range(11)]


def test_a_batch_that_is_cut_keeps_the_chain(make, node):
    pool = mha_pool(tokens=300 * PAGE, layers=1, heads=1)
    backend = make(pool)
    keys = hashes(290)
    transfer = PoolTransfer(name=PoolName.KV, host_indices=torch.arange(288 * PAGE), keys=keys[2:])
    assert all(backend.batch_set_v2([transfer], before(*keys[:2]))[PoolName.KV])
    client, space, listed = blocks_of(node, backend)
    with client:
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


# ---- several pools --------------------------------------------------------------------------------------------------------


def hybrid(make, **given):
    pools = {PoolName.KV: mha_pool(), PoolName.INDEXER: mla_pool(), PoolName.MAMBA: mamba_pool()}
    for seed, pool in enumerate(pools.values()):
        fill(pool, seed)
    return pools, make(pools, **given)


def every(pools, name, keys, first=0, policy=PoolHitPolicy.ALL_PAGES, **given):
    unit = pools[name].page_size
    indices = torch.arange(first * unit, (first + len(keys)) * unit)
    return PoolTransfer(name=name, host_indices=indices, keys=keys, hit_policy=policy, **given)


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
    client, space, _ = blocks_of(node, backend)
    with client:
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


# ---- settings, refusals, the rest of the interface ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given, said",
    [
        ({"sokcet": "x"}, "kvist.sglang: there is no setting 'sokcet'; did you mean 'socket'"),
        ({"deadline": "soon"}, "kvist.sglang: deadline must be"),
        ({"verify": "maybe"}, "verify must be"),
    ],
)
def test_wrong_settings_are_refused_at_the_start(given, said):
    with pytest.raises(ValueError, match=said):
        KvistHiCache(config("/nowhere", **given), {})


def test_sglangs_own_settings_are_left_to_it():
    KvistHiCache(
        config("/nowhere", prefetch_threshold=8, prefetch_timeout_base=1, prefetch_timeout_per_ki_token=0.1, allocator="shm",
               tp_lcm_size=4, verify="always", pins=64, stock="1MiB", revision="main", weights_epoch="1"),
        {},
    ).close()


def test_what_cannot_be_stored_is_refused_when_it_is_registered(make):
    with pytest.raises(ValueError, match="page_unified; use --hicache-mem-layout layer_first, page_first"):
        make(mha_pool("page_unified"), layout="page_unified")

    class Bare:
        kv_buffer, page_size, layout = torch.zeros(4), 16, "page_first"

        def get_page_buffer_meta(self, indices):
            raise NotImplementedError("no storage pages")

    with pytest.raises(ValueError, match="cannot store pages of Bare in layout 'page_first'"):
        make(Bare())

    class Long(TwoBuffers):
        def get_page_buffer_meta(self, indices):
            told, _ = super().get_page_buffer_meta(indices)
            return told, [40 << 20] * len(told)

    with pytest.raises(ValueError, match="pages of 83886080 bytes, a block has at most 67108864; use a smaller --page-size"):
        make(Long(False))
    with pytest.raises(ValueError, match='gave no name of the model; say "model"'):
        make(mha_pool(), model=None)
    sharded = config("/nowhere", mla=True)
    sharded.dcp_size = 2
    with pytest.raises(ValueError, match="decode context parallelism"):
        KvistHiCache(sharded, {})


def test_a_model_named_in_the_settings(node, make, model):
    """Engines that serve the same weights under several names share when they are told so."""
    pools = [mha_pool(), mha_pool()]
    settings = [config(node.socket, model=f"{model} as {i}") for i in range(2)]
    for one in settings:
        one.extra_config["model"] = model
    writer, reader = (backend_of(one, pool) for one, pool in zip(settings, pools))
    try:
        assert all(writer.batch_set_v1(hashes(2), torch.arange(2 * PAGE), before())) and reader.batch_exists(hashes(2)) == 2
    finally:
        writer.close(), reader.close()


def test_clear_forgets_for_all(make):
    pools = [mha_pool(), mha_pool(), mha_pool()]
    one, two = make(pools[0]), make(pools[1])
    other = make(pools[2], revision="other")
    for pool, backend in zip(pools, (one, two, other)):
        fill(pool, 1)
        assert all(backend.batch_set_v1(hashes(3), torch.arange(3 * PAGE), before()))
    assert one.clear() is True
    assert one.batch_exists(hashes(3)) == 0 and other.batch_exists(hashes(3)) == 3
    assert two.clear() is True, "its own view is of before"
    for pool, backend in zip(pools, (one, two)):
        assert all(backend.batch_set_v1(hashes(3), torch.arange(3 * PAGE), before())), "it goes on at once"
        assert backend.batch_exists(hashes(3)) == 3 and backend.counts == {}


def test_statistics_are_those_of_the_calls_since_the_last_time(make):
    pool = mha_pool()
    backend, silent = make(pool, metrics=True), make(pool)
    fill(pool, 1)
    indices = torch.arange(4 * PAGE)
    for one in (backend, silent):
        one.batch_set_v1(hashes(4), indices, before())
        one.batch_get_v1(hashes(6)[2:], indices)
    stats = backend.get_stats()
    assert stats.backup_pgs == [4] and stats.prefetch_pgs == [2]
    assert len(stats.backup_bandwidth) == len(stats.prefetch_bandwidth) == 1 and min(stats.backup_bandwidth) > 0
    assert backend.get_stats().backup_pgs == [] and silent.get_stats().backup_pgs == []


def test_a_closed_backend_misses(make):
    pool = mha_pool()
    backend = make(pool)
    indices = torch.arange(2 * PAGE)
    assert all(backend.batch_set_v1(hashes(2), indices, before()))
    backend.close()
    backend.close()
    assert backend.state == "closed" and backend.batch_exists(hashes(2)) == 0 and not backend.clear()
    assert backend.batch_get_v1(hashes(2), indices) == [False, False] == backend.batch_set_v1(hashes(2), indices)
    assert backend.batch_exists_v2(hashes(2)).kv_hit_pages == 0 and backend.get("a", pool.get_dummy_flat_data_page()) is None


def test_before_a_pool_is_registered_there_is_nothing(node):
    backend = KvistHiCache(config(node.socket), {})
    assert backend.state == "no host pool is registered" and backend.counts == {}
    assert backend.batch_exists(hashes(1)) == 0 and not backend.set("a", torch.zeros(4)) and not backend.exists("a")
    assert backend.batch_get_v1(hashes(1), torch.arange(PAGE)) == [False] and not backend.clear()
    backend.close()


def test_many_threads_over_the_same_pages(make):
    """Known failure 6: transfers at once over overlapping pages."""
    pool = mha_pool(tokens=64 * PAGE)
    backend = make(pool)
    original, keys = fill(pool, 1), hashes(64)
    target = mha_pool(tokens=64 * PAGE)
    reader = make(target)
    wrong = []

    def work(seed):
        pick = random.Random(seed)
        for _ in range(60):
            first = pick.randrange(0, 60)
            count = pick.randrange(1, 65 - first)
            at = torch.arange(first * PAGE, (first + count) * PAGE)
            if not all(backend.batch_set_v1(keys[first : first + count], at, before(*keys[:first]))):
                wrong.append("set")
            if not all(reader.batch_get_v1(keys[first : first + count], at)):
                wrong.append("get")
            elif not equal(
                target.kv_buffer[:, at], original[0][:, at]
            ):
                wrong.append("bytes")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and backend.counts == {} == reader.counts


# ---- the numbers of _hits ------------------------------------------------------------------------------------------------


def test_windows_are_those_of_the_definition():
    for seed in range(200):
        pick = random.Random(seed)
        there = [pick.random() < 0.7 for _ in range(pick.randrange(0, 12))]
        for window in range(1, 5):
            said = {p for p in range(1, len(there) + 1) if all(there[max(0, p - window) : p])}
            assert _hits.windows(there, window) == said, (there, window)
        assert _hits.leading(there) == ([*there, False].index(False))


# ---- SGLang's own file backend beside it --------------------------------------------------------------------------------


@pytest.mark.parametrize("flat", [False, True], ids=["v2", "flat"])
@pytest.mark.parametrize("mla", [False, True], ids=["mha", "mla"])
def test_it_does_what_the_file_backend_does(make, tmp_path, rng, mla, flat):
    """The same random calls to both, each with pools of its own: equal answers, equal bytes. flat: through the old interface,
    which says nothing of what lies before a page."""
    logging.getLogger("sglang.srt.mem_cache.hicache_storage").setLevel(logging.ERROR)  # it tells of each miss
    policies = dict.fromkeys([PoolName.KV, PoolName.INDEXER], PoolHitPolicy.ALL_PAGES)
    policies[PoolName.MAMBA] = PoolHitPolicy.TRAILING_PAGES
    kind = mla_pool if mla else mha_pool
    sides = []
    for side in range(2):
        pools = {PoolName.KV: kind("page_first"), PoolName.INDEXER: mla_pool(layers=1), PoolName.MAMBA: mamba_pool(slots=64)}
        for seed, pool in enumerate(pools.values()):
            fill(pool, seed)
        if side == 0:
            backend = make(pools, mla=mla)
        else:
            backend = HiCacheFile(config(mla=mla), str(tmp_path))
            backend.register_mem_pool_host(pools[PoolName.KV])
            for name, pool in pools.items():
                backend.register_mem_host_pool_v2(pool, name)
        sides.append((pools, backend))
    keys = hashes(24)

    def both(call):
        ours, theirs = (call(*side) for side in sides)
        assert ours == theirs, (ours, theirs)
        return ours

    for _ in range(400):
        first = rng.randrange(0, 20)
        some = keys[first : first + rng.randrange(1, 25 - first)]
        place = rng.randrange(0, 40 - len(some) + 1)
        name = rng.choice(list(policies))
        known = None if flat or name == PoolName.MAMBA else before(*keys[:first])
        op = rng.choice(["set", "set", "get", "exists", "exists_v2", "exists_v2", "one", "scribble"])
        if op == "scribble":
            seed = rng.randrange(1 << 30)
            for pools, _ in sides:
                fill(pools[name], seed)
        elif op in ("set", "get") and flat and name == PoolName.KV:
            def move(pools, backend):
                pool = pools[name]
                if op == "set":
                    return backend.batch_set(some, [pool.get_data_page((place + i) * PAGE) for i in range(len(some))])
                read = backend.batch_get(some, [pool.get_dummy_flat_data_page() for _ in some])
                return [None if page is None else bytes(page.view(torch.uint8).numpy()) for page in read]

            both(move)
        elif op in ("set", "get"):
            def move(pools, backend):
                told = getattr(backend, f"batch_{op}_v2")([every(pools, name, some, first=place, policy=policies[name])], known)
                return {str(pool): done for pool, done in told.items()}

            both(move)
        elif op == "exists":
            both(lambda _, backend: backend.batch_exists(some, known))
        elif op == "one":
            both(lambda _, backend: backend.exists(some[0]))
        else:
            asked = rng.sample([PoolName.INDEXER, PoolName.MAMBA], rng.randrange(0, 3))
            window = rng.randrange(1, 4)

            def ask(pools, backend):
                transfers = [every(pools, one, some[:window], policy=policies[one]) for one in asked]
                found = backend.batch_exists_v2(some, transfers, known)
                hits = {str(pool): pages for pool, pages in found.extra_pool_hit_pages.items()}
                return found.kv_hit_pages, hits, found.restorable_prefix_pages

            both(ask)
        for name in policies:
            ours, theirs = (buffers_of(pools[name]) for pools, _ in sides)
            assert all(equal(a, b) for a, b in zip(ours, theirs)), op
    assert sides[0][1].counts == {}
