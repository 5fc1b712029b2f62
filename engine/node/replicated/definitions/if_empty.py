"""DROP and DETACH … IF EMPTY: of the rows that this replica has, as in ClickHouse.

It is looked before anything is changed; chDB looks again when the table has stopped.

Source: ClickHouse's InterpreterDropQuery::executeToTableImpl.
"""

from __future__ import annotations

from engine.errors import Code, SqlError
from engine.names import TableName, quote_string
from engine.node.replicated.running.local_tables import LocalTables
from engine.sql.cursor import Cursor
from engine.sql.edit import Edit, apply_edits


def is_if_empty(sql: str) -> bool:
    """Of DROP and DETACH."""
    return _place(sql) is not None


def without_if_empty(sql: str) -> str:
    """For a table that was found empty."""
    place = _place(sql)
    return sql if place is None else apply_edits(sql, [place])


async def check_empty(local: LocalTables, name: TableName) -> None:
    """Raises SqlError 705. A table that is not there is somebody else's affair, and so is one that does not
    count its rows."""
    rows = await local.rows(
        "SELECT total_rows FROM system.tables "
        f"WHERE database = {quote_string(name.database)} AND name = {quote_string(name.table)}"
    )
    if any(count and int(count) for (count,) in rows):
        raise SqlError(Code.TABLE_NOT_EMPTY, f"Table {name.table} is not empty.")


def _place(sql: str) -> Edit | None:
    """Behind the kind of the object, alone or with IF EXISTS."""
    cursor = Cursor(sql)
    for at in (2, 4):
        if cursor.words[at : at + 2] == ["IF", "EMPTY"]:
            end = cursor.tokens[at + 2].start if at + 2 < len(cursor.tokens) else len(sql)
            return Edit(cursor.tokens[at].start, end, "")
    return None
