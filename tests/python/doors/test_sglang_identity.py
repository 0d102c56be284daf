"""kvist.sglang: what keeps the pages of two engines apart, and what lets them share.

Run by `make test-engines ENGINE=sglang`.
"""

import itertools

import pytest

from sglang_rig import (  # noqa: F401
    MHA_LAYOUTS,
    PAGE,
    before,
    equal,
    fill,
    hashes,
    make,
    mha_pool,
    model,
    pytestmark,
    torch,
)
from kvist.sglang._pages import pages_of


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
