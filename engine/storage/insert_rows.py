"""The rows of an INSERT on their way into chDB: as a file in memory if they are few, as a pipe if not."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from engine.storage.insert_text import InsertHead
from engine.storage.statement_text import sendable

FEW_BYTES = 1 << 20
_SMALL_BYTES = 64 << 10
_ROWS = "_oncluster_rows"
_UNKNOWN = "UNKNOWN_IDENTIFIER"
_IN_FILE = "While executing File"
"""Where an error comes from; nothing is written then."""
_WHERE = re.compile(
    r": \(in file/uri /proc/self/fd/\d+\)|: While executing File: data for INSERT was parsed from file"
)


async def in_pieces(chunks: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    """The same bytes in pieces of at least `FEW_BYTES`, but for the last one. Small chunks are joined, such
    as a client's rows one by one."""
    held: list[bytes] = []
    size = 0
    async for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size >= FEW_BYTES:
            yield held if len(held[0]) >= _SMALL_BYTES else [b"".join(held)]
            held, size = [], 0
    if size:
        yield held


@contextmanager
def in_memory(rows: list[bytes]) -> Iterator[str]:
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


def insert_file(
    connection: Any,
    clause: str,
    *,
    head: InsertHead,
    path: str,
    format: str,
    params: dict[str, str],
    is_pipe: bool,
) -> Any:
    """Run the INSERT with the rows of the file: chDB's account of what was written. `clause` are settings for
    a statement without any of its own. Raises RuntimeError, with no word of the file."""

    def ask(sql: str) -> bytes:
        rows: bytes = connection.query(sendable(sql), "JSONCompactEachRow").bytes()
        return rows

    def run(sql: str) -> Any:
        return connection.query(sendable(sql), "Null", params=params)

    def by_way_of_table() -> Any:
        create, fill, copy = head.by_way_of(_ROWS, path, format, clause, ask)
        run(create)
        try:
            run(fill)
            return run(copy)
        finally:
            run(f"DROP TEMPORARY TABLE {_ROWS}")

    is_read_once = is_pipe or head.may_cut_few
    try:
        if head.takes_materialized or (is_read_once and head.leans_on_others(ask)):
            return by_way_of_table()
        try:
            return run(head.reading(path, format, clause, ask))
        except RuntimeError as error:
            is_about_rows = _UNKNOWN in str(error) and _IN_FILE in str(error)
            if is_read_once or not is_about_rows or not head.leans_on_others(ask):
                raise
        return by_way_of_table()
    except RuntimeError as error:
        raise RuntimeError(_WHERE.sub("", str(error))) from None
