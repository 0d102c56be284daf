"""What the tests of kvist.lmcache share: connectors driven as LMCache's adapter does, nodes to hurt, keys and values."""

import re
import select
import time

import pytest

import kvist
from conftest import wait_until
from kvist.lmcache import KvistConnector

KIB, MIB = 1 << 10, 1 << 20
SOON = 30.0  # seconds in which something must have happened, on a machine that has other things to do


class Driver:
    """What LMCache's adapter does with a connector: polls its descriptor, drains, and keeps the answers by future."""

    def __init__(self, **parameters):
        self.connector = KvistConnector(**parameters)
        self.fd = self.connector.event_fd()
        self.poller = select.poll()
        self.poller.register(self.fd, select.POLLIN)
        self.answers = {}

    def wait(self, future, seconds=SOON):
        end = time.monotonic() + seconds
        while future not in self.answers:
            left = end - time.monotonic()
            assert left > 0, f"future {future} did not end within {seconds} s: {self.connector.state}"
            if self.poller.poll(left * 1000):
                for number, ok, error, by_key in self.connector.drain_completions():
                    assert number not in self.answers, f"future {number} ended twice"
                    assert type(ok) is bool and type(error) is str and all(type(each) is bool for each in by_key)
                    self.answers[number] = (ok, error, by_key)
        return self.answers.pop(future)

    def set(self, keys, values):
        return self.wait(self.connector.submit_batch_set(keys, [memoryview(value) for value in values]))

    def get(self, keys, sizes):
        """By key: the bytes, or None."""
        buffers = [bytearray(size) for size in sizes]
        _, _, by_key = self.wait(self.connector.submit_batch_get(keys, [memoryview(buffer) for buffer in buffers]))
        return [bytes(buffer) if there else None for buffer, there in zip(buffers, by_key, strict=True)]

    def exists(self, keys):
        return self.wait(self.connector.submit_batch_exists(keys))[2]

    def delete(self, keys):
        return self.wait(self.connector.submit_batch_delete(keys))[2]

    def close(self):
        self.connector.close()


@pytest.fixture
def drive(request):
    """Makes drivers, and closes them."""
    made = []

    def make(node=None, **parameters):
        if node is not None:
            parameters["socket"] = node.socket
        parameters.setdefault("deadline", 20)  # tests that promise a time say their own; the others need success alone
        parameters.setdefault("namespace", re.sub(r"\W", "-", request.node.name)[:80])
        made.append(Driver(**parameters))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def own_node():
    """A node for tests that fill it or do it harm."""
    with kvist.Node(memory="64MiB", admin=None) as running:
        wait_ready(running)
        yield running


def wait_ready(node):
    """Until all of its memory is there, so that how much fits is known."""
    with node.client() as client:
        wait_until(lambda: client.report()["ready_bytes"] == client.report()["capacity_bytes"], "it has its memory")


def value(number, size):
    unit = b"value %08d|" % number
    return bytearray((unit * (size // len(unit) + 1))[:size])


def name(number, model="org/model", salt=""):
    """A key as LMCache makes them: model, rank, object group, hash of the tokens, salt."""
    return f"{model}@01000100@0@{number:064x}" + (f"@{salt}" if salt else "")


def pins(node):
    with node.client() as client:
        return client.report()["pinned"]
