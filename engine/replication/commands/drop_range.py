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

TRUNCATE does so for many partitions in one transaction: each step for all of them before the next.

For a part the log's version takes the place of the number: nothing was assigned to the part since it was
looked at, and it is not dropped as a part of something larger.

A crash before 4 leaves locks that end with the session; inserts whose locks were taken away have
started over. A crash after 4 leaves an entry that every replica executes. After a lost reply the log is
searched for the entry; the multi is never sent again. Parts on the disk are never touched here.

Source: ClickHouse's StorageReplicatedMergeTree::dropAllPartsInPartition, dropPart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
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
from engine.replication.paths import TablePaths
from engine.replication.replica.block_numbers import allocate_everywhere, cancel_committing, give_up
from engine.replication.replica.cleanup.blocks import removals_of_blocks
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.log_commit import Logged, commit_logged, log_op
from engine.replication.replica.merging.predicate import load_predicate
from engine.replication.replica.quorum import last_quorum_parts
from engine.replication.text import time_text

log = logging.getLogger(__name__)

ATTEMPTS = 1000
PAUSE_S = 0.2
_PARTITIONS_AT_ONCE = 100
_NAMED = 3
"""Partitions that an error names."""
_MAX_REMOVALS = 4000
"""Block ids that go into one multi; more would not fit into a request."""


class StepFence(Protocol):
    """What goes along with each of several transactions of one statement."""

    def __call__(self, name: str, *, of: int) -> Sequence[Op] | None:
        """For the step `name`, which is one of `of`; None: it was done before. What is given records earlier
        steps, too: of several in one transaction the last one's goes along."""
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
    entries = await _log_drops(ctx, [partition_id], fate, fence)
    if fence and not entries:
        await ctx.session().multi(fence)
    await wait_for_entries(ctx, entries, sync=sync, inactive_timeout_s=inactive_timeout_s)


async def truncate(
    ctx: ReplicaContext,
    *,
    sync: Sync = Sync.OWN,
    inactive_timeout_s: float = DEFAULT_INACTIVE_TIMEOUT_S,
    fence_of: StepFence | None = None,
) -> None:
    """`drop_partition` for every partition there is, of many in one transaction; `fence_of` each goes into
    it. Raises as that."""
    listed = await in_term(ctx, lambda keeper: keeper.children(ctx.paths.block_numbers))
    partitions = [name for name in listed.names if is_partition_id(name)]
    entries: list[Logged] = []
    for start in range(0, len(partitions), _PARTITIONS_AT_ONCE):
        to_do: list[str] = []
        fence: Sequence[Op] = ()
        for partition_id in partitions[start : start + _PARTITIONS_AT_ONCE]:
            step = () if fence_of is None else fence_of(partition_id, of=len(partitions))
            if step is not None:
                to_do.append(partition_id)
                fence = step
        logged = await _log_drops(ctx, to_do, RangeFate.DROP, fence) if to_do else ()
        entries += logged
        if fence and not logged:
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
            predicate = await load_predicate(ctx, frozenset())
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
        entries = await _send(ctx, keeper, ops, fence)
        if entries is not None:
            [entry] = entries
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


async def _log_drops(
    ctx: ReplicaContext, partition_ids: Sequence[str], fate: RangeFate, fence: Sequence[Op]
) -> Sequence[Logged]:
    """Append a DROP_RANGE for each partition in one transaction; none for those into which nothing was ever
    inserted."""
    for _ in range(ATTEMPTS):
        keeper = ctx.session()
        try:
            directories = [ctx.paths.partition_block_numbers(each) for each in partition_ids]
            stats = await keeper.exists_many(directories)
            wanted = [each for each, stat in zip(partition_ids, stats, strict=True) if stat is not None]
            if not wanted:
                return ()
            version = await alter_partition_version(ctx, keeper)
            held = await allocate_everywhere(ctx, keeper, wanted)
        except (ConnectionLoss, OperationTimeout, SessionExpired):
            await ctx.env.sleep(PAUSE_S)
            continue
        is_used = False
        try:
            spans = {
                span: number.number
                for number in held.held
                if (span := drop_range(number.partition_id, number.number)) is not None
            }
            if not spans:
                return ()
            removals = await claim_ranges(keeper, ctx.paths, spans)
            now = time_text(ctx.env.now_s())
            ops: list[Op] = [
                *(log_op(ctx.paths, LogEntry(DropRange(span, fate), ctx.replica, now)) for span in spans),
                SetData(ctx.paths.alter_partition_version, b"", version),
                SetData(ctx.paths.log, b""),
                *held.unlock,
                *removals,
            ]
            entries = await _send(ctx, keeper, ops, fence)
            if entries is not None:
                is_used = True
                held.used()
                for span in spans:
                    log.info("replication.drop_logged table=%s range=%s", ctx.name, span)
                return entries
        except (ConnectionLoss, OperationTimeout, SessionExpired):
            await ctx.env.sleep(PAUSE_S)
        finally:
            if not is_used:
                await give_up(ctx, held)
    raise cannot_assign(ctx, f"DROP PARTITION {', '.join(partition_ids[:_NAMED])}")


async def _send(
    ctx: ReplicaContext, keeper: Keeper, ops: Sequence[Op], fence: Sequence[Op]
) -> Sequence[Logged] | None:
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
    return done.entries


# -- also for commands that replace ranges -----------------------------------------------------------


async def alter_partition_version(ctx: ReplicaContext, keeper: Keeper) -> int:
    """What a command on a partition sets `alter_partition_version` with: two of them never act on the same
    picture. Raises NoNode."""
    stat = await keeper.exists(ctx.paths.alter_partition_version)
    if stat is None:
        raise NoNode(ctx.paths.alter_partition_version)
    return stat.version


async def claim_ranges(keeper: Keeper, paths: TablePaths, spans: Mapping[PartName, int]) -> list[Remove]:
    """Steps 2 and 3, for ranges each with the number that is held for it: nothing inside them can be
    committed any more; the removals of the ids of their blocks.

    Where there are too many of these for one multi, the rest is removed here. Should the command fail then,
    repetitions of those inserts would be stored again; they are the oldest.
    """
    await asyncio.gather(
        *(cancel_committing(keeper, paths, span.partition_id, below=held) for span, held in spans.items())
    )
    removals = await removals_of_blocks(keeper, paths, *spans)
    excess = removals[: max(0, len(removals) - _MAX_REMOVALS)]
    for start in range(0, len(excess), MULTI_BATCH_SIZE):
        batch = excess[start : start + MULTI_BATCH_SIZE]
        try:
            await keeper.multi(batch)
        except MultiFailed:
            for removal in batch:
                await try_remove(keeper, removal.path, version=removal.version)
    return removals[len(excess) :]


def cannot_assign(ctx: ReplicaContext, what: str) -> SqlError:
    return SqlError(
        Code.CANNOT_ASSIGN_ALTER,
        f"Cannot assign {what} of {ctx.name}: other commands on partitions keep coming first",
        hint="This error can be retried.",
    )
