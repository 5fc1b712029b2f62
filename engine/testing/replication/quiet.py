"""When the replicas of a simulation are quiet, and what is written down of them then."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from engine.replication.part_checksums import PartDiffers
from engine.replication.part_name import PartName
from engine.testing.replication.history import Definition, FinalReplica

if TYPE_CHECKING:
    from engine.testing.replication.cluster import ReplicationCluster
    from engine.testing.replication.node import SimulatedNode


def damaged_parts(node: SimulatedNode) -> list[PartName]:
    """Parts that readers would fail on."""
    found = []
    for name, stored in sorted(node.disk.active.items()):
        try:
            stored.check(str(name))
        except PartDiffers:
            found.append(name)
    return found


def unrest(cluster: ReplicationCluster) -> str:
    """What is still going on; empty when all is quiet."""
    if not cluster.loss.is_over:
        return "somebody still restores a replica"
    log = cluster.children(cluster.paths.log)
    first = next(iter(cluster.nodes.values()))
    for node in cluster.nodes.values():
        if node.ctx is None or node.ctx.is_readonly:
            reason = "" if node.ctx is None else node.ctx.readonly_reason
            return f"{node.me.name} is read-only: {reason}"
        if node.me.log_pointer not in cluster.server.tree.nodes:
            return f"{node.me.name} is not in Keeper"
        if cluster.children(node.me.queue):
            return f"{node.me.name} has a queue"
        pointer = cluster.server.tree.nodes[node.me.log_pointer].data
        if log and (not pointer or int(pointer) <= int(log[-1][-10:])):
            return f"{node.me.name} has not copied the log behind {pointer!r}"
        if difference := node.disk.active.keys() ^ first.disk.active.keys():
            return f"{node.me.name} differs in {', '.join(sorted(map(str, difference)))}"
        if node.disk.active.keys() != {PartName.parse(each) for each in cluster.children(node.me.parts)}:
            return f"{node.me.name} and Keeper differ"
        if damaged := damaged_parts(node):
            return f"{node.me.name} has damaged parts: {', '.join(map(str, damaged))}"
        if node.disk.staged:
            return f"{node.me.name} has staged parts: {', '.join(map(str, sorted(node.disk.staged)))}"
        if node.disk.temporary and not cluster.scenario.has_impatient_users:  # one may go while it writes
            return f"{node.me.name} has parts without name: {', '.join(node.disk.temporary)}"
        if open_ones := [n for n, state in node.ctx.queue.mutations.items() if not state.is_done]:
            return f"{node.me.name} has open mutations: {open_ones}"
    for directory in (cluster.paths.quorum_parallel, cluster.paths.quorum):
        if waiting := set(cluster.children(directory)) - {"last_part", "failed_parts", "parallel"}:
            return f"quorums are open: {', '.join(sorted(waiting))}"
    for partition_id in cluster.children(cluster.paths.block_numbers):
        if locks := cluster.children(cluster.paths.partition_block_numbers(partition_id)):
            return f"block numbers are locked: {', '.join(locks)}"
    return ""


def final_state(cluster: ReplicationCluster, node: SimulatedNode) -> FinalReplica:
    """What is written down of a replica when all is over."""
    damaged = damaged_parts(node)
    rows: Counter[tuple[tuple[str, int | str], ...]] = Counter()
    parts, part_columns = {}, {}
    for name, stored in sorted(node.disk.active.items()):
        if name not in damaged:
            rows.update(stored.rows(str(name)))
            parts[name] = stored.digest(str(name)).hash_text
            part_columns[name] = stored.columns
    definition = node.disk.definition
    queue = []
    for entry in cluster.children(node.me.queue):
        text = cluster.server.tree.nodes[f"{node.me.queue}/{entry}"].data.decode()
        queue.append(f"{entry} {' '.join(text.splitlines()[3:])}")
    return FinalReplica(
        parts,
        rows,
        frozenset(PartName.parse(each) for each in cluster.children(node.me.parts)),
        is_readonly=node.ctx is None or node.ctx.is_readonly,
        queue=tuple(queue),
        damaged=tuple(damaged),
        definition=Definition(definition.columns.to_bytes(), definition.metadata.to_bytes()),
        part_columns=part_columns,
    )
