"""Rows in the format Values on their way into chDB: expressions may stand in them, but none over files.

A semicolon ends them. What stands behind it is refused here, as in ClickHouse: chDB may leave it unread.

What is text to chDB must be text here: outside its strings there is nothing in such rows that could hold a
quote, no comment, no quoted name. Where there is, the rows are refused.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from engine.errors import Code, SqlError
from engine.storage.guard import denied

_SPECIAL = re.compile(
    rb"'|(?<![A-Za-z0-9_])file(?![A-Za-z0-9_])|[`\"$#\\;]|/\*|--|\xe2\x80(?:\x98|\x9c)|[xX]'|[bB]'"
)
_IN_STRING = re.compile(rb"(?:[^'\\]|\\.)*+", re.DOTALL)
_MAY_GO_ON = re.compile(rb"[A-Za-z0-9_/\-\xe2\x80]*\Z")
_LONGEST = 64
"""A word of so many letters is none that matters."""


async def without_files(rows: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same rows. Raises SqlError 497 where they call `file`, 62 where they could hide what they call."""
    rest, is_text, is_over = b"", False, False
    async for chunk in rows:
        if is_over:
            _check_behind(chunk)
            continue
        data = rest + chunk
        at, is_text = _scan(data, is_text=is_text, is_all=False)
        if not is_text and data[at : at + 1] == b";":
            is_over, rest = True, b""
            _check_behind(data[at + 1 :])
        else:
            rest = data[at:]
        yield data[:at]
    if not is_over:
        at, is_text = _scan(rest, is_text=is_text, is_all=True)
        if not is_text and rest[at : at + 1] == b";":
            _check_behind(rest[at + 1 :])
            rest = rest[:at]
        yield rest


def _check_behind(data: bytes) -> None:
    if data.strip():
        raise SqlError(Code.CANNOT_READ_ALL_DATA, "Cannot read data after semicolon")


def _scan(data: bytes, *, is_text: bool, is_all: bool) -> tuple[int, bool]:
    """How far `data` is known to be harmless, and whether that ends within a string. It ends where
    a semicolon ends the rows."""
    at, end = 0, len(data)
    if not is_all and (open_end := _MAY_GO_ON.search(data, max(0, end - _LONGEST))) is not None:
        end = open_end.start()
    while True:
        if is_text:
            text = _IN_STRING.match(data, at)
            assert text is not None
            at = text.end()
            if data[at : at + 1] != b"'":
                return at, True  # nothing is left, or a backslash
            at, is_text = at + 1, False
        special = _SPECIAL.search(data, at)
        if special is None or (special.group() == b"file" and special.start() >= end):
            return max(at, end), False
        if special.group() == b"file":
            raise denied("Function file")
        if special.group() == b";":
            return special.start(), False
        if not special.group().endswith(b"'"):
            raise SqlError(
                Code.SYNTAX_ERROR,
                f"Rows of VALUES hold literals and calls, but no {special.group().decode()} outside strings",
            )
        at, is_text = special.end(), True
