"""An INSERT of which all rows are there: chDB reads them from a file in memory, and raises whatever fails.

Rows that are handed over piece by piece fail in silence when they cannot be written (`insert_failures`), and
those that stand in a statement's text could go on with another statement. `FROM INFILE` has neither, but it
reads blocks of its own size, and finds no columns by a pattern and none that is MATERIALIZED.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from engine.names import quote_string
from engine.sql.tokens import Token, TokenKind, scan
from engine.storage.statement_text import sendable

_ELSEWISE = ("max_insert_block_size", "max_insert_block_size_rows", "insert_allow_materialized_columns")
_WHERE = re.compile(
    r": \(in file/uri /proc/self/fd/\d+\)|: While executing File: data for INSERT was parsed from file"
)
_OPEN, _CLOSE = frozenset("([{"), frozenset(")]}")


def fits_whole(head: str, settings: Mapping[str, str]) -> bool:
    """Whether INFILE does the same as an INSERT does whose rows are handed over."""
    said = {*settings, *(token.text.strip('`"') for token in _words(head))}
    return not said.intersection(_ELSEWISE) and not any(token.text == "*" for token in scan(head))


def insert_whole(connection: Any, head: str, clause: str, format: str, rows: list[bytes]) -> Any:
    """chDB's account of what was written. `clause` is what stands behind `head`. Raises RuntimeError."""
    with _in_memory(rows) as file:
        at = _settings_at(head)
        read = f"\nFROM INFILE {quote_string(file)} COMPRESSION 'none' "
        try:
            return connection.query(
                sendable(f"{head[:at]}{read}{head[at:]}{clause}\nFORMAT {format}"), "Null"
            )
        except RuntimeError as error:
            raise RuntimeError(_WHERE.sub("", str(error))) from None


@contextmanager
def _in_memory(rows: list[bytes]) -> Iterator[str]:
    """A file of these rows, by its path."""
    fd = os.memfd_create("rows")
    try:
        for piece in rows:
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(fd, rest) :]
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _settings_at(head: str) -> int:
    """Where the clause SETTINGS of `INSERT INTO t [(columns)] [SETTINGS …]` begins, or its end."""
    depth = 0
    for token in scan(head):
        depth += (token.text in _OPEN) - (token.text in _CLOSE)
        if not depth and token.kind is TokenKind.WORD and token.text.upper() == "SETTINGS":
            return token.start
    return len(head)


def _words(head: str) -> Iterator[Token]:
    return (token for token in scan(head) if token.kind in (TokenKind.WORD, TokenKind.IDENTIFIER))
