"""Executes MERGE_PARTS: makes the part out of its sources, or fetches it where that cannot be done here.

Safety argument. 1. The result is staged: durable, read by nobody. 2. `commit_produced` compares it with what
any replica has, records it in Keeper and publishes it. A crash after 1 leaves a staged part that the
next start throws away; a crash within 2 one that it publishes. The entry stays in the queue until this has
returned, and doing it again is safe: a part that is here already is left alone.

A merge that is stopped while it runs is interrupted (`making`). A result that differs from another replica's
is thrown away and fetched: whoever was first decides, so all replicas end with the same bytes. It never waits
for a source: a replica that lacks one fetches the result.

Source: ClickHouse's MergeFromLogEntryTask.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from engine.errors import Code, SqlError
from engine.replication.log_actions import MergeParts, MergeType
from engine.replication.part_checksums import PartDiffers
from engine.replication.part_name import PartName
from engine.replication.part_store import MergeOptions
from engine.replication.replica import commit_part, patches
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.execution import get as execute_get
from engine.replication.replica.execution.making import make
from engine.replication.replica.execution.outcome import Postponed
from engine.replication.replica.insert_times import unix_s
from engine.replication.replica.merging import turns as merge_turns
from engine.replication.replica.newer_columns import why_too_early
from engine.replication.replica.queue.queue import QueuedEntry
from engine.replication.replica.switches import Activity

log = logging.getLogger(__name__)


async def execute_merge(ctx: ReplicaContext, queued: QueuedEntry) -> None:
    """Have the result, whichever way. Raises SqlError, Postponed, or what a fetch raises."""
    action = queued.entry.action
    assert isinstance(action, MergeParts)
    if await have_already(ctx, action.result):
        return
    reason = patches.merged_with(action.sources, action.apply_patches)
    if reason := reason or await why_fetch(ctx, queued, action.sources, action.result):
        log.info("replica.merge_fetched table=%s part=%s reason=%s", ctx.name, action.result, reason)
        await execute_get.fetch_result(ctx, action.result)
        return
    if reason := _why_stopped(ctx, action) or await why_too_early(ctx, action.sources):
        raise Postponed(reason)
    if action.result not in ctx.store.staged:
        options = MergeOptions(
            deduplicate=action.deduplicate,
            deduplicate_by_columns=action.deduplicate_by_columns,
            cleanup=action.cleanup,
            now_s=unix_s(queued.entry.create_time),
            keep_expired=ctx.switches.is_stopped(Activity.TTL_MERGES),
        )
        try:
            work = ctx.store.merge(action.sources, action.result, options)
            await make(ctx, action.result, work, why_not=lambda: _why_stopped(ctx, action))
        except PartDiffers as error:
            await suspect(ctx, action.sources, action.result, error)
            return
        except SqlError as error:
            if error.code not in DAMAGED:
                raise
            await suspect(ctx, action.sources, action.result, error)
            return
    await commit_or_fetch(ctx, queued, action.result)


def _why_stopped(ctx: ReplicaContext, action: MergeParts) -> str:
    if ctx.switches.is_stopped(Activity.MERGES):
        return f"Not merging into {action.result} because merges are stopped now"
    if action.merge_type is not MergeType.REGULAR and ctx.switches.is_stopped(Activity.TTL_MERGES):
        return f"Not merging into {action.result} because merges for a TTL are stopped now"
    return ""


DAMAGED = frozenset(
    {
        Code.ATTEMPT_TO_READ_AFTER_EOF,
        Code.CANNOT_READ_ALL_DATA,
        Code.CHECKSUM_DOESNT_MATCH,
        Code.FILE_DOESNT_EXIST,
        Code.NO_SUCH_DATA_PART,
        Code.CORRUPTED_DATA,
        Code.CANNOT_DECOMPRESS,
        Code.UNKNOWN_CODEC,
    }
)
"""What reading a damaged part may end with."""


async def have_already(ctx: ReplicaContext, result: PartName) -> bool:
    """Whether the replica has the result, or could make it so with what an earlier attempt has left."""
    try:
        return await execute_get.is_here(ctx, result)
    except PartDiffers as error:
        log.warning("replica.result_differs table=%s part=%s error=%s", ctx.name, result, error)
        await execute_get.fetch_result(ctx, result)
        return True


async def commit_or_fetch(ctx: ReplicaContext, queued: QueuedEntry, result: PartName) -> None:
    """Commit a staged part; where another replica has it with other bytes, take those."""
    queued.is_made = True
    ctx.queue_changed.set()
    try:
        await commit_part.commit_produced(ctx, result)
    except PartDiffers as error:
        log.warning("replica.result_differs table=%s part=%s error=%s", ctx.name, result, error)
        await execute_get.fetch_result(ctx, result)


async def why_fetch(
    ctx: ReplicaContext, queued: QueuedEntry, sources: Sequence[PartName], result: PartName
) -> str:
    """Why the result is not made here but fetched; empty if it is made. Raises Postponed."""
    if ctx.settings.always_fetch_merged_part:
        return "always_fetch_merged_part is set"
    if await merge_turns.is_made_by_another(ctx, queued):
        return "it was left to another replica"
    missing = [source for source in sources if source not in ctx.store.active]
    if missing:
        return f"source {missing[0]} is not here"
    if await merge_turns.is_better_fetched(ctx, queued, sources, result):
        return "it is large, and somebody has it"
    return ""


async def suspect(
    ctx: ReplicaContext, sources: Sequence[PartName], result: PartName, error: Exception
) -> None:
    """A source cannot be read: have all of them checked, and take the result from another replica."""
    log.warning("replica.sources_damaged table=%s part=%s error=%s", ctx.name, result, error)
    for source in sources:
        ctx.check_later(source)
    await execute_get.fetch_result(ctx, result)
