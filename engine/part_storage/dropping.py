"""Columns that an ALTER drops, where chDB would refuse it for what is there: parts, and views.

On the empty copy on which an ALTER is planned chDB finds neither. What is in the log cannot be refused any
more: a replica that tries it for ever does nothing behind it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial

from engine.errors import Code, SqlError
from engine.names import TableName, quote_string
from engine.part_storage.workers import Connection, Workers
from engine.replication.columns import Columns
from engine.replication.part_store import Part
from engine.replication.renamed_columns import renamed_columns
from engine.sql.cursor import Cursor

log = logging.getLogger(__name__)


def check_parts_keep_columns(parts: Iterable[Part], commands: Sequence[str]) -> None:
    """Of a mutation's commands, before it is in the log. Raises SqlError 36 where nothing of a part would be
    left."""
    gone = dropped_columns(commands)
    if not gone:
        return
    keeps: dict[bytes, bool] = {}
    for part in parts:
        if part.columns not in keeps:
            columns = Columns.from_bytes(part.columns, where=str(part.name)).columns
            keeps[part.columns] = any(
                column.name not in gone and column.name.partition(".")[0] not in gone for column in columns
            )
        if not keeps[part.columns]:
            raise SqlError(
                Code.BAD_ARGUMENTS,
                f"Cannot drop or clear '{', '.join(gone)}', because all columns in part '{part.name}' "
                "will be removed from disk. Empty parts are not allowed.",
            )


def check_names_are_not_taken_over(commands: Sequence[str]) -> None:
    """Of a mutation's commands. Raises SqlError 48 for a column that gets the name of one that the same ALTER
    drops: of parts that have both nobody could tell later which one is meant."""
    gone = dropped_columns(commands)
    for name in renamed_columns(", ".join(commands)).values():
        if name in gone:
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                f"One ALTER cannot drop column {name} and give its name to another one",
                hint="Write two: the second when the first is done.",
            )


def dropped_columns(commands: Iterable[str]) -> list[str]:
    """What DROP COLUMN and CLEAR COLUMN take from all parts."""
    return [name for command in commands if (name := _dropped_column(command)) is not None]


def _dropped_column(command: str) -> str | None:
    cursor = Cursor(command)
    if not (cursor.accept("DROP", "COLUMN") or cursor.accept("CLEAR", "COLUMN")):
        return None
    cursor.accept("IF", "EXISTS")
    names = [cursor.identifier()]
    while cursor.accept("."):
        names.append(cursor.identifier())
    return ".".join(name or "" for name in names) if cursor.at_end else None


def define_past_views(connection: Connection, workers: Workers, table: TableName, statement: str) -> None:
    """An ALTER of the log, also if it drops a column that a materialized view of this node reads, or may
    read, which chDB refuses: the replica that decided it has no such view. The view is away meanwhile; a
    kill leaves it to the next start. Raises SqlError."""
    try:
        connection.define(statement)
        return
    except SqlError:
        if "DROP COLUMN" not in statement:
            raise
    found = connection.rows(
        "SELECT dependencies_database, dependencies_table FROM system.tables "
        f"WHERE database = {quote_string(table.database)} AND name = {quote_string(table.table)}"
    )
    views = [TableName(*view).quoted for each in found for view in zip(*each, strict=True)]
    log.warning("part_storage.view_reads_dropped_column table=%s views=%s", table, ", ".join(views))
    with ExitStack() as stack:
        for view in views:
            attach = partial(connection.define, f"ATTACH TABLE IF NOT EXISTS {view}")
            stack.callback(workers.surely, attach)  # without it no row would come to the view
            connection.define(f"DETACH TABLE {view} SYNC")
        connection.define(statement)
