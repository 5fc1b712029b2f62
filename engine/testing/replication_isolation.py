"""A server of a simulation that takes an insert with a quorum and is alone with it: nobody can fetch the
part, and soon after its session with Keeper is over, so that the others give the quorum up. By the other
faults it comes to this in one of fifty runs."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from engine.replication.quorum import QuorumStatus

if TYPE_CHECKING:
    from engine.testing.replication_cluster import ReplicationCluster, SimulatedNode

_LOOKING_S = 0.05
_LONGEST_INSERT_S = 20.0


class Isolation:
    """Isolates nodes that insert, one at a time. One for a cluster; chooses by a stream of its own."""

    def __init__(self, cluster: ReplicationCluster) -> None:
        self._cluster = cluster
        self._rng = random.Random(f"isolation {cluster.scenario.seed}")
        self._task: asyncio.Task[None] | None = None

    def insert_begins(self, node: SimulatedNode) -> None:
        """An insert with a quorum is about to be sent to `node`: now and then it ends badly."""
        is_wanted = self._cluster.scenario.has_isolated_inserts and self._rng.random() < 0.5
        if is_wanted and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._isolate(node), name=f"isolation of {node.name}")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _isolate(self, node: SimulatedNode) -> None:
        cluster, rng = self._cluster, self._rng
        others = [other for other in cluster.nodes.values() if other is not node]
        process = node.process
        for other in others:
            cluster.network.cut_both(node.name, other.name)
        try:
            if not await self._wait_until_alone(node):
                return
            # Time enough for a merge that must not take the part, or none.
            await cluster.env.sleep(rng.choice([0.0, rng.uniform(0.0, 6.0)]))
            if process is None or node.process is not process or not node.is_running:
                return
            cluster.reached["insert isolated"] += 1
            for_s = rng.uniform(10.0, 30.0)
            if rng.random() < 0.3:
                process.kill()
            else:
                cluster.cut_off_from_keeper(node, for_s)
                for session_id in cluster.server.session_ids(process.name):
                    cluster.server.expire_session(session_id)
            await cluster.env.sleep(for_s)
        finally:
            for other in others:
                cluster.network.heal(node.name, other.name)
                cluster.network.heal(other.name, node.name)

    async def _wait_until_alone(self, node: SimulatedNode) -> bool:
        """Until a quorum is waited for that nobody but `node` counts for. False: there is none so soon."""
        waited_s = 0.0
        while waited_s < _LONGEST_INSERT_S:
            if any(status.replicas == frozenset({node.me.name}) for status in self._pending()):
                return True
            await self._cluster.env.sleep(_LOOKING_S)
            waited_s += _LOOKING_S
        return False

    def _pending(self) -> list[QuorumStatus]:
        paths, tree = self._cluster.paths, self._cluster.server.tree.nodes
        parallel = [
            f"{paths.quorum_parallel}/{name}" for name in self._cluster.children(paths.quorum_parallel)
        ]
        found = [path for path in (paths.quorum_status, *parallel) if path in tree]
        return [QuorumStatus.from_bytes(tree[path].data, where=path) for path in found]
