"""The SELECT of a materialized view, made to read other rows in the place of its source table."""

from __future__ import annotations

from collections.abc import Collection

from engine.names import TableName, quote_identifier
from engine.sql import Token, literal_value, name_of
from engine.sql.cursor import Cursor
from engine.sql.edit import Edit, apply_edits
from engine.sql.sources import read_tables


def reading_from(
    select: str, source: TableName, stage: TableName, condition: str = "", computed: Collection[str] = ()
) -> str:
    """`select` with every read of `source` turned into a read of `stage`; where `condition` holds, if given.
    `computed` are the columns that `*` leaves out: the select may name them.

    Columns that are qualified with the source's name mean those of the stage's.
    """
    cursor = Cursor(select)
    refs = [ref for ref in read_tables(cursor, 0) if ref.name == source]
    rows = stage.quoted
    if condition:
        named = {literal_value(token) for token in cursor.tokens if token.is_name}
        columns = ", ".join(["*", *map(quote_identifier, sorted(named & set(computed)))])
        rows = f"(SELECT {columns} FROM {stage.quoted} WHERE {condition})"
    edits = []
    for ref in refs:
        following = next((t for t in cursor.tokens if t.start >= ref.end), None)
        has_alias = following is not None and following.text.upper() == "AS"
        edits.append(Edit(ref.start, ref.end, rows if has_alias else f"{rows} AS {_quoted(source)}"))
    taken = {(ref.start, ref.end) for ref in refs}
    tokens = cursor.tokens
    for at in range(len(tokens) - 4):
        first, _, second = tokens[at : at + 3]
        if (
            [t.text for t in tokens[at + 1 : at + 4 : 2]] == [".", "."]
            and _is(first, source.database)
            and _is(second, source.table)
            and (first.start, second.end) not in taken
            and (at == 0 or tokens[at - 1].text != ".")
        ):
            edits.append(Edit(first.start, second.start, ""))
    return apply_edits(select, edits)


def _quoted(source: TableName) -> str:
    return quote_identifier(source.table)


def _is(token: Token, name: str) -> bool:
    return name_of(token) == name
