"""Room in the pool that the caller fills itself."""

import pytest

import kvist
from conftest import BLOCK, identity, keys, pattern
from kvist import Code

numpy = pytest.importorskip("numpy")


@pytest.fixture
def chain(space):
    return space.digests(keys(3))


def read(space, chain):
    out = bytearray(len(chain) * BLOCK)
    space.get(chain, out).check()
    return bytes(out)


def test_fill_and_commit(client, space, chain):
    space.put(chain[:1], pattern(0)).check()
    with space.reserve(chain) as batch:
        assert len(batch) == 3 and list(batch.results) == [Code.ALREADY_EXISTS, Code.OK, Code.OK]
        assert batch[0] is None and len(batch[1]) == BLOCK
        memoryview(batch[1])[:] = pattern(1)
        numpy.frombuffer(batch[2], numpy.uint8)[:] = numpy.frombuffer(pattern(2), numpy.uint8)
        assert space.contains(chain).done == 1
        results = batch.commit()
    assert list(results) == [Code.ALREADY_EXISTS, Code.OK, Code.OK]
    assert read(space, chain) == pattern(0) + pattern(1) + pattern(2)
    for use in (lambda: batch.commit(), lambda: batch[1], lambda: batch.copy(1, pattern(1))):
        with pytest.raises(ValueError, match="committed or aborted"):
            use()


def test_copy_gathers_pieces(space, chain):
    with space.reserve(chain) as batch:
        batch.copy(0, pattern(0))
        batch.copy(1, [pattern(1)[:10], bytearray(pattern(1)[10:])])
        batch.copy(2, numpy.frombuffer(pattern(2), numpy.uint16))
        with pytest.raises(kvist.InvalidArgument):
            batch.copy(2, b"short")
        with pytest.raises(IndexError):
            batch.copy(3, pattern(3))
        assert batch.commit().ok
    assert read(space, chain) == pattern(0) + pattern(1) + pattern(2)


def test_a_writable_view_forbids_the_commit(space, chain):
    with space.reserve(chain) as batch:
        for i in range(3):
            batch.copy(i, pattern(i))
        for view in (memoryview(batch[0]), numpy.frombuffer(batch[1], numpy.uint8), numpy.from_dlpack(batch[2])):
            with pytest.raises(BufferError, match="a view of this batch's room is left"):
                batch.commit()
            assert space.contains(chain).done == 0
            del view
        assert batch.commit().ok


def test_what_is_not_committed_goes_back(client, space, chain):
    with space.reserve(chain) as batch:
        room = batch[1]
        memoryview(room)[:] = pattern(1)
    assert space.contains(chain).done == 0
    with pytest.raises(ValueError, match="committed or aborted"):
        memoryview(room)
    batch.abort()
    assert space.put(chain, pattern(5, 3 * BLOCK)).ok


def test_room_with_a_view_is_not_given_away(node):
    """The room of an aborted batch that somebody can still write into must not become another block's."""
    with node.client() as client:
        space = client.open(identity())
        chain = space.digests(keys(1))
        with space.reserve(chain) as batch:
            view = memoryview(batch[0])
        others = space.digests(keys(512, first=100))
        space.put(others, [pattern(i) for i in range(512)]).check()
        view[:] = b"\xff" * BLOCK
        out = bytearray(512 * BLOCK)
        space.get(others, out).check()
        assert bytes(out) == b"".join(pattern(i) for i in range(512))
        with pytest.warns(kvist.PinsLeftWarning, match="0 pins and 1 reserved rooms"):
            assert client.close() == 1
        view.release()


def test_lengths(client):
    space = client.open(identity(parts=[kvist.Part("kv")]))
    chain = space.digests(keys(3))
    with pytest.raises(ValueError, match="nbytes is needed"):
        space.reserve(chain)
    with space.reserve(chain, [1, 70000, 64]) as batch:
        assert [len(room) for room in batch] == [1, 70000, 64]
    with space.reserve(chain, "1KiB") as batch:
        assert [len(room) for room in batch] == [1024] * 3
    with pytest.raises(kvist.InvalidArgument, match="one source"):
        space.reserve(chain, [1, 2])


def test_somebody_else_was_first(space, chain):
    with space.reserve(chain) as batch:
        for i in range(3):
            batch.copy(i, pattern(i))
        space.put(chain[:1], pattern(7)).check()
        assert list(batch.commit()) == [Code.ALREADY_EXISTS, Code.OK, Code.OK]
    assert read(space, chain)[:BLOCK] == pattern(7)
