"""INSERT into a replicated table, in every form that a client can send it.

Safety argument. Rows are written by chDB into a stage, a table that nobody else sees; what is in it when the
statement has ended well becomes parts, and those are committed by `engine.replication.commands.insert`, whose
argument covers the rest. An error or a crash before the commit leaves nothing. Materialized views come after
the commit: what happens when one fails stands in `views`.

A statement is refused before its first row is read when the replica is read-only, when too few replicas are
alive for its quorum, and when the table has too many parts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

from engine.errors import Code, SqlError
from engine.names import TableName
from engine.node.replicated.rows.insert_sql import InsertSql
from engine.node.replicated.rows.unmerged_rows import copy_rows
from engine.node.replicated.rows.views import Rows, ViewPush
from engine.node.replicated.running.runtime import InsertStage, ReplicatedTables, RunningTable
from engine.node.statements.asked_settings import flag, number
from engine.node.statements.staged_errors import errors_about
from engine.node.statements.staged_insert import StagedInserts, Write, streaming
from engine.node.statements.statement import Answer, Asked, WholeAnswer
from engine.replication.commands.insert import AUTO_QUORUM, Inserter, InsertOptions
from engine.replication.table_metadata import MergingMode
from engine.storage import QueryResult

_NOT_FOR_THE_STAGE = (
    "insert_quorum",
    "insert_deduplicate",
    "deduplicate_insert",
    "insert_deduplication_token",
    "deduplicate_insert_select",
)
_LIMITS = ("parts_to_delay_insert", "parts_to_throw_insert")
"""They are about the replicated table's parts. The stage, whose parts are this INSERT's alone, has limits of
its own, which 0 asks for."""


class ReplicatedInserts(StagedInserts):
    """INSERT into replicated tables."""

    streaming_settings = streaming(block_bytes=16 << 20, part_bytes=32 << 20)

    def __init__(self, tables: ReplicatedTables, views: ViewPush) -> None:
        self._tables = tables
        self._views = views

    async def insert_into_stage(self, asked: Asked, text: InsertSql, write: Write) -> Answer | None:
        if text.table is None:
            return None
        name = text.table.within(asked.current_database)
        await self._tables.local_writes.settled(name)
        table = self._tables.find_to_write(name)
        if table is None:
            table = self._tables.find_to_write(await self._views.written_by(name))
        if table is None:
            with self._tables.written_by_chdb(name):
                result: QueryResult | None = await self._views.insert_plain(asked, name, text, write)
        else:
            result = await self._insert_into(asked, table, text, write)
        return None if result is None else WholeAnswer(result, format=asked.format)

    async def _insert_into(
        self, asked: Asked, table: RunningTable, text: InsertSql, write: Write
    ) -> QueryResult:
        settings = {**asked.session.settings, **asked.settings, **text.settings}
        options = options_of(settings)
        if text.is_select:
            options = replace(options, deduplicate=_deduplicate_select(settings, options, text))
        with table.in_use():
            return await self._write_into(asked, table, text, write, settings, options)

    async def _write_into(
        self,
        asked: Asked,
        table: RunningTable,
        text: InsertSql,
        write: Write,
        settings: Mapping[str, str],
        options: InsertOptions,
    ) -> QueryResult:
        async with Inserter(table.ctx) as inserter, table.store.insert_stage() as stage:
            await inserter.check(options)
            inserter.rows_are_coming(options)
            async with self._rows_for_views(table, settings) as unmerged:
                first = unmerged or stage
                async with errors_about(asked, table.name, first.table):
                    here = replace(for_stage(asked), behind_insert=first.look)
                    result = await write(here, text.into(first.table))
                    rows = Rows(stage)
                    if unmerged is not None:
                        rows = Rows(unmerged, await unmerged.collect())
                        if rows.unmerged:
                            of_copy, columns = _for_the_copy(asked, text), await stage.stored_columns()
                            _check_parts_can_be_told_apart(table.name, columns)
                            await copy_rows(asked, unmerged.table, stage.table, of_copy, columns, rows.all)
                inserted = await inserter.commit(await stage.collect(), options)
                await self._views.push(asked, table, rows, inserted, settings, options)
        return result

    @asynccontextmanager
    async def _rows_for_views(
        self, table: RunningTable, settings: Mapping[str, str]
    ) -> AsyncIterator[InsertStage | None]:
        """Where the rows come first if the stage would merge some that views have to see."""
        if flag(settings, "optimize_on_insert", True) and await self._views.read(table.name):
            metadata = (await table.store.definition()).metadata
            if metadata.mode is not MergingMode.ORDINARY:
                async with table.store.unmerged_stage() as unmerged:
                    yield unmerged
                return
        yield None


def for_stage(asked: Asked) -> Asked:
    """The request as the stage's table needs it: at once, and without what is the replicated table's."""
    settings = {n: v for n, v in asked.settings.items() if n not in _NOT_FOR_THE_STAGE}
    settings |= {n: "0" for n in _LIMITS if n in asked.settings or n in asked.session.settings}
    return replace(asked, settings={**settings, "async_insert": "0"})


def _check_parts_can_be_told_apart(table: TableName, columns: Collection[str]) -> None:
    """Raises SqlError 48: rows of earlier inserts stand in a stage, too."""
    if "_part" in columns:
        raise SqlError(
            Code.NOT_IMPLEMENTED,
            f"Table {table} merges rows at INSERT, has a column _part, and views read it.",
            hint="Rename the column, or insert with optimize_on_insert = 0.",
        )


def _for_the_copy(asked: Asked, text: InsertSql) -> Mapping[str, str]:
    """The settings of the INSERT as the stage's table needs them."""
    own = {n: v for n, v in text.settings.items() if n not in (*_NOT_FOR_THE_STAGE, *_LIMITS)}
    return {**for_stage(asked).settings, **own}


