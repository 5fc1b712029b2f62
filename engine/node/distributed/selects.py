"""Statements that read Distributed tables, made into statements that chDB runs by itself.

The text is rewritten before anybody else sees it: SELECT, EXPLAIN, INSERT … SELECT, CREATE TABLE … AS SELECT.
Views over Distributed tables are put in as subqueries first. Statements that are kept (CREATE VIEW) stay.

In chDB a Distributed table is an empty table, so a reference that is overlooked would answer
with no rows. Therefore what is rewritten is checked: a text that still names a Distributed table is refused.

A text that comes again is not looked at again (`remembered`): only the replicas are chosen anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from engine.config.model import Topology
from engine.distributed.peers import PeerShard, peers_of_cluster
from engine.distributed.select import Analysis, SourceColumn, SourceTable, Spread, analyse_select, fill
from engine.distributed.select.plan import Analyse, select_begins
from engine.distributed.select.template import Reference, Template, make_template, table_names
from engine.distributed.select.two_phase import Describe
from engine.errors import Code, OnclusterError, SqlError
from engine.names import HostId, TableName, quote_string
from engine.node.distributed.failover import Failover
from engine.node.distributed.guard import check_merge
from engine.node.distributed.peer_health import PeerHealth
from engine.node.distributed.read_settings import spread_of
from engine.node.distributed.remembered import Remembered, RememberedSelects, Stamp
from engine.node.distributed.shard_reader import ShardReader
from engine.node.distributed.table_functions import TableFunction, table_functions
from engine.node.distributed.tables import DistributedTable, DistributedTables
from engine.node.distributed.views import DistributedViews, is_target
from engine.node.replicated.local_tables import LocalTables
from engine.node.replicated.waiting import settings_of
from engine.node.statement import Asked
from engine.sql import Statement, StatementKind
from engine.sql.output import without_output_clauses
from engine.storage import Scope

_READING = frozenset(
    {StatementKind.SELECT, StatementKind.EXPLAIN, StatementKind.INSERT, StatementKind.CREATE_TABLE}
)
_FUNCTION = re.compile(r"\b(?:cluster|clusterAllReplicas|remote|remoteSecure)\s*\(", re.IGNORECASE)
_DEPTH = re.compile(r"\s*/\* distributed depth (\d+) \*/")
_ONE_ROW = re.compile(_DEPTH.pattern + r" /\* one row \*/(?!.*\bOUTFILE\b)", re.IGNORECASE | re.DOTALL)
_FOR_ONE_ROW = {"output_format_parallel_formatting": "0"}
"""It starts threads, which pay for many rows only."""
_MAX_DESCRIBED = 256
"""Types of states and keys are remembered by the text that they come from, unless it names a table."""


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
        self._described_before: dict[tuple[str, str], list[tuple[str, str]]] = {}
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
        failover.reads.clear()
        if statement.kind not in _READING:
            return asked
        if statement.kind is StatementKind.SELECT and _ONE_ROW.match(asked.sql):
            asked = _with_one_row(asked)
        has_functions = _FUNCTION.search(asked.sql) is not None
        if not len(self._tables) and not has_functions:
            return asked
        key, stamp = None, self._stamp()
        if statement.kind is StatementKind.SELECT and not has_functions:
            key = self._remembered.key(asked)
            before = self._remembered.find(key, stamp)
            if before is not None:
                return await self._again(asked, before, failover)
        sql = await self._views.replaced(asked) if len(self._tables) else asked.sql
        check_merge(sql, await self._tables.names(), asked.current_database)
        found = await self._references(asked, sql, failover)
        if not found:
            self._remembered.put(key, Remembered(stamp))
            return asked
        refs, names = found
        spread = self._spread(asked, sql, refs)
        readers = [ref.table.source for ref in refs if isinstance(ref.table.source, ShardReader)]
        try:
            for reader in readers:
                reader.choose_ahead()
            template = make_template(sql, refs, databases=names)
            if asked.session.is_readonly:
                asked = await self._as_reader(asked, template, [names.get(ref.start) for ref in refs])
            analysis = await analyse_select(
                template, self._analyse(asked), self._describe(asked), spread=spread
            )
            plan = await fill(analysis, readers)
            await self._check(asked, plan.sql)
        finally:
            for reader in readers:
                await reader.close()
        if key is not None and analysis.is_repeatable and readers[0].reads_all_shards:
            self._remembered.put(
                key,
                Remembered(
                    stamp,
                    analysis,
                    await self._tables.find(names[refs[0].start]),
                    readers[0].settings,
                    readers[0].depth,
                    frozenset([table.name for table in await self._tables.all()]),
                ),
            )
        return _with_text(asked, plan.sql, analysis)

    async def _again(self, asked: Asked, before: Remembered, failover: Failover) -> Asked:
        """As `prepare`, for a text whose analysis is known."""
        if before.analysis is None or before.table is None:
            return asked
        reader = self._reader(asked, before.table, before.settings, before.depth, before.known, failover)
        peers = reader.known_choice()
        if peers is not None and peers in before.texts:
            sql, reads = before.texts[peers]
            failover.reads.update(reads)
            return _with_text(asked, sql, before.analysis)
        try:
            reader.choose_ahead()
            plan = await fill(before.analysis, [reader])
        finally:
            await reader.close()
        await self._check(asked, plan.sql)
        if (chosen := reader.chosen) is not None:
            before.note_text(chosen, plan.sql, frozenset(failover.reads))
        return replace(asked, sql=plan.sql)

    def _spread(self, asked: Asked, sql: str, refs: Sequence[Reference]) -> Spread:
        sources = [ref.table.source for ref in refs]
        shards = max(len(source.shards) for source in sources if isinstance(source, ShardReader))
        return spread_of(settings_of(asked), sql, [ref.start for ref in refs], shards=shards)

    def _stamp(self) -> Stamp:
        return Stamp(self._tables.version, self._views.generation, self._topology())

    async def _as_reader(self, asked: Asked, template: Template, names: Sequence[TableName | None]) -> Asked:
        """For a user who may only read: chDB has to allow the statement as if the tables were its own. Then
        it runs in a session of its own in which `url()` is allowed, too. Raises SqlError 164."""
        if any(name is None for name in names):
            raise SqlError(Code.READONLY, "Cannot read other servers by a table function in readonly mode.")
        text = template.fill([name.quoted for name in names if name is not None])
        check = "EXPLAIN QUERY TREE " + without_output_clauses(text[select_begins(text) :])
        session = asked.session.clone()
        try:
            await session.query(check, format="Null", params=asked.params, scope=_scope(asked))
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
    ) -> tuple[list[Reference], Mapping[int, TableName]] | None:
        settings = settings_of(asked)
        match = _DEPTH.match(asked.sql)
        depth = int(match[1]) if match else 0
        known = frozenset([table.name for table in await self._tables.all()])
        refs: list[Reference] = []
        names: dict[int, TableName] = {}
        for ref in table_names(sql):
            table = await self._tables.find_for(asked, ref.name)
            if table is None or is_target(sql, ref):
                continue
            source = SourceTable(
                _columns(table), self._reader(asked, table, settings, depth, known, failover)
            )
            refs.append(Reference(ref.start, ref.end, ref.name.table, source))
            names[ref.start] = table.name
        if _FUNCTION.search(sql):
            for call in table_functions(sql, self._topology, asked.current_database):
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
                columns = await self._described(call, reader)
                refs.append(Reference(call.start, call.end, "", SourceTable(columns, reader)))
        return (sorted(refs, key=lambda one: one.start), names) if refs else None

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
            elsewhere=_elsewhere(table),
        )

    async def _described(self, call: TableFunction, reader: ShardReader) -> Sequence[SourceColumn]:
        """The columns of a table that is known only where it is: asked of the first replica that says."""
        failures = []
        for shard in reader.shards:
            for peer in shard.peers:
                name = peer.table(call.table.database, call.table.table)
                try:
                    rows = await self._health.client(peer).query_rows(f"DESCRIBE TABLE {name}")
                except OnclusterError as error:
                    failures.append(f"{peer.name}: {str(error).partition(chr(10))[0][:300]}")
                    continue
                described = [(*map(str, row), "", "", "")[:3] for row in rows.rows]
                return [
                    SourceColumn(name, type_, is_hidden=kind in ("MATERIALIZED", "ALIAS"))
                    for name, type_, kind in described
                    if kind != "EPHEMERAL"
                ]
        raise SqlError(
            Code.ALL_CONNECTION_TRIES_FAILED,
            f"No replica says which columns {call.table} has. Log: {'; '.join(failures)}",
        )

    async def _check(self, asked: Asked, sql: str) -> None:
        for ref in table_names(sql):
            if is_target(sql, ref):
                continue
            table = await self._tables.find_for(asked, ref.name)
            if table is not None:
                raise SqlError(
                    Code.NOT_IMPLEMENTED, f"The Distributed table {table.name} cannot be read in this place."
                )

    # -- chDB ------------------------------------------------------------------------------------------------

    def _analyse(self, asked: Asked) -> Analyse:
        async def analyse(sql: str) -> str:
            session = asked.session.clone()
            try:
                return (
                    await session.query(sql, format="TSVRaw", params=asked.params, scope=_scope(asked))
                ).text
            except SqlError:
                return ""  # nothing is known then, and the query itself says what is wrong with it
            finally:
                await session.close()

        return analyse

    def _describe(self, asked: Asked) -> Describe:
        async def describe(sql: str) -> list[tuple[str, str]]:
            key = (sql, repr(sorted({**settings_of(asked), **asked.params}.items())))
            if key in self._described_before:
                return self._described_before[key]
            session = asked.session.clone()
            try:
                result = await session.query(
                    f"DESCRIBE ({sql})", format="JSONCompact", params=asked.params, scope=_scope(asked)
                )
            finally:
                await session.close()
            described = [(row[0], row[1]) for row in json.loads(result.text)["data"]]
            if table_names(sql):
                return described
            if len(self._described_before) >= _MAX_DESCRIBED:
                self._described_before.clear()
            self._described_before[key] = described
            return described

        return describe


def _with_text(asked: Asked, sql: str, analysis: Analysis) -> Asked:
    """The request with the text that chDB gets."""
    asked = replace(asked, sql=sql)
    return _with_one_row(asked) if analysis.has_one_row and "OUTFILE" not in sql.upper() else asked


def _with_one_row(asked: Asked) -> Asked:
    """The same for a SELECT whose answer needs no stream. It changes nothing, so that a request that may only
    read (GET) needs no readonly mode, which would cost a connection of its own."""
    if not asked.is_stateless or asked.session.is_readonly:
        return replace(asked, has_one_row=True)
    settings = {**_FOR_ONE_ROW, **asked.settings}
    return replace(asked, settings=settings, is_readonly=False, has_one_row=True)


def _elsewhere(table: DistributedTable) -> str:
    """The table in a statement on another node."""
    definition = table.definition
    if not definition.database:
        return table.name.quoted
    arguments = (definition.cluster, definition.database, definition.table)
    return f"cluster({', '.join(map(quote_string, arguments))})"


def _scope(asked: Asked) -> Scope:
    return Scope(settings=asked.settings, database=asked.current_database)


def _columns(table: DistributedTable) -> Sequence[SourceColumn]:
    return [
        SourceColumn(column.name, column.type, column.kind in ("MATERIALIZED", "ALIAS"))
        for column in table.columns
        if column.kind != "EPHEMERAL"
    ]
