"""What the doors have in common: settings, and a link to a node that comes late, stalls, restarts or refuses."""

import dataclasses
import logging
import os
import signal
import threading
import time

import pytest

import kvist
from conftest import BLOCK, identity, keys, pattern, wait_until
from kvist import _door
from kvist._door import Link, Notices, Settings

log = logging.getLogger("test.door")


def start(path, **options):
    return kvist.Node(memory="64MiB", admin=None, block_bytes=BLOCK, socket=path, **options)


def link_to(path, **settings):
    return Link(Settings.read({"socket": str(path), **settings}, door="test"), identity(), name="a door", log=log, longest=0.5)


def works(link):
    """Whether a block can be put and read; errors go where a door would take them."""
    space = link.space()
    if space is None:
        return False
    try:
        chain = space.digests(keys(1))
        out = bytearray(BLOCK)
        space.put(chain, pattern(0), timeout=1.0)
        return space.get(chain, out, timeout=1.0).ok and bytes(out) == pattern(0)
    except kvist.Error as error:
        link.failed(error)
        return False


@dataclasses.dataclass(frozen=True)
class More(Settings):
    load: str = _door.setting("sync", _door.one_of("sync", "async"))
    eager: bool = _door.setting(False, _door.flag)
    most: int = _door.setting(8, _door.count)


def test_settings_are_read_with_their_units():
    read = More.read({"deadline": "50ms", "load": "async", "eager": "true", "most": 2, "stock": "1MiB", "mine": 1},
                     door="test", ignored=frozenset({"mine"}))
    assert read == More(deadline=0.05, load="async", eager=True, most=2, stock="1MiB")
    assert Settings.read(None, door="test") == Settings.read({"socket": None}, door="test") == Settings()
    assert [_door.seconds(value) for value in (2, 0.5, "250us", "1.5s", "1m")] == [2, 0.5, 0.00025, 1.5, 60]


