"""kvist.sglang as SGLang calls it: settings, refusals, clear, statistics, its end, and many threads at once.

Run by `make test-engines ENGINE=sglang`, which has SGLang in an environment of its own.
"""

import random

import pytest

from conftest import in_threads
from sglang_rig import (  # noqa: F401
    PAGE,
    TwoBuffers,
    backend_of,
    before,
    config,
    equal,
    fill,
    hashes,
    make,
    mha_pool,
    model,
    pytestmark,
    torch,
)
from kvist.sglang import KvistHiCache


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
            elif not equal(target.kv_buffer[:, at], original[0][:, at]):
                wrong.append("bytes")

    in_threads(work, range(4))
    assert wrong == [] and backend.counts == {} == reader.counts
