"""The asyncio form."""

import asyncio

import pytest

import kvist
import kvist.aio
from conftest import BLOCK, identity, keys, pattern
from kvist import Code


def run(node, body):
    async def main():
        async with kvist.aio.Client(node.socket) as client:
            await body(client, await client.open(identity()))

    asyncio.run(asyncio.wait_for(main(), 60))


def test_put_and_get(node):
    async def body(client, space):
        chain = space.digests(keys(4))
        source = b"".join(pattern(i) for i in range(4))
        assert (await space.put(chain, source, session="s")).check().done == 4
        assert (await space.put(chain, source)).count(Code.ALREADY_EXISTS) == 4
        out = bytearray(4 * BLOCK)
        assert (await space.get(chain, out)).ok and bytes(out) == source
        missed = await space.get(space.digests([b"none"]), bytearray(BLOCK))
        assert list(missed) == [Code.NOT_FOUND]
        with space.prefix(chain) as found:
            assert len(found) == 4
        batch = await space.reserve(space.digests([b"r"]))
        batch.copy(0, pattern(9))
        assert (await space.commit(batch)).ok
        await space.touch(chain, session="s", stop="end")
        assert (await client.report())["blocks"] >= 5 and client.stats().blocks_put >= 5
        assert (await space.remove(chain[3:])).ok
        assert await space.flush() >= 4
        for call in (space.get(chain, out), space.put(chain, source)):
            with pytest.raises(kvist.FailedPrecondition, match="flushed"):
                await call

    run(node, body)


def test_more_than_fit_at_once(node, rng):
    async def body(client, space):
        chain = space.digests(keys(8))
        await space.put(chain, b"".join(pattern(i) for i in range(8)))

        async def one(i):
            if rng.random() < 0.3:
                name = space.digests([b"more-%d" % i])
                assert (await space.put(name, pattern(i))).ok
            out = bytearray(BLOCK)
            assert (await space.get(chain[i % 8 : i % 8 + 1], out)).ok
            assert bytes(out) == pattern(i % 8)

        await asyncio.gather(*(one(i) for i in range(300)))

    run(node, body)


def test_the_loop_runs_while_calls_wait(node):
    async def body(client, space):
        chain = space.digests(keys(256))
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        for _ in range(20):
            await space.put(chain, bytes(256 * BLOCK))
        ticking.cancel()
        assert ticks > 20

    run(node, body)


def test_a_cancelled_call_hurts_nobody(node):
    async def body(client, space):
        chain = space.digests(keys(64))
        await space.put(chain, b"".join(pattern(i) for i in range(64)))
        outs = [bytearray(64 * BLOCK) for _ in range(100)]
        tasks = [asyncio.create_task(space.get(chain, out)) for out in outs]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) or end.ok for end in ended)
        out = bytearray(64 * BLOCK)
        for _ in range(70):  # all turns have come back
            assert (await space.get(chain, out)).ok

    run(node, body)


def test_wrong_arguments_are_raised_at_once(node):
    async def body(client, space):
        chain = space.digests(keys(1))
        with pytest.raises(BufferError):
            await space.get(chain, b"frozen" * 1000)
        with pytest.raises(ValueError):
            await space.put(chain, b"short")

    run(node, body)


def test_closing_ends_what_waits(node):
    async def main():
        client = kvist.aio.Client(node.socket)
        space = await client.open(identity())
        chain = space.digests(keys(16))
        await space.put(chain, bytes(16 * BLOCK))
        # More than may be under way at once, so that some wait for their turn; puts are submitted by another thread.
        tasks = [asyncio.create_task(space.get(chain, bytearray(16 * BLOCK))) for _ in range(100)]
        tasks += [asyncio.create_task(space.put(chain, bytes(16 * BLOCK))) for _ in range(60)]
        await asyncio.sleep(0)
        await client.close()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, (asyncio.CancelledError, kvist.FailedPrecondition, kvist.Results)) for end in ended)
        for call in (space.get(chain, bytearray(16 * BLOCK)), client.connect(), client.open(space.identity)):
            with pytest.raises(kvist.FailedPrecondition):
                await call

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_client_belongs_to_one_loop(node):
    client = kvist.aio.Client(client=node.client())
    asyncio.run(client.connect())

    async def other():
        with pytest.raises(RuntimeError, match="another event loop"):
            await client.connect()
        await client.close()

    asyncio.run(other())


def test_no_node(tmp_path):
    async def main():
        with pytest.raises(kvist.Unavailable):
            await kvist.aio.Client(tmp_path / "none", timeout=0.2).connect()

    asyncio.run(main())
