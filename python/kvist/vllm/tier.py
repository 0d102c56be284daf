"""Kvist as a secondary tier of vLLM's OffloadingConnector, for those who run that connector already.

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
      "spec_name": "KvistOffloadingSpec", "spec_module_path": "kvist.vllm.tier", "cpu_bytes_to_use": 4294967296,
      "secondary_tiers": [{"type": "KvistTier", "module_path": "kvist.vllm.tier", "socket": "/run/kvist/node.sock"}]}}'

vLLM keeps its own primary tier, host memory of cpu_bytes_to_use; what it stores there it hands on to the pool, and what it
misses there it promotes from the pool. A block is therefore copied once more than by KvistConnector, and kept once more;
in return vLLM itself handles groups, tensor parallelism and failed loads. Where neither is needed, take KvistConnector.

KvistTier works with vLLM's own TieringOffloadingSpec too. KvistOffloadingSpec adds only that it runs on processors: vLLM's
copies between engine and primary tier are for accelerators.

Threads: vLLM calls a tier from its scheduler thread alone, and none of these calls may wait. Copies are done by two threads
of the tier, one for each direction, so that a load never waits behind stores.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np
import torch
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    Locality,
    LookupResult,
    Medium,
    OffloadingCounterMetadata,
    OffloadingMetricMetadata,
    OffloadingWorker,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    TransferResult,
    get_offload_group_idx,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

import kvist
from kvist._door import Link, Settings, setting, text
from kvist.vllm.identity import _weights

_log = init_logger("vllm.kvist.tier")  # below "vllm", so that it comes out where the engine logs
_FAILURES = "kvist:tier_failures"
_QUEUED_JOBS = 256  # of one direction; each keeps blocks of the primary tier from being evicted
_MISS_SECONDS = 10.0  # how long a block whose load failed is a miss, so that its request computes it
_MISSES = 4096


@dataclasses.dataclass(frozen=True)
class TierSettings(Settings):
    """Settings of every door, and what vLLM does not tell a tier: the revision of a model that comes from a hub, and an epoch
    that is raised when the weights of a running engine are replaced."""

    revision: str = setting("", text)
    weights_epoch: str = setting("", text)


# ---- the tier: scheduler side -------------------------------------------------------------------------------------------


class KvistTier(SecondaryTierManager):
    """A pool of Kvist behind vLLM's primary tier. A chunk, one row of primary_kv_view, is one block of the pool.

    settings: what stands in the tier's object of secondary_tiers, see TierSettings; ValueError for what cannot be. Without a
    node everything is a miss, each store ends at once as failed, and the engine goes on.
    """

    medium: ClassVar[Medium | None] = Medium.CPU

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        **settings: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.locality = Locality.LOCAL
        self._settings = TierSettings.read(settings, door="kvist.vllm.tier", ignored=frozenset({"locality"}))
        self._pages: kvist.Pages | None = kvist.Pages(primary_kv_view)
        identity = tier_identity(offloading_spec.config, self._settings, self.block_size_bytes)
        self._link = Link(self._settings, identity, name=f"vllm tier {os.getpid()}", log=_log)
        self._loads = _Lane("kvist-tier-load", self._transfer)
        self._stores = _Lane("kvist-tier-store", self._transfer)
        chunk = offloading_spec.blocks_per_chunk
        self._chunk_tokens = {group.group_id: group.tokens_per_block * chunk for group in offloading_spec.config.groups}
        # What each live request has stored or found, so that a later chunk knows its parent: (group, end) -> (name, depth).
        self._seen: dict[str, dict[tuple[int, int], tuple[bytes, int]]] = {}
        self._missed: dict[OffloadKey, float] = {}  # since when it could not be loaded
        self._told: dict[str, int] = {}  # of the link's counts, what get_stats() has reported

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """HIT or MISS, at once: the pool's index lies in memory that this process can read. Never RETRY."""
        if self._missed and self._missed_lately(key):
            return LookupResult.MISS
        space = self._link.space()
        if space is None:
            return LookupResult.MISS
        try:
            return LookupResult.HIT if space.contains(space.digests((key,))).done else LookupResult.MISS
        except kvist.Error as error:
            self._link.failed(error)
            return LookupResult.MISS

    def submit_store(self, job_metadata: TransferJob) -> None:
        self._submit(self._stores, job_metadata)

    def submit_load(self, job_metadata: TransferJob) -> None:
        self._submit(self._loads, job_metadata)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        loaded = self._loads.take()
        for task in loaded:
            self._missed.update((key, task.began) for key in task.job.keys if key not in task.done)
        while len(self._missed) > _MISSES:
            del self._missed[next(iter(self._missed))]
        return [self._result(task) for task in (*self._stores.take(), *loaded)]

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._seen.pop(req_context.req_id, None)

    def drain_jobs(self) -> None:
        """Returns when no thread of ours touches the primary tier: what waits is given up, what runs ends by its deadline."""
        self._stores.drain()
        self._loads.drain()

    def shutdown(self) -> None:
        self._stores.close()
        self._loads.close()
        self._pages = None  # before vLLM lets go of the memory that it shows
        self._link.close()

    # -- metrics

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        return {
            _FAILURES: OffloadingCounterMetadata(
                documentation="Calls into Kvist's pool, or blocks of them, that failed, by reason.", labelnames=("reason",)
            )
        }

    def get_stats(self) -> OffloadingConnectorStats | None:
        now = self._link.counts
        if now == self._told:
            return None
        stats = OffloadingConnectorStats()
        for reason, count in now.items():
            if more := count - self._told.get(reason, 0):
                stats.increase_counter(_FAILURES, more, (reason,))
        self._told = now
        return stats

    # -- in the scheduler thread

    def _submit(self, lane: _Lane, job: TransferJob) -> None:
        task = _Task(job, self._link.space())
        if task.space is not None:
            try:
                task.runs = self._runs(task.space, job)
            except kvist.Error as error:
                self._link.failed(error)
        if not lane.submit(task):
            self._link.count("queue_full", len(job.keys))

    def _runs(self, space: kvist.Space, job: TransferJob) -> list[_Run]:
        """The job's chunks as pieces of chains. vLLM says where in its request a chunk ends, not what stands before it: that
        is known where this tier stored or loaded it for the same request. Else a chain begins with the chunk."""
        names = bytes(space.digests(list(job.keys)))
        seen = self._seen.setdefault(job.req_context.req_id, {})
        position_of = getattr(job.req_context, "get_offload_key_position", lambda key: None)
        places = [(get_offload_group_idx(key), position_of(key) or 0, i) for i, key in enumerate(job.keys)]
        runs: list[_Run] = []
        ends: dict[tuple[int, int], _Run] = {}  # (group, token) -> the run that ends there
        for group, end, i in sorted(places):
            before = (group, end - self._chunk_tokens.get(group, 0))
            run = ends.pop(before, None)
            if run is None:
                parent, depth = seen.get(before, (None, -1))
                run = _Run(parent, depth + 1)
                runs.append(run)
            run.names += names[16 * i : 16 * i + 16]
            run.at.append(i)
            if end:  # 0: not told
                ends[group, end] = run
                seen[group, end] = (bytes(run.names[-16:]), run.first + len(run.at) - 1)
        return runs

    def _missed_lately(self, key: OffloadKey) -> bool:
        since = self._missed.get(key)
        if since is None:
            return False
        if time.monotonic() - since < _MISS_SECONDS:
            return True
        del self._missed[key]
        return False

    def _result(self, task: _Task) -> JobResult:
        success = len(task.done) == len(task.job.keys)
        some = tuple(task.done) if task.job.is_promotion and task.done and not success else None
        return JobResult(
            job_id=task.job.job_id,
            success=success,
            successful_keys=some,
            transfer_time=time.monotonic() - task.began,
            transfer_bytes=len(task.done) * self.block_size_bytes,
        )

    # -- in a lane's thread

    def _transfer(self, task: _Task) -> None:
        job, pages = task.job, self._pages
        keys, put, end = list(job.keys), not job.is_promotion, time.monotonic() + self._settings.deadline
        if task.space is None or pages is None:
            return
        for run in task.runs:
            left = end - time.monotonic()
            if left <= 0:
                self._link.count("deadline_exceeded", len(run.at))
                continue
            if put and self._link.rests():
                return
            rows = pages[job.chunk_ids[run.at]]
            try:
                results = (task.space.put if put else task.space.get)(run.chain(), rows, timeout=left)
            except kvist.Error as error:
                self._link.failed(error)
                continue
            self._link.tally(results, put=put)
            task.done += [keys[i] for i, code in zip(run.at, results) if code in (kvist.Code.OK, kvist.Code.ALREADY_EXISTS)]


