"""A server of a simulation that takes an insert and is alone with it: nobody can fetch the part, and soon
after its session with Keeper is over. If the insert has a quorum the others give it up; without one they may
only wait for the server. By the other faults it comes to this in one of fifty runs, or of a thousand."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.replication.part_name import PartName
from engine.replication.quorum import QuorumStatus

if TYPE_CHECKING:
    from engine.testing.replication.cluster import ReplicationCluster
    from engine.testing.replication.node import SimulatedNode

_LOOKING_S = 0.05
_LONGEST_INSERT_S = 20.0


@dataclass(frozen=True, slots=True)
class _Absence:
    """Of one kind of insert: when its server is alone with it, how long it stays so before it goes, for how
    long it is gone, and how often it is killed instead."""

    is_alone: Callable[[SimulatedNode], bool]
    longest_stay_s: float
    away_s: tuple[float, float]
    kill_rate: float


class Isolation:
    """Isolates nodes that insert, one at a time. One for a cluster; chooses by a stream of its own."""

    def __init__(self, cluster: ReplicationCluster) -> None:
        self._cluster = cluster
        self._rng = random.Random(f"isolation {cluster.scenario.seed}")
        self._task: asyncio.Task[None] | None = None

    def insert_begins(self, node: SimulatedNode, *, has_quorum: bool) -> None:
        """An insert is about to be sent to `node`: now and then it ends badly."""
        scenario = self._cluster.scenario
        is_possible = scenario.has_isolated_inserts if has_quorum else scenario.has_absent_holders
        is_wanted = is_possible and self._rng.random() < 0.5
        if is_wanted and (self._task is None or self._task.done()):
            if has_quorum:  # it stays long enough for a merge that must not take the part
                absence = _Absence(self._is_waited_for, 6.0, (10.0, 30.0), 0.3)
            else:
                absence = _Absence(self._holds_alone, 0.0, (20.0, 90.0), 0.0)
            self._task = asyncio.create_task(self._isolate(node, absence), name=f"isolation of {node.name}")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _isolate(self, node: SimulatedNode, absence: _Absence) -> None:
        cluster, rng = self._cluster, self._rng
        others = [other for other in cluster.nodes.values() if other is not node]
        process = node.process
        for other in others:
            cluster.network.cut_both(node.name, other.name)
        try:
            if not await self._wait_until(absence.is_alone, node):
                return
            await cluster.env.sleep(rng.choice([0.0, rng.uniform(0.0, absence.longest_stay_s)]))
            if process is None or node.process is not process or not node.is_running:
                return
            cluster.reached["insert isolated"] += 1
            cluster.reached["holder away"] += self._holds_alone(node)
            for_s = rng.uniform(*absence.away_s)
            if rng.random() < absence.kill_rate:
                process.kill()
            else:
                cluster.mishaps.cut_off_from_keeper(node, for_s)
                for session_id in cluster.server.session_ids(process.name):
                    cluster.server.expire_session(session_id)
            await cluster.env.sleep(for_s)
        finally:
            for other in others:
                cluster.network.heal(node.name, other.name)
                cluster.network.heal(other.name, node.name)

    async def _wait_until(self, is_alone: Callable[[SimulatedNode], bool], node: SimulatedNode) -> bool:
        """False: it does not come to that so soon."""
        waited_s = 0.0
        while waited_s < _LONGEST_INSERT_S:
            if is_alone(node):
                return True
            await self._cluster.env.sleep(_LOOKING_S)
            waited_s += _LOOKING_S
        return False

    def _is_waited_for(self, node: SimulatedNode) -> bool:
        """Whether there is a quorum that nobody but `node` counts for."""
        return any(status.replicas == frozenset({node.me.name}) for status in self._pending())

    def _holds_alone(self, node: SimulatedNode) -> bool:
        """Whether `node` has a part that is in Keeper under no other replica, nor one covering it."""
        cluster = self._cluster
        own = [PartName.parse(name) for name in cluster.children(node.me.parts)]
        others = [
            PartName.parse(name)
            for other in cluster.nodes.values()
            if other is not node
            for name in cluster.children(other.me.parts)
        ]
        return any(not any(other.contains(part) for other in others) for part in own if part.level == 0)

    def _pending(self) -> list[QuorumStatus]:
        paths, tree = self._cluster.paths, self._cluster.server.tree.nodes
        parallel = [
            f"{paths.quorum_parallel}/{name}" for name in self._cluster.children(paths.quorum_parallel)
        ]
        found = [path for path in (paths.quorum_status, *parallel) if path in tree]
        return [QuorumStatus.from_bytes(tree[path].data, where=path) for path in found]
