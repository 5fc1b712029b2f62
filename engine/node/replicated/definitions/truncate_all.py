"""TRUNCATE [ALL] TABLES FROM database [[NOT] LIKE | ILIKE 'pattern']: TRUNCATE TABLE of each of them.

As in ClickHouse views and dictionaries are passed over, and a table that cannot be truncated keeps no other
one from it: the first error is raised at the end.

Source: ClickHouse's InterpreterDropQuery::executeToDatabaseImpl.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from engine.ddl.attempt import Fence
from engine.errors import SqlError
from engine.names import TableName, quote_identifier, quote_string
from engine.node.replicated.running.local_tables import LocalTables
from engine.node.statements.statement import Asked
from engine.sql import Statement
from engine.sql.cursor import Cursor
from engine.sql.settings_clauses import settings_of_text

_HAVE_NO_ROWS = ("View", "LiveView", "WindowView", "Dictionary")

Run = Callable[[Asked], Awaitable[None]]
"""Runs a statement of the node's own as a client's."""


def is_truncate_all(sql: str) -> bool:
    """Of a statement of kind TRUNCATE DATABASE, whose other form drops the tables."""
    return "TABLES" in Cursor(sql).words[1:3]


async def truncate_all(local: LocalTables, asked: Asked, statement: Statement, run: Run) -> None:
    """Raises SqlError."""
    database = statement.database or ""
    rows = await local.rows(
        f"SELECT name FROM system.tables WHERE database = {quote_string(database)} "
        f"AND engine NOT IN ({', '.join(map(quote_string, _HAVE_NO_ROWS))}){_condition(asked.sql)} "
        "ORDER BY name"
    )
    settings = settings_of_text(asked.sql)
    behind = ", ".join(f"{quote_identifier(name)} = {quote_string(v)}" for name, v in settings.items())
    first: SqlError | None = None
    for (name,) in rows:
        sql = f"TRUNCATE TABLE IF EXISTS {TableName(database, name).quoted}"
        try:
            await run(replace(asked, sql=f"{sql} SETTINGS {behind}" if behind else sql, fence=Fence()))
        except SqlError as error:
            first = first or error
    if first is not None:
        raise first


def _condition(sql: str) -> str:
    """The statement's LIKE, about `name`; chDB judges it."""
    cursor = Cursor(sql)
    cursor.skip_to("FROM")
    cursor.at += 1
    if cursor.accept("IF"):
        cursor.accept("EXISTS")
    cursor.identifier()
    negation = "NOT " if cursor.accept("NOT") else ""
    word = cursor.accept_one_of("LIKE", "ILIKE")
    return f" AND name {negation}{word} {cursor.token.text}" if word else ""
