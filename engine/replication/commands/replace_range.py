"""REPLACE PARTITION FROM, ATTACH PARTITION FROM and MOVE PARTITION TO TABLE: copies of another table's parts.

Safety argument, REPLACE PARTITION. What was in the partition before one moment goes, and the copies come, at
one moment for readers of each replica.

1. As for DROP PARTITION (`drop_range`): read `alter_partition_version`, take a number n, take away the locks
   of smaller ones, list the ids of blocks in the range 0 to n.
2. Take numbers above n for the copies and stage them: durable, read by nobody.
3. One multi: the entry REPLACE_RANGE, this replica's parts, the removal of all locks and of those ids,
   `alter_partition_version` with the version of 1, and `log` set anew. Refused: throw the copies away and
   begin at 1.
4. Each replica executes the entry, this one too: only then its readers see the copies, and the old parts no
   more. A crash after 2 leaves staged parts that Keeper does not know, which the next start throws away;
   after 3 ones that wait for the entry.

ATTACH PARTITION FROM drops nothing (its range has one block, and means none), and publishes after 3. A copy
of the same bytes is added once: its checksum stands in `blocks/` like an insert's id. So more parts than one
transaction carries come in several, but not for a fenced statement: who goes on with it may have others.

MOVE PARTITION is both in one multi, for two tables in one Keeper: the copies appear in one table exactly if
the range is dropped from the other. Before the multi, all parts of the range have to be here, with
all mutations done: what is not here would be dropped without having been copied. The multi checks that no
mutation was made since: its rows would move without it. A merge that is not done yet is not waited for: its
sources have its rows.

After a lost reply the log is searched for the entry; the multi is never sent again. Where nobody can tell
what became of it the copies stay staged: the other table's parts may be gone already. An attempt is not
interrupted when its query is cancelled.

Source: ClickHouse's StorageReplicatedMergeTree::replacePartitionFrom, movePartitionToTable.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from engine.errors import (
    BadVersion,
    Code,
    ConnectionLoss,
    KeeperAnswer,
    MultiFailed,
    NodeExists,
    NoNode,
    OperationTimeout,
    SessionExpired,
    SqlError,
)
from engine.keeper.base import Check, Create, Keeper, Op, SetData
from engine.replication.commands.copied_parts import (
    attached_node,
    check_same_structure,
    most_copies,
    not_attached_yet,
    nothing_dropped,
    parts_of,
    replace_range_of,
    too_many,
)
from engine.replication.commands.drop_range import (
    ATTEMPTS,
    PAUSE_S,
    alter_partition_version,
    cannot_assign,
    claim_ranges,
)
from engine.replication.commands.mutate import mutations_version
from engine.replication.commands.uninterrupted import uninterrupted
from engine.replication.commands.waiting import DEFAULT_INACTIVE_TIMEOUT_S, Sync, wait_for_entry
from engine.replication.commands.whole_range import until_whole
from engine.replication.log_actions import DropRange, ReplaceRange
from engine.replication.log_entry import LogEntry
from engine.replication.part_name import MAX_BLOCK_NUMBER, MAX_LEVEL, PartName, drop_range
from engine.replication.part_store import Part, PartStore
from engine.replication.replica.block_numbers import (
    BlockNumber,
    BlockNumbers,
    Wanted,
    allocate,
    allocate_all,
    give_up,
)
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.log_commit import Committed, Logged, commit_logged, log_op
from engine.replication.text import encode_bytes, time_text

log = logging.getLogger(__name__)


class Placement(enum.Enum):
    """What becomes of the rows that are in the partition already."""

    REPLACE = "REPLACE PARTITION"
    ADD = "ATTACH PARTITION"


async def replace_partition(
    ctx: ReplicaContext,
    partition_id: str,
    from_database: str,
    from_table: str,
    *,
    placement: Placement = Placement.REPLACE,
    sync: Sync = Sync.OWN,
    inactive_timeout_s: float = DEFAULT_INACTIVE_TIMEOUT_S,
    fence: Sequence[Op] = (),
) -> list[PartName]:
    """Copy a partition of another MergeTree table on this node, replicated or not; returns the new parts.

    Of a replicated source, what this node's replica has is copied. Raises SqlError 60 UNKNOWN_TABLE, 122
    INCOMPATIBLE_COLUMNS, 36 for another partition or sorting key, 252 for more parts than one transaction
    carries, 517, 242, 341; MultiFailed if an operation of `fence` is refused.
    """
    source = ctx.other_table(from_database, from_table)
    if source is None:
        raise SqlError(
            Code.UNKNOWN_TABLE,
            f"Table {from_database}.{from_table} of the MergeTree family does not exist here",
        )
    check_same_structure(await source.definition(), await ctx.store.definition())
    parts: list[PartName] = []
    for _ in range(ATTEMPTS):
        done = await uninterrupted(
            _attempt_replace(ctx, fence, partition_id, source, (from_database, from_table), placement)
        )
        if done is None:
            continue
        if done.entry is None:
            if fence:
                await ctx.session().multi(fence)
            return parts
        log.info(
            "replication.replaced table=%s partition=%s parts=%d", ctx.name, partition_id, len(done.parts)
        )
        parts += done.parts
        await wait_for_entry(ctx, done.entry, sync=sync, inactive_timeout_s=inactive_timeout_s)
        if not done.is_more:
            return parts
    raise cannot_assign(ctx, f"{placement.value} {partition_id} FROM {from_database}.{from_table}")


async def move_partition(
    ctx: ReplicaContext,
    partition_id: str,
    destination: ReplicaContext,
    *,
    sync: Sync = Sync.OWN,
    inactive_timeout_s: float = DEFAULT_INACTIVE_TIMEOUT_S,
    most_parts: int = 0,
    fence: Sequence[Op] = (),
) -> list[PartName]:
    """Move a partition to another replicated table with a replica on this node; returns the new parts.

    `most_parts` is `max_parts_to_move` (0: any number). Raises SqlError 48 NOT_IMPLEMENTED for tables of two
    Keepers, 36 for two replicas of one table, 252 for more parts, 384 PART_IS_TEMPORARILY_LOCKED while parts
    of the partition do not come or mutations do not finish, and as `replace_partition`.
    """
    if destination.holder is not ctx.holder:
        raise SqlError(
            Code.NOT_IMPLEMENTED,
            f"Cannot move a partition from {ctx.name} to {destination.name}: they are not of one Keeper",
        )
    if destination.paths == ctx.paths:
        raise SqlError(
            Code.BAD_ARGUMENTS,
            f"Cannot move a partition from {ctx.name} to {destination.name}: both are the table at "
            f"{ctx.paths.root} in Keeper, and have the same parts",
        )
    check_same_structure(await ctx.store.definition(), await destination.store.definition())
    for _ in range(ATTEMPTS):
        done = await uninterrupted(_attempt_move(ctx, fence, partition_id, destination, most_parts))
        if done is None:
            continue
        if done.entry is None:
            if fence:
                await ctx.session().multi(fence)
            return []
        ctx.log_changed.set()
        log.info("replication.moved table=%s to=%s partition=%s", ctx.name, destination.name, partition_id)
        for of, entry in ((destination, done.entry), (ctx, done.dropped)):
            if entry is not None:
                await wait_for_entry(of, entry, sync=sync, inactive_timeout_s=inactive_timeout_s)
        return list(done.parts)
    raise cannot_assign(ctx, f"MOVE PARTITION {partition_id} TO TABLE {destination.name}")


@dataclass(frozen=True, slots=True)
class _Done:
    """`entry` None: there was nothing to do. `dropped` is the entry in the other table's log."""

    parts: tuple[PartName, ...] = ()
    entry: Logged | None = None
    dropped: Logged | None = None
    is_more: bool = False
    """There are parts left for another attempt."""


