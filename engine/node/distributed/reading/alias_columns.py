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
    for before, behind, token in zip(words, words[2:], cursor.tokens, strict=False):
        column = columns.get(literal_value(token)) if token.is_name else None
        if column is None or before == "." or behind == "(" or column.name in arguments:
            continue
        text = value_on_shard(column, columns) or f"{ALIAS_PLACE}.{quote_identifier(column.name)}"
        edits.append(Edit(token.start, token.end, text))
    return apply_edits(expression, edits)


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
