"""How a program comes to kvist.mooncake: one import line, a switch, asyncio; and tensors."""

import asyncio
import os
import subprocess
import sys

import pytest

import kvist.mooncake as ours
from kvist.mooncake.async_store import MooncakeDistributedStoreAsync
from mooncake_rig import INVALID, Memory, cluster, key, kvist_store, real  # noqa: F401

PROGRAM = """
import subprocess, sys
import mooncake.store
from mooncake.store import MooncakeDistributedStore, ReplicateConfig
from mooncake.async_store import MooncakeDistributedStoreAsync
s = MooncakeDistributedStore()
assert s.setup("localhost", "P2PHANDSHAKE", 1 << 20, 1 << 20, "tcp", "", "") == 0
assert s.upsert("switched", sys.argv[1].encode()) == 0
if sys.argv[1] == "parent":
    subprocess.run([sys.executable, *%s, "child"], check=True)
    assert s.get("switched") == b"child"
assert mooncake.store.MooncakeDistributedStore is MooncakeDistributedStore
assert issubclass(MooncakeDistributedStoreAsync, MooncakeDistributedStore)
print(MooncakeDistributedStore.__module__, sys.argv[1])
"""


def run(node, *argv, **environment):
    done = subprocess.run(
        [sys.executable, "-W", "error", *argv],
        env={**os.environ, "KVIST_SOCKET": node.socket, **environment},
        text=True,
        capture_output=True,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "the_program.py"
    file.write_text(PROGRAM % f"[{str(file)!r}]")
    return file


BOTH = "kvist.mooncake child\nkvist.mooncake parent\n"


def test_a_program_and_its_children_are_moved_by_the_runner(node, path):
    assert run(node, "-m", "kvist.mooncake", str(path), "parent") == (0, BOTH, "")
    module_path = os.pathsep.join([str(path.parent), os.environ.get("PYTHONPATH", "")])
    assert run(node, "-m", "kvist.mooncake", "-m", "the_program", "parent", PYTHONPATH=module_path) == (0, BOTH, "")


def test_a_program_and_its_children_are_moved_by_a_path(node, path):
    code, shim, _ = run(node, "-m", "kvist.mooncake", "--path")
    assert code == 0
    search = os.pathsep.join([shim.strip(), os.environ.get("PYTHONPATH", "")])
    assert run(node, str(path), "parent", PYTHONPATH=search) == (0, BOTH, "")


def test_the_runner_says_how_it_is_used(node):
    code, out, _ = run(node, "-m", "kvist.mooncake", "--help")
    assert code == 0 and "program.py" in out
    assert run(node, "-m", "kvist.mooncake")[0] == 2 and run(node, "-m", "kvist.mooncake", "-m")[0] == 2
    assert run(node, "-m", "kvist.mooncake", "/no/such/program.py")[0] == 1


def test_one_line_moves_what_is_imported_after_it(node, program):
    code = """
import kvist.mooncake
kvist.mooncake.as_mooncake()
kvist.mooncake.as_mooncake()
from mooncake.store import MooncakeDistributedStore
import mooncake.async_store, mooncake.store
assert mooncake.store is kvist.mooncake and MooncakeDistributedStore is kvist.mooncake.MooncakeDistributedStore
print("done")
"""
    assert program(code).finish() == (0, "done\n")


def test_it_is_too_late_once_the_real_one_is_there(program, real):
    code = """
import mooncake.store, kvist.mooncake
try:
    kvist.mooncake.as_mooncake()
except RuntimeError as error:
    print("call kvist.mooncake.as_mooncake() before" in str(error))
"""
    assert program(code).finish()[1] == "True\n"


def test_other_parts_of_an_installed_package_stay(program, real):
    code = """
import mooncake.mooncake_config, mooncake.store
from mooncake import BufferPool
assert BufferPool is mooncake.store.BufferPool and "mooncake/store.so" not in open("/proc/self/maps").read()
print("kvist" in mooncake.mooncake_config.__file__, mooncake.store.__name__)
"""
    by_one_line = "import kvist.mooncake; kvist.mooncake.as_mooncake()"
    assert program(by_one_line + code).finish() == (0, "False kvist.mooncake\n")
    shim = os.pathsep.join([ours.shim_path(), os.environ.get("PYTHONPATH", "")])
    assert program(code, env={**os.environ, "PYTHONPATH": shim}).finish() == (0, "False kvist.mooncake\n")


def test_any_method_can_be_awaited(node, key):
    async def main():
        store = MooncakeDistributedStoreAsync()
        settings = {"local_hostname": "h", "metadata_server": "m", "tenant_id": key("t"), "kvist": {"socket": node.socket}}
        assert await store.async_setup(settings) == 0
        codes = await asyncio.gather(*(store.async_put(f"k{i}", b"%d" % i) for i in range(50)))
        assert codes == [0] * 50
        assert await store.async_get_batch([f"k{i}" for i in range(50)]) == [b"%d" % i for i in range(50)]
        with pytest.raises(AttributeError):
            store.async_no_such_call
        with pytest.raises(AttributeError):
            store.no_such_call
        with pytest.raises(TypeError):
            await store.async_get(5)
        assert await store.async_close() == 0

    asyncio.run(main())


# ---- tensors ------------------------------------------------------------------------------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed here")


def test_tensors_come_back(torch, kvist_store, key):
    names = "float32 float16 bfloat16 float64 int8 uint8 int16 int32 int64 bool uint16 float8_e4m3fn float8_e5m2".split()
    for name in names:
        tensor = (torch.arange(24) % 7).to(getattr(torch, name)).reshape(2, 3, 4)
        assert kvist_store.put_tensor(key(name), tensor) == 0
        found = kvist_store.get_tensor(key(name))
        assert found.dtype == tensor.dtype and found.shape == tensor.shape
        assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))
        assert kvist_store.get_size(key(name)) == 304 + tensor.numel() * tensor.element_size()


