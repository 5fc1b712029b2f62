"""Checks single parts: broken, missing, unexpected, or lost for ever.

Safety argument. A part that is being made, merged, dropped or inserted is left alone until that is over.

Broken or unexpected: the part goes to `detached/broken_…` or `detached/unexpected_…` first, then one multi
removes `parts/<part>` and queues a GET_PART. A crash in between leaves a missing part, which the next start
queues. Nothing is deleted.

Missing: it is lost only if, after a sync and with the whole log copied, no replica, active or not, has it in
`parts/`, nor one covering it, nor parts that will be merged into it, and no entry drops it. Then an
empty part takes its place, or it is dropped (`lost_parts`). That is never done for a part that no entry of
the queue makes or needs, nor for one whose insert waits for a quorum, which is given up in another way.

Source: ClickHouse's ReplicatedMergeTreePartCheckThread.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import Code, KeeperAnswer, MultiFailed, NoNode, SqlError
from engine.keeper.base import Keeper
from engine.replication.log_actions import Action, GetPart
from engine.replication.part_checksums import PartDiffers, check_same_part
from engine.replication.part_name import PartName
from engine.replication.part_set import containing
from engine.replication.part_store import Fate, Part, PartsBroken
from engine.replication.replica import log_puller, lost_parts, peers, quorum, startup_check
from engine.replication.replica.background import keep_running
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.queue import loader as queue_loader

log = logging.getLogger(__name__)

MAX_AGE_OF_UNKNOWN_PART_S = 300.0
"""A local part that Keeper does not know may be on its way for so long."""
AGAIN_S = 5.0
"""A part that is in use is looked at again after this."""
STILL_MISSING_S = 60.0


class Verdict(enum.Enum):
    FINE = "fine"
    AGAIN = "in use or under way, to be checked again"
    FETCHED = "to be fetched from another replica"
    AWAITED = "another replica has it or will make it"
    DETACHED = "unexpected, moved to detached"
    LOST = "no replica has it, replaced with an empty part, or dropped"


@dataclass(frozen=True, slots=True)
class Checked:
    """What became of a check. `reason` says what was wrong, empty if nothing was."""

    part: PartName
    verdict: Verdict
    reason: str = ""


async def run(ctx: ReplicaContext) -> None:
    """Check the parts of `ctx.parts_to_check` when they are due. Until cancelled."""
    await keep_running(ctx, "check parts", _step)


async def _step(ctx: ReplicaContext) -> None:
    now_s = ctx.env.monotonic_s()
    for part, due_s in sorted(ctx.parts_to_check.items()):
        if due_s > now_s:
            continue
        again_s = now_s + AGAIN_S
        ctx.parts_to_check[part] = again_s  # where the check fails, other parts have their turn before it
        checked = await check_part(ctx, part)
        if ctx.parts_to_check.get(part) == again_s:
            del ctx.parts_to_check[part]
        if checked.verdict is Verdict.AGAIN:
            ctx.check_later(part, delay_s=AGAIN_S)
        elif checked.verdict is Verdict.AWAITED and _is_needed(ctx, part):
            ctx.check_later(part, delay_s=STILL_MISSING_S)
    pause_s = min([due_s - ctx.env.monotonic_s() for due_s in ctx.parts_to_check.values()], default=3600.0)
    try:
        async with asyncio.timeout(max(pause_s, 0.01)):
            await ctx.check_wanted.wait()
    except TimeoutError:
        pass


async def check_part(ctx: ReplicaContext, part: PartName) -> Checked:
    """Check one part now, reading all of it, and do what the verdict says."""
    if part in ctx.in_flight or _is_in_use(ctx, part):
        return Checked(part, Verdict.AGAIN)
    keeper = ctx.session()
    local = ctx.store.active.get(part)
    if local is not None:
        return await _check_local(ctx, keeper, local)
    if containing(ctx.store.active, part) is not None:
        return Checked(part, Verdict.FINE)
    if part in ctx.store.staged:
        return Checked(part, Verdict.AGAIN)  # An entry of the queue is about to show it.
    return await _check_missing(ctx, keeper, part)


def _is_in_use(ctx: ReplicaContext, part: PartName) -> bool:
    return ctx.queue.is_in_production(part) or any(
        part in queued.sources or (queued.dropped_range and queued.dropped_range.contains(part))
        for queued in ctx.queue.executing
    )


def _is_needed(ctx: ReplicaContext, part: PartName) -> bool:
    if containing(ctx.store.active, part) is not None:
        return False  # it came while it was looked for elsewhere
    return any(part in queued.entry.new_parts or part in queued.sources for queued in ctx.queue.entries)


# -- parts that are here ------------------------------------------------------------------------------------


async def _check_local(ctx: ReplicaContext, keeper: Keeper, local: Part) -> Checked:
    part = local.name
    header = await peers.header(keeper, ctx.me, part)
    if header is None and await keeper.exists(ctx.me.part(part)) is None:
        if part not in ctx.store.active or part in ctx.in_flight or _is_in_use(ctx, part):
            return Checked(part, Verdict.AGAIN)  # It was merged while Keeper was asked, or dropped.
        if ctx.queue.producer_of(part) is not None or ctx.queue.is_to_be_dropped(part):
            return Checked(part, Verdict.FINE)
        if ctx.env.now_s() - local.modified_s < MAX_AGE_OF_UNKNOWN_PART_S:
            return Checked(part, Verdict.AGAIN, "Keeper does not know it")
        await ctx.store.remove([part], fate=Fate.DETACH, prefix="unexpected")
        ctx.queue.forget(part)
        log.error("replica.part_unexpected table=%s part=%s", ctx.name, part)
        return Checked(part, Verdict.DETACHED, "Keeper does not know it")
    try:
        if header is not None:
            check_same_part(str(part), local.header.digest, header.digest)
            if local.header.columns_hash != header.columns_hash:
                raise PartDiffers(str(part), "Keeper says that it has other columns")
        await ctx.store.verify(part)
    except PartDiffers as differs:
        if part not in ctx.store.active or _is_in_use(ctx, part):
            return Checked(part, Verdict.AGAIN)
        log.error("replica.part_broken table=%s part=%s reason=%s", ctx.name, part, differs.reason)
        for broken in await _set_aside(ctx, part):
            await _enqueue_fetch(ctx, keeper, broken)
        return Checked(part, Verdict.FETCHED, differs.reason)
    except SqlError as error:
        if error.code != Code.NO_SUCH_DATA_PART:
            raise
    return Checked(part, Verdict.FINE)


async def _set_aside(ctx: ReplicaContext, part: PartName) -> Sequence[PartName]:
    """Take a broken part away from readers; returns also those that had to go with it, since it could not be
    without reading them. Raises PartsBroken where one of these is in use."""
    broken = [part]
    while True:
        try:
            await ctx.store.remove(broken, fate=Fate.DETACH, prefix="broken")
            return broken
        except PartsBroken as found:
            others = [each for each in found.parts if each not in broken and not _is_in_use(ctx, each)]
            if not others:
                raise
            log.error("replica.part_broken table=%s part=%s reason=%s", ctx.name, others, found.message)
            broken += others


async def _enqueue_fetch(ctx: ReplicaContext, keeper: Keeper, part: PartName) -> None:
    """Nobody else may copy to `queue/` meanwhile, or memory would take an entry over twice."""
    action: Action = GetPart(part)
    async with ctx.pulling:
        ctx.is_queue_in_doubt = True  # if this ends in the middle, the next pull takes the entry over
        ctx.log_changed.set()
        try:
            await startup_check.enqueue(ctx, keeper, [action], forgetting=[part])
        except MultiFailed as failed:
            if not isinstance(failed.error, NoNode):
                raise
        ctx.queue.forget(part)
        await queue_loader.add_new_entries(ctx, keeper)
        ctx.is_queue_in_doubt = False
    ctx.queue_changed.set()


# -- parts that are not here --------------------------------------------------------------------------------


async def _check_missing(ctx: ReplicaContext, keeper: Keeper, part: PartName) -> Checked:
    await keeper.sync(ctx.paths.root)
    await log_puller.pull(ctx)
    if ctx.queue.is_to_be_dropped(part):
        return Checked(part, Verdict.FINE)
    if await keeper.exists(ctx.me.part(part)) is not None:
        if part in ctx.store.active or part in ctx.store.staged or part in ctx.in_flight:
            return Checked(part, Verdict.AGAIN)  # It came while it was looked for.
        await _enqueue_fetch(ctx, keeper, part)
        return Checked(part, Verdict.FETCHED, "it is not on the disk")
    if not _is_needed(ctx, part):
        return Checked(part, Verdict.FINE)
    if await peers.all_holders(ctx, keeper, part):
        return Checked(part, Verdict.AWAITED, "a replica has it")
    if await _may_be_merged_elsewhere(ctx, keeper, part):
        return Checked(part, Verdict.AWAITED, "replicas have the parts that it is to be made of")
    producer = ctx.queue.producer_of(part)
    if producer is not None and producer.sources:
        for source in producer.sources:
            if containing(ctx.store.active, source) is None:
                ctx.check_later(source)
        return Checked(part, Verdict.AWAITED, "it is to be made here")
    if producer is not None and producer.is_executing:
        return Checked(part, Verdict.AGAIN, "it is being made")
    if part in [waiting for waiting, _ in await quorum.pending_parts(keeper, ctx.paths)]:
        return Checked(part, Verdict.AWAITED, "its insert waits for a quorum")
    if await quorum.is_failed(ctx, part):  # read after the pending ones: it moves from there to here
        return Checked(part, Verdict.FINE, "its quorum was given up")
    is_taken = part in ctx.in_flight or _is_in_use(ctx, part) or ctx.queue.is_to_be_dropped(part)
    if is_taken or not _is_needed(ctx, part):
        return Checked(part, Verdict.AGAIN, "it was made or dropped while it was looked for")
    if not await lost_parts.replace_lost(ctx, keeper, part):
        return Checked(part, Verdict.AGAIN, "something changed while it was given up")
    return Checked(part, Verdict.LOST, "no replica has it")


async def _may_be_merged_elsewhere(ctx: ReplicaContext, keeper: Keeper, part: PartName) -> bool:
    """Whether other replicas have parts that begin and end where `part` does, inside it."""
    listings = await keeper.children_many([replica.parts for replica in await peers.others(ctx, keeper)])
    begins = ends = False
    for listing in listings:
        if isinstance(listing, KeeperAnswer):
            continue
        for name in (PartName.try_parse(text) for text in listing.names):
            if name is not None and part.contains(name):
                begins |= name.min_block == part.min_block
                ends |= name.max_block == part.max_block
    return begins and ends
