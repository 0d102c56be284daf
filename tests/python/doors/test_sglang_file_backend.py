"""kvist.sglang beside SGLang's own file backend: the same random calls to both have the same answers and the same bytes.

Run by `make test-engines ENGINE=sglang`.
"""

import logging

import pytest

from sglang_rig import (  # noqa: F401
    PAGE,
    HiCacheFile,
    PoolHitPolicy,
    PoolName,
    before,
    buffers_of,
    config,
    equal,
    every,
    fill,
    hashes,
    make,
    mamba_pool,
    mha_pool,
    mla_pool,
    model,
    pytestmark,
    torch,
)


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
