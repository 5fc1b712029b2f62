"""ALTER of columns, indexes, TTL, settings."""

from __future__ import annotations

from collections.abc import Sequence

from engine.keeper.base import Op
from engine.replication.commands.waiting import DEFAULT_INACTIVE_TIMEOUT_S, Sync
from engine.replication.replica.context import ReplicaContext


async def alter_table(
    ctx: ReplicaContext,
    commands: str,
    *,
    sync: Sync = Sync.OWN,
    inactive_timeout_s: float = DEFAULT_INACTIVE_TIMEOUT_S,
    fence: Sequence[Op] = (),
) -> None:
    """`commands` is what follows ALTER TABLE t."""
    raise NotImplementedError
