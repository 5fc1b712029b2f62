"""The escaped text that ClickHouse writes into the queue, and a reader for it.

Strings are Python text; bytes that are not UTF-8 travel as surrogate escapes, so that reading and writing
again never changes a byte. Source: the TSV escaping of ClickHouse's ReadHelpers and WriteHelpers;
error codes as real servers wrote them into `finished/`.
"""

from __future__ import annotations

import re

from engine.errors import Code, MalformedEntry
from engine.names import STRING_ESCAPES
from engine.sql.tokens import ESCAPES

_ESCAPED = re.compile(r"[\b\f\n\r\t\0\\']")
_PLAIN_AFTER_BACKSLASH = frozenset("\\'`\"/")
_ESCAPE_SEQUENCE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|(.))", re.DOTALL)
_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL)
_INTEGER = re.compile(r"[+-]?\d+")
_NOT_STORABLE = re.compile("[\0\ud800-\udfff]")
_SHOWN_CHARS = 60


def decode_bytes(data: bytes) -> str:
    """Bytes of a znode as text that `encode_bytes` turns back into the same bytes."""
    return data.decode("utf-8", "surrogateescape")


def encode_bytes(text: str) -> bytes:
    """The inverse of `decode_bytes`."""
    return text.encode("utf-8", "surrogateescape")


def storable(text: str) -> str:
    """Text for people that every database, JSON and log takes: what is no UTF-8, and NUL, is replaced."""
    return _NOT_STORABLE.sub("\ufffd", text)


def escape(text: str) -> str:
    """The escaping of queries and status messages: control characters, backslash and the single quote."""
    return _ESCAPED.sub(lambda match: STRING_ESCAPES[match.group()], text)


def unescape(text: str) -> str:
    """The inverse. An unknown sequence such as `\\d` keeps its backslash, as ClickHouse's reader does.

    Raises MalformedEntry 27 for a backslash with nothing after it.
    """
    if "\\" not in text:
        return text
    if text.endswith("\\") and (len(text) - len(text.rstrip("\\"))) % 2:
        raise MalformedEntry(
            "Cannot parse escape sequence at end of line", code=Code.CANNOT_PARSE_INPUT_ASSERTION_FAILED
        )
    return _ESCAPE_SEQUENCE.sub(_unescape_one, text)


def _unescape_one(match: re.Match[str]) -> str:
    if match.group(1) is not None:
        return decode_bytes(bytes([int(match.group(1), 16)]))
    char = match.group(2)
    if char in ESCAPES:
        return ESCAPES[char]
    if char == "N":
        return ""
    return char if char in _PLAIN_AFTER_BACKSLASH else "\\" + char


def string_array(items: tuple[str, ...]) -> str:
    """The text form of Array(String): `['a','b']`."""
    return "[" + ",".join(f"'{escape(item)}'" for item in items) + "]"


class TextReader:
    """Reads one znode's text from left to right; every failure is a MalformedEntry with ClickHouse's code."""

    def __init__(self, text: str, *, where: str = "") -> None:
        self._text = text
        self._at = 0
        self._where = where

    @property
    def at_end(self) -> bool:
        return self._at >= len(self._text)

    def peek(self) -> str:
        """The next character, empty at the end."""
        return self._text[self._at : self._at + 1]

    def expect(self, literal: str) -> None:
        """Raises MalformedEntry 27 unless the text goes on with `literal`."""
        if not self._text.startswith(literal, self._at):
            raise self.error(f"expected {escape(literal)}")
        self._at += len(literal)

    def integer(self) -> int:
        """A signed decimal number. Raises MalformedEntry 27."""
        match = _INTEGER.match(self._text, self._at)
        if not match or len(match.group()) > 20:
            raise self.error("expected a number")
        self._at = match.end()
        return int(match.group())

    def escaped(self) -> str:
        """An escaped string: up to, and without, the next raw TAB or LF."""
        return unescape(self.raw())

    def raw(self) -> str:
        """Text as it stands up to, and without, the next TAB or LF."""
        line_end = self._text.find("\n", self._at)
        line_end = len(self._text) if line_end < 0 else line_end
        tab = self._text.find("\t", self._at, line_end)
        end = line_end if tab < 0 else tab
        text = self._text[self._at : end]
        self._at = end
        return text

    def strings(self) -> tuple[str, ...]:
        """The text form of Array(String). Raises MalformedEntry 26 for an item that is not single-quoted."""
        self.expect("[")
        items: list[str] = []
        while self.peek() != "]":
            if items:
                self.expect(",")
            match = _QUOTED.match(self._text, self._at)
            if not match:
                raise self.error(
                    "Cannot parse quoted string: expected opening quote", code=Code.CANNOT_PARSE_QUOTED_STRING
                )
            items.append(unescape(match.group(1)))
            self._at = match.end()
        self.expect("]")
        return tuple(items)

    def end(self) -> None:
        """Raises MalformedEntry 27 when anything is left."""
        if not self.at_end:
            raise self.error("expected end of text")

    def error(self, message: str, *, code: Code = Code.CANNOT_PARSE_INPUT_ASSERTION_FAILED) -> MalformedEntry:
        """The error for the present position."""
        if code is Code.CANNOT_PARSE_INPUT_ASSERTION_FAILED:
            rest = self._text[self._at : self._at + _SHOWN_CHARS]
            place = f" before: {escape(rest)}" if rest else " at end of stream."
            message = f"Cannot parse input: {message}{place}"
        return MalformedEntry(message, where=self._where, code=code)
