"""Reading in place: what keeps a pin, and what gives it back."""

import gc
import threading
import warnings
import weakref

import pytest

import kvist
from conftest import BLOCK, identity, keys, pattern, wait_for_pins
from kvist import Code

numpy = pytest.importorskip("numpy")


@pytest.fixture
def chain(space):
    chain = space.digests(keys(4))
    space.put(chain, [pattern(i) for i in range(4)]).check()
    return chain


def test_a_prefix_shows_its_blocks_and_gives_them_back(client, space, chain):
    with space.prefix(chain) as found:
        assert len(found) == 4 and len(found.blocks) == 4 and found.code is Code.OK and found.message == ""
        assert [bytes(block) for block in found.blocks] == [pattern(i) for i in range(4)]
        assert [(b.position, b.part, b.nbytes) for b in found.blocks] == [(i, 0, BLOCK) for i in range(4)]
        assert client.pinned_blocks == 4
        wait_for_pins(client, 4)
        assert found.runs[0].begin == 0 and found.runs[0].end == 4
        block = found.blocks[0]
        assert block.address % 64 == 0
    assert found.closed and client.pinned_blocks == 0
    wait_for_pins(client, 0)
    for use in (lambda: memoryview(block), lambda: bytes(block), lambda: block.address, lambda: found.blocks,
                lambda: block.__dlpack__()):
        with pytest.raises(ValueError, match="given back"):
            use()
    assert len(found) == 4  # what was found stays true


def test_a_prefix_ends_at_a_hole(space, chain):
    space.remove(chain[2:3])
    with space.prefix(chain) as found:
        assert len(found) == 2
    with space.prefix(chain, start=3) as found:
        assert len(found) == 1 and found.blocks[0].position == 3
    hint = space.prefix(chain, hint=True)
    assert len(hint) == 2 and len(hint.blocks) == 0
    assert [(run.begin, run.end) for run in hint.runs] == [(0, 2), (3, 4)]


def test_single_pins_miss_one_by_one(client, space, chain):
    names = chain[0] + bytes(space.digests([b"absent"])) + chain[3]
    with space.pin(names) as pinned:
        assert len(pinned) == 3 and pinned.hits == 2 and pinned[1] is None
        assert list(pinned.results) == [Code.OK, Code.NOT_FOUND, Code.OK]
        assert bytes(pinned[2]) == pattern(3)
        assert [None if block is None else block.position for block in pinned] == [0, None, 2]
        assert client.pinned_blocks == 2
    with pytest.raises(ValueError, match="given back"):
        pinned[0]


def views_of(block):
    yield memoryview(block)
    yield memoryview(block)[5:10].cast("b")
    yield numpy.frombuffer(block, numpy.float32)
    yield numpy.asarray(memoryview(block)).reshape(64, -1)
    yield numpy.from_dlpack(block)[1:]


@pytest.mark.parametrize("which", range(5))
def test_a_view_keeps_its_pin_until_it_is_dropped(client, space, chain, which):
    with space.prefix(chain) as found:
        view = list(views_of(found.blocks[1]))[which]
    gc.collect()
    assert client.pinned_blocks == 4
    wait_for_pins(client, 4)
    assert list(space.remove(chain)) == [Code.OK] * 4  # the room is not used again while it is pinned
    data = bytes(view)
    assert data in pattern(1)
    del view
    assert client.pinned_blocks == 0
    wait_for_pins(client, 0)


def test_arrays_over_blocks_are_read_only_and_no_copies(space, chain):
    with space.prefix(chain) as found:
        block = found.blocks[2]
        for array in (numpy.frombuffer(block, numpy.uint8), numpy.from_dlpack(block)):
            assert not array.flags.writeable and array.ctypes.data == block.address and array.nbytes == BLOCK
            assert array.tobytes() == pattern(2)
            with pytest.raises(ValueError):
                array[0] = 1
        assert memoryview(block).readonly and block.__dlpack_device__() == (1, 0)
        with pytest.raises(BufferError, match="copy"):
            block.__dlpack__(copy=True)
        with pytest.raises(BufferError, match="host memory"):
            block.__dlpack__(dl_device=(2, 0))
        with pytest.raises((TypeError, BufferError)):
            space.get(chain[:1], block)


