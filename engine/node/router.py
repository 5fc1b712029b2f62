"""Where a statement goes: to the cluster, to the node's own tables, or to chDB as it is.

A statement is classified by its text (`engine.sql`); what that cannot tell is left to chDB. Three things are
never chDB's: ON CLUSTER, the tables of `system` that describe the cluster, and statements that would reach
the node's files or end its process.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from engine.errors import Code, SqlError
from engine.node.session_commands import settings_of_set
from engine.node.statement import Answer, Asked, WholeAnswer
from engine.node.system_tables import SystemTables
from engine.sql import Statement, StatementKind, parse_statement
from engine.storage.guard import check_statement
from engine.storage.statement_text import InsertText

log = logging.getLogger(__name__)

_ALLOWED_IN_READONLY = frozenset({StatementKind.SET, StatementKind.USE, StatementKind.SET_ROLE})

RunOnCluster = Callable[[Asked, Statement], Awaitable[Answer]]
"""The distributed layer: submit, wait, answer."""


class StatementRouter:
    """All statements of all clients pass here."""

    def __init__(
        self,
        *,
        tables: SystemTables,
        run_on_cluster: RunOnCluster,
    ) -> None:
        self._tables = tables
        self._run_on_cluster = run_on_cluster

    @asynccontextmanager
    async def run(self, asked: Asked) -> AsyncIterator[Answer]:
        """Run a statement that brings no rows of its own. Leaving the block early cancels it.

        Raises SqlError, or lets the answer's `finish` raise it.
        """
        statement = parse_statement(asked.sql)
        self._check(asked, statement)
        if statement.on_cluster is not None:
            yield await self._run_on_cluster(asked, statement)
            return
        async with self._tables.provide(asked, statement) as (sql, session):
            is_select = statement.kind is StatementKind.SELECT or sql.startswith("SELECT")
            if is_select:
                async with session.stream(
                    sql, format=asked.format, params=asked.params, scope=asked.scope
                ) as stream:
                    yield stream
                return
            result = await session.query(
                sql, format=asked.format, params=asked.params, scope=asked.scope, multi=False
            )
            self._remember(asked, statement)
            yield WholeAnswer(result, format=statement.format or asked.format)

    async def insert(self, asked: Asked, insert: InsertText, rows: AsyncIterator[bytes]) -> Answer:
        """Run an INSERT whose rows come as a stream. Raises SqlError."""
        self._check(asked, parse_statement(insert.head))
        result = await asked.session.insert(insert.head, format=insert.format, rows=rows, scope=asked.scope)
        return WholeAnswer(result, format=asked.format)

    def _check(self, asked: Asked, statement: Statement) -> None:
        if asked.is_readonly and not statement.is_query and statement.kind not in _ALLOWED_IN_READONLY:
            raise SqlError(
                Code.READONLY,
                "Cannot execute query in readonly mode. For queries over HTTP, method GET implies readonly. "
                "You should use method POST for modifying queries.",
            )
        check_statement(statement)

    def _remember(self, asked: Asked, statement: Statement) -> None:
        if statement.kind is StatementKind.USE and statement.database:
            asked.session.note_database(statement.database)
        elif statement.kind is StatementKind.SET:
            for name, value in settings_of_set(asked.sql).items():
                asked.session.note_setting(name, value)
