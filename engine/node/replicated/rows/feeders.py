"""What writes into other tables inside chDB, where the node does not see it, must not reach a replicated one.

A Buffer table flushes, a refreshable view refreshes and a streaming source is read at times of their own; an
Alias is another name that chDB resolves. Their rows would be in this node's table and on no other replica,
and Keeper would know nothing of them. There are three ways to such a chain of writers and views, and each
ends in a refusal: the writer is made or attached again, a view is put between, a table at the chain's end
becomes a replicated one. What is there all the same (made before) takes no INSERT (`views.insert_plain`).
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from engine.errors import Code, SqlError
from engine.names import TableName, quote_string
from engine.node.replicated.definitions.definition_sql import Definition, is_create_of_replicated
from engine.node.replicated.rows.views import Feeder, ViewGraph
from engine.node.replicated.running.runtime import ReplicatedTables
from engine.node.statements.statement import Answer, Asked
from engine.sql import Statement, StatementKind, TokenKind, literal_value, parse_statement
from engine.sql.cursor import Cursor
from engine.sql.sources import read_tables

_K = StatementKind
_NAMING = frozenset({"Buffer", "Alias"})
"""Engines whose arguments name the table that they write into."""
_STREAMING = frozenset(
    {"FileLog", "Kafka", "NATS", "RabbitMQ", "S3Queue", "AzureQueue", "MaterializedPostgreSQL"}
)
"""Engines whose views run when something comes in."""
FEEDER_ENGINES = _NAMING | _STREAMING

_CREATES = frozenset({_K.CREATE_TABLE, _K.ATTACH_TABLE})
_VIEWS = frozenset({_K.CREATE_MATERIALIZED_VIEW, _K.ATTACH_VIEW})


def makes_feeder(statement: Statement) -> bool:
    """Whether the statement has to be looked at before chDB executes it."""
    return statement.kind in _CREATES and statement.engine in _NAMING


def feeder_of(name: TableName, engine: str, engine_full: str, target: TableName) -> Feeder | None:
    """From a row of `system.tables`; `engine_full` has the arguments evaluated, `target` is a view's."""
    if engine in _STREAMING:
        return Feeder(name, engine, name)
    if engine == "MaterializedView":
        return Feeder(name, "refreshable view", target)
    definition = Definition(f"CREATE TABLE t ENGINE = {engine_full}")
    if definition.engine is None:
        return None
    arguments = [_name(text) for text in definition.engine.arguments[:2]]
    match arguments:
        case [str(database), str(table)] if table:
            return Feeder(name, engine, TableName(database or name.database, table))
        case [str(table)] if table:
            return Feeder(name, engine, TableName(name.database, table))
    return None


class FeederGuard:
    """Implements `ReplicatedStatements`; it answers nothing. Register it first."""

    def __init__(self, tables: ReplicatedTables, graph: ViewGraph) -> None:
        self._tables = tables
        self._graph = graph

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        """Raises SqlError 48."""
        if not self._tables.has_any:
            return None
        if statement.kind is _K.ATTACH_TABLE and statement.engine is None and statement.tables:
            name = statement.tables[0].within(asked.current_database)
            text = await _detached_definition(asked, name)
            if text is None:
                return None
            # The check is of what the file says; its name is a placeholder.
            asked = replace(asked, sql=text, database=name.database)
            statement = parse_statement(text)
        if makes_feeder(statement):
            target = await _target(asked, statement)
            await self._check_target(target, f"A table with engine {statement.engine}")
        elif statement.kind in _VIEWS and statement.targets:
            await self._check_view(asked, statement)
        elif statement.kind is _K.ATTACH_VIEW and is_create_of_replicated(statement.kind, statement.engine):
            await self.check_sources(asked)
        return None

    async def check_sources(self, asked: Asked) -> None:
        """Before there is a view with a replicated table of its own. Raises SqlError 48."""
        for source, feeder in await self._fed_sources(asked):
            raise _no_way(f"A view of {source}, into which {feeder} writes,", "of its own")

    async def check_new_table(self, name: TableName) -> None:
        """Before a table of this name is a replicated one. Raises SqlError 48."""
        feeder = await self._graph.feeding(name)
        if feeder is not None:
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                f"{name} cannot be a replicated table: {feeder} writes into it inside chDB, and its rows "
                "would come to no other replica.",
                hint=f"Drop {feeder.name} first.",
            )

    async def _check_view(self, asked: Asked, statement: Statement) -> None:
        target = statement.targets[0].within(asked.current_database)
        cursor = Cursor(asked.sql)
        cursor.skip_to("REFRESH", "AS")
        if cursor.word == "REFRESH":
            await self._check_target(target, "A refreshable materialized view")
            return
        for source, feeder in await self._fed_sources(asked):
            await self._check_target(target, f"A view of {source}, into which {feeder} writes,")

    async def _fed_sources(self, asked: Asked) -> list[tuple[TableName, Feeder]]:
        """What the view in `asked` reads, as far as something writes into it inside chDB."""
        cursor = Cursor(asked.sql)
        at = next((at for at, word in enumerate(cursor.words) if word == "AS"), len(cursor.words))
        found = []
        for source in read_tables(cursor, at):
            feeder = await self._graph.feeding(source.name.within(asked.current_database))
            if feeder is not None:
                found.append((source.name, feeder))
        return found

    async def _check_target(self, target: TableName | None, what: str) -> None:
        end = None if target is None else await self._graph.end_of(target, self._tables.is_ours)
        if end is not None:
            raise _no_way(what, str(end))


def _no_way(what: str, table: str) -> SqlError:
    return SqlError(
        Code.NOT_IMPLEMENTED,
        f"{what} cannot write into the replicated table {table}: inside chDB its rows would come to no other "
        "replica.",
        hint="INSERT INTO the replicated table directly; many small inserts at once are committed together.",
    )


async def _detached_definition(asked: Asked, name: TableName) -> str | None:
    """What the file of a detached table says, which an ATTACH TABLE without a definition goes by."""
    found = await asked.session.clone().query(
        "SELECT (SELECT path FROM system.disks WHERE name = 'default'), metadata_path "
        "FROM system.detached_tables "
        f"WHERE database = {quote_string(name.database)} AND table = {quote_string(name.table)}",
        format="JSONCompactEachRow",
    )
    for line in found.data.splitlines():
        try:
            disk, path = json.loads(line)
            return Path(str(disk), str(path)).read_text("utf-8", "surrogateescape")
        except OSError:
            continue
    return None


async def _target(asked: Asked, statement: Statement) -> TableName | None:
    """What the engine's arguments name; chDB evaluates those that are neither names nor literals."""
    engine = Definition(asked.sql).engine
    if engine is None:
        return None
    names = []
    for text in engine.arguments[: 2 if statement.engine == "Buffer" or len(engine.arguments) > 1 else 1]:
        name = _name(text)
        if name is None:
            found = await asked.session.query(
                f"SELECT toString({text})", format="JSONCompactEachRow", params=asked.params, multi=False
            )
            name = str(json.loads(found.data)[0])
        names.append(name)
    if not names or not names[-1]:
        return None
    home = statement.tables[0].database or asked.current_database
    database = names[0] if len(names) == 2 else home
    return TableName(database or asked.current_database, names[-1])


def _name(text: str) -> str | None:
    cursor = Cursor(text)
    if len(cursor.tokens) == 1 and cursor.tokens[0].kind in (
        TokenKind.WORD,
        TokenKind.IDENTIFIER,
        TokenKind.STRING,
        TokenKind.HEREDOC,
    ):
        return literal_value(cursor.tokens[0])
    return None
