"""Threads with kept connections, on which all part stores of a node do their work.

A step of a store is one function that runs on one thread from beginning to end: files, statements and the
view that is kept in memory change together, and a caller that is cancelled leaves nothing half done. Short
steps and long ones (merges, mutations, checks of big parts) have threads of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import errno
import json
import logging
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Self, TypeVar
from uuid import UUID
from weakref import WeakKeyDictionary

from engine.errors import Code, OnclusterError, SqlError, disk_error, ran_out
from engine.names import quote_identifier
from engine.part_storage.merge_stop import MergeStop
from engine.storage import ChdbPool, DiskReserve
from engine.storage.chdb_pool import ReservedThreads
from engine.storage.errors import sql_error
from engine.storage.layout import SCRATCH_DATABASE as SCRATCH_DATABASE
from engine.storage.layout import private_directory
from engine.storage.leftovers import drop_output
from engine.storage.scope import set_statement
from engine.storage.statement_text import sendable

log = logging.getLogger(__name__)

T = TypeVar("T")

PLAIN_KEY_PREFIX = "plain-"
"""Of directories beside staged parts that hold links of a plain table's parts for a moment."""

CHECKS = (
    "allow_experimental_codecs",
    "allow_minmax_index_for_json",
    "allow_suspicious_codecs",
    "allow_suspicious_fixed_string_types",
    "allow_suspicious_indices",
    "allow_suspicious_low_cardinality_types",
    "allow_suspicious_primary_key",
    "allow_suspicious_ttl_expressions",
    "allow_suspicious_variant_types",
    "enable_alp_codec",
    "enable_quantized_codec",
    "enable_sz3_codec",
    "enable_zxc_codec",
)
"""What chDB refuses in a definition unless a setting allows it. Who may is asked when an ALTER is planned; a
replica that applies it, or makes a table like its own, has no choice."""

FLATTEN = "flatten_nested"
"""Whether a Nested becomes an Array a piece where it is added: whoever does that says it."""

MATERIALIZES_TTL = "materialize_ttl_after_modify"
"""Whether a new TTL is worked out in the parts that are there: rows that it makes expire go at once."""

ASKED_IN_PLANS = {**dict.fromkeys(CHECKS, False), FLATTEN: True, MATERIALIZES_TTL: True}
"""What an ALTER leads to depends on these settings of whoever asks for it, which have these values else."""

_TYPES = ("enable_nullable_tuple_type", "enable_time_time64_type")
"""Types that chDB has unless `compatibility` asks for an older one."""
_STATES = ("enable_funnel_functions", "enable_time_series_aggregate_functions")
"""Functions in preview, which states in columns are of."""
LIKE_ONE_FOR_THE_SESSION = {**dict.fromkeys((*CHECKS, *_TYPES), "1"), FLATTEN: "0"}
"""As below, for a statement in a user's session. That says by itself which functions it has, by other names
of these settings, too, which would not hold any more after the statement."""
LIKE_ONE_THAT_IS_THERE = {**LIKE_ONE_FOR_THE_SESSION, **dict.fromkeys(_STATES, "1")}
"""For CREATE of a table with the columns of another: whoever made that one was asked, and chDB's text of it
has a Nested that is not flattened as such."""

_SETTINGS = {
    **dict.fromkeys((*CHECKS, *_STATES), "1"),
    FLATTEN: "0",  # what is flat is so in the definitions, too
    MATERIALIZES_TTL: "1",
    "implicit_select": "0",
    "log_queries": "0",
    "mutations_sync": "2",
    "alter_sync": "2",
    "allow_replace_partition_from_empty_source": "1",
    "allow_nondeterministic_mutations": "1",
    "check_query_single_value_result": "1",
    "max_partition_size_to_drop": "0",
    "max_table_size_to_drop": "0",
    "max_query_size": "0",  # a mutation is what all replicas have to do, however long its text is
    "lock_acquire_timeout": "600",
    # A part is a dozen small files: to hand each to a thread costs more than to read it.
    "local_filesystem_read_method": "pread",
}


_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.05, 5.0
"""Before another attempt at what memory, or descriptors, ran out for."""


class Length(enum.Enum):
    """How long a step may take."""

    SHORT = "milliseconds"
    LONG = "as long as a merge"