def options_of(settings: Mapping[str, str]) -> InsertOptions:
    """Raises SqlError 36 for values that are none."""
    return InsertOptions(
        deduplicate=deduplicates(settings),
        token=settings.get("insert_deduplication_token", ""),
        quorum=_quorum(settings.get("insert_quorum", "0")),
        quorum_parallel=flag(settings, "insert_quorum_parallel", True),
        quorum_timeout_s=number(settings, "insert_quorum_timeout", 600_000.0) / 1000,
        max_retries=int(number(settings, "insert_keeper_max_retries", 20)),
        parts_to_delay=int(number(settings, "parts_to_delay_insert", 0)),
        parts_to_throw=int(number(settings, "parts_to_throw_insert", 0)),
    )


def deduplicates(settings: Mapping[str, str]) -> bool:
    """`deduplicate_insert` (enable, disable, backward_compatible_choice) before the older flag."""
    choice = settings.get("deduplicate_insert", "")
    if choice in ("enable", "disable"):
        return choice == "enable"
    return flag(settings, "insert_deduplicate", True)


def _deduplicate_select(settings: Mapping[str, str], options: InsertOptions, text: InsertSql) -> bool:
    """`deduplicate_insert_select`, by default `enable_even_for_bad_queries`: a statement that is repeated
    must not come twice, whatever its SELECT (servers of 26.9 prefer `enable_when_possible`)."""
    choice = settings.get("deduplicate_insert_select", "enable_even_for_bad_queries")
    is_possible = bool(options.token) or text.has_stable_rows
    match choice:
        case "disable":
            return False
        case "enable_when_possible":
            return options.deduplicate and is_possible
        case "enable_even_for_bad_queries":
            return options.deduplicate
        case "force_enable" if is_possible:
            return True
        case "force_enable":
            raise SqlError(
                Code.DEDUPLICATION_IS_NOT_POSSIBLE,
                "Deduplication for INSERT SELECT with non-stable SELECT is not possible (the SELECT part can "
                "return different results on each execution).",
                hint="Add ORDER BY ALL, or an insert_deduplication_token.",
            )
    raise SqlError(
        Code.BAD_ARGUMENTS,
        f"Unexpected value of DeduplicateInsertSelectMode: '{choice[:100]}'. Must be one of "
        "['enable_even_for_bad_queries', 'force_enable', 'disable', 'enable_when_possible'].",
    )


def _quorum(text: str) -> int:
    if text == "auto":
        return AUTO_QUORUM
    if not text.isdigit():
        raise SqlError(
            Code.BAD_ARGUMENTS, f"Setting insert_quorum = '{text}' is neither a number nor 'auto'."
        )
    return int(text)
