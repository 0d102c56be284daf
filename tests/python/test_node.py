"""kvist.Node, and the command that comes with the package."""

import fcntl
import json
import logging
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request

import pytest

import kvist
from conftest import identity, keys, pattern, wait_until
from kvist._folder import Folder


def loopback_is_up():
    """It is not in a fresh network namespace, as `unshare -n` makes one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        return any_socket.connect_ex(("127.0.0.1", 9)) == 0


def test_its_attributes_and_its_end():
    with kvist.Node(memory="64MiB") as node:
        assert node.running and node.returncode is None and str(node.pid) in repr(node)
        assert os.stat(node.socket).st_mode & 0o777 == 0o600
        assert os.stat(os.path.dirname(node.socket)).st_mode & 0o777 == 0o700
        if loopback_is_up():
            with urllib.request.urlopen(f"http://{node.admin}/healthz", timeout=10) as answer:
                assert answer.status == 200
        with node.client(name="a test") as client:
            assert client.report()["capacity_bytes"] == 64 << 20
            assert "a test" in json.dumps(client.report("clients"))
    assert not node.running and node.returncode == 0 and node.close() == 0
    assert "ended with 0" in repr(node)


def test_where_it_listens_is_where_clients_look(tmp_path, monkeypatch):
    path = tmp_path / "k.sock"
    with kvist.Node(64 << 20, socket=path, admin=None, arguments=["--no-huge-pages"]) as node:
        assert node.admin is None and node.socket == str(path)
        monkeypatch.setenv("KVIST_SOCKET", str(path))
        for client in (kvist.Client(), kvist.Client(path), kvist.Client(str(path))):
            with client:
                assert client.connected
    assert tmp_path.exists()


def test_a_start_that_fails_says_why(tmp_path):
    with pytest.raises(kvist.ResourceExhausted, match="memory"):
        kvist.Node(memory="900TiB", admin=None)
    with pytest.raises(kvist.InvalidArgument, match="no-such-flag"):
        kvist.Node(memory="64MiB", admin=None, arguments=["--no-such-flag"])
    with pytest.raises(ValueError, match="'4GB'"):
        kvist.Node(memory="4GB", admin=None)
    with pytest.raises(kvist.InvalidArgument, match="HOST:PORT"):
        kvist.Node(memory="64MiB", admin="127.0.0.1:99999")
    with pytest.raises(kvist.FailedPrecondition, match=f"{tmp_path}/none .*does not exist: create it"):
        kvist.Node(memory="64MiB", socket=tmp_path / "none" / "s", admin=None)
    with kvist.Node("64MiB", socket=tmp_path / "s") as node:
        with pytest.raises(kvist.FailedPrecondition, match=f"another node .*{tmp_path}"):
            kvist.Node("64MiB", socket=tmp_path / "s", admin=None)
        with pytest.raises(kvist.FailedPrecondition, match=f"cannot listen on {node.admin}"):
            kvist.Node("64MiB", admin=node.admin)


def test_its_clients_and_their_spaces_keep_it():
    node = kvist.Node("64MiB", admin=None)
    space, pid = node.client().open(identity()), node.pid
    del node
    assert space.put(space.digests(keys(1)), pattern(0)).ok
    del space
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), "it ends with the last of them")
    node = kvist.Node("64MiB", admin=None)
    client, pid = node.client(), node.pid
    del node
    assert client.connected and client.close() == 0
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), "a client that is closed does not keep it")


def test_a_client_of_a_node_s_subclass_is_no_cycle():
    class Mine(kvist.Node):
        pass

    node = Mine("64MiB", admin=None)
    node.mine, pid = node.client(), node.pid
    del node
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), "it ends without a collection")


def test_the_folder_of_a_killed_process_is_removed_by_the_next(tmp_path, program):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    code = """
import kvist, sys
node = kvist.Node(memory="64MiB", admin=None)
print(node.socket, flush=True)
sys.stdin.readline()
"""
    killed, living = program(code, env=environment), program(code, env=environment)
    left, kept = pathlib.Path(killed.line()).parent, pathlib.Path(living.line()).parent
    killed.process.kill()
    killed.process.wait(20)
    wait_until(lambda: not list(left.iterdir()), "the node takes its socket away")
    other = tmp_path / "kvist-python-node-full"
    other.mkdir()
    (other / "file").touch()
    next_one = program(code, env=environment)
    assert pathlib.Path(next_one.line()).exists()
    assert not left.exists() and kept.exists() and (other / "file").exists()


@pytest.mark.parametrize("module, name", [(os, "open"), (fcntl, "flock")])
def test_a_folder_that_another_process_takes_for_left_is_made_again(tmp_path, monkeypatch, module, name):
    call, taken = getattr(module, name), []

    def another_comes_first(subject, flags):
        if not taken:
            taken.extend(tmp_path.iterdir())
            taken[0].rmdir()
        return call(subject, flags)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(module, name, another_comes_first)
    folder = Folder()
    monkeypatch.undo()
    assert len(taken) == 1 and list(tmp_path.iterdir()) == [pathlib.Path(folder.path)]
    folder.remove()
    assert not list(tmp_path.iterdir())


def test_a_missing_command_is_told(monkeypatch):
    monkeypatch.setenv("KVIST_BINARY", "/nonexistent/kvist")
    with pytest.raises(FileNotFoundError, match="KVIST_BINARY"):
        kvist.Node(memory="64MiB")


def test_a_lack_of_descriptors_or_threads_is_told(tmp_path):
    program = f"""
