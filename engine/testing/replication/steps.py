"""What the steps of a simulated workload have in common: a node is chosen, something is done there, and it is
written down how that ended for whoever asked."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar

from engine.errors import Code, OnclusterError, UnknownOutcome
from engine.replication.commands.insert import InsertOptions
from engine.replication.commands.waiting import Sync
from engine.testing.replication.cluster import ReplicationCluster
from engine.testing.replication.history import Outcome
from engine.testing.replication.node import SimulatedNode
from engine.testing.replication.rows import Value

T = TypeVar("T")
Rowset = list[dict[str, Value]]
_UNKNOWN = (Code.UNKNOWN_STATUS_OF_INSERT, Code.UNFINISHED, Code.KEEPER_EXCEPTION)


class Waiting(TypedDict):
    sync: Sync
    inactive_timeout_s: float


@dataclass(frozen=True, slots=True)
class Block:
    """One insert that a client may send several times."""

    number: int
    partition_id: str
    rows: Rowset
    options: InsertOptions


class Steps:
    """Choices, and how a step is run on a node."""

    def __init__(self, cluster: ReplicationCluster) -> None:
        self._cluster = cluster
        self._scenario = cluster.scenario
        self._reached = cluster.reached
        self._rng = random.Random(f"workload {cluster.scenario.seed}")
        self._blocks: list[Block] = []
        self._running: list[asyncio.Task[None]] = []

    async def _on(
        self, node: SimulatedNode, what: str, operation: Coroutine[Any, Any, T]
    ) -> tuple[Outcome, T | None]:
        """Run it in the node's process; a kill leaves its outcome unknown."""
        assert node.process is not None
        task = node.process.spawn(operation, name=f"{what} on {node.name}")
        if self._scenario.has_impatient_users and self._rng.random() < 0.3:
            asyncio.get_running_loop().call_later(self._rng.choice([0.0, 0.01, 0.3, 3.0]), task.cancel)
        try:
            done = (await asyncio.gather(task, return_exceptions=True))[0]
        finally:
            task.cancel()
        outcome, result = Outcome.OK, None
        match done:
            case asyncio.CancelledError():
                outcome = Outcome.UNKNOWN
                self._reached[f"{what} killed"] += 1
            case UnknownOutcome():
                outcome = Outcome.UNKNOWN
            case OnclusterError(code=code):
                outcome = Outcome.UNKNOWN if code in _UNKNOWN else Outcome.FAILED
                self._reached[f"{what} failed with {code}"] += 1
            case OSError():
                outcome = Outcome.UNKNOWN
            case BaseException():
                raise done
            case _:
                result = done
        self._reached[f"{what} {outcome.value}"] += 1
        return outcome, result

    def _node(self) -> SimulatedNode | None:
        running = [node for node in self._cluster.nodes.values() if node.is_running]
        return self._rng.choice(running) if running else None

    def _partition(self) -> str:
        return str(self._rng.randint(1, self._scenario.partitions))

    def _sync(self) -> Sync:
        return self._rng.choice([Sync.NONE, Sync.OWN, Sync.ALL])

    def _waiting(self) -> Waiting:
        return {"sync": self._sync(), "inactive_timeout_s": 10.0}
