"""kvist.sglang with a node that is not there, gone, stopped, late, new, full or damaged, and with SGLang's own fault injector.

Run by `make test-engines ENGINE=sglang`.
"""

import itertools
import logging
import os
import signal
import time

import pytest

import kvist
from conftest import damage, stopped, wait_until
from sglang_rig import (  # noqa: F401
    PAGE,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    backend_of,
    before,
    config,
    equal,
    fill,
    hashes,
    mamba_pool,
    mha_pool,
    pytestmark,
    torch,
    wipe,
)

DEADLINE = 0.25
PAGES = 8
INDICES = torch.arange(PAGES * PAGE)
KEYS = hashes(PAGES)
START = before()
_names = itertools.count()


def start(path, memory="64MiB", **options):
    return kvist.Node(memory=memory, admin=None, socket=path, **options)


@pytest.fixture
def opened():
    made = []

    def open_(path, pools=None, **given):
        given = {"deadline": f"{int(DEADLINE * 1000)}ms", "model": f"org/m{next(_names)}", **given}
        made.append(backend_of(config(path, **given), mha_pool() if pools is None else pools))
        return made[-1]

    yield open_
    for one in made:
        one.close()


def pool_of(backend):
    return backend.mem_pool_host


def works(backend):
    return all(backend.batch_set_v1(KEYS, INDICES, START)) and all(backend.batch_get_v1(KEYS, INDICES))


def bounded(call, *arguments, calls=1):
    """What a call answers; it may take the deadline, and what a busy machine adds."""
    begun = time.monotonic()
    answer = call(*arguments)
    assert time.monotonic() - begun < calls * DEADLINE + 5
    return answer


def everything_misses(backend):
    pool = pool_of(backend)
    was = fill(pool, 5)
    page = pool.get_dummy_flat_data_page()
    one = [PoolTransfer(name=PoolName.KV, host_indices=INDICES, keys=KEYS)]
    assert bounded(backend.batch_exists, KEYS) == 0
    assert bounded(backend.batch_get_v1, KEYS, INDICES) == [False] * PAGES
    assert bounded(backend.batch_set_v1, KEYS, INDICES, START) == [False] * PAGES
    found = bounded(backend.batch_exists_v2, KEYS, one)
    assert (found.kv_hit_pages, found.extra_pool_hit_pages) == (0, {})
    assert bounded(backend.batch_get_v2, one) == {"kv": [False] * PAGES} == bounded(backend.batch_set_v2, one, START)
    assert bounded(backend.get, KEYS[0], page) is None and not bounded(backend.set, KEYS[0], page)
    assert not bounded(backend.exists, KEYS[0]) and not bounded(backend.clear) and backend.get_stats().backup_pgs == []
    assert equal(pool.kv_buffer, was[0]), "no page was touched"


def test_without_a_node_everything_misses_and_it_is_said_once(tmp_path, opened, caplog):
    """Known failures 9, 26, 31: the pool cannot be reached."""
    with caplog.at_level(logging.WARNING, "kvist.sglang"):
        backend = opened(tmp_path / "none.sock")
        everything_misses(backend)
        everything_misses(backend)
    told = [record for record in caplog.records if record.name == "kvist.sglang"]
    assert len(told) == 1 and str(tmp_path) in told[0].message and "runs without" in told[0].message
    assert backend.counts["unavailable"] > 10 and "none.sock" in backend.state


def test_a_node_that_comes_late_is_used(tmp_path, opened):
    path = tmp_path / "k.sock"
    backend = opened(path)
    fill(pool_of(backend), 1)
    assert not works(backend)
    with start(path):
        wait_until(lambda: works(backend), "the node is found")
        assert backend.state == "connected" and backend.batch_exists(KEYS) == PAGES


def test_a_node_that_is_killed_and_restarted_empty(tmp_path, opened):
    path = tmp_path / "k.sock"
    backend = None
    with start(path) as node:
        backend = opened(path)
        original = fill(pool_of(backend), 1)
        assert works(backend)
        os.kill(node.pid, signal.SIGKILL)
        wait_until(lambda: backend.state != "connected", "its end is seen")
        everything_misses(backend)
    with start(path):
        wait_until(lambda: backend.batch_set_v1(KEYS[:1], INDICES[:PAGE], START) == [True], "the new one is used")
        assert backend.batch_exists(KEYS) == 1, "it is empty"
        pool_of(backend).kv_buffer.copy_(original[0])
        assert backend.batch_get_v1(KEYS[1:], INDICES[PAGE:]) == [False] * (PAGES - 1)
        assert works(backend) and backend.batch_exists(KEYS) == PAGES


