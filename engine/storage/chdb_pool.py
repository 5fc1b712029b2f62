"""chDB as an asynchronous SQL engine: one process, one data directory, a connection per session.

A connection costs 70 µs, so every stateless request gets its own and leaves nothing behind: current database,
settings, temporary tables and readonly mode die with it, as a ClickHouse server's HTTP session does.
Statements run on worker threads; chDB releases the interpreter's lock. At most `max_running` of them run at
once, the others wait. Queries on one connection never overlap; `ChdbSession` sees to it.

A statement is cancelled with KILL QUERY. chDB makes up its own query ids, so a statement is found by its
`log_comment`, which is set to the caller's query id unless the caller set one.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from engine.env import Env, SystemEnv
from engine.errors import Busy, Code, SqlError
from engine.names import TableName, quote_string
from engine.patient_threads import PatientThreads
from engine.storage.awaited_values import register
from engine.storage.buffer_tables import write_buffers
from engine.storage.chdb_module import load_chdb
from engine.storage.chdb_session import ChdbSession
from engine.storage.disk_reserve import DiskReserve
from engine.storage.errors import sql_error, translated
from engine.storage.idle_connections import IdleConnections
from engine.storage.job import Job
from engine.storage.late_tables import attach, hold_back
from engine.storage.layout import LOCAL_DATABASE, SCRATCH_DATABASE, ChdbSettings, prepare
from engine.storage.native_blocks import of_revision
from engine.storage.orphans import set_orphans_aside
from engine.storage.scope import QueryResult, Scope
from engine.storage.shadowed_functions import shadow_functions
from engine.storage.statement_text import sendable
from engine.storage.whole_databases import load_whole
from engine.storage.workloads import make_workloads

log = logging.getLogger(__name__)

T = TypeVar("T")

_NOT_STARTED = "Error initializing EmbeddedServer"
"""All that chDB raises about it; the reason goes to standard error."""
_MOST_READERS = 256
"""INSERTs whose rows are on their way. Each waits for its client most of the time."""


class ChdbPool:
    """Open with `ChdbPool.open`. One per process: chDB allows one data directory."""

    def __init__(self, path: Path, *, max_running: int, env: Env) -> None:
        self.path = path
        self.env = env
        self.may_wait_for_others = max(1, max_running - max(1, max_running // 4))
        """So many statements may hold threads while they wait for nodes that may ask this one meanwhile."""
        self._threads = PatientThreads(max_running, "chdb")
        self._readers = PatientThreads(_MOST_READERS, "chdb-reader")
        self._control = PatientThreads(1, "chdb-control")
        self._reserved: list[ThreadPoolExecutor] = []
        self._anchor: Any = None
        self.on_kill: Callable[[str], None] = lambda _: None
        """Is told the id of statements that are asked to stop."""
        self._connect: Callable[[str], Any] | None = None
        self._version = ""
        self._max_threads = 1
        self.idle = IdleConnections()
        """Connections of INSERTs and SELECTs that are over."""
        self._unfinished: set[asyncio.Task[None]] = set()
        self.disk_reserve = DiskReserve(path)

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        settings: ChdbSettings | None = None,
        max_running: int = 8,
        env: Env | None = None,
    ) -> Self:
        """Start chDB on `path`, which is made if it is not there.

        Raises Busy when another process uses the directory, Corrupt for damaged metadata, ConfigError for
        a path that chDB cannot have, SqlError for what else it cannot do.
        """
        pool = cls(path, max_running=max_running, env=env or SystemEnv())
        try:
            with pool.disk_reserve.lent():
                connection_string = prepare(path, settings or ChdbSettings(), pool.env)
                set_orphans_aside(path)
                load_whole(path)
                late = hold_back(path)
                await pool.control(lambda: pool._start(connection_string, late))
        except SqlError as error:
            pool._threads.shutdown(wait=False)
            pool._readers.shutdown(wait=False)
            pool._control.shutdown(wait=False)
            if error.code == Code.CANNOT_OPEN_FILE:
                raise Busy(
                    f"The data directory {path} is in use.",
                    holder="another node process",
                    code=error.code,
                    hint="Stop the other node first, or give this one another path.",
                ) from error
            if _NOT_STARTED in error.message:
                error.hint = (
                    f"chDB has written the reason above. A file of metadata in {path} that it names can be "
                    "put back from a backup, or moved away: the node starts without what it defines. A "
                    "profile constraints_of_… has the constraints of that profile in the configuration."
                )
            raise
        return pool

    def _start(self, connection_string: str, late: Sequence[Path]) -> None:
        chdb = load_chdb()  # not before a node really starts
        # With its own handlers a chDB that crashes hangs for minutes instead of ending the process.
        chdb.set_signal_handlers_enabled(False)
        register(chdb)
        shadow_functions(chdb)
        self._connect = chdb.connect
        self._anchor = self._new_connection(connection_string)
        # The directory is ours alone now: what an earlier process had in its scratch tables is nobody's.
        shutil.rmtree(self.path / "data" / SCRATCH_DATABASE, ignore_errors=True)
        anchor = self._anchor
        anchor.query(f"DETACH DATABASE {LOCAL_DATABASE}")

        def query(sql: str) -> str:
            return translated(lambda: str(anchor.query(sendable(sql)).bytes().decode()))

        try:
            make_workloads(self.path, query)
            attach(late, query)
        except SqlError:
            anchor.close()
            raise
        seen = self._anchor.query("SELECT version(), getSetting('max_threads')", "TSVRaw").bytes().decode()
        self._version, max_threads = seen.split()
        self._max_threads = int(max_threads)
        try:
            self._anchor.query("SELECT throwIf(1)")  # the first exception of a process takes 60 ms and more
        except RuntimeError:
            pass

    def _new_connection(self, connection_string: str) -> Any:
        assert self._connect is not None
        try:
            return self._connect(connection_string)
        except RuntimeError as error:
            raise sql_error(str(error)) from None

    @property
    def version(self) -> str:
        """chDB's ClickHouse version, such as 26.9.2.1."""
        return self._version

    @property
    def max_threads(self) -> int:
        """How many threads a statement has that does not set it."""
        return self._max_threads

    def connect(self) -> Any:
        """A new connection. Call it on a worker thread."""
        return self._new_connection(str(self.path))

    def start(self, function: Callable[[], T]) -> Job[T]:
        """Run `function` on a worker thread, as soon as one is free, and to its end."""
        return Job(self._threads, function)

    def start_reader(self, function: Callable[[], T]) -> Job[T]:
        """As `start`, for a statement that waits for rows: it takes no thread from the others."""
        return Job(self._readers, function)

    async def call(self, function: Callable[[], T]) -> T:
        """As `start`; a caller that is cancelled does not wait for it, nor does it begin then."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    async def control(self, function: Callable[[], T]) -> T:
        """Run something short on the thread that is always free."""
        return await asyncio.get_running_loop().run_in_executor(self._control, function)

    def reserve(self, threads: int) -> ReservedThreads:
        """Threads that nobody else's statements occupy; they end with the pool."""
        executor = PatientThreads(threads, "chdb-reserved")
        self._reserved.append(executor)
        return ReservedThreads(self, executor)

    def session(
        self, *, database: str = "", settings: Mapping[str, str] | None = None, one_shot: bool = False
    ) -> ChdbSession:
        """A session of its own; the caller closes it. `settings` stay for the session."""
        return ChdbSession(self, database=database, settings=settings or {}, one_shot=one_shot)

    @asynccontextmanager
    async def use(
        self, *, database: str = "", settings: Mapping[str, str] | None = None, one_shot: bool = False
    ) -> AsyncIterator[ChdbSession]:
        """A session for the length of a `with` block."""
        session = self.session(database=database, settings=settings, one_shot=one_shot)
        try:
            yield session
        finally:
            await session.close()

    async def query(
        self,
        sql: str | bytes,
        *,
        format: str = "TabSeparated",
        database: str = "",
        settings: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
        query_id: str = "",
    ) -> QueryResult:
        """Run one statement on a fresh session and return its whole result. Raises SqlError."""
        session = self.session(database=database, one_shot=True)
        scope = Scope(settings=settings or {}, query_id=query_id)
        return await session.query(sql, format=format, params=params or {}, scope=scope)

    async def is_one_statement(self, sql: str) -> bool:
        """Whether chDB's parser takes `sql` for one whole statement; costs a tenth of any query."""

        def classify() -> bool:
            return bool(self._anchor.classify_query(sendable(sql))["statement_count"] == 1)

        return await self.control(classify)

    async def glance(self, sql: str) -> str:
        """A few values that are there at once, whatever else runs. Raises SqlError."""
        return await self.control(
            lambda: translated(lambda: bytes(self._anchor.query(sql, "TSVRaw").bytes()).decode())
        )

    async def native_of_revision(self, data: bytes, revision: int) -> bytes:
        """Blocks in Native as that revision of the protocol has them. Raises SqlError."""

        return await self.start(
            lambda: translated(lambda: of_revision(self.connect, data, revision))
        ).result()

    async def kill(self, query_id: str) -> bool:
        """Ask every statement that runs under `query_id` to stop; it ends with QUERY_WAS_CANCELLED 394.
        False: there is none (yet)."""
        self.on_kill(query_id)
        return await self._kill(f"Settings['log_comment'] = {quote_string(query_id)}")

    async def killed(self) -> list[str]:
        """The ids of statements that were asked to stop and have not ended."""
        ids = "SELECT Settings['log_comment'] AS id FROM system.processes WHERE is_cancelled AND id != ''"
        result = await self.control(lambda: self._anchor.query(ids, "TSVRaw").bytes())
        return bytes(result).decode("utf-8", "replace").splitlines()

    async def kill_reader(self, path: str) -> bool:
        """The same of the INSERT that reads the file at `path`. False: there is none (yet)."""
        reading = quote_string(f"FROM INFILE {quote_string(path)} ")
        return await self._kill(f"query_kind = 'Insert' AND position(query, {reading}) > 0")

    async def kill_writer(self, path: str) -> bool:
        """The same of the SELECT that writes the file at `path`."""
        writing = quote_string(f"INTO OUTFILE {quote_string(path)} ")
        return await self._kill(f"position(query, {writing}) > 0")

    async def _kill(self, which: str) -> bool:
        """Whether there was any."""

        def kill() -> bool:
            killed = self._anchor.query(f"KILL QUERY WHERE {which} AND query NOT ILIKE 'KILL%' ASYNC")
            return bool(killed.bytes())

        try:
            return await self.control(kill)
        except RuntimeError as error:
            log.warning("storage.kill_failed which=%s error=%s", which, error)
            return False

    async def stop_merges(self, table: TableName) -> None:
        """Ask the merges of a table to stop, which chDB has to drop then; nothing if it has been dropped."""
        try:
            await self.control(lambda: self._anchor.query(f"SYSTEM STOP MERGES {table.quoted}"))
        except RuntimeError as error:
            log.info("storage.merges_not_stopped table=%s error=%s", table, error)

    def finish_later(self, work: Coroutine[Any, Any, None]) -> None:
        """Let `work` run to its end in the background; `close` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)

    async def close(self, *, grace_s: float = 10.0) -> None:
        """Wait for what runs, have Buffer tables written out, then stop chDB. May be called twice.

        After `grace_s` a statement that cannot be stopped is left to itself, and so is chDB: its data is safe
        whenever its process ends.
        """
        deadline_s = asyncio.get_running_loop().time() + grace_s
        while self._unfinished and (left_s := deadline_s - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(self._unfinished, timeout=left_s)
        anchor, self._anchor = self._anchor, None
        if self._unfinished:
            log.warning("storage.not_stopped statements=%d", len(self._unfinished))
        elif anchor is not None:
            await self.control(self.idle.close)
            await self.control(lambda: write_buffers(anchor))
            await self.control(anchor.close)
        for executor in (self._threads, self._readers, self._control, *self._reserved):
            executor.shutdown(wait=False)


class ReservedThreads:
    """A part of a pool with threads of its own."""

    def __init__(self, pool: ChdbPool, executor: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._executor = executor

    @property
    def idle(self) -> IdleConnections:
        return self._pool.idle

    @property
    def disk_reserve(self) -> DiskReserve:
        return self._pool.disk_reserve

    def connect(self) -> Any:
        return self._pool.connect()

    def start(self, function: Callable[[], T]) -> Job[T]:
        return Job(self._executor, function)

    def start_reader(self, function: Callable[[], T]) -> Job[T]:
        return self._pool.start_reader(function)

    async def call(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    async def control(self, function: Callable[[], T]) -> T:
        return await self._pool.control(function)

    async def kill(self, query_id: str) -> bool:
        return await self._pool.kill(query_id)

    async def kill_reader(self, path: str) -> bool:
        return await self._pool.kill_reader(path)

    async def kill_writer(self, path: str) -> bool:
        return await self._pool.kill_writer(path)

    def finish_later(self, work: Coroutine[Any, Any, None]) -> None:
        self._pool.finish_later(work)
