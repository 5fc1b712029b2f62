"""Definitions of replicated tables that are refused before anything is changed, and why."""

from __future__ import annotations

from engine.errors import Code, SqlError
from engine.names import TableName
from engine.node.replicated.definition_sql import Definition
from engine.node.replicated.waiting import flag, settings_of
from engine.node.statement import Asked
from engine.sql import Statement, StatementKind

_K = StatementKind


def refuse_old_syntax(asked: Asked, definition: Definition) -> None:
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
    if statement.kind is _K.CREATE_MATERIALIZED_VIEW:
        raise SqlError(
            Code.NOT_IMPLEMENTED,
            "A materialized view cannot have a replicated table of its own.",
            hint="Create the replicated table first, then the view with TO.",
        )
    if statement.kind is not _K.CREATE_TABLE or statement.temporary:
        raise SqlError(Code.BAD_ARGUMENTS, f"{statement.kind} cannot have the engine {statement.engine}.")


def no_replace(name: TableName) -> SqlError:
    """Of CREATE OR REPLACE of something else."""
    return SqlError(
        Code.NOT_IMPLEMENTED,
        f"The replicated table {name} can be replaced only by another replicated table.",
        hint="Create the new object under another name, EXCHANGE TABLES, then DROP the replicated table.",
    )
