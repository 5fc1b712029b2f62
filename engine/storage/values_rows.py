"""Rows in the format Values on their way into chDB: a semicolon ends them.

What stands behind it is refused here, as in ClickHouse: chDB may leave it unread. One within a string, a
quoted name or a comment ends nothing, as for chDB's lexer. What else rows hold is for chDB to take or refuse;
of its functions none reads files (`shadowed_functions`).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from engine.errors import Code, SqlError

_OPENING = re.compile(rb"['`\";]|--|#[ !]|/\*|\$\w{0,62}\$|\xe2\x80(?:\x98|\x9c)", re.ASCII)
_BEGUN = re.compile(rb"(?:[-#/]|[\w$]{1,126}|\xe2\x80?)\Z", re.ASCII)
"""What the next bytes may make an opening of, at the end of a piece."""
_LONGEST = 126
_DOLLAR = ord("$")
_IN_WORD = re.compile(rb"[\w$]", re.ASCII)
_UP_TO_QUOTE = {quote: re.compile(rb"(?:[^%b\\]|\\.)*+" % quote, re.DOTALL) for quote in (b"'", b"`", b'"')}
_CLOSING = {
    b"--": b"\n",
    b"# ": b"\n",
    b"#!": b"\n",
    b"/*": b"*/",
    b"\xe2\x80\x98": b"\xe2\x80\x99",
    b"\xe2\x80\x9c": b"\xe2\x80\x9d",
}
"""By what ends what each of these begins; a heredoc ends as it begins."""


async def up_to_semicolon(rows: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same rows. Raises SqlError 33 where something stands behind a semicolon."""
    rest, open_with, is_over = b"", b"", False
    async for chunk in rows:
        if is_over:
            _check_behind(chunk)
            continue
        data = rest + chunk
        at, open_with = _scan(data, open_with)
        is_over = not open_with and data[at : at + 1] == b";"
        if is_over:
            _check_behind(data[at + 1 :])
        rest = b"" if is_over else data[at:]
        yield data[:at]
    if rest:
        yield rest


def _check_behind(data: bytes) -> None:
    if data.strip():
        raise SqlError(Code.CANNOT_READ_ALL_DATA, "Cannot read data after semicolon")


def _scan(data: bytes, open_with: bytes) -> tuple[int, bytes]:
    """How far `data`, which begins within what `open_with` has opened, is understood: to a semicolon that
    ends the rows, or to what the next bytes may go on with. And within what that is."""
    at = 0
    while True:
        if open_with:
            at, is_closed = _closed(data, at, open_with)
            if not is_closed:
                return at, open_with
        opening = _opening(data, at)
        if opening is None:
            begun = _BEGUN.search(data, max(at, len(data) - _LONGEST))
            return (len(data) if begun is None else begun.start()), b""
        if opening.group() == b";":
            return opening.start(), b""
        at, open_with = opening.end(), opening.group()


def _opening(data: bytes, at: int) -> re.Match[bytes] | None:
    """The next one. A dollar sign within a word is a part of that."""
    found = _OPENING.search(data, at)
    while found is not None and _is_in_word(data, at, found.start()):
        found = _OPENING.search(data, found.start() + 1)
    return found


def _is_in_word(data: bytes, begin: int, at: int) -> bool:
    return data[at] == _DOLLAR and at > begin and _IN_WORD.match(data, at - 1) is not None


def _closed(data: bytes, at: int, open_with: bytes) -> tuple[int, bool]:
    """Behind what closes it; else how far that is certainly not."""
    up_to_quote = _UP_TO_QUOTE.get(open_with)
    if up_to_quote is not None:
        text = up_to_quote.match(data, at)
        assert text is not None
        at = text.end()
        return (at + 1, True) if data[at : at + 1] == open_with else (at, False)
    closing = _CLOSING.get(open_with, open_with)
    end = data.find(closing, at)
    if end >= 0:
        return end + len(closing), True
    return max(at, len(data) - len(closing) + 1), False
