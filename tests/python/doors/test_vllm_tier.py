"""Kvist behind vLLM's OffloadingConnector: the tier by itself, on vLLM's own classes, and on real engines."""

import importlib.util
import itertools
import os
import random
import signal
import types

import pytest
from conftest import wait_until

import kvist

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed here: `make test-engines ENGINE=vllm` runs this", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("default")  # vLLM's own are not ours to mend

ROW, CHUNKS, CHUNK_TOKENS = 8192, 64, 32
_jobs, _requests = itertools.count(), itertools.count()


@pytest.fixture
def node():
    """One that a test may kill."""
    with kvist.Node(memory="64MiB", admin=None, block_bytes=ROW) as running:
        yield running


@pytest.fixture
def make_tier():
    """make(socket, **settings) -> (tier, its primary tier as a numpy array)."""
    import numpy

    from kvist.vllm import tier as door
    from vllm.v1.kv_offload import config

    made = []

    def make(socket, model="some/model", groups=1, **settings):
        offloading = config.OffloadingConfig(
            groups=tuple(config.OffloadingGroupConfig(CHUNK_TOKENS, (f"layer.{i}",), i) for i in range(groups)),
            worker_kv_bytes_per_block=ROW,
            enable_kv_cache_events=False,
            extra_config={},
            engine_id="test",
            model=config.OffloadingModelConfig(model, "float32"),
            cache=config.OffloadingCacheConfig(CHUNK_TOKENS, 1),
            parallel=config.OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, False),
            kv_cache_layout="LBHNC",
        )
        memory = numpy.zeros((CHUNKS, ROW), dtype=numpy.int8)
        spec = types.SimpleNamespace(config=offloading, blocks_per_chunk=1)
        settings.setdefault("deadline", "500ms")
        made.append(door.KvistTier(spec, memoryview(memory), "KvistTier", socket=socket, **settings))
        return made[-1], memory

    yield make
    for one in made:
        one.shutdown()


def keys(count, first=0, group=0):
    from vllm.v1.kv_offload.base import make_offload_key

    return [make_offload_key(b"%032d" % i, group) for i in range(first, first + count)]


def request(*chains):
    """A request whose chunks are those keys, one chain of them a group."""
    from vllm.v1.kv_offload.base import ReqContext

    context = ReqContext(f"request-{next(_requests)}")
    for chain in chains:
        for i, key in enumerate(chain):
            context.set_offload_key_position(key, (i + 1) * CHUNK_TOKENS)
    return context


def job(names, chunks, context, load=False):
    import numpy
    from vllm.v1.kv_offload.tiering.base import TransferJob

    return TransferJob(next(_jobs), names, numpy.array(chunks, dtype=numpy.int32), load, context)


def finish(tier, *submitted):
    """Their results, each exactly once."""
    found = {}

    def all_are_there():
        for result in tier.get_finished_jobs():
            assert result.job_id not in found
            found[result.job_id] = result
        return len(found) == len(submitted)

    wait_until(all_are_there, "the jobs are finished")
    return [found[one.job_id] for one in submitted]


def store(tier, names, chunks, context):
    submitted = job(names, chunks, context)
    tier.submit_store(submitted)
    return finish(tier, submitted)[0]


def load(tier, names, chunks, context):
    submitted = job(names, chunks, context, load=True)
    tier.submit_load(submitted)
    return finish(tier, submitted)[0]


def fill(memory, chunks):
    for chunk in chunks:
        memory[chunk] = chunk + 1


def hits(tier, names, context):
    from vllm.v1.kv_offload.base import LookupResult

    found = [tier.lookup(name, context) for name in names]
    assert LookupResult.RETRY not in found and LookupResult.HIT_PENDING not in found
    return [one is LookupResult.HIT for one in found]


def test_what_one_engine_stored_another_loads(node, make_tier):
    first, memory = make_tier(node.socket)
    names, context = keys(5), request(keys(5))
    assert hits(first, names, context) == [False] * 5
    fill(memory, range(10, 15))
    result = store(first, names, [10, 11, 12, 13, 14], context)
    assert result.success and result.transfer_bytes == 5 * ROW and result.transfer_time > 0

    second, other = make_tier(node.socket)
    assert hits(second, names, context) == [True] * 5
    result = load(second, names[1:4], [60, 3, 9], context)
    assert result.success and result.successful_keys is None
    assert [int(other[i][0]) for i in (60, 3, 9)] == [12, 13, 14]
    assert (other[[60, 3, 9]] == memory[[11, 12, 13]]).all() and not other[:3].any()


def test_another_model_revision_or_epoch_shares_nothing(node, make_tier):
    tier, memory = make_tier(node.socket)
    fill(memory, range(2))
    assert store(tier, keys(2), [0, 1], request(keys(2))).success
    for different in ({"model": "another/model"}, {"revision": "2"}, {"weights_epoch": "1"}):
        other, _ = make_tier(node.socket, **different)
        assert hits(other, keys(2), request(keys(2))) == [False, False], different
    assert hits(make_tier(node.socket)[0], keys(2), request(keys(2))) == [True, True]


