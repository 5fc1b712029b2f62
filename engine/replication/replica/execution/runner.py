"""Takes entries out of the queue and has them executed, several at a time.

Safety argument. The queue says which entry may run beside those that do. Executing is repeatable, every kind
of it: see the executors. When it has returned, one multi removes `queue/<entry>` and writes the times of
inserts; only then the entry leaves memory. A crash, a lost session or a lost reply before that leaves the
entry, and it is executed again to no further effect.

It never removes an entry that has not been executed. An entry that fails stays, at the end of the queue, and
waits longer each time.

Source: ClickHouse's StorageReplicatedMergeTree::processQueueEntry.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from engine.errors import (
    OnclusterError,
    SessionExpired,
    SqlError,
)
from engine.replication.log_actions import (
    AlterMetadata,
    AttachPart,
    ClearInRange,
    ClonePartFromShard,
    DropRange,
    GetPart,
    MergeParts,
    MutatePart,
    ReplaceRange,
    SyncPinnedPartUuids,
)
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.execution import get as execute_get
from engine.replication.replica.execution import obsolete as execute_obsolete
from engine.replication.replica.execution import ranges as execute_ranges
from engine.replication.replica.execution.alter import execute_alter
from engine.replication.replica.execution.merge import execute_merge
from engine.replication.replica.execution.mutate import execute_mutate
from engine.replication.replica.execution.outcome import Postponed, TermOver
from engine.replication.replica.queue.queue import Limits, Place, QueuedEntry
from engine.replication.replica.queue.removals import Removals
from engine.replication.replica.switches import Activity

log = logging.getLogger(__name__)

MAX_FETCHES = 16
"""Parts that a table fetches at once (ClickHouse's background_fetches_pool_size)."""
MAX_MERGES = 4
"""Merges and mutations of a table at once."""
MAX_MERGES_UNDER_WAY = 8
"""With those whose result only waits to be shown. To show several of one partition costs as much as
one, which is more the more parts it has."""
MAX_EXECUTING = 32
IDLE_PAUSE_S = 5.0
"""How long nothing is looked for when nothing could run; entries, results and switches wake earlier."""
FIRST_BACK_OFF_S = 0.001
"""Doubles with each failure, as in ClickHouse (2^tries milliseconds)."""
MAX_BACK_OFF_S = {Place.FETCH: 60.0, Place.MERGE: 60.0, Place.NONE: 300.0}
POSTPONED_PAUSE_S = 0.2


async def run(ctx: ReplicaContext) -> None:
    """Execute entries as they come. Until cancelled, or until the session is over (SessionExpired)."""
    removals = Removals(ctx)
    async with asyncio.TaskGroup() as executing:
        executing.create_task(removals.run(), name=f"{ctx.name} removals")
        while True:
            queued = _choose(ctx)
            if queued is None:
                await _wait(ctx)
                continue
            executing.create_task(_execute(ctx, queued, removals), name=f"{ctx.name} {queued.name}")


def _choose(ctx: ReplicaContext) -> QueuedEntry | None:
    queue, switches = ctx.queue, ctx.switches
    if switches.is_stopped(Activity.QUEUES):
        return None
    if queue.count_executing() >= MAX_EXECUTING:
        return None
    limits = Limits(
        now_monotonic_s=ctx.env.monotonic_s(),
        merges_stopped=switches.is_stopped(Activity.MERGES),
        fetches_stopped=switches.is_stopped(Activity.FETCHES),
        free_fetches=MAX_FETCHES - queue.count_executing(Place.FETCH),
        free_merges=min(
            MAX_MERGES - queue.count_making(Place.MERGE),
            MAX_MERGES_UNDER_WAY - queue.count_executing(Place.MERGE),
        ),
    )
    return queue.choose(limits, now_s=ctx.env.now_s())


async def _wait(ctx: ReplicaContext) -> None:
    """Until something happens, or the first of the entries that failed may try again."""
    if not len(ctx.queue):
        await ctx.queue_changed.wait()
        return
    now_s = ctx.env.monotonic_s()
    dates = [queued.not_before_s - now_s for queued in ctx.queue.entries if queued.not_before_s > now_s]
    pause_s = min([IDLE_PAUSE_S, *dates])
    try:
        async with asyncio.timeout(max(pause_s, 0.001)):
            await ctx.queue_changed.wait()
    except TimeoutError:
        pass


async def _execute(ctx: ReplicaContext, queued: QueuedEntry, removals: Removals) -> None:
    try:
        for part in queued.entry.new_parts:
            await ctx.in_flight.settled(part)
        queued.pause_s = 0.0
        await _executor_of(queued)(ctx, queued)
        await removals.remove(queued)
        ctx.mutation_news.announce()
    except (SessionExpired, TermOver):
        raise
    except Postponed as postponed:
        queued.num_postponed += 1
        queued.postpone_reason = str(postponed)
        queued.last_postpone_s = ctx.env.now_s()
        queued.not_before_s = ctx.env.monotonic_s() + max(queued.pause_s, POSTPONED_PAUSE_S)
    except (OnclusterError, OSError) as error:
        if ctx.is_readonly:
            raise SessionExpired("The session of the replica is over") from error
        _failed(ctx, queued, error)
    finally:
        ctx.queue.finished(queued)
        ctx.queue_changed.set()


def _failed(ctx: ReplicaContext, queued: QueuedEntry, error: OnclusterError | OSError) -> None:
    queued.num_tries += 1
    queued.last_error = error.display_text if isinstance(error, SqlError) else str(error)
    queued.last_error_s = ctx.env.now_s()
    pause_s = min(FIRST_BACK_OFF_S * 2 ** min(queued.num_tries, 40), MAX_BACK_OFF_S[queued.place])
    queued.not_before_s = ctx.env.monotonic_s() + pause_s
    queued.postpone_reason = f"Not executing log entry {queued.name} for a while because it failed"
    log.warning(
        "replica.entry_failed table=%s entry=%s tries=%d retry_in_s=%.3f error=%s",
        ctx.name,
        queued.name,
        queued.num_tries,
        pause_s,
        error,
    )


def _executor_of(queued: QueuedEntry) -> Callable[[ReplicaContext, QueuedEntry], Awaitable[None]]:
    match queued.entry.action:
        case GetPart() | AttachPart():
            return execute_get.execute
        case MergeParts():
            return execute_merge
        case MutatePart():
            return execute_mutate
        case DropRange():
            return execute_ranges.drop_range
        case ReplaceRange():
            return execute_ranges.replace_range
        case AlterMetadata():
            return execute_alter
        case SyncPinnedPartUuids():
            return _nothing
        case ClearInRange() | ClonePartFromShard():
            return execute_obsolete.refuse


async def _nothing(_ctx: ReplicaContext, _queued: QueuedEntry) -> None:
    """Pinned parts are read by whoever assigns merges, each time."""
