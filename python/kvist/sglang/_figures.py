"""What SGLang's metrics want to know of the calls since they last asked."""

from __future__ import annotations

from collections import deque
from typing import Any

_KEPT = 4096  # calls, if nobody asks


class Figures:
    """Pages and GB/s of calls. Any thread. wanted: SGLang keeps metrics; else there is no need to add anything."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self._calls: dict[str, deque[tuple[int, float]]] = {what: deque(maxlen=_KEPT) for what in ("prefetch", "backup")}

    def add(self, what: str, pages: int, nbytes: int, seconds: float) -> None:
        if pages:
            self._calls[what].append((pages, nbytes / max(seconds, 1e-9) / 1e9))

    def take(self) -> Any:
        """A StorageMetrics; None with a version of SGLang that has none."""
        try:
            from sglang.srt.observability.metrics_collector import StorageMetrics
        except ImportError:
            return None
        told = StorageMetrics()
        for what, calls in self._calls.items():
            taken = [calls.popleft() for _ in range(len(calls))]
            getattr(told, f"{what}_pgs").extend(pages for pages, _ in taken)
            getattr(told, f"{what}_bandwidth").extend(rate for _, rate in taken)
        return told