@dataclasses.dataclass
class _Run:
    """Consecutive chunks of a job: the chunk before them and their depth, their names, where they stand in the job."""

    parent: bytes | None
    first: int
    names: bytearray = dataclasses.field(default_factory=bytearray)
    at: list[int] = dataclasses.field(default_factory=list)

    def chain(self) -> kvist.Digests:
        return kvist.Digests(bytes(self.names), self.first, self.parent)


@dataclasses.dataclass
class _Task:
    """A job, what it goes to, and what has been done of it."""

    job: TransferJob
    space: kvist.Space | None
    runs: list[_Run] = dataclasses.field(default_factory=list)
    done: list[OffloadKey] = dataclasses.field(default_factory=list)
    began: float = dataclasses.field(default_factory=time.monotonic)


class _Lane:
    """A thread that carries tasks out in order. Whatever happens, each task that was submitted comes out of take() once."""

    def __init__(self, name: str, work: Callable[[_Task], None]) -> None:
        self._work = work
        self._changed = threading.Condition()
        self._waiting: deque[_Task] = deque()
        self._finished: list[_Task] = []
        self._running = self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, task: _Task) -> bool:
        """False: too many wait, or it was closed; the task comes out of take() at once, with nothing done."""
        with self._changed:
            taken = not self._closed and len(self._waiting) < _QUEUED_JOBS
            (self._waiting if taken else self._finished).append(task)
            self._changed.notify_all()
            return taken

    def take(self) -> list[_Task]:
        with self._changed:
            finished, self._finished = self._finished, []
            return finished

    def drain(self) -> None:
        """Gives up what waits, and returns when nothing runs; that ends by its deadline."""
        with self._changed:
            self._finished += self._waiting
            self._waiting.clear()
            while self._running:
                self._changed.wait()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.drain()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                task = self._waiting.popleft()
                self._running = True
            try:
                self._work(task)
            except Exception:  # a defect here must cost a block, not a request that waits for ever
                _log.exception("Kvist: a transfer of the offloading tier failed; the engine goes on without it")
            with self._changed:
                self._finished.append(task)
                self._running = False
                self._changed.notify_all()


