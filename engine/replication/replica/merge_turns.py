"""Merges that are left to another replica, whose result is fetched.

Recompression takes long and gains nothing by being done on every replica. The one that has assigned it begins
at once, the others fetch what it makes, and merge themselves only when it has gone or
`try_fetch_recompressed_part_timeout` is over. Large results of entries that have waited long
(`prefer_fetch_merged_part_time_threshold` and `…_size_threshold`) are fetched if somebody has them already.

It only reads. Whoever waits holds no place among the merges: the entry is postponed, and watches wake it.

Source: ClickHouse's MergeFromLogEntryTask. That one waits for a replica that is not active, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from engine.keeper.base import WatchEvent
from engine.replication.log_actions import MergeParts, MergeType
from engine.replication.part_name import PartName
from engine.replication.replica import peers
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.execution import Postponed, QueuedEntry
from engine.replication.replica.insert_times import unix_s

LOOK_S = 60.0
"""How often it is looked at without a watch: a third replica may have the part by then."""


async def is_made_by_another(ctx: ReplicaContext, queued: QueuedEntry) -> bool:
    """Whether the result of a recompression is to be fetched. Raises Postponed while another replica is to
    make it and nobody has it."""
    entry = queued.entry
    action = entry.action
    if not isinstance(action, MergeParts) or action.merge_type is not MergeType.TTL_RECOMPRESS:
        return False
    left_s = unix_s(entry.create_time) + ctx.settings.try_fetch_recompressed_part_timeout - ctx.env.now_s()
    if entry.source_replica == ctx.replica or left_s < 0:
        return False
    keeper = ctx.session()
    maker = ctx.paths.replica(entry.source_replica)

    def wake(_event: WatchEvent) -> None:
        queued.pause_s = queued.not_before_s = 0.0
        ctx.queue_changed.set()

    queued.pause_s = min(LOOK_S, left_s + 1.0)  # before the watches: one may fire at once
    _, is_active = await asyncio.gather(
        keeper.exists(maker.part(action.result), watch=wake), keeper.exists(maker.is_active, watch=wake)
    )
    if await peers.active_holders(ctx, keeper, action.result):
        return True
    if is_active is None:
        return False
    raise Postponed(
        f"Not executing merge for the part {action.result}, waiting for {maker.name} to execute merge"
    )


async def is_better_fetched(
    ctx: ReplicaContext, queued: QueuedEntry, sources: Sequence[PartName], result: PartName
) -> bool:
    """Whether the entry is old, its `sources`, all of them here, are large, and somebody has the result."""
    settings = ctx.settings
    age_s = ctx.env.now_s() - unix_s(queued.entry.create_time)
    size_bytes = sum(ctx.store.active[source].size_bytes for source in sources)
    if age_s < settings.prefer_fetch_merged_part_time_threshold:
        return False
    if size_bytes < settings.prefer_fetch_merged_part_size_threshold:
        return False
    return bool(await peers.active_holders(ctx, ctx.session(), result))
