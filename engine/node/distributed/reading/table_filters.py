"""The setting `additional_table_filters`: a table's name to a condition that each of its rows has to meet.

It holds behind FINAL, SAMPLE and PREWHERE, before all else that a statement does with the rows; so it goes
to the shards, around their tables. A name is that of a Distributed table, of a view, or an alias in the text;
the filter of a shard's own table holds there, too. What chDB reads by itself it filters by itself.

Source: buildAdditionalFiltersIfNeeded in ClickHouse's PlannerJoinTree.cpp.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from engine.distributed.select.references import table_names
from engine.errors import Code, SqlError
from engine.names import TableName, quote_string
from engine.sql.cursor import Cursor
from engine.sql.edit import Edit, apply_edits
from engine.sql.tokens import TokenKind, literal_value

FILTERS = "additional_table_filters"


def table_filters(settings: Mapping[str, str]) -> Mapping[str, str]:
    """Name to condition, in their order. Raises SqlError 36 for a value that is no map of strings."""
    text = settings.get(FILTERS, "").strip()
    cursor = Cursor(text)
    if not text or cursor.word != "{":
        return _nothing(text)
    return _map(cursor, text)


async def with_filters_in_text(sql: str, changed: Callable[[str, str], Awaitable[str]]) -> str:
    """A statement in whose SETTINGS each condition is what `changed` makes of it, with its name. Raises
    SqlError as `table_filters`."""
    if FILTERS not in sql:
        return sql
    cursor, edits = Cursor(sql), []
    for at, token in enumerate(cursor.tokens):
        if token.text != FILTERS or cursor.words[at + 1 : at + 3] != ["=", "{"]:
            continue
        cursor.at = at + 2
        begin = cursor.token.start
        filters = _map(cursor, sql[begin:])
        new = {name: await changed(name, condition) for name, condition in filters.items()}
        if new != filters:
            edits.append(Edit(begin, cursor.last_end, filters_text(new)))
    return apply_edits(sql, edits)


def filters_text(filters: Mapping[str, str]) -> str:
    """The value of the setting."""
    return (
        "{" + ", ".join(f"{quote_string(name)}:{quote_string(text)}" for name, text in filters.items()) + "}"
    )


def _map(cursor: Cursor, text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    cursor.accept("{")
    while not cursor.accept("}"):
        name, condition = (
            cursor.tokens[cursor.at : cursor.at + 1],
            cursor.tokens[cursor.at + 2 : cursor.at + 3],
        )
        if not name or not condition or cursor.words[cursor.at + 1] != ":":
            raise _no_map(text)
        if name[0].kind is not TokenKind.STRING or condition[0].kind is not TokenKind.STRING:
            raise _no_map(text)
        found.setdefault(literal_value(name[0]), literal_value(condition[0]))
        cursor.at += 3
        cursor.accept(",")
    return found


def filter_of(settings: Mapping[str, str], name: TableName | None, *, alias: str, current: str) -> str:
    """The condition for a table, `current` being the current database; empty for none. Raises SqlError 48
    for one that reads tables."""
    filters = table_filters(settings)
    names = {alias} if alias else set()
    if name is not None:
        names |= {f"{name.database}.{name.table}"} | ({name.table} if name.database == current else set())
    condition = next((text for key, text in filters.items() if key in names), "")
    if "SELECT" in Cursor(condition).words or table_names(f"SELECT {condition}"):
        raise SqlError(
            Code.NOT_IMPLEMENTED,
            f"A condition of {FILTERS} for a Distributed table cannot read other tables in this way.",
            hint="Write the condition into WHERE.",
        )
    return condition


def filter_setting(conditions: Mapping[TableName, str]) -> Mapping[str, str]:
    """The setting, for tables on another node; empty where they have no conditions."""
    found = {f"{name.database}.{name.table}": text for name, text in conditions.items() if text}
    return {FILTERS: filters_text(found) if found else ""}


def _nothing(text: str) -> Mapping[str, str]:
    if text:
        raise _no_map(text)
    return {}


def _no_map(text: str) -> SqlError:
    return SqlError(Code.BAD_ARGUMENTS, f"Setting {FILTERS} = {text} is no map of strings.")