import os, resource, threading
import kvist
start = threading.Thread.start
def none_for_the_log(self):
    if self.name == "kvist-node-log":
        raise RuntimeError("can't start new thread")
    start(self)
threading.Thread.start = none_for_the_log
try:
    kvist.Node("64MiB", socket={str(tmp_path / "s")!r}, admin=None)
except kvist.ResourceExhausted as error:
    print("threads:", error)
threading.Thread.start = start
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
taken = []
try:
    while True:
        taken.append(os.dup(0))
except OSError:
    pass
for left in range(4):
    try:
        kvist.Node("64MiB", socket={str(tmp_path / "s")!r}, admin=None)
    except OSError as error:
        print("descriptors:", left, error)
    os.close(taken.pop())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "threads:" in done.stdout and "can't start new thread" in done.stdout
    assert done.stdout.count("Too many open files") == 4, done.stdout


def test_what_it_logs_is_logged(caplog):
    with caplog.at_level(logging.INFO, logger="kvist.node"):
        with kvist.Node(memory="64MiB", admin=None, log_level="info") as node:
            os.kill(node.pid, signal.SIGTERM)
            wait_until(lambda: not node.running, "it ends when told")
        wait_until(lambda: "stopped" in caplog.text, "its last words arrive")
    assert node.returncode == 0
    assert {record.levelno for record in caplog.records} <= {logging.INFO, logging.WARNING}


def test_a_client_waits_for_its_node(tmp_path):
    path = tmp_path / "later.sock"
    with kvist.Client(path, wait_for_node=True) as client:
        assert not client.connected
        space = client.open(identity())
        with pytest.raises(kvist.Unavailable):
            space.put(space.digests([b"a"]), bytes(4096))
        with kvist.Node("64MiB", socket=path, admin=None):
            wait_until(lambda: client.connected, "the client connects by itself")
            wait_until(lambda: put_works(space), "the space works then")


def put_works(space):
    try:
        return space.put(space.digests([b"a"]), bytes(4096)).ok
    except kvist.Unavailable:
        return False


def test_an_embedded_pool():
    with kvist.Client.embedded("64MiB", verify="always") as client:
        space = client.open(identity())
        chain = space.digests([b"a", b"b"])
        space.put(chain, b"x" * 8192).check()
        assert space.get(chain, bytearray(8192)).ok and client.stats().verified >= 2
    with pytest.raises(ValueError, match="memory"):
        kvist.Client.embedded("64MB")
    with pytest.raises(TypeError):
        kvist.Client.embedded(pins="many")


@pytest.mark.parametrize(
    "arguments", [["-m", "kvist", "doctor"], ["-m", "kvist.doctor"]], ids=["kvist doctor", "kvist.doctor"]
)
def test_the_command_comes_along(arguments):
    answer = subprocess.run([sys.executable, *arguments, "--json"], capture_output=True, text=True, timeout=60)
    assert answer.returncode in (0, 1), answer.stderr
    checks = json.loads(answer.stdout)["checks"]
    assert {"kernel", "memory"} <= {check["name"] for check in checks}


def test_the_version_is_the_command_s():
    answer = subprocess.run([sys.executable, "-m", "kvist", "version"], capture_output=True, text=True, timeout=60)
    assert kvist.__version__ in answer.stdout


def test_importing_needs_neither_numpy_nor_torch():
    code = "import sys; sys.modules['numpy'] = sys.modules['torch'] = None; import kvist, kvist.aio"
    answer = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr
