"""Statements that read Distributed tables, made into statements that chDB runs by itself.

The text is rewritten before anybody else sees it: SELECT, EXPLAIN, INSERT … SELECT, CREATE TABLE … AS SELECT.
Views over Distributed tables are put in as subqueries first. Statements that are kept (CREATE VIEW) stay.

What is rewritten is checked: a text that still names a Distributed table is refused. A name that is
overlooked even then is an error of chDB's (`overlooked`).

A text that comes again is not looked at again (`remembered`): only the replicas are chosen anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from engine.config.model import Topology, User
from engine.distributed.peers import PeerShard
from engine.distributed.select import Analysis, Spread, analyse_select, fill, over_nothing
from engine.distributed.select.inlined_ctes import with_inlined_ctes
from engine.distributed.select.making import make_template
from engine.distributed.select.references import Reference, alias_behind, table_names
from engine.distributed.select.template import Template
from engine.errors import Code, SqlError
from engine.names import HostId, TableName
from engine.node.distributed.definitions.guard import check_merge
from engine.node.distributed.definitions.kept_expressions import check_kept
from engine.node.distributed.functions.constant_arguments import with_constants
from engine.node.distributed.functions.inner_calls import InnerCalls
from engine.node.distributed.peers.peer_health import PeerHealth
from engine.node.distributed.reading.analyst import Analyst
from engine.node.distributed.reading.chdb_request import (
    ONE_ROW,
    with_one_row,
    with_text,
    with_threads,
    with_types,
)
from engine.node.distributed.reading.describe import with_description
from engine.node.distributed.reading.early_reads import EarlyClient, EarlyStatement
from engine.node.distributed.reading.explained_insert import with_explained_insert
from engine.node.distributed.reading.failover import Failover
from engine.node.distributed.reading.leaf_limits import without_leaf_limits
from engine.node.distributed.reading.merges import Merges
from engine.node.distributed.reading.patience import USUAL_S, patience_s, with_patience
from engine.node.distributed.reading.read_settings import asks_for_spread, spread_of
from engine.node.distributed.reading.reader_rights import as_reader
from engine.node.distributed.reading.references import Planned, References, has_table_functions, readers_of
from engine.node.distributed.reading.remembered import Remembered, RememberedSelects, Stamp, Text
from engine.node.distributed.reading.rows_to_read import check_rows_to_read
from engine.node.distributed.reading.settings_around import settings_of_statement, with_settings
from engine.node.distributed.reading.shard_reader import ShardReader
from engine.node.distributed.reading.spread_values import SpreadValues, Turn
from engine.node.distributed.reading.views import DistributedViews, names_read
from engine.node.distributed.reading.zones import types_of
from engine.node.distributed.registry.name_changes import is_among
from engine.node.distributed.registry.tables import DistributedTables
from engine.node.replicated.running.local_tables import LocalTables
from engine.node.statements.asked_settings import flag, settings_of
from engine.node.statements.reads_key import FilledIn, new_reads_key
from engine.node.statements.statement import Asked
from engine.node.statements.view_columns import with_columns
from engine.sql import Statement, StatementKind, parse_statement

READING = frozenset(
    {StatementKind.SELECT, StatementKind.EXPLAIN, StatementKind.INSERT, StatementKind.CREATE_TABLE}
)
_EXPLAIN_AST = re.compile(r"\s*EXPLAIN\s+AST\b", re.IGNORECASE)
_OF_SHARDS = re.compile(r"\bPREWHERE\b|\b_[a-z]", re.IGNORECASE)
"""What a table has that a Distributed one stands for, and chDB's in its place has not."""
_MOST_MOVES = 5
"""So often a statement begins anew because names have changed their meaning."""
_ONE_PHASE = (
    "empty_result_for_aggregation_by_empty_set",
    "enable_named_columns_in_function_tuple",
    "rows_before_aggregation",
)
"""Of no rows no shard may make one; tuples have the names of what the second phase would read; and all rows
are counted here."""


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
        turn: Turn,
    ) -> None:
        self._tables = tables
        self._health = health
        self._topology = topology
        self._is_local = is_local
        self._views = DistributedViews(tables, local)
        self._analyst = Analyst()
        self._references = References(
            tables,
            Merges(tables, local, self._views),
            health,
            self._analyst,
            topology=topology,
            is_local=is_local,
            shards_of=shards_of,
            plan=self._planned,
        )
        self._views.describable = self.describable
        self._values = SpreadValues(self._analyst, turn=turn, failover=self.failover, prepare=self.prepare)
        self._remembered = RememberedSelects()
        self._early = EarlyClient(health.env, health.watch)

    async def close(self) -> None:
        """When no SELECT comes any more."""
        await self._early.close()

    def forget_views(self) -> None:
        """A statement that may have made or changed a view or a table has run or was given up."""
        self._views.forget()
        self._health.forget_here()

    async def reads_distributed(self, sql: str, database: str) -> bool:
        """Whether a text, in a database, reads Distributed tables, however indirectly."""
        return await self._views.select_reads_distributed(sql, database)

    async def describable(self, select: str, database: str) -> str:
        """A SELECT, or DESCRIBE of one, in a database, as chDB can describe it: what it has in the place of a
        Distributed table allows no PREWHERE, and has no virtual columns."""
        if not len(self._tables) or not _OF_SHARDS.search(select):
            return select
        session = self._health.pool.session(database=database, one_shot=True)
        try:
            asked = Asked(select, User("default"), session)
            failover = self.failover(asked, parse_statement(select))
            found = await self._references.of(asked, select, failover, InnerCalls())
            if found is None:
                return select
            databases = _whole_names(select, found[0], database)
            return over_nothing(make_template(select, found[0], databases=databases, asks_servers=False))
        finally:
            await session.close()

    async def names_of_filters(self, asked: Asked) -> frozenset[str]:
        """What `additional_table_filters` may call what a statement reads, without databases."""
        found = {alias for ref in table_names(asked.sql) if (alias := alias_behind(asked.sql, ref.end))}
        for name in await self._views.all_names(asked.sql, asked.current_database):
            table = await self._tables.find(name)
            found |= {name.table} if table is None else {name.table, table.definition.table}
        return frozenset(found)

    def failover(self, asked: Asked, statement: Statement) -> Failover:
        """What `prepare` needs to know of a statement that it may be given more than once."""
        return Failover(self._health, asked, statement)

    async def prepare(self, asked: Asked, statement: Statement, failover: Failover) -> Asked:
        """The request as chDB can run it. Raises SqlError."""
        prepared = await self._prepared_at_once(asked, statement, failover)
        if statement.kind is not StatementKind.EXPLAIN:
            await check_rows_to_read(self._health, failover.to_read)
        if failover.reads:
            prepared = without_leaf_limits(prepared)
            failover.filled_in = await self._filled_in(failover)
            prepared = replace(prepared, filled_in=failover.filled_in)
        wait_s = patience_s(asked) if failover.reads else USUAL_S
        prepared = with_patience(prepared, wait_s)
        if statement.kind is not StatementKind.SELECT:
            return replace(prepared, sql=prepared.filled_in.of(prepared.sql))
        if failover.early is not None and prepared.has_one_row:
            early = EarlyStatement(
                self._early,
                failover.early.filled_in(failover.filled_in),
                format=prepared.format,
                wait_s=wait_s,
                is_killed=lambda: failover.is_killed,
            )
            return replace(prepared, early=early)
        return with_threads(prepared, len(failover.reads), usual=self._health.pool.max_threads)

    async def _filled_in(self, failover: Failover) -> FilledIn:
        """Raises OnclusterError."""
        begun = FilledIn(new_reads_key(self._health.env))
        closed = [read.closed for read in failover.reads if read.closed is not None]
        return replace(begun, authorizations=await self._health.logins.authorizations(closed, begun))

    async def _prepared_at_once(self, asked: Asked, statement: Statement, failover: Failover) -> Asked:
        """With names that mean the same from beginning to end."""
        failover.watches_names = len(self._tables) > 0
        for is_last in (*[False] * _MOST_MOVES, True):
            failover.version = self._tables.version
            try:
                return await self._prepared(asked, statement, failover)
            except SqlError:
                if is_last or not self._tables.given_since(failover.version):
                    raise
        raise AssertionError

    async def names_moved(self, prepared: Asked, failover: Failover) -> bool:
        """Whether a name in the prepared statement has come to mean another table meanwhile, so that chDB may
        have read a placeholder, even if it is gone again."""
        given = self._tables.given_since(failover.version)
        if not given:
            return False
        names = await self._views.all_names(prepared.sql, prepared.current_database)
        return any(is_among(name, given) for name in names)

    async def _prepared(self, asked: Asked, statement: Statement, failover: Failover) -> Asked:
        failover.reads.clear()
        failover.to_read.clear()
        failover.early = None
        if statement.kind is StatementKind.DESCRIBE and has_table_functions(asked.sql):
            return await self._described(asked, failover)
        if statement.kind is StatementKind.DESCRIBE and "(" in asked.sql:
            return replace(asked, sql=await self.describable(asked.sql, asked.current_database))
        if statement.kind is StatementKind.CREATE_VIEW and _OF_SHARDS.search(asked.sql):
            return replace(asked, sql=await with_columns(asked, asked.sql, self.describable))
        if statement.kind not in READING or _EXPLAIN_AST.match(asked.sql):
            return asked
        if statement.kind is StatementKind.SELECT and ONE_ROW.match(asked.sql):
            asked = with_one_row(asked, takes_settings=True)
        has_functions = has_table_functions(asked.sql)
        if not len(self._tables) and not has_functions:
            return asked
        if statement.kind is StatementKind.EXPLAIN:
            asked = replace(asked, sql=await with_explained_insert(asked, self._tables))
        if statement.kind is StatementKind.CREATE_TABLE:
            await check_kept(asked.sql, asked.current_database, self.reads_distributed)
        key, stamp = None, self._stamp()
        is_usual = not has_functions and not asked.session.may_have_temporary_tables
        if statement.kind is StatementKind.SELECT and is_usual:
            key = self._remembered.key(asked)
            before = self._remembered.find(key, stamp)
            if before is not None:
                return await self._again(asked, before, failover)
        found = await self._planned(asked, failover)
        if found is None:
            self._remembered.put(key, Remembered(stamp))
            return asked
        asked, refs, analysis = found
        reader = refs[0].table.source if refs else None
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

    async def _planned(self, asked: Asked, failover: Failover) -> Planned | None:
        """The request as chDB can run it; None if it is so already."""
        inner = InnerCalls()
        if has_table_functions(asked.sql):
            asked = replace(asked, sql=await with_constants(asked, asked.sql))
        asked = replace(asked, sql=inner.hidden(asked.sql))
        sql = inner.hidden(await self._views.replaced(asked)) if len(self._tables) else asked.sql
        if asks_for_spread(told := settings_of_statement(asked, sql)):
            sql = with_inlined_ctes(sql, materializes=flag(told, "enable_materialized_cte", False))
        found = await self._references.of(asked, sql, failover, inner)
        if not found:
            check_merge(sql, await self._tables.names(), asked.current_database)
            return None
        refs, names = found
        types = [column.type for ref in refs for column in ref.table.columns]
        if not asked.session.is_readonly:
            asked = with_types(asked, types)
        whole = settings_of_statement(asked, sql)
        spread = self._spread(whole, sql, refs)
        starts = [ref.start for ref in refs]
        written = await self._values.written(asked, sql, whole, starts, spread, shown=inner.shown)
        if (text := inner.shown(written)) != inner.shown(sql):
            return await self._planned_with_values(replace(asked, sql=text), failover)
        readers = readers_of(refs)
        try:
            for reader in readers:
                reader.choose_ahead()
            databases = _whole_names(sql, refs, asked.current_database)
            template = make_template(sql, refs, databases=databases)
            if asked.session.is_readonly:
                tables = [names.get(ref.start, "") for ref in refs]
                asked = await as_reader(asked, template, tables, self._health.pool)
                asked = with_types(asked, types)
            analysis = await self._analysed(asked, template, whole, spread)
            if template.asks_servers and not analysis.is_understood:
                # Such as `SELECT hostName(), count()`, where a column would have to be in GROUP BY.
                template = make_template(sql, refs, databases=databases, asks_servers=False)
                analysis = await self._analysed(asked, template, whole, spread)
            plan = await fill(analysis, [ref.table.source for ref in refs])
            if len(readers) > 1:
                failover.early = None
            sql = await self._checked(asked, plan.sql)
        finally:
            for reader in readers:
                await reader.close()
        return with_text(asked, sql, analysis, takes_settings=plan.takes_settings), refs, analysis

    async def _planned_with_values(self, asked: Asked, failover: Failover) -> Planned:
        """As `_planned`, for a text with values that the same statement may not have the next time."""
        found = await self._planned(asked, failover)
        if found is None:
            return asked, (), Analysis(asked.sql, (), ())
        asked, refs, analysis = found
        return asked, refs, replace(analysis, is_repeatable=False)

    async def _analysed(
        self, asked: Asked, template: Template, settings: Mapping[str, str], spread: Spread
    ) -> Analysis:
        return await analyse_select(
            template,
            self._analyst.analyse(asked),
            self._analyst.describe(with_settings(asked, settings)),
            allows_two_phases=not any(flag(settings, name, False) for name in _ONE_PHASE),
            spread=spread,
            null_for_empty=flag(settings, "aggregate_functions_null_for_empty", False),
            limits_rows=not flag(settings, "exact_rows_before_limit", False),
        )

    async def _described(self, asked: Asked, failover: Failover) -> Asked:
        """DESCRIBE of a table function, or of a SELECT from some."""
        asked = replace(asked, sql=await with_constants(asked, asked.sql))
        text = await with_description(asked, self._health, topology=self._topology, is_local=self._is_local)
        if text is not None:
            return replace(asked, sql=text)
        found = await self._planned(asked, failover)
        return asked if found is None else found[0]

    async def _again(self, asked: Asked, before: Remembered, failover: Failover) -> Asked:
        """As `_prepared`, for a text whose analysis is known."""
        if before.analysis is None or before.table is None:
            return asked
        reader = self._references.reader(
            asked, before.table, before.settings, before.depth, before.known, failover
        )
        asked = with_types(asked, [column.type for column in before.table.columns])
        peers = reader.known_choice()
        if peers is not None and peers in before.texts:
            text = before.texts[peers]
            failover.reads.update(text.reads)
            failover.to_read.update(text.to_read)
            failover.early = text.early
            return with_text(asked, text.sql, before.analysis, takes_settings=text.takes_settings)
        try:
            reader.choose_ahead()
            plan = await fill(before.analysis, [reader])
        finally:
            await reader.close()
        sql = await self._checked(asked, plan.sql)
        if (chosen := reader.chosen) is not None:
            reads, to_read = frozenset(failover.reads), frozenset(failover.to_read)
            before.note_text(chosen, Text(sql, plan.takes_settings, reads, failover.early, to_read))
        return with_text(asked, sql, before.analysis, takes_settings=plan.takes_settings)

    def _spread(self, settings: Mapping[str, str], sql: str, refs: Sequence[Reference]) -> Spread:
        shards = max((len(reader.shards) for reader in readers_of(refs)), default=0)
        return spread_of(settings, sql, [ref.start for ref in refs], shards=shards)

    def _stamp(self) -> Stamp:
        return Stamp(self._tables.version, self._views.generation, self._topology())

    async def _checked(self, asked: Asked, sql: str) -> str:
        """The text for chDB. Raises SqlError 48 if it names Distributed tables except for their types."""
        for ref in names_read(sql):
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


def _whole_names(sql: str, refs: Sequence[Reference], database: str) -> Mapping[int, TableName]:
    """By their offsets what references of a statement mean that name a table."""
    by_name = {ref.start for ref in refs if ref.alias}
    return {one.start: one.name.within(database) for one in table_names(sql) if one.start in by_name}
