"""What becomes of pins, memory and nodes when processes end, fork, or are killed."""

import os
import signal
import subprocess
import threading

import pytest

import kvist
from conftest import BLOCK, identity, keys, pattern, wait_for_pins, wait_until

OPEN = """
import sys, os, signal
import kvist
BLOCK = 4096
def pattern(i, size=BLOCK):
    unit = b"%08d" % i
    return (unit * (size // 8 + 1))[:size]
socket, alias = sys.argv[1:3]
client = kvist.Client(socket)
space = client.open(kvist.Identity(alias, alias, parts=[kvist.Part("kv", block_bytes=BLOCK)]))
chain = space.digests([b"key-%d" % i for i in range(4)])
"""


def test_one_writes_another_reads_in_place_and_the_first_is_killed(node, client, program):
    who = identity()
    writer = program(OPEN + """
space.put(chain, [pattern(i) for i in range(4)]).check()
held = space.prefix(chain)
print("written", flush=True)
sys.stdin.readline()
""", node.socket, who.alias)
    assert writer.line() == "written"
    space = client.open(who)
    chain = space.digests(keys(4))
    with space.prefix(chain) as found:
        assert len(found) == 4
        views = [memoryview(block) for block in found.blocks]
    os.kill(writer.process.pid, signal.SIGKILL)
    writer.process.wait(20)
    wait_until(lambda: client.report()["clients"] <= 1, "the node sees that the writer is dead")
    wait_for_pins(client, 4)  # the writer's are gone and the reader's are left
    assert [bytes(view) for view in views] == [pattern(i) for i in range(4)]
    assert space.put(space.digests(keys(64, first=50)), bytes(64 * BLOCK)).ok
    assert [bytes(view) for view in views] == [pattern(i) for i in range(4)]
    del views
    wait_for_pins(client, 0)


def test_a_killed_reader_gives_its_pins_back(node, client, program):
    who = identity()
    space = client.open(who)
    chain = space.digests(keys(4))
    space.put(chain, [pattern(i) for i in range(4)]).check()
    reader = program(OPEN + """
views = [memoryview(block) for block in space.prefix(chain).blocks]
assert bytes(views[3]) == pattern(3)
print("reading", flush=True)
sys.stdin.readline()
""", node.socket, who.alias)
    assert reader.line() == "reading"
    wait_for_pins(client, 4)
    reader.process.kill()
    reader.process.wait(20)
    wait_for_pins(client, 0)


@pytest.mark.parametrize("ending", ["pass", "sys.exit(0)", "os._exit(0)", "client.close()", "del client, space"])
def test_an_interpreter_ends_with_live_views(node, client, program, ending):
    who = identity()
    space = client.open(who)
    chain = space.digests(keys(4))
    space.put(chain, [pattern(i) for i in range(4)]).check()
    one = program(OPEN + f"""
import warnings
warnings.simplefilter("ignore", kvist.PinsLeftWarning)
prefix = space.prefix(chain)
views = [memoryview(block) for block in prefix.blocks]
capsule = prefix.blocks[0].__dlpack__()
batch = space.reserve(space.digests([b"fresh"]))
room = memoryview(batch[0])
sys.modules["kept"] = (prefix, views, capsule, batch, room)
{ending}
""", node.socket, who.alias)
    code, _ = one.finish()
    assert code == 0
    wait_for_pins(client, 0)
    assert space.get(chain, bytearray(4 * BLOCK)).ok


def test_a_daemon_thread_in_a_call_does_not_hurt_the_exit(node, program):
    one = program(OPEN + """
import threading
inside = threading.Event()
def wait():
    inside.set()
    client.poll(0.2)      # comes back while the interpreter ends
    client.poll(30)
for _ in range(4):
    threading.Thread(target=wait, daemon=True).start()
inside.wait()
import time
class Slow:
    def __del__(self):
        time.sleep(0.5)   # gives the GIL up in the middle of the end
sys.modules["slow"] = Slow()
""", node.socket, identity().alias)
    code, _ = one.finish()
    assert code == 0


