"""DROP_RANGE, DROP_PART and REPLACE_RANGE: take parts away, and put others in their place.

Safety argument. The queue starts nothing inside the range any more while the entry waits or runs.

1. Give up fetches of parts in the range. Wait for operations that have committed a part there and are about
   to publish it (`ctx.in_flight`), and for entries that are making one; remove the entries that would make
   one from `queue/`.
2. Drop: parts of the range vanish for readers (and lie in `detached/` if they are detached), then from
   `parts/`. A crash in between leaves `parts/` with names of missing parts under a range that is still
   queued: at start they are left to this entry, which does the rest.
   Replace: the new parts are staged, then one multi puts them into `parts/` and takes out the range, then
   one publication does the same for readers. They are copies of the other table's parts on this node, else
   fetched; what nobody has any more may still lie in `detached/`, where SYSTEM RESTORE REPLICA put it.
   Both: what an insert whose answer is missing has left staged in the range is thrown away; its transaction
   was executed before the range was given out, or cannot be any more: its block number was taken away. What
   is to be detached, and Keeper says is the replica's, is shown first: it is kept like all else.
3. The runner removes the entry. All of it may be repeated until then.

It never touches a part that is not inside the range.

Source: ClickHouse's StorageReplicatedMergeTree::executeDropRange, executeReplaceRange.
"""

from __future__ import annotations

import asyncio
import logging

from engine.errors import Code, SqlError
from engine.keeper.base import Keeper
from engine.keeper.recipes import MULTI_BATCH_SIZE, try_remove
from engine.replication.fetching import PartUnavailable
from engine.replication.log_actions import DropRange, RangeFate, ReplaceRange
from engine.replication.part_checksums import PartDiffers
from engine.replication.part_name import PartName
from engine.replication.part_set import ActivePartSet
from engine.replication.part_store import Fate
from engine.replication.replica import peers, quorum
from engine.replication.replica.commit_part import commit_parts, publish
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.insert_times import unix_text
from engine.replication.replica.own_detached import stage_own_detached
from engine.replication.replica.queue.queue import QueuedEntry

log = logging.getLogger(__name__)


async def drop_range(ctx: ReplicaContext, queued: QueuedEntry) -> None:
    """Run a DROP_RANGE or DROP_PART entry."""
    action = queued.entry.action
    assert isinstance(action, DropRange)
    await _clear_the_way(ctx, queued, action.range)
    fate = Fate.DETACH if action.fate is RangeFate.DETACH else Fate.DROP
    if fate is Fate.DETACH:
        await _show_staged(ctx, action.range)
    doomed = sorted(part for part in ctx.store.active if action.range.contains(part))
    await ctx.store.remove(doomed, fate=fate)
    await _discard_staged(ctx, action.range)
    keeper = ctx.session()
    await forget_parts(ctx, keeper, action.range)
    await quorum.forget_dropped(ctx, action.range)
    log.info("replica.range_dropped table=%s range=%s parts=%d", ctx.name, action.range, len(doomed))


async def replace_range(ctx: ReplicaContext, queued: QueuedEntry) -> None:
    """Run a REPLACE_RANGE entry. Raises SqlError 234 while nobody has a part that cannot be copied here."""
    action = queued.entry.action
    assert isinstance(action, ReplaceRange)
    span = queued.dropped_range
    if span is not None:
        await _clear_the_way(ctx, queued, span)
    active = ActivePartSet(ctx.store.active)
    wanted = [
        (source, result, checksum)
        for source, result, checksum in zip(action.sources, action.results, action.checksums, strict=True)
        if active.get_containing(result) is None
    ]
    parts: list[PartName] = []
    for source, result, checksum in wanted:
        if any(part.contains(result) for part in parts):
            continue
        if result in ctx.store.staged or await _copy(ctx, action, source, result, checksum):
            parts.append(result)
        elif (fetched := await _fetch(ctx, queued, result)) is not None:
            parts.append(fetched)
        elif await stage_own_detached(ctx, result, checksum):
            parts.append(result)
        elif not ctx.queue.is_to_be_dropped(result):
            raise SqlError(
                Code.NO_REPLICA_HAS_PART, f"No active replica has part {result} or a covering part"
            )
    staged = dict.fromkeys((*parts, *action.results))
    parts = [part for part in dict.fromkeys(parts) if not any(o != part and o.contains(part) for o in parts)]
    for part in staged:  # what a part that was fetched covers, or one that readers see
        if part not in parts and part in ctx.store.staged and part not in ctx.in_flight:
            await ctx.store.discard(part)
    kept = [part for part in action.results if part in ctx.store.active]
    if parts or kept:
        await commit_parts(ctx, [*kept, *parts], replacing=span, at_once=True)
    elif span is not None:
        await ctx.store.remove(sorted(part for part in ctx.store.active if span.contains(part)))
        await forget_parts(ctx, ctx.session(), span)
    if span is not None:
        await _discard_staged(ctx, span)
        await quorum.forget_dropped(ctx, span)


