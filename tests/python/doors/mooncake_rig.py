"""What the tests of kvist.mooncake share: stores of ours and of the real one, keys that are new, memory by address."""

import ctypes
import itertools
import os
import sys

import pytest

import kvist.mooncake as ours
import mooncake_real

INVALID, MISSING, EXISTS, NO_ROOM = -600, -704, -705, -200
REAL, WHY_NOT = mooncake_real.module()
_numbers = itertools.count()


@pytest.fixture(scope="session")
def cluster():
    if REAL is None:
        pytest.skip(WHY_NOT)
    running = mooncake_real.Cluster(REAL)
    yield running
    running.end()


@pytest.fixture(scope="session")
def real(cluster):
    made = cluster.setup()
    yield made
    made.close()


def set_up(node, **settings):
    """A store with a namespace of its own."""
    made = ours.MooncakeDistributedStore()
    config = {"local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE", "tenant_id": f"{os.getpid()}-{next(_numbers)}"}
    assert made.setup({**config, "kvist": {"socket": node.socket, **settings}}) == 0
    return made


@pytest.fixture
def kvist_store(node):
    made = set_up(node)
    yield made
    made.close()


@pytest.fixture(params=["kvist", "mooncake"] if REAL else ["kvist"])
def store(request):
    return request.getfixturevalue("kvist_store" if request.param == "kvist" else "real")


@pytest.fixture
def module(store):
    return ours if isinstance(store, ours.MooncakeDistributedStore) else sys.modules["mooncake.store"]


@pytest.fixture
def key():
    """Keys that no other test uses."""
    prefix = f"{os.getpid()}-{next(_numbers)}"
    return lambda name: f"{prefix}-{name}"


class Memory:
    """Memory by address."""

    def __init__(self, size, fill=b""):
        self.buffer = ctypes.create_string_buffer(fill, size)
        self.ptr = ctypes.addressof(self.buffer)

    def __getitem__(self, place):
        return self.buffer.raw[place]