def test_a_stopped_node_is_read_and_costs_a_put_its_deadline(tmp_path, opened):
    """Known failures 20, 24: reading needs no answer of the node; a put has one within its deadline, then they rest."""
    with start(tmp_path / "k.sock") as node:
        backend = opened(tmp_path / "k.sock")
        pool = pool_of(backend)
        original = fill(pool, 1)
        assert works(backend)
        with stopped(node):
            wipe(pool)
            assert bounded(backend.batch_get_v1, KEYS, INDICES) == [True] * PAGES
            assert equal(pool.kv_buffer[:, : len(INDICES)], original[0][:, : len(INDICES)])
            assert bounded(backend.batch_exists, [*KEYS, "none"]) == PAGES
            absent = [f"absent {i}" for i in range(128)]
            assert not any(backend.batch_exists(absent) for _ in range(500)), "misses ask nobody"
            more = [f"more {i}" for i in range(PAGES)]
            begun = time.monotonic()
            for _ in range(20):
                assert bounded(backend.batch_set_v1, more, INDICES, START) == [False] * PAGES
            assert backend.counts["deadline_exceeded"] == PAGES and backend.counts["resting"] == 19
            assert time.monotonic() - begun < 20 * DEADLINE + 5
        wait_until(lambda: all(backend.batch_set_v1(more, INDICES, START)), "puts are tried again")


def test_a_pool_full_of_pinned_blocks_takes_no_more(tmp_path, opened):
    with start(tmp_path / "k.sock", memory="16MiB") as node, node.client() as client:
        backend = opened(tmp_path / "k.sock", mha_pool(tokens=320 * PAGE, layers=4, heads=4, dim=64))  # 32 KiB a page
        pool = pool_of(backend)
        original = fill(pool, 1)
        space = client.open(backend._open.identity)
        held, keys = [], []
        for batch in range(64):
            some = [f"pinned {batch} {i}" for i in range(PAGES)]
            if not all(backend.batch_set_v1(some, INDICES, START)):
                break
            keys += some
            held.append(space.pin(space.digests(some), part="kv.tp0"))
        else:
            pytest.fail("the pool was never full")
        try:
            assert bounded(backend.batch_set_v1, KEYS, INDICES, START) == [False] * PAGES
            assert backend.counts["resource_exhausted"] > 0
            wipe(pool)
            assert all(backend.batch_get_v1(keys[:PAGES], INDICES)), "what is there is read"
            assert equal(pool.kv_buffer[:, : len(INDICES)], original[0][:, : len(INDICES)])
        finally:
            for pinned in held:
                pinned.close()
        wait_until(lambda: all(backend.batch_set_v1(KEYS, INDICES, START)), "there is room again")


def test_a_damaged_page_is_not_used(tmp_path, opened):
    """Known failures 5, 40: with verify always, the page is a miss, and the others are read."""
    with start(tmp_path / "k.sock", memory="32MiB") as node:
        backend = opened(tmp_path / "k.sock", verify="always")
        pool = pool_of(backend)
        original = fill(pool, 1)
        assert works(backend)
        page = pool.get_data_page(3 * PAGE).clone().view(torch.uint8)
        damage(node, bytes(page[:256].numpy()))
        wipe(pool)
        assert backend.batch_get_v1(KEYS, INDICES) == [True] * 3 + [False] + [True] * 4
        assert backend.counts == {"data_loss": 1}
        for i in (0, 1, 2, 4, 7):
            at = slice(i * PAGE, (i + 1) * PAGE)
            assert equal(pool.kv_buffer[:, at], original[0][:, at])
        wait_until(lambda: backend.batch_exists(KEYS) == 3, "the node has taken it out")
        pool.kv_buffer.copy_(original[0])
        assert works(backend) and backend.batch_exists(KEYS) == PAGES