async def _attempt_replace(
    ctx: ReplicaContext,
    fence: Sequence[Op],
    partition_id: str,
    source: PartStore,
    source_name: tuple[str, str],
    placement: Placement,
) -> _Done | None:
    async with _Attempt(ctx, fence) as attempt:
        return await attempt.replace(partition_id, source, source_name, placement)


async def _attempt_move(
    ctx: ReplicaContext,
    fence: Sequence[Op],
    partition_id: str,
    destination: ReplicaContext,
    most_parts: int,
) -> _Done | None:
    async with _Attempt(destination, fence) as attempt:
        return await attempt.move(partition_id, ctx, most_parts)


class _Attempt:
    """One attempt on the table `ctx`, which gets the copies. What is held or staged goes at its end, unless
    it was committed, or may have been: a start, or `cleanup.staged_sweep`, settles that."""

    def __init__(self, ctx: ReplicaContext, fence: Sequence[Op]) -> None:
        self._ctx = ctx
        self._fence = fence
        self._held: list[tuple[ReplicaContext, BlockNumber]] = []
        self._numbers: list[BlockNumber] = []
        self._staged: list[PartName] = []
        self._in_flight = AsyncExitStack()
        self._is_in_doubt = False

    async def __aenter__(self) -> _Attempt:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            for ctx, number in self._held:
                await give_up(ctx, BlockNumbers((number,)))
            if not self._is_in_doubt:
                for part in self._staged:
                    await self._ctx.store.discard(part)
        finally:
            await self._in_flight.aclose()

    async def replace(
        self, partition_id: str, source: PartStore, source_name: tuple[str, str], placement: Placement
    ) -> _Done | None:
        ctx = self._ctx
        keeper = ctx.session()
        try:
            version = await alter_partition_version(ctx, keeper)
            ops: list[Op] = []
            span = nothing_dropped(partition_id)
            if placement is Placement.REPLACE:
                number = await self._hold(ctx, await allocate(ctx, partition_id))
                span = PartName(partition_id, 0, number.number, MAX_LEVEL, MAX_BLOCK_NUMBER)
                ops += await claim_ranges(keeper, ctx.paths, {span: number.number})
                ops.append(number.unlock)
            parts = parts_of(source, partition_id)
            if placement is Placement.ADD:
                parts = await not_attached_yet(ctx, keeper, parts)
                if not parts:
                    return _Done()
            most = most_copies(ctx.paths)
            is_more = len(parts) > most
            if is_more and (placement is Placement.REPLACE or self._fence):
                raise too_many(f"{placement.value} {partition_id}", len(parts), most)
            copies = await self._copy(source, parts[:most])
            if copies is None:
                return None
            if placement is Placement.ADD:
                ops += [
                    Create(attached_node(ctx.paths, part), encode_bytes(str(copy.name)))
                    for part, copy in copies
                ]
            action = replace_range_of(span, source_name, copies)
            ops += [
                SetData(ctx.paths.alter_partition_version, b"", version),
                *self._adding(ctx, action, copies),
            ]
            done = await self._commit(keeper, ops)
        except (ConnectionLoss, OperationTimeout, SessionExpired):
            await ctx.env.sleep(PAUSE_S)
            return None
        if done is None:
            return None
        names = tuple(copy.name for _, copy in copies)
        if not action.drops:
            await ctx.store.publish(names)
        return _Done(names, done.entries[0], is_more=is_more)

    async def move(self, partition_id: str, source: ReplicaContext, most_parts: int) -> _Done | None:
        ctx = self._ctx
        keeper = ctx.session()
        try:
            if await keeper.exists(source.paths.partition_block_numbers(partition_id)) is None:
                return _Done()
            version = await alter_partition_version(ctx, keeper)
            source_version = await alter_partition_version(source, keeper)
            mutations = await mutations_version(keeper, source.paths)  # before it is seen that all are done
            number = await self._hold(source, await allocate(source, partition_id))
            span = drop_range(partition_id, number.number)
            if span is None:
                return _Done()
            removals = await claim_ranges(keeper, source.paths, {span: number.number})
            await until_whole(source, span)
            parts = [part for part in parts_of(source.store, partition_id) if span.contains(part.name)]
            if not parts:
                return _Done()
            if len(parts) > most_parts > 0:
                raise SqlError(
                    Code.TOO_MANY_PARTS,
                    f"Cannot move {len(parts)} parts at once, the limit is {most_parts}.",
                    hint="OPTIMIZE TABLE … PARTITION … FINAL makes one of them; or set max_parts_to_move.",
                )
            if len(parts) > (most := most_copies(ctx.paths)):
                raise too_many(f"MOVE PARTITION {partition_id}", len(parts), most)
            copies = await self._copy(source.store, parts)
            if copies is None or not all(part.name in source.store.active for part in parts):
                return None
            action = replace_range_of(
                nothing_dropped(partition_id), (source.name.database, source.name.table), copies
            )
            drop = LogEntry(DropRange(span), source.replica, time_text(ctx.env.now_s()))
            ops: list[Op] = [
                SetData(ctx.paths.alter_partition_version, b"", version),
                *self._adding(ctx, action, copies),
                SetData(source.paths.alter_partition_version, b"", source_version),
                Check(source.paths.mutations, mutations),
                SetData(source.paths.log, b""),
                number.unlock,
                *removals,
                log_op(source.paths, drop),
            ]
            done = await self._commit(keeper, ops)
        except (ConnectionLoss, OperationTimeout, SessionExpired):
            await ctx.env.sleep(PAUSE_S)
            return None
        if done is None:
            return None
        names = tuple(copy.name for _, copy in copies)
        await ctx.store.publish(names)
        entry, dropped = done.entries
        return _Done(names, entry, dropped)

    async def _hold(self, ctx: ReplicaContext, number: BlockNumber) -> BlockNumber:
        self._held.append((ctx, number))
        return number

    async def _copy(self, source: PartStore, parts: Sequence[Part]) -> list[tuple[Part, Part]] | None:
        """Stage copies under fresh numbers; pairs of source and copy. None if a source part has gone."""
        ctx = self._ctx
        numbers = await allocate_all(ctx, [Wanted(part.name.partition_id) for part in parts])
        copies: list[tuple[Part, Part]] = []
        for number in numbers:
            assert isinstance(number, BlockNumber)
            self._numbers.append(await self._hold(ctx, number))
        for part, number in zip(parts, numbers, strict=True):
            assert isinstance(number, BlockNumber)
            name = PartName(number.partition_id, number.number, number.number, part.name.level)
            await self._in_flight.enter_async_context(ctx.in_flight.hold(name))
            try:
                copy = await ctx.store.stage_copy(source, part.name, name)
            except SqlError as error:
                if error.code == Code.NO_SUCH_DATA_PART:
                    return None
                raise
            self._staged.append(name)
            copies.append((part, copy))
        return copies

    def _adding(
        self, ctx: ReplicaContext, action: ReplaceRange, copies: Sequence[tuple[Part, Part]]
    ) -> list[Op]:
        """The operations that make the copies this replica's parts, with the entry for the others."""
        ops: list[Op] = [SetData(ctx.paths.log, b"")]
        ops += [Create(ctx.me.part(copy.name), copy.header.to_bytes()) for _, copy in copies]
        ops += [number.unlock for number in self._numbers]
        ops.append(log_op(ctx.paths, LogEntry(action, ctx.replica, time_text(ctx.env.now_s()))))
        return ops

    async def _commit(self, keeper: Keeper, ops: Sequence[Op]) -> Committed | None:
        """None: refused because something changed, or certainly not executed. Begin anew."""
        ctx = self._ctx
        self._is_in_doubt = True
        try:
            done = await commit_logged(ctx, keeper, [*ops, *self._fence])
        except MultiFailed as failed:
            self._is_in_doubt = False
            if failed.index < len(ops) and isinstance(failed.error, BadVersion | NoNode | NodeExists):
                return None
            raise
        except KeeperAnswer:
            self._is_in_doubt = False
            raise
        self._is_in_doubt = False
        if done is None:
            return None
        for _, number in self._held:
            number.used()
        for part in self._staged:
            ctx.queue.add_virtual(part)
        self._held, self._staged = [], []
        ctx.log_changed.set()
        ctx.merge_wanted.set()
        return done
