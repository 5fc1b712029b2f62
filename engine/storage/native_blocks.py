"""Blocks in the format Native as a revision of ClickHouse's protocol has them.

A client that names one (`client_protocol_version`) finds in each block what servers of that revision put
there: something about the block in front of it, time zones in the names of types, a byte for each column's
encoding. chDB writes none of it, and where a column ends in what it writes only a reader of all types can
tell. So it writes the format Buffers, which has the same columns with their lengths, and their names and
types are asked for before:

    number of columns | number of rows | length of a column | the column | length of the next | …

all numbers of 8 bytes. Source: ClickHouse's NativeWriter, BuffersWriter and ProtocolDefines.h.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.errors import Code, SqlError
from engine.storage.statement_text import sendable

FORMAT = "Buffers"
"""What chDB has to write."""

_WITH_TIME_ZONES = 54337
_WITH_ENCODINGS = 54454
_WITH_BUCKETS_OUT_OF_ORDER = 54480
_NUMBER = struct.Struct("<Q")
_INFO = b"\1\0" + b"\2\xff\xff\xff\xff"
"""Not of rows beyond a limit; of no bucket."""
_NO_BUCKETS = b"\3\0"
_END_OF_INFO = b"\0"
_PLAIN = b"\0"
_LIMITS = (Code.TOO_DEEP_AST, Code.TOO_BIG_AST, Code.TOO_MANY_ROWS_OR_BYTES)
_LINE_BREAK = re.compile(r"([(,])\n +")
"""In the name of a type as DESCRIBE shows it (`print_pretty_type_names`); those within names are escaped."""


class NativeBlocks:
    """Makes Native of Buffers, piece by piece; once `is_done`, what comes is that already."""

    def __init__(self, revision: int) -> None:
        self.revision = revision
        self.is_done = False
        self._heads: list[bytes] = []
        self._begun = bytearray()
        """Of a number, of which not all bytes are there."""
        self._wanted = 2
        """Numbers that come next: those of a block, or the length of a column."""
        self._left_in_column = 0
        self._next_column = 0

    @property
    def has_columns(self) -> bool:
        return bool(self._heads)

    def expect(self, columns: Sequence[tuple[bytes, bytes]]) -> None:
        """The names and types of what will be put."""
        self._heads = [self._head(name, type_) for name, type_ in columns]

    def put(self, data: bytes) -> bytes:
        """The next piece. Raises SqlError for columns that nobody has told of."""
        if self.is_done:
            return data
        out: list[bytes] = []
        view = memoryview(data)
        while view:
            if self._left_in_column:
                piece, view = view[: self._left_in_column], view[self._left_in_column :]
                self._left_in_column -= len(piece)
                out.append(bytes(piece))
                continue
            missing = self._wanted * _NUMBER.size - len(self._begun)
            self._begun += view[:missing]
            view = view[missing:]
            if len(self._begun) == self._wanted * _NUMBER.size:
                out.append(self._numbers())
        return b"".join(out)

    def _numbers(self) -> bytes:
        numbers = [number for (number,) in _NUMBER.iter_unpack(self._begun)]
        self._begun.clear()
        if self._wanted == 2:
            columns, rows = numbers
            if columns != len(self._heads):
                raise SqlError(
                    Code.LOGICAL_ERROR, f"A block has {columns} columns, and {len(self._heads)} were told of"
                )
            self._wanted = 1 if columns else 2
            return self._info() + _varint(columns) + _varint(rows)
        (self._left_in_column,) = numbers
        head = self._heads[self._next_column]
        self._next_column = (self._next_column + 1) % len(self._heads)
        self._wanted = 1 if self._next_column else 2
        return head

    def _info(self) -> bytes:
        return _INFO + (_NO_BUCKETS if self.revision >= _WITH_BUCKETS_OUT_OF_ORDER else b"") + _END_OF_INFO

    def _head(self, name: bytes, type_: bytes) -> bytes:
        if self.revision < _WITH_TIME_ZONES and type_.startswith(b"DateTime("):
            type_ = b"DateTime"
        encoding = _PLAIN if self.revision >= _WITH_ENCODINGS else b""
        return _varint(len(name)) + name + _varint(len(type_)) + type_ + encoding


def _on_one_line(found: re.Match[str]) -> str:
    return ", " if found[1] == "," else "("


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def described_columns(connection: Any, describe: str, params: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """What a statement DESCRIBE answers: names and types. Raises RuntimeError."""
    answer = connection.query(sendable(describe), "JSONCompactEachRowWithNames", params=dict(params)).bytes()
    names, *rows = (
        json.loads(line.decode("utf-8", "surrogateescape")) for line in answer.split(b"\n") if line
    )
    found = [dict(zip(names, row, strict=True)) for row in rows]
    return [
        (_bytes(column["name"]), _bytes(_LINE_BREAK.sub(_on_one_line, column["type"])))
        for column in found
        if not column.get("is_subcolumn")
    ]


def is_beyond_limits(error: Exception) -> bool:
    """A DESCRIBE has failed where the statement that it describes may not: it has a row for each column."""
    return str(error).startswith(tuple(f"Code: {code}." for code in _LIMITS))


def of_revision(connect: Callable[[], Any], data: bytes, revision: int) -> bytes:
    """Blocks that chDB has written in Native, as the revision has them. They are few: their bytes stand in a
    statement, which has a connection without limits. Raises RuntimeError."""
    if not data:
        return b""
    blocks = NativeBlocks(revision)
    select = f"SELECT * FROM format(Native, unhex('{data.hex()}'))"
    connection = connect()
    try:
        connection.query("SET max_query_size = 0")
        blocks.expect(described_columns(connection, f"DESCRIBE TABLE ({select})", {}))
        return blocks.put(connection.query(select, FORMAT).bytes())
    finally:
        connection.close()
