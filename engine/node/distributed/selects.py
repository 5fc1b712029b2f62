"""Statements that read Distributed tables, made into statements that chDB runs by itself.

The text is rewritten before anybody else sees it: SELECT, EXPLAIN, INSERT … SELECT, CREATE TABLE … AS SELECT.
Views over Distributed tables are put in as subqueries first. Statements that are kept (CREATE VIEW) stay.

In chDB a Distributed table is an empty table of engine Null, so a reference that is overlooked would answer
with no rows. Therefore what is rewritten is checked: a text that still names a Distributed table is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from engine.config.model import Topology
from engine.distributed.peers import PeerShard, peers_of_cluster
from engine.distributed.select import SourceColumn, SourceTable, plan_select
from engine.distributed.select.plan import Analyse, select_begins
from engine.distributed.select.template import Reference, Template, make_template, table_names
from engine.distributed.select.two_phase import Describe
from engine.errors import Code, OnclusterError, SqlError
from engine.names import HostId, TableName, quote_identifier, quote_string
from engine.node.distributed.shard_reader import PeerHealth, ShardReader
from engine.node.distributed.table_functions import TableFunction, table_functions
from engine.node.distributed.tables import DistributedTable, DistributedTables
from engine.node.replicated.local_tables import LocalTables
from engine.node.replicated.waiting import settings_of
from engine.node.statement import Asked
from engine.sql import Statement, StatementKind
from engine.sql.cursor import Cursor, NameRef
from engine.sql.edit import Edit, apply_edits
from engine.sql.output import without_output_clauses
from engine.storage import Scope

_READING = frozenset(
    {StatementKind.SELECT, StatementKind.EXPLAIN, StatementKind.INSERT, StatementKind.CREATE_TABLE}
)
_FUNCTION = re.compile(r"\b(?:cluster|clusterAllReplicas|remote|remoteSecure)\s*\(", re.IGNORECASE)
_DEPTH = re.compile(r"\s*/\* distributed depth (\d+) \*/")
_MAX_VIEWS = 50
_MAX_VIEWS_REMEMBERED = 4096
_MAX_DESCRIBED = 256
"""Types of states and keys are remembered by the text that they come from: it names no table."""


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
        self._local = local
        self._health = health
        self._topology = topology
        self._is_local = is_local
        self._shards_of = shards_of
        self._described_before: dict[tuple[str, str], list[tuple[str, str]]] = {}
        self._views_before: dict[TableName, str] = {}
        self._generation = 0

    def forget_views(self) -> None:
        """A statement that may have made or changed a view has run or was given up."""
        self._generation += 1
        self._views_before.clear()

    async def prepare(self, asked: Asked, statement: Statement) -> Asked:
        """The request as chDB can run it. Raises SqlError."""
        if statement.kind not in _READING:
            return asked
        if not len(self._tables) and not _FUNCTION.search(asked.sql):
            return asked
        sql = await self._with_views(asked) if len(self._tables) else asked.sql
        found = await self._references(asked, sql)
        if not found:
            return asked
        refs, names = found
        readers = [ref.table.source for ref in refs if isinstance(ref.table.source, ShardReader)]
        try:
            for reader in readers:
                reader.choose_ahead()
            return await self._rewritten(asked, sql, refs, names)
        finally:
            for reader in readers:
                await reader.close()

    async def _rewritten(
        self, asked: Asked, sql: str, refs: Sequence[Reference], names: Mapping[int, TableName]
    ) -> Asked:
        template = make_template(sql, refs, databases=names)
        if asked.session.is_readonly:
            asked = await self._as_reader(asked, template, [names.get(ref.start) for ref in refs])
        plan = await plan_select(template, self._analyse(asked), self._describe(asked))
        await self._check(asked, plan.sql)
        return replace(asked, sql=plan.sql)

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
        self, asked: Asked, sql: str
    ) -> tuple[list[Reference], Mapping[int, TableName]] | None:
        settings = settings_of(asked)
        match = _DEPTH.match(asked.sql)
        depth = int(match[1]) if match else 0
        known = {table.name for table in await self._tables.all()}
        refs: list[Reference] = []
        names: dict[int, TableName] = {}
        for ref in table_names(sql):
            table = await self._tables.find_for(asked, ref.name)
            if table is None or _is_target(sql, ref):
                continue
            source = SourceTable(_columns(table), self._reader(asked, table, settings, depth, known))
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
                    depth,
                    is_distributed_here=known.__contains__,
                    current_database=asked.current_database,
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
        known: set[TableName],
    ) -> ShardReader:
        definition = table.definition
        return ShardReader(
            self._shards_of(definition.cluster),
            definition.database,
            definition.table,
            self._health,
            settings,
            depth,
            sharding_key=definition.sharding_key,
            column_types={column.name: column.type for column in table.columns},
            is_distributed_here=known.__contains__,
            current_database=asked.current_database,
            skips_unavailable=definition.number("skip_unavailable_shards", 0) != 0,
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

    async def _with_views(self, asked: Asked) -> str:
        """The text with every view that reads a Distributed table replaced by its SELECT."""
        sql = asked.sql
        for _ in range(_MAX_VIEWS):
            refs = [ref for ref in table_names(sql) if not _is_target(sql, ref)]
            others = [
                (ref, TableName(ref.name.database or asked.current_database, ref.name.table))
                for ref in refs
                if await self._tables.find_for(asked, ref.name) is None
            ]
            views = await self._views([name for _, name in others])
            edits = [_view_edit(sql, ref, views[name]) for ref, name in others if name in views]
            if not edits:
                return sql
            sql = apply_edits(sql, edits)
        raise SqlError(Code.NOT_IMPLEMENTED, f"More than {_MAX_VIEWS} views within each other")

    async def _views(self, names: Sequence[TableName]) -> Mapping[TableName, str]:
        """The SELECTs of those that are views and read, however indirectly, a Distributed table."""
        before = self._views_before
        found = {name: before[name] for name in names if before.get(name)}
        asked = [
            name
            for name in names
            if name.database not in ("system", "information_schema") and name not in before
        ]
        if not asked:
            return found
        generation = self._generation
        rows = await self._local.rows(
            "SELECT database, name, as_select FROM system.tables "
            "WHERE engine = 'View' AND (database, name) IN ("
            + ", ".join(f"({quote_string(n.database)}, {quote_string(n.table)})" for n in asked)
            + ")"
        )
        fresh = dict.fromkeys(asked, "")
        for database, name, select in rows:
            if await self._reads_distributed(select, database, 0):
                fresh[TableName(database, name)] = select
        if generation == self._generation:
            if len(before) > _MAX_VIEWS_REMEMBERED:
                before.clear()
            before.update(fresh)
        return found | {name: select for name, select in fresh.items() if select}

    async def _reads_distributed(self, select: str, database: str, depth: int) -> bool:
        names = [TableName(ref.name.database or database, ref.name.table) for ref in table_names(select)]
        for name in names:
            if await self._tables.find(name) is not None:
                return True
        if depth >= _MAX_VIEWS or not names:
            return False
        rows = await self._local.rows(
            "SELECT database, as_select FROM system.tables WHERE engine = 'View' AND (database, name) IN ("
            + ", ".join(f"({quote_string(n.database)}, {quote_string(n.table)})" for n in names)
            + ")"
        )
        for inner_database, inner in rows:
            if await self._reads_distributed(inner, inner_database, depth + 1):
                return True
        return False

    async def _check(self, asked: Asked, sql: str) -> None:
        for ref in table_names(sql):
            if _is_target(sql, ref):
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
            if len(self._described_before) >= _MAX_DESCRIBED:
                self._described_before.clear()
            self._described_before[key] = described
            return described

        return describe


def _scope(asked: Asked) -> Scope:
    return Scope(settings=asked.settings, database=asked.current_database)


def _columns(table: DistributedTable) -> Sequence[SourceColumn]:
    return [
        SourceColumn(column.name, column.type, column.kind in ("MATERIALIZED", "ALIAS"))
        for column in table.columns
        if column.kind != "EPHEMERAL"
    ]


def _is_target(sql: str, ref: NameRef) -> bool:
    """INSERT INTO t, CREATE TABLE t: it is written."""
    cursor = Cursor(sql)
    at = next(i for i, token in enumerate(cursor.tokens) if token.start >= ref.start)
    return at > 0 and cursor.words[at - 1] in ("INTO", "TABLE")


def _view_edit(sql: str, ref: NameRef, select: str) -> Edit:
    cursor = Cursor(sql)
    at = next((i for i, token in enumerate(cursor.tokens) if token.start >= ref.end), len(cursor.tokens))
    has_alias = cursor.words[at : at + 1] == ["AS"]
    own = "" if has_alias else f" AS {quote_identifier(ref.name.table)}"
    return Edit(ref.start, ref.end, f"({select}){own}")
