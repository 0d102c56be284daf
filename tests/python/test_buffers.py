"""Every form in which bytes are given and taken."""

import array
import mmap

import pytest

import kvist
from conftest import BLOCK, identity, keys, pattern
from kvist import Code

numpy = pytest.importorskip("numpy")


@pytest.fixture
def chain(space):
    return space.digests(keys(4))


@pytest.fixture
def blocks():
    return [pattern(i) for i in range(4)]


def read(space, chain, count=4, block=BLOCK):
    out = bytearray(count * block)
    assert space.get(chain, out).check().done == count
    return [bytes(out[i * block : (i + 1) * block]) for i in range(count)]


def forms(blocks):
    whole = b"".join(blocks)
    yield "bytes", whole
    yield "bytearray", bytearray(whole)
    yield "memoryview", memoryview(whole)
    yield "a sequence of blocks", blocks
    yield "a tuple of mixed buffers", (blocks[0], bytearray(blocks[1]), memoryview(blocks[2]), array.array("b", blocks[3]))
    yield "pieces", [[block[:100], block[100:101], block[101:]] for block in blocks]
    yield "float32 rows", numpy.frombuffer(whole, numpy.float32).reshape(4, 32, -1)
    yield "float16, flat", numpy.frombuffer(whole, numpy.float16)
    big = numpy.zeros((8, BLOCK), numpy.uint8)
    big[::2] = numpy.frombuffer(whole, numpy.uint8).reshape(4, BLOCK)
    yield "every second row", big[::2]
    yield "pages of three dimensions", big.reshape(8, -1, 2)[::2]
    backwards = numpy.frombuffer(b"".join(reversed(blocks)), numpy.uint8).reshape(4, BLOCK)
    yield "rows from the end", backwards[::-1]
    yield "sequence of arrays", [numpy.frombuffer(block, numpy.int64) for block in blocks]
    yield "DLPack only", [OnlyDLPack(numpy.frombuffer(bytearray(block), numpy.int16)) for block in blocks]
    yield "DLPack only, all in one", OnlyDLPack(numpy.frombuffer(bytearray(whole), numpy.uint8).reshape(4, BLOCK))
    older = numpy.frombuffer(bytearray(whole), numpy.uint8)
    yield "DLPack without versions", OnlyDLPack(older, versions=False)
    pages = numpy.zeros((9, BLOCK), numpy.uint8)
    for page, block in zip((7, 0, 3, 8), blocks):
        pages[page] = numpy.frombuffer(block, numpy.uint8)
    yield "pages", kvist.Pages(pages)[[7, 0, 3, 8]]
    halves = [numpy.ascontiguousarray(pages[:, : BLOCK // 4]), numpy.ascontiguousarray(pages[:, BLOCK // 4 :])]
    yield "pages of two layers", kvist.Pages(halves)[numpy.array([7, 0, 3, 8])]
    yield "pages within larger ones", kvist.Pages([pages[:, :8], pages[:, 8:]])[(7, 0, 3, 8)]


class OnlyDLPack:
    """What a tensor library without the buffer protocol gives."""

    def __init__(self, of, versions=True):
        self.of = of
        if versions:
            self.__dlpack__ = of.__dlpack__
        self.versions = versions

    def __dlpack__(self, *, stream=None):
        return self.of.__dlpack__(stream=stream)


@pytest.mark.parametrize("form", [name for name, _ in forms([pattern(i) for i in range(4)])])
def test_every_form_of_source_arrives(space, chain, blocks, form):
    assert space.put(chain, dict(forms(blocks))[form]).check().done == 4
    assert read(space, chain) == blocks


def destinations():
    out = bytearray(4 * BLOCK)
    yield "bytearray", out, lambda: bytes(out)
    several = [bytearray(BLOCK) for _ in range(4)]
    yield "a sequence", several, lambda: b"".join(several)
    pieces = [[bytearray(1), bytearray(BLOCK - 1)] for _ in range(4)]
    yield "pieces", pieces, lambda: b"".join(b"".join(p) for p in pieces)
    floats = numpy.zeros((4, BLOCK // 8), numpy.float64)
    yield "rows", floats, lambda: floats.tobytes()
    wide = numpy.zeros((4, 2 * BLOCK), numpy.uint8)
    yield "rows of a wider array", wide[:, BLOCK:], lambda: wide[:, BLOCK:].tobytes() if not wide[:, :BLOCK].any() else b""
    tensor = numpy.zeros(4 * BLOCK, numpy.uint8)
    yield "DLPack only", OnlyDLPack(tensor), lambda: tensor.tobytes()
    mapped = mmap.mmap(-1, 4 * BLOCK)
    yield "mmap", mapped, lambda: mapped[:]
    layers = [numpy.zeros((6, BLOCK // 2), numpy.uint8) for _ in range(2)]
    yield "pages", kvist.Pages(layers)[[5, 1, 0, 2]], lambda: b"".join(
        layers[0][i].tobytes() + layers[1][i].tobytes() for i in (5, 1, 0, 2)
    )


@pytest.mark.parametrize("form", [name for name, _, _ in destinations()])
def test_every_form_of_destination_is_filled(space, chain, blocks, form):
    space.put(chain, blocks).check()
    _, out, value = next(one for one in destinations() if one[0] == form)
    assert space.get(chain, out).check().done == 4
    assert value() == b"".join(blocks)


def test_one_wrong_length_is_told_of_that_block(client):
    space = client.open(identity(parts=[kvist.Part("kv")]))  # lengths vary
    chain = space.digests(keys(3))
    lengths = [10, 0x5000, 1]
    space.put(chain, [pattern(i, size) for i, size in enumerate(lengths)]).check()
    out = [bytearray(10), bytearray(b"?" * 100), bytearray(1)]
    results = space.get(chain, out, sizes=True)
    assert list(results) == [Code.OK, Code.OUT_OF_RANGE, Code.OK]
    assert results.sizes == lengths and out[1] == b"?" * 100
    assert space.get(chain, out).sizes is None
    assert list(space.get(space.digests([b"none"]), bytearray(5), sizes=True).sizes) == [0]


@pytest.mark.parametrize(
    "sources, error, message",
    [
        (b"x" * BLOCK, ValueError, "4 blocks of 4096 bytes take 16384 bytes; the buffer has 4096"),
        ([b"x" * BLOCK] * 3, ValueError, "there are 4 blocks, but 3 buffers"),
        ([b"x" * BLOCK] * 3 + [None], TypeError, "block 3"),
        ([b"x" * BLOCK] * 3 + [[b"x", 5]], TypeError, "block 3: piece 1"),
        (17, TypeError, "gives no blocks"),
        ("text", TypeError, "block 0"),
        (numpy.zeros((4, 2 * BLOCK), numpy.uint8)[:, ::2], BufferError, "not contiguous"),
        (numpy.zeros((2, 4, BLOCK // 2), numpy.uint8).transpose(1, 0, 2), BufferError, "not contiguous"),
        (numpy.array([None] * (BLOCK // 2)), TypeError, "Python objects"),
        ([numpy.zeros((2, BLOCK), numpy.uint8)[:, : BLOCK // 2]] * 4, BufferError, "block 0: .*not contiguous"),
        (kvist.Pages(numpy.zeros((3, BLOCK)))[[0, 1]], ValueError, "4 blocks, but 2 pages"),
    ],
)
def test_what_cannot_be_a_source_is_refused_by_place(space, chain, sources, error, message):
    with pytest.raises(error, match=message):
        space.put(chain, sources)
    assert space.contains(chain).done == 0


def test_what_cannot_be_written_is_no_destination(space, chain, blocks):
    space.put(chain, blocks).check()
    frozen = numpy.zeros(4 * BLOCK, numpy.uint8)
    frozen.flags.writeable = False
    for out in (b"x" * (4 * BLOCK), memoryview(bytes(4 * BLOCK)), frozen, OnlyDLPack(frozen), [b"x" * BLOCK] * 4):
        with pytest.raises(BufferError, match="reading only|read-only|readonly"):
            space.get(chain, out)
    with pytest.raises(BufferError, match="reading only"):
        kvist.Pages(frozen.reshape(4, -1))
    with pytest.raises(BufferError, match="reading only"):
        space.get(chain, kvist.Pages(frozen.reshape(4, -1), writable=False)[[0, 1, 2, 3]])


def test_pages_are_checked(space):
    with pytest.raises(ValueError, match="array 1 has 3 pages, array 0 has 2"):
        kvist.Pages([numpy.zeros((2, 8)), numpy.zeros((3, 8))])
    with pytest.raises(ValueError, match="at least one"):
        kvist.Pages([])
    with pytest.raises(TypeError, match="array 0"):
        kvist.Pages([3])
    pages = kvist.Pages([numpy.zeros((4, 8)), numpy.zeros((4, 2), numpy.uint8)])
    assert len(pages) == 4 and pages.page_bytes == 66
    for bad in ([4], [-1]):
        with pytest.raises(IndexError, match="of 4"):
            pages[bad]
    with pytest.raises(TypeError):
        pages[["a"]]
    held = bytearray(100)
    kept = kvist.Pages(held)
    with pytest.raises(BufferError):
        held.append(1)
    del kept
    held.append(1)


def test_buffers_are_let_go_after_the_call(space, chain, blocks):
    source = bytearray(b"".join(blocks))
    out = bytearray(4 * BLOCK)
    space.put(chain, source)
    space.get(chain, out)
    with pytest.raises(BufferError):  # a failed call lets go too
        space.get(chain, [out, b"x"] * 2)
    source.append(0)
    out.append(0)


def test_parts_and_layers(client):
    parts = [kvist.Part("k", block_bytes=512), kvist.Part("v", block_bytes=256, need="last")]
    space = client.open(identity(parts=parts))
    chain = space.digests(keys(3))
    space.put(chain, pattern(1, 3 * 512), part="k").check()
    assert len(space.prefix(chain)) == 0
    assert len(space.prefix(chain, parts=["k"])) == 3
    space.put(chain[2:], pattern(2, 256), part=1).check()
    with space.prefix(chain) as found:
        assert len(found) == 3
        # the part that only the last position needs is shown there
        assert [(b.position, b.part, len(b)) for b in found.blocks][-1] == (2, 1, 256)
    with pytest.raises(ValueError, match="no part 'q'"):
        space.prefix(chain, parts=["q"])


def test_batches_of_one_and_of_many(client):
    space = client.open(identity(block_bytes=64))
    many = 20000
    chain = space.digests(keys(many))
    source = numpy.arange(many * 8, dtype=numpy.uint64).reshape(many, 8)
    assert space.put(chain, source, timeout=60).check().done == many
    out = numpy.zeros_like(source)
    assert space.get(chain, out, timeout=60).check().done == many
    assert (out == source).all()
    one = bytearray(64)
    assert space.get(chain[7:8], one).ok and bytes(one) == source[7].tobytes()
    empty = space.put(chain[:0], b"")
    assert len(empty) == 0 and empty.ok and len(space.get(b"", [])) == 0
