"""Blocks of device memory through staging memory: the bookkeeping of kvist.vllm.worker_cuda, with a device that is host
memory and whose copies happen as late as they may. What CUDA itself does is not tested here."""

import os
import random
import time
import warnings

import pytest
from conftest import identity, stopped

pytest.importorskip("torch", reason="needs torch: make test-engines ENGINE=vllm")
pytestmark = pytest.mark.filterwarnings("default")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch

    import kvist
    from kvist.vllm.worker_cuda import StagedPages

SIZES = (96, 160)  # bytes of a block in the device's two arrays
BLOCK = sum(SIZES)


class Event:
    """A copy that is made when somebody waits for it, or after it was asked for often enough."""

    def __init__(self, copy, late):
        self._copy, self._late = copy, late

    def finish(self):
        copy, self._copy = self._copy, None
        if copy is not None:
            copy()

    synchronize = finish

    def query(self):
        self._late -= 1
        if self._late < 0:
            self.finish()
        return self._copy is None


class Streams:
    def __init__(self, late):
        self.late = late

    def staging(self, nbytes):
        return torch.zeros(nbytes, dtype=torch.uint8)

    def to_device(self, arrays, ids, rows):
        def copy():
            start = 0
            for array in arrays:
                array[ids] = rows[:, start : start + array.shape[1]]
                start += array.shape[1]

        return Event(copy, self.late)

    def to_host(self, arrays, ids, rows):
        def copy():
            rows.copy_(torch.cat([array[ids] for array in arrays], dim=1))

        return Event(copy, self.late)

    def hold(self, event):
        event.finish()


@pytest.fixture
def space(client):
    return client.open(kvist.Identity(f"staging-{os.urandom(4).hex()}", "m", [kvist.Part("kv", BLOCK)]))


def device(blocks=64, filled=True):
    return [torch.randint(0, 256, (blocks, size), dtype=torch.uint8) * int(filled) for size in SIZES]


def staged(arrays, places, late=3):
    return StagedPages([arrays], Streams(late), places * BLOCK)


def finish(client, pages, calls, seconds=10.0):
    done, end = [], time.monotonic() + seconds
    while len(done) < len(calls):
        assert time.monotonic() < end
        done += pages.advance(client.poll())
    assert all(call.done for call in calls) and {id(call) for call in done} == {id(call) for call in calls}


@pytest.mark.parametrize("late", [0, 5])
def test_what_is_stored_is_loaded_piece_by_piece(client, space, late):
    source, target = device(), device(filled=False)
    out, into = staged(source, 32, late), staged(target, 5, late)
    chain = space.digests([b"%d" % i for i in range(24)])
    ids = random.sample(range(64), 24)
    finish(client, out, [out.begin_write(space, chain, 0, ids, 0, "", 2.0)])
    calls = [into.begin_read(space, chain[start : start + 8], 0, ids[start : start + 8], 0, 2.0) for start in (0, 8, 16)]
    finish(client, into, calls)
    assert all(call.results.ok and call.results.done == 8 for call in calls)
    for before, after in zip(source, target):
        assert torch.equal(before[ids], after[ids])
    assert sorted(into._staging[0].free) == list(range(5)) and sorted(out._staging[0].free) == list(range(32))


def test_blocks_may_be_overwritten_in_the_next_step(client, space):
    source = device()
    wanted = [array.clone() for array in source]
    pages = staged(source, 8, late=1000)
    chain = space.digests([b"a", b"b", b"c"])
    call = pages.begin_write(space, chain, 0, [7, 9, 8], 0, "a session", 2.0)
    pages.before_step()
    for array in source:
        array.zero_()
    finish(client, pages, [call])
    there = bytearray(3 * BLOCK)
    assert space.get(chain, there).ok
    want = torch.cat([array[[7, 9, 8]] for array in wanted], dim=1)
    assert bytes(there) == want.numpy().tobytes()


def test_a_store_without_room_is_refused_and_a_load_waits(client, space):
    pages = staged(device(), 4, late=2)
    chain = space.digests([b"%d" % i for i in range(9)])
    first = pages.begin_write(space, chain[:4], 0, [1, 2, 3, 4], 0, "", 2.0)
    assert pages.begin_write(space, chain[4:5], 0, [5], 0, "", 2.0) is None
    load = pages.begin_read(space, chain[:4], 0, [10, 11, 12, 13], 0, 2.0)  # there is room once the store is through
    finish(client, pages, [first, load])
    assert load.results.ok


def test_misses_are_told_block_by_block(client, space):
    pages = staged(device(), 2, late=0)
    chain = space.digests([b"%d" % i for i in range(5)])
    finish(client, pages, [pages.begin_write(space, chain[:2], 0, [0, 1], 0, "", 2.0)])
    call = pages.begin_read(space, chain, 0, [20, 21, 22, 23, 24], 0, 2.0)
    finish(client, pages, [call])
    assert list(call.results) == [kvist.Code.OK] * 2 + [kvist.Code.NOT_FOUND] * 3
    assert call.results.count(kvist.Code.NOT_FOUND) == 3 and not call.results.ok
    assert list(pages.read(space, chain, 0, [20, 21, 22, 23, 24], 0, 2.0)) == list(call.results)


def test_a_node_that_is_gone_ends_every_call(client, space):
    with kvist.Node(memory="64MiB", admin=None) as node, node.client() as mine:
        own = mine.open(kvist.Identity("gone", "m", [kvist.Part("kv", BLOCK)]))
        pages = staged(device(), 4, late=1)
        chain = own.digests([b"%d" % i for i in range(6)])
        node.close()
        write = pages.begin_write(own, chain[:2], 0, [1, 2], 0, "", 1.0)
        calls = [write, pages.begin_read(own, chain, 0, list(range(6)), 0, 1.0)]
        finish(mine, pages, calls)
        assert not any(code == kvist.Code.OK for call in calls for code in call.results)
        assert len(pages._staging[0].free) == 4


def test_a_client_that_is_replaced_leaves_no_place_taken(node):
    with node.client() as gone:
        theirs = gone.open(identity(BLOCK))
        chain = theirs.digests([b"%d" % i for i in range(6)])
        pages = staged(device(), 8, late=0)
        with stopped(node):
            call = pages.begin_write(theirs, chain, 0, [1, 2, 3, 4, 5, 6], 0, "", 5.0)
            pages.advance([])
            assert len(pages._putting) == 1 and len(pages._staging[0].free) == 2
            gone.close()
        pages.forget()
    assert sorted(pages._staging[0].free) == list(range(8))
    assert call.done and set(call.results) == {kvist.Code.UNAVAILABLE} and not pages._putting
