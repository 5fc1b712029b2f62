"""Errors that quote the statement as chDB runs it: without what reads the shards.

`In scope SELECT nope FROM (SELECT … FROM url('http://…') UNION ALL …) AS t` names nodes that are none of the
user's business, and the list of all columns in their request hides what is wrong. The place of a syntax error
is that in the user's text.
"""

from __future__ import annotations

import re
from contextlib import suppress

from engine.errors import Code, SqlError
from engine.sql.tokens import scan

_READ = re.compile(r"\bFROM url\(")
_SUBQUERY = "(SELECT "
_ALIAS = re.compile(r"\(…\) AS (?=[\w`])")
_PLACE = re.compile(
    r"failed at position (?P<at>\d+) \(.*?\)(?P<line> \(line \d+, col \d+\))?: "
    r"(?P<rest>.*?)(?:\.\.\.)?\. Expected",
    re.DOTALL,
)


def without_shards(error: SqlError) -> SqlError:
    """The same error if its text has none."""
    text = error.message
    while (found := _READ.search(text)) is not None:
        start = text.rfind(_SUBQUERY, 0, found.start())
        if start < 0:
            start = found.start()
        text = f"{text[:start]}(…){text[_end(text, start) :]}"
    if text == error.message:
        return error
    return SqlError(error.code, _ALIAS.sub("", text), hint=error.hint, name=error.name)


def with_place_in(sql: str, error: SqlError) -> SqlError:
    """The same error if it is none of syntax, or what it quotes does not stand once in the user's text."""
    found = _PLACE.search(error.message) if error.code == Code.SYNTAX_ERROR else None
    if found is None or sql.count(found["rest"]) != 1:
        return error
    before = sql[: sql.index(found["rest"])]
    text = error.message
    if found["line"]:
        column = len(before.rpartition("\n")[2].encode()) + 1
        line = f" (line {before.count(chr(10)) + 1}, col {column})"
        text = f"{text[: found.start('line')]}{line}{text[found.end('line') :]}"
    text = f"{text[: found.start('at')]}{len(before.encode()) + 1}{text[found.end('at') :]}"
    return SqlError(error.code, text, hint=error.hint, name=error.name)


def _end(text: str, start: int) -> int:
    """Behind the bracket that closes the first one from an offset on; the end of a text that is cut off."""
    depth = 0
    with suppress(SqlError):
        for token in scan(text[start:]):
            depth += (token.text == "(") - (token.text == ")")
            if not depth and token.text == ")":
                return start + token.end
    return len(text)
