"""Secrets in the statements that ClickHouse quotes in its syntax errors, from the middle of them.

    Syntax error: failed at position 29 (hunter2): hunter2 HOST ANY. Expected one of: string literal, …

A secret need not stand in quotes there: who forgets them gets this very error. What was expected tells where
one may be. All of the statement is hidden where a string, a way to log in or the value of a setting was
expected, or a quote is not closed; else what comes behind a word that looks like that of a secret. Positions,
and what was expected, stay.
"""

from __future__ import annotations

import re

from engine.errors import SqlError
from engine.sql.secret_texts import HIDDEN, SUSPICIOUS
from engine.sql.tokens import scan

_PLACE = r"\(line \d+, col \d+\)"
_FAILED = re.compile(r"failed at position \d+", re.IGNORECASE)
_BEHIND = re.compile(
    rf"(?: \((?!line \d)(?P<token>.*?)\)(?= {_PLACE}|: ))?(?P<place>(?: {_PLACE})?: )", re.DOTALL
)
_END = re.compile(
    r"\.(?=\s+(?:Maybe you meant|Expected|Unmatched|\.|\(SYNTAX_ERROR)|\s*\Z)", re.IGNORECASE | re.DOTALL
)
_A_VALUE_WAS_EXPECTED = re.compile(
    r"(?:\bExpected(?: one of)?:?|,)\s*(?:string literal|string|literal|ParserString\w*|substitution|Equals"
    r"|BY|KEY|(?:NOT )?IDENTIFIED\w*|\w*(?:PASSWORD|HASH))\s*(?:[,.]|\Z)",
    re.IGNORECASE,
)
_QUOTE = re.compile(r"['\"`$]|/\*")
_NOTHING_MORE = re.compile(rf"(?:[\s()\[\],;.=']|{re.escape(HIDDEN)})*+")
_SHORT = 100


def hide_in_syntax_errors(text: str) -> str:
    """`text` with what syntax errors in it quote of statements hidden, as far as it may be secret. Whatever
    else is in it stays as it is."""
    found = list(_FAILED.finditer(text))
    if not found:
        return text
    starts = [this.start() for this in found]
    pieces = [text[: starts[0]]]
    for this, until in zip(found, [*starts[1:], len(text)], strict=True):
        # Each is looked at as far as to the next: however many there are, that takes no longer than the text.
        pieces += [this.group(), _behind(text[this.end() : until], is_not_closed=_is_not_closed(text, this))]
    return "".join(pieces)


def _is_not_closed(text: str, this: re.Match[str]) -> bool:
    """`Single quoted string is not closed: Syntax error: failed at …`"""
    return "is not closed" in text[max(0, this.start() - _SHORT) : this.start()]


def _behind(text: str, *, is_not_closed: bool) -> str:
    match = _BEHIND.match(text)
    if match is None:
        return text
    end = _END.search(text, match.end())
    statement = text[match.end() : len(text) if end is None else end.start()]
    said = text[match.end() + len(statement) :]
    if is_not_closed or "is not closed" in said or _A_VALUE_WAS_EXPECTED.search(said):
        shown = HIDDEN if statement.strip() else statement
    else:
        shown = _shown(statement)
    token = match["token"]
    if token is not None:
        token = f" ({token if _is_harmless(token, shown) else HIDDEN})"
    return f"{token or ''}{match['place']}{shown}{said}"


def _shown(statement: str) -> str:
    """Up to the first word that looks like that of a secret, or to a quote that nothing closes."""
    suspicious = SUSPICIOUS.search(statement)
    ends = [] if suspicious is None else [_end_of_word(statement, suspicious.start())]
    try:
        for _ in scan(statement):
            pass
    except SqlError:
        quote = _QUOTE.search(statement)
        ends.append(len(statement) if quote is None else quote.start())
    end = min(ends, default=len(statement))
    is_harmless = _NOTHING_MORE.fullmatch(statement, end) is not None
    return statement if is_harmless else f"{statement[:end].rstrip()} {HIDDEN}".lstrip()


def _end_of_word(text: str, start: int) -> int:
    at = start
    while at < len(text) and (text[at].isalnum() or text[at] == "_"):
        at += 1
    return at


def _is_harmless(token: str, shown: str) -> bool:
    return token == "end of query" or (HIDDEN not in token and shown.startswith(token))
