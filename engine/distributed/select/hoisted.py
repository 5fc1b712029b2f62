"""Expressions with subqueries that shards evaluate in ClickHouse, too, beside FROM and WHERE: what stands in
SELECT and ORDER BY of a query without groups, and the keys and arguments of one with groups.

What is made of groups is the initiator's, with its subqueries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from engine.distributed.select import clauses
from engine.distributed.select.model import names
from engine.sql.cursor import Cursor

_ORDER_ENDS = names("ASC DESC NULLS COLLATE WITH")

Range = tuple[int, int]
"""Of tokens in ClickHouse's resolved text."""


def hoisted(
    cursor: Cursor, select: Range, found: Collection[clauses.Clause], *, aggregates: Collection[str]
) -> list[Range]:
    """Those of a query whose SELECT list is `select` and whose other clauses are `found`, each once.
    `aggregates` are the functions that it calls; it has groups if there are any, or GROUP BY."""
    parts = {clause.keyword: (clause.begin, clause.end) for clause in found}
    ranges: list[Range] = []
    if aggregates or "GROUP" in parts:
        for part in (select, parts.get("HAVING"), parts.get("ORDER")):
            ranges += _arguments(cursor, part, aggregates) if part else ()
        ranges += _items(cursor, parts["GROUP"]) if "GROUP" in parts else ()
    else:
        ranges += _items(cursor, select)
        ranges += _items(cursor, parts["ORDER"]) if "ORDER" in parts else ()
    texts = {clauses.token_texts(clauses.text_of(cursor, *one)): one for one in ranges}
    return [one for text, one in texts.items() if "SELECT" in text]


def _items(cursor: Cursor, part: Range) -> Iterator[Range]:
    """What stands between commas, without aliases and directions."""
    for begin, end in clauses.split(cursor, *part, ","):
        cursor.at = begin
        while cursor.at < end and cursor.word != "AS" and cursor.word not in _ORDER_ENDS:
            if not cursor.skip_brackets():
                cursor.at += 1
        yield begin, cursor.at


def _arguments(cursor: Cursor, part: Range, functions: Collection[str]) -> Iterator[Range]:
    """Those of calls of `functions`."""
    at, end = part
    while at < end:
        if cursor.tokens[at].text not in functions or cursor.words[at + 1] != "(":
            at += 1
            continue
        cursor.at = opening = at + 1
        cursor.skip_brackets()
        if cursor.word == "(":  # the first ones were parameters
            opening = cursor.at
            cursor.skip_brackets()
        at = cursor.at
        if opening + 1 < at - 1:
            yield from clauses.split(cursor, opening + 1, at - 1, ",")