def test_a_forked_child_is_refused_and_the_parent_goes_on(node, client):
    space = client.open(identity())
    chain = space.digests(keys(2))
    space.put(chain, [pattern(0), pattern(1)]).check()
    found = space.prefix(chain)
    block = found.blocks[0]
    batch = space.reserve(space.digests([b"room"]))
    room = batch[0]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            calls = [
                lambda: space.get(chain, bytearray(2 * BLOCK)),
                lambda: space.put(chain, bytes(2 * BLOCK)),
                lambda: space.prefix(chain),
                lambda: space.pin(chain),
                lambda: space.contains(chain),
                lambda: space.digests(keys(1)),
                lambda: space.reserve(chain),
                lambda: client.open(identity()),
                lambda: client.report(),
                lambda: client.stats(),
                lambda: client.poll(),
                lambda: memoryview(block),
                lambda: block.__dlpack__(),
                lambda: block.address,
                lambda: memoryview(room),
                lambda: batch.commit(),
            ]
            for i, call in enumerate(calls):
                status = 2 + i
                try:
                    call()
                except kvist.Forked as error:
                    assert "connect again" in str(error) and error.code is kvist.Code.FAILED_PRECONDITION
                else:
                    raise AssertionError(f"call {i} was not refused")
            status = 100
            assert not client.connected and client.close() == 0
            found.close()
            status = 101
            with kvist.Client(node.socket) as own:  # a client of the child's own
                assert bytes(own.open(space.identity).pin(chain)[1]) == pattern(1)
            status = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert bytes(block) == pattern(0) and client.connected
    assert space.get(chain, bytearray(2 * BLOCK)).ok
    memoryview(room)[:] = pattern(7)
    assert batch.commit().ok
    found.close()


def test_a_node_ends_with_the_process_that_started_it(program):
    one = program("""
import kvist, sys
node = kvist.Node(memory="64MiB", admin=None)
print(node.pid, node.socket, flush=True)
sys.stdin.readline()
""")
    pid, socket = one.line().split()
    with kvist.Client(socket) as client:
        assert client.connected
        os.kill(one.process.pid, signal.SIGKILL)
        one.process.wait(20)
        wait_until(lambda: not os.path.exists(f"/proc/{pid}") or state(pid) == "Z", "the node ends after its starter")
        wait_until(lambda: not client.connected, "the client notices")


def state(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return "Z"


@pytest.mark.parametrize(
    "ending",
    ["pass", "sys.exit(3)", "node.close()", "del node", "raise KeyboardInterrupt", "os.kill(os.getpid(), signal.SIGTERM)"],
)
def test_a_node_ends_with_its_object_or_the_interpreter(program, ending):
    one = program(f"""
import kvist, sys, os, signal
node = kvist.Node(memory="64MiB", admin=None)
print(node.pid, node.socket, flush=True)
{ending}
""", stderr=subprocess.DEVNULL)
    pid, socket = one.line().split()
    one.finish()
    wait_until(lambda: state(pid) == "Z", "the node ends")
    if "SIGTERM" not in ending:
        assert not os.path.exists(os.path.dirname(socket)), "its folder is removed"


@pytest.mark.parametrize("ending", ["node.close()", "del node", "pass"], ids=["closes", "drops", "exits"])
def test_a_fork_does_not_end_the_node(program, ending):
    """A child that ends like a program runs the handlers of its exit, too."""
    one = program(f"""
import os, sys, warnings
import kvist
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and later: a fork beside threads
node = kvist.Node(memory="64MiB", admin=None)
child = os.fork()
if child == 0:
    {ending}
    sys.exit(0)
_, status = os.waitpid(child, 0)
print(status, node.running)
print(node.client().connected)
""")
    assert one.line() == "0 True" and one.line() == "True"
    assert one.finish()[0] == 0


def test_a_thread_that_started_a_node_may_end():
    nodes = []
    thread = threading.Thread(target=lambda: nodes.append(kvist.Node(memory="64MiB", admin=None)))
    thread.start()
    thread.join()
    with nodes[0] as node, node.client() as client:
        space = client.open(identity())
        assert space.put(space.digests(keys(1)), pattern(0)).ok
        assert node.running


def test_a_node_that_dies_is_unavailable_and_what_is_pinned_stays():
    node = kvist.Node(memory="64MiB", admin=None)
    client = node.client()
    space = client.open(identity())
    chain = space.digests(keys(2))
    space.put(chain, [pattern(0), pattern(1)]).check()
    view = memoryview(space.prefix(chain).blocks[1])
    os.kill(node.pid, signal.SIGKILL)
    wait_until(lambda: not node.running, "the node is dead")
    assert node.returncode == -signal.SIGKILL and bytes(view) == pattern(1)
    wait_until(lambda: not client.connected, "the client notices")
    with pytest.raises(kvist.Unavailable):
        space.put(space.digests([b"new"]), pattern(2))
    with pytest.raises(kvist.Unavailable):
        client.report()
    view.release()
    client.close()
    node.close()
    with pytest.raises(kvist.Unavailable):
        kvist.Client(node.socket, timeout=0.2)
