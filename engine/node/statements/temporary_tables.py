"""Temporary tables of a session. Where a name has no database they come before the tables of the current one,
in queries and in most statements: measured with chDB, which does as ClickHouse does."""

from __future__ import annotations

from engine.errors import Code, SqlError
from engine.names import TableName, quote_identifier, quote_string
from engine.node.statements.statement import Asked
from engine.sql import Statement, StatementKind

_K = StatementKind
_MEAN_TEMPORARY_ONES = frozenset(
    {
        _K.ALTER_TABLE,
        _K.CHECK_TABLE,
        _K.DESCRIBE,
        _K.DETACH_TABLE,
        _K.DROP_TABLE,
        _K.EXISTS,
        _K.INSERT,
        _K.OPTIMIZE,
        _K.TRUNCATE_TABLE,
    }
)
"""Others, such as DELETE, RENAME and SYSTEM, mean the database's table whatever the session has."""


def create_temporary(name: str, structure: str) -> str:
    """The statement that makes a table in memory for rows that a client sends.

    `structure` is the client's, too: chDB reads it as a list of columns, and nothing else can stand in it. As
    with ClickHouse names and types count.
    """
    columns = f"null({quote_string(structure)})"
    return f"CREATE TEMPORARY TABLE {quote_identifier(name)} ENGINE = Memory AS SELECT * FROM {columns}"


def note_temporary(asked: Asked, statement: Statement) -> None:
    """A statement is about to run."""
    if statement.temporary:
        asked.session.may_have_temporary_tables = True


async def is_temporary(asked: Asked, name: TableName) -> bool:
    """Whether `name`, as it is written, means a temporary table of the session."""
    if name.database or not asked.session.may_have_temporary_tables:
        return False
    exists = f"EXISTS TEMPORARY TABLE {quote_identifier(name.table)}"
    with asked.session.left_open():
        return (await asked.session.query(exists, format="TSVRaw")).text.strip() == "1"


async def is_about_temporary(asked: Asked, statement: Statement) -> bool:
    """Whether the statement changes or shows a temporary table of the session; chDB carries it out.

    Raises SqlError 48 for partitions that would come from or go to another table, past what the node knows of
    that one.
    """
    if statement.kind not in _MEAN_TEMPORARY_ONES or not asked.session.may_have_temporary_tables:
        return False
    found = statement.temporary or any([await is_temporary(asked, name) for name in statement.tables])
    if found and statement.targets:
        raise SqlError(
            Code.NOT_IMPLEMENTED,
            f"{statement.tables[0]} is a temporary table: its partitions stay in it.",
            hint="Name the database of the table if you mean another one, or use INSERT … SELECT.",
        )
    return found
