"""Definitions of replicated tables that are refused before anything is changed, and why."""

from __future__ import annotations

from engine.errors import Code, SqlError
from engine.node.replicated.definition_sql import Definition
from engine.node.replicated.waiting import flag, settings_of
from engine.node.statement import Asked


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