def test_folders_of_one_name_with_other_weights_share_nothing(node, make_tier, tmp_path):
    folders = [tmp_path / str(i) / "model" for i in range(3)]
    for folder, weights in zip(folders, (b"a", b"a", b"b")):
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(weights)
    tier, memory = make_tier(node.socket, model=str(folders[0]))
    assert store(tier, keys(1), [0], request(keys(1))).success
    assert hits(make_tier(node.socket, model=str(folders[1]))[0], keys(1), request(keys(1))) == [True]
    assert hits(make_tier(node.socket, model=str(folders[2]))[0], keys(1), request(keys(1))) == [False]


def test_a_load_of_which_a_part_is_gone_keeps_the_rest_and_is_a_miss_for_a_while(node, make_tier):
    """Case 5: what was promised and is gone costs its own blocks only, and the request does not ask for it for ever."""
    tier, memory = make_tier(node.socket)
    names, context = keys(4), request(keys(4))
    fill(memory, range(4))
    assert store(tier, names, range(4), context).success
    with node.client() as client:
        space = client.open(tier._link.identity)
        assert space.remove(space.digests(names[2:3])).ok
    result = load(tier, names, [40, 41, 42, 43], context)
    assert not result.success and set(result.successful_keys) == {names[0], names[1], names[3]}
    assert [int(memory[i][0]) for i in (40, 41, 43)] == [1, 2, 4]
    assert store(tier, names[2:3], [2], context).success
    assert hits(tier, names, context) == [True, True, False, True]  # not asked for again so soon
    assert hits(make_tier(node.socket)[0], names, context) == [True] * 4


def test_chunks_of_a_request_make_one_chain_over_several_jobs(node, make_tier):
    tier, memory = make_tier(node.socket)
    names = keys(6)
    context = request(names)
    # In any order within a job, and the next job goes on where the last one ended.
    assert store(tier, [names[2], names[0], names[1]], [2, 0, 1], context).success
    assert store(tier, names[3:], [3, 4, 5], context).success
    with node.client() as client:
        space = client.open(tier._link.identity)
        assert len(space.prefix(space.digests(names), hint=True)) == 6
        listed, _ = space.list()
        depths = {entry.position: entry.depth for entry in listed}
        assert [depths[space.digests(names)[i]] for i in range(6)] == list(range(6))
    tier.on_request_finished(context)
    assert not tier._seen


def test_groups_do_not_share_names(node, make_tier):
    tier, memory = make_tier(node.socket, groups=2)
    context = request(keys(2, group=0), keys(2, group=1))
    fill(memory, range(3))
    assert store(tier, keys(2, group=0) + keys(1, group=1), [0, 1, 2], context).success
    assert hits(tier, keys(2, group=0) + keys(2, group=1), context) == [True, True, True, False]
    assert load(tier, keys(1, group=1), [50], context).success and int(memory[50][0]) == 3


def test_without_a_node_all_is_a_miss_and_each_job_ends(tmp_path, make_tier):
    """Case 11: no node at the start."""
    socket = str(tmp_path / "node.sock")
    tier, memory = make_tier(socket)
    names, context = keys(2), request(keys(2))
    assert hits(tier, names, context) == [False, False]
    assert not store(tier, names, [0, 1], context).success
    result = load(tier, names, [2, 3], context)
    assert not result.success and result.successful_keys is None
    stats = tier.get_stats()
    assert stats is not None and not stats.is_empty()
    assert tier.get_stats() is None
    with kvist.Node(memory="64MiB", admin=None, socket=socket, block_bytes=ROW):
        wait_until(lambda: store(tier, names, [0, 1], context).success, "it has found the node")
        wait_until(lambda: hits(tier, names, context) == [True, True], "and what failed is asked for again", 30)


def test_a_node_that_is_killed_costs_misses_and_its_successor_is_used(tmp_path, make_tier):
    socket = str(tmp_path / "node.sock")
    names, context = keys(3), request(keys(3))
    with kvist.Node(memory="64MiB", admin=None, socket=socket, block_bytes=ROW) as node:
        tier, memory = make_tier(socket)
        fill(memory, range(3))
        assert store(tier, names, range(3), context).success
        os.kill(node.pid, signal.SIGKILL)
        wait_until(lambda: not node.running, "it is gone")
    jobs = [job(names, [0, 1, 2], context) for _ in range(3)] + [job(keys(2, 50), [5, 6], context, load=True)]
    for one in jobs:
        (tier.submit_load if one.is_promotion else tier.submit_store)(one)
    assert not any(result.success for result in finish(tier, *jobs))
    with kvist.Node(memory="64MiB", admin=None, socket=socket, block_bytes=ROW):
        wait_until(lambda: store(tier, names, range(3), context).success, "the successor is used")
        assert hits(tier, names, context) == [True] * 3


