"""Time zones of columns beside the setting `session_timezone`.

A type `DateTime` without a zone takes its zone when it is made: that of a table's column is the server's, and
that of a type in a statement is the session's. Text is read and written in the session's zone either way, but
`toHour(column)` is in the server's. Columns that come from shards have types of the statement; here they
get those of the Distributed table itself, by way of an array without elements.
"""

from __future__ import annotations

from engine.distributed.select.model import (
    READ_WITH_PLACE,
    SHARD_PLACE,
    TABLE_PLACE,
    RemoteSelect,
    SourceColumn,
)
from engine.names import TableName, quote_identifier, quote_string
from engine.sql.cursor import Cursor

_ENDS = (",", ")", "")


def has_session_zone(type_: str) -> bool:
    """Whether a type has a DateTime without a zone in it."""
    words = [*Cursor(type_).words, "", "", "", ""]
    return any(
        (word == "DATETIME" and words[at + 1] in _ENDS)
        or (word == "DATETIME64" and (words[at + 1] in _ENDS or words[at + 3] == ")"))
        for at, word in enumerate(words)
    )


def types_of(table: TableName) -> str:
    """What stands for the table itself, of which only types are read, until the text has been checked."""
    return f"null({quote_string(f'types of {table.quoted}')})"


def with_zones(text: str, column: SourceColumn, table: TableName, select: RemoteSelect) -> str:
    """An item of a SELECT list: `column`, which is `text` in `select`, with the zones that it has where that
    reads `table`."""
    name = quote_identifier(column.name)
    if not has_session_zone(column.type):
        return name
    source = select.source.replace(READ_WITH_PLACE, "") or TABLE_PLACE
    source = source.replace(TABLE_PLACE, types_of(table))
    typed = f"SELECT {text} AS x FROM {source} AS {select.tail.split()[1]} LIMIT 0".replace(SHARD_PLACE, "0")
    nothing = f"(SELECT groupArray(tuple(x)) FROM ({typed}))"
    return f"if(materialize(0), {nothing}[1].1, {name}) AS {name}"
