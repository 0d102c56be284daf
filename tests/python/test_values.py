"""Names, results, identities, errors: what needs no bytes."""

import json
import os
import pickle

import pytest

import kvist
from conftest import BLOCK, identity, keys, pattern
from kvist import Code


def test_digests_are_a_sequence_that_knows_its_place(space):
    chain = space.digests(keys(5))
    assert len(chain) == 5 and chain.first == 0 and chain.parent is None
    assert [len(name) for name in chain] == [16] * 5
    assert bytes(chain) == b"".join(chain)
    assert chain.hex() == [name.hex() for name in chain]
    tail = chain[2:]
    assert (len(tail), tail.first, tail.parent) == (3, 2, chain[1])
    assert tail[1:][0] == chain[3] and tail[1:].first == 3 and tail[1:].parent == chain[2]
    assert chain[-1] == chain[4] and len(chain[4:2]) == 0 and chain[:2].parent is None
    for bad in (5, -6):
        with pytest.raises(IndexError):
            chain[bad]
    with pytest.raises(ValueError, match="step 1"):
        chain[::2]


def test_digests_travel_as_bytes_and_pickles(space):
    tail = space.digests(keys(4))[1:]
    again = pickle.loads(pickle.dumps(tail))
    assert again == tail and again.parent == tail.parent
    assert kvist.Digests(bytes(tail), tail.first, tail.parent) == tail
    assert kvist.Digests(bytes(tail)) != tail  # the same names at another place
    joined = space.digests(keys(2)) + bytes(space.digests(keys(2, first=2)))
    assert joined == space.digests(keys(4))
    with pytest.raises(ValueError, match="16 bytes each"):
        kvist.Digests(b"123")
    with pytest.raises(ValueError, match="one digest"):
        kvist.Digests(bytes(tail), 1, bytes(tail))
    with pytest.raises(TypeError):
        hash(tail)


def test_keys_may_be_bytes_text_buffers_or_packed(space):
    wanted = space.digests([b"ab", b"cd"])
    assert space.digests(["ab", "cd"]) == wanted
    assert space.digests([memoryview(b"ab"), bytearray(b"cd")]) == wanted
    assert space.digests(b"abcd", width=2) == wanted
    assert len(space.digests([])) == 0
    assert len(space.digests(keys(3000))) == 3000
    with pytest.raises(TypeError, match="width="):
        space.digests(b"abcd")
    with pytest.raises(ValueError, match="whole number"):
        space.digests(b"abcde", width=2)
    with pytest.raises(TypeError, match="key 1"):
        space.digests([b"a", 7])
    with pytest.raises(ValueError, match="key 1: .*surrogates not allowed"):
        space.digests(["a", "\ud800"])


def test_a_bad_key_fails_alone(space):
    chain = space.digests([b"good", b"", b"x" * 5000])
    assert chain[1] == chain[2] == bytes(16)
    results = space.put(chain, pattern(0, 3 * BLOCK), unchained=True)
    assert list(results) == [Code.OK, Code.INVALID_ARGUMENT, Code.INVALID_ARGUMENT]
    assert not results.ok and results.done == 1
    assert results.where(Code.INVALID_ARGUMENT) == [1, 2] and results.count(Code.OK) == 1
    assert bytes(results) == bytes([0, 3, 3])
    assert "2 INVALID_ARGUMENT" in repr(results)
    with pytest.raises(kvist.InvalidArgument, match="block 1 of 3") as caught:
        results.check()
    assert caught.value.code is Code.INVALID_ARGUMENT and isinstance(caught.value, ValueError)


def test_every_code_has_an_exception_with_that_code():
    for code in Code:
        raised = kvist._types.error_class(code)
        assert issubclass(raised, kvist.Error)
        assert raised is kvist.Error or raised.code is code
    error = kvist.Unavailable("gone")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kvist.Unavailable and str(again) == "gone" and again.code is Code.UNAVAILABLE


