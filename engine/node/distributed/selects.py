"""Statements that read Distributed tables, made into statements that chDB runs by itself.

The text is rewritten before anybody else sees it: SELECT, EXPLAIN, INSERT … SELECT, CREATE TABLE … AS SELECT.
Views over Distributed tables are put in as subqueries first. Statements that are kept (CREATE VIEW) stay.

In chDB a Distributed table is an empty table, so a reference that is overlooked would answer
with no rows. Therefore what is rewritten is checked: a text that still names a Distributed table is refused.

A text that comes again is not looked at again (`remembered`): only the replicas are chosen anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from engine.config.model import Topology
from engine.distributed.peers import PeerShard, peers_of_cluster
from engine.distributed.select import Analysis, SourceTable, Spread, analyse_select, fill
from engine.distributed.select.plan import select_begins
from engine.distributed.select.template import (
    Reference,
    Template,
    alias_behind,
    make_template,
    table_names,
)
from engine.errors import Code, SqlError
from engine.names import HostId, TableName
from engine.node.distributed.analyst import Analyst, scope_of
from engine.node.distributed.chdb_request import DEPTH, ONE_ROW, with_one_row, with_text, with_threads
from engine.node.distributed.columns import columns_elsewhere, columns_of, elsewhere
from engine.node.distributed.failover import Failover
from engine.node.distributed.guard import check_merge
from engine.node.distributed.merges import Merge, MergeReader, Merges, merge_calls
from engine.node.distributed.peer_health import PeerHealth
from engine.node.distributed.read_settings import spread_of
from engine.node.distributed.remembered import Remembered, RememberedSelects, Stamp
from engine.node.distributed.settings_around import settings_around, settings_of_statement
from engine.node.distributed.shard_reader import ShardReader
from engine.node.distributed.table_filters import filter_of, table_filters
from engine.node.distributed.table_functions import table_functions
from engine.node.distributed.tables import DistributedTable, DistributedTables
from engine.node.distributed.views import DistributedViews, is_target
from engine.node.distributed.zones import types_of
from engine.node.replicated.local_tables import LocalTables
from engine.node.replicated.waiting import flag, settings_of
from engine.node.statement import Asked
from engine.sql import Statement, StatementKind
from engine.sql.output import without_output_clauses

_READING = frozenset(
    {StatementKind.SELECT, StatementKind.EXPLAIN, StatementKind.INSERT, StatementKind.CREATE_TABLE}
)
_FUNCTION = re.compile(r"\b(?:cluster|clusterAllReplicas|remote|remoteSecure)\s*\(", re.IGNORECASE)
_EMPTY_FOR_NO_ROWS = "empty_result_for_aggregation_by_empty_set"
"""Of no rows no shard may make one."""


class DistributedSelects:
    """Rewrites what reads Distributed tables."""

    def __init__(
        self,
        tables: DistributedTables,
        local: LocalTables,
        health: PeerHealth,
        *,
        topology: Callable[[], Topology],
        is_local: Callable[[HostId], bool],
        shards_of: Callable[[str], Sequence[PeerShard]],
    ) -> None:
        self._tables = tables
        self._health = health
        self._topology = topology
        self._is_local = is_local
        self._shards_of = shards_of
        self._views = DistributedViews(tables, local)
        self._merges = Merges(tables, local, self._views)
        self._analyst = Analyst()
        self._remembered = RememberedSelects()

    def forget_views(self) -> None:
        """A statement that may have made or changed a view or a table has run or was given up."""
        self._views.forget()
        self._health.forget_here()

    def failover(self, asked: Asked, statement: Statement) -> Failover:
        """What `prepare` needs to know of a statement that it may be given more than once."""
        return Failover(self._health, asked, statement)

    async def prepare(self, asked: Asked, statement: Statement, failover: Failover) -> Asked:
        """The request as chDB can run it. Raises SqlError."""
        prepared = await self._prepared(asked, statement, failover)
        if statement.kind is not StatementKind.SELECT:
            return prepared
        return with_threads(prepared, len(failover.reads), usual=self._health.pool.max_threads)

    async def _prepared(self, asked: Asked, statement: Statement, failover: Failover) -> Asked:
        failover.reads.clear()
        if statement.kind not in _READING:
            return asked
        if statement.kind is StatementKind.SELECT and ONE_ROW.match(asked.sql):
            asked = with_one_row(asked, takes_settings=True)
        has_functions = _FUNCTION.search(asked.sql) is not None
        if not len(self._tables) and not has_functions:
            return asked
        key, stamp = None, self._stamp()
        if statement.kind is StatementKind.SELECT and not has_functions:
            key = self._remembered.key(asked)
            before = self._remembered.find(key, stamp)
            if before is not None:
                return await self._again(asked, before, failover)
        found = await self._planned(asked, failover)
        if found is None:
            self._remembered.put(key, Remembered(stamp))
            return asked
        asked, refs, analysis = found
        reader = refs[0].table.source
        if (
            key is not None
            and analysis.is_repeatable
            and isinstance(reader, ShardReader)
            and reader.reads_all_shards
        ):
            self._remembered.put(
                key,
                Remembered(
                    stamp,
                    analysis,
                    await self._tables.find(reader.own) if reader.own else None,
                    reader.settings,
                    reader.depth,
                    frozenset([table.name for table in await self._tables.all()]),
                ),
            )
        return asked

    async def _planned(
        self, asked: Asked, failover: Failover
    ) -> tuple[Asked, Sequence[Reference], Analysis] | None:
        """The request as chDB can run it; None if it is so already."""
        sql = await self._views.replaced(asked) if len(self._tables) else asked.sql
        found = await self._references(asked, sql, failover)
        if not found:
            check_merge(sql, await self._tables.names(), asked.current_database)
            return None
        refs, names = found
        whole = settings_of_statement(asked, sql)
        spread = self._spread(whole, sql, refs)
        readers = _readers(refs)
        try:
            for reader in readers:
                reader.choose_ahead()
            of_text = [ref for ref in refs if ref.alias]
            template = make_template(
                sql, refs, databases={ref.start: self._name_of(asked, sql, ref) for ref in of_text}
            )
            if asked.session.is_readonly:
                asked = await self._as_reader(asked, template, [names.get(ref.start, "") for ref in refs])
            analysis = await analyse_select(
                template,
                self._analyst.analyse(asked),
                self._analyst.describe(asked),
                allows_two_phases=not flag(whole, _EMPTY_FOR_NO_ROWS, False),
                spread=spread,
                null_for_empty=flag(whole, "aggregate_functions_null_for_empty", False),
            )
            plan = await fill(analysis, [ref.table.source for ref in refs])
            sql = await self._checked(asked, plan.sql)
        finally:
            for reader in readers:
                await reader.close()
        return with_text(asked, sql, analysis, takes_settings=plan.takes_settings), refs, analysis

    async def _again(self, asked: Asked, before: Remembered, failover: Failover) -> Asked:
        """As `_prepared`, for a text whose analysis is known."""
        if before.analysis is None or before.table is None:
            return asked
        reader = self._reader(asked, before.table, before.settings, before.depth, before.known, failover)
        peers = reader.known_choice()
        if peers is not None and peers in before.texts:
            sql, takes_settings, reads = before.texts[peers]
            failover.reads.update(reads)
            return with_text(asked, sql, before.analysis, takes_settings=takes_settings)
        try:
            reader.choose_ahead()
            plan = await fill(before.analysis, [reader])
        finally:
            await reader.close()
        sql = await self._checked(asked, plan.sql)
        if (chosen := reader.chosen) is not None:
            before.note_text(chosen, sql, frozenset(failover.reads), takes_settings=plan.takes_settings)
        return with_text(asked, sql, before.analysis, takes_settings=plan.takes_settings)

    def _spread(self, settings: Mapping[str, str], sql: str, refs: Sequence[Reference]) -> Spread:
        shards = max(len(reader.shards) for reader in _readers(refs))
        return spread_of(settings, sql, [ref.start for ref in refs], shards=shards)

    def _stamp(self) -> Stamp:
        return Stamp(self._tables.version, self._views.generation, self._topology())

    async def _as_reader(self, asked: Asked, template: Template, tables: Sequence[str]) -> Asked:
        """For a user who may only read: chDB has to allow the statement as if the tables were its own. Then
        it runs in a session of its own in which `url()` is allowed, too. Raises SqlError 164."""
        if not all(tables):
            raise SqlError(Code.READONLY, "Cannot read other servers by a table function in readonly mode.")
        text = template.fill(tables)
        check = "EXPLAIN QUERY TREE " + without_output_clauses(text[select_begins(text) :])
        session = asked.session.clone()
        try:
            await session.query(check, format="Null", params=asked.params, scope=scope_of(asked))
        except SqlError as error:
            if error.code == Code.READONLY:
                raise
        finally:
            await session.close()
        reading = self._health.pool.session(
            database=asked.current_database,
            settings={**asked.session.settings, "readonly": "2"},
            one_shot=True,
        )
        return replace(asked, session=reading)

    # -- what is read ----------------------------------------------------------------------------------------

    async def _references(
        self, asked: Asked, sql: str, failover: Failover
    ) -> tuple[list[Reference], Mapping[int, str]] | None:
        """Everything to be replaced, and by its offset what chDB itself would read there, if anything."""
        whole = settings_of_statement(asked, sql)
        match = DEPTH.match(asked.sql)
        depth = int(match[1]) if match else 0
        known = frozenset([table.name for table in await self._tables.all()])
        refs: list[Reference] = []
        names: dict[int, str] = {}
        for ref in table_names(sql):
            table = await self._tables.find_for(asked, ref.name)
            if table is None or is_target(sql, ref):
                continue
            settings = settings_around(sql, ref.start, whole)
            source = SourceTable(
                columns_of(table, settings), self._reader(asked, table, settings, depth, known, failover)
            )
            is_final = flag(settings, "final", False)
            condition = self._condition(asked, settings, sql, ref.end, table.name)
            refs.append(Reference(ref.start, ref.end, ref.name.table, source, is_final, condition))
            names[ref.start] = table.name.quoted
        for merged in await self._merged(asked, sql, failover):
            refs.append(merged)
            names[merged.start] = sql[merged.start : merged.end]
        if _FUNCTION.search(sql):
            for call in table_functions(sql, self._topology, asked.current_database):
                settings = settings_around(sql, call.start, whole)
                reader = ShardReader(
                    peers_of_cluster(call.cluster, self._is_local),
                    call.table.database,
                    call.table.table,
                    self._health,
                    settings,
                    failover,
                    depth,
                    is_distributed_here=known.__contains__,
                    current_database=asked.current_database,
                    elsewhere=sql[call.start : call.end],
                )
                columns = await columns_elsewhere(self._health, call, reader)
                source = SourceTable(columns, reader)
                refs.append(
                    Reference(
                        call.start,
                        call.end,
                        "",
                        source,
                        flag(settings, "final", False),
                        self._condition(asked, settings, sql, call.end, None),
                    )
                )
        return (sorted(refs, key=lambda one: one.start), names) if refs else None

    async def _merged(self, asked: Asked, sql: str, failover: Failover) -> Sequence[Reference]:
        """merge() and tables of engine Merge that read Distributed tables."""
        if not len(self._tables):
            return ()
        current = asked.current_database
        places = [(call.start, call.end, "", call.merge) for call in merge_calls(sql)]
        found = [ref for ref in table_names(sql) if not is_target(sql, ref)]
        named = [TableName(ref.name.database or current, ref.name.table) for ref in found]
        merges = await self._merges.named(named)
        for ref, name in zip(found, named, strict=True):
            if (merge := merges[name]) is not None:
                places.append((ref.start, ref.end, ref.name.table, merge))
        refs = []
        for start, end, alias, merge in places:
            settings = settings_around(sql, start, settings_of_statement(asked, sql))
            table = await self._merged_table(asked, merge, settings, failover)
            if table is None:
                continue
            if table_filters(settings):
                raise SqlError(
                    Code.NOT_IMPLEMENTED,
                    "Setting additional_table_filters is not supported beside merge() and tables of engine "
                    "Merge that read Distributed tables.",
                    hint="Write the filter into WHERE.",
                )
            refs.append(Reference(start, end, alias, table, flag(settings, "final", False)))
        return refs

    async def _merged_table(
        self, asked: Asked, merge: Merge, settings: Mapping[str, str], failover: Failover
    ) -> SourceTable | None:
        match = DEPTH.match(asked.sql)
        known = frozenset([table.name for table in await self._tables.all()])

        async def reader_of(name: TableName) -> tuple[ShardReader, Mapping[str, str]] | None:
            table = await self._tables.find(name)
            if table is None:
                return None
            depth = int(match[1]) if match else 0
            reader = self._reader(asked, table, settings, depth, known, failover)
            return reader, {column.name: column.type for column in columns_of(table, settings)}

        async def rewritten(select: str) -> str:
            planned = await self._planned(replace(asked, sql=select), failover)
            return select if planned is None else planned[0].sql

        return await self._merges.source(
            merge,
            asked.current_database,
            reader_of=reader_of,
            rewritten=rewritten,
            described=lambda text: self._analyst.columns(asked, text),
        )

    def _name_of(self, asked: Asked, sql: str, ref: Reference) -> TableName:
        """The whole name of a reference that is a name in the text."""
        name = next(one.name for one in table_names(sql) if one.start == ref.start)
        return TableName(name.database or asked.current_database, name.table)

    def _condition(
        self, asked: Asked, settings: Mapping[str, str], sql: str, end: int, name: TableName | None
    ) -> str:
        """What `additional_table_filters` says of the table whose name in the text ends at `end`."""
        alias = alias_behind(sql, end)
        return filter_of(settings, name, alias=alias, current=asked.current_database)

    def _reader(
        self,
        asked: Asked,
        table: DistributedTable,
        settings: Mapping[str, str],
        depth: int,
        known: frozenset[TableName],
        failover: Failover,
    ) -> ShardReader:
        definition = table.definition
        return ShardReader(
            self._shards_of(definition.cluster),
            definition.database,
            definition.table,
            self._health,
            settings,
            failover,
            depth,
            sharding_key=definition.sharding_key,
            column_types={column.name: column.type for column in table.columns},
            is_distributed_here=known.__contains__,
            current_database=asked.current_database,
            skips_unavailable=definition.number("skip_unavailable_shards", 0) != 0,
            elsewhere=elsewhere(table),
            own=table.name,
        )

    async def _checked(self, asked: Asked, sql: str) -> str:
        """The text for chDB. Raises SqlError 48 if it names Distributed tables except for their types."""
        for ref in table_names(sql):
            if is_target(sql, ref):
                continue
            table = await self._tables.find_for(asked, ref.name)
            if table is not None:
                raise SqlError(
                    Code.NOT_IMPLEMENTED, f"The Distributed table {table.name} cannot be read in this place."
                )
        check_merge(sql, await self._tables.names(), asked.current_database)
        if "session_timezone" in settings_of(asked):
            for name in await self._tables.names():
                sql = sql.replace(types_of(name), name.quoted)
        return sql


def _readers(refs: Sequence[Reference]) -> Sequence[ShardReader]:
    """Of all Distributed tables, also of those that are merged."""
    found: list[ShardReader] = []
    for ref in refs:
        source = ref.table.source
        if isinstance(source, ShardReader):
            found.append(source)
        elif isinstance(source, MergeReader):
            found += source.readers
    return found
