"""No call leaves an object behind, whether it succeeds or fails."""

import gc
import tracemalloc

import pytest

import kvist
from conftest import BLOCK, identity, keys, pattern

numpy = pytest.importorskip("numpy")


def calls(client, space, chain):
    source, out = b"".join(pattern(i) for i in range(4)), bytearray(4 * BLOCK)
    pages = kvist.Pages(numpy.zeros((8, BLOCK), numpy.uint8))
    who = identity()

    def failing(call):
        def run():
            with pytest.raises(Exception):
                call()

        return run

    def reserve():
        with space.reserve(space.digests([b"room"])) as batch:
            memoryview(batch[0])[:1] = b"x"
            batch.copy(0, pattern(1))

    def submit():
        call = space.submit_get(chain, out)
        while not call.done:
            client.poll(10)

    def in_place():
        with space.prefix(chain) as found:
            numpy.from_dlpack(found.blocks[0])
            numpy.frombuffer(found.blocks[1], numpy.uint8)
            found.blocks[2].__dlpack__()
            found.runs, found.code, found.message

    yield lambda: space.put(chain, source)
    yield lambda: space.put(chain, [[pattern(0)[:7], pattern(0)[7:]]] * 4, session="s")
    yield lambda: space.get(chain, out, sizes=True).sizes
    yield lambda: space.get(chain, pages[[1, 2, 3, 4]])
    yield lambda: list(space.contains(chain)) + space.contains(chain).where(0)
    yield lambda: bytes(chain[1:] + chain[:1]) + chain[0] + str(chain.hex()).encode()
    yield lambda: space.digests(["a", b"b", memoryview(b"c")])
    yield in_place
    yield lambda: [block and bytes(block) for block in space.pin(chain)]
    yield reserve
    yield submit
    yield lambda: (client.stats(), client.report(), space.id, space.identity, space.list())
    yield lambda: client.open(space.identity)
    yield lambda: space.touch(chain, stop="s")
    yield failing(lambda: space.get(chain, source))
    yield failing(lambda: space.put(chain, [source, 3, 4, 5]))
    yield failing(lambda: space.put(chain, source, nothing=1))
    yield failing(lambda: space.digests([b"a", 1]))
    yield failing(lambda: space.reserve(chain, [1, 2]))
    yield failing(lambda: client.open(kvist.Identity("", who.model)))
    yield failing(lambda: pages[[99]])
    yield failing(lambda: space.get(space.digests([b"none"]), bytearray(BLOCK)).check())
    yield failing(lambda: kvist.Client("/nonexistent/socket", timeout=0))
    yield failing(lambda: space.submit_get(chain, source))
    yield failing(lambda: space.pin(chain)[9])


@pytest.mark.parametrize("index", range(25))
def test_no_call_leaves_anything(client, space, index):
    chain = space.digests(keys(4))
    every = list(calls(client, space, chain))
    assert len(every) == 25
    space.put(chain, b"".join(pattern(i) for i in range(4))).check()

    def memory(times):
        for _ in range(times):
            every[index]()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        sizes = [memory(200) for _ in range(5)]
    finally:
        tracemalloc.stop()
    # Caches fill up and test tools keep things now and then; what every call leaves grows in every round.
    grown = min(after - before for before, after in zip(sizes, sizes[1:]))
    assert grown < 200 * 16, f"{grown / 200} bytes a call stay"  # the smallest object has 16
