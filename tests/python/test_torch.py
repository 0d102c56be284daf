"""torch tensors over pool memory, and pool memory from torch tensors. Skipped where torch is not installed."""

import gc

import pytest

import kvist
from conftest import BLOCK, identity, keys, pattern

torch = pytest.importorskip("torch", reason="torch is not installed here")

pytestmark = pytest.mark.slow


def test_a_tensor_keeps_its_pin_and_the_close_says_so(node):
    client = node.client()
    space = client.open(identity())
    chain = space.digests(keys(3))
    space.put(chain, [pattern(i) for i in range(3)]).check()
    with space.prefix(chain) as found:
        tensor = torch.from_dlpack(found.blocks[1])
        assert tensor.data_ptr() == found.blocks[1].address
    assert tensor.dtype == torch.uint8 and tuple(tensor.shape) == (BLOCK,)
    half = tensor.view(torch.bfloat16).view(16, -1)[3:]
    del tensor
    gc.collect()
    assert client.pinned_blocks == 3
    with pytest.warns(kvist.PinsLeftWarning, match="3 pins and 0 reserved rooms"):
        client.close()
    assert half.contiguous().view(torch.uint8).numpy().tobytes() == pattern(1)[3 * 256 :]
    del half
    assert client.pinned_blocks == 0


def test_tensors_are_sources_and_destinations(space):
    chain = space.digests(keys(4))
    source = torch.randn(4, BLOCK // 4, dtype=torch.float32).to(torch.bfloat16).repeat(1, 2)
    assert space.put(chain, source).check().done == 4
    out = torch.zeros_like(source)
    assert space.get(chain, out).ok and torch.equal(out.view(torch.int16), source.view(torch.int16))
    rows = [torch.zeros(BLOCK // 2, dtype=torch.bfloat16) for _ in range(4)]
    assert space.get(chain, rows).ok and torch.equal(torch.stack(rows).view(torch.int16), source.view(torch.int16))
    with pytest.raises(BufferError, match="contiguous"):
        space.put(chain, source.t())
    with pytest.raises(ValueError):
        space.put(chain, source[:2])


def test_paged_layers(space):
    layers = [torch.randn(10, 2, 8, 16, dtype=torch.float32) for _ in range(4)]  # 4 * 1024 bytes a page
    pages = kvist.Pages(layers)
    assert pages.page_bytes == BLOCK and len(pages) == 10
    chain = space.digests(keys(3))
    assert space.put(chain, pages[torch.tensor([7, 2, 9])]).ok
    back = [torch.zeros_like(layer) for layer in layers]
    assert space.get(chain, kvist.Pages(back)[[0, 1, 2]]).ok
    for layer, copy in zip(layers, back):
        assert torch.equal(copy[:3], layer[[7, 2, 9]])


def test_room_as_a_tensor(space):
    chain = space.digests(keys(1))
    wanted = torch.arange(BLOCK // 4, dtype=torch.int32)
    with space.reserve(chain) as batch:
        room = torch.from_dlpack(batch[0])
        room.view(torch.int32).copy_(wanted)
        with pytest.raises(BufferError, match="room is left"):
            batch.commit()
        del room
        assert batch.commit().ok
    with space.prefix(chain) as found:
        assert torch.equal(torch.from_dlpack(found.blocks[0]).view(torch.int32), wanted)