async def forget_parts(ctx: ReplicaContext, keeper: Keeper, span: PartName) -> None:
    """Remove the nodes of all parts inside `span` that are not here (any more). Nobody looks for them now."""
    doomed = [name for name in await ctx.part_listing.get(keeper) if span.contains(name)]
    for name in [part for part in ctx.parts_to_check if span.contains(part)]:
        del ctx.parts_to_check[name]
    for start in range(0, len(doomed), MULTI_BATCH_SIZE):
        await asyncio.gather(
            *(try_remove(keeper, ctx.me.part(name)) for name in doomed[start : start + MULTI_BATCH_SIZE])
        )


async def _clear_the_way(ctx: ReplicaContext, queued: QueuedEntry, span: PartName) -> None:
    with ctx.fetches.given_up_inside(span):
        await ctx.in_flight.settled(span)
        for other in ctx.queue.executing_inside(span, besides=queued):
            if other.is_executing:
                over = asyncio.Event()
                other.on_finished.append(over.set)
                await over.wait()
    keeper = ctx.session()
    awaited = ctx.queue.oldest_insert()
    for other in ctx.queue.covered_by(span, before=queued):
        await try_remove(keeper, ctx.me.queue_entry(other.name))
        ctx.queue.remove(other, is_done=False)
        log.info("replica.entry_dropped table=%s entry=%s range=%s", ctx.name, other.name, span)
    if (oldest := ctx.queue.oldest_insert()) != awaited:
        await keeper.set(ctx.me.min_unprocessed_insert_time, unix_text(oldest))
    ctx.mutation_news.announce()


async def _show_staged(ctx: ReplicaContext, span: PartName) -> None:
    """What is this replica's and was never shown, because it ended in between, is to be kept as all else."""
    left = [part for part in sorted(ctx.store.staged) if span.contains(part) and part not in ctx.in_flight]
    stats = await ctx.session().exists_many([ctx.me.part(part) for part in left])
    for part, stat in zip(left, stats, strict=True):
        if stat is not None:
            await publish(ctx, [part])


async def _discard_staged(ctx: ReplicaContext, span: PartName) -> None:
    for part in sorted(ctx.store.staged):
        if span.contains(part) and part not in ctx.in_flight:
            await ctx.store.discard(part)


async def _copy(
    ctx: ReplicaContext, action: ReplaceRange, source: PartName, result: PartName, checksum: str
) -> bool:
    """Stage `result` from the other table, if it is on this node and has the same bytes."""
    table = ctx.other_table(action.from_database, action.from_table)
    if table is None:
        return False
    same = [part.name for part in table.active.values() if part.digest.hash_text == checksum.lower()]
    if not same:
        return False
    try:
        staged = await ctx.store.stage_copy(table, source if source in same else min(same), result)
    except (SqlError, PartDiffers) as error:
        log.info("replica.copy_failed table=%s part=%s error=%s", ctx.name, result, error)
        return False
    if staged.digest.hash_text == checksum.lower():
        return True
    await ctx.store.discard(result)
    return False


async def _fetch(ctx: ReplicaContext, queued: QueuedEntry, part: PartName) -> PartName | None:
    """Stage `part` or one that covers it from another replica; returns which, None if nobody has it."""
    keeper = ctx.session()
    holders = await peers.active_holders(ctx, keeper, part)
    for holder in holders:
        if holder.part != part and ctx.queue.claim(queued, holder.part):
            continue
        await ctx.in_flight.settled(holder.part)
        header = holder.header or await peers.header(keeper, holder.replica, holder.part)
        if header is None or holder.address is None:
            continue
        left = ctx.store.staged.get(holder.part)
        if left is not None:
            if left.header == header:
                return holder.part
            await ctx.store.discard(holder.part)
        try:
            transfer = ctx.fetcher.fetch(
                holder.address, holder.replica, holder.part, into=ctx.paced(ctx.store), expected=header
            )
            await ctx.fetches.of(holder.part, transfer)
        except (PartUnavailable, PartDiffers) as error:
            log.warning("replica.fetch_failed table=%s part=%s error=%s", ctx.name, holder.part, error)
            continue
        return holder.part
    return None
