"""The rows of an INSERT on their way into chDB: cut to pieces on the event loop, handed over by a thread."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from engine.storage.insert_failures import InsertFailures, Mark
from engine.storage.insert_whole import fits_whole, insert_whole
from engine.storage.statement_text import sendable

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


class PiecedInsert:
    """An INSERT that gets its rows piece by piece. Calls are made on worker threads, one at a time: `begin`,
    any number of `append`, `finish`; and `abort` when one of them has failed or is not going to come; or
    `whole` alone. `connected` gives a connection, and a clause for the end of `head`; `connect` another
    connection. `settings` are those of the statement beside its text."""

    def __init__(
        self,
        connected: AbstractContextManager[tuple[Any, str]],
        head: str,
        format: str,
        *,
        connect: Callable[[], Any],
        failures: InsertFailures,
        settings: Mapping[str, str],
    ) -> None:
        self._connected = connected
        self._head = head
        self._format = format
        self._connect = connect
        self._failures = failures
        self._settings = settings
        self._stack = contextlib.ExitStack()
        self._connection: Any = None
        self._handle: Any = None
        self._mark = Mark(0, 0, {})

    def begin(self, piece: list[bytes]) -> None:
        """Connect, and hand over the first rows."""
        self._connection, clause = self._stack.enter_context(self._connected)
        self._mark = self._failures.mark(self._connection)
        self._handle = self._connection.send_insert(sendable(self._head + clause), self._format)
        self.append(piece)

    def append(self, piece: list[bytes]) -> None:
        """Small chunks, such as a client's rows one by one, are cheaper joined."""
        if len(piece) > 1 and len(piece[0]) < _SMALL_BYTES:
            piece = [b"".join(piece)]
        for chunk in piece:
            if chunk:
                self._connection.insert_append(self._handle, chunk)

    def finish(self) -> Any:
        """chDB's account of what was written. Raises RuntimeError and SqlError."""
        handle, self._handle = self._handle, None
        result = self._connection.insert_done(handle)
        self._failures.require_none_since(self._mark, self._connect)
        self._stack.close()
        return result

    def whole(self, piece: list[bytes]) -> Any:
        """All of it at once. Raises as `finish`."""
        if piece and fits_whole(self._head, self._settings):
            with self._connected as (connection, clause), self._failures.told():
                return insert_whole(connection, self._head, clause, self._format, piece)
        try:
            self.begin(piece)
            return self.finish()
        except BaseException as error:  # whatever it is: half an INSERT must not stay open
            self.abort(error)
            raise

    def abort(self, error: BaseException) -> None:
        """Write no more, and give the connection up. After `finish` it does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            with contextlib.suppress(RuntimeError):  # chDB may have ended the insert itself
                self._connection.insert_cancel(handle)
        self._stack.__exit__(type(error), error, error.__traceback__)
