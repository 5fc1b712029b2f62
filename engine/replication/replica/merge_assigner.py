"""Assigning merges and mutations of parts."""

from __future__ import annotations

from engine.replication.replica.context import ReplicaContext


async def run(ctx: ReplicaContext) -> None:
    """Until cancelled or until the session is over (SessionExpired)."""
    raise NotImplementedError
