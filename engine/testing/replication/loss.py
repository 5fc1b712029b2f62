"""Keeper's data is lost in a simulation: a replica's nodes, those of several, or the whole table; and the
person who says SYSTEM RESTORE REPLICA on every node concerned until it is done."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING
from uuid import UUID

from engine.errors import Code, OnclusterError
from engine.keeper.base import Op, Remove
from engine.replication.commands.restore import RESTORING, attach_restored
from engine.replication.part_checksums import PartDiffers
from engine.testing.replication.disk import StoredPart
from engine.testing.replication.history import LostReplica
from engine.testing.replication.rows import Row

if TYPE_CHECKING:
    from engine.testing.replication.cluster import ReplicationCluster
    from engine.testing.replication.node import SimulatedNode

_ACTIVE_WAIT_S = 30.0


class KeeperLoss:
    """Removes nodes behind everybody's back, and has them restored. One for a cluster."""

    def __init__(self, cluster: ReplicationCluster) -> None:
        self._cluster = cluster
        self._persons: dict[str, asyncio.Task[None]] = {}

    def lose_some(self) -> None:
        """The nodes of some replicas, perhaps of all; now and then everything of the table."""
        cluster = self._cluster
        nodes = list(cluster.nodes.values())
        is_everything = cluster.rng.random() < 0.4
        chosen = nodes if is_everything else cluster.rng.sample(nodes, cluster.rng.randint(1, len(nodes)))
        if not self._can_go_on([node for node in nodes if node not in chosen]):
            is_everything, chosen = True, nodes
        self.lose(chosen, is_everything=is_everything, are_sessions_lost=cluster.rng.random() < 0.6)

    def lose(self, chosen: list[SimulatedNode], *, is_everything: bool, are_sessions_lost: bool) -> None:
        """The nodes of these replicas, or the table with all of them."""
        cluster = self._cluster
        nodes = [node for node in chosen if node.me.root in cluster.server.tree.nodes]
        roots = [cluster.paths.root] if is_everything else [node.me.root for node in nodes]
        cluster.reached["keeper lost the table" if is_everything else "keeper lost replicas"] += 1
        for node in nodes:
            staged = _sum(node.disk.staged.values())
            cluster.history.lost.append(
                LostReplica(cluster.history.tick(), node.me.name, _rows_of(node), staged)
            )
            cluster.history.wiped.append((cluster.history.tick(), node.me.name))
            if are_sessions_lost and node.process is not None:
                for session_id in cluster.server.session_ids(node.process.name):
                    cluster.server.expire_session(session_id)
        for root in roots:
            self._remove(root)
        for node in nodes:
            person = self._persons.get(node.name)
            if person is None or person.done():
                self._persons[node.name] = asyncio.create_task(
                    self._restore(node), name=f"person at {node.name}"
                )

    def can_go_on_without(self, node: SimulatedNode) -> bool:
        return self._can_go_on([other for other in self._cluster.nodes.values() if other is not node])

    def _can_go_on(self, others: list[SimulatedNode]) -> bool:
        """Whether one of the replicas that stay has the data, or none stays: else only a person who decides
        which one is right could help."""
        tree = self._cluster.server.tree.nodes
        there = [tree[node.me.is_lost].data for node in others if node.me.is_lost in tree]
        return not there or b"0" in there

    def _remove(self, root: str) -> None:
        tree = self._cluster.server.tree.nodes
        paths = sorted((path for path in tree if path == root or path.startswith(f"{root}/")), reverse=True)
        ops: list[Op] = [Remove(path) for path in paths]
        if ops:
            self._cluster.write(ops)

    async def _restore(self, node: SimulatedNode) -> None:
        """Until the replica is in Keeper again and has nothing left to attach."""
        cluster = self._cluster
        while True:
            await cluster.env.sleep(cluster.rng.uniform(0.5, 8.0))
            if not node.is_running or node.is_being_recreated:
                continue
            process, began = node.process, cluster.history.clock
            assert process is not None
            task = process.spawn(self._statement(node), name=f"restore on {node.name}")
            try:
                done = (await asyncio.gather(task, return_exceptions=True))[0]
            finally:
                task.cancel()
            match done:
                case None:
                    cluster.reached["replica restored"] += 1
                    if not any(lost.replica == node.me.name for lost in cluster.history.lost_since(began)):
                        return
                case OnclusterError(code=code):
                    cluster.reached[f"restore failed with {code}"] += 1
                    if code == Code.BAD_ARGUMENTS and node.me.root in cluster.server.tree.nodes:
                        return  # nothing to restore
                case OSError():
                    cluster.reached["restore failed for the disk"] += 1
                case asyncio.CancelledError():
                    cluster.reached["restore killed"] += 1
                case BaseException():
                    cluster.history.notes.append(f"RESTORE REPLICA on {node.name} raised {done!r}")
                    return

    async def _statement(self, node: SimulatedNode) -> None:
        """As SYSTEM RESTORE REPLICA does it."""
        ctx, table = node.ctx, node.table
        assert ctx is not None and table is not None
        await table.restore(UUID(int=7))
        if await table.wait_until_active(timeout_s=_ACTIVE_WAIT_S):
            await attach_restored(ctx)

    def stop(self) -> None:
        for person in self._persons.values():
            person.cancel()

    @property
    def is_over(self) -> bool:
        """Whether everything that was lost is restored."""
        return all(person.done() for person in self._persons.values())


def _rows_of(node: SimulatedNode) -> Counter[Row]:
    """What the replica has and RESTORE has to bring back if it makes the table: what is not damaged of its
    parts, and what an earlier RESTORE has not attached yet."""
    waiting = [stored for name, stored in node.disk.detached.items() if name.startswith(f"{RESTORING}_")]
    return _sum([*node.disk.active.values(), *waiting])


def _sum(parts: Iterable[StoredPart]) -> Counter[Row]:
    rows: Counter[Row] = Counter()
    for stored in parts:
        rows.update(_whole_rows(stored))
    return rows


def _whole_rows(stored: StoredPart) -> tuple[Row, ...]:
    try:
        return stored.rows("a part")
    except PartDiffers:
        return ()
