"""INSERT into a Distributed table, in every form that a client can send it.

Safety argument. Rows are written by chDB into a stage that nobody else sees (`stage`), split by shard. Only
when the statement has ended well are they delivered, or put into the spool; an error or a crash before that
leaves nothing. Each block has a token before it is first sent: of the INSERT's own token if it has one, so
that a client that repeats an INSERT writes nothing twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import replace

from engine.distributed.delivery import DEPTH_SETTING, TOKEN_SETTING, Block, Deliveries
from engine.distributed.inserter import ForegroundInsert, ShardBlocks
from engine.distributed.peers import PeerShard
from engine.distributed.sharding import slot_count
from engine.distributed.spool_file import FileHead
from engine.distributed.spool_names import all_replicas, one_replica
from engine.distributed.spool_table import SpoolBlock
from engine.env import Env
from engine.errors import Code, SqlError
from engine.names import TableName
from engine.node.distributed.function_targets import FunctionTarget, FunctionTargets
from engine.node.distributed.registry.tables import DistributedTable, DistributedTables
from engine.node.distributed.sending.insert_rows import (
    InsertRows,
    RowsBehind,
    RowsOfText,
    for_memory,
    may_be_staged_in_memory,
)
from engine.node.distributed.sending.memory_stage import MemoryStages, TooMuchForMemory
from engine.node.distributed.sending.policy import policy_of, policy_settings, timeouts_of
from engine.node.distributed.sending.spools import Spools
from engine.node.distributed.sending.stage import Stage, StagedPart, Stages
from engine.node.replicated.rows.insert_sql import InsertSql
from engine.node.replicated.rows.inserts import deduplicates
from engine.node.replicated.rows.views import ViewPush
from engine.node.statements.asked_settings import flag, number
from engine.node.statements.staged_errors import errors_about
from engine.node.statements.statement import Answer, Asked, WholeAnswer, WriteInput
from engine.node.statements.temporary_tables import is_temporary
from engine.sql import Statement, StatementKind
from engine.storage import QueryResult
from engine.storage.statement_text import InsertText

MAX_DEPTH = 5
_FOREGROUND = {"distributed_foreground_insert": "1"}

_NOT_FOR_THE_STAGE = ("insert_quorum", "insert_deduplicate", "deduplicate_insert", TOKEN_SETTING)
_MATERIALIZED = "insert_allow_materialized_columns"
_MAX_PARTITIONS = "max_partitions_per_insert_block"
"""A stage on disk has a partition for each shard."""
_PASSED_ON = (
    "insert_quorum",
    "insert_quorum_timeout",
    "insert_quorum_parallel",
    "insert_deduplicate",
    _MATERIALIZED,
    "allow_experimental_funnel_functions",
    "allow_experimental_time_series_aggregate_functions",
    "allow_experimental_ts_to_grid_aggregate_function",
    "deduplicate_blocks_in_dependent_materialized_views",
    "enable_funnel_functions",
    "enable_time_series_aggregate_functions",
    "exclude_materialize_skip_indexes_on_insert",
    "ignore_materialized_views_with_dropped_target_table",
    "materialize_skip_indexes_on_insert",
    "materialize_statistics_on_insert",
    "materialized_views_ignore_errors",
    _MAX_PARTITIONS,
    "optimize_on_insert",
    "throw_on_max_partitions_per_insert_block",
)
"""They say how a shard's table takes rows, and what its views do with them."""

ShardsOf = Callable[[str], Sequence[PeerShard]]
"""The shards of the cluster of this name. Raises SqlError 701."""


