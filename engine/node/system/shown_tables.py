"""What SHOW CREATE TABLE and `system.tables` need for tables that are shown otherwise than chDB has them."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from engine.names import TableName, quote_string
from engine.sql.cursor import Cursor, Role

_OTHER_OBJECTS = frozenset(
    {
        "DATABASE",
        "VIEW",
        "DICTIONARY",
        "USER",
        "ROLE",
        "QUOTA",
        "ROW",
        "POLICY",
        "PROFILE",
        "SETTINGS",
        "FUNCTION",
    }
)


def table_of_show_create(sql: str) -> TableName | None:
    """The table of SHOW CREATE [TABLE] t and SHOW TABLE t."""
    cursor = Cursor(sql)
    cursor.accept("SHOW")
    is_create = cursor.accept("CREATE")
    if cursor.accept("TEMPORARY") or cursor.word in _OTHER_OBJECTS:
        return None
    if not cursor.accept("TABLE") and not is_create:
        return None
    ref = cursor.table(Role.SOURCE)
    return None if ref is None else ref.name


def table_of_exists(sql: str) -> TableName | None:
    """The table of EXISTS [TABLE] t."""
    cursor = Cursor(sql)
    if not cursor.accept("EXISTS") or cursor.accept("TEMPORARY") or cursor.word in _OTHER_OBJECTS:
        return None
    cursor.accept("TABLE")
    ref = cursor.table(Role.SOURCE)
    return None if ref is None else ref.name


def replaced_text(column: str, texts: Mapping[UUID, str]) -> str:
    """For REPLACE in a SELECT from `system.tables`: another text in a column, by a table's UUID."""
    keys = ", ".join(quote_string(str(uuid)) for uuid in texts)
    values = ", ".join(map(quote_string, texts.values()))
    return f"transform(toString(uuid), [{keys}], [{values}], {column}) AS {column}"
