"""What the tests share: one real node for all of them, a client and a fresh namespace for each."""

import contextlib
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import threading
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


def in_threads(work, arguments, seconds=100.0):
    """Calls work(argument) with all of them at once, each in a thread of its own, until the last has ended."""
    threads = [threading.Thread(target=work, args=(each,), daemon=True) for each in arguments]
    end = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), f"not all threads ended within {seconds} s"


@contextlib.contextmanager
def stopped(node):
    """Within it the node's process stands still: it answers nobody."""
    os.kill(node.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(node.pid, signal.SIGCONT)


def damage(node, sought):
    """Changes a byte of what the node has in memory, where `sought` is."""
    piece = 1 << 20
    with open(f"/proc/{node.pid}/maps") as maps, open(f"/proc/{node.pid}/mem", "r+b", buffering=0) as memory:
        for line in maps:
            found = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw.s .*memfd:", line)
            if found is None:
                continue
            first, last = (int(end, 16) for end in found.groups())
            for at in range(first, last, piece):
                memory.seek(at)
                place = memory.read(min(piece + len(sought), last - at)).find(sought)
                if place >= 0:
                    middle = len(sought) // 2
                    memory.seek(at + place + middle)
                    memory.write(bytes([sought[middle] ^ 1]))
                    return
    raise AssertionError("the block is not in the node's memory")


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