def test_a_wrong_token_and_a_right_one_later(tmp_path, opened, caplog):
    right, ours, path = tmp_path / "right", tmp_path / "ours", tmp_path / "k.sock"
    right.write_text("a right one, and long enough\n")
    right.chmod(0o600)
    ours.write_text("a wrong one, and long enough\n")
    with start(path, arguments=["--token-file", str(right)]):
        with caplog.at_level(logging.WARNING, "kvist.sglang"):
            backend = opened(path, token_file=str(ours))
            everything_misses(backend)
        assert backend.counts["unauthenticated"] >= 1 and "token" in caplog.text
        ours.write_text(right.read_text())
        wait_until(lambda: works(backend), "the new token is read")


def test_a_restarted_engine_finds_its_pages(tmp_path, opened):
    """Known failure 18: written, restarted, read back."""
    with start(tmp_path / "k.sock"):
        pools = {PoolName.KV: mha_pool(), PoolName.MAMBA: mamba_pool()}
        first = opened(tmp_path / "k.sock", pools, model="org/restarted")
        originals = [fill(pool, seed) for seed, pool in enumerate(pools.values())]
        state = PoolTransfer(
            name=PoolName.MAMBA, host_indices=torch.tensor([5]), keys=KEYS[-1:], hit_policy=PoolHitPolicy.TRAILING_PAGES
        )
        assert all(first.batch_set_v1(KEYS, INDICES, START)) and first.batch_set_v2([state]) == {"mamba": [True]}
        first.close()
        again = {PoolName.KV: mha_pool(), PoolName.MAMBA: mamba_pool()}
        second = opened(tmp_path / "k.sock", again, model="org/restarted")
        assert second.batch_exists_v2(KEYS, [state]).kv_hit_pages == PAGES
        assert all(second.batch_get_v1(KEYS, INDICES)) and second.batch_get_v2([state]) == {"mamba": [True]}
        assert equal(again[PoolName.KV].kv_buffer[:, : len(INDICES)], originals[0][0][:, : len(INDICES)])
        for read, original in zip(again[PoolName.MAMBA].kv_buffer, originals[1], strict=True):
            assert equal(read[5], original[5])


def test_nothing_is_left_behind_by_calls(tmp_path, opened):
    """A prefetch that is cancelled has nothing to give back but its host memory: no pin, no call under way."""
    with start(tmp_path / "k.sock") as node, node.client() as watcher:
        backend = opened(tmp_path / "k.sock")
        assert works(backend) and backend.batch_exists([*KEYS, "none"]) == PAGES
        client = backend._open.link.client
        assert client.pinned_blocks == 0 and client.poll() == [] and watcher.report()["pinned"] == 0


@pytest.mark.parametrize("failure, delay", [("0.4", "0.002"), ("1", "0")])
def test_sglangs_fault_injector(tmp_path, opened, monkeypatch, failure, delay):
    """What SGLang wraps a backend in for its own tests: no call raises, and what succeeds is right."""
    monkeypatch.setenv("SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE", failure)
    monkeypatch.setenv("SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY", delay)
    with start(tmp_path / "k.sock"):
        pools = {PoolName.KV: mha_pool(), PoolName.MAMBA: mamba_pool()}
        wrapped = opened(tmp_path / "k.sock", pools)
        assert type(wrapped).__name__ == "HiCacheStorageFailureInjector"
        pool = pools[PoolName.KV]
        original = fill(pool, 1)
        one = PoolTransfer(name=PoolName.MAMBA, host_indices=torch.tensor([1]), keys=KEYS[:1])
        seen = set()
        for _ in range(40):
            pool.kv_buffer.copy_(original[0])
            seen.add(("set", tuple(set(wrapped.batch_set_v1(KEYS, INDICES, START)))))
            wipe(pool)
            read = wrapped.batch_get_v1(KEYS, INDICES)
            seen.add(("get", tuple(set(read))))
            if all(read):
                assert equal(pool.kv_buffer[:, : len(INDICES)], original[0][:, : len(INDICES)])
            assert wrapped.batch_exists(KEYS) in (0, PAGES) and wrapped.batch_exists_v2(KEYS, [one]).kv_hit_pages in (0, 1)
            assert wrapped.batch_set_v2([one])["mamba"] in ([True], [False])
            wrapped.get(KEYS[0], pool.get_dummy_flat_data_page()), wrapped.exists(KEYS[0])
            assert wrapped.get_stats() is not None
        assert seen == {(op, (told,)) for op in ("set", "get") for told in ((False,) if failure == "1" else (False, True))}
