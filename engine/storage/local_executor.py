"""chDB as what the DDL queue's worker runs statements on.

It has threads of its own: however many requests a node serves, statements of the queue are not kept waiting.
A statement's effect is on disk when `execute` returns: chDB forces metadata to disk, and inserted parts, too,
if `ChdbSettings.fsync` says so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from engine.ddl.executor import Fingerprint
from engine.names import TableName, quote_string
from engine.sql import Statement, parse_statement
from engine.storage.chdb_pool import ChdbPool
from engine.storage.chdb_session import ChdbSession
from engine.storage.fingerprint import READER_SETTINGS, read_fingerprint
from engine.storage.guard import check_statement
from engine.storage.scope import Scope

_REPLICATING = ("Replicated", "Shared")


class ChdbExecutor:
    """Implements `engine.ddl.executor.LocalExecutor`. `lanes` statements may run at once."""

    def __init__(self, pool: ChdbPool, *, lanes: int = 1) -> None:
        self._threads = pool.reserve(lanes + 1)
        self._idle: list[ChdbSession] = []
        self._reader = ChdbSession(self._threads, settings=READER_SETTINGS)

    async def execute(
        self, sql: str, *, settings: Mapping[str, str], query_id: str, initial_query_id: str, user: str
    ) -> None:
        """Run one statement to its end. Raises SqlError; the statement had no effect then.

        `user` and the query ids are for the log; chDB has one user and makes its own ids.
        """
        check_statement(parse_statement(sql))
        async with self._session() as session:
            await session.query(sql, format="Null", scope=Scope(settings=settings))

    async def table_engine(self, table: TableName) -> str | None:
        """None if there is no such table. An empty database is `default`."""
        found = await self._reader.query(
            "SELECT engine FROM system.tables WHERE database = {database:String} AND name = {table:String}",
            format="TSVRaw",
            params={"database": table.database or "default", "table": table.table},
        )
        return found.text.strip() or None

    def supports_replication(self, engine: str) -> bool:
        """By name, as ClickHouse's engines have it."""
        return engine.startswith(_REPLICATING)

    async def definition_digest(self, statement: Statement, database: str) -> str:
        """A `Fingerprint` as text; empty where it cannot be told, or need not."""
        found: Fingerprint | None = await read_fingerprint(self._reader, statement, database or "default")
        return "" if found is None else found.to_text()

    async def validate(self, sql: str) -> str:
        """The real parser's one line. Raises SqlError 62."""
        formatted = await self._reader.query(
            f"SELECT formatQuerySingleLine({quote_string(sql)})", format="TSVRaw"
        )
        return formatted.text.rstrip("\n")

    async def close(self) -> None:
        """Close what is idle; call it when nothing runs any more."""
        for session in (self._reader, *self._idle):
            await session.close()
        self._idle.clear()

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[ChdbSession]:
        """A session nobody else uses. Connections are kept: opening one costs a third of a statement."""
        session = self._idle.pop() if self._idle else ChdbSession(self._threads)
        try:
            yield session
        finally:
            if session.is_over:
                await session.close()
            else:
                self._idle.append(session)
