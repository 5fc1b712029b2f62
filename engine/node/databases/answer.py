"""What a client is answered whose statement went through a Replicated database's log: one row per replica."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from engine.databases import OUTPUT_COLUMNS, ReplicaRow
from engine.ddl import OutputMode
from engine.errors import OnclusterError, SqlError
from engine.node.on_cluster import format_values
from engine.node.replicated.statements import NOTHING
from engine.node.statement import Asked
from engine.storage import QueryResult


class DatabaseAnswer:
    """The rows of all replicas, formatted when the last one is known, and then the error, if any."""

    def __init__(
        self, asked: Asked, rows: AsyncIterator[ReplicaRow], *, mode: OutputMode, format: str, is_empty: bool
    ) -> None:
        self.format = format
        self._asked = asked
        self._rows = rows
        self._is_empty = is_empty or not mode.has_rows
        self._is_read = False
        self._error: OnclusterError | None = None
        self._result = NOTHING

    async def read(self) -> bytes:
        """Waits for the end; gives all rows at once."""
        if self._is_read:
            return b""
        self._is_read = True
        found: list[ReplicaRow] = []

        async def collect() -> None:
            async with aclosing(self._rows) as rows:  # type: ignore[type-var]
                async for row in rows:
                    found.append(row)

        wait = self._asked.wait
        try:
            await (collect() if wait is None else wait.until_killed(collect()))
        except SqlError as error:
            self._error = error
        if self._is_empty:
            return b""
        values = [row.values() for row in found]
        self._result = await format_values(self._asked, OUTPUT_COLUMNS, values, format=self.format)
        return self._result.data

    async def finish(self) -> QueryResult:
        if self._error is not None:
            raise self._error
        return self._result