def tier_identity(config: Any, settings: TierSettings, row_bytes: int) -> kvist.Identity:
    """What must be equal for two engines' tiers to share. config: vLLM's OffloadingConfig; row_bytes: of a chunk of all workers,
    with what vLLM pads it to."""
    parallel = config.parallel
    groups = [(group.group_id, group.tokens_per_block, group.layer_names) for group in config.groups]
    extra = {
        "engine": "vllm offloading tier",
        "groups": hashlib.sha256(repr(groups).encode()).hexdigest(),
        "blocks_per_chunk": str(config.cache.blocks_per_chunk),
        "ranks": f"tp={parallel.tp_size} pp={parallel.pp_size} pcp={parallel.pcp_size} dcp={parallel.dcp_size}",
        "replicated": str(bool(config.replicated_layout)),
        "canonical": str(bool(config.canonical_layout)),
    }
    if current_platform.is_cpu():  # the order of numbers within a block depends on it
        extra["cpu_capability"] = torch.backends.cpu.get_cpu_capability()
    fields: dict[str, Any] = dict(
        revision=settings.revision,
        weights_epoch=settings.weights_epoch,
        kv_dtype=config.model.dtype,
        layout=f"vllm {vllm.__version__} {config.kv_cache_layout or ''}",  # kernels of other versions may order bytes otherwise
        hash_seed=os.environ.get("PYTHONHASHSEED", ""),
        block_tokens=config.cache.tokens_per_hash,
        extra=extra,
    )
    model = _weights(config.model.name)
    mark = hashlib.sha256(repr((model, row_bytes, fields)).encode()).hexdigest()[:16]
    title = os.path.basename(os.path.normpath(config.model.name))[:80] or "model"
    return kvist.Identity(f"vllm-tier/{title}/{mark}", model, [kvist.Part("chunk", row_bytes)], **fields)


