"""Memory by address as sources and destinations, and copies of pinned blocks."""

import array
import ctypes

import pytest

import kvist
from conftest import BLOCK, identity, in_threads, keys, pattern


@pytest.fixture
def free(client):
    """A namespace whose blocks have any length."""
    return client.open(identity(0))


def memory(size, fill=b""):
    buffer = ctypes.create_string_buffer(fill, size)
    return buffer, ctypes.addressof(buffer)


def test_blocks_from_and_into_memory(space):
    source, ptr = memory(3 * BLOCK, b"".join(pattern(i) for i in range(3)))
    out, to = memory(3 * BLOCK)
    chain = space.digests(keys(3))
    where = kvist.Addresses([ptr, ptr + BLOCK, ptr + 2 * BLOCK], [BLOCK] * 3)
    assert (len(where), where.nbytes, where.sizes) == (3, 3 * BLOCK, [BLOCK] * 3)
    space.put(chain, where).check()
    assert space.get(chain, kvist.Addresses((to + 2 * BLOCK, to + BLOCK, to), BLOCK)).done == 3
    assert out.raw == pattern(2) + pattern(1) + pattern(0)


def test_blocks_in_pieces(free):
    source, ptr = memory(16, b"0123456789abcdef")
    out, to = memory(16)
    chain = free.digests(keys(3))
    where = kvist.Addresses([[ptr, ptr + 8], [ptr + 4], (ptr, ptr + 1, ptr + 2)], [[4, 2], [1], 1])
    assert where.sizes == [6, 1, 3] and where.nbytes == 10
    free.put(chain, where).check()
    assert free.pin(chain).copies() == [b"012389", b"4", b"012"]
    assert free.get(chain[:1], kvist.Addresses([[to, to + 10]], [[1, 5]])).ok
    assert out.raw[:1] + out.raw[10:15] == b"012389"


def test_a_length_that_does_not_fit_tells_the_right_one(free):
    out, to = memory(16)
    chain = free.digests(keys(2))
    free.put(chain[:1], [b"12345"]).check()
    results = free.get(chain, kvist.Addresses([[], []], [[], []]), sizes=True)
    assert list(results) == [kvist.Code.OUT_OF_RANGE, kvist.Code.NOT_FOUND] and results.sizes == [5, 0]
    assert free.get(chain[:1], kvist.Addresses([to], [16]))[0] == kvist.Code.OUT_OF_RANGE and out.raw == bytes(16)


def test_submitted_calls_take_addresses(client, space):
    source, ptr = memory(BLOCK, pattern(5))
    out, to = memory(BLOCK)
    chain = space.digests(keys(1))
    for submit, where in ((space.submit_put, ptr), (space.submit_get, to)):
        ticket = submit(chain, kvist.Addresses([where], [BLOCK]))
        while not ticket.done:
            client.poll(1.0)
        assert ticket.results.ok
    assert out.raw == pattern(5)


@pytest.mark.parametrize(
    "addresses, sizes, said",
    [
        ([0], [1], "block 0: the address of 1 bytes is null"),
        ([4096, 0], [1, 1], "block 1: .*null"),
        ([77], [1], "block 0: no process can have 1 bytes there"),
        ([2**56 - 1], [2], "no process can have 2 bytes there"),
        ([4096], [2**62], "no process can have"),
        ([4096] * 300, [2**55] * 300, "add up to more"),
        ([-1], [1], "an address must be from 0 to .*, not -1"),
        ([4096], [-1], "a size must be from 0 to .*, not -1"),
        ([2**64], [1], "an address must be"),
        ([4096, 4096], [1], "2 addresses, but 1 sizes"),
        ([[4096, 4096]], [[1]], "block 0: there are 2 addresses, but 1 sizes"),
        ([[4096, 0]], [[1, 1]], "block 0: piece 1: .*null"),
    ],
)
def test_what_cannot_be_is_told_by_its_place(addresses, sizes, said):
    with pytest.raises(ValueError, match=said):
        kvist.Addresses(addresses, sizes)


@pytest.mark.parametrize("addresses, sizes", [("ab", [1, 1]), (4096, [1]), ([1.5], [1]), ([4096], None), ([4096], ["1"]), (None, [1]), ([[[1]]], [1])])
def test_what_is_no_number_is_a_type_error(addresses, sizes):
    with pytest.raises(TypeError):
        kvist.Addresses(addresses, sizes)


def test_arrays_of_addresses():
    where = kvist.Addresses(array.array("Q", [4096, 8192]), array.array("i", [1, 2]))
    assert where.sizes == [1, 2]
    numpy = pytest.importorskip("numpy", reason="numpy is not installed here")
    where = kvist.Addresses(numpy.array([4096, 8192], numpy.uint64), numpy.array([3, 4], numpy.int32))
    assert where.sizes == [3, 4]
    assert kvist.Addresses([numpy.uint64(4096)], numpy.int16(5)).sizes == [5]


def test_numbers_whose_code_changes_the_list():
    class Number:
        def __init__(self, value, list):
            self.value, self.list = value, list

        def __index__(self):
            self.list.clear()
            return self.value

    numbers = [4096, 4096]
    numbers[0] = Number(4096, numbers)
    assert kvist.Addresses(numbers, [1, 2]).sizes == [1, 2]


def test_as_many_addresses_as_blocks(space):
    with pytest.raises(ValueError, match="3 blocks, but the addresses of 1"):
        space.put(space.digests(keys(3)), kvist.Addresses([4096], [BLOCK]))


def test_copies_of_pinned_blocks(client, free):
    values = [b"a", b"bb" * 3000, b"c" * (1 << 20)]
    chain = free.digests(keys(3))
    free.put(chain, values).check()
    with free.pin(free.digests([*keys(3), b"no"])) as pinned:
        found = pinned.copies()
        assert found == [*values, None] and pinned.copies() is not found
    with pytest.raises(ValueError, match="given back"):
        pinned.copies()
    assert client.pinned_blocks == 0 and free.pin(free.digests([])).copies() == []


def test_threads_copy_pinned_blocks_at_once(free):
    chain = free.digests(keys(8))
    values = [bytes([i]) * 50_000 for i in range(8)]
    free.put(chain, values).check()
    pinned, wrong = free.pin(chain), []

    def work(_):
        for _ in range(100):
            if pinned.copies() != values:
                wrong.append(1)

    in_threads(work, range(4))
    assert not wrong
    pinned.close()
