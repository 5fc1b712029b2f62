"""The rows of an INSERT on their way into chDB: cut to pieces on the event loop, handed over by a thread."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

PIECE_BYTES = 1 << 20
"""Of the rows of an insert, as they are handed over; each handing over is a change of thread."""
_SMALL_BYTES = 64 << 10


async def in_pieces(chunks: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    """The same bytes in pieces of at least `PIECE_BYTES`, but for the last one. Chunks are not joined."""
    held: list[bytes] = []
    size = 0
    async for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size >= PIECE_BYTES:
            yield held
            held, size = [], 0
    if size:
        yield held


def append(connection: Any, handle: Any, piece: list[bytes]) -> None:
    """Small chunks, such as a client's rows one by one, are cheaper joined."""
    if len(piece) > 1 and len(piece[0]) < _SMALL_BYTES:
        piece = [b"".join(piece)]
    for chunk in piece:
        if chunk:
            connection.insert_append(handle, chunk)


def insert_whole(connection: Any, head: str, format: str, data: list[bytes]) -> Any:
    handle = connection.send_insert(head, format)
    try:
        append(connection, handle, data)
    except BaseException:  # whatever it is: half an INSERT must not stay open
        cancel(connection, handle)
        raise
    return connection.insert_done(handle)


def cancel(connection: Any, handle: Any) -> None:
    with contextlib.suppress(RuntimeError):  # chDB may have ended the insert itself
        connection.insert_cancel(handle)
