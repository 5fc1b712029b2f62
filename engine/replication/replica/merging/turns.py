"""Merges that are left to another replica, whose result is fetched.

Recompression takes long and gains nothing by being done on every replica. The one that has assigned it begins
at once, the others fetch what it makes, and merge themselves only when it has gone or
`try_fetch_recompressed_part_timeout` is over. With `execute_merges_on_single_replica_time_threshold` every
merge is one replica's for so long: all of them work out whose from the part's name. Large results of entries
that have waited long (`prefer_fetch_merged_part_time_threshold` and `…_size_threshold`) are fetched if
somebody has them already.

It only reads. Whoever waits holds no place among the merges: the entry is postponed, and watches wake it.
Replicas that see different ones active may choose differently: then two make the merge, or all wait until the
time is over.

Source: ClickHouse's MergeFromLogEntryTask and ReplicatedMergeTreeMergeStrategyPicker. The first waits for a
replica that is not active, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from clickhouse_cityhash.cityhash import CityHash64

from engine.keeper.base import Keeper, WatchEvent
from engine.replication.log_actions import MergeParts, MergeType
from engine.replication.part_name import PartName
from engine.replication.paths import ReplicaPaths
from engine.replication.replica import peers
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.execution.outcome import Postponed, QueuedEntry
from engine.replication.replica.insert_times import unix_s

LOOK_S = 60.0
"""How often it is looked at without a watch: a third replica may have the part by then."""


async def is_made_by_another(ctx: ReplicaContext, queued: QueuedEntry) -> bool:
    """Whether the result of a merge is to be fetched. Raises Postponed while another replica is to make it
    and nobody has it."""
    entry = queued.entry
    action = entry.action
    if not isinstance(action, MergeParts):
        return False
    keeper = ctx.session()
    # The clock of whoever wrote the entry may be ahead: nobody waits for longer than is said because of that.
    age_s = max(0.0, ctx.env.now_s() - unix_s(entry.create_time))
    left_s = ctx.settings.execute_merges_on_single_replica_time_threshold - age_s
    maker = await _chosen(ctx, keeper, action.result) if left_s > 0 else None
    if maker is None and action.merge_type is MergeType.TTL_RECOMPRESS:
        left_s = ctx.settings.try_fetch_recompressed_part_timeout - age_s
        maker = ctx.paths.replica(entry.source_replica) if left_s > 0 else None
    if maker is None or maker == ctx.me:
        return False

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


async def _chosen(ctx: ReplicaContext, keeper: Keeper, result: PartName) -> ReplicaPaths | None:
    """The one of the active replicas that makes the merge; None if no other is there."""
    replicas = sorted([*await peers.others(ctx, keeper), ctx.me], key=lambda replica: replica.name)
    stats = await keeper.exists_many([replica.is_active for replica in replicas])
    active = [replica for replica, stat in zip(replicas, stats, strict=True) if stat is not None]
    if ctx.me not in active or len(active) < 2:
        return None
    number: int = CityHash64(f"{ctx.paths.root}{result}".encode())
    return active[number % len(active)]


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
