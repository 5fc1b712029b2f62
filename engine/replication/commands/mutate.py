"""ALTER … UPDATE, DELETE: a mutation."""

from __future__ import annotations

from collections.abc import Sequence

from engine.keeper.base import Op
from engine.replication.commands.waiting import DEFAULT_INACTIVE_TIMEOUT_S, Sync
from engine.replication.replica.context import ReplicaContext


async def create_mutation(
    ctx: ReplicaContext,
    commands: str,
    *,
    partition_ids: Sequence[str] | None = None,
    alter_version: int = -1,
    fence: Sequence[Op] = (),
) -> int:
    raise NotImplementedError


async def wait_for_mutation(
    ctx: ReplicaContext,
    number: int,
    *,
    sync: Sync = Sync.OWN,
    inactive_timeout_s: float = DEFAULT_INACTIVE_TIMEOUT_S,
) -> None:
    raise NotImplementedError


async def kill_mutation(ctx: ReplicaContext, number: int) -> bool:
    """Whether it was there."""
    raise NotImplementedError