def test_a_stopped_node_lets_jobs_end_by_their_deadline_and_nothing_waits_for_them(node, make_tier):
    """Case 13: what waits is given up by drain_jobs(), what runs ends by its deadline, each job is told once."""
    tier, memory = make_tier(node.socket, deadline="300ms")
    context = request(keys(40))
    os.kill(node.pid, signal.SIGSTOP)
    try:
        jobs = [job(keys(1, i), [i], context) for i in range(40)]
        for one in jobs:
            tier.submit_store(one)
        wait_until(lambda: tier._stores._running, "the first is under way")
        assert tier._stores._waiting  # so the calls did not wait for them
        tier.drain_jobs()
        assert not tier._stores._waiting and not tier._stores._running
        assert not all(result.success for result in finish(tier, *jobs))
    finally:
        os.kill(node.pid, signal.SIGCONT)
    wait_until(lambda: store(tier, keys(1, 99), [0], context).success, "it stores again")


def test_too_many_jobs_are_refused_not_kept(node, make_tier):
    tier, memory = make_tier(node.socket, deadline="300ms")
    context = request(keys(1))
    os.kill(node.pid, signal.SIGSTOP)
    try:
        jobs = [job(keys(1), [0], context) for _ in range(400)]
        for one in jobs:
            tier.submit_store(one)
        assert tier._link.counts.get("queue_full", 0) >= 400 - 256 - 2
    finally:
        os.kill(node.pid, signal.SIGCONT)
    finish(tier, *jobs)


def test_after_shutdown_the_memory_is_free(node, make_tier):
    tier, memory = make_tier(node.socket)
    assert store(tier, keys(1), [0], request(keys(1))).success
    tier.shutdown()
    tier._primary_kv_view.release()  # BufferError if something still looks at it
    late = job(keys(1), [0], request(keys(1)))
    tier.submit_store(late)
    assert not finish(tier, late)[0].success


@pytest.mark.parametrize(
    "settings, text",
    [({"sokcet": "/x"}, "did you mean 'socket'"), ({"deadline": "soon"}, "deadline"), ({"revision": 3}, "revision")],
)
def test_a_wrong_setting_is_named(tmp_path, make_tier, settings, text):
    with pytest.raises(ValueError, match=text):
        make_tier(**{"socket": str(tmp_path / "none"), **settings})


# ---- real engines ---------------------------------------------------------------------------------------------------


def transfer(socket, **settings):
    tier = {"type": "KvistTier", "module_path": "kvist.vllm.tier", "socket": socket, **settings}
    extra = {
        "spec_name": "KvistOffloadingSpec",
        "spec_module_path": "kvist.vllm.tier",
        "cpu_bytes_to_use": 64 << 20,
        "secondary_tiers": [tier],
    }
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


def prompts(seed):
    from vllm_engines import VOCABULARY

    rng = random.Random(seed)

    def words(count):
        return [rng.randrange(10, VOCABULARY - 10) for _ in range(count)]

    head = words(400)
    return [head + words(45 + 7 * i) for i in range(4)]


def tier_bytes(engine, direction):
    values = engine.metrics().get(f"vllm:kv_offload_tiering_{direction}_bytes_total", {})
    return sum(value for labels, value in values.items() if "KvistTier" in labels)


@pytest.mark.parametrize(
    "in_process, chunk", [(True, 1), pytest.param(True, 2, marks=pytest.mark.slow), pytest.param(False, 1, marks=pytest.mark.slow)]
)
def test_a_second_engine_answers_from_what_the_first_one_stored(tmp_path, tmp_path_factory, node, in_process, chunk):
    """Unpatched vLLM: both directions are used, and the tokens are those of an engine without any connector."""
    from vllm_engines import Engine, tiny_model

    model = tiny_model(tmp_path_factory.getbasetemp() / "tiny")
    asked = prompts(seed=11)
    with Engine(model, tmp_path / "plain.log") as plain:
        expected = [one["tokens"] for one in plain.generate(asked, 24)]
    config = transfer(node.socket)
    config["kv_connector_extra_config"]["blocks_per_chunk"] = chunk
    with Engine(model, tmp_path / "first.log", config, in_process=in_process) as first:
        assert [one["tokens"] for one in first.generate(asked, 24)] == expected
        with node.client() as client:
            wait_until(lambda: client.report()["blocks"] >= 12 // chunk, "the shared prefix is stored")
        first.generate([asked[0][:20]], 2)  # the engine hears of what was finished since
        assert tier_bytes(first, "write") > 0
    with Engine(model, tmp_path / "second.log", config, in_process=in_process) as second:
        answers = second.generate(asked, 24)
        assert [one["tokens"] for one in answers] == expected
        # All full chunks of the shared prefix at least; the first prompt of a fresh engine has them from nowhere else.
        assert answers[0]["cached"] >= 400 // (32 * chunk) * 32 * chunk
        assert tier_bytes(second, "read") > 0
