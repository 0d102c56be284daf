"""The vLLM connector on both sides, with vLLM's own scheduler, KV cache manager and configuration, and no model: what is
stored and found, by groups, ranks, identities and seeds. tests/python/doors/vllm_rig.py checks every byte that is used."""

import logging
import os
import time
import types
import warnings

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make test-engines ENGINE=vllm")
os.environ.setdefault("PYTHONHASHSEED", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
pytestmark = pytest.mark.filterwarnings("default")  # vLLM and torch warn of much

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    from vllm_rig import BLOCK, Rig, full, mamba, model_folder, sliding

    import kvist
    from kvist.vllm import identity, layout, plan, step
    from kvist.vllm import worker as workers
    from kvist.vllm.settings import Settings


@pytest.fixture
def folder(tmp_path):
    """A model that no other test has, and so a namespace of its own."""
    return model_folder(tmp_path / "model", weights=os.urandom(16))


@pytest.fixture
def extra(node):
    return {"socket": node.socket, "deadline": "30s", "save_deadline": "10s"}  # however busy the machine is


def prompt(count, first=100):
    return [(first + i) % 900 + 10 for i in range(count)]


GROUPS = {
    "full": [full()],
    "full, twice the block": [full(block_size=2 * BLOCK), sliding(40)],
    "sliding": [full(), sliding(40)],
    "two windows": [full(), sliding(20), sliding(100)],
    "state": [full(), mamba()],
}


@pytest.mark.parametrize(
    "groups, ranks, load", [("full", 1, "sync"), *((groups, ranks, "async") for groups in GROUPS for ranks in (1, 2))]
)
def test_a_second_engine_finds_all_full_blocks_but_the_last_tokens(folder, extra, groups, ranks, load):
    """Known failures 17, 21: a hit is what all groups and all ranks have."""
    with Rig(folder, extra | {"load": load}, GROUPS[groups], ranks=ranks) as one:
        assert one.serve("a", prompt(150)) == 0
        one.empty()
        with Rig(folder, extra | {"load": load}, GROUPS[groups], ranks=ranks) as other:
            unit = other.connector._plan.tokens
            assert other.serve("b", prompt(150)) == 149 // unit * unit
            assert other.outputs["b"] == one.outputs["a"]
            other.reset()
            exact = 150 // unit * unit  # a prompt of whole blocks: the last one is computed
            assert other.serve("c", prompt(exact)) == exact - unit
            other.empty()


def listed(space):
    found, cursor = space.list()
    while cursor:
        more, cursor = space.list(cursor)
        found += more
    return found


@pytest.mark.parametrize(
    "groups, load", [("full", "sync"), ("full", "async"), ("sliding", "async"), ("state", "async")]
)
def test_what_has_left_the_nodes_memory_is_loaded_from_its_disk(folder, extra, tmp_path, groups, load):
    """The scheduler waits for nothing; bytes are checked by the rig."""
    (tmp_path / "disk").mkdir()
    arguments = ["--disk", str(tmp_path / "disk"), "--disk-capacity", "256MiB"]
    with kvist.Node(memory="16MiB", admin=None, block_bytes=4096, arguments=arguments) as small, small.client() as client:
        with Rig(folder, extra | {"socket": small.socket, "load": load}, GROUPS[groups]) as rig:
            rig.serve("a", prompt(150))
            space = rig.connector._scheduler.names.space()
            other = client.open(kvist.Identity("other", "other", [kvist.Part("kv", "4KiB")]))
            end, number, stored = time.monotonic() + 60, 0, len(listed(space))
            while any(each.resident for each in listed(space)):
                time.sleep(0.005)  # the disk is slower than what comes from here
                assert time.monotonic() < end
                other.put(other.digests([b"%d" % i for i in range(number, number + 64)]), bytes(64 * 4096))
                number += 64
            assert sum(each.on_disk for each in listed(space)) == stored
            rig.reset()
            unit = rig.connector._plan.tokens
            assert rig.serve("b", prompt(150)) == 149 // unit * unit
            assert rig.outputs["b"] == rig.outputs["a"]
            came = client.report()["pools"][0]["disk"]["fetches_ended"]["came"]
            assert came >= rig.count("loaded_blocks") >= 149 // unit
            rig.empty()


def test_only_what_the_engine_lacks_is_loaded(folder, extra):
    with Rig(folder, extra) as rig:
        rig.serve("a", prompt(6 * BLOCK + 1))
        rig.reset()
        assert rig.serve("b", prompt(3 * BLOCK + 1)) == 3 * BLOCK
        before = rig.count("loaded_blocks")
        assert rig.serve("c", prompt(6 * BLOCK + 1)) == 3 * BLOCK  # the first three are the engine's own
        assert rig.count("loaded_blocks") - before == 3


def test_a_prefix_that_only_the_engine_has_is_stored_again_with_what_follows(folder, extra):
    """The pool lost the head: what follows it would be of no use to anybody."""
    with Rig(folder, extra) as rig:
        rig.serve("a", prompt(4 * BLOCK))
        rig.connector._names.link.space().flush()
        for i in range(2):  # the scheduler's side finds out, and with what it then gives to the worker, that one
            rig.serve(f"b{i}", prompt(2 * BLOCK, 500 + 100 * i))
            wait_for_space(rig)
        assert rig.serve("c", prompt(6 * BLOCK + 1)) == 0  # four from the engine, two computed
        rig.reset()
        assert rig.serve("d", prompt(6 * BLOCK + 1)) == 6 * BLOCK


def wait_for_space(rig, seconds=10.0):
    end = time.monotonic() + seconds
    links = [rig.connector._names.link, *(worker.connector._names.link for worker in rig.workers)]
    while any(link._space is None for link in links):
        assert time.monotonic() < end, "no namespace again"
        time.sleep(0.01)


def test_decoded_tokens_are_stored_too(folder, extra):
    with Rig(folder, extra) as rig:
        rig.serve("a", prompt(2 * BLOCK), max_tokens=2 * BLOCK)
        rig.reset()
        turn = prompt(2 * BLOCK) + rig.outputs["a"] + prompt(5)
        assert rig.serve("b", turn) == 3 * BLOCK  # the last token of the answer was never computed


def test_a_long_prompt_in_chunks(folder, extra):
    with Rig(folder, extra, batch=64) as rig:
        rig.serve("a", prompt(500))
        assert rig.steps > 8
        rig.reset()
        assert rig.serve("b", prompt(500)) == 31 * BLOCK


@pytest.mark.parametrize("load", ["sync", "async"])
def test_requests_at_once_with_one_prefix_load_it_once(folder, extra, load):
    with Rig(folder, extra | {"load": load}) as rig:
        rig.serve("a", prompt(10 * BLOCK))
        rig.reset()
        before = rig.count("loaded_blocks")
        for i in range(8):
            rig.add(f"b{i}", prompt(10 * BLOCK) + [20 + i])
        rig.run()
        assert rig.count("loaded_blocks") - before == 10
        rig.empty()


def test_preempted_requests_come_back(folder, extra):
    """Too few KV blocks for all: requests are preempted, looked up again and end right. Known failure 11."""
    for load in ("sync", "async"):
        with Rig(folder, extra | {"load": load}, num_blocks=30) as rig:
            for i in range(6):
                rig.add(f"a{i}", prompt(5 * BLOCK, 100 * i), max_tokens=3 * BLOCK)
            rig.run()
            assert sum(len(out) for out in rig.outputs.values()) == 6 * 3 * BLOCK
            rig.empty()


def test_an_abort_at_any_time_leaves_nothing(folder, extra):
    """Known failure 11: aborted before, in and after an asynchronous load; and the same prompt right afterwards."""
    from vllm.v1.request import RequestStatus

    with Rig(folder, extra | {"load": "async"}) as rig:
        rig.serve("a", prompt(10 * BLOCK))
        for steps in range(5):
            rig.reset()
            rig.add(f"b{steps}", prompt(10 * BLOCK + 1), max_tokens=8)
            for _ in range(steps):
                rig.step()
            rig.scheduler.finish_requests(f"b{steps}", RequestStatus.FINISHED_ABORTED)
            rig.add(f"c{steps}", prompt(10 * BLOCK + 1))
            rig.run()
            rig.empty()


@pytest.mark.parametrize("load, policy", [("sync", "recompute"), ("async", "recompute"), ("sync", "fail")])
def test_blocks_that_could_not_be_loaded(folder, extra, load, policy, monkeypatch):
    """Known failure 5: they are told of, computed, and what a step computed with them is not stored. What other requests of
    that step would have stored is stored later."""
    with Rig(folder, extra | {"load": load}, policy=policy) as rig:
        rig.serve("a", prompt(6 * BLOCK + 1))
        rig.reset()
        worker = rig.workers[0].connector._worker
        bad = worker._bad
        monkeypatch.setattr(worker, "_bad", lambda space, results, ids: bad(space, results, ids) | set(ids[2:4]))
        rig.add("b", prompt(6 * BLOCK) + prompt(3 * BLOCK, 300))  # two thirds known; the rest is computed in that same step
        rig.add("other", prompt(3 * BLOCK + 1, 700))
        rig.step()
        if load == "sync":
            assert rig.count("dropped_blocks", "failed_load") > 0 and not worker._puts
        rig.run()
        rig.empty()
        assert rig.count("failed_loads") == 1
        if policy == "fail":
            assert rig.outputs["b"] == []
            return
        assert len(rig.outputs["b"]) == 2
        monkeypatch.undo()
        rig.settle()
        rig.reset()
        assert rig.serve("c", prompt(6 * BLOCK) + prompt(3 * BLOCK, 300)) == 8 * BLOCK
        assert rig.serve("d", prompt(3 * BLOCK + 1, 700)) == 3 * BLOCK


@pytest.mark.parametrize("load", ["sync", "async"])
def test_blocks_that_could_not_be_loaded_and_are_shared(folder, extra, load, monkeypatch):
    """Requests that come at once with one prefix, of which blocks cannot be read, and again whenever it is tried: each ends
    with all its tokens, and what is stored afterwards is whole."""
    prompts = [prompt(6 * BLOCK) + prompt(BLOCK + 1, 200 * i) for i in (1, 2, 3, 4)]
    with Rig(folder, extra | {"load": load}) as rig:
        rig.serve("a", prompt(6 * BLOCK + 1))
        rig.reset()
        worker = rig.workers[0].connector._worker
        bad = worker._bad
        monkeypatch.setattr(worker, "_bad", lambda space, results, ids: bad(space, results, ids) | set(ids[-2:]))
        for i in range(4):
            rig.add(f"b{i}", prompts[i], max_tokens=4)
        rig.run()
        rig.empty()
        assert rig.count("failed_loads") >= 1
        assert all(len(rig.outputs[f"b{i}"]) == 4 for i in range(4))
        monkeypatch.undo()
        rig.settle()
        rig.reset()
        for i in range(4):
            assert rig.serve(f"c{i}", prompts[i]) == (BLOCK if i else 7 * BLOCK)


@pytest.mark.parametrize("groups", ["sliding", "state"])
def test_a_request_with_several_groups_fails_as_a_whole(folder, extra, groups, monkeypatch):
    """Known failure 16: block ids of several groups mean nothing to the engine, so the request is what failed."""
    with Rig(folder, extra, GROUPS[groups]) as rig:
        rig.serve("a", prompt(100))
        rig.reset()
        worker = rig.workers[0].connector._worker
        bad = worker._bad
        monkeypatch.setattr(worker, "_bad", lambda space, results, ids: bad(space, results, ids) | set(ids[:1]))
        rig.serve("b", prompt(100))
        assert rig.count("failed_loads") == 1
        rig.empty()


def test_what_was_computed_on_another_connectors_bad_blocks_goes(folder, extra):
    """In MultiConnector another connector's load may fail, which our worker does not hear of in time."""
    with Rig(folder, extra) as rig:
        rig.add("a", prompt(100), max_tokens=3)
        plan = rig.scheduler.schedule()
        requests = {"a": rig.scheduler.requests["a"]}
        tables = {"a": rig.scheduler.kv_cache_manager.get_block_ids("a")}
        output = rig.workers[0].run(plan, requests, tables)
        rig.settle()
        output.kv_connector_output.invalid_block_ids = {tables["a"][0][2]}
        rig.scheduler.update_from_output(plan, output)
        chain = rig.connector._scheduler.requests["a"].chain
        assert len(rig.connector._names.link.space().prefix(chain, hint=True)) == 0
        rig.run()
        rig.settle()
        rig.reset()
        assert rig.serve("b", prompt(100)) == 96


def test_roles(folder, extra):
    """A producer stores and does not load, a consumer loads and does not store."""
    with Rig(folder, extra, role="kv_consumer") as decode, Rig(folder, extra, role="kv_producer") as prefill:
        decode.serve("a", prompt(100))
        assert prefill.serve("a", prompt(100), max_tokens=1) == 0
        prefill.reset()
        assert prefill.serve("b", prompt(100), max_tokens=1) == 0
        decode.reset()
        assert decode.serve("b", prompt(100)) == 6 * BLOCK


def test_another_identity_is_a_miss(tmp_path, extra):
    """Known failure 2: one name, and other weights, configuration, KV type or block size. (That what is equal hits is what
    every other test shows.)"""
    weights = os.urandom(16)
    model = model_folder(tmp_path / "model", weights=weights)
    with Rig(model, extra) as rig:
        rig.serve("a", prompt(100))
    (tmp_path / "elsewhere").mkdir()
    for change in ({"weights": os.urandom(16)}, {"config": {"rope_theta": 5e5}}):
        same_name = model_folder(tmp_path / "elsewhere" / "model", **({"weights": weights} | change))
        with Rig(same_name, extra) as rig:
            assert rig.serve("a", prompt(100)) == 0
    for more in ({"revision": "of another day"}, {"epoch_file": str(tmp_path / "epoch")}):
        (tmp_path / "epoch").write_text("7\n")
        with Rig(model, extra | more) as rig:
            assert rig.serve("a", prompt(100)) == 0
    with Rig(model, extra, [full(block_size=2 * BLOCK)]) as rig:
        assert rig.serve("a", prompt(100)) == 0
    same = model_folder(tmp_path / "elsewhere" / "model", weights=weights)
    with Rig(same, extra) as rig:
        assert rig.serve("a", prompt(100)) == 6 * BLOCK  # the same model in another folder


def test_lora_and_salt(folder, extra, tmp_path):
    """Known failure 3: a LoRA whose name is another request's salt; LoRA after base; an adapter replaced in place."""
    from vllm.lora.request import LoRARequest

    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_model.safetensors").write_bytes(b"1")
    lora = LoRARequest("tenant", 1, str(adapter))
    with Rig(folder, extra) as rig:

        def again(name, hit, **fields):
            rig.reset()
            assert rig.serve(name, prompt(100), **fields) == hit, name

        again("base", 0)
        again("salt", 0, cache_salt="tenant")
        again("lora", 0, lora_request=lora)
        again("base 2", 96)
        again("salt 2", 96, cache_salt="tenant")
        again("lora 2", 96, lora_request=lora)
        (adapter / "adapter_model.safetensors").write_bytes(b"22")
        again("lora 3", 0, lora_request=lora)


def test_a_reset_of_the_connector_makes_what_was_stored_unreachable(folder, extra, tmp_path):
    """Known failure 15: after a weight update nothing of before is found, by an epoch of this engine's own."""
    with Rig(folder, extra) as rig:
        rig.serve("a", prompt(100))
        rig.reset()
        assert rig.scheduler.reset_prefix_cache(reset_connector=True)
        assert rig.serve("b", prompt(100)) == 0
        rig.reset()
        assert rig.serve("c", prompt(100)) == 96
    with Rig(folder, extra) as rig:
        assert rig.serve("a", prompt(100)) == 96  # another engine still has what it had


def test_engines_that_are_told_of_an_epoch_share_it(folder, extra, tmp_path):
    epoch = tmp_path / "epoch"
    epoch.write_text("step 1\n")
    extra = extra | {"epoch_file": str(epoch)}
    with Rig(folder, extra) as one, Rig(folder, extra) as other:
        one.serve("a", prompt(100))
        epoch.write_text("step 2\n")
        for rig in (one, other):
            assert rig.scheduler.reset_prefix_cache(reset_connector=True)
        assert one.serve("b", prompt(100)) == 0
        assert other.serve("b", prompt(100)) == 96


def test_a_reset_during_a_load_says_so(folder, extra):
    """Known failure 15: a load of old weights that is under way cannot be taken back, and the engine is told."""
    with Rig(folder, extra | {"load": "async"}) as rig:
        rig.serve("a", prompt(100))
        rig.reset()
        rig.add("b", prompt(100))
        rig.scheduler.schedule()
        assert rig.connector.reset_cache() is False


def test_unequal_hash_seeds_are_told_of(folder, extra, monkeypatch, caplog):
    """Known failure 1."""
    log = logging.getLogger("vllm.kvist")
    monkeypatch.setattr(log, "propagate", True)
    log.addHandler(caplog.handler)
    try:
        with Rig(folder, extra) as rig:
            rig.serve("a", prompt(50))
            wait_for_thread("kvist-seed")
        assert "hash seed" not in caplog.text
        monkeypatch.setenv("PYTHONHASHSEED", "1")
        with Rig(folder, extra) as rig:
            assert rig.serve("b", prompt(50)) == 0
            wait_for_thread("kvist-seed")
        assert "another hash seed" in caplog.text
    finally:
        log.removeHandler(caplog.handler)


def wait_for_thread(name):
    import threading

    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(10)


def test_a_random_hash_seed_is_told_of_at_the_start(folder, extra, monkeypatch, caplog):
    monkeypatch.delenv("PYTHONHASHSEED")
    log = logging.getLogger("vllm.kvist")
    log.addHandler(caplog.handler)
    try:
        with Rig(folder, extra, algorithm="xxhash_cbor"):
            assert "set PYTHONHASHSEED" in caplog.text
        caplog.clear()
        with Rig(folder, extra, algorithm="sha256"):
            assert "set PYTHONHASHSEED" not in caplog.text  # this version has a fixed one for it
    finally:
        log.removeHandler(caplog.handler)


def test_the_seed_is_the_engines_own(monkeypatch, folder, extra):
    """What the workers take the seed to be, without hashing anything, is what the scheduler hashes with."""
    for seed in ("0", "17"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        with Rig(folder, extra) as rig:
            assert identity.none_hash(rig.config) == identity.none_hash_in_use()


@pytest.mark.parametrize(
    "given, says",
    [
        ({"sockett": "x"}, "did you mean 'socket'"),
        ({"load": "maybe"}, "load"),
        ({"max_loads": 0}, "max_loads"),
        ({"save_deadline": "soon"}, "save_deadline"),
    ],
)
def test_wrong_settings_are_refused_at_the_start(given, says):
    with pytest.raises(ValueError, match=says):
        Settings.read(given, door="kvist.vllm")


def test_what_cannot_be_shared_runs_without(folder, extra, caplog):
    log = logging.getLogger("vllm.kvist")
    log.addHandler(caplog.handler)
    try:
        with Rig(folder, extra, [full(), mamba("none")]) as rig:
            assert "runs without the pool" in caplog.text
            assert rig.serve("a", prompt(50)) == 0
    finally:
        log.removeHandler(caplog.handler)


def test_a_synchronous_load_needs_one_group_and_one_worker(folder, extra):
    for groups, ranks in ([full(), sliding(40)], 1), ([full()], 2):
        with pytest.raises(ValueError, match="one KV group and one worker"):
            Rig(folder, extra | {"load": "sync"}, groups, ranks=ranks)


# ---- events, stats ----------------------------------------------------------------------------------------------------


def by_kind(events, medium="CPU"):
    stored = [event for event in events if type(event).__name__ == "BlockStored" and event.medium == medium]
    removed = [event for event in events if type(event).__name__ == "BlockRemoved" and event.medium == medium]
    return stored, removed


@pytest.mark.parametrize("groups, ranks", [("full", 1), ("full", 2), ("sliding", 1), ("full, twice the block", 2)])
def test_events_tell_what_is_in_the_pool(folder, extra, groups, ranks):
    """Stored blocks are announced as the engine's own are, once all ranks and groups have them; lost ones when it is
    seen."""
    with Rig(folder, extra, GROUPS[groups], ranks=ranks, events=True) as rig:
        unit = rig.connector._plan.tokens
        rig.serve("a", prompt(100), max_tokens=1)
        rig.serve("b", prompt(20, 500), max_tokens=1)  # a step later the answers are there
        stored, removed = by_kind(rig.events)
        (event,) = [one for one in stored if one.token_ids[:1] == prompt(1)]
        count = 100 // unit
        assert event.token_ids == prompt(count * unit) and event.block_size == unit and len(event.block_hashes) == count
        assert event.parent_block_hash is None and not removed
        if groups == "full":
            (own,) = [one for one in by_kind(rig.events, "GPU")[0] if one.token_ids[:1] == prompt(1)]
            assert own.block_hashes == event.block_hashes
        space = rig.connector._names.link.space()
        chain = rig.connector._scheduler._chain(
            rig.add("c", prompt(100)) and rig.connector._scheduler.requests["c"], space, 3
        )
        for part in range(len(rig.connector._plan.columns) * ranks):
            space.remove(chain[2:3], part=part)
        rig.reset()
        rig.run()
        _, removed = by_kind(rig.events)
        assert [one.block_hashes for one in removed][:1] == [event.block_hashes[2:3]]


def test_an_event_waits_for_the_last_worker(folder, extra):
    """Workers that answer in different steps; what the slower one has less of is not announced."""
    with Rig(folder, extra, ranks=2, events=True) as rig:
        events = rig.connector._events
        request = rig.add("a", prompt(100))
        number = events.planned(request, 1, 6, kvist.Digests(bytes(range(80)), 1))
        events.stored(step.Done(1, {number: (1, 5)}))
        assert events.take() == []
        events.stored(step.Done(2, {number: (1, 3), 999: (1, 1)}))
        (event,) = events.take()
        assert len(event.block_hashes) == 3 and event.token_ids == prompt(100)[BLOCK : 4 * BLOCK]
        assert event.parent_block_hash is not None and events.take() == []
        events.gone(bytes(range(16)))
        assert events.take()[0].block_hashes == event.block_hashes[:1]
        rig.run()


def test_no_event_of_what_was_not_stored(folder, extra, monkeypatch):
    with Rig(folder, extra, events=True) as rig:
        names = rig.workers[0].connector._names
        monkeypatch.setattr(names.use(names.name), "rests", lambda: True)
        rig.serve("a", prompt(100))
        rig.serve("b", prompt(100, 500))
        assert by_kind(rig.events) == ([], [])
        assert rig.count("dropped_blocks", "pause") == 12


def raiser(error):
    def call(*_, **__):
        raise error

    return call


def test_a_store_without_a_node_does_not_hold_up_the_next_one(folder, extra, monkeypatch):
    """A node that is gone costs a step nothing, so nothing is left out once it is back; one that is slow does."""
    with Rig(folder, extra) as rig:
        worker = rig.workers[0].connector._worker
        with monkeypatch.context() as gone:
            gone.setattr(worker, "_put", raiser(kvist.Unavailable("gone", kvist.Code.UNAVAILABLE)))
            rig.serve("a", prompt(100))
        rig.serve("b", prompt(100, 500))
        rig.serve("c", prompt(20, 700))  # a step later the answers are there
        assert rig.count("dropped_blocks", "unavailable") == 6 and rig.count("dropped_blocks", "pause") == 0
        assert rig.count("saved_blocks") >= 6
        with monkeypatch.context() as slow:
            slow.setattr(worker, "_put", raiser(kvist.DeadlineExceeded("slow", kvist.Code.DEADLINE_EXCEEDED)))
            rig.serve("d", prompt(100, 900))
        assert worker.names.link.rests()


def test_a_put_of_a_client_that_was_replaced_is_answered(folder, extra):
    with Rig(folder, extra, events=True) as rig:
        rig.serve("a", prompt(100))
        worker = rig.workers[0].connector._worker
        put = workers._Put(worker.names.link.space(), types.SimpleNamespace(results=[None] * 3), 77, 3, 1)
        replaced = kvist.Client(extra["socket"])
        worker._puts, worker._open, worker._client = {0: put}, {77: (1, 3)}, replaced
        worker._poll()
        assert replaced.closed, "it could go on writing into memory that is somebody else's now"
        assert worker._done[77] == (1, 0) and not worker._open and not worker._puts
        assert worker.counters._stats.data["reason"]["dropped_blocks"] == {"unanswered": 3}


def test_stats_reach_the_log_line_and_prometheus(folder, extra):
    import prometheus_client
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorLogging, KVConnectorProm

    with Rig(folder, extra) as rig:
        rig.serve("a", prompt(100))
        rig.reset()
        rig.serve("b", prompt(100))
        rig.serve("c", prompt(20, 500))
        rig.serve("d", prompt(5))  # stores nothing, and carries what was counted since
        logged = KVConnectorLogging(rig.config.kv_transfer_config)
        logged.observe(rig.stats)
        lines = []
        logged.log(lambda text, values: lines.append(text % values))
        assert "kvist hit_tokens=96" in lines[0] and "kvist load ms" in lines[0]
        registry = prometheus_client.REGISTRY
        prometheus = KVConnectorProm(rig.config, ["model_name", "engine"], {0: ["m", "0"]})
        prometheus.observe(rig.stats)
        labels = {"model_name": "m", "engine": "0"}
        assert registry.get_sample_value("kvist:hit_tokens_total", labels) == 96
        assert registry.get_sample_value("kvist:loaded_blocks_total", labels) == 6
        assert registry.get_sample_value("kvist:saved_blocks_total", labels) == 7
        nbytes = 7 * rig.connector._plan.columns[0].group.page_bytes
        assert registry.get_sample_value("kvist:saved_bytes_total", labels) == nbytes
        assert registry.get_sample_value("kvist:load_seconds_count", labels) == 1
        assert registry.get_sample_value("kvist:failed_loads_total", labels) == 0


# ---- layouts ----------------------------------------------------------------------------------------------------------


class Spec:
    def __init__(self, *layer_names):
        self.layer_names = layer_names


def block_bytes(arrays, block):
    return b"".join(bytes(array[block].numpy()) for array in arrays)


def test_a_block_is_all_of_its_bytes_in_any_layout():
    blocks, heads, size, dim = 5, 3, 4, 8
    flat = torch.arange(blocks * heads * size * dim, dtype=torch.int16)
    for order in ((0, 1, 2, 3), (0, 2, 1, 3), (1, 0, 2, 3)):
        shape = [(blocks, heads, size, dim)[d] for d in order]
        back = [order.index(d) for d in range(4)]
        tensor = flat.view(shape).permute(back)
        arrays = layout.arrays_of({"a": tensor}, Spec("a"), blocks, {})
        assert len(arrays) == (heads if order[0] == 1 else 1)
        for block in range(blocks):
            have = torch.frombuffer(bytearray(block_bytes(arrays, block)), dtype=torch.int16)
            assert sorted(have.tolist()) == sorted(tensor[block].flatten().tolist())


def test_blocks_of_all_layers_in_one_and_kernel_blocks():
    packed = torch.arange(6 * 2 * 32, dtype=torch.int32).view(6, 2, 32)  # blocks outermost, two layers in each
    arrays = layout.arrays_of({"a": packed[:, 0], "b": packed[:, 1]}, Spec("a", "b"), 6, {})
    assert block_bytes(arrays, 3) == packed[3].numpy().tobytes()
    halves = torch.arange(12 * 16, dtype=torch.int32).view(12, 16)  # the kernel's blocks are half as long
    (array,) = layout.arrays_of({"a": halves}, Spec("a"), 6, {})
    assert bytes(array[2].numpy()) == halves[4:6].numpy().tobytes()
    # a cache that two layers share is stored once; a layer of another stage is not here
    assert len(layout.arrays_of({"a": halves, "b": halves}, Spec("a", "b", "c"), 6, {})) == 1


@pytest.mark.parametrize(
    "tensor, says",
    [
        (torch.zeros(7, 2, 3), "which dimension counts blocks"),
        (torch.zeros(6), "shape"),
        (torch.zeros(1, 8).expand(6, 8), "overlap"),
        (torch.zeros(6, 1024).t().contiguous().t(), "pieces"),
        (torch.zeros(6, 1, 4).expand(6, 2, 4), "twice"),
    ],
)
def test_unknown_layouts_are_refused(tensor, says):
    with pytest.raises(layout.UnknownLayout, match=says):
        layout.arrays_of({"a": tensor}, Spec("a"), 6, {})


def test_tensors_that_lie_otherwise_than_the_engine_says(folder, extra):
    with Rig(folder, extra) as rig:
        tensors = rig.workers[0].tensors
        wrong = {name: torch.zeros(tensor.shape[0], 4096) for name, tensor in tensors.items()}
        with pytest.raises(layout.UnknownLayout, match="apart"):
            rig.workers[0].connector.register_kv_caches(wrong)


# ---- plans ------------------------------------------------------------------------------------------------------------


def test_parts_of_groups_and_ranks(folder, extra):
    rig_groups = [full(block_size=2 * BLOCK), sliding(40)]
    with Rig(folder, extra, rig_groups, ranks=2) as rig:
        made = rig.connector._plan
        assert made.tokens == 2 * BLOCK and len(made.columns) == 3
        parts = made.parts()
        assert [part.name for part in parts] == ["g0.0.r0", "g0.0.r1", "g1.0.r0", "g1.0.r1", "g1.1.r0", "g1.1.r1"]
        assert [part.need for part in parts[::2]] == ["all", "window", "window"]
        assert parts[2].window == 2  # 39 tokens before the next one: at most two positions of 32
        assert parts[0].block_bytes == parts[1].block_bytes == 2 * 2 * (2 * BLOCK) * 2 * 16 * 4
        assert made.part(2, 1) == 5


def test_runs_leave_out_null_blocks():
    group = plan.Group(0, "window", 2, 1, 0, False)
    made = plan.Plan(BLOCK, (plan.Column(group, 0),), 1, 1)
    assert made.runs(([0, 0, 5, 6],), 0, 4, load=True) == [(0, 2, [5, 6])]
    assert made.runs(([7, 0, 5, 6],), 0, 4, load=False) == [(0, 0, [7]), (0, 2, [5, 6])]
    assert made.runs(([7, 8, 5, 6],), 1, 3, load=False) == [(0, 0, [8, 5])]
    assert made.runs(([0, 0],), 0, 2, load=False) == []


def test_the_plugin_registers_the_name():
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    import kvist.vllm

    kvist.vllm.register()
    kvist.vllm.register()
    assert KVConnectorFactory.get_connector_class_by_name("KvistConnector") is kvist.vllm.KvistConnector
