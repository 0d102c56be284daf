"""Blocks on disk, as Python meets them: a node with little memory and a disk below it."""

import asyncio
import time

import pytest
from conftest import BLOCK, identity, keys, pattern

import kvist
import kvist.aio

COUNT = 16


@pytest.fixture
def disk_node(tmp_path):
    (tmp_path / "disk").mkdir()
    arguments = ["--disk", str(tmp_path / "disk"), "--disk-capacity", "256MiB"]
    with kvist.Node(memory="16MiB", admin=None, block_bytes=BLOCK, arguments=arguments) as running:
        yield running


def listed(space):
    found, cursor = space.list()
    while cursor:
        more, cursor = space.list(cursor)
        found += more
    return found


@pytest.fixture
def below(disk_node):
    """A space, a chain of it that is on disk only, and its bytes."""
    with disk_node.client(verify="always") as client:
        space, others = client.open(identity()), client.open(identity())
        chain = space.digests(keys(COUNT))
        data = b"".join(pattern(i) for i in range(COUNT))
        space.put(chain, data).check()
        end, number = time.monotonic() + 60, 0
        while sum(each.on_disk and not each.resident for each in listed(space)) < COUNT:
            assert time.monotonic() < end, listed(space)
            time.sleep(0.005)  # the disk is slower than what comes from here
            others.put(others.digests(keys(64, number)), bytes(64 * BLOCK))
            number += 64
        yield client, space, chain, data


def test_a_hint_tells_of_the_disk_and_may_leave_it(below):
    client, space, chain, _ = below
    hint = space.prefix(chain, hint=True, on_disk="leave")
    assert len(hint) == hint.on_disk == COUNT
    assert [(run.begin, run.end, run.source) for run in hint.runs] == [(0, COUNT, "disk")]
    assert hint.runs[0].predicted_us > 0
    assert space.contains(chain).ok
    with space.prefix(chain, on_disk="leave") as left:
        assert len(left) == 0 and left.code == kvist.Code.OK
        assert [(run.begin, run.source) for run in left.runs] == [(0, "disk")]  # why it ends
    assert space.pin(chain, on_disk="leave").results.count(kvist.Code.NOT_FOUND) == COUNT
    assert client.stats().brought == 0


def test_a_prefix_brings_what_is_on_disk(below):
    client, space, chain, data = below
    with space.prefix(chain) as found:
        assert len(found) == found.on_disk == COUNT
        assert b"".join(bytes(block) for block in found.blocks) == data
    assert client.stats().brought == COUNT and client.stats().bring_failed == 0
    assert all(each.resident and each.on_disk for each in listed(space))


def test_a_get_brings_it_too(below):
    _, space, chain, data = below
    out = bytearray(len(data))
    space.get(chain, out).check()
    assert out == data
    assert space.pin(chain).hits == COUNT


def test_without_time_it_is_late(below):
    client, space, chain, _ = below
    with space.prefix(chain, timeout=0) as found:
        assert len(found) == 0 and found.code == kvist.Code.DEADLINE_EXCEEDED
    assert space.get(chain, bytearray(COUNT * BLOCK), timeout=0).count(kvist.Code.DEADLINE_EXCEEDED) == COUNT
    assert client.stats().bring_failed == 1 + COUNT


def test_other_words_are_refused(below):
    _, space, chain, _ = below
    for call in (space.prefix, space.pin):
        with pytest.raises(ValueError, match="'bring' or 'leave'"):
            call(chain, on_disk="take")


def test_asyncio_does_not_wait_unless_it_is_awaited(disk_node, below):
    _, space, chain, data = below

    async def main():
        async with kvist.aio.Client(disk_node.socket) as client:
            other = await client.open(space.identity)
            with other.prefix(chain) as found:
                assert len(found) == 0
            assert other.pin(chain).hits == 0
            with await other.bring(chain) as found:
                assert len(found) == COUNT
                assert b"".join(bytes(block) for block in found.blocks) == data

    asyncio.run(main())
