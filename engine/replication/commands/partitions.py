"""Commands on partitions: the table of contents, and those that need no file of their own."""

from __future__ import annotations

from collections.abc import Sequence

from engine.keeper.base import Op
from engine.names import quote_identifier
from engine.replication.commands.attach import attach_part, attach_partition, drop_detached
from engine.replication.commands.drop_range import drop_part, drop_partition, truncate
from engine.replication.commands.fetch_partition import fetch_part, fetch_partition
from engine.replication.commands.mutate import create_mutation, wait_for_mutation
from engine.replication.commands.replace_range import Placement, move_partition, replace_partition
from engine.replication.commands.waiting import DEFAULT_INACTIVE_TIMEOUT_S, Sync
from engine.replication.log_actions import RangeFate
from engine.replication.part_store import PartsBroken
from engine.replication.replica.context import ReplicaContext

__all__ = [
    "Placement",
    "RangeFate",
    "Sync",
    "attach_part",
    "attach_partition",
    "clear_column",
    "drop_detached",
    "drop_part",
    "drop_partition",
    "fetch_part",
    "fetch_partition",
    "freeze",
    "move_partition",
    "replace_partition",
    "truncate",
]


async def clear_column(
    ctx: ReplicaContext,
    column: str,
    partition_ids: Sequence[str] | None = None,
    *,
    sync: Sync = Sync.OWN,
    inactive_timeout_s: float = DEFAULT_INACTIVE_TIMEOUT_S,
    fence: Sequence[Op] = (),
) -> int:
    """Reset a column to its default in some partitions, or in all: a mutation, whose number is returned.

    Raises as `mutate.create_mutation` and `mutate.wait_for_mutation`.
    """
    number = await create_mutation(
        ctx, f"CLEAR COLUMN {quote_identifier(column)}", partition_ids=partition_ids, fence=fence
    )
    await wait_for_mutation(ctx, number, sync=sync, inactive_timeout_s=inactive_timeout_s)
    return number


async def freeze(ctx: ReplicaContext, partition_ids: Sequence[str] | None, backup_name: str) -> None:
    """Hard links of this replica's parts below `shadow/<backup_name>/`; None for all partitions.

    Raises PartsBroken for parts that somebody has removed from the disk, and has them fetched again.
    """
    try:
        await ctx.store.freeze(partition_ids, backup_name)
    except PartsBroken as error:
        for part in error.parts:
            ctx.check_later(part)
        raise
