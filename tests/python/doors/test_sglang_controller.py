"""kvist.sglang under SGLang's own cache controllers: their storage threads, queues and host pools, without a GPU.

What needs a GPU (copies between device and host) is left out: pages are put into the host pool by hand.

Run by `make test-engines ENGINE=sglang`.
"""

import contextlib
import itertools
import os
import queue
import signal
import threading
import types
import warnings

import pytest

import kvist
from conftest import stopped, wait_until
from sglang_rig import (  # noqa: F401
    PAGE,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    blocks_of,
    buffers_of,
    config,
    equal,
    fill,
    mamba_pool,
    mha_pool,
    mla_pool,
    pytestmark,
    torch,
    wipe,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sglang.srt import runtime_context
    from sglang.srt.managers.cache_controller import HiCacheController
    from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
    from sglang.srt.mem_cache.pool_host.group import HostPoolGroup, PoolEntry
    from sglang.srt.mem_cache.utils import get_storage_hash_str

LAYERS = 2
_names = itertools.count()


@pytest.fixture(scope="module")
def engine():
    """One rank of an engine: SGLang's arguments, its place among the ranks, and a group of it alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.ExitStack() as stack:
            stack.enter_context(runtime_context.get_context().override_server_args())
            stack.enter_context(
                runtime_context.get_parallel().override(
                    tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_dcp_rank=0, attn_dcp_size=1
                )
            )
            torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
            stack.callback(torch.distributed.destroy_process_group)
            yield torch.distributed.group.WORLD


class Device:
    """What the controllers ask the device's pool before they copy anything."""

    device, layer_num = "cpu", LAYERS

    def register_layer_transfer_counter(self, counter):
        pass


@pytest.fixture
def control(engine):
    made = []

    def controller(socket, pools, kind=HiCacheController, **extra):
        allocator = types.SimpleNamespace(get_kvcache=Device)
        host = pools if kind is HiCacheController else HostPoolGroup(
            [PoolEntry(name, pool, None, None, is_primary_index_anchor=name == PoolName.KV) for name, pool in pools.items()]
        )
        made.append(
            kind(
                allocator, host, PAGE, engine, threading.Event(), storage_backend="dynamic", prefetch_threshold=PAGE,
                io_backend="direct", model_name=extra.pop("model", f"org/controlled-{next(_names)}"),
                storage_backend_extra_config=config(socket, **extra).extra_config,
            )
        )
        return made[-1]

    yield controller
    for one in made:
        one.detach_storage_backend()


def tokens(pages, first=1):
    return list(range(first, first + pages * PAGE))


def hashes_of(ids):
    return get_storage_hash_str(ids, None, page_size=PAGE)


def host_pool(pages, layout="page_first"):
    """A host pool of so many pages, each filled."""
    pool = mha_pool(layout, layers=LAYERS, heads=1, tokens=pages * PAGE)
    fill(pool, 1)
    return pool


def backed_up(controller, pool, ids, first=0):
    """Writes a sequence to storage from page `first` on, as the tree does: (indices in the host pool, tokens written)."""
    keys = hashes_of(ids)
    indices = pool.alloc((len(keys) - first) * PAGE)
    controller.write_storage(indices, ids[first * PAGE :], hash_value=keys[first:], prefix_keys=keys[:first])
    done = controller.ack_backup_queue.get(timeout=60)
    return indices, done.completed_tokens


def prefetched(controller, pool, ids, between=None):
    """Asks storage for a sequence and reads what is there, as the scheduler does: (tokens hit, tokens read, indices)."""
    operation = controller.prefetch("request", ids, None, [])
    hit = controller.prefetch_hit_queue.get(timeout=60)
    assert hit is operation
    if between:
        between()
    operation.host_indices = pool.alloc(hit.storage_hit_count)
    controller.prefetch_buffer.put(operation)
    read = 0
    while True:
        told = controller.ack_prefetch_queue.get(timeout=60)
        if told.completed_req:
            return hit.storage_hit_count, read, operation.host_indices
        if told.completed_tokens is not None:
            read = told.completed_tokens


@pytest.mark.parametrize("interface_v1", [1, 0])
@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct", "page_head"])
def test_pages_go_out_and_come_back(node, control, layout, interface_v1):
    pool = host_pool(420, layout)
    controller = control(node.socket, pool, interface_v1=interface_v1)
    indices, written = backed_up(controller, pool, tokens(200))
    assert written == 200 * PAGE
    pages = [pool.get_data_page(int(indices[i * PAGE])).clone() for i in range(200)]
    pool.free(indices)
    wipe(pool)
    hit, read, indices = prefetched(controller, pool, tokens(210))
    assert (hit, read) == (200 * PAGE, 200 * PAGE)
    for i in range(200):
        assert equal(pool.get_data_page(int(indices[i * PAGE])), pages[i])
    assert prefetched(controller, pool, tokens(4, first=7))[:2] == (0, 0)
    assert controller.storage_backend.counts == {}


def test_a_conversation_grows(node, control):
    """Each turn is backed up behind what is stored; the next engine reads all of it."""
    pool = host_pool(200)
    controller = control(node.socket, pool, model="org/grows")
    ids = tokens(30)
    for first, last in ((0, 10), (10, 13), (13, 30)):
        assert backed_up(controller, pool, ids[: last * PAGE], first)[1] == (last - first) * PAGE
    other = control(node.socket, host_pool(40), model="org/grows")
    hit, read, _ = prefetched(other, other.mem_pool_host, ids)
    assert hit == read == 30 * PAGE
    with blocks_of(node, controller.storage_backend) as (space, listed):
        assert [listed[digest].depth for digest in space.digests(hashes_of(ids))] == list(range(30)), "one chain"


def test_a_node_that_goes_between_hit_and_read(tmp_path, control):
    """Known failures 9, 16: nothing waits for ever, every request is answered, and the node that comes back is used."""
    path = tmp_path / "k.sock"
    pool = host_pool(200)
    ids = tokens(40)
    with kvist.Node(memory="64MiB", admin=None, socket=path) as node:
        controller = control(path, pool, deadline="250ms")
        assert backed_up(controller, pool, ids)[1] == 40 * PAGE

        def kill():
            os.kill(node.pid, signal.SIGKILL)
            wait_until(lambda: controller.storage_backend.state != "connected", "its end is seen")

        assert prefetched(controller, pool, ids, between=kill)[:2] == (40 * PAGE, 0)
        assert prefetched(controller, pool, ids)[:2] == (0, 0)
        assert backed_up(controller, pool, ids)[1] == 0
    with kvist.Node(memory="64MiB", admin=None, socket=path):
        wait_until(lambda: backed_up(controller, pool, ids[: 2 * PAGE])[1] == 2 * PAGE, "the new node is used")
        assert prefetched(controller, pool, ids)[:2] == (2 * PAGE, 2 * PAGE)


def test_pages_lost_between_hit_and_read_shorten_it(node, control):
    pool = host_pool(200)
    controller = control(node.socket, pool)
    ids = tokens(40)
    backed_up(controller, pool, ids)

    def lose():
        with blocks_of(node, controller.storage_backend) as (space, _):
            space.remove(space.digests(hashes_of(ids)[23:24]))

    assert prefetched(controller, pool, ids, between=lose)[:2] == (40 * PAGE, 23 * PAGE)
    assert prefetched(controller, pool, ids)[:2] == (23 * PAGE, 23 * PAGE)


def test_a_prefetch_that_is_ended_leaks_nothing(node, control):
    """best_effort and timeout end a prefetch between its batches; then all host memory and every pin is free again."""
    pool = host_pool(700)
    controller = control(node.socket, pool)
    free = pool.available_size()
    ids = tokens(300)
    indices, written = backed_up(controller, pool, ids)
    assert written == 300 * PAGE
    pool.free(indices)

    backend, get = controller.storage_backend, controller.storage_backend.batch_get_v1
    slow = threading.Event()

    def first_then_wait(*arguments):
        done = get(*arguments)
        slow.wait(60)  # until the scheduler has ended the prefetch
        return done

    backend.batch_get_v1 = first_then_wait
    operation = controller.prefetch("request", ids, None, [])
    controller.prefetch_hit_queue.get(timeout=60)
    operation.host_indices = pool.alloc(300 * PAGE)
    controller.prefetch_buffer.put(operation)
    controller.terminate_prefetch(operation)
    slow.set()
    told = [controller.ack_prefetch_queue.get(timeout=60) for _ in range(4)]
    assert told[-1].completed_req and [one.completed_tokens for one in told[:3]] in ([0] * 3, [128 * PAGE] * 3)
    pool.free(operation.host_indices)
    assert pool.available_size() == free and backend._open.link.client.pinned_blocks == 0
    with pytest.raises(queue.Empty):
        controller.ack_prefetch_queue.get_nowait()


def test_misses_answer_while_the_node_stands_still(tmp_path, control):
    """Known failure 20: 100 % misses."""
    pool = host_pool(64)
    with kvist.Node(memory="64MiB", admin=None, socket=tmp_path / "k.sock") as node:
        controller = control(tmp_path / "k.sock", pool)
        with stopped(node):
            for i in range(200):
                assert prefetched(controller, pool, tokens(20, first=1000 * i + 1))[:2] == (0, 0)
        assert controller.storage_backend.counts == {}


def test_detach_and_attach_with_other_settings(node, control):
    pool = host_pool(64)
    controller = control(node.socket, pool, model="org/attached")
    ids = tokens(4)
    indices, _ = backed_up(controller, pool, ids)
    controller.detach_storage_backend()
    wrong = config(node.socket, dedline="1s").extra_config
    with pytest.raises(ValueError, match="did you mean 'deadline'"):
        controller.attach_storage_backend("dynamic", PAGE, "org/attached", wrong)
    assert not controller.enable_storage
    controller.attach_storage_backend("dynamic", PAGE, "org/attached", config(node.socket).extra_config)
    assert prefetched(controller, pool, ids)[:2] == (4 * PAGE, 4 * PAGE)
    controller.detach_storage_backend()
    controller.attach_storage_backend("dynamic", PAGE, "org/attached", config(node.socket, weights_epoch="2").extra_config)
    assert prefetched(controller, pool, ids)[:2] == (0, 0)


def hybrid(control, socket, **extra):
    pools = {PoolName.KV: mha_pool(layers=LAYERS, heads=1, tokens=80 * PAGE), PoolName.MAMBA: mamba_pool(slots=80),
             PoolName.INDEXER: mla_pool(layers=1, tokens=80 * PAGE)}
    for seed, pool in enumerate(pools.values()):
        fill(pool, seed)
    return pools, control(socket, pools, HybridCacheController, **extra)


def transfers(pools, keys, with_indices=True):
    """A state at the end, and an indexer page beside each KV page, as SGLang's trees ask for them."""
    return [
        PoolTransfer(
            name=PoolName.MAMBA, host_indices=pools[PoolName.MAMBA].alloc(1) if with_indices else None, keys=keys[-1:],
            hit_policy=PoolHitPolicy.TRAILING_PAGES,
        ),
        PoolTransfer(name=PoolName.INDEXER, indices_from_pool=PoolName.KV),
    ]


def hybrid_prefetch(controller, pools, ids, between=None):
    """(tokens hit, tokens read, hits of the other pools, the operation)"""
    keys = hashes_of(ids)
    operation = controller.prefetch(types.SimpleNamespace(rid="request"), ids, None, [], extra_pools=transfers(pools, keys))
    hit = controller.prefetch_hit_queue.get(timeout=60)
    if between:
        between()
    operation.host_indices = pools[PoolName.KV].alloc(hit.storage_hit_count)
    controller.prefetch_buffer.put(operation)
    read, others = 0, {}
    while True:
        told = controller.ack_prefetch_queue.get(timeout=60)
        if told.completed_req:
            return hit.storage_hit_count, read, others, operation
        if told.completed_tokens is not None:
            read = told.completed_tokens
        if told.pool_hits is not None:
            others = {str(name): pages for name, pages in told.pool_hits.items() if pages}


def test_several_pools_go_out_and_come_back_together(node, control):
    """Known failure 17, in SGLang's own words: the hit is what all pools have, at the hit and at the read."""
    pools, controller = hybrid(control, node.socket)
    ids = tokens(12)
    keys = hashes_of(ids)
    indices = pools[PoolName.KV].alloc(12 * PAGE)
    out = transfers(pools, keys)
    state = int(out[0].host_indices[0])
    controller.write_storage(indices, ids, hash_value=keys, prefix_keys=[], extra_pools=out)
    assert controller.ack_backup_queue.get(timeout=60).completed_tokens == 12 * PAGE
    kept = {name: [buffer.clone() for buffer in buffers_of(pool)] for name, pool in pools.items()}
    for pool in pools.values():
        wipe(pool)
    hit, read, others, operation = hybrid_prefetch(controller, pools, tokens(12))
    assert (hit, read, others) == (12 * PAGE, 12 * PAGE, {"mamba": 1})
    came = operation.host_indices
    for name, axis in ((PoolName.KV, 1), (PoolName.INDEXER, 0)):
        assert equal(buffers_of(pools[name])[0].index_select(axis, came), kept[name][0].index_select(axis, indices))
    at = int(operation.pool_transfers[0].host_indices[0])
    for read_back, original in zip(buffers_of(pools[PoolName.MAMBA]), kept[PoolName.MAMBA], strict=True):
        assert equal(read_back[at], original[state])

    def lose():
        with blocks_of(node, controller.storage_backend) as (space, _):
            space.remove(space.digests(keys[5:6]), part="indexer.tp0")

    hit, read, others, _ = hybrid_prefetch(controller, pools, ids, between=lose)
    assert (hit, read, others) == (12 * PAGE, 5 * PAGE, {}), "the state of page 11 is not read to KV that ends at page 5"
    assert hybrid_prefetch(controller, pools, ids)[:2] == (0, 0), "there is no state at page 5"
    assert controller.storage_backend.counts == {}


RANK = """
import sys, threading, types, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[4])
from sglang_pools import PAGE, config, fill, mha_pool, torch
from sglang.srt import runtime_context
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.utils import get_storage_hash_str

rank, socket, store = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.distributed.init_process_group("gloo", store=torch.distributed.FileStore(store, 2), rank=rank, world_size=2)
runtime_context.get_context().override_server_args().install()
place = dict(tp_rank=rank, tp_size=2, attn_tp_size=2, moe_tp_size=2, pp_rank=0, pp_size=1, attn_dcp_rank=0, attn_dcp_size=1)
with runtime_context.get_parallel().override(**place):
    class Device:
        device, layer_num = "cpu", 2

        def register_layer_transfer_counter(self, counter):
            pass

    pool = mha_pool(layers=2, heads=1, tokens=100 * PAGE)
    fill(pool, rank)
    controller = HiCacheController(
        types.SimpleNamespace(get_kvcache=Device), pool, PAGE, torch.distributed.group.WORLD, threading.Event(),
        storage_backend="dynamic", prefetch_threshold=PAGE, io_backend="direct", model_name="org/two-ranks",
        storage_backend_extra_config=config(socket).extra_config,
    )
    ids = list(range(1, 1 + 40 * PAGE))
    keys = get_storage_hash_str(ids, None, page_size=PAGE)
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "write":
            indices = pool.alloc(40 * PAGE)
            controller.write_storage(indices, ids, hash_value=keys, prefix_keys=[])
            print("wrote", controller.ack_backup_queue.get(timeout=240).completed_tokens // PAGE, flush=True)
            pool.free(indices)
        elif line.strip() == "ask":
            operation = controller.prefetch("request", ids, None, [])
            controller.prefetch_hit_queue.get(timeout=240)
            print("hit", operation.storage_hit_count // PAGE, flush=True)
        elif line.strip() == "lose":
            space = controller.storage_backend._open.space()
            print("lost", space.remove(space.digests(keys[23:24]), part=f"kv.tp{rank}").done, flush=True)
        else:
            operation.host_indices = pool.alloc(operation.storage_hit_count)
            controller.prefetch_buffer.put(operation)
            read = 0
            while not (told := controller.ack_prefetch_queue.get(timeout=240)).completed_req:
                read = told.completed_tokens if told.completed_tokens is not None else read
            print("read", read // PAGE, flush=True)
            pool.free(operation.host_indices)
    controller.detach_storage_backend()
"""


@pytest.mark.slow
def test_two_ranks_agree_whatever_each_of_them_finds(node, program, tmp_path):
    """Known failure 21, with two processes and SGLang's own reduction: no rank goes on with another length."""
    doors = os.path.dirname(os.path.abspath(__file__))
    ranks = [program(RANK, rank, node.socket, tmp_path / "store", doors) for rank in range(2)]

    def both(word):
        for rank in ranks:
            rank.say(word)
        return [rank.line() for rank in ranks]

    assert [rank.line() for rank in ranks] == ["ready"] * 2
    ranks[0].say("write")
    assert ranks[0].line() == "wrote 40"
    assert both("ask") == ["hit 0", "hit 0"], "only one rank's parts are there"
    assert both("read") == ["read 0", "read 0"]
    ranks[1].say("write")
    assert ranks[1].line() == "wrote 40"
    assert both("ask") == ["hit 40", "hit 40"]
    ranks[1].say("lose")
    assert ranks[1].line() == "lost 1"
    assert both("read") == ["read 23", "read 23"]
    assert both("ask") == ["hit 23", "hit 23"]
    for rank in ranks:
        assert rank.finish() == (0, "")
