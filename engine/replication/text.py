"""What the text formats of a replicated table have in common beyond those of the DDL queue."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from typing import TypeVar

from engine.ddl.text import TextReader, decode_bytes, encode_bytes, escape
from engine.errors import Code, MalformedEntry, SqlError
from engine.replication.part_name import PartName, is_partition_id

__all__ = [
    "FormatReader",
    "MalformedEntry",
    "decode_bytes",
    "encode_bytes",
    "escape",
    "time_text",
]

T = TypeVar("T")

_TIME = re.compile(r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}\Z", re.ASCII)
_MAX_COUNT = 1_000_000
"""A declared count above it is damage: a znode has room for one megabyte."""


def time_text(unix_s: float, zone: tzinfo = UTC) -> str:
    """`YYYY-MM-DD hh:mm:ss` as it stands in entries: wall time of the writer, its zone is not recorded."""
    return datetime.fromtimestamp(unix_s, zone).strftime("%Y-%m-%d %H:%M:%S")


def _is_in_calendar(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


class FormatReader(TextReader):
    """A TextReader with the forms of §3. Every failure is a MalformedEntry that says `where`."""

    @classmethod
    def of(cls, data: bytes, *, where: str) -> FormatReader:
        return cls(decode_bytes(data), where=where)

    def error(self, message: str, *, code: Code = Code.CANNOT_PARSE_INPUT_ASSERTION_FAILED) -> MalformedEntry:
        """As ClickHouse words it, and where: what a table stands still at has to be found and mended. In
        words that can be logged and shown, whatever the bytes are."""
        found = super().error(message, code=code)
        text = f"{found.message} (in {self._where})" if self._where else found.message
        shown = text.encode(errors="backslashreplace").decode()
        return MalformedEntry(shown, where=self._where, code=found.code)

    def accept(self, literal: str) -> bool:
        """Step over `literal` if it comes next."""
        if not self._text.startswith(literal, self._at):
            return False
        self._at += len(literal)
        return True

    def line(self, prefix: str, value: Callable[[], T]) -> T:
        """`<prefix><value>\\n`; `value` is a method of this reader."""
        self.expect(prefix)
        result = value()
        self.expect("\n")
        return result

    def unsigned(self) -> int:
        """A decimal number without sign."""
        if not self.peek().isdigit():
            raise self.error("expected a number")
        return self.integer()

    def count(self) -> int:
        """How many things follow; bounded, because it comes from elsewhere."""
        number = self.unsigned()
        if number > _MAX_COUNT:
            raise self.error(f"a count of {number} cannot be")
        return number

    def flag(self) -> bool:
        """`0` or `1`."""
        if self.peek() not in ("0", "1"):
            raise self.error("expected 0 or 1")
        return self.integer() == 1

    def time(self) -> str:
        """`YYYY-MM-DD hh:mm:ss`, kept as text: its zone is not recorded."""
        text = self.raw()
        if not _TIME.match(text) or not _is_in_calendar(text):
            raise self.error(f"expected a time, not {escape(text[:40])}")
        return text

    def word(self) -> str:
        """As `raw`, and not empty."""
        text = self.raw()
        if not text:
            raise self.error("expected a value")
        return text

    def part(self) -> PartName:
        """A part's name. Raises MalformedEntry with code 233 BAD_DATA_PART_NAME."""
        return self.to_part(self.raw())

    def parts(self) -> tuple[PartName, ...]:
        """Part names as the text form of Array(String)."""
        return tuple(self.to_part(text) for text in self.strings())

    def to_part(self, text: str) -> PartName:
        try:
            return PartName.parse(text)
        except SqlError as error:
            raise self.error(error.message, code=Code.BAD_DATA_PART_NAME) from None

    def partition_id(self) -> str:
        text = self.raw()
        if not is_partition_id(text):
            raise self.error(f"expected a partition id, not {escape(text[:40])}")
        return text

    def quoted_list(self) -> tuple[str, ...]:
        """`'a','b'` up to the end of the line."""
        end = self._text.find("\n", self._at)
        end = len(self._text) if end < 0 else end
        # A raw newline cannot stand inside a quoted string here: the writer escapes it.
        inner = FormatReader(f"[{self._text[self._at : end]}]", where=self._where)
        items = inner.strings()
        inner.end()
        self._at = end
        return items

    def sized(self) -> str:
        """`<number of bytes>\\n<bytes>`."""
        size = self.count()
        self.expect("\n")
        rest = encode_bytes(self._text[self._at : self._at + size])[:size]
        if len(rest) != size:
            raise self.error(f"{size} bytes are declared and {len(rest)} are there")
        text = decode_bytes(rest)
        if encode_bytes(text) != rest or not self._text.startswith(text, self._at):
            raise self.error("the declared size cuts a character in two")
        self._at += len(text)
        return text

    def to_line_end(self) -> str:
        """Text as it stands, TABs included, up to and without the next LF."""
        end = self._text.find("\n", self._at)
        end = len(self._text) if end < 0 else end
        text = self._text[self._at : end]
        self._at = end
        return text

    def rest(self) -> str:
        """All that is left."""
        text = self._text[self._at :]
        self._at = len(self._text)
        return text

    def version(self, prefix: str, *, known: range) -> int:
        """A format version's line. Raises MalformedEntry with code 287 for one outside `known`."""
        number = self.line(prefix, self.unsigned)
        if number not in known:
            raise self.error(
                f"Unknown format version {number}; known are {known[0]} to {known[-1]}",
                code=Code.UNKNOWN_FORMAT_VERSION,
            )
        return number
