"""chDB as what the DDL queue's worker runs statements on.

It has threads of its own: however many requests a node serves, statements of the queue are not kept waiting.
A statement's effect is on disk when `execute` returns: chDB forces metadata to disk, and inserted parts, too,
if `ChdbSettings.fsync` says so.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from engine.ddl.executor import Execution, Fingerprint, Step, Steps
from engine.errors import Code, SqlError, ran_out
from engine.names import TableName, quote_string
from engine.sql import Statement, parse_statement
from engine.storage.chdb_pool import ChdbPool
from engine.storage.chdb_session import ChdbSession
from engine.storage.errors import sql_error
from engine.storage.fingerprint import (
    READER_SETTINGS,
    definitions_of,
    fingerprint_now,
    read_fingerprint,
)
from engine.storage.guard import check_statement
from engine.storage.orphans import set_orphan_aside
from engine.storage.scope import Scope, set_statement
from engine.storage.statement_text import sendable

log = logging.getLogger(__name__)

_DATA_IS_THERE = "Directory for table data "
_REPLICATING = ("Replicated", "Shared")


class ChdbExecutor:
    """Implements `LocalExecutor`, `RecordingExecutor` and `SeriesExecutor`. `lanes` statements may run at
    once."""

    def __init__(self, pool: ChdbPool, *, lanes: int = 1) -> None:
        self._path = pool.path
        self._threads = pool.reserve(lanes + 1)
        self._idle: list[ChdbSession] = []
        self._reader = ChdbSession(self._threads, settings=READER_SETTINGS)
        self._peek: Any = None
        self._peek_lock = threading.Lock()

    async def execute(self, execution: Execution) -> None:
        """Run one statement to its end. Raises SqlError; the statement had no effect then, unless something
        ran out (`engine.ddl.failures.may_have_happened`).

        User and query ids are for the log; chDB has one user and makes its own ids.
        """
        statement = parse_statement(execution.sql)
        check_statement(statement, execution.sql)
        async with self._session() as session:
            scope = Scope(settings=execution.settings)
            try:
                await session.query(execution.sql, format="Null", scope=scope)
            except SqlError as error:
                if not await self._threads.call(partial(self._made_way, statement, error)):
                    raise
                await session.query(execution.sql, format="Null", scope=scope)

    async def execute_recorded(
        self,
        execution: Execution,
        *,
        statement: Statement,
        database: str,
        record: Callable[[str], None],
    ) -> None:
        """`RecordingExecutor`: for CREATE and DROP of tables one change of thread instead of three."""
        tables = definitions_of(statement, database or "default")
        digest = "" if tables is not None else await self._digest_or_nothing(statement, database)

        def before() -> None:
            record(digest if tables is None else self._digest_now(tables))
            check_statement(statement, execution.sql)

        async with self._session() as session:
            scope = Scope(settings=execution.settings)
            try:
                await session.query(execution.sql, format="Null", scope=scope, before=before)
            except SqlError as error:
                if not await self._threads.call(partial(self._made_way, statement, error)):
                    raise
                await session.query(execution.sql, format="Null", scope=scope)

    async def takes_in_series(self, statement: Statement, database: str) -> bool:
        """Not while there are user-defined functions: what a statement needs cannot be told from its text."""
        return definitions_of(statement, database or "default") is not None and not self._has_functions()

    def _has_functions(self) -> bool:
        functions = self._path / "user_defined"
        return functions.is_dir() and any(functions.iterdir())

    async def execute_series(self, steps: Steps, settings: Mapping[str, str]) -> None:
        """`SeriesExecutor`, for CREATE and DROP of tables, on a connection of its own."""
        await self._threads.call(lambda: self._run_series(steps, settings))

    def _run_series(self, steps: Steps, settings: Mapping[str, str]) -> None:
        """On a worker thread."""
        connection = self._threads.connect()
        try:
            if settings:
                connection.query(sendable(set_statement(settings)))
            while taken := steps.take():
                tables = [definitions_of(step.statement, step.database or "default") for step in taken]
                steps.record([self._digest_now(of_step or ()) for of_step in tables])
                for step in taken:
                    check_statement(step.statement, step.execution.sql)
                    with self._threads.disk_reserve.for_statement(step.execution.sql):
                        self._query(connection, step)
                    if not steps.done():
                        return
        except RuntimeError as error:
            raise sql_error(str(error)) from None
        finally:
            connection.close()

    def _query(self, connection: Any, step: Step) -> None:
        try:
            connection.query(sendable(step.execution.sql), "Null")
        except RuntimeError as error:
            if not self._made_way(step.statement, sql_error(str(error))):
                raise
            connection.query(sendable(step.execution.sql), "Null")

    def _made_way(self, statement: Statement, error: SqlError) -> bool:
        """On a worker thread. Whether what a CREATE met was only what an attempt before it has left."""
        return (
            error.code == Code.TABLE_ALREADY_EXISTS
            and statement.uuid is not None
            and error.message.startswith(_DATA_IS_THERE)
            and set_orphan_aside(self._path, statement.uuid.lower())
        )

    def _connected(self, settings: Mapping[str, str]) -> Any:
        """A new connection with these settings. Raises SqlError."""
        connection = self._threads.connect()
        try:
            connection.query(sendable(set_statement(settings)))
        except RuntimeError as error:
            connection.close()
            raise sql_error(str(error)) from None
        return connection

    async def _digest_or_nothing(self, statement: Statement, database: str) -> str:
        try:
            return await self.definition_digest(statement, database)
        except SqlError as error:
            if ran_out(error):
                raise
            log.warning("storage.no_digest kind=%s error=%s", statement.kind, error.message)
            return ""

    def _digest_now(self, tables: Sequence[TableName]) -> str:
        """On a worker thread. Empty when chDB cannot tell; where it can tell in a moment, nothing is begun:
        without a digest nobody would know whether a statement took effect that fails for want of memory."""
        with self._peek_lock:
            try:
                if self._peek is None:
                    self._peek = self._connected(READER_SETTINGS)
                return fingerprint_now(self._peek, tables, path=self._path).to_text()
            except SqlError as error:
                if ran_out(error):
                    raise
                log.warning("storage.no_digest tables=%s error=%s", tables, error.message)
                return ""

    async def table_engine(self, table: TableName) -> str | None:
        """None if there is no such table. An empty database is `default`."""
        found = await self._reader.query(
            f"SELECT engine FROM system.tables WHERE database = {quote_string(table.database or 'default')} "
            f"AND name = {quote_string(table.table)}",
            format="TSVRaw",
        )
        return found.text.strip() or None

    def supports_replication(self, engine: str) -> bool:
        """By name, as ClickHouse's engines have it."""
        return engine.startswith(_REPLICATING)

    async def definition_digest(self, statement: Statement, database: str) -> str:
        """A `Fingerprint` as text; empty where it cannot be told, or need not."""
        found: Fingerprint | None = await read_fingerprint(
            self._reader, statement, database or "default", path=self._path
        )
        return "" if found is None else found.to_text()

    async def validate(self, sql: str) -> str:
        """The real parser's one line. Raises SqlError 62."""
        formatted = await self._reader.query(
            f"SELECT formatQuerySingleLine({quote_string(sql)})", format="TSVRaw"
        )
        return formatted.text.rstrip("\n")

    def new_session(self) -> ChdbSession:
        """A session on the executor's threads, for statements that are not run by `execute`."""
        return ChdbSession(self._threads, one_shot=True)

    async def close(self) -> None:
        """Close what is idle; call it when nothing runs any more."""
        for session in (self._reader, *self._idle):
            await session.close()
        self._idle.clear()
        if self._peek is not None:
            peek, self._peek = self._peek, None
            await self._threads.control(peek.close)

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[ChdbSession]:
        """A session nobody else uses. Connections are kept: opening one costs a third of a statement."""
        session = self._idle.pop() if self._idle else ChdbSession(self._threads)
        try:
            yield session
        finally:
            if session.is_locked:
                await session.close()
            else:
                self._idle.append(session)
