"""DROP PARTITION, DETACH PARTITION, DROP PART, DETACH PART and TRUNCATE.

Safety argument, for a partition. What is dropped is all that was inserted before one moment; what comes later
stays; and no insert may be taken for a repetition of one whose rows were dropped.

1. Read the version of `alter_partition_version`. Take a block number n: the range is 0 to n - 1.
2. Take the locks of smaller numbers away. Such an insert starts over with a larger number, behind the range,
   and nothing with a smaller one can appear in Keeper any more.
3. Only then list the ids of blocks in the range: by 2 the list is complete.
4. One multi: the entry DROP_RANGE, the removal of those ids and of the lock, `alter_partition_version` with
   the version of 1, and `log` set anew, which refuses every merge that was chosen before. Refused: begin
   at 1.

For a part the log's version takes the place of the number: nothing was assigned to the part since it was
looked at, and it is not dropped as a part of something larger.

A crash before 4 leaves locks that end with the session; inserts whose locks were taken away have
started over. A crash after 4 leaves an entry that every replica executes. After a lost reply the log is
searched for the entry; the multi is never sent again. Parts on the disk are never touched here.

Source: ClickHouse's StorageReplicatedMergeTree::dropAllPartsInPartition, dropPart.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from engine.errors import (
    BadVersion,
    Code,
    ConnectionLoss,
    MultiFailed,
    NoNode,
    OperationTimeout,
    SessionExpired,
    SqlError,
)
from engine.keeper.base import Keeper, Op, Remove, SetData
from engine.keeper.recipes import MULTI_BATCH_SIZE, try_remove
from engine.replication.commands.waiting import (
    DEFAULT_INACTIVE_TIMEOUT_S,
    Sync,
    in_term,
    wait_for_entries,
    wait_for_entry,
)
from engine.replication.log_actions import DropRange, RangeFate
from engine.replication.log_entry import LogEntry
from engine.replication.part_name import PartName, drop_range, is_partition_id
from engine.replication.part_store import PartsBroken
from engine.replication.replica.block_numbers import BlockNumber, allocate, cancel_committing
from engine.replication.replica.cleanup_blocks import removals_of_blocks
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.log_commit import Logged, commit_logged, log_op
from engine.replication.replica.merge_predicate import load_predicate
from engine.replication.replica.quorum import last_quorum_parts
from engine.replication.text import time_text

log = logging.getLogger(__name__)

ATTEMPTS = 1000
PAUSE_S = 0.2
_RELEASE_ATTEMPTS = 5
_MAX_REMOVALS = 4000
"""Block ids that go into one multi; more would not fit into a request."""


class StepFence(Protocol):
    """What goes along with each of several transactions of one statement."""

    def __call__(self, name: str, *, of: int) -> Sequence[Op] | None:
        """For the step `name`, which is one of `of`; None: it was done before."""
        ...


async def drop_partition(
    ctx: ReplicaContext,
    partition_id: str,
    *,
    fate: RangeFate = RangeFate.DROP,
    sync: Sync = Sync.OWN,
    inactive_timeout_s: float = DEFAULT_INACTIVE_TIMEOUT_S,
    fence: Sequence[Op] = (),
) -> None:
    """Drop or detach all rows of a partition that were inserted before. Nothing if there never were any.

    Raises SqlError 517 if other commands keep coming first, 242, 341; PartsBroken if a part that is to be
    kept is gone from this replica's disk; MultiFailed if an operation of `fence`, which goes into the same
    multi, is refused.
    """
    if fate is RangeFate.DETACH:
        await _require_files(ctx, [part for part in ctx.store.active if part.partition_id == partition_id])
    entry = await _log_drop(ctx, partition_id, fate, fence)
    if entry is None:
        if fence:
            await ctx.session().multi(fence)
        return
    await wait_for_entry(ctx, entry, sync=sync, inactive_timeout_s=inactive_timeout_s)


async def truncate(
    ctx: ReplicaContext,
    *,
    sync: Sync = Sync.OWN,
    inactive_timeout_s: float = DEFAULT_INACTIVE_TIMEOUT_S,
    fence_of: StepFence | None = None,
) -> None:
    """`drop_partition` for every partition there is; `fence_of` each goes into its multi. Raises as that."""
    listed = await in_term(ctx, lambda keeper: keeper.children(ctx.paths.block_numbers))
    partitions = [name for name in listed.names if is_partition_id(name)]
    entries: list[Logged] = []
    for partition_id in partitions:
        fence = () if fence_of is None else fence_of(partition_id, of=len(partitions))
        if fence is None:
            continue
        entry = await _log_drop(ctx, partition_id, RangeFate.DROP, fence)
        if entry is not None:
            entries.append(entry)
        elif fence:
            await ctx.session().multi(fence)
    await wait_for_entries(ctx, entries, sync=sync, inactive_timeout_s=inactive_timeout_s)


async def drop_part(
    ctx: ReplicaContext,
    part: PartName,
    *,
    fate: RangeFate = RangeFate.DROP,
    sync: Sync = Sync.OWN,
    inactive_timeout_s: float = DEFAULT_INACTIVE_TIMEOUT_S,
    fence: Sequence[Op] = (),
) -> None:
    """Drop or detach one part.

    Raises SqlError 232 NO_SUCH_DATA_PART, 384 PART_IS_TEMPORARILY_LOCKED if it is being merged or mutated, 48
    NOT_IMPLEMENTED if it is the last part of its partition with a quorum, and as `drop_partition`.
    """
    if fate is RangeFate.DETACH:
        await _require_files(ctx, [part])
    for _ in range(ATTEMPTS):
        keeper = ctx.session()
        try:
            predicate = await load_predicate(ctx)
            if part not in ctx.store.active:
                raise SqlError(Code.NO_SUCH_DATA_PART, f"No part {part} in table {ctx.name}")
            if reason := predicate.why_not(part):
                raise SqlError(Code.PART_IS_TEMPORARILY_LOCKED, f"Part {part} is locked: {reason}")
            await _refuse_last_quorum_part(ctx, keeper, part)
            removals = await removals_of_blocks(keeper, ctx.paths, part)
        except (ConnectionLoss, OperationTimeout, SessionExpired):
            await ctx.env.sleep(PAUSE_S)
            continue
        ops: list[Op] = [
            log_op(ctx.paths, LogEntry(DropRange(part, fate), ctx.replica, time_text(ctx.env.now_s()))),
            SetData(ctx.paths.log, b"", predicate.log_version),
            *removals,
        ]
        entry = await _send(ctx, keeper, ops, fence)
        if entry is not None:
            log.info("replication.part_drop_logged table=%s part=%s entry=%s", ctx.name, part, entry.name)
            await wait_for_entry(ctx, entry, sync=sync, inactive_timeout_s=inactive_timeout_s)
            return
    raise cannot_assign(ctx, f"DROP PART {part}")


async def _require_files(ctx: ReplicaContext, parts: Sequence[PartName]) -> None:
    """Raises PartsBroken for parts that somebody has removed from the disk, and has them fetched again."""
    if gone := await ctx.store.gone(parts):
        for part in gone:
            ctx.check_later(part)
        raise PartsBroken(ctx.name, gone)


async def _refuse_last_quorum_part(ctx: ReplicaContext, keeper: Keeper, part: PartName) -> None:
    last = await last_quorum_parts(ctx, keeper)
    if last.by_partition.get(part.partition_id) == part:
        raise SqlError(
            Code.NOT_IMPLEMENTED,
            f"Part {part} is the last inserted part with quorum in partition {part.partition_id}; it cannot "
            "be dropped",
        )


async def _log_drop(
    ctx: ReplicaContext, partition_id: str, fate: RangeFate, fence: Sequence[Op]
) -> Logged | None:
    """Append DROP_RANGE; None if nothing was ever inserted."""
    for _ in range(ATTEMPTS):
        keeper = ctx.session()
        try:
            if await keeper.exists(ctx.paths.partition_block_numbers(partition_id)) is None:
                return None
            version = await alter_partition_version(ctx, keeper)
            number = await allocate(ctx, partition_id)
        except (ConnectionLoss, OperationTimeout, SessionExpired):
            await ctx.env.sleep(PAUSE_S)
            continue
        is_used = False
        try:
            span = drop_range(partition_id, number.number)
            if span is None:
                return None
            removals = await claim_range(ctx, keeper, span, below=number.number)
            action = DropRange(span, fate)
            ops: list[Op] = [
                log_op(ctx.paths, LogEntry(action, ctx.replica, time_text(ctx.env.now_s()))),
                SetData(ctx.paths.alter_partition_version, b"", version),
                SetData(ctx.paths.log, b""),
                number.unlock,
                *removals,
            ]
            entry = await _send(ctx, keeper, ops, fence)
            if entry is not None:
                is_used = True
                number.used()
                log.info("replication.drop_logged table=%s range=%s", ctx.name, span)
                return entry
        except (ConnectionLoss, OperationTimeout, SessionExpired):
            await ctx.env.sleep(PAUSE_S)
        finally:
            if not is_used:
                await give_up(ctx, number)
    raise cannot_assign(ctx, f"DROP PARTITION {partition_id}")


async def _send(ctx: ReplicaContext, keeper: Keeper, ops: Sequence[Op], fence: Sequence[Op]) -> Logged | None:
    """None: refused because something changed, or certainly not executed. Begin anew."""
    try:
        done = await commit_logged(ctx, keeper, [*ops, *fence])
    except MultiFailed as failed:
        if failed.index < len(ops) and isinstance(failed.error, BadVersion | NoNode):
            return None
        raise
    if done is None:
        return None
    ctx.log_changed.set()
    return done.entries[0]


# -- also for commands that replace ranges -----------------------------------------------------------


async def alter_partition_version(ctx: ReplicaContext, keeper: Keeper) -> int:
    """What a command on a partition sets `alter_partition_version` with: two of them never act on the same
    picture. Raises NoNode."""
    stat = await keeper.exists(ctx.paths.alter_partition_version)
    if stat is None:
        raise NoNode(ctx.paths.alter_partition_version)
    return stat.version


async def claim_range(ctx: ReplicaContext, keeper: Keeper, span: PartName, *, below: int) -> list[Remove]:
    """Steps 2 and 3: nothing inside `span` can be committed any more; the removals of the ids of its blocks.

    Where there are too many of these for one multi, the rest is removed here. Should the command fail then,
    repetitions of those inserts would be stored again; they are the oldest.
    """
    await cancel_committing(keeper, ctx.paths, span.partition_id, below=below)
    removals = await removals_of_blocks(keeper, ctx.paths, span)
    excess = removals[: max(0, len(removals) - _MAX_REMOVALS)]
    for start in range(0, len(excess), MULTI_BATCH_SIZE):
        batch = excess[start : start + MULTI_BATCH_SIZE]
        try:
            await keeper.multi(batch)
        except MultiFailed:
            for removal in batch:
                await try_remove(keeper, removal.path, version=removal.version)
    return removals[len(excess) :]


async def give_up(ctx: ReplicaContext, number: BlockNumber) -> None:
    """Abandon a number, whatever happens: one that stays held would stop merges in its partition."""
    for _ in range(_RELEASE_ATTEMPTS):
        if number.keeper.is_expired:
            ctx.block_locks.held.discard(number.path)
            return
        try:
            await number.abandon()
            return
        except (ConnectionLoss, OperationTimeout):
            await ctx.env.sleep(PAUSE_S)
        except SessionExpired:
            continue
    ctx.block_locks.held.discard(number.path)  # the next who asks for a number there removes it
    ctx.block_locks.doubtful.add(number.partition_id)


def cannot_assign(ctx: ReplicaContext, what: str) -> SqlError:
    return SqlError(
        Code.CANNOT_ASSIGN_ALTER,
        f"Cannot assign {what} of {ctx.name}: other commands on partitions keep coming first",
        hint="This error can be retried.",
    )
