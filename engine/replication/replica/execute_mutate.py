"""MUTATE_PART."""

from __future__ import annotations

from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.queue import QueuedEntry


async def execute_mutate(ctx: ReplicaContext, queued: QueuedEntry) -> None:
    raise NotImplementedError
