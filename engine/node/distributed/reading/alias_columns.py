"""What an ALIAS column of a Distributed table is on a shard: its expression, as in ClickHouse.

The shard's own table may have no such column, or another of that name.

Source: ClickHouse's ReplaseAliasColumnsVisitor (StorageDistributed.cpp).
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.distributed.select.model import ALIAS_PLACE
from engine.names import quote_identifier, quote_string
from engine.node.distributed.registry.tables import Column
from engine.sql.cursor import Cursor
from engine.sql.edit import Edit, apply_edits
from engine.sql.tokens import literal_value


def value_on_shard(column: Column, columns: Mapping[str, Column]) -> str:
    """SQL for a column, with `ALIAS_PLACE` where the shard's table is named; empty if that has the column."""
    if column.kind != "ALIAS" or not column.expression:
        return ""
    expression = _expanded(column.expression, columns)
    if column.type.startswith("AggregateFunction"):
        return f"({expression})"
    return f"CAST({expression}, {quote_string(column.type)})"


def _expanded(expression: str, columns: Mapping[str, Column]) -> str:
    cursor = Cursor(expression)
    words = ["", *cursor.words, ""]
    arguments = _arguments_of_lambdas(cursor)
    edits = []
    for at, token in enumerate(cursor.tokens):
        if not token.is_name or words[at] == ".":
            continue
        column, last = _column_at(cursor, at, columns)
        if column is None or words[last + 2] == "(" or column.name in arguments:
            continue
        text = value_on_shard(column, columns) or f"{ALIAS_PLACE}.{quote_identifier(column.name)}"
        edits.append(Edit(token.start, cursor.tokens[last].end, text))
    return apply_edits(expression, edits)


def _column_at(cursor: Cursor, at: int, columns: Mapping[str, Column]) -> tuple[Column | None, int]:
    """The column with the longest name that begins at a token, and its last token: `n.a` is one of Nested."""
    name, found, last = literal_value(cursor.tokens[at]), None, at
    for end in range(at, len(cursor.tokens), 2):
        if end > at:
            if cursor.words[end - 1] != "." or not cursor.tokens[end].is_name:
                break
            name += f".{literal_value(cursor.tokens[end])}"
        if name in columns:
            found, last = columns[name], end
    return found, last


def _arguments_of_lambdas(cursor: Cursor) -> frozenset[str]:
    """They may be called as columns are."""
    found: set[str] = set()
    for at, word in enumerate(cursor.words):
        if word != "->":
            continue
        begin = at - 1
        if cursor.words[begin] == ")":
            while begin > 0 and cursor.words[begin] != "(":
                begin -= 1
        found |= {literal_value(token) for token in cursor.tokens[begin:at] if token.is_name}
    return frozenset(found)
