"""Many threads on one client; the GIL is given up."""

import threading

import pytest

import kvist
from conftest import BLOCK, identity, keys, pattern
from kvist import Code


def test_many_threads_write_and_read(client, rng):
    space = client.open(identity())
    failures = []

    def work(number, seed):
        import random

        random_ = random.Random(seed)
        try:
            for _ in range(20):
                first = random_.randrange(200)
                count = random_.randrange(1, 24)
                chain = space.digests(keys(count, first=first))
                space.put(chain, [pattern(i) for i in range(first, first + count)], unchained=True)
                out = bytearray(count * BLOCK)
                results = space.get(chain, out)
                with space.pin(chain) as pinned:
                    for i, block in enumerate(pinned):
                        if block is not None:
                            assert bytes(block) == pattern(first + i)
                for i, code in enumerate(results):
                    if code == Code.OK:
                        assert out[i * BLOCK : (i + 1) * BLOCK] == pattern(first + i)
        except BaseException as failure:
            failures.append((number, failure))

    threads = [threading.Thread(target=work, args=(n, rng.random())) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures


def test_a_call_that_waits_lets_others_run(client, space):
    """If poll() kept the GIL this would never submit the call that poll() waits for."""
    chain = space.digests(keys(2))
    space.put(chain, [pattern(0), pattern(1)]).check()
    waiting, found = threading.Event(), []

    def wait():
        waiting.set()
        found.extend(client.poll(60))

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait()
    out = bytearray(2 * BLOCK)
    call = space.submit_get(chain, out)
    thread.join(60)
    assert found in ([call], [])  # empty: it was done before it was noted, and poll() has nothing to tell
    assert call.done and call.results.ok and bytes(out) == pattern(0) + pattern(1)


def test_closing_while_others_are_in_calls(node):
    """A client closed under running calls: they end properly, and later ones are refused."""
    client = node.client()
    space = client.open(identity())
    chain = space.digests(keys(16))
    space.put(chain, [pattern(i) for i in range(16)]).check()
    started, refused, failures = threading.Barrier(5), [], []

    def work():
        out = bytearray(16 * BLOCK)
        started.wait()
        try:
            while True:
                space.get(chain, out).check()
                assert bytes(out[BLOCK : 2 * BLOCK]) == pattern(1)
        except kvist.FailedPrecondition as error:
            refused.append(error)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    started.wait()
    client.close()
    for thread in threads:
        thread.join(60)
    assert not failures and len(refused) == 4


def test_submitted_calls(client, space):
    chain = space.digests(keys(4))
    call = space.submit_put(chain, b"".join(pattern(i) for i in range(4)))
    while not call.done:
        assert client.poll(20) == [call]
    assert call.results.check().done == 4
    out = bytearray(4 * BLOCK)
    call = space.submit_get(chain, out)
    with pytest.raises(BufferError):
        while not call.done:  # `out` is held until the call is done
            out.append(0)
            client.poll(20)
        out.append(0)
        raise BufferError("it was done at once")
    while not call.done:
        client.poll(20)
    assert call.results.ok and bytes(out[: 4 * BLOCK]) == b"".join(pattern(i) for i in range(4))


def test_too_many_submitted_calls(client, space):
    chain = space.digests(keys(1))
    space.put(chain, pattern(0)).check()
    outs = [bytearray(BLOCK) for _ in range(65)]
    calls = [space.submit_get(chain, out) for out in outs[:64]]
    with pytest.raises(kvist.ResourceExhausted, match="64"):
        space.submit_get(chain, outs[64])
    while not all(call.done for call in calls):
        assert client.poll(20)
    assert all(bytes(out) == pattern(0) for out in outs[:64])


def test_a_client_closed_with_calls_under_way(node):
    client = node.client()
    space = client.open(identity())
    chain = space.digests(keys(8))
    space.put(chain, bytes(8 * BLOCK)).check()
    calls = [space.submit_get(chain, bytearray(8 * BLOCK)) for _ in range(16)]
    client.close()
    for call in calls:  # final, one way or the other
        assert set(call.results) <= {Code.OK, Code.CANCELLED}