class Connection:
    """A connection to chDB on a worker thread. Every failure is a SqlError."""

    def __init__(self, connection: Any, reserve: DiskReserve) -> None:
        self._connection = connection
        self._reserve = reserve
        self._to_restore: dict[str, str] = dict(_SETTINGS)
        """Settings that have other values than they should: nothing is run before they are right."""
        try:
            self._restore()
        except SqlError:
            connection.close()
            raise

    def execute(self, sql: str) -> None:
        self._restore()
        self._execute(sql)

    def _execute(self, sql: str) -> None:
        try:
            self._connection.query(sendable(sql), "Null")
        except RuntimeError as error:
            raise sql_error(str(error)) from None

    def define(self, sql: str) -> None:
        """As `execute`, for a change of what chDB keeps of a table or a database; else a full disk ends it.
        Raises SqlError 243 before anything has changed where the disk has no room."""
        with self._reserve.for_statement(sql):
            self.execute(sql)

    def execute_with(self, settings: Mapping[str, str], sql: str) -> None:
        """Run a statement under settings, of those that the connection has others for. Behind its text they
        could be taken for the end of an expression (`… EPHEMERAL SETTINGS`)."""
        with self._under(settings, {name: _SETTINGS[name] for name in settings}):
            self._execute(sql)

    @contextlib.contextmanager
    def _under(self, settings: Mapping[str, str], usual: Mapping[str, str]) -> Iterator[None]:
        """What cannot be restored at once, for want of memory, is before the next statement."""
        self._restore()
        self._to_restore |= usual
        self._execute(set_statement(settings))
        try:
            yield
        finally:
            with contextlib.suppress(SqlError):
                self._restore()

    def _restore(self) -> None:
        if self._to_restore:
            self._execute(set_statement(self._to_restore))
            self._to_restore.clear()

    def rows(self, sql: str) -> list[list[Any]]:
        """Rows of JSON values; numbers of 64 bits come as text."""
        data = self._read(sql, "JSONCompactEachRow")
        return [json.loads(line) for line in data.decode("utf-8", "surrogateescape").splitlines() if line]

    def text(self, sql: str) -> str:
        """The one value of a result, unescaped; empty for no row."""
        return self._read(sql, "TSVRaw").decode("utf-8", "surrogateescape").removesuffix("\n")

    def _read(self, sql: str, format: str) -> bytes:
        self._restore()
        try:
            return bytes(self._connection.query(sendable(sql), format).bytes())
        except RuntimeError as error:
            drop_output(self._connection)
            raise sql_error(str(error)) from None

    def commented(self, sql: str, comment: str) -> None:
        """Run something that `ChdbPool.kill(comment)` can find."""
        with self._under({"log_comment": comment}, {"log_comment": ""}):
            self._execute(sql)

    def close(self) -> None:
        self._connection.close()


