"""What the connector counts, in the shape that vLLM carries to its log line and to Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import Counter, Histogram

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

# Counter -> what it counts. A name is an API: it becomes "kvist:NAME" (Prometheus adds "_total").
COUNTERS = {
    "lookups": "Prompts looked up in the pool",
    "hit_tokens": "Tokens given to the engine instead of being computed",
    "loaded_blocks": "Blocks filled from the pool",
    "loaded_bytes": "Bytes filled from the pool",
    "saved_blocks": "Blocks stored in the pool",
    "saved_bytes": "Bytes stored in the pool",
    "present_blocks": "Blocks that were to be stored and were in the pool already",
    "failed_loads": "Requests of which a block could not be filled and was computed",
}
# Reason-labelled ones: {"reason": n} under this name.
REASONS = {
    "dropped_blocks": "Blocks that were not stored",
    "failures": "Calls or blocks that failed",
}
TIMES = {
    "lookup_seconds": ("Time of one look-up in the scheduler", (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 1e-2, 0.1)),
    "load_seconds": (
        "Time of one request's blocks from the pool",
        (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0),
    ),
    "save_seconds": ("Time that a step spent storing", (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)),
}
EVERY = 16  # steps are told of together, since telling costs more than counting
_MOST_TIMES = 1024  # of one kind between two reports; more are left out


class KvistStats(KVConnectorStats):
    """data: {"count": {name: n}, "reason": {name: {reason: n}}, "time": {name: [seconds]}}."""

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        super().__init__(data=data or {})
        if not self.data:
            self.reset()

    def reset(self) -> None:
        self.data = {"count": {}, "reason": {}, "time": {}}

    def is_empty(self) -> bool:
        return not any(self.data.values())

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        mine, more = self.data, other.data
        for name, number in more["count"].items():
            mine["count"][name] = mine["count"].get(name, 0) + number
        for name, reasons in more["reason"].items():
            into = mine["reason"].setdefault(name, {})
            for reason, number in reasons.items():
                into[reason] = into.get(reason, 0) + number
        for name, values in more["time"].items():
            mine["time"].setdefault(name, []).extend(values)
        return self

    def reduce(self) -> dict[str, int | float]:
        """For the engine's log line: counts, failures by reason, and the median of each time in milliseconds."""
        line: dict[str, int | float] = {f"kvist {name}": number for name, number in self.data["count"].items()}
        for name, reasons in self.data["reason"].items():
            line.update({f"kvist {name} ({reason})": number for reason, number in reasons.items()})
        for name, values in self.data["time"].items():
            middle = sorted(values)[len(values) // 2]
            line[f"kvist {name.removesuffix('_seconds')} ms (median of {len(values)})"] = round(middle * 1e3, 3)
        return line


class Counters:
    """Where one side of the connector counts; take() hands it to the engine. One thread."""

    def __init__(self) -> None:
        self.failures: Callable[[], dict[str, int] | None] = dict  # gives the link's counts: the new ones are counted here too
        self._stats = KvistStats()
        self._dirty = False
        self._left = EVERY  # calls of take()
        self._failures: dict[str, int] = {}

    def add(self, name: str, by: int = 1) -> None:
        self._dirty = True
        count = self._stats.data["count"]
        count[name] = count.get(name, 0) + by

    def because(self, name: str, reason: str, by: int = 1) -> None:
        self._dirty = True
        reasons = self._stats.data["reason"].setdefault(name, {})
        reasons[reason] = reasons.get(reason, 0) + by

    def time(self, name: str, seconds: float) -> None:
        self._dirty = True
        values = self._stats.data["time"].setdefault(name, [])
        if len(values) < _MOST_TIMES:
            values.append(seconds)

    def take(self) -> KvistStats | None:
        """Called in every step. What was counted since the last time; None: nothing, or too early to tell."""
        self._left -= 1
        if self._left:
            return None
        self._left = EVERY
        counts = self.failures() or {}
        for reason, number in counts.items():
            more = number - self._failures.get(reason, 0)
            if more > 0:
                self.because("failures", reason, more)
        self._failures = counts
        if not self._dirty:
            return None
        taken, self._stats, self._dirty = self._stats, KvistStats(), False
        return taken


class KvistPromMetrics(KVConnectorPromMetrics):
    """The same in Prometheus, as kvist:NAME, with the engine's labels, and reason where there is one."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        counter, histogram = metric_types[Counter], metric_types[Histogram]
        self._counters = {
            name: counter(name=f"kvist:{name}", documentation=text, labelnames=labelnames)
            for name, text in COUNTERS.items()
        }
        self._reasons = {
            name: counter(name=f"kvist:{name}", documentation=text, labelnames=[*labelnames, "reason"])
            for name, text in REASONS.items()
        }
        self._times = {
            name: histogram(name=f"kvist:{name}", documentation=text, labelnames=labelnames, buckets=buckets)
            for name, (text, buckets) in TIMES.items()
        }
        for values in per_engine_labelvalues.values():  # there from the start, as zero
            for made in self._counters.values():
                made.labels(*values)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        values = self.per_engine_labelvalues[engine_idx]
        for name, number in transfer_stats_data["count"].items():
            if name in self._counters:
                self._counters[name].labels(*values).inc(number)
        for name, reasons in transfer_stats_data["reason"].items():
            for reason, number in reasons.items():
                if name in self._reasons:
                    self._reasons[name].labels(*values, reason).inc(number)
        for name, seconds in transfer_stats_data["time"].items():
            if name in self._times:
                observe = self._times[name].labels(*values).observe
                for value in seconds:
                    observe(value)
