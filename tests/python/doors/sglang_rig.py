"""What the tests of kvist.sglang share: backends on a node, keys and pages, and what the node has of them.

Importing it skips the test file, saying so, where SGLang is not installed.
"""

import contextlib
import importlib.util
import itertools
import os

import pytest

if importlib.util.find_spec("sglang") is None:
    pytest.skip("SGLang is not here: make test-engines ENGINE=sglang", allow_module_level=True)

from sglang_pools import (  # noqa: F401
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
    """Backends on the node, closed at the end."""
    made = []

    def backend(pools, **given):
        made.append(backend_of(config(given.pop("socket", node.socket), **{"model": model, **given}), pools))
        return made[-1]

    yield backend
    for one in made:
        one.close()


def hashes(count):
    return [f"{i:064x}" for i in range(count)]


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


@contextlib.contextmanager
def blocks_of(node, backend):
    """A backend's namespace by a client beside it, and what the node had there as it was opened: {digest: Listing}."""
    with node.client() as client:
        space = client.open(backend._open.identity)
        listed, cursor = space.list(0)
        assert cursor == 0
        yield space, {one.position: one for one in listed}


def hybrid(make, **given):
    pools = {PoolName.KV: mha_pool(), PoolName.INDEXER: mla_pool(), PoolName.MAMBA: mamba_pool()}
    for seed, pool in enumerate(pools.values()):
        fill(pool, seed)
    return pools, make(pools, **given)


def every(pools, name, keys, first=0, policy=PoolHitPolicy.ALL_PAGES, **given):
    unit = pools[name].page_size
    indices = torch.arange(first * unit, (first + len(keys)) * unit)
    return PoolTransfer(name=name, host_indices=indices, keys=keys, hit_policy=policy, **given)


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