def test_a_block_keeps_its_prefix(client, space, chain):
    block = space.prefix(chain).blocks[3]
    gc.collect()
    assert client.pinned_blocks == 4 and bytes(block) == pattern(3)
    del block
    assert client.pinned_blocks == 0
    numbers = numpy.from_dlpack(space.pin(chain)[0])
    assert client.pinned_blocks == 4 and numbers.tobytes() == pattern(0)
    del numbers
    assert client.pinned_blocks == 0


def test_a_capsule_that_nobody_took_gives_back(client, space, chain):
    for options in ({}, {"max_version": (1, 0)}, {"max_version": (0, 8)}, {"stream": None, "dl_device": (1, 0)}):
        capsule = space.prefix(chain).blocks[0].__dlpack__(**options)
        assert client.pinned_blocks == 4
        del capsule
        assert client.pinned_blocks == 0


def test_closing_a_client_says_what_is_left(node):
    client = node.client()
    space = client.open(identity())
    chain = space.digests(keys(3))
    space.put(chain, [pattern(i) for i in range(3)]).check()
    with space.prefix(chain) as found:
        view = numpy.from_dlpack(found.blocks[1])
    with pytest.warns(kvist.PinsLeftWarning, match="3 pins and 0 reserved rooms"):
        assert client.close() == 3
    assert client.close() == 0 and client.closed and not client.connected
    assert view.tobytes() == pattern(1), "a view outlives its client"
    for call in (lambda: space.prefix(chain), lambda: client.stats(), lambda: client.open(identity()), lambda: space.id):
        with pytest.raises(kvist.FailedPrecondition, match="closed"):
            call()
    with node.client() as other:
        wait_for_pins(other, 3)
        del view
        wait_for_pins(other, 0)


def test_the_warning_can_be_an_error(node):
    client = node.client()
    space = client.open(identity())
    chain = space.digests(keys(1))
    space.put(chain, pattern(0)).check()
    held = space.pin(chain)
    with warnings.catch_warnings():
        warnings.simplefilter("error", kvist.PinsLeftWarning)
        with pytest.raises(kvist.PinsLeftWarning):
            client.close()
    assert client.closed and bytes(held[0]) == pattern(0)


@pytest.mark.parametrize("order", ["cspv", "vpsc", "spcv", "pvcs", "vcsp", "scvp"])
def test_any_order_of_going(node, order):
    left = {"c": node.client()}
    left["s"] = left["c"].open(identity())
    chain = left["s"].digests(keys(2))
    left["s"].put(chain, [pattern(i) for i in range(2)]).check()
    left["p"] = left["s"].prefix(chain)
    left["v"] = memoryview(left["p"].blocks[1])
    for one in order:
        del left[one]
        gc.collect()
        if "v" in left:
            assert bytes(left["v"]) == pattern(1)
        if "s" in left:
            assert left["s"].contains(chain).ok


def test_tensors_are_dropped_by_threads_that_are_not_python(client, space, chain):
    """The deleter of a DLPack capsule may be called from anywhere, without the GIL: ctypes calls it that way."""
    import ctypes

    class Tensor(ctypes.Structure):
        _fields_ = [("tensor", ctypes.c_byte * 48), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]

    capsule = space.prefix(chain).blocks[0].__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address = pointer(capsule, b"dltensor")
    used = b"used_dltensor"
    rename(capsule, used)
    del capsule
    assert client.pinned_blocks == 4
    deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(Tensor.from_address(address).deleter)
    thread = threading.Thread(target=deleter, args=(address,))  # CFUNCTYPE gives the GIL up while it runs
    thread.start()
    thread.join()
    assert client.pinned_blocks == 0


def test_nothing_is_kept_by_the_extension(client, space, chain):
    class Source(bytearray):
        pass

    source = Source(pattern(9))
    gone = weakref.ref(source)
    space.put(space.digests([b"w"]), source).check()
    del source
    assert gone() is None


def test_pool_pressure_leaves_pinned_blocks(node):
    """A pool much smaller than what is put: what is pinned stays as it is."""
    with kvist.Client.embedded("8MiB", max_blocks=4096) as client:
        space = client.open(identity())
        first = space.digests(keys(8))
        space.put(first, [pattern(i) for i in range(8)]).check()
        view = memoryview(space.prefix(first).blocks[5])
        for round in range(64):
            chain = space.digests(keys(64, first=1000 + 64 * round))
            space.put(chain, bytes(64 * BLOCK))
        assert bytes(view) == pattern(5) and space.contains(first).ok
        assert client.report()["evicted_total"] > 0
        view.release()