class DistributedInserts:
    """Implements `ReplicatedStatements` for INSERT, and takes inserts whose rows come as a stream."""

    def __init__(
        self,
        tables: DistributedTables,
        *,
        stages: Stages,
        deliveries: Deliveries,
        spools: Spools,
        shards_of: ShardsOf,
        env: Env,
        functions: FunctionTargets,
        views: ViewPush | None = None,
    ) -> None:
        self._tables = tables
        self._functions = functions
        self._views = views
        self._stages = stages
        self._memory = MemoryStages(stages)
        self._deliveries = deliveries
        self._spools = spools
        self._shards_of = shards_of
        self._env = env

    async def close(self) -> None:
        """When no INSERT comes any more."""
        await self._memory.close()

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        """INSERT … SELECT, and INSERT … VALUES that is one text with its rows. None for a table that is
        somebody else's. Raises SqlError."""
        if statement.kind is not StatementKind.INSERT:
            return None
        if (target := await self._functions.of(asked, asked.sql)) is not None:
            return await self._insert_into(asked, target, RowsOfText(target.sql))
        if not len(self._tables):
            return None
        text = InsertSql(asked.sql)
        if text.table is None:
            return None
        async with self._tables.to_write(asked, await self._meant(asked, text.table)) as table:
            return None if table is None else await self._insert(asked, table, text, RowsOfText(asked.sql))

    async def insert(
        self, asked: Asked, insert: InsertText, rows: AsyncIterator[bytes], write_input: WriteInput
    ) -> Answer | None:
        """INSERT … FORMAT, with rows that follow."""
        if (target := await self._functions.of(asked, insert.head)) is not None:
            insert = replace(insert, head=target.sql)
            with closing(RowsBehind(insert, rows, write_input, self._memory)) as behind:
                return await self._insert_into(asked, target, behind)
        if not len(self._tables):
            return None
        text = InsertSql(insert.head)
        if text.table is None:
            return None
        async with self._tables.to_write(asked, await self._meant(asked, text.table)) as table:
            if table is None:
                return None
            with closing(RowsBehind(insert, rows, write_input, self._memory)) as behind:
                return await self._insert(asked, table, text, behind)

    async def _insert_into(self, asked: Asked, target: FunctionTarget, rows: InsertRows) -> Answer:
        """In the foreground, whatever the settings say."""
        text = InsertSql(target.sql)
        settings = {**asked.session.settings, **asked.settings, **text.settings} | _FOREGROUND
        _check_depth(settings)
        table = _as_sent(target.table, settings)
        owner = await self._owner(table, target.shards, settings)
        staged = self._staged(asked, table, text, rows, settings, owner, len(target.shards))
        async with staged as (stage, result):
            await self._deliver(table, target.shards, stage, settings)
        return WholeAnswer(result, format=asked.format)

    async def _meant(self, asked: Asked, name: TableName) -> TableName:
        """Of a materialized view what it writes to."""
        if self._views is None or await is_temporary(asked, name):
            return name
        whole = name.within(asked.current_database)
        return await self._views.target_of(whole) or name

    async def _insert(
        self, asked: Asked, table: DistributedTable, text: InsertSql, rows: InsertRows
    ) -> Answer:
        settings = {**asked.session.settings, **asked.settings, **text.settings}
        _check_depth(settings)
        table = _as_sent(table, settings)
        shards = self._shards_of(table.definition.cluster)
        owner = await self._owner(table, shards, settings)
        if not _is_foreground(settings):
            await self._spools.check(table)
        async with self._staged(asked, table, text, rows, settings, owner, len(shards)) as (stage, result):
            await self._deliver(table, shards, stage, settings)
            if self._views is not None:
                await self._views.push_distributed(asked, table.name, stage.table, settings)
        return WholeAnswer(result, format=asked.format)

    @asynccontextmanager
    async def _staged(
        self,
        asked: Asked,
        table: DistributedTable,
        text: InsertSql,
        rows: InsertRows,
        settings: Mapping[str, str],
        owner: str,
        shards: int,
    ) -> AsyncIterator[tuple[Stage, QueryResult]]:
        """The rows, where they can be read by shard: in memory if they are few."""
        asked = replace(
            asked,
            settings={
                **{n: v for n, v in asked.settings.items() if n not in _NOT_FOR_THE_STAGE},
                "async_insert": "0",
                _MAX_PARTITIONS: "0",
            },
        )
        async with AsyncExitStack() as stack:
            if rows.may_fit and may_be_staged_in_memory(settings):
                small = await stack.enter_async_context(self._memory.open(table, owner, shards=shards))
                try:
                    async with errors_about(asked, table.name, small.table):
                        small.written = await rows.write_small(
                            for_memory(asked, settings), text.into(small.table)
                        )
                except TooMuchForMemory:
                    await stack.aclose()
                else:
                    yield small, small.written
                    return
            stage = await stack.enter_async_context(self._stages.open(table, owner))
            async with errors_about(asked, table.name, stage.table):
                of_stage = text.into(stage.table, unlimited=[_MAX_PARTITIONS])
                result = await rows.write(asked, of_stage)
            yield stage, result

    async def _owner(
        self, table: DistributedTable, shards: Sequence[PeerShard], settings: Mapping[str, str]
    ) -> str:
        """SQL for the index of the shard of a row. Raises SqlError 577, 55, 53, 18."""
        chosen = int(number(settings, "insert_shard_id", 0))
        if chosen > len(shards):
            raise SqlError(Code.INVALID_SHARD_ID, "Shard id should be range from 1 to shard number")
        if chosen:
            return f"toUInt32({chosen - 1})"
        weights = [shard.weight for shard in shards]
        if len(shards) == 1:
            return "toUInt32(0)"
        if not table.definition.sharding_key:
            if flag(settings, "insert_distributed_one_random_shard", False):
                slot_count(weights)  # raises where no shard takes rows
                [index] = self._env.rng.choices(range(len(shards)), weights)
                return f"toUInt32({index})"
            raise SqlError(
                Code.STORAGE_REQUIRES_PARAMETER,
                "Method write is not supported by storage Distributed with more than one shard and no "
                "sharding key provided",
                hint="Give the table a sharding key, or set insert_shard_id or "
                "insert_distributed_one_random_shard.",
            )
        return await self._stages.owner_expression(table, weights)

    async def _deliver(
        self,
        table: DistributedTable,
        shards: Sequence[PeerShard],
        stage: Stage,
        settings: Mapping[str, str],
    ) -> None:
        parts = await stage.parts()
        is_foreground = _is_foreground(settings)
        # Who has repetitions stored must not find them dropped for their token.
        given = settings.get(TOKEN_SETTING, "") if deduplicates(settings) else ""
        token = given or self._env.new_uuid().hex
        passed_on = {name: settings[name] for name in _PASSED_ON if name in settings}
        if (depth := _depth(settings)) > 0:
            passed_on[DEPTH_SETTING] = str(depth - 1)
        if is_foreground:
            passed_on["insert_distributed_sync"] = "1"  # the name that servers of all versions know
        timeouts = timeouts_of(settings)
        by_shard: dict[int, list[Block]] = {}
        for part in parts:
            blocks = by_shard.setdefault(part.shard, [])
            # Shards may write on to one table, being Distributed ones themselves or by views.
            own = f"{token}:{shards[part.shard].number}"
            own = f"{own}_{len(blocks)}" if blocks else own
            blocks.append(_block(table, stage, part, own, passed_on, timeouts))
        work = [ShardBlocks(shards[index], blocks) for index, blocks in by_shard.items()]
        policy = policy_of(settings)
        later: list[SpoolBlock] = []
        if not is_foreground:
            kept = policy_settings(settings)
            is_repeatable = bool(given)
            split = [
                _split(part, kept, is_repeatable=is_repeatable, prefers_local=policy.prefer_localhost)
                for part in work
            ]
            work = [now for now, _ in split if now is not None]
            later = [block for _, blocks in split for block in blocks]
        timeout_s = number(
            settings,
            "insert_distributed_timeout",
            number(settings, "distributed_background_insert_timeout", 0),
        )
        insert = ForegroundInsert(self._deliveries, self._env, policy=policy, timeout_s=timeout_s)
        await self._write_and_keep(table, insert, work, later)

    async def _write_and_keep(
        self,
        table: DistributedTable,
        insert: ForegroundInsert,
        work: Sequence[ShardBlocks],
        later: Sequence[SpoolBlock],
    ) -> None:
        """What is kept gets its place when the rest is written, so that an INSERT that fails leaves nothing
        to be sent; both are made ready at the same time. An error of the disk says what was written here."""
        if not later or not work:
            await (self._spools.put(table, later) if later else insert.write(work))
            return
        writing = asyncio.create_task(insert.write(work))
        try:
            await self._spools.put(table, later, after=writing)
        except asyncio.CancelledError:
            writing.cancel()
            raise
        except SqlError as error:
            await asyncio.gather(writing, return_exceptions=True)
            raise (error if writing.exception() else _kept_in_part(error, work)) from error.__cause__
        finally:
            await asyncio.gather(writing, return_exceptions=True)


