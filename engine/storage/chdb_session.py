"""One chDB connection: statements in order, results whole or streamed, inserts streamed.

A streamed result is written by chDB itself into a pipe (`INTO OUTFILE '/proc/self/fd/N'`), in any format
with its frame whole (JSON, Parquet, totals and extremes, …), and read by the event loop; a reader that stops
reading stops the query, so memory is bounded by the pipe. A streamed insert is pushed chunk by chunk; what
was not finished is not inserted, except blocks that chDB had written before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from engine.errors import Code, SqlError
from engine.storage.dependents import UNCHECKED, without_scratch_tables
from engine.storage.errors import translated
from engine.storage.feeding import feed
from engine.storage.insert_rows import FEW_BYTES, in_memory, in_pieces, insert_file
from engine.storage.insert_text import cut_insert
from engine.storage.job import Job
from engine.storage.leftovers import drop_output
from engine.storage.native_blocks import (
    FORMAT,
    NativeBlocks,
    described_columns,
    is_beyond_limits,
    of_revision,
)
from engine.storage.native_rows import beginning_with_rows
from engine.storage.pipe import open_pipe
from engine.storage.result_stream import ResultStream
from engine.storage.scope import PLAIN, QueryResult, Scope
from engine.storage.session_connection import FIRST_SETTINGS, SessionConnection
from engine.storage.statement_text import select_into, sendable
from engine.storage.text_limits import lifted
from engine.storage.threads import Threads
from engine.storage.values_rows import up_to_semicolon

T = TypeVar("T")

_NONE: Mapping[str, str] = {}

_FIRST_AGAIN_S, _LAST_AGAIN_S = 0.02, 2.0
"""After so long a statement is killed again, each time twice as long."""

_Run = Callable[[Any, str], T]
"""Of a connection, and of the clause that is to be put behind the statement."""


class ChdbSession:
    """Not for two tasks at once: a second caller waits for the first.

    `one_shot`: the connection is closed after each statement, in the same turn of the worker thread.
    """

    def __init__(
        self,
        pool: Threads,
        *,
        database: str = "",
        settings: Mapping[str, str] = _NONE,
        one_shot: bool = False,
    ) -> None:
        self._pool = pool
        self._local = SessionConnection(
            pool.connect, lambda: pool.idle, database=database, settings=settings, one_shot=one_shot
        )
        self._lock = asyncio.Lock()
        self._is_given_up = False
        self._is_closed = False
        self.may_have_temporary_tables = False
        """Whoever runs a statement about one says so: names may mean something else here than elsewhere."""

    @property
    def database(self) -> str:
        """The current database as far as this session was told."""
        return self._local.database or "default"

    @property
    def settings(self) -> Mapping[str, str]:
        """What the session was set to, without chDB's own defaults and readonly mode."""
        return {name: value for name, value in self._local.settings.items() if name not in FIRST_SETTINGS}

    @property
    def parameters(self) -> Mapping[str, str]:
        """The query parameters that the session was SET to."""
        return self._local.parameters

    @property
    def is_readonly(self) -> bool:
        """The user's profile, or a SET, allows reading only."""
        return self._local.readonly != "0"

    @property
    def takes_settings(self) -> bool:
        """`readonly` is not 1, which allows no statement settings of its own."""
        return self._local.readonly != "1"

    @property
    def is_locked(self) -> bool:
        """A statement was cancelled and has not ended yet."""
        return self._is_given_up

    # -- statements ----------------------------------------------------------------------------------------

    async def query(
        self,
        sql: str | bytes,
        *,
        format: str = "TabSeparated",
        params: Mapping[str, str] = _NONE,
        scope: Scope = PLAIN,
        multi: bool = True,
        is_harmless: bool = False,
        takes_settings: bool = False,
        before: Callable[[], None] | None = None,
    ) -> QueryResult:
        """Run one statement and return its whole result. Raises SqlError.

        A FORMAT in the text wins over `format`. Unless `multi`, several statements in one text are refused
        with 62, as over HTTP. `is_harmless`: it leaves nothing behind in its connection, as SELECT and INSERT
        do, so it may run in one that is there. `takes_settings`: it is a SELECT behind which a clause
        SETTINGS may be put. `before` is called on the worker thread right before the statement; what it
        raises is raised, and nothing was run.
        """
        params = self._with_own(params)
        may_be_several = not multi and (isinstance(sql, bytes) or ";" in sql)

        def run(connection: Any, clause: str) -> QueryResult:
            if before is not None:
                before()
            text = sendable(sql + clause) if isinstance(sql, str) else sql
            if may_be_several and connection.classify_query(text)["statement_count"] > 1:
                raise SqlError(Code.SYNTAX_ERROR, "Syntax error (Multi-statements are not allowed)")
            with self._pool.disk_reserve.for_statement(sql):
                return _result(connection.query(text, format, params=params))

        async with self._lock:
            try:
                return await self._run(
                    run,
                    scope,
                    is_harmless=is_harmless and not params,
                    takes_settings=takes_settings and isinstance(sql, str),
                )
            except SqlError as error:
                left = without_scratch_tables(error)
                if left is error:
                    raise
                if left is not None:
                    raise left from error
            unchecked = replace(scope, settings={**scope.settings, **UNCHECKED})
            return await self._run(run, unchecked, is_harmless=False, takes_settings=False)

    @asynccontextmanager
    async def stream(
        self,
        sql: str,
        *,
        format: str = "TabSeparated",
        params: Mapping[str, str] = _NONE,
        scope: Scope = PLAIN,
        native_revision: int = 0,
    ) -> AsyncIterator[ResultStream]:
        """Run a SELECT and read its result as it is made. Leaving the block early cancels the statement.

        It is harmless, as `query` says. A result in Native is one of `native_revision`. Raises SqlError for a
        text with INTO OUTFILE; whatever fails later is raised by `ResultStream.finish`.
        """
        params = self._with_own(params)
        reader, writer = open_pipe()

        def run(connection: Any, clause: str) -> QueryResult:
            try:
                if blocks is not None:
                    blocks.expect(described_columns(connection, select.described + clause, params))
                return _result(connection.query(sendable(select.sql + clause), params=params))
            except (RuntimeError, UnicodeDecodeError) as error:
                if blocks is not None and not blocks.has_columns and is_beyond_limits(error):
                    drop_output(connection)
                    return write_whole(connection, sendable(select.unwritten + clause))
                if connection.classify_query(sendable(select.sql))["statement_count"] == 1:
                    raise
            # The text is wrong, or output clauses cannot be added to it: as it stands it says where it is
            # wrong, or gives a result that is small.
            return write_whole(connection, sendable(sql))

        def write_whole(connection: Any, text: str | bytes) -> QueryResult:
            result = connection.query(text, format, params=params)
            written = result.bytes()
            if blocks is not None:
                blocks.is_done = True
                written = of_revision(self._pool.connect, written, native_revision)
            writer.write(written)
            return _result(result)

        def work() -> QueryResult:
            if not writer.take():
                raise SqlError(Code.ABORTED, "Nobody reads the result any more")
            try:
                takes_settings = select.takes_settings and "log_comment" not in sql
                return self._run_now(run, scope, is_harmless=not params, takes_settings=takes_settings)
            finally:
                writer.close()

        try:
            native_as = FORMAT if native_revision else "Native"
            select = select_into(sql, writer.path, default_format=format, native_as=native_as)
            is_revised = native_revision and select.format.lower() == "native"
            blocks = NativeBlocks(native_revision) if is_revised else None
            async with self._lock:
                job = self._start(work)
                try:
                    yield ResultStream(select.format, reader, job, blocks=blocks)
                finally:
                    if not job.is_over:
                        self._give_up(job, scope.query_id, written_to=writer.path)
        finally:
            reader.close()
            writer.drop()

    async def insert(
        self,
        head: str,
        *,
        format: str,
        rows: AsyncIterator[bytes],
        params: Mapping[str, str] = _NONE,
        scope: Scope = PLAIN,
        behind: Callable[[], None] | None = None,
    ) -> QueryResult:
        """Run `INSERT INTO t [(columns)] [SETTINGS …]` with rows in `format`. Raises SqlError.

        An exception of `rows` cancels the insert and is raised. `behind` is called on the worker thread when
        all is written; it raises nothing.
        """
        cut = cut_insert(head, {**self._local.settings, **scope.settings})
        scope = replace(scope, settings={**scope.settings, **cut.block_settings})
        # What holds for this statement alone stands in its text, unless there is such a clause already.
        takes_settings = not cut.own_settings
        params = self._with_own(params)

        def read(path: str, *, is_pipe: bool) -> Any:
            run = partial(insert_file, head=cut, path=path, format=format, params=params, is_pipe=is_pipe)
            result = self._run_now(run, scope, is_harmless=not params, takes_settings=takes_settings)
            if behind is not None:
                behind()
            return result

        def read_few() -> Any:
            with in_memory(first) as path:
                return read(path, is_pipe=False)

        async with self._lock:
            pieces = in_pieces(_checked_rows(rows, format.lower()))
            first: list[bytes] = await anext(pieces, [])
            if sum(map(len, first)) < FEW_BYTES:  # that was all
                result = await self._uninterrupted(read_few)
            else:
                read_many = partial(read, is_pipe=True)
                result = await feed(self._pool, read_many, first, pieces, give_up=self._give_up)
        rows_written, bytes_written = result.rows_written(), result.bytes_written()
        return QueryResult(
            data=b"",
            read_rows=rows_written,
            read_bytes=bytes_written,
            written_rows=rows_written,
            written_bytes=bytes_written,
            result_rows=rows_written,
            elapsed_s=result.elapsed(),
        )

    def clone(
        self, *, for_text: str = "", needs_database: bool = True, settings: Mapping[str, str] | None = None
    ) -> ChdbSession:
        """A one-shot session with the same database, settings but for `settings`, and readonly mode, without
        temporary tables. It takes `for_text`, which the node has written, however long that is. What names
        all databases does not need the current one, which may be gone: chDB would refuse the session (81)."""
        local = self._local
        settings = {**local.settings, **(settings or {}), "readonly": local.readonly}
        settings |= lifted(settings) if for_text else {}
        database = local.database if needs_database else ""
        return ChdbSession(self._pool, database=database, settings=settings, one_shot=True)

    @contextmanager
    def on(self, threads: Threads) -> Iterator[None]:
        """What runs in the block runs on these."""
        before, self._pool = self._pool, threads
        try:
            yield
        finally:
            self._pool = before

    @asynccontextmanager
    async def kept_open(self) -> AsyncIterator[None]:
        """What runs in the block is the node's own, is not readonly, and leaves the connection open for the
        statement that follows."""
        local = self._local
        before, local.one_shot, local.is_privileged = local.one_shot, False, True
        try:
            yield
        finally:
            local.one_shot, local.is_privileged = before, False

    @contextmanager
    def left_open(self) -> Iterator[None]:
        """What runs in the block leaves the connection open, with the temporary tables in it."""
        local = self._local
        before, local.one_shot = local.one_shot, False
        try:
            yield
        finally:
            local.one_shot = before

    def note_setting(self, name: str, value: str | None) -> None:
        """A SET statement was run by `query`: remember what a later statement's settings go back to. None:
        to DEFAULT."""
        if name == "readonly":
            self._local.note_readonly(value or "0")
        elif value is None:
            self._local.settings.pop(name, None)
        else:
            self._local.settings[name] = value

    def note_database(self, database: str) -> None:
        """USE was run by `query`."""
        self._local.database, self._local.is_astray = database, True

    async def close(self) -> None:
        """End the session: temporary tables and settings are gone. May be called twice.

        Of one that is locked `_kill` closes the connection, behind its statement: until that has ended,
        closing would hold up the thread that is to kill it.
        """
        self._is_closed = True
        async with self._lock:
            connection = None if self._is_given_up else self._local.take()
            if connection is not None:
                await self._pool.control(connection.close)

    def _with_own(self, params: Mapping[str, str]) -> dict[str, str]:
        """chDB forgets a connection's parameters when a statement brings some: each one brings them all. What
        is no UTF-8 it takes of SET only."""
        own = {name: value for name, value in self.parameters.items() if isinstance(sendable(value), str)}
        return {**own, **params}

    # -- across threads ------------------------------------------------------------------------------------

    async def _run(
        self, run: _Run[QueryResult], scope: Scope, *, is_harmless: bool, takes_settings: bool
    ) -> QueryResult:
        """A cancelled caller kills the statement, and leaves the session locked until it has ended."""
        job = self._start(
            lambda: self._run_now(run, scope, is_harmless=is_harmless, takes_settings=takes_settings)
        )
        try:
            return await job.result()
        except asyncio.CancelledError:
            self._give_up(job, scope.query_id)
            raise

    def _run_now(self, run: _Run[T], scope: Scope, *, is_harmless: bool, takes_settings: bool) -> T:
        """On a worker thread."""
        if not is_harmless:
            with self._local.prepared(scope) as connection:
                return run(connection, "")
        with self._local.harmless(scope, takes_settings=takes_settings) as (connection, clause):
            return run(connection, clause)

    def _start(self, work: Callable[[], QueryResult]) -> Job[QueryResult]:
        """Whoever does not wait for it to be over gives it up."""
        if self._is_given_up:
            raise SqlError(Code.ABORTED, "A statement in this session was cancelled and has not ended yet")
        return self._pool.start(lambda: translated(work))

    def _give_up(self, job: Job[Any], query_id: str = "", *, written_to: str = "") -> None:
        self._is_given_up = True
        self._pool.finish_later(self._kill(job, query_id, written_to))

    async def _kill(self, job: Job[Any], query_id: str, written_to: str) -> None:
        """Until it has ended: a statement that has just begun is not to be found yet, and chDB overlooks that
        nobody reads its result any more, so that nothing else would end it."""
        again_s = _FIRST_AGAIN_S
        while (query_id or written_to) and not job.is_over:
            is_asked = await (self._pool.kill(query_id) if query_id else self._pool.kill_writer(written_to))
            if written_to:  # the id may be another's by now, or the statement have a log_comment of its own
                query_id = ""
            await job.end(timeout_s=_LAST_AGAIN_S if is_asked else again_s)
            again_s = min(2 * again_s, _LAST_AGAIN_S)
        await job.end()
        if not self._is_closed and not self._local.one_shot:
            self._is_given_up = False
            return
        connection = self._local.take()
        if connection is not None:
            await self._pool.control(connection.close)

    async def _uninterrupted(self, function: Callable[[], T]) -> T:
        """Run something that ends soon. A cancelled caller waits for it, so that nothing overlaps it."""
        job = self._pool.start(lambda: translated(function))
        try:
            return await job.result()
        except asyncio.CancelledError:
            await job.end()
            raise


def _result(result: Any) -> QueryResult:
    return QueryResult(
        data=result.bytes(),
        read_rows=result.storage_rows_read(),
        read_bytes=result.storage_bytes_read(),
        written_rows=result.rows_written(),
        written_bytes=result.bytes_written(),
        result_rows=result.rows_read(),
        elapsed_s=result.elapsed(),
    )


def _checked_rows(rows: AsyncIterator[bytes], format: str) -> AsyncIterator[bytes]:
    if format == "values":
        return up_to_semicolon(rows)
    return beginning_with_rows(rows) if format == "native" else rows
