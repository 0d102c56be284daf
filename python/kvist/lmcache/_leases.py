"""Pins between a look-up that found something and the load that follows it.

LMCache takes a key that was found as locked until it has loaded it, but tells its backend neither that it has nor that it
will not. A lease keeps what a look-up found from being evicted until its keys were loaded, at most for some seconds; leases
together hold a bounded number of blocks and bytes, the oldest making room for the newest.

Threads: any.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from kvist._kvist import Pinned


class _Lease:
    __slots__ = ("blocks", "end", "keys", "nbytes", "pins")

    def __init__(self, keys: set[str], pins: Sequence[Pinned], blocks: int, nbytes: int, end: float) -> None:
        self.keys = keys  # not loaded yet
        self.pins = pins
        self.blocks = blocks
        self.nbytes = nbytes
        self.end = end  # monotonic seconds

    def close(self) -> None:
        for pins in self.pins:
            pins.close()


class Leases:
    """seconds: how long one lasts at most; blocks: how many blocks all hold at most."""

    def __init__(self, seconds: float, blocks: int) -> None:
        self._seconds, self.most_blocks = seconds, blocks
        self._lock = threading.Lock()
        self._leases: OrderedDict[int, _Lease] = OrderedDict()  # the oldest first, which is the first to end, too
        self._by_key: dict[str, list[int]] = {}
        self._next = 0
        self._blocks = self._nbytes = 0
        self.expired = 0  #: leases that ended with keys that were not loaded

    @property
    def held(self) -> tuple[int, int]:
        """Blocks and bytes under a lease now."""
        return self._blocks, self._nbytes

    def grant(self, keys: Iterable[str], pins: Sequence[Pinned], blocks: int, nbytes: int, most_bytes: int) -> None:
        """Keeps these pins until the keys were loaded. Older leases make room; what the bounds leave no room for is the
        caller's to see to."""
        new = _Lease(set(keys), pins, blocks, nbytes, time.monotonic() + self._seconds)
        ended = []
        with self._lock:
            while self._leases and (self._blocks + blocks > self.most_blocks or self._nbytes + nbytes > most_bytes):
                ended.append(self._take(next(iter(self._leases))))
                self.expired += 1
            number = self._next
            self._next += 1
            self._leases[number] = new
            self._blocks += blocks
            self._nbytes += nbytes
            for key in new.keys:
                self._by_key.setdefault(key, []).append(number)
        for lease in ended:
            lease.close()

    def loaded(self, keys: Iterable[str]) -> None:
        """These were loaded, or will not be: a lease of which all keys were ends."""
        ended = []
        with self._lock:
            if not self._leases:
                return
            for key in keys:
                numbers = self._by_key.get(key)
                if numbers is None:
                    continue
                number = numbers.pop(0)  # the oldest look-up of it
                if not numbers:
                    del self._by_key[key]
                lease = self._leases[number]
                lease.keys.discard(key)
                if not lease.keys:
                    ended.append(self._take(number))
        for lease in ended:
            lease.close()

    def expire(self) -> float | None:
        """Ends what has lasted long enough. Returns in how many seconds the next is due; None: there is none."""
        ended = []
        with self._lock:
            now = time.monotonic()
            while self._leases:
                number, lease = next(iter(self._leases.items()))
                if lease.end > now:
                    break
                ended.append(self._take(number))
                self.expired += 1
            due = next(iter(self._leases.values())).end - now if self._leases else None
        for lease in ended:
            lease.close()
        return due

    def clear(self) -> None:
        """Ends all."""
        with self._lock:
            ended = [self._take(number) for number in list(self._leases)]
        for lease in ended:
            lease.close()

    def _take(self, number: int) -> _Lease:
        lease = self._leases.pop(number)
        self._blocks -= lease.blocks
        self._nbytes -= lease.nbytes
        for key in lease.keys:
            numbers = self._by_key[key]
            numbers.remove(number)
            if not numbers:
                del self._by_key[key]
        return lease
