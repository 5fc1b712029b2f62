"""Definitions of replicated tables that are refused before anything is changed, and why."""

from __future__ import annotations

from engine.errors import Code, SqlError
from engine.names import TableName
from engine.node.replicated.definitions.definition_sql import Definition
from engine.node.replicated.running.table_readonly import refuse_table_readonly
from engine.node.statements.asked_settings import flag, settings_of
from engine.node.statements.statement import Asked
from engine.sql import Statement, StatementKind
from engine.sql.cursor import Cursor

_K = StatementKind


def refuse_definition(asked: Asked, definition: Definition) -> None:
    """Of what CREATE or ATTACH wants to make. Raises SqlError 36 or 48."""
    _refuse_old_syntax(asked, definition)
    refuse_table_readonly(definition.settings)


def _refuse_old_syntax(asked: Asked, definition: Definition) -> None:
    """`Engine('/path', 'replica', date, (key), 8192)`. Such tables name their parts by days, which nothing
    here understands, and chDB takes no settings beside it. Raises SqlError 36, or 48 where it is allowed."""
    if definition.is_extended or definition.engine is None or len(definition.engine.arguments) < 5:
        return
    advice = "Write PARTITION BY toYYYYMM(date) ORDER BY (key) behind the engine."
    if not flag(settings_of(asked), "allow_deprecated_syntax_for_merge_tree", False):
        raise SqlError(
            Code.BAD_ARGUMENTS,
            "This syntax for *MergeTree engine is deprecated. Use extended storage definition syntax with "
            "ORDER BY/PRIMARY KEY clause.",
            hint=advice,
        )
    raise SqlError(
        Code.NOT_IMPLEMENTED,
        f"The deprecated syntax of {definition.engine.name} is not supported: its parts have names of the "
        "oldest format.",
        hint=advice,
    )


def refuse_unsupported(statement: Statement) -> None:
    """Statements that define a replicated table in a way that is not possible here. Raises SqlError."""
    if statement.kind is not _K.CREATE_TABLE or statement.temporary:
        raise SqlError(Code.BAD_ARGUMENTS, f"{statement.kind} cannot have the engine {statement.engine}.")


def refuse_refresh(sql: str) -> None:
    """Of a view with a replicated table of its own. Raises SqlError 48."""
    cursor = Cursor(sql)
    if cursor.skip_to("REFRESH", "ENGINE", "AS") and cursor.word == "REFRESH":
        raise SqlError(
            Code.NOT_IMPLEMENTED,
            "A refreshable materialized view cannot have a replicated table of its own: chDB refreshes it, "
            "and its rows would come to no other replica.",
            hint="APPEND TO a table of engine URL whose address is an INSERT into a replicated table.",
        )


def no_replace(name: TableName) -> SqlError:
    """Of CREATE OR REPLACE that would put a view in a replicated table's place, or anything in that of a view
    with one."""
    return SqlError(
        Code.NOT_IMPLEMENTED,
        f"{name} is a replicated table, which only a table can replace, or a view that has one of its own.",
        hint="Create the new object under another name, EXCHANGE TABLES, then DROP the old one.",
    )