# ---- the spec: both sides, where the engine runs on processors -----------------------------------------------------------


class KvistOffloadingSpec(TieringOffloadingSpec):
    """vLLM's tiered offloading, on processors too. On an accelerator it is vLLM's own in all."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if not current_platform.is_cpu():
            return super().get_worker(kv_caches)
        if self._worker is None:
            if self.config.canonical_layout:
                raise ValueError("kvist.vllm.tier: canonical_layout is not supported on processors: leave it out")
            rank = 0 if self.replicated_layout else self.config.parallel.rank
            region = SharedOffloadRegion(
                engine_id=self.config.engine_id,
                num_chunks=self.num_chunks,
                rank=rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            try:
                self._worker = _CopyingWorker(kv_caches, self.blocks_per_chunk, region)
            except BaseException:
                region.cleanup()
                raise
        return self._worker


class _CopyingWorker(OffloadingWorker):
    """Copies between an engine's KV tensors in host memory and vLLM's primary tier: at once, so each job is finished when its
    submitting call returns."""

    def __init__(self, kv_caches: CanonicalKVCaches, blocks_per_chunk: int, region: SharedOffloadRegion) -> None:
        self._region = region
        self._blocks_per_chunk = blocks_per_chunk
        self._refs = kv_caches.group_data_refs
        self._finished: list[TransferResult] = []
        self._engine: list[torch.Tensor] = []  # (block, bytes)
        self._primary: list[torch.Tensor] = []  # (chunk, block within it, bytes)
        for cache in kv_caches.tensors:
            page = cache.page_size_bytes
            self._engine.append(cache.tensor.view(torch.int8).view(-1, page))
            rows = region.create_next_worker_view(page * blocks_per_chunk)
            self._primary.append(rows.unflatten(1, (blocks_per_chunk, page)))

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        return self._copy(job_id, src_spec, dst_spec, store=True)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        return self._copy(job_id, dst_spec, src_spec, store=False)

    def get_finished(self) -> list[TransferResult]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        pass

    def shutdown(self) -> None:
        self._engine.clear()
        self._primary.clear()
        self._region.cleanup()

    def _copy(self, job_id: int, blocks: GPULoadStoreSpec, chunks: Any, *, store: bool) -> bool:
        began, moved, block_at, chunk_at = time.monotonic(), 0, 0, 0
        for group, count in enumerate(blocks.group_sizes):
            if count == 0:
                continue
            # A group's first block may lie in the middle of its first chunk.
            places = np.arange(count) + blocks.block_indices[group] % self._blocks_per_chunk
            of_chunk, within = np.divmod(places, self._blocks_per_chunk)
            here = torch.from_numpy(np.asarray(blocks.block_ids[block_at : block_at + count], dtype=np.int64))
            there = torch.from_numpy(np.asarray(chunks.block_ids[chunk_at : chunk_at + of_chunk[-1] + 1], dtype=np.int64)[of_chunk])
            inside = torch.from_numpy(within)
            for ref in self._refs[group]:
                engine = self._engine[ref.tensor_idx][:, : ref.page_size_bytes]
                primary = self._primary[ref.tensor_idx][:, :, : ref.page_size_bytes]
                if store:
                    primary[there, inside] = engine[here]
                else:
                    engine[here] = primary[there, inside]
                moved += count * ref.page_size_bytes
            block_at += count
            chunk_at += int(of_chunk[-1]) + 1
        self._finished.append(TransferResult(job_id, True, moved, time.monotonic() - began))
        return True
