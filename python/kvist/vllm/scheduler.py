"""The scheduler's side of the connector: what of a prompt is in the pool, and which blocks the workers load and store.

It runs in the engine core's thread, between two steps, so it waits for nothing: finding a prefix is one call into shared
memory. What was found stays pinned from the match until the workers have read it, so that nothing of it is evicted between.
What is on the node's disk counts too: the node is told to read it, by a message whose answer is not waited for. A load between
steps waits for it; where loads are part of a step, the request waits until it is in memory.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from typing import Any

import kvist
from kvist._types import error_class
from kvist.vllm.identity import lora_mark
from kvist.vllm.names import Names
from kvist.vllm.plan import NULL_BLOCK, Plan, Run
from kvist.vllm.stats import Counters
from kvist.vllm.step import IDLE, Done, Load, Save, Step

_PIN_SECONDS = 10.0  # a match that got no blocks by then is looked up again
_STEPS = 64  # under way at once, by far more than any engine has
_LONGEST_SESSION = 255  # bytes that the pool keeps of a session's name
_MISSES = (kvist.Code.OK, kvist.Code.NOT_FOUND)


class Request:
    """What is known of a request of the engine."""

    __slots__ = (
        "chain",
        "count",
        "due",
        "failed",
        "found",
        "found_at",
        "found_first",
        "found_limit",
        "last",
        "local",
        "lora",
        "request",
        "saved",
        "session",
        "space",
        "total",
        "waits",
    )

    def __init__(self, request: Any, lora: bytes | None) -> None:
        self.request, self.lora = request, lora
        self.chain = kvist.Digests()  # of the first `count` positions, as `space` names them; `last`: hash of the last one
        self.count, self.last, self.space = 0, b"", None
        session = str(getattr(request, "session_id", None) or "")
        self.session = session if len(session.encode()) <= _LONGEST_SESSION else ""
        self.local = 0  # tokens that the engine had itself at the last look
        self.saved = 0  # positions that need no saving any more
        self.due = 0  # tokens computed at which there may be one more
        self.found: kvist.Prefix | None = None  # pinned
        self.total = 0  # positions found: those and, behind them, what is on disk
        self.found_first = self.found_limit = 0
        self.found_at = 0.0
        self.waits = 0.0  # until when it may be told to ask again
        self.failed = False  # a load went wrong: it is computed

    def drop(self) -> None:
        """Unpins what was found."""
        found, self.found = self.found, None
        self.total = 0
        if found is not None:
            found.close()


class Flight:
    """Blocks on their way to the workers."""

    __slots__ = ("blocks", "key", "pins", "state", "until")

    def __init__(self, state: Request, pins: kvist.Prefix | None, key: bytes, blocks: set[int], until: float) -> None:
        self.state, self.pins, self.key, self.blocks, self.until = state, pins, key, blocks, until

    def land(self) -> None:
        if self.pins is not None:
            self.pins.close()
            self.pins = None


Begun = tuple[Request, int, kvist.Digests]  # a save: of this request, from this position on


class Scheduler:
    """One engine's. between: loads are asynchronous; saves, loads: whether this engine stores and reads (its kv_role);
    events: where KV events are made, or None."""

    def __init__(
        self,
        plan: Plan,
        names: Names,
        *,
        hash_tokens: int,
        deadline: float,
        max_loads: int,
        between: bool,
        saves: bool,
        loads: bool,
        events: Any,
        counters: Counters,
    ) -> None:
        self.plan, self.names, self.events, self.counters = plan, names, events, counters
        self._tokens, self._scale = plan.tokens, plan.tokens // hash_tokens
        self._deadline, self._max_loads = deadline, max_loads
        self._between, self._saves, self._loads = between, saves, loads
        self.requests: dict[str, Request] = {}
        self._before: list[Load] = []  # of the step that is being scheduled
        self._later: list[Load] = []
        self._landing: list[Flight] = []  # their flights
        self._flying: dict[str, Flight] = {}  # asynchronous loads, by request
        self._keys: dict[bytes, Flight] = {}  # and by the first position that they load
        self._steps: deque[tuple[int, list[Flight], list[Begun]]] = deque()  # steps under way with work
        self._number = 0
        self._acked = 0
        self._boundary_groups = {column.group.index for column in plan.columns if column.group.by_boundary}

    # ---- requests -------------------------------------------------------------------------------------------------

    def add(self, request: Any) -> Request:
        lora = getattr(request, "lora_request", None)
        state = Request(request, lora_mark(lora) if lora is not None else None)
        state.due = self._tokens
        self.requests[request.request_id] = state
        return state

    def finished(self, request_id: str) -> None:
        """It ended or was aborted. What is on its way to its blocks stays pinned until the workers say that it is over."""
        state = self.requests.pop(request_id, None)
        if state is not None:
            state.drop()

    # ---- look-up --------------------------------------------------------------------------------------------------

    def match(self, request: Any, computed: int) -> tuple[int | None, bool]:
        """Tokens behind the first `computed` that the pool has, never the last of the prompt; and whether they come between
        steps. None: ask again at the next step."""
        state = self.requests.get(request.request_id) or self.add(request)
        state.local = computed
        first, odd = divmod(computed, self._tokens)
        limit = min((request.num_tokens - 1) // self._tokens, len(request.block_hashes) // self._scale)
        if not self._loads or odd or first >= limit or state.failed or getattr(request, "skip_reading_prefix_cache", False):
            state.drop()
            return 0, False
        space = self.names.space()
        if space is None:
            state.drop()
            return 0, False
        now = time.monotonic()
        if self._between and self._wait(state, self._chain(state, space, limit)[first], now):
            state.drop()
            return None, False
        if not state.total or not self._holds(state, space, first, limit, now):
            state.drop()
            self._look(state, space, first, limit, now)
        pinned = len(state.found) if state.found is not None else 0
        if state.total > pinned and not self._between:
            state.waits = state.waits or now + self._deadline
            if now < state.waits:
                state.drop()
                return None, False
            state.total = pinned
        if not state.total:
            state.drop()
            return 0, False
        if self._between and len(self._flying) >= self._max_loads:
            state.waits = state.waits or now + self._deadline
            if now < state.waits:
                return None, False
            state.drop()
            return 0, False
        return state.total * self._tokens, self._between

    def _holds(self, state: Request, space: Any, first: int, limit: int, now: float) -> bool:
        return (
            state.found_first == first
            and state.found_limit == limit
            and state.space is space
            and now - state.found_at < _PIN_SECONDS
        )

    def _look(self, state: Request, space: kvist.Space, first: int, limit: int, now: float) -> None:
        chain = self._chain(state, space, limit)
        wanted = chain if state.count == limit else chain[:limit]
        try:
            found = space.prefix(wanted, start=first, timeout=self._deadline, on_disk="leave")
            total = len(found)
            if found.runs and found.runs[-1].source == "disk":  # it ended there: how far does it go with that?
                total = max(total, len(space.prefix(wanted, start=first, hint=True, timeout=self._deadline)))
        except kvist.Error as error:
            self.names.failed(error)
            return
        self.counters.add("lookups")
        self.counters.time("lookup_seconds", time.monotonic() - now)
        if found.code not in _MISSES:
            self.names.failed(error_class(found.code)(found.message, found.code))
        if self.events is not None and first + total < limit:
            self.events.gone(chain[first + total])
        if total == 0:
            found.close()
            return
        state.found, state.found_first, state.found_limit, state.found_at = found, first, limit, now
        state.total = total

    def _wait(self, state: Request, key: bytes, now: float) -> bool:
        """Whether another request is loading the same position: then this one finds it in the engine soon."""
        flight = self._keys.get(key)
        if flight is None or flight.state is state or now >= flight.until:
            return False
        state.waits = state.waits or now + self._deadline
        return now < state.waits

    def _chain(self, state: Request, space: kvist.Space, count: int) -> kvist.Digests:
        """The names of at least `count` positions. They grow with the request; a session that took back its last tokens has
        other ones from there on."""
        hashes, scale, have = state.request.block_hashes, self._scale, state.count
        if have and (state.space is not space or len(hashes) < have * scale or hashes[have * scale - 1] != state.last):
            have = 0
        if have < count:
            keys = hashes[(have + 1) * scale - 1 : count * scale : scale]
            if state.lora is not None:
                keys = [hashlib.sha256(state.lora + key).digest() for key in keys]
            more = space.digests(keys)
            state.chain = state.chain + more if have else more
            state.count, state.last, state.space = count, hashes[count * scale - 1], space
        return state.chain

    # ---- blocks ---------------------------------------------------------------------------------------------------

    def allocated(self, request: Any, block_ids: tuple[list[int], ...], external: int) -> None:
        """The engine gave the request blocks, the ones for `external` tokens to be filled by us."""
        state = self.requests.get(request.request_id) or self.add(request)
        found, state.found, state.total = state.found, None, 0
        first = state.local // self._tokens
        if external <= 0:
            if found is not None:
                found.close()
            if request.num_computed_tokens > 0:  # it goes on after an asynchronous load, or a session has more to say
                self._saved(state, min(state.saved, request.num_computed_tokens // self._tokens))
            else:
                self._saved(state, self._kept(state, first))
            return
        count = external // self._tokens
        space = state.space
        assert space is not None, "blocks were given to a request that matched nothing"
        chain = self._chain(state, space, first + count)
        runs = self.plan.runs(block_ids, first, first + count, load=True)
        now = time.monotonic()
        flight = Flight(
            state, found, chain[first], {block for _, _, ids in runs for block in ids}, now + 2 * self._deadline
        )
        load = Load(request.request_id, chain[first : first + count], runs)
        state.waits = 0.0
        self.counters.add("hit_tokens", external)
        if self._between:
            self._later.append(load)
            self._flying[request.request_id] = flight
            self._keys[flight.key] = flight
        else:
            self._before.append(load)
            self._landing.append(flight)
        self._saved(state, first + count)

    def _kept(self, state: Request, first: int) -> int:
        """From where on a request has to be saved whose first positions the engine has itself: the pool may have lost them,
        and what follows a hole is of no use to anybody."""
        space = self.names.space() if self._saves and first else None
        if space is None:
            return first
        try:
            with space.prefix(self._chain(state, space, first)[:first], hint=True, on_disk="leave") as kept:
                return len(kept)
        except kvist.Error as error:
            self.names.failed(error)
            return first

    def _saved(self, state: Request, count: int) -> None:
        state.saved = count
        state.due = (count + 1) * self._tokens

    # ---- steps ----------------------------------------------------------------------------------------------------

    def step(self, output: Any) -> Step:
        """What the workers have to do in this step."""
        saves: list[Save] = []
        begun: list[Begun] = []
        if self._saves:
            requests = self.requests
            for request_id, tokens in output.num_scheduled_tokens.items():
                state = requests.get(request_id)
                if state is not None and state.request.num_computed_tokens + tokens >= state.due:
                    self._plan_save(request_id, state, tokens, output.kv_connector_block_state, saves, begun)
            if self._boundary_groups:
                self._plan_boundaries(output.kv_connector_block_state, saves)
        if not saves and not self._before and not self._later:
            return IDLE
        before, self._before = self._before, []
        later, self._later = self._later, []
        landing, self._landing = self._landing, []
        self._number += 1
        if before or begun:
            self._steps.append((self._number, landing, begun))
            if len(self._steps) > _STEPS:  # an engine that does not tell how its steps ended
                for flight in self._steps.popleft()[1]:
                    flight.land()
        return Step(self.names.name, self._number, self._acked, before, later, saves)

    def _plan_save(
        self, request_id: str, state: Request, tokens: int, blocks: Any, saves: list[Save], begun: list[Begun]
    ) -> None:
        hashes = state.request.block_hashes
        full = min((state.request.num_computed_tokens + tokens) // self._tokens, len(hashes) // self._scale)
        if full <= state.saved:
            return  # the hash of the last block comes with the tokens of a step that is under way
        space = self.names.space()
        ids = blocks.get_block_ids(request_id)
        if space is None or ids is None:
            state.due = (full + 1) * self._tokens  # it is still there then, to be saved with what follows
            return
        start = state.saved
        chain = self._chain(state, space, full)[start:full]
        runs = self.plan.runs(ids, start, full, load=False)
        if not runs:
            self._saved(state, full)
            return
        number = self.events.planned(state.request, start, full, chain) if self.events is not None else 0
        saves.append(Save(chain, runs, number, state.session))
        begun.append((state, start, chain))
        self._saved(state, full)

    def _plan_boundaries(self, blocks: Any, saves: list[Save]) -> None:
        """States at block boundaries that the engine hands over by name."""
        for request_id, entries in blocks.boundary_state_offloads.items():
            state = self.requests.get(request_id)
            space = self.names.space()
            if state is None or space is None:
                continue
            for index, block, boundary in entries:
                position, odd = divmod(boundary, self._tokens)
                if odd or block == NULL_BLOCK or position > len(state.request.block_hashes) // self._scale or not position:
                    continue
                runs: list[Run] = [
                    (number, 0, [block])
                    for number, column in enumerate(self.plan.columns)
                    if column.group.index == index and column.sub == column.group.blocks - 1
                ]
                if runs:
                    saves.append(Save(self._chain(state, space, position)[position - 1 : position], runs))

    def answered(self, output: Any) -> None:
        """The workers' answer to a step: what they loaded is read, what they could not load is not in the engine."""
        bad, done = output.invalid_block_ids, output.kv_connector_worker_meta
        if done is None and not bad and not output.finished_recving:
            return  # as of most steps
        if bad:
            self._acked += 1
        while isinstance(done, Done) and self._steps and self._steps[0][0] <= done.step:
            _, landed, begun = self._steps.popleft()
            for flight in landed:
                flight.land()
                if bad and not flight.blocks.isdisjoint(bad):
                    flight.state.failed = True
            if bad:
                self._undo(begun, ours=any(not flight.blocks.isdisjoint(bad) for flight in landed))
        for flight in self._flying.values() if bad else ():
            if not flight.blocks.isdisjoint(bad):
                flight.state.failed = True
        failed = getattr(output, "failed_recving", None) or ()
        for request_id in output.finished_recving or ():
            flight = self._flying.pop(request_id, None)
            if flight is None:
                continue
            flight.land()
            if self._keys.get(flight.key) is flight:
                del self._keys[flight.key]
            if request_id in failed:
                flight.state.failed = True
        if self.events is not None and isinstance(done, Done):
            self.events.stored(done)

    def _undo(self, begun: list[Begun], ours: bool) -> None:
        """A step computed with blocks that were not right. ours: the workers knew and stored nothing of it; else they were
        another connector's, and what was stored has to go."""
        space = self.names.space() if not ours and begun else None
        for state, start, chain in begun:
            if start < state.saved:
                self._saved(state, start)
            try:
                if space is not None:
                    for part in range(len(self.plan.columns) * self.plan.ranks):
                        space.remove(chain, part=part, timeout=self._deadline)
            except kvist.Error as error:
                self.names.failed(error)

    # ---- resets ---------------------------------------------------------------------------------------------------

    def idle(self) -> bool:
        """Whether no load is under way."""
        return not (self._flying or self._before or self._later)

    def forget(self) -> None:
        """Another namespace from now on: nothing that was found in the old one counts."""
        for state in self.requests.values():
            state.drop()
            state.count, state.space = 0, None
        if self.events is not None:
            self.events.forget()

    def close(self) -> None:
        for state in self.requests.values():
            state.drop()
        for flight in [*self._flying.values(), *self._landing, *(f for _, landing, _ in self._steps for f in landing)]:
            flight.land()
        self.requests.clear()
        self.names.close()
