"""Ends a merge that runs in chDB: KILL QUERY of the OPTIMIZE that makes it has no effect on it (26.9).

SYSTEM STOP MERGES of its scratch table has, and the table goes then. A merge that has not begun will not.
"""

from __future__ import annotations

import threading

from engine.errors import Code, SqlError
from engine.names import TableName


class MergeStop:
    """Of one merge. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._table: TableName | None = None
        self._is_stopped = False

    def begins_in(self, table: TableName) -> None:
        """Raises SqlError 236 when it was stopped."""
        with self._lock:
            if self._is_stopped:
                raise SqlError(Code.ABORTED, f"Cancelled merging parts in {table}")
            self._table = table

    def stop(self) -> TableName | None:
        """The table whose merges have to be stopped; None if it has not begun, and will not."""
        with self._lock:
            self._is_stopped = True
            return self._table
