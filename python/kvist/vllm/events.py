"""KV events of the pool: which blocks are in it since now, and which are no more, so that routers can send requests to
where their prefix is. vLLM publishes them beside its own.

A position of ours is one event block of the position's tokens, named by vLLM's hash of its last block. It is announced
once all groups and workers have stored it. The pool does not tell of evictions; one that a look-up runs into is.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import kvist
from kvist.vllm.step import Done
from vllm.distributed.kv_events import BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

MEDIUM = "CPU"  # host memory, as vLLM's own offloading calls it
_ABOUT = {"locality": "LOCAL", "ownership": "kvist"}  # fields that came over time
_MOST_PLANNED, _MOST_KNOWN = 4096, 1 << 17


class Events:
    """The scheduler's. workers: how many answer to a store; tokens: of a position; scale: hashes of one."""

    def __init__(self, workers: int, tokens: int, scale: int) -> None:
        self._workers, self._tokens, self._scale = workers, tokens, scale
        self._about = {name: value for name, value in _ABOUT.items() if name in BlockRemoved.__struct_fields__}
        self._number = 0
        self._planned: OrderedDict[int, tuple[dict[str, Any], list[bytes], kvist.Digests]] = OrderedDict()
        self._answers: dict[int, tuple[int, int]] = {}
        self._known: OrderedDict[bytes, Any] = OrderedDict()  # digest of a position -> its hash, as announced
        self._events: list[Any] = []

    def planned(self, request: Any, start: int, end: int, chain: kvist.Digests) -> int:
        """Positions start..end are about to be stored. Returns the number that the answer will have."""
        self._number += 1
        scale, hashes = self._scale, request.block_hashes
        lora = getattr(request, "lora_request", None)
        fields = {
            "parent_block_hash": maybe_convert_block_hash(hashes[start * scale - 1]) if start else None,
            "token_ids": list(request.all_token_ids[start * self._tokens : end * self._tokens]),
            "lora_id": lora.adapter_id if lora else None,
            "lora_name": lora.name if lora else None,
        }
        if "session_id" in BlockStored.__struct_fields__:
            fields["session_id"] = getattr(request, "session_id", None)
        self._planned[self._number] = (fields, hashes[(start + 1) * scale - 1 : end * scale : scale], chain)
        if len(self._planned) > _MOST_PLANNED:
            forgotten, _ = self._planned.popitem(last=False)
            self._answers.pop(forgotten, None)
        return self._number

    def stored(self, done: Done) -> None:
        """Workers' answers. What the last of them has too is announced."""
        for number, (workers, positions) in done.stored.items():
            if number not in self._planned:
                continue
            before = self._answers.pop(number, None)
            if before is not None:
                workers, positions = workers + before[0], min(positions, before[1])
            if workers < self._workers:
                self._answers[number] = (workers, positions)
                continue
            fields, hashes, chain = self._planned.pop(number)
            if positions > 0:
                self._announce(fields, hashes[:positions], chain)

    def _announce(self, fields: dict[str, Any], hashes: list[bytes], chain: kvist.Digests) -> None:
        names = [maybe_convert_block_hash(one) for one in hashes]
        fields["token_ids"] = fields["token_ids"][: len(names) * self._tokens]
        self._events.append(
            BlockStored(block_hashes=names, block_size=self._tokens, medium=MEDIUM, **fields, **self._about)
        )
        for digest, name in zip(chain, names):
            self._known[digest] = name
            self._known.move_to_end(digest)
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)

    def gone(self, digest: bytes) -> None:
        """A look-up ended before this position: if it was announced, it is there no more."""
        name = self._known.pop(digest, None)
        if name is not None:
            self._events.append(BlockRemoved(block_hashes=[name], medium=MEDIUM, **self._about))

    def forget(self) -> None:
        """All that was announced is out of reach."""
        if self._known:
            self._events.append(BlockRemoved(block_hashes=list(self._known.values()), medium=MEDIUM, **self._about))
        self._known.clear()
        self._planned.clear()
        self._answers.clear()

    def take(self) -> list[Any]:
        """Each once."""
        events, self._events = self._events, []
        return events
