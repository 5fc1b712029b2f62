"""Subqueries among the rows of INSERT … VALUES, such as `INSERT INTO t VALUES (1, (SELECT max(id) FROM d))`.

The rows of an INSERT are no part of the statement's tokens: they may be many, and are seldom SQL. So they are
searched for the beginning of a subquery, and only where there is one they are taken apart. chDB takes no
UNION there, and so no text that reads shards: the value is asked for first, and stands in the subquery's
place.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from engine.names import quote_string
from engine.sql import TokenKind
from engine.sql.cursor import Cursor
from engine.sql.edit import Edit, apply_edits
from engine.sql.tokens import scan

_BEGINS = re.compile(r"\(\s*(?:SELECT|WITH|FROM)\b", re.IGNORECASE)
_WORDS = ("SELECT", "WITH", "FROM")


async def with_values(sql: str, value: Callable[[str], Awaitable[str | None]]) -> str:
    """The INSERT `sql` with the literal that `value` gives for a SELECT in place of every subquery among its
    rows; None leaves the subquery."""
    cursor = Cursor(sql)
    if not cursor.tokens or cursor.tokens[-1].kind is not TokenKind.DATA or not _is_sql(cursor):
        return sql
    begin, data = cursor.tokens[-1].start, cursor.tokens[-1].text
    if _BEGINS.search(data) is None:
        return sql
    edits = []
    for start, end in _subqueries(data):
        literal = await value(data[start + 1 : end - 1])
        if literal is not None:
            edits.append(Edit(begin + start, begin + end, literal))
    return apply_edits(sql, edits)


def question(select: str) -> str:
    """What asks for the value of a subquery; `literal` reads the answer in the format TabSeparatedRaw."""
    return f"SELECT toTypeName(v), isNull(v), hex(toString(v)) FROM (SELECT ({select}) AS v)"


def literal(answer: str) -> str:
    """An expression of the same value and type."""
    type_, is_null, text = answer.rstrip("\n").split("\t")
    return f"CAST({'NULL' if is_null == '1' else f'unhex({quote_string(text)})'}, {quote_string(type_)})"


def _is_sql(cursor: Cursor) -> bool:
    """Rows behind VALUES or FORMAT Values, which are expressions."""
    return cursor.words[-2] == "VALUES"


def _subqueries(data: str) -> list[tuple[int, int]]:
    """The ranges of offsets of the outermost subqueries, with their brackets."""
    found = []
    depth = start = 0
    before = ""
    for token in scan(data):
        if not token.is_significant:
            continue
        word = token.text.upper() if token.kind is TokenKind.WORD else token.text
        if depth:
            depth += (word == "(") - (word == ")")
            if not depth:
                found.append((start, token.end))
        elif before == "(" and word in _WORDS:
            depth = 1
        elif word == "(":
            start = token.start
        before = word
    return found
