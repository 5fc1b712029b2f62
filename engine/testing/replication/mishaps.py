"""What goes wrong in a simulation of replicated tables from outside: processes that stop, partitions, Keeper
that restarts, disks that are harmed or lost, entries of the log that nobody can read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from engine.keeper.base import Create, CreateMode, SetData
from engine.keeper.faults import Direction
from engine.replication.log_actions import SyncPinnedPartUuids
from engine.replication.log_entry import MAX_VERSION, LogEntry
from engine.testing.replication.disk import Damage
from engine.testing.replication.node import SimulatedNode
from engine.testing.replication.quiet import damaged_parts

if TYPE_CHECKING:
    from engine.testing.replication.cluster import ReplicationCluster

POISON = {
    "poison entry: unparsable": b"no entry of any server",
    "poison entry: unknown version": f"format version: {MAX_VERSION + 1}\nsomething new".encode(),
    "poison entry: large": b"x" * 1_000_000,
}
"""Entries of the log that nobody can read."""


class Mishaps:
    """One for a cluster; what they are is drawn by the caller, or from the cluster's random numbers."""

    def __init__(self, cluster: ReplicationCluster) -> None:
        self._cluster = cluster
        self._poisoned: list[str] = []

    def stop_for_a_while(self, node: SimulatedNode, for_s: float) -> None:
        """SIGSTOP, and SIGCONT later: its session may be over by then, and it does not know."""
        process = node.process
        assert process is not None
        self._cluster.reached["stopped"] += 1
        process.stop()
        self.cut_off_from_keeper(node, for_s)
        asyncio.get_running_loop().call_later(for_s, process.go_on)

    def cut_off_from_keeper(
        self, node: SimulatedNode, for_s: float, *, direction: Direction = Direction.BOTH
    ) -> None:
        cluster, process = self._cluster, node.process
        assert process is not None
        if node.cut_off_since is not None:
            return
        cluster.reached[f"partition from Keeper: {direction.value}"] += 1
        cluster.server.partition(process.name, direction=direction)
        node.cut_off_since = cluster.history.tick()

        def heal() -> None:
            cluster.server.heal(process.name)
            if node.process is process:
                node.cut_off_since = None

        asyncio.get_running_loop().call_later(for_s, heal)

    def rename_host(self, node: SimulatedNode, unknown_for_s: float) -> None:
        """The machine comes back under another name, which nobody can resolve at first."""
        cluster, process = self._cluster, node.process
        assert process is not None
        cluster.reached["host renamed"] += 1
        address = node.address = f"{node.name}-{node.incarnation}"
        cluster.network.forget_name(address)
        asyncio.get_running_loop().call_later(unknown_for_s, cluster.network.know_name, address)
        process.kill()

    async def restart_keeper(self, down_s: float) -> None:
        cluster = self._cluster
        cluster.reached["keeper restart"] += 1
        for node in cluster.nodes.values():
            node.cut_off_since = node.cut_off_since or cluster.history.tick()
        await cluster.server.restart(down_s=down_s)
        for node in cluster.nodes.values():
            if node.process is None or node.process.name not in cluster.server.network.partitions:
                node.cut_off_since = None

    def harm(self, node: SimulatedNode) -> None:
        """A part on this disk is damaged, if another replica has it whole."""
        cluster = self._cluster
        names = [
            name
            for name in sorted(node.disk.active)
            if any(
                name in other.disk.active
                and name not in damaged_parts(other)
                and other.me.part(name) in cluster.server.tree.nodes
                for other in cluster.nodes.values()
                if other is not node
            )
        ]
        if names:
            name, damage = cluster.rng.choice(names), cluster.rng.choice(list(Damage))
            cluster.reached[f"{damage.value} on disk"] += 1
            node.disk.damage(name, damage, cluster.rng.getrandbits(30))
            cluster.history.harmed.append((cluster.history.tick(), node.me.name, name))

    def lose_disk(self, node: SimulatedNode) -> None:
        """All parts of a node are gone, and its process with them."""
        history = self._cluster.history
        self._cluster.reached["disk lost"] += 1
        history.wiped.append((history.tick(), node.me.name))
        history.disks_lost.setdefault(node.me.name, []).append(history.clock)
        node.disk.active.clear()
        node.disk.staged.clear()
        node.disk.detached.clear()
        if node.process is not None:
            node.process.kill()

    # --- entries that nobody can read -----------------------------------------------------------------------

    def poison_log(self, for_s: float) -> None:
        """Somebody writes such an entry into the log; a person puts one in its place, later, that says
        nothing."""
        cluster = self._cluster
        if cluster.paths.log not in cluster.server.tree.nodes:
            return
        what = cluster.rng.choice(list(POISON))
        cluster.reached[what] += 1
        create = Create(cluster.paths.log_prefix, POISON[what], CreateMode.PERSISTENT_SEQUENTIAL)
        before = set(cluster.children(cluster.paths.log))
        cluster.write([create])
        self._poisoned += set(cluster.children(cluster.paths.log)) - before
        asyncio.get_running_loop().call_later(for_s, self.cure_log)

    def cure_log(self) -> None:
        cluster = self._cluster
        harmless = LogEntry(SyncPinnedPartUuids(), "", "2020-01-01 00:00:00").to_bytes()
        paths = [f"{cluster.paths.log}/{name}" for name in self._poisoned]
        for path in paths:
            node = cluster.server.tree.nodes.get(path)
            if node is not None and node.data in POISON.values():
                cluster.write([SetData(path, harmless)])
        self._poisoned.clear()