def test_shapes_of_tensors(torch, kvist_store, key):
    base = torch.arange(120, dtype=torch.float32).reshape(2, 3, 4, 5)
    shapes = {
        "transposed": base.transpose(0, 3),
        "strided": base[:, ::2],
        "scalar": torch.tensor(5.0),  # the real one gives one dimension back
        "empty": torch.empty(0, 3),
        "eight": torch.zeros([1] * 8),
        "grad": torch.ones(3, requires_grad=True),
    }
    for name, tensor in shapes.items():
        assert kvist_store.put_tensor(key(name), tensor) == 0, name
        found = kvist_store.get_tensor(key(name))
        assert found.shape == tensor.shape and torch.equal(found, tensor.detach()) and not found.requires_grad, name
    found.fill_(7)  # memory of its own
    assert torch.equal(kvist_store.get_tensor(key("grad")), torch.ones(3))
    for bad in (torch.zeros([1] * 9), torch.zeros(3, dtype=torch.complex64), 5, None, [1.0]):
        assert kvist_store.put_tensor(key("bad"), bad) == INVALID
    assert kvist_store.batch_put_tensor([key("x"), key("bad"), key("y")], [base, 5, base]) == [0, INVALID, 0]
    assert kvist_store.batch_put_tensor([key("x")], [base, base]) == [INVALID]
    assert [x is not None for x in kvist_store.batch_get_tensor([key("x"), key("bad"), key("y")])] == [True, False, True]


def test_tensors_in_memory_of_the_caller(torch, kvist_store, key):
    tensor = torch.arange(10, dtype=torch.int32)
    assert kvist_store.put_tensor(key("a"), tensor) == 0 == kvist_store.put_tensor(key("a"), tensor * 2)
    memory = Memory(400)
    assert kvist_store.get_tensor_into(key("a"), memory.ptr, 343) is None
    assert kvist_store.get_tensor_into(key("no"), memory.ptr, 400) is None
    found = kvist_store.get_tensor_into(key("a"), memory.ptr, 400)
    assert torch.equal(found, tensor) and found.data_ptr() == memory.ptr + 304 and ours._tensor_metadata_size() == 304
    found[0] = 99
    assert kvist_store.put_tensor_from(key("b"), memory.ptr, 400) == 0 and kvist_store.get_size(key("b")) == 344
    assert kvist_store.get_tensor(key("b"))[0] == 99
    assert kvist_store.upsert_tensor(key("b"), tensor) == 0 and torch.equal(kvist_store.get_tensor(key("b")), tensor)
    assert kvist_store.put_tensor_from(key("c"), memory.ptr, 343) == kvist_store.put_tensor_from(key("c"), 0, 400) == INVALID
    memory.buffer[20] = b"\xff"  # a shape that does not agree with the length
    assert kvist_store.put_tensor_from(key("c"), memory.ptr, 400) == INVALID


def test_tensors_cut_for_parallelism(torch, kvist_store, key):
    tensor = torch.arange(48, dtype=torch.float16).reshape(4, 12)
    assert kvist_store.put_tensor_with_tp(key("w"), tensor, 0, 4, 1) == 0
    assert kvist_store.is_exist(key("w")) == 0 and kvist_store.is_exist(key("w_tp_3")) == 1
    shards = [kvist_store.get_tensor_with_tp(key("w"), rank, 4) for rank in range(4)]
    assert torch.equal(torch.cat(shards, 1), tensor) and kvist_store.get_tensor_with_tp(key("w"), 4, 4) is None
    assert kvist_store.put_tensor_with_tp(key("v"), tensor, 0, 5, 1) == INVALID
    assert kvist_store.put_tensor_with_tp(key("v"), tensor, 0, 2, 7) == INVALID
    assert kvist_store.batch_put_tensor_with_tp([key("v")], [tensor]) == [0] and kvist_store.is_exist(key("v")) == 1


def test_a_stored_header_that_lies_is_no_tensor(torch, kvist_store, key, rng):
    assert kvist_store.put_tensor(key("good"), torch.arange(10)) == 0
    good = kvist_store.get(key("good"))
    for i in range(2000):
        bad = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            bad[rng.randrange(96)] = rng.choice([0, 1, 8, 0x7F, 0xFF])
        kvist_store.upsert(key("bad"), bad[: rng.choice([len(bad), 304, 303, 10, 100])])
        found = kvist_store.get_tensor(key("bad"))
        assert found is None or found.numel() * found.element_size() <= 80
    assert torch.equal(kvist_store.get_tensor(key("good")), torch.arange(10))
