"""GET_PART and ATTACH_PART: have a part, from whoever has it.

Safety argument. What arrives is checked against the header in Keeper before it is staged, then committed by
`commit_part`, which may be repeated. The part may be one that covers what was asked for: it holds the same
rows, and its name is claimed in the queue first, so that two entries do not fetch the same one and nothing
inside it is made meanwhile. If no active replica has anything, nothing is done: the entry stays, and the part
is looked for by `part_check`, which alone decides that it is lost.

Source: ClickHouse's StorageReplicatedMergeTree::executeFetch.
"""

from __future__ import annotations

import logging

from engine.errors import Code, MalformedEntry, SqlError
from engine.keeper.recipes import try_remove
from engine.replication.fetching import Agreed, PartUnavailable
from engine.replication.log_actions import AttachPart, GetPart
from engine.replication.part_checksums import PartDiffers
from engine.replication.part_name import PartName
from engine.replication.part_set import containing
from engine.replication.replica import patches, peers, quorum
from engine.replication.replica.commit_part import commit_fetched, commit_produced
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.execution.outcome import Postponed
from engine.replication.replica.own_detached import stage_own_detached
from engine.replication.replica.queue.queue import QueuedEntry
from engine.replication.replica.switches import Activity

log = logging.getLogger(__name__)


async def execute(ctx: ReplicaContext, queued: QueuedEntry) -> None:
    """Run a GET_PART or ATTACH_PART entry.

    Raises SqlError 234 NO_REPLICA_HAS_PART, 48 for a patch part, PartUnavailable, PartDiffers, Postponed, and
    what Keeper and the store raise; the entry is tried again then.
    """
    action = queued.entry.action
    assert isinstance(action, GetPart | AttachPart)
    # An entry of a clone or of a check has no source and no quorum of its own, and may be for a part of one.
    is_of_quorum = bool(queued.entry.quorum) or not queued.entry.source_replica
    if is_of_quorum and await quorum.is_failed(ctx, action.part):
        queued.is_given_up = True
        return
    if not await _have_own(ctx, action):
        try:
            await fetch_and_commit(ctx, queued, action.part)
        except SqlError as error:
            given_up = error.code == Code.NO_REPLICA_HAS_PART and is_of_quorum
            if not (given_up and await quorum.give_up(ctx, queued)):
                raise
            queued.is_given_up = True
            return
    if is_of_quorum:
        await quorum.part_is_here(ctx, action.part)
        # Given up while it was on its way; whoever gives up later meets a quorum node that has changed.
        if await quorum.is_failed(ctx, action.part):
            await quorum.set_failed_aside(ctx, action.part)
            queued.is_given_up = True


async def _have_own(ctx: ReplicaContext, action: GetPart | AttachPart) -> bool:
    """Whether the part is here, or could be made so with what is here.

    A copy of ours that differs from the others' is left to a fetch, which puts theirs in its place: it would
    differ again whenever it is tried.
    """
    try:
        return await is_here(ctx, action.part) or (
            isinstance(action, AttachPart) and await _attach_own(ctx, action)
        )
    except PartDiffers as error:
        log.warning("replica.own_copy_differs table=%s part=%s error=%s", ctx.name, action.part, error)
        return False


async def is_here(ctx: ReplicaContext, part: PartName) -> bool:
    """Whether the replica has `part` or one covering it; what it has and Keeper does not know is made known.

    A copy that is staged already is committed; if something else covers it by now it is thrown away, with the
    node that a commit without answer may have made for it.
    """
    keeper = ctx.session()
    covering = containing(ctx.store.active, part)
    if covering is None:
        if part not in ctx.store.staged:
            return False
        covering = part
    elif covering != part and part in ctx.store.staged and part not in ctx.in_flight:
        await try_remove(keeper, ctx.me.part(part))
        await ctx.store.discard(part)
    if covering in ctx.store.active and await keeper.exists(ctx.me.part(covering)) is not None:
        ctx.queue.add_virtual(covering)
        return True
    await commit_produced(ctx, covering)
    return True


async def fetch_result(ctx: ReplicaContext, part: PartName) -> None:
    """Fetch and commit `part`, the result of an executing entry, or a part that covers it.

    Raises SqlError 234, PartUnavailable, PartDiffers, Postponed.
    """
    queued = ctx.queue.producer_of(part)
    if queued is None:
        raise Postponed(f"No entry of the queue makes part {part} any more")
    await fetch_and_commit(ctx, queued, part)


def _check_not_stopped(ctx: ReplicaContext, part: PartName) -> None:
    """Raises Postponed while fetches are."""
    if ctx.switches.is_stopped(Activity.FETCHES):
        raise Postponed(f"Not fetching part {part} because fetches are stopped now")


async def fetch_and_commit(ctx: ReplicaContext, queued: QueuedEntry, part: PartName) -> None:
    """As `fetch_result`, for an entry that is known. After it, every part of the queue that what was fetched
    covers is here, too."""
    patches.refuse(part)
    _check_not_stopped(ctx, part)
    keeper = ctx.session()
    holders = await peers.active_holders(ctx, keeper, part)
    if not holders:
        ctx.check_later(part)
        raise SqlError(Code.NO_REPLICA_HAS_PART, f"No active replica has part {part} or a covering part")
    error: PartUnavailable | PartDiffers | MalformedEntry | None = None
    for holder in holders[: max(1, ctx.settings.max_fetch_partition_retries_count)]:
        if holder.part != part and (reason := ctx.queue.claim(queued, holder.part)):
            raise Postponed(reason)
        await ctx.in_flight.settled(holder.part)
        try:
            await _fetch(ctx, holder)
        except (PartUnavailable, PartDiffers, MalformedEntry) as failed:
            log.warning(
                "replica.fetch_failed table=%s part=%s from=%s error=%s",
                ctx.name,
                holder.part,
                holder.replica.name,
                failed,
            )
            error = failed
            _check_not_stopped(ctx, part)
            continue
        log.info("replica.fetched table=%s part=%s from=%s", ctx.name, holder.part, holder.replica.name)
        return
    assert error is not None
    raise error


async def _fetch(ctx: ReplicaContext, holder: peers.Holder) -> None:
    header = holder.header or await peers.header(ctx.session(), holder.replica, holder.part)
    if header is None or holder.address is None:
        raise PartUnavailable(f"Replica {holder.replica.name} has no part {holder.part} any more")
    if holder.part in ctx.store.staged:
        await ctx.store.discard(holder.part)
    if holder.part not in ctx.store.active:
        transfer = ctx.fetcher.fetch(
            holder.address, holder.replica, holder.part, into=ctx.paced(ctx.store), expected=header
        )
        await ctx.fetches.of(holder.part, transfer)
    await commit_fetched(ctx, holder.part, Agreed(holder.replica, header))


async def _attach_own(ctx: ReplicaContext, action: AttachPart) -> bool:
    """Take the part from `detached/` if something there has the right checksum and is whole."""
    if not await stage_own_detached(ctx, action.part, action.checksum):
        return False
    await commit_produced(ctx, action.part)
    return True
