"""An engine of vLLM's own parts without a model: its scheduler, its KV cache manager, our connector on both sides, KV
tensors in memory, and a stand-in for the kernels that writes for each token a value which only its whole prefix gives,
and which reads what it builds on before it does. A block that was never filled, or filled with another prefix's, is
noticed at once.
"""

import hashlib
import json
import pickle
import time

import torch
from kvist.vllm import stats
from kvist.vllm import worker as worker_module
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVEventsConfig,
    KVTransferConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash, resolve_kv_cache_block_sizes
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    MambaSpec,
    SlidingWindowSpec,
    compute_layer_kv_cache_shape_bytes,
)
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

stats.EVERY = worker_module._ASK = 1  # so that a test need not wait for it
BLOCK = 16
_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "vocab_size": 1024,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def model_folder(path, **changes):
    """A model's configuration, with something that stands for weights."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(dict(_LLAMA, **changes.pop("config", {}))))
    (path / "model.safetensors").write_bytes(changes.pop("weights", b"weights"))
    assert not changes
    return path


def full(layers=2, **fields):
    return [f"full.{i}" for i in range(layers)], FullAttentionSpec(
        block_size=fields.pop("block_size", BLOCK), num_kv_heads=2, head_size=16, dtype=torch.float32, **fields
    )


def sliding(window, layers=2):
    return [f"sliding.{i}" for i in range(layers)], SlidingWindowSpec(
        block_size=BLOCK, num_kv_heads=2, head_size=16, dtype=torch.float32, sliding_window=window
    )


def mamba(mode="all", layers=1, block_size=BLOCK):
    return [f"mamba.{i}" for i in range(layers)], MambaSpec(
        block_size=block_size, shapes=((2, 64), (2, 960)), dtypes=(torch.float32, torch.float32), mamba_cache_mode=mode
    )


def cache_config(groups, num_blocks):
    """Groups of one page size lie over each other, as vLLM places them: a block belongs to one at a time."""
    tensors, offset, last = [], 0, 0
    for layers, spec in groups:
        page = spec.page_size_bytes
        size = page * num_blocks * len(layers)
        if last not in (0, page):
            offset += tensors[-1].size
        last = page
        tensors.append(KVCacheTensor(size, layers, page * num_blocks, page, offset))
    return KVCacheConfig(num_blocks, tensors, [KVCacheGroupSpec(layers, spec) for layers, spec in groups])


class Rig:
    """folder: of the model; groups: from full(), sliding(), mamba(). ranks: workers. Everything else as vLLM has it."""

    def __init__(
        self, folder, extra, groups=None, *, num_blocks=200, ranks=1, role="kv_both", policy="recompute", **options
    ):
        groups = groups or [full()]
        options.setdefault("block_size", min(spec.block_size for _, spec in groups))
        self.config = vllm_config(folder, extra, role=role, policy=policy, ranks=ranks, num_blocks=num_blocks, **options)
        self.kv = cache_config(groups, num_blocks)
        block_size, hash_block_size = resolve_kv_cache_block_sizes(self.kv, self.config)
        self.kv.hash_block_size = hash_block_size
        init_none_hash(sha256_cbor)
        self.hasher = get_request_block_hasher(hash_block_size, sha256_cbor)
        self.workers = []
        for rank in range(ranks):
            config = vllm_config(folder, extra, role=role, policy=policy, ranks=ranks, num_blocks=num_blocks, **options)
            config.parallel_config.rank = rank
            self.workers.append(Worker(config, self.kv, rank))
        self.aggregator = KVOutputAggregator(ranks)
        self.scheduler = Scheduler(
            vllm_config=self.config,
            kv_cache_config=self.kv,
            structured_output_manager=StructuredOutputManager(self.config),
            block_size=block_size,
            hash_block_size=hash_block_size,
            log_stats=True,
        )
        self.connector = self.scheduler.connector
        self.outputs = {}
        self.events = []  # as published
        self.scheduler.kv_event_publisher.publish = lambda batch: self.events.extend(batch.events)
        self.stats = None
        self.steps = 0

    def add(self, name, tokens, max_tokens=2, **fields):
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=0)
        params.update_from_generation_config({}, eos_token_id=2)
        request = Request(name, list(tokens), params, None, block_hasher=self.hasher, **fields)
        self.scheduler.add_request(request)
        self.outputs[name] = []
        return request

    def step(self):
        """One step of the engine. Returns what the scheduler planned."""
        self.steps += 1
        plan = self.scheduler.schedule()
        plan.kv_connector_metadata = pickle.loads(pickle.dumps(plan.kv_connector_metadata))  # as another process gets it
        requests = {name: self.scheduler.requests[name] for name in plan.num_scheduled_tokens}
        tables = {name: self.scheduler.kv_cache_manager.get_block_ids(name) for name in requests}
        outputs = [worker.run(plan, requests, tables) for worker in self.workers]
        output = self.aggregator.aggregate(outputs) if len(outputs) > 1 else outputs[0]
        if output.kv_connector_output is not None and output.kv_connector_output.is_empty():
            output.kv_connector_output = None  # vLLM drops it where there is no forward
        for core in self.scheduler.update_from_output(plan, output).values():
            for one in core.outputs:
                self.outputs.setdefault(one.request_id, []).extend(one.new_token_ids)
            if core.scheduler_stats is not None and core.scheduler_stats.kv_connector_stats:
                self.stats = self.connector.build_kv_connector_stats(self.stats or None)
                data = self.connector.build_kv_connector_stats(core.scheduler_stats.kv_connector_stats)
                self.stats = self.stats.aggregate(data).data
        return plan

    def run(self, seconds=60.0):
        """Until nothing is left to do."""
        end = time.monotonic() + seconds
        while self.scheduler.has_requests():
            assert time.monotonic() < end, f"not done after {seconds} s: {list(self.scheduler.requests)}"
            self.step()

    def serve(self, name, tokens, max_tokens=2, **fields):
        """One request by itself. Returns how many of its tokens came from the pool."""
        before = self.count("hit_tokens")
        self.add(name, tokens, max_tokens, **fields)
        self.run()
        assert len(self.outputs[name]) == max_tokens
        self.settle()
        return self.count("hit_tokens") - before

    def settle(self, seconds=10.0):
        """Until the node has answered to all stores."""
        end = time.monotonic() + seconds
        for worker in self.workers:
            while worker.connector._worker is not None and worker.connector._worker._puts:
                assert time.monotonic() < end, "no answer to a store"
                time.sleep(0.001)
                worker.connector._worker._poll()

    def count(self, name, reason=None):
        """What the connector has counted so far."""
        if reason is not None:
            return (self.stats or {}).get("reason", {}).get(name, {}).get(reason, 0)
        return (self.stats or {}).get("count", {}).get(name, 0)

    def reset(self):
        assert self.scheduler.reset_prefix_cache(), "blocks are still in use"

    def empty(self):
        """Nothing of a request is left anywhere."""
        scheduler = self.scheduler
        assert (
            not scheduler.requests and not scheduler.running and not scheduler.waiting and not scheduler.kv_holding_waiting
        )
        assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == self.kv.num_blocks - 1
        ours = self.connector._scheduler
        if ours is not None:
            assert not ours.requests and not ours._flying and not ours._keys and not ours._before and not ours._later
            client = self.connector._names.link.client if self.connector._names.link else None
            if client is not None and not client.closed:
                assert client.pinned_blocks == 0

    def close(self):
        self.connector.shutdown()
        for worker in self.workers:
            worker.connector.shutdown()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Worker:
    def __init__(self, config, kv, rank):
        self.kv, self.rank = kv, rank
        self.connector = KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, kv)
        size = max(tensor.offset + tensor.size for tensor in kv.kv_cache_tensors)
        self.memory = torch.zeros(size, dtype=torch.uint8)
        self.tensors = {}
        for group in kv.kv_cache_groups:
            for tensor in kv.kv_cache_tensors:
                if tensor.layers[0] in group.layer_names:
                    self._view(tensor, group.kv_cache_spec)
        self.connector.register_kv_caches(self.tensors)

    def _view(self, tensor, spec):
        for i, layer in enumerate(tensor.layers):
            start = tensor.offset + i * tensor.layer_stride
            raw = self.memory.as_strided((self.kv.num_blocks, tensor.block_stride), (tensor.block_stride, 1), start)
            if isinstance(spec, MambaSpec):
                self.tensors[layer] = raw.view(torch.float32)
            else:
                shape = compute_layer_kv_cache_shape_bytes(spec, self.kv.num_blocks)
                self.tensors[layer] = raw.view(torch.float32).view(shape[0], shape[1], shape[2], shape[3] // 4)

    def run(self, plan, requests, tables):
        connector, output = self.connector, KVConnectorOutput()
        connector.handle_preemptions(plan.kv_connector_metadata)
        connector.bind_connector_metadata(plan.kv_connector_metadata)
        sampled, names = [], list(plan.num_scheduled_tokens)
        if plan.has_sync_kv_loads:
            connector.start_load_kv(None)
        self.invalid = set(connector._worker._errors) if connector._worker is not None else set()
        for name, count in plan.num_scheduled_tokens.items():
            request = requests[name]
            # The scheduler has counted this step's tokens as computed already.
            done = request.num_computed_tokens - count
            self._compute(request, done, count, tables[name])
            last = request.num_computed_tokens >= request.num_tokens
            sampled.append([(request.num_tokens * 7) % 1000 + 10] if last else [])
        if not plan.has_sync_kv_loads:
            connector.start_load_kv(None)
        connector.wait_for_save()
        results = connector.get_transfer_results(plan.finished_req_ids)
        output.finished_sending, output.finished_recving = results.finished_sending, results.finished_recving
        output.failed_recving = results.failed_recving
        output.invalid_block_ids = connector.get_block_ids_with_load_errors()
        output.kv_connector_stats = connector.get_kv_connector_stats()
        output.kv_cache_events = connector.get_kv_connector_kv_cache_events()
        output.kv_connector_worker_meta = pickle.loads(pickle.dumps(connector.build_connector_worker_meta()))
        connector.clear_connector_metadata()
        made = ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, sampled)
        made.kv_connector_output = output
        return made

    def _compute(self, request, done, count, tables):
        for index, group in enumerate(self.kv.kv_cache_groups):
            spec, table = group.kv_cache_spec, tables[index]
            for layer in group.layer_names:
                if isinstance(spec, MambaSpec):
                    self._compute_state(request, done, count, table, spec, layer)
                else:
                    self._compute_tokens(request, done, count, table, spec, layer)

    def _compute_tokens(self, request, done, count, table, spec, layer):
        tensor, size = self.tensors[layer], spec.block_size
        first = 0
        if isinstance(spec, SlidingWindowSpec):
            first = max(0, done - spec.sliding_window + 1)
        for position in range(first, done):
            block, slot = divmod(position, size)
            if table[block] in self.invalid:
                return  # this step is thrown away
            want = value(request, position, layer, self.rank)
            have = tensor[table[block], 0, slot, 0].item()
            assert table[block] != 0, f"{layer}: token {position} of {done} is needed, and its block is gone"
            assert have == want, f"{layer} rank {self.rank} {request.request_id}: token {position} holds {have}, not {want}"
        for position in range(done, done + count):
            block, slot = divmod(position, size)
            tensor[table[block], :, slot, :] = value(request, position, layer, self.rank)

    def _compute_state(self, request, done, count, table, spec, layer):
        """State after the last token of each block that is crossed, and after the last token in the block that it is in."""
        tensor, size = self.tensors[layer], spec.block_size
        if done:
            have, want = tensor[table[(done - 1) // size], 0].item(), value(request, done - 1, layer, self.rank)
            assert have == want, f"{layer}: state after {done} tokens is {have}, not {want}"
        for block in range(done // size, (done + count - 1) // size + 1):
            tensor[table[block], :] = value(request, min((block + 1) * size, done + count) - 1, layer, self.rank)


def value(request, position, layer, rank):
    """Exact in float32."""
    key = f"{request.all_token_ids[: position + 1]} {layer} {rank} {request.cache_salt} {_lora(request)}"
    return float(int.from_bytes(hashlib.sha256(key.encode()).digest()[:3], "big") + 1)


def _lora(request):
    return request.lora_request.lora_name if request.lora_request else ""


def vllm_config(
    folder,
    extra,
    *,
    role="kv_both",
    policy="recompute",
    ranks=1,
    num_blocks=200,
    batch=512,
    algorithm="sha256_cbor",
    events=False,
    **cache,
):
    published = KVEventsConfig(enable_kv_cache_events=True, publisher="null") if events else None
    config = VllmConfig(
        kv_events_config=published,
        model_config=ModelConfig(model=str(folder), skip_tokenizer_init=True, dtype="float32", seed=0, max_model_len=2048),
        scheduler_config=SchedulerConfig(
            max_num_seqs=16,
            max_num_batched_tokens=batch,
            max_model_len=2048,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            disable_hybrid_kv_cache_manager=False,
            async_scheduling=False,
        ),
        cache_config=CacheConfig(enable_prefix_caching=True, prefix_caching_hash_algo=algorithm, **cache),
        parallel_config=ParallelConfig(),
        device_config=DeviceConfig("cpu"),
        kv_transfer_config=KVTransferConfig(
            kv_connector="KvistConnector",
            kv_connector_module_path="kvist.vllm",
            kv_role=role,
            kv_load_failure_policy=policy,
            kv_connector_extra_config=extra,
        ),
    )
    config.parallel_config.tensor_parallel_size = config.parallel_config.world_size = ranks
    config.cache_config.num_gpu_blocks = num_blocks
    return config
