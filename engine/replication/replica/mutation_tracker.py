"""What mutations there are, and which are done."""

from __future__ import annotations

from engine.keeper.base import Keeper, Watch
from engine.replication.replica.context import ReplicaContext


async def refresh_mutations(ctx: ReplicaContext, keeper: Keeper, *, watch: Watch | None = None) -> None:
    """Make `ctx.queue.mutations` what `mutations/` is. The log puller calls it after listing the log."""
    raise NotImplementedError


async def run(ctx: ReplicaContext) -> None:
    """Until cancelled or until the session is over (SessionExpired)."""
    raise NotImplementedError