@pytest.mark.parametrize(
    "given, said",
    [
        ({"sokcet": "x"}, r"test: there is no setting 'sokcet'; did you mean 'socket'\?"),
        ({"zzz": 1}, "there is no setting 'zzz'; known are deadline, domain"),
        ({"deadline": "50"}, r"test: deadline must be seconds, or text with a unit like .*, not '50'"),
        ({"deadline": True}, "deadline must be seconds"),
        ({"deadline": 0}, "deadline must be more than 0"),
        ({"deadline": float("nan")}, "deadline must be more than 0"),
        ({"verify": "often"}, "verify must be 'never' or 'sampled' or 'always', not 'often'"),
        ({"pins": 0}, "pins must be a whole number from 1 on"),
        ({"pins": True}, "pins must be a whole number"),
        ({"stock": "64MB"}, "stock must be bytes, or text with a unit"),
        ({"socket": 5}, "socket must be a text"),
        ({"socket": "a\0b"}, "socket must be a text"),
        ({"eager": 1}, "eager must be true or false"),
        ({"load": ["sync"]}, "load must be 'sync' or 'async'"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_its_key(given, said):
    with pytest.raises(ValueError, match=said):
        More.read(given, door="test")


def test_a_node_that_comes_late_is_found(tmp_path, caplog):
    caplog.set_level(logging.INFO, "test.door")
    path = tmp_path / "k.sock"
    link = link_to(path)
    try:
        assert not works(link) and link.counts["unavailable"] >= 2 and str(path) in link.state
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        with start(path):
            wait_until(lambda: works(link), "the link found the node")
            assert link.state == "connected"
            wait_until(lambda: any("connected" in record.message for record in caplog.records), "it says so")
    finally:
        link.close()


def test_a_node_that_restarts_empty_is_used_again(tmp_path):
    path = tmp_path / "k.sock"
    with start(path):
        link = link_to(path)
        assert works(link)
    try:
        wait_until(lambda: link.state != "connected", "the end was seen")
        assert not works(link)
        with start(path):
            wait_until(lambda: works(link), "the new node is used")
    finally:
        link.close()


def test_a_stopped_node_costs_a_call_no_more_than_its_deadline(tmp_path):
    path = tmp_path / "k.sock"
    with start(path) as node:
        link = link_to(path)
        assert works(link)
        os.kill(node.pid, signal.SIGSTOP)
        try:
            space = link.space()
            begun = time.monotonic()
            for i in range(3):
                try:
                    link.tally(space.put(space.digests([b"more %d" % i]), bytes(BLOCK), timeout=0.05), put=True)
                except kvist.Error as error:
                    link.failed(error)
            assert time.monotonic() - begun < 30  # it would wait for ever
            assert link.counts["deadline_exceeded"] == 3
            assert link.rests() and link.counts["resting"] == 1
        finally:
            os.kill(node.pid, signal.SIGCONT)
        wait_until(lambda: works(link), "it goes on with the node")
        wait_until(lambda: not link.rests(), "the rest is over")
        link.tally(link.space().put(link.space().digests([b"after"]), bytes(BLOCK)), put=True)
        assert not link.rests()
        link.close()


def test_rests_grow_until_a_put_went_well(node):
    link = link_to(node.socket)
    assert not link.rests()
    lengths = []
    for _ in range(3):
        link.rest()
        link.rest()  # of the same stall: counts once
        lengths.append(link._rest)
        assert link.rests()
        link._rested_at = 0.0  # as if it were over
        assert not link.rests()
    assert lengths == [0.5, 0.5, 0.5]  # its longest
    link._longest = 8.0
    link.rest()
    assert link._rest == 1.0
    link.went_well()
    assert link.rests(), "what has begun is kept to its end"
    link._rested_at = 0.0
    link.rest()
    assert link._rest == 0.5
    link.close()


def test_a_flushed_namespace_is_opened_again(node):
    link = link_to(node.socket)
    assert works(link)
    link.space().flush()
    assert not works(link) and link.counts["failed_precondition"] == 1
    wait_until(lambda: works(link), "the namespace was opened anew")
    link.close()


def test_another_identity_is_another_namespace(node):
    link = link_to(node.socket)
    assert works(link)
    chain = link.space().digests(keys(1))
    link.reopen(dataclasses.replace(link.identity, alias=link.identity.alias + "-2", weights_epoch="2"))
    space = link.space()
    assert space.identity.weights_epoch == "2" and list(space.contains(space.digests(keys(1)))) == [kvist.Code.NOT_FOUND]
    assert bytes(space.digests(keys(1))) != bytes(chain)
    link.close()


def test_a_wrong_token_is_told_and_a_right_one_is_taken_later(tmp_path, caplog):
    path, token = tmp_path / "k.sock", tmp_path / "token"
    right = tmp_path / "node-token"
    right.write_text("the right one, and long enough\n")
    right.chmod(0o600)
    with start(path, arguments=["--token-file", str(right)]):
        link = link_to(path, token_file=str(token))
        try:
            assert link.space() is None and link.counts["token_file"] >= 1 and str(token) in link.state
            token.write_text("a wrong one, and long enough\n")
            wait_until(lambda: "unauthenticated" in link.counts, "the wrong token was refused")
            assert any("token" in record.message for record in caplog.records)
            token.write_text(right.read_text())
            wait_until(lambda: works(link), "the right one was taken")
        finally:
            link.close()


def test_closing_ends_its_thread_and_its_client(tmp_path, node):
    before = threading.active_count()
    absent = link_to(tmp_path / "none.sock")
    assert threading.active_count() == before + 1
    absent.close()
    absent.close()
    assert threading.active_count() == before and absent.state == "closed" and absent.space() is None
    link = link_to(node.socket)
    client = link.client
    link.close()
    assert client.closed and link.space() is None


def test_a_line_comes_once_in_a_while_with_what_was_left_out(caplog):
    notices = Notices(log, every=3600)
    for _ in range(5):
        notices.say("full", "the pool is full")
    notices.say("other", "something else")
    assert [record.message for record in caplog.records] == ["the pool is full", "something else"]
    notices.forget("full")
    notices.say("full", "the pool is full")
    assert len(caplog.records) == 3
    caplog.clear()
    quick = Notices(log, every=0.02)
    quick.say("full", "full")
    quick.say("full", "full")
    wait_until(lambda: (quick.say("full", "full"), len(caplog.records) > 1)[1], "told again")
    assert "more like it" in caplog.records[1].message
