"""Connections that one INSERT or SELECT leaves to the next with the same settings.

To connect, choose a database, set what holds for the statement and close again takes a tenth of the processor
time of an INSERT of one row, a quarter of that of a small SELECT, and more of the time that passes. Neither
leaves anything behind in its connection, so nobody can tell it from a fresh one; a connection in which
something has failed is closed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from engine.names import quote_identifier
from engine.storage.scope import set_statement
from engine.storage.statement_text import sendable

_MOST = 8

_Key = tuple[str, frozenset[tuple[str, str]]]


class IdleConnections:
    """Of one pool; called on worker threads."""

    def __init__(self) -> None:
        self._idle: list[tuple[_Key, Any]] = []
        """The one that was used last stands last."""
        self._lock = threading.Lock()
        self._is_closed = False

    @contextmanager
    def use(self, connect: Callable[[], Any], database: str, settings: Mapping[str, str]) -> Iterator[Any]:
        """A connection for one statement, with `database` (if it is not empty) and `settings`; nobody else
        has it. Of its settings the caller may change those that it changes each time, and nothing else. What
        is raised in the block closes it."""
        key = (database, frozenset(settings.items()))
        connection = self._take(key)
        is_new = connection is None
        if connection is None:
            connection = connect()
        try:
            if is_new and database:
                connection.query(sendable(f"USE {quote_identifier(database)}"))
            if is_new and settings:
                connection.query(sendable(set_statement(settings)))
            yield connection
        except BaseException:  # whatever it is: nobody else gets it
            connection.close()
            raise
        self._give(key, connection)

    def _take(self, key: _Key) -> Any | None:
        with self._lock:
            for at in range(len(self._idle) - 1, -1, -1):
                if self._idle[at][0] == key:
                    return self._idle.pop(at)[1]
        return None

    def _give(self, key: _Key, connection: Any) -> None:
        """The one that nobody has used for longest goes when there are too many."""
        with self._lock:
            surplus = connection
            if not self._is_closed:
                self._idle.append((key, connection))
                surplus = self._idle.pop(0)[1] if len(self._idle) > _MOST else None
        if surplus is not None:
            surplus.close()

    def close(self) -> None:
        """Close all, and whatever comes back later."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()
