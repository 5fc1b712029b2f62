"""What `merge()` and tables of engine Merge name: found in texts and in chDB's catalogue.

Source: StorageMerge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.distributed.definition import argument_name, engine_arguments
from engine.errors import SqlError
from engine.names import TableName, quote_string
from engine.node.replicated.running.local_tables import LocalTables
from engine.sql.cursor import Cursor
from engine.storage.errors import told

_BEFORE = ("FROM", "JOIN", ",", "(")


@dataclass(frozen=True, slots=True)
class Merge:
    """What is merged: the arguments as they are written, and the table that says so, if it is one."""

    arguments: tuple[str, ...]
    own: TableName | None = None


@dataclass(frozen=True, slots=True)
class MergeCall:
    """`merge(…)` in the text, from `start` to `end`."""

    start: int
    end: int
    merge: Merge


@dataclass(frozen=True, slots=True)
class Merged:
    """One table that is merged; `engine_full` is its engine with arguments."""

    name: TableName
    engine: str
    engine_full: str


def merge_calls(sql: str) -> Sequence[MergeCall]:
    """The calls of merge() in FROM and JOIN."""
    cursor = Cursor(sql)
    found = []
    for at, word in enumerate(cursor.words):
        if (
            word == "MERGE"
            and at
            and cursor.words[at - 1] in _BEFORE
            and cursor.words[at + 1 : at + 2] == ["("]
        ):
            cursor.at = at + 1
            arguments = tuple(engine_arguments(cursor))
            if 1 <= len(arguments) <= 2:
                found.append(MergeCall(cursor.tokens[at].start, cursor.last_end, Merge(arguments)))
    return found


def merge_of_engine(engine_full: str, own: TableName) -> Merge:
    """What a table of engine Merge merges. Raises SqlError 76 for a definition that cannot be read."""
    cursor = Cursor(told(engine_full, own))
    cursor.at = 1
    return Merge(tuple(engine_arguments(cursor)), own)


async def merged_tables(local: LocalTables, merge: Merge, database: str) -> Sequence[Merged]:
    """The tables that it reads; `database` is the current one."""
    *databases, tables = merge.arguments[:2]
    of_database = f"database = {quote_string(merge.own.database if merge.own else database)}"
    if databases and Cursor(databases[0]).word == "REGEXP":
        of_database = f"match(database, {quote_string(_regexp(databases[0]))})"
    elif databases:
        of_database = f"database = {quote_string(literal(databases[0], database))}"
    rows = await local.rows(
        "SELECT database, name, engine, engine_full FROM system.tables "
        f"WHERE {of_database} AND match(name, {quote_string(literal(tables, database))}) "
        "AND NOT is_temporary ORDER BY database, name"
    )
    found = [Merged(TableName(row[0], row[1]), row[2], row[3]) for row in rows]
    return [one for one in found if one.name != merge.own]


def literal(text: str, current: str) -> str:
    """Empty, which matches anything, for an expression."""
    try:
        return argument_name(text, "", current)
    except SqlError:
        return ""


def _regexp(text: str) -> str:
    cursor = Cursor(text)
    cursor.at = 1
    arguments = engine_arguments(cursor)
    return literal(arguments[0], "") if arguments else ""
