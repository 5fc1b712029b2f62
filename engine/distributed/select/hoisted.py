"""Expressions with subqueries that shards evaluate in ClickHouse, too, beside FROM and WHERE: what stands in
SELECT, ORDER BY and LIMIT BY of a query without groups and windows, the keys and arguments of one with
groups, and what window functions are over.

What is made of groups and windows is the initiator's, with its subqueries, and so is QUALIFY.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from engine.distributed.select import clauses
from engine.distributed.select.model import names
from engine.sql.cursor import Cursor

_ORDER_ENDS = names("ASC DESC NULLS COLLATE WITH")
_WINDOW_ENDS = names("ORDER ROWS RANGE GROUPS")

Range = tuple[int, int]
"""Of tokens in ClickHouse's resolved text."""


def hoisted(
    cursor: Cursor,
    select: Range,
    found: Collection[clauses.Clause],
    *,
    aggregates: Collection[str],
    windows: Collection[str],
) -> list[Range]:
    """Those of a query whose SELECT list is `select` and whose other clauses are `found`, each once.
    `aggregates` and `windows` are the functions that it calls; it has groups if there are any of the first,
    or GROUP BY."""
    parts = {clause.keyword: (clause.begin, clause.end) for clause in found}
    upper = [select, *(parts[name] for name in ("HAVING", "QUALIFY", "ORDER") if name in parts)]
    ranges: list[Range] = []
    if aggregates or "GROUP" in parts:
        for part in upper:
            ranges += _arguments(cursor, part, aggregates, with_over=False)
        ranges += _items(cursor, parts["GROUP"]) if "GROUP" in parts else ()
    elif windows:
        for part in upper:
            ranges += _arguments(cursor, part, windows, with_over=True)
    else:
        ranges += _items(cursor, select)
        ranges += _items(cursor, parts["ORDER"]) if "ORDER" in parts else ()
        for clause in found:
            ranges += _limit_by(cursor, clause)
    texts = {clauses.token_texts(clauses.text_of(cursor, *one)): one for one in ranges}
    return [one for text, one in texts.items() if "SELECT" in text]


def _limit_by(cursor: Cursor, clause: clauses.Clause) -> Iterator[Range]:
    """`LIMIT n BY …`"""
    if clause.keyword == "LIMIT" and "BY" in cursor.words[clause.begin : clause.end]:
        yield from _items(cursor, (cursor.words.index("BY", clause.begin) + 1, clause.end))


def _items(cursor: Cursor, part: Range) -> Iterator[Range]:
    """What stands between commas, without aliases and directions."""
    for begin, end in clauses.split(cursor, *part, ","):
        cursor.at = begin
        while cursor.at < end and cursor.word != "AS" and cursor.word not in _ORDER_ENDS:
            if not cursor.skip_brackets():
                cursor.at += 1
        yield begin, cursor.at


def _arguments(
    cursor: Cursor, part: Range, functions: Collection[str], *, with_over: bool
) -> Iterator[Range]:
    """Those of calls of `functions`, of those with OVER or of those without."""
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
        if with_over is not (cursor.word == "OVER"):
            at += 1
            continue
        at = cursor.at
        if with_over:
            yield from _window_keys(cursor)
        if opening + 1 < at - 1:
            yield from clauses.split(cursor, opening + 1, at - 1, ",")


def _window_keys(cursor: Cursor) -> Iterator[Range]:
    """The cursor is at OVER."""
    words = cursor.words
    begin = cursor.at + 2
    cursor.at += 1
    cursor.skip_brackets()
    end = cursor.at - 1
    for at in [at for at in _outside(cursor, begin, end) if words[at] == "BY"]:
        last = next((i for i in _outside(cursor, at, end) if words[i] in _WINDOW_ENDS), end)
        yield from _items(cursor, (at + 1, last))


def _outside(cursor: Cursor, begin: int, end: int) -> Iterator[int]:
    """The tokens of a range that are in no brackets of their own."""
    at = begin
    while at < end:
        cursor.at = at
        if cursor.skip_brackets():
            at = cursor.at
        else:
            yield at
            at += 1
