"""Entries that cannot be executed here: those that only servers before 20.3 write, and MOVE PART TO SHARD.

They change nothing and hold nobody up but the mutations of the part that one of them would bring. The entry
stays in the queue until somebody has looked: to pass over it silently would leave this replica with other
rows than its peers.
"""

from __future__ import annotations

from engine.errors import Code, SqlError
from engine.replication.log_actions import Cleared, ClearInRange, ClonePartFromShard
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.queue.queue import QueuedEntry


async def refuse(ctx: ReplicaContext, queued: QueuedEntry) -> None:
    """Raises SqlError 48 with what is to be done; `system.replication_queue` shows it."""
    match queued.entry.action:
        case ClearInRange(what, name, span):
            noun = "COLUMN" if what is Cleared.COLUMN else "INDEX"
            problem = f"CLEAR {noun} {name} of a server before 20.3 changes parts in their places"
            advice = f"ALTER TABLE … CLEAR {noun} {name} IN PARTITION ID '{span.partition_id}' here instead"
        case ClonePartFromShard(part, source):
            problem = f"part {part} is to come from the other shard {source}"
            advice = f"FETCH PART '{part}' FROM that path and ATTACH it"
        case other:
            problem, advice = f"it is a {type(other).__name__}", "do by hand what it says"
    raise SqlError(
        Code.NOT_IMPLEMENTED,
        f"Entry {queued.name} cannot be executed: {problem}. To go on without it, remove "
        f"{ctx.me.queue_entry(queued.name)} from Keeper, SYSTEM RESTART REPLICA, and {advice}",
    )