def test_an_alias_in_use_names_the_differing_field(client):
    who = identity(kv_dtype="bfloat16")
    client.open(who)
    other = kvist.Identity(who.alias, who.model, who.parts, kv_dtype="fp8_e4m3")
    with pytest.raises(kvist.FailedPrecondition, match="kv_dtype"):
        client.open(other)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"model": ""}, "model"),
        ({"alias": ""}, "alias"),
        ({"key_kind": "loose"}, "key_kind must be one of chained, opaque"),
        ({"parts": []}, "part"),
        ({"parts": [kvist.Part("kv"), kvist.Part("kv")]}, "earlier"),
        ({"block_tokens": 2**40}, "block_tokens"),
    ],
)
def test_a_wrong_identity_is_refused_by_field(client, fields, message):
    with pytest.raises(ValueError, match=message):
        client.open(kvist.Identity(**{"alias": "wrong", "model": "m", **fields}))
    with pytest.raises((TypeError, AttributeError)):
        client.open("llama")


@pytest.mark.parametrize("fields", [{"model": ""}, {"key_form": "sha"}, {"parts": []}, {"extra": {"": "x"}}])
def test_an_identity_that_cannot_be_is_refused_when_it_is_made(fields):
    with pytest.raises(ValueError, match=next(iter(fields)).rstrip("s")):
        kvist.Identity(**{"alias": "wrong", "model": "m", **fields})


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"block_bytes": "banana"}, "block_bytes: 'banana' is not a size"),
        ({"block_bytes": "4GB"}, "4GB"),
        ({"block_bytes": "4GiB"}, "block_bytes must be less than 4GiB"),
        ({"block_bytes": -1}, "block_bytes"),
        ({"name": ""}, "^name has 0 bytes"),
        ({"need": "some"}, "need must be one of all, window, last, not 'some'"),
        ({"need": "window"}, "^window is 0"),
        ({"window": 8}, "^window is 8"),
    ],
)
def test_a_part_that_cannot_be_is_refused_when_it_is_made(fields, message):
    with pytest.raises(ValueError, match=message):
        kvist.Part(**{"name": "kv", **fields})


def test_a_field_cannot_be_given_to_its_neighbour():
    with pytest.raises(TypeError, match="positional"):
        kvist.Identity("a", "m", [kvist.Part("kv")], "bfloat16")
    with pytest.raises(TypeError, match="positional"):
        kvist.Part("kv", "4KiB", "all")


def test_all_fields_reach_the_identity(client):
    fields = dict(revision="r", weights_epoch="w", quantization="q", layout="l", hash_algorithm="a", hash_seed="s")
    base = identity()
    ids = {client.open(base).id}
    for i, (name, value) in enumerate({**fields, "block_tokens": 16, "extra": {"lora": "x"}, "tenant_secret": "t"}.items()):
        changed = kvist.Identity(f"{base.alias}-{i}", base.model, base.parts, **{name: value})
        ids.add(client.open(changed).id)
    for part in (kvist.Part("k", BLOCK), kvist.Part("kv", 2 * BLOCK), kvist.Part("kv", BLOCK, need="window", window=3)):
        changed = kvist.Identity(f"{base.alias}-{part}", base.model, [part])
        ids.add(client.open(changed).id)
    assert len(ids) == 13, "a field that does not change the id was not passed on"


def test_arguments_are_checked_by_name(space):
    chain = space.digests(keys(1))
    with pytest.raises(TypeError, match="needs 'sources'"):
        space.put(chain)
    with pytest.raises(TypeError, match="no argument 'prat'"):
        space.put(chain, pattern(0), prat=1)
    with pytest.raises(TypeError, match="at most 2"):
        space.put(chain, pattern(0), 0)
    with pytest.raises(TypeError, match="two values"):
        space.put(chain, pattern(0), chain=chain)
    with pytest.raises(ValueError, match="timeout"):
        space.put(chain, pattern(0), timeout=-1)
    with pytest.raises(ValueError, match="timeout"):
        space.get(chain, bytearray(BLOCK), timeout=float("nan"))
    with pytest.raises(ValueError, match="no part 'v'"):
        space.put(chain, pattern(0), part="v")
    with pytest.raises(ValueError, match="part must be from 0 to 0"):
        space.contains(chain, part=1)
    with pytest.raises(TypeError, match="a chain is"):
        space.contains([b"x"])
    with pytest.raises(TypeError):
        kvist.Space()
    with pytest.raises(ValueError, match="verify"):
        kvist.Client(verify="often")


