"""What the tests share: one real node for all of them, a client and a fresh namespace for each."""

import itertools
import os
import random
import subprocess
import sys
import time

import pytest

import kvist

BLOCK = 4096
_names = itertools.count()


@pytest.fixture(scope="session")
def node():
    with kvist.Node(memory="256MiB", admin=None, block_bytes=BLOCK) as running:
        yield running


@pytest.fixture
def client(node):
    with node.client() as connected:
        yield connected


def identity(block_bytes=BLOCK, **fields):
    """A namespace that no other test uses."""
    alias = f"test-{os.getpid()}-{next(_names)}"
    fields.setdefault("parts", [kvist.Part("kv", block_bytes=block_bytes)])
    return kvist.Identity(alias, alias, **fields)


@pytest.fixture
def space(client):
    return client.open(identity())


@pytest.fixture
def rng():
    seed = int(os.environ.get("KVIST_SEED", time.time_ns() % 2**32))
    print(f"KVIST_SEED={seed}")
    return random.Random(seed)


def pattern(i, size=BLOCK):
    """Bytes that tell block i from every other."""
    unit = b"%08d" % i
    return (unit * (size // 8 + 1))[:size]


def keys(count, first=0):
    return [b"key-%d" % i for i in range(first, first + count)]


def wait_until(condition, what, seconds=20.0):
    """Waits for something that happens soon; that it never happens is the failure."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.005)


def wait_for_pins(client, count):
    """Until the node reports `count` pins. It counts them again only so often (docs/metrics.md), so a report may lag."""
    wait_until(lambda: client.report()["pinned"] == count, f"the node sees {count} pins")


class Program:
    """A Python program of its own, spoken to line by line."""

    def __init__(self, code, *arguments, **options):
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )

    def line(self):
        text = self.process.stdout.readline()
        assert text, f"the program ended with {self.process.wait(20)}"
        return text.strip()

    def say(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def finish(self, timeout=30):
        out, _ = self.process.communicate(timeout=timeout)
        return self.process.returncode, out

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def program():
    started = []

    def start(code, *arguments, **options):
        started.append(Program(code, *arguments, **options))
        return started[-1]

    yield start
    for one in started:
        one.__exit__()