def _kept_in_part(error: SqlError, written: Sequence[ShardBlocks]) -> SqlError:
    """Other shards' rows could not be kept; those of this node's own are there."""
    rows = sum(block.rows for part in written for block in part.blocks)
    numbers = ", ".join(str(part.shard.number) for part in written)
    return SqlError(
        error.code,
        f"{error.message}. {rows} rows were written on this node, shard {numbers}, and stay; the others "
        "were not kept",
        hint="Look at its disk. The same INSERT with its insert_deduplication_token writes the rest.",
        name=error.name,
    )


def _as_sent(table: DistributedTable, settings: Mapping[str, str]) -> DistributedTable:
    return table.with_materialized_sent() if flag(settings, _MATERIALIZED, False) else table


def _depth(settings: Mapping[str, str]) -> int:
    """How many Distributed tables, each behind another, may still be written to; 0 is no limit."""
    return int(number(settings, DEPTH_SETTING, MAX_DEPTH))


def _check_depth(settings: Mapping[str, str]) -> None:
    """Raises SqlError 581 at the last one: what is passed on is one less, and would be no limit."""
    if _depth(settings) == 1:
        raise SqlError(Code.TOO_LARGE_DISTRIBUTED_DEPTH, "Maximum distributed depth exceeded")


def _is_foreground(settings: Mapping[str, str]) -> bool:
    if number(settings, "insert_shard_id", 0):
        return True
    old = flag(settings, "insert_distributed_sync", False)
    return flag(settings, "distributed_foreground_insert", old)


