"""ClickHouse's resolved text with other names for tables in subqueries than for those around them.

ClickHouse numbers the tables of a subquery behind IN from one again:

    SELECT __table1.a FROM t AS __table1 WHERE __table1.a IN (SELECT __table1.b FROM u AS __table1)

Who takes pieces of the text to other places could not tell which `__table1` is meant. Here the inner one is
`__table1_1`, by how deep it stands, so that what was the same expression in two places still is.
"""

from __future__ import annotations

import re

from engine.sql.cursor import Cursor
from engine.sql.edit import Edit, apply_edits

_TABLE = re.compile(r"__table\d+")
_SET_OPERATIONS = frozenset({"UNION", "EXCEPT", "INTERSECT"})

_Scopes = tuple[int, ...]
"""The SELECTs around a token, by where they begin, from the outermost on."""


def with_unique_tables(text: str) -> str:
    cursor = Cursor(text)
    found = _names(cursor)
    tokens = cursor.tokens
    defined = {
        (tokens[at].text, scopes[-1]): len(scopes) - 1
        for at, scopes in found.items()
        if cursor.words[at - 1] == "AS"
    }
    edits = []
    for at, scopes in found.items():
        token = tokens[at]
        depths = [defined[token.text, one] for one in scopes if (token.text, one) in defined]
        if depths and depths[-1]:
            edits.append(Edit(token.start, token.end, f"{token.text}_{depths[-1]}"))
    return apply_edits(text, edits)


def _names(cursor: Cursor) -> dict[int, _Scopes]:
    """Every token that is the name of a table."""
    words = cursor.words
    scopes: list[int] = [0]
    found: dict[int, _Scopes] = {}
    for at, word in enumerate(words):
        if word in ("(", "[", "{"):
            scopes.append(at if words[at + 1 : at + 2] == ["SELECT"] else scopes[-1])
        elif word in (")", "]", "}") and len(scopes) > 1:
            scopes.pop()
        elif word in _SET_OPERATIONS:
            scopes[-1] = at
        elif _TABLE.fullmatch(cursor.tokens[at].text):
            found[at] = tuple(dict.fromkeys(scopes))
    return found
