"""Futures of the LMCache connector: who does the work, and how its end is told.

LMCache submits a batch, gets a number for it, and polls a descriptor until drain() hands that number out again. It submits
holding the lock that its completions need too, so submitting only ever enqueues: a few threads of our own copy, with the
GIL given up. Every batch ends within its deadline, whatever becomes of it: threads take batches in the order in which they
came, which is that of their deadlines, and no call that they make outlives the deadline of its batch.

A large batch is cut into slices that several threads do at once. Look-ups, which copy nothing, go before loads that wait.
Stores, which may wait for the node, have threads of their own.

Threads: any may call any method. A child forked from here has no threads: it is refused (kvist.Forked), and closes only its
own copy of the descriptor.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from kvist._types import FailedPrecondition, Forked, ResourceExhausted

Completion = tuple[int, bool, str, list[bool]]  # future, ok, why not, by key
Work = Callable[["Job", int, int], None]  # does keys [begin, end) of a batch

_SLICE = 2 << 20  # bytes that are worth another thread's while
_LARGEST_SLICE = 16 << 20  # so that look-ups get their turn while loads run
_GRACE = 5.0  # seconds that a call's end may be late, on a machine that is overloaded
_UNDRAINED = 4  # times the bound of open batches: futures that ended and that nobody asked for


class Job:
    """One batch. A slice writes only its own items of `found`."""

    __slots__ = ("buffers", "end", "error", "found", "future", "keys", "left", "whole", "work")

    def __init__(self, work: Work, keys: list[str], buffers: list[memoryview] | None, end: float, whole: bool) -> None:
        self.work = work
        self.keys = keys
        self.buffers = buffers  # held until the end: LMCache keeps none of them
        self.end = end  # monotonic seconds
        self.whole = whole  # ok means that every key is
        self.found = [False] * len(keys)
        self.future = 0
        self.left = 0  # slices
        self.error = ""

    @property
    def over(self) -> bool:
        """Whether the deadline has passed: what has not begun is not worth beginning."""
        return time.monotonic() >= self.end

    def remaining(self) -> float:
        """Seconds until the deadline, never quite none."""
        return max(self.end - time.monotonic(), 1e-6)


class _Lane:
    """What waits for one kind of thread."""

    def __init__(self, lock: threading.Lock, threads: int) -> None:
        self.looks: deque[tuple[Job, int, int]] = deque()  # go first
        self.tasks: deque[tuple[Job, int, int]] = deque()
        self.wake = threading.Condition(lock)
        self.threads = threads

    @property
    def busy(self) -> bool:
        return bool(self.looks or self.tasks)

    def take(self) -> tuple[Job, int, int]:
        return self.looks.popleft() if self.looks else self.tasks.popleft()


class Crew:
    """The threads, what waits for them, and what has ended.

    readers, writers: threads each. bound: batches that may be open at once. deadline: seconds from a batch's submission to
    its end. note: told of what went wrong here, by reason and as a line for people. upkeep: run by reading threads now and
    then; says in how many seconds it is due again (None: when there is work).
    """

    def __init__(
        self,
        *,
        readers: int,
        writers: int,
        bound: int,
        deadline: float,
        note: Callable[[str, str], None],
        upkeep: Callable[[], float | None],
    ) -> None:
        self._deadline, self._bound = deadline, bound
        self._note, self._upkeep = note, upkeep
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._reading, self._writing = _Lane(self._lock, readers), _Lane(self._lock, writers)
        self._futures = itertools.count(1)
        self._open = 0
        self._ended: list[Completion] = []
        self._closing = False
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._threads: list[threading.Thread] = []
        try:
            for name, lane in (("read", self._reading), ("write", self._writing)):
                for i in range(lane.threads):
                    thread = threading.Thread(
                        target=self._run, args=(lane,), name=f"kvist-lmcache-{name}-{i}", daemon=True
                    )
                    thread.start()
                    self._threads.append(thread)
        except BaseException:
            self.close()
            raise

    @property
    def event(self) -> int:
        """The descriptor that is readable while drain() has something to give. FailedPrecondition: it was closed."""
        if self._event < 0:
            raise FailedPrecondition("this connector was closed")
        return self._event

    @property
    def open(self) -> int:
        """Batches that have not ended yet."""
        return self._open

    def read(self, work: Work, keys: list[str], buffers: list[memoryview] | None = None) -> int:
        """A batch of look-ups (no buffers) or loads; its future."""
        return self._submit(Job(work, keys, buffers, self._end(), whole=False), self._reading)

    def write(self, work: Work, keys: list[str], buffers: list[memoryview] | None = None) -> int:
        """A batch of stores, which counts as done only if all of it is, or of removals (no buffers); its future."""
        return self._submit(Job(work, keys, buffers, self._end(), whole=buffers is not None), self._writing)

    def drain(self) -> list[Completion]:
        """What has ended since the last time. Empty once closed."""
        self._refuse_child()
        with self._lock:
            if self._event >= 0:
                try:
                    os.eventfd_read(self._event)
                except BlockingIOError:
                    pass
            ended, self._ended = self._ended, []
            return ended

    def close(self) -> None:
        """Ends the threads; batches that none of them has begun are dropped. When this returns no buffer is touched any
        more, and nothing writes to the descriptor's number."""
        if os.getpid() != self._process:
            event, self._event = self._event, -1
            if event >= 0:
                os.close(event)
            return
        with self._lock:
            self._closing = True
            for lane in (self._reading, self._writing):
                lane.looks.clear()
                lane.tasks.clear()
                lane.wake.notify_all()
        until = self._end() + _GRACE
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(until - time.monotonic(), 0))  # a call that it is in ends with its deadline
        with self._lock:
            event, self._event = self._event, -1
            self._ended = []
        if event >= 0:
            os.close(event)

    # ---- submitting ----

    def _end(self) -> float:
        return time.monotonic() + self._deadline

    def _refuse_child(self) -> None:
        if os.getpid() != self._process:
            raise Forked("this connector belongs to the process that made it: make another one after a fork")

    def _submit(self, job: Job, lane: _Lane) -> int:
        self._refuse_child()
        slices = _cut(job, lane.threads)
        with self._lock:
            if self._closing:
                raise FailedPrecondition("this connector was closed")
            if len(self._ended) >= _UNDRAINED * self._bound:
                raise ResourceExhausted(f"{len(self._ended)} futures have ended and were not drained")
            job.future = next(self._futures)
            full = self._open >= self._bound
            self._open += 1
            if full or not slices:
                job.error = f"{self._bound} batches are waiting already" if full else ""
                self._complete(job)
            else:
                job.left = len(slices)
                queue = lane.looks if job.buffers is None else lane.tasks
                queue.extend((job, begin, end) for begin, end in slices)
                lane.wake.notify(len(slices))
        if full:
            self._note("queue_full", "Kvist: too many batches wait; further ones fail at once")
        return job.future

    # ---- in the threads ----

    def _run(self, lane: _Lane) -> None:
        while True:
            due = self._keep_up() if lane is self._reading else None
            with self._lock:
                if not lane.busy and not self._closing:
                    lane.wake.wait(due)
                if self._closing:
                    return
                if not lane.busy:
                    continue
                job, begin, end = lane.take()
            error = self._do(job, begin, end)
            with self._lock:
                job.error = job.error or error
                job.left -= 1
                if job.left == 0:
                    self._complete(job)
            del job  # while this thread waits, nothing of LMCache's is held

    def _do(self, job: Job, begin: int, end: int) -> str:
        if job.over:
            self._note("late", "Kvist: batches wait longer than their deadline; they are given up")
            return "its deadline passed while it waited for its turn"
        try:
            job.work(job, begin, end)
        except Exception as error:  # a wrong argument, no memory: the future must end all the same
            return self._told(error)
        return ""

    def _keep_up(self) -> float | None:
        try:
            return self._upkeep()
        except Exception as error:
            self._told(error)
            return 1.0

    def _told(self, error: Exception) -> str:
        text = f"{type(error).__name__}: {error}"
        kind = "refused" if isinstance(error, ValueError | TypeError | BufferError) else "internal"
        self._note(kind, f"Kvist: a batch failed: {text}")
        return text

    def _complete(self, job: Job) -> None:
        """With the lock held: a batch has ended, and its descriptor is there still or was closed for good."""
        job.keys, job.buffers = [], None
        self._open -= 1
        ok = all(job.found) if job.whole else not job.error
        self._ended.append((job.future, ok, job.error if not ok else "", job.found))
        if self._event >= 0:
            os.eventfd_write(self._event, 1)


def _cut(job: Job, threads: int) -> Sequence[tuple[int, int]]:
    """The keys of a batch in runs of about equal bytes for so many threads."""
    count = len(job.keys)
    if job.buffers is None or count <= 1:
        return [(0, count)] if count else []
    sizes = [buffer.nbytes for buffer in job.buffers]
    share = min(max(sum(sizes) // threads, _SLICE), _LARGEST_SLICE)
    slices, begin, held = [], 0, 0
    for i, size in enumerate(sizes):
        held += size
        if held >= share:
            slices.append((begin, i + 1))
            begin, held = i + 1, 0
    if begin < count:
        slices.append((begin, count))
    return slices