def translated(error: OSError) -> Exception:
    """A full disk, and the want of descriptors, as chDB would say it; every other error as it is."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return SqlError(Code.NOT_ENOUGH_SPACE, f"Not enough space: {error}")
    if ran_out(error):
        return disk_error(error, "Cannot work on a part")
    return error


class Workers:
    """One per pool, shared by its stores: `Workers.of(pool)`, and `release` for each."""

    _shared: ClassVar[WeakKeyDictionary[ChdbPool, Workers]] = WeakKeyDictionary()

    def __init__(self, pool: ChdbPool, *, short: int, long: int) -> None:
        self.pool = pool
        self._threads: Mapping[Length, ReservedThreads] = {
            Length.SHORT: pool.reserve(short),
            Length.LONG: pool.reserve(long),
        }
        self._local = threading.local()
        self._connections: list[Connection] = []
        self._has_scratch_database = False
        self._background: set[asyncio.Task[None]] = set()
        self.scratch_tables: set[str] = set()
        """The names of those that were made and not dropped."""
        self._ending = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._announced = 0
        self._users = 0
        self._number = 0
        self._lock = threading.Lock()

    @classmethod
    def of(cls, pool: ChdbPool) -> Self:
        workers = cls._shared.get(pool)
        if workers is None:
            workers = cls._shared[pool] = cls(pool, short=3, long=4)
        workers._users += 1
        assert isinstance(workers, cls)
        return workers

    async def release(self) -> None:
        """A store needs them no more; the last one closes the connections."""
        self._users -= 1
        if self._users == 0:
            self._ending.set()
            await asyncio.sleep(0)  # what a step has announced
            while self._background or self._announced:
                if self._background:
                    await asyncio.wait(self._background)
                await asyncio.sleep(0)
            self._ending.clear()
            connections, self._connections = self._connections, []
            self._local = threading.local()
            for connection in connections:
                await self.pool.control(connection.close)

    def next_number(self) -> int:
        """A number that no other call of this process got."""
        with self._lock:
            self._number += 1
            return self._number

    def new_uuid(self) -> UUID:
        """For a table of chDB's."""
        return self.pool.env.new_uuid()

    async def run(
        self,
        step: Callable[[Connection], T],
        *,
        length: Length = Length.SHORT,
        kill: str = "",
        merge: MergeStop | None = None,
    ) -> T:
        """Run a step. A cancelled caller waits for its end, after KILL of the statements commented `kill` and
        the end of `merge`."""

        def run() -> T:
            try:
                return step(self._connection())
            except OSError as error:
                raise translated(error) from None

        self._loop = asyncio.get_running_loop()
        job = self._threads[length].start(run)
        try:
            return await job.result()
        except asyncio.CancelledError:
            if kill and not job.is_over:
                await self.pool.kill(kill)
            if merge is not None and (table := merge.stop()) is not None:
                await self.pool.stop_merges(table)
            await job.end()
            raise

    def surely(self, step: Callable[[], T]) -> T:
        """Called by a step, for what has to be done or known before it may end, with an error or without: its
        result, whenever there is memory, and a descriptor, for it. It may be begun several times."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return step()
            except (SqlError, OSError, MemoryError) as error:
                if not ran_out(error):
                    raise
                log.warning("part_storage.ran_out retry_in_s=%g error=%s", pause_s, error)
            self.pause(pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)

    def pause(self, delay_s: float) -> None:
        """Called by a step: hold its thread for a while."""
        loop = self._loop
        assert loop is not None
        asyncio.run_coroutine_threadsafe(self.pool.env.sleep(delay_s), loop).result()

    def later(self, step: Callable[[Connection], None], *, pause_s: float = 0.0) -> None:
        """`in_background`, called by a step."""
        loop = self._loop
        assert loop is not None
        self._announced += 1
        loop.call_soon_threadsafe(self._announce, step, pause_s)

    def _announce(self, step: Callable[[Connection], None], pause_s: float) -> None:
        self._announced -= 1
        self.in_background(step, pause_s=pause_s)

    def in_background(self, step: Callable[[Connection], None], *, pause_s: float = 0.0) -> None:
        """Run a step that nobody waits for, after a pause; the last `release` waits for it, and cuts the
        pause. One for which something ran out is begun again, until the `release`."""
        task = asyncio.get_running_loop().create_task(self._logged(step, pause_s))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _logged(self, step: Callable[[Connection], None], pause_s: float) -> None:
        retry_s = _FIRST_PAUSE_S
        while True:
            if pause_s:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._ending.wait()
            try:
                await self.run(step)
            except (OnclusterError, OSError) as error:
                log.warning("part_storage.background_failed error=%s", error)
                if not ran_out(error) or self._ending.is_set():
                    return
            else:
                return
            pause_s = retry_s
            retry_s = min(2 * retry_s, _LAST_PAUSE_S)

    def _connection(self) -> Connection:
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = Connection(self.pool.connect(), self.pool.disk_reserve)
            with self._lock:
                self._connections.append(connection)
                is_first = len(self._connections) == 1
            if is_first:
                for left in (private_directory(self.pool.path) / "staged").glob(f"{PLAIN_KEY_PREFIX}*"):
                    shutil.rmtree(left, ignore_errors=True)
        if not self._has_scratch_database:
            connection.define(
                f"CREATE DATABASE IF NOT EXISTS {quote_identifier(SCRATCH_DATABASE)} ENGINE = Memory"
            )
            self._has_scratch_database = True
        return connection