def _split(
    work: ShardBlocks, kept_settings: Mapping[str, str], *, is_repeatable: bool, prefers_local: bool
) -> tuple[ShardBlocks | None, list[SpoolBlock]]:
    """What is written at once, because this node is the replica, and what is kept to be sent, with
    `kept_settings`."""
    shard = work.shard
    here = tuple(peer for peer in shard.peers if prefers_local and peer.is_local)
    now = ShardBlocks(replace(shard, peers=here), work.blocks) if here else None
    if shard.internal_replication:
        directories: tuple[str, ...] = () if here else (all_replicas(shard),)
    else:
        directories = tuple(one_replica(peer) for peer in shard.peers if peer not in here)
    if not directories:
        return now, []
    return now, [
        SpoolBlock(
            directories,
            FileHead(
                block.token, block.columns, block.rows, {**block.settings, **kept_settings}, is_repeatable
            ),
            block.body(),
        )
        for block in work.blocks
    ]


def _block(
    table: DistributedTable,
    stage: Stage,
    part: StagedPart,
    token: str,
    settings: Mapping[str, str],
    timeouts: tuple[float, float],
) -> Block:
    send_s, receive_s = timeouts
    return Block(
        database=table.definition.database,
        table=table.definition.table,
        columns=table.sent_columns,
        token=token,
        body=lambda: stage.rows(part),
        rows=part.rows,
        settings=settings,
        select=stage.select(part),
        send_timeout_s=send_s,
        receive_timeout_s=receive_s,
    )
