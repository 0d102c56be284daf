"""The workers' side of the connector: blocks from the pool into the engine's KV tensors, and back.

Every call here is one of the model runner's, between or within two steps. A copy is one call into the extension, without
the GIL, for all blocks of a request and a group. Stores hand over the bytes and do not wait for the node's answer; where
the node cannot keep up, they are dropped, and after a slow one the next steps do not try for a while.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import kvist
from kvist._door import Link
from kvist._types import error_class
from kvist.vllm import layout
from kvist.vllm.names import Names
from kvist.vllm.plan import Plan
from kvist.vllm.settings import Settings
from kvist.vllm.stats import Counters
from kvist.vllm.step import Done, Load, Name, Save, Step

_WHOLE = (kvist.Code.UNAVAILABLE, kvist.Code.FAILED_PRECONDITION)
_RATE = float(1 << 30)  # bytes a second that a step's stores are allowed to take to copy, at least
_GRACE = 5.0  # seconds behind its deadline after which a load is given up by us


def _slice(chain: kvist.Digests, start: int, count: int) -> kvist.Digests:
    return chain if start == 0 and count == len(chain) else chain[start : start + count]


class HostPages:
    """KV tensors in host memory: the pool copies from and into them itself. What KV tensors elsewhere have too: the worker
    calls this and nothing else (kvist/vllm/worker_cuda.py is the other one)."""

    ask = 32  # steps between two looks at stores that nobody waits for; they go on without

    def __init__(self, columns: list[kvist.Pages | None]) -> None:
        self._columns = columns

    def page_bytes(self, column: int) -> int:
        """Of one block; 0: this worker has no layer of the group."""
        pages = self._columns[column]
        return pages.page_bytes if pages is not None else 0

    def read(
        self, space: kvist.Space, chain: kvist.Digests, column: int, ids: list[int], part: int, timeout: float
    ) -> kvist.Results:
        """Fills the blocks, and waits for it."""
        return space.get(chain, self._pages(column)[ids], part=part, timeout=timeout)

    def begin_read(
        self, space: kvist.Space, chain: kvist.Digests, column: int, ids: list[int], part: int, timeout: float
    ) -> kvist.Submitted:
        """Begins to fill them."""
        return space.submit_get(chain, self._pages(column)[ids], part=part, timeout=timeout)

    def begin_write(
        self, space: kvist.Space, chain: kvist.Digests, column: int, ids: list[int], part: int, session: str, timeout: float
    ) -> kvist.Submitted | None:
        """Stores them; None: there is no room for them here. They may be overwritten by the next step."""
        return space.submit_put(chain, self._pages(column)[ids], part=part, session=session or None, timeout=timeout)

    def before_step(self) -> None:
        """The step that begins may overwrite blocks that are being stored."""

    def advance(self, finished: list[kvist.Submitted]) -> list[Any]:
        """What came out of Client.poll(); returns the calls that are done now."""
        return finished

    def forget(self) -> None:
        """The client that calls went to is closed: they end no more, and nothing of theirs is touched any more."""

    def _pages(self, column: int) -> kvist.Pages:
        pages = self._columns[column]
        assert pages is not None
        return pages


class _Put:
    """A store under way."""

    __slots__ = ("call", "nbytes", "number", "positions", "space")

    def __init__(self, space: kvist.Space, call: Any, number: int, positions: int, nbytes: int) -> None:
        self.space, self.call, self.number, self.positions, self.nbytes = space, call, number, positions, nbytes


class _Get:
    """One asynchronous load of a request."""

    __slots__ = ("bad", "began", "calls", "request", "until")

    def __init__(self, request: str, until: float) -> None:
        self.request, self.until = request, until
        self.began = time.monotonic()
        self.calls: dict[int, tuple[Any, list[int], int, kvist.Space]] = {}  # by id: call, blocks, bytes of one
        self.bad: set[int] = set()


class Worker:
    """One rank's. rank: of all workers; alone: the engine has one KV group, so that it can be told of single blocks."""

    def __init__(self, plan: Plan, settings: Settings, names: Names, *, rank: int, alone: bool, counters: Counters) -> None:
        self.plan, self.settings, self.names, self.counters = plan, settings, names, counters
        self._alone = alone
        self._writes = plan.writes(rank)
        self._parts = [plan.part(number, rank) for number in range(len(plan.columns))]
        self._pages: Any = None
        self._client: kvist.Client | None = None
        self._puts: dict[int, _Put] = {}
        self._gets: dict[str, _Get] = {}
        self._errors: set[int] = set()
        self._reports = 0  # of bad blocks, to the scheduler
        self._poisoned = 0  # nothing is stored until the scheduler has acted on this report
        self._ask_in = 0  # steps
        self._copied = 0  # bytes of this step's stores
        self._step = 0  # with work, not told of yet
        self._done: dict[int, tuple[int, int]] = {}  # answers to saves: workers and positions
        self._open: dict[int, tuple[int, int]] = {}  # saves of several calls: how many are left, positions

    # ---- KV tensors -----------------------------------------------------------------------------------------------

    def register(self, kv_caches: Mapping[str, Any], kv_cache_config: Any) -> None:
        """The engine's KV tensors. layout.UnknownLayout: they are of no kind that is known here."""
        placed = {layer: tensor for tensor in kv_cache_config.kv_cache_tensors for layer in getattr(tensor, "layers", ())}
        made: dict[int, kvist.Pages | None] = {}
        arrays: dict[int, list[Any]] = {}
        for column in self.plan.columns:
            group = column.group
            if group.index not in arrays:
                spec = kv_cache_config.kv_cache_groups[group.index]
                arrays[group.index] = layout.arrays_of(kv_caches, spec, kv_cache_config.num_blocks, placed)
                have = sum(array.shape[1] for array in arrays[group.index])
                if group.page_bytes and have != group.page_bytes:
                    raise layout.UnknownLayout(
                        f"a block of KV group {group.index} has {have} bytes, and the engine's configuration says "
                        f"{group.page_bytes}"
                    )
        devices = {array.device.type for group in arrays.values() for array in group}
        if devices <= {"cpu"}:
            for index, group_arrays in arrays.items():
                made[index] = kvist.Pages(group_arrays) if group_arrays else None
            self._pages = HostPages([made[column.group.index] for column in self.plan.columns])
        elif devices == {"cuda"}:
            from kvist.vllm.worker_cuda import cuda_pages

            self._pages = cuda_pages([arrays[column.group.index] for column in self.plan.columns])
        else:
            raise layout.UnknownLayout(f"KV tensors on {', '.join(sorted(devices))}")

    def before_step(self, _: Any = None) -> None:
        """A step begins that may overwrite blocks of requests that ended or were preempted."""
        if self._puts and self._pages is not None:
            self._pages.before_step()

    # ---- loads ----------------------------------------------------------------------------------------------------

    def load(self, step: Step) -> None:
        """Fills the blocks that this step needs, and begins to fill those of later ones."""
        self._step = step.number
        for load in step.before:
            self._load_now(step.name, load)
        for load in step.between:
            self._load_later(step.name, load)

    def _load_now(self, name: Name, load: Load) -> None:
        began = time.monotonic()
        bad: set[int] = set()
        space = self._space(name)
        for number, start, ids in load.runs:
            bad |= self._fill(space, load, number, start, ids)
        self.counters.time("load_seconds", time.monotonic() - began)
        if bad:
            self.counters.add("failed_loads")
            self._errors |= bad
            self._poisoned = self._reports + 1  # the report that these blocks will be in

    def _fill(self, space: kvist.Space | None, load: Load, number: int, start: int, ids: list[int]) -> set[int]:
        """Copies one run; the blocks that are not right afterwards."""
        nbytes = self._pages.page_bytes(number)
        if nbytes == 0:
            return set()
        if space is None:
            return set(ids)
        chain = _slice(load.chain, start, len(ids))
        try:
            results = self._pages.read(space, chain, number, ids, self._parts[number], self.settings.deadline)
        except kvist.Error as error:
            self._link.failed(error)
            return set(ids)
        self._loaded(results.done, nbytes)
        return self._bad(space, results, ids)

    def _bad(self, space: kvist.Space, results: Any, ids: list[int]) -> set[int]:
        if results.ok:
            return set()
        self._check(space, results)
        missing = results.count(kvist.Code.NOT_FOUND)
        if missing:
            self._link.count("not_found", missing)
        return {block for block, code in zip(ids, results) if code != kvist.Code.OK}

    def _load_later(self, name: Name, load: Load) -> None:
        get = _Get(load.request, time.monotonic() + self.settings.deadline + _GRACE)
        self._gets[load.request] = get
        space = self._space(name)
        for number, start, ids in load.runs:
            nbytes = self._pages.page_bytes(number)
            if nbytes == 0:
                continue
            if space is None:
                get.bad.update(ids)
                continue
            chain = _slice(load.chain, start, len(ids))
            try:
                call = self._pages.begin_read(space, chain, number, ids, self._parts[number], self.settings.deadline)
            except kvist.Error as error:
                self._link.failed(error)
                get.bad.update(ids)
                continue
            get.calls[id(call)] = (call, ids, nbytes, space)
            if call.done:
                self._got(get, call)

    def _got(self, get: _Get, call: Any) -> None:
        _, ids, nbytes, space = get.calls.pop(id(call))
        self._loaded(call.results.done, nbytes)
        get.bad |= self._bad(space, call.results, ids)

    def _loaded(self, blocks: int, nbytes: int) -> None:
        if blocks:
            self.counters.add("loaded_blocks", blocks)
            self.counters.add("loaded_bytes", blocks * nbytes)

    def busy(self) -> bool:
        """Whether finished() could have something to tell, or stores that were answered should be counted."""
        if self._gets:
            return True
        if not self._puts:
            return False
        self._ask_in -= 1
        return self._ask_in <= 0 or bool(self._open)

    def finished(self) -> tuple[set[str], set[str]]:
        """Asynchronous loads that are over, each told once, and which of them failed without saying which blocks."""
        done: set[str] = set()
        failed: set[str] = set()
        self._poll()
        now = time.monotonic()
        for request, get in list(self._gets.items()):
            if get.calls:
                if now < get.until:
                    continue
                for _, ids, _, _ in get.calls.values():
                    get.bad.update(ids)
                self._link.count("deadline_exceeded")
            del self._gets[request]
            done.add(request)
            self.counters.time("load_seconds", now - get.began)
            if get.bad:
                self.counters.add("failed_loads")
                if self._alone:
                    self._errors |= get.bad
                else:
                    failed.add(request)
        return done, failed

    def errors(self) -> set[int]:
        """Blocks that could not be filled, each told once."""
        errors, self._errors = self._errors, set()
        if errors:
            self._reports += 1
        return errors

    # ---- stores ---------------------------------------------------------------------------------------------------

    def save(self, step: Step) -> None:
        """Hands the full blocks of this step over."""
        if not self._writes or self._pages is None:
            for save in step.saves:
                self._answer(save.number, len(save.chain))
            return
        if self._poisoned > step.acked:
            self._drop(step.saves, "failed_load")  # what the step computed may rest on blocks that never came
            return
        began = time.monotonic()
        link = self.names.use(step.name)
        if link.rests():
            self._drop(step.saves, "pause")
            return
        space = link.space()
        if space is None:
            self._drop(step.saves, "unavailable")
            return
        self._copied = 0
        for i, save in enumerate(step.saves):
            why = self._save(space, save, began)
            if why is not None:
                self._drop(step.saves[i + 1 :], why)
                break
        if len(self._puts) * 2 > self.settings.max_saves:
            self._ask_in = 0
        self.counters.time("save_seconds", time.monotonic() - began)

    def _save(self, space: kvist.Space, save: Save, began: float) -> str | None:
        """Not None: the step should not try another one, for this reason."""
        nbytes = sum(len(ids) * self._pages.page_bytes(number) for number, _, ids in save.runs)
        self._copied += nbytes
        allowed = self.settings.save_deadline + self._copied / _RATE
        left = allowed - (time.monotonic() - began)
        if len(self._puts) >= self.settings.max_saves:
            self._poll()
        if left <= 0 or len(self._puts) + len(save.runs) > self.settings.max_saves:
            self._drop([save], "too_many" if left > 0 else "too_slow")
            return None if left > 0 else "pause"
        if save.number:
            self._open[save.number] = (len(save.runs), len(save.chain))
        for i, (number, start, ids) in enumerate(save.runs):
            try:
                call = self._put(space, save, number, start, ids, left)
            except kvist.Error as error:
                self._link.failed(error)
                reason = error.code.name.lower()
                for _, _, unsaved in save.runs[i:]:
                    self._unsaved(save, unsaved, reason)
                if error.code not in _WHOLE:  # those cost the next steps no time, and end with what mends them
                    self._link.rest()
                return reason
            if call is None:
                self._unsaved(save, ids, "no_staging")
                continue
            put = _Put(space, call, save.number, start + len(ids), self._pages.page_bytes(number) or 1)
            if call.done:
                self._stored(put)
            else:
                self._puts[id(call)] = put
        if time.monotonic() - began < allowed:
            return None
        self._link.rest()  # the step had to wait for room
        return "pause"

    def _put(self, space: kvist.Space, save: Save, number: int, start: int, ids: list[int], timeout: float) -> Any:
        chain = _slice(save.chain, start, len(ids))
        part = self._parts[number]
        if self._pages.page_bytes(number):
            return self._pages.begin_write(space, chain, number, ids, part, save.session, timeout)
        # A stage without layers of this group says so with one byte: a position counts only with all its parts.
        return space.submit_put(chain, [b"\0"] * len(ids), part=part, timeout=timeout)

    def _unsaved(self, save: Save, ids: list[int], reason: str) -> None:
        self.counters.because("dropped_blocks", reason, len(ids))
        self._answer(save.number, 0)

    def _stored(self, put: _Put) -> None:
        results = put.call.results
        there = results.count(kvist.Code.ALREADY_EXISTS)
        if results.done:
            self.counters.add("saved_blocks", results.done)
            self.counters.add("saved_bytes", results.done * put.nbytes)
        if there:
            self.counters.add("present_blocks", there)
        missing = len(results) - results.done - there
        if missing:
            self._check(put.space, results)
            late = results.count(kvist.Code.DEADLINE_EXCEEDED)  # most of them are stored all the same, only later
            if late:
                self.counters.because("dropped_blocks", "unanswered", late)
            if missing > late:
                self.counters.because("dropped_blocks", "refused", missing - late)
        else:
            self._link.went_well()
        if put.number:
            stop = next((i for i, code in enumerate(results) if code not in (0, kvist.Code.ALREADY_EXISTS)), len(results))
            self._answer(put.number, put.positions - len(results) + stop if stop < len(results) else put.positions)

    def _answer(self, number: int, positions: int) -> None:
        """One call of a save ended with so many positions stored."""
        if not number:
            return
        left, least = self._open.pop(number, (1, positions))
        least = min(least, positions)
        if left > 1:
            self._open[number] = (left - 1, least)
        else:
            self._done[number] = (1, least)

    def _drop(self, saves: list[Save], reason: str) -> None:
        for save in saves:
            self.counters.because("dropped_blocks", reason, sum(len(ids) for _, _, ids in save.runs))
            if save.number:
                self._open.pop(save.number, None)
                self._done[save.number] = (1, 0)

    def answers(self) -> Done | None:
        """That this step had work and is over, and how saves ended that the scheduler wants to know of."""
        if not self._done and not self._step:
            return None
        done, self._done = Done(self._step, self._done), {}
        self._step = 0
        return done

    # ---- shared ---------------------------------------------------------------------------------------------------

    def _space(self, name: Name) -> kvist.Space | None:
        return self.names.use(name).space()

    @property
    def _link(self) -> Link:
        link = self.names.link
        assert link is not None, "a step names its namespace before anything is done in it"
        return link

    def _poll(self) -> None:
        link = self.names.link
        client = link.client if link is not None else None
        if client is not self._client:
            if self._client is not None:
                self._forget_puts()
            self._client = client
        if client is None or client.closed:
            return
        try:
            calls = client.poll()
        except kvist.Error as error:
            self._link.failed(error)
            return
        self._ask_in = self._pages.ask
        for call in self._pages.advance(calls):
            put = self._puts.pop(id(call), None)
            if put is not None:
                self._stored(put)
                continue
            for get in self._gets.values():
                if id(call) in get.calls:
                    self._got(get, call)
                    break

    def _forget_puts(self) -> None:
        """Another client has taken the place of the one that they went to, whose calls come out of nowhere any more."""
        assert self._client is not None
        self._client.close()  # from here on it touches nobody's memory
        for put in self._puts.values():
            self.counters.because("dropped_blocks", "unanswered", len(put.call.results))
            self._answer(put.number, 0)
        self._puts.clear()
        self._pages.forget()

    def _check(self, space: kvist.Space, results: Any) -> None:
        """Counts what failed, and sees to it where that was the whole call."""
        try:
            if isinstance(results, kvist.Results):
                space._check(results)
            elif results.count(results[0]) == len(results) and results[0] in _WHOLE:
                raise error_class(results[0])("a call of several pieces failed", results[0])
        except kvist.Error as error:
            self._link.failed(error)
        else:
            self._link.tally(results)

    def close(self) -> None:
        self.names.close()
