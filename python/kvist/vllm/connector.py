"""KvistConnector: what vLLM calls, passed on to the side that this process has.

vLLM makes one object in the process that schedules and one in each worker. It calls some fifteen of the hooks below in every
step, right behind a forward pass that has pushed everything else out of the caches: an attribute or a frame more costs some
half a microsecond there. So those are bound to the side's own methods, and end early where there is nothing to do.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable
from typing import Any

from kvist.vllm import identity, plan
from kvist.vllm.events import Events
from kvist.vllm.names import Names
from kvist.vllm.scheduler import Scheduler
from kvist.vllm.settings import Settings
from kvist.vllm.stats import Counters, KvistPromMetrics, KvistStats
from kvist.vllm.step import IDLE, Step
from kvist.vllm.worker import Worker
from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole, SupportsHMA
from vllm.logger import init_logger

# Below vLLM's own loggers, so that its handlers and levels hold.
_log = init_logger("vllm.kvist")
_Results: Any = getattr(base, "KVConnectorTransferResults", None)  # older ones call get_finished
_Source: Any = getattr(base, "CacheHitSource", None)
_NOTHING = _Results(frozenset(), frozenset(), frozenset()) if _Results is not None else None
_MOST_CALLS = 32  # asynchronous reads of one client at once; as many are left for stores


class KvistConnector(KVConnectorBase_V1, SupportsHMA):
    """Blocks of the engine in the host's pool, for this engine and every other one of the same identity."""

    if _Source is not None:
        _cache_hit_source = _Source.HOST  # where vLLM's metrics say that hits came from

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        settings = Settings.read(transfer.kv_connector_extra_config, door="kvist.vllm")
        self._counters = Counters()
        self._scheduler: Scheduler | None = None
        self._worker: Worker | None = None
        self._names: Names | None = None
        self._events: Events | None = None
        try:
            self._plan = plan.make(vllm_config, kv_cache_config)
        except plan.CannotServe as error:
            _log.warning("Kvist: this engine runs without the pool: %s", error)
            return
        maker = identity.Maker(vllm_config, kv_cache_config, self._plan, settings)
        self._settings = settings
        self._seed_told = False
        self._epoch = settings.epoch()
        seed = identity.none_hash(vllm_config)
        rank = vllm_config.parallel_config.rank
        if role == KVConnectorRole.SCHEDULER:
            self._begin_scheduler(vllm_config, kv_cache_config, maker, seed)
        else:
            self._names = Names(maker, settings, f"vllm worker {rank}", _log)
            alone = len(kv_cache_config.kv_cache_groups) == 1
            self._worker = Worker(self._plan, settings, self._names, rank=rank, alone=alone, counters=self._counters)
            self._bind_worker(self._worker)
        assert self._names is not None
        self._counters.failures = self._names.counts
        self._bind("get_kv_connector_stats", self._counters.take)
        if seed is not None:
            self._names.use((seed, self._epoch))

    def _begin_scheduler(self, vllm_config: Any, kv_cache_config: Any, maker: identity.Maker, seed: str | None) -> None:
        transfer, settings = vllm_config.kv_transfer_config, self._settings
        if seed is None:
            _log.warning(
                "Kvist: the block hashes of this engine begin with a random seed, so that no other engine, and not this one "
                "after a restart, can use what it stores: set PYTHONHASHSEED to the same number for all of them, or use "
                "--prefix-caching-hash-algo sha256_cbor"
            )
        between = self._between(vllm_config, kv_cache_config)
        # What is pinned is not read here: the workers verify. Nothing is stored from here either.
        quiet = dataclasses.replace(settings, verify="never", stock=4096)
        self._names = Names(maker, quiet, "vllm scheduler", _log)
        calls = len(self._plan.columns)
        hash_tokens = getattr(kv_cache_config, "hash_block_size", None) or vllm_config.cache_config.block_size
        published = vllm_config.kv_events_config
        if published is not None and published.enable_kv_cache_events:
            workers = vllm_config.parallel_config.world_size
            self._events = Events(workers, self._plan.tokens, self._plan.tokens // hash_tokens)
        self._scheduler = Scheduler(
            self._plan,
            self._names,
            hash_tokens=hash_tokens,
            deadline=settings.deadline,
            max_loads=max(1, min(settings.max_loads, _MOST_CALLS // calls)),
            between=between,
            saves=transfer.is_kv_producer,
            loads=transfer.is_kv_consumer,
            events=self._events,
            counters=self._counters,
        )
        self._bind("build_connector_meta", self._scheduler.step)
        self._bind("update_connector_output", self._scheduler.answered)

    def _between(self, vllm_config: Any, kv_cache_config: Any) -> bool:
        """Whether loads are asynchronous. A synchronous one that fails must be told block by block, which vLLM understands
        for one KV group only; and what another worker computed with it would be stored by that worker."""
        from vllm.platforms import current_platform

        safe = len(kv_cache_config.kv_cache_groups) == 1 and vllm_config.parallel_config.world_size == 1
        if self._settings.load == "sync" and not safe:
            raise ValueError(
                'kvist.vllm: load "sync" works with one KV group and one worker only; this engine has '
                f"{len(kv_cache_config.kv_cache_groups)} and {vllm_config.parallel_config.world_size}"
            )
        return self._settings.load == "async" or (
            self._settings.load == "auto" and not (safe and current_platform.is_cpu())
        )

    def _bind_worker(self, worker: Worker) -> None:
        self._bind("get_block_ids_with_load_errors", worker.errors)
        self._bind("build_connector_worker_meta", worker.answers)
        self._bind("handle_preemptions", worker.before_step)

    def _bind(self, hook: str, method: Any) -> None:
        if getattr(type(self), hook) is getattr(KvistConnector, hook):  # a subclass's own one stays
            setattr(self, hook, method)

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a store that is dropped is a later miss, and no request waits for it

    # ---- worker side ----------------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        if self._worker is not None:
            self._worker.register(kv_caches, self._kv_cache_config)

    def has_connector_metadata(self) -> bool:
        return False  # what is asked before the hooks of each layer, which have nothing to do

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        if self._worker is not None:
            self._worker.before_step(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        step = self._connector_metadata
        if step is not IDLE and self._worker is not None and isinstance(step, Step):
            self._worker.load(step)

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        step = self._connector_metadata
        if step is not IDLE and self._worker is not None and isinstance(step, Step) and step.saves:
            self._worker.save(step)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        if self._worker is None:
            return None, None
        done, _ = self._worker.finished()
        return None, done or None

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        if self._worker is None or not self._worker.busy():
            return _NOTHING
        done, failed = self._worker.finished()
        return _Results(finished_recving=done, failed_recving=failed) if done else _NOTHING

    def get_block_ids_with_load_errors(self) -> set[int]:
        return set()

    # ---- scheduler side -------------------------------------------------------------------------------------------

    def on_new_request(self, request: Any) -> None:
        if self._scheduler is not None:
            if not self._seed_told:
                self._tell_seed()
            self._scheduler.add(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        if self._scheduler is None:
            return 0, False
        return self._scheduler.match(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if self._scheduler is not None:
            self._scheduler.allocated(request, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Step:
        return IDLE if self._scheduler is None else self._scheduler.step(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        if self._scheduler is not None:
            self._scheduler.answered(connector_output)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        if self._scheduler is not None:
            self._scheduler.finished(request.request_id)
        return False, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, [])

    def take_events(self) -> Iterable[Any]:
        return () if self._events is None else self._events.take()

    def reset_cache(self) -> bool | None:
        """The weights may be others now: from here on nothing that was stored before is found. False: a load of the old
        ones is under way, which this cannot take back."""
        if self._scheduler is None or self._names is None or self._names.link is None:
            return True
        seed, before = self._names.name
        self._epoch = identity.fresh_epoch(self._settings, before, self._names.link.notices)
        self._scheduler.forget()
        self._names.use((seed, self._epoch))
        return self._scheduler.idle()

    def _tell_seed(self) -> None:
        """At the first request the seed of its hashes is known. Who else uses the pool with another one is told of."""
        self._seed_told = True
        assert self._names is not None
        seed = identity.none_hash_in_use()
        self._names.use((seed, self._epoch))
        threading.Thread(
            target=identity.compare_seeds, args=(self._names, seed, _log), name="kvist-seed", daemon=True
        ).start()

    # ---- both -----------------------------------------------------------------------------------------------------

    def get_kv_connector_stats(self) -> KvistStats | None:
        return self._counters.take()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KvistStats:
        return KvistStats(data)

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any
    ) -> KvistPromMetrics:
        return KvistPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        for side in (self._scheduler, self._worker):
            if side is not None:
                side.close()