def test_what_a_client_says(client, space):
    chain = space.digests(keys(3))
    before = client.stats()
    assert space.put(chain, pattern(0, 3 * BLOCK)).ok
    assert space.get(chain, bytearray(3 * BLOCK)).ok
    after = client.stats()
    assert after.blocks_put - before.blocks_put == 3
    assert after.bytes_got - before.bytes_got == 3 * BLOCK
    assert client.report()["capacity_bytes"] >= 256 << 20
    assert f'"pid": {os.getpid()}' in json.dumps(client.report("clients"))
    assert space.identity.alias in json.dumps(client.report("spaces"))
    with pytest.raises(ValueError, match="'node', 'clients' or 'spaces'"):
        client.report("weather")


def test_blocks_are_listed_page_by_page(space):
    chain = space.digests(keys(10))
    assert space.put(chain, pattern(0, 10 * BLOCK)).ok
    found, cursor = {}, 0
    while True:
        page, cursor = space.list(cursor, limit=4)
        found.update({block.position: block for block in page})
        if cursor == 0:
            break
    assert set(found) == set(chain)
    third = found[chain[3]]
    assert (third.parent, third.depth, third.nbytes, third.children, third.resident) == (chain[2], 3, BLOCK, 1, True)
    assert found[chain[0]].parent is None


def test_flush_ends_the_space(client, space):
    chain = space.digests(keys(2))
    assert space.put(chain, pattern(0, 2 * BLOCK)).ok
    assert space.flush() == 2
    for call in (
        lambda: space.get(chain, bytearray(2 * BLOCK)),
        lambda: space.put(chain, pattern(0, 2 * BLOCK)),
        lambda: space.prefix(chain),
        lambda: space.pin(chain),
        lambda: space.contains(chain),
        lambda: space.remove(chain),
        lambda: space.flush(),
    ):
        with pytest.raises(kvist.FailedPrecondition, match="flushed"):
            call()
    again = client.open(space.identity)
    assert list(again.contains(chain)) == [Code.NOT_FOUND] * 2


def test_remove_and_touch(space):
    chain = space.digests(keys(3))
    assert space.put(chain, pattern(0, 3 * BLOCK)).ok
    space.touch(chain)
    space.touch(chain, session="conversation", stop="tool_use")
    with pytest.raises(kvist.InvalidArgument, match="255"):
        space.touch(chain, session="x" * 300)
    assert list(space.remove(chain[2:])) == [Code.OK]
    assert list(space.contains(chain)) == [Code.OK, Code.OK, Code.NOT_FOUND]
    assert list(space.remove(chain[2:])) == [Code.NOT_FOUND]


def test_a_strict_put_fails_block_by_block(space):
    chain = space.digests(keys(3))
    results = space.put(chain[1:], pattern(0, 2 * BLOCK), strict=True)
    assert list(results)[0] == Code.FAILED_PRECONDITION  # told, not raised: nothing is wrong with the namespace


def test_the_types_of_the_extension_are_those_it_has():
    import ast
    import pathlib

    stub = ast.parse(pathlib.Path(kvist.__file__).with_name("_kvist.pyi").read_text())
    for described in (node for node in stub.body if isinstance(node, ast.ClassDef)):
        if described.name.startswith("_"):
            continue
        real = getattr(kvist._kvist, described.name)
        named = {node.name for node in described.body if isinstance(node, ast.FunctionDef)}
        public = {name for name in vars(real) if not name.startswith("_")}
        assert public <= named, f"{described.name}: not in the stub: {public - named}"
        missing = {name for name in named if not hasattr(real, name)} - {"__buffer__"}
        assert not missing, f"{described.name}: only in the stub: {missing}"
        for name in public:
            assert getattr(real, name).__doc__, f"{described.name}.{name} says nothing of itself"
    assert set(kvist.__all__) <= set(dir(kvist))
