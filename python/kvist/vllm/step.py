"""What the scheduler's side tells the workers' side of a step, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import kvist
from kvist.vllm.plan import Run
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

Name = tuple[str, str]  # hash seed and weights epoch: what of a namespace's identity a worker is told


@dataclass
class Load:
    """Blocks of a request to be filled: of the chain's positions, by runs."""

    request: str
    chain: kvist.Digests
    runs: list[Run]


@dataclass
class Save:
    """Blocks that are full after this step. number: for the answer, 0 where none is wanted; session: the conversation."""

    chain: kvist.Digests
    runs: list[Run]
    number: int = 0
    session: str = ""


class Step(KVConnectorMetadata):
    """One step with work. number: for the answer; acked: reports of bad blocks that the scheduler has acted on."""

    def __init__(
        self, name: Name, number: int, acked: int, before: list[Load], between: list[Load], saves: list[Save]
    ) -> None:
        self.name, self.number, self.acked = name, number, acked
        self.before = before  # loads that this step's tokens are computed with
        self.between = between  # asynchronous ones
        self.saves = saves

    def __reduce__(self) -> Any:
        return Step, (self.name, self.number, self.acked, self.before, self.between, self.saves)


class _Idle(Step):
    """A step without work: most of them."""

    def __reduce__(self) -> Any:
        return "IDLE"


IDLE = _Idle(("", ""), 0, 0, [], [], [])


@dataclass
class Done(KVConnectorWorkerMetadata):
    """step: the one that has ended, if it had work. stored: how saves ended; for each number, on how many workers, and
    how many of the chain's first positions all of them have."""

    step: int = 0
    stored: dict[int, tuple[int, int]] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        assert isinstance(other, Done)
        self.step = max(self.step, other.step)
        for number, (workers, positions) in other.stored.items():
            mine = self.stored.get(number)
            self.stored[number] = (workers, positions) if mine is None else (mine[0] + workers, min(mine[1], positions))
        return self
