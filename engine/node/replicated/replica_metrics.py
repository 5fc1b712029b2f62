"""What `system.metrics` and `system.asynchronous_metrics` say of the node's replicated tables.

Names are ClickHouse's. Source: ClickHouse's CurrentMetrics, ServerAsynchronousMetrics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from engine.node.replicated.replicas_status import known_delays_s
from engine.node.replicated.running.runtime import ReplicatedTables
from engine.replication.log_actions import AttachPart, GetPart, MergeParts
from engine.replication.replica.queue.queue import Place


def replica_gauges(tables: ReplicatedTables) -> Mapping[str, int]:
    """From memory."""
    replicas = [table.ctx for table in tables.all()]
    return {
        "AttachedReplicatedTable": len(replicas),
        "ReadonlyReplica": sum(ctx.is_readonly for ctx in replicas),
        "ReplicatedFetch": sum(ctx.queue.count_executing(Place.FETCH) for ctx in replicas),
    }


async def replica_measures(tables: ReplicatedTables) -> Mapping[str, float]:
    """Delays are in seconds, and need Keeper where they are large; it is waited for five seconds."""
    replicas = [table.ctx for table in tables.all()]
    delays_s = await asyncio.gather(*map(known_delays_s, replicas))
    queues = [len(ctx.queue) for ctx in replicas]
    inserts = [ctx.queue.count(GetPart, AttachPart) for ctx in replicas]
    merges = [ctx.queue.count(MergeParts) for ctx in replicas]
    return {
        "ReplicasMaxAbsoluteDelay": max((absolute_s for absolute_s, _ in delays_s), default=0.0),
        "ReplicasMaxRelativeDelay": max((relative_s for _, relative_s in delays_s), default=0.0),
        "ReplicasMaxQueueSize": max(queues, default=0),
        "ReplicasMaxInsertsInQueue": max(inserts, default=0),
        "ReplicasMaxMergesInQueue": max(merges, default=0),
        "ReplicasSumQueueSize": sum(queues),
        "ReplicasSumInsertsInQueue": sum(inserts),
        "ReplicasSumMergesInQueue": sum(merges),
    }
