"""What this host has begun, on disk: so that a statement takes effect at most once across a crash.

The safety argument, step by step. `i` is the intent of an entry; each line says what a crash after it leaves.

1. digest before := what the statement would change   nothing was recorded: the entry runs as if new
2. begin(i), on disk when it returns                  an intent without outcome: compare digests
                                                      (`engine.ddl.recovery`): unchanged → run; changed →
                                                      it happened, report; cannot tell → run only what is
                                                      harmless to repeat, else report UNFINISHED
3. execute                                            the same
4. finish(i, outcome)                                 an outcome without status: only the status is written.
                                                      A failure is an outcome too and is not tried again
5. status into `finished/`                            the entry counts as processed, here and everywhere

Step 2 is forced to disk before step 3, because an effect that survives a power cut must not find its intent
forgotten. Step 4 is not: if it is lost, the digests still tell. Where they do so for sure (definitions), it
is not even waited for, and goes along with the next step 2, so that it is on disk before any later effect.
A disk that is full at step 2 means that nothing is begun: the entry stays this host's to run. Outcomes, and
what is to be forgotten, then wait for the next step 2, and go before it.
An intent is keyed by the entry's name and czxid and carries a hash of its text, because names start again
when somebody re-creates the queue.

It never claims an effect that it cannot see, and never drops an intent whose entry may still be in the queue.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from engine.ddl.status import ExecutionStatus
from engine.ddl.text import decode_bytes, encode_bytes
from engine.errors import Code, Corrupt, OnclusterError, Unavailable

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, order=True)
class IntentKey:
    """One entry of one queue. `czxid` tells two entries of the same name apart."""

    queue: str
    entry: str
    czxid: int


@dataclass(frozen=True, slots=True)
class Intent:
    """`status` None: begun, and nobody has written down how it ended. `host` is the id it was begun under."""

    key: IntentKey
    host: str
    entry_digest: str
    object: str
    digest_before: str
    status: ExecutionStatus | None = None


class IntentStore(Protocol):
    """Durable across kill −9 and, for `begin`, across power loss. A disk that is full refuses `begin`
    (Unavailable) and nothing else."""

    async def load(self, queue: str) -> Mapping[IntentKey, Intent]:
        """All intents of one queue; called once when a worker starts."""
        ...

    async def begin(self, intent: Intent) -> None:
        """On disk when this returns. Replaces an intent of the same key (a further try)."""
        ...

    async def finish(self, key: IntentKey, status: ExecutionStatus) -> None:
        """Record how it ended."""
        ...

    def finish_soon(self, key: IntentKey, status: ExecutionStatus) -> None:
        """Record how it ended along with the next write, or in a moment: where the digests tell it, too."""
        ...

    async def forget(self, keys: Iterable[IntentKey]) -> None:
        """Drop intents of entries that are gone for good."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class BlockingIntentStore(Protocol):
    """A store that can also be written to by whoever is about to execute, on whatever thread that is."""

    def begin_now(self, *intents: Intent, ended: Sequence[tuple[IntentKey, ExecutionStatus]] = ()) -> None:
        """As `begin` for each, with the outcomes of others in the same transaction; blocks until it is on
        disk. Raises Corrupt, and Unavailable."""
        ...


_SCHEMA = """
CREATE TABLE IF NOT EXISTS intent (
    queue TEXT NOT NULL,
    entry TEXT NOT NULL,
    czxid INTEGER NOT NULL,
    host TEXT NOT NULL,
    entry_digest TEXT NOT NULL,
    object TEXT NOT NULL,
    digest_before TEXT NOT NULL,
    code INTEGER,
    message BLOB,
    PRIMARY KEY (queue, entry, czxid)
) WITHOUT ROWID
"""
_BEGIN = (
    "INSERT OR REPLACE INTO intent (queue, entry, czxid, host, entry_digest, object, digest_before) "
    "VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_FINISH = "UPDATE intent SET code = ?, message = ? WHERE queue = ? AND entry = ? AND czxid = ?"
_FORGET = "DELETE FROM intent WHERE queue = ? AND entry = ? AND czxid = ?"
_LOAD = (
    "SELECT entry, czxid, host, entry_digest, object, digest_before, code, message "
    "FROM intent WHERE queue = ?"
)

_PASSING = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
    }
)
"""Of the disk, and not of what is in the file."""

_SOON_S = 0.1
_AFTER_FAILURE_S = 5.0

T = TypeVar("T")
_Row = tuple[str, tuple[object, ...]]


@dataclass(slots=True)
class _Pending:
    rows: list[_Row]
    is_forced: bool
    done: asyncio.Future[None]


class SqliteIntentStore:
    """One file; requests that arrive together share a transaction and an fsync. `begin_now` writes on the
    caller's thread, everything else on one of its own.

    Measured on the development machine: see `benchmarks/`; the cost is that of one fsync per `begin`.
    `spare` is room on the disk that there is for the length of a `with` block, when there is none otherwise.
    Raises Corrupt when the file is not a usable database, Unavailable when the disk does not let it be used.
    """

    def __init__(
        self, path: Path, *, spare: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._spare = spare
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="intents")
        self._pending: list[_Pending] = []
        self._soon: deque[_Row] = deque()
        self._soon_timer: asyncio.TimerHandle | None = None
        self._lock = threading.Lock()
        self._flushing: asyncio.Task[None] | None = None
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute(_SCHEMA)
        except sqlite3.DatabaseError as error:
            if _is_passing(error):
                raise _cannot_be_written(error) from error
            raise Corrupt(
                f"The intent record {path} cannot be used: {error}.",
                hint="Move it away only if no statement was under way when this node stopped.",
            ) from error

    async def load(self, queue: str) -> Mapping[IntentKey, Intent]:
        rows = await self._call(lambda: self._db.execute(_LOAD, (queue,)).fetchall())
        intents = {}
        for entry, czxid, host, entry_digest, object_, digest_before, code, message in rows:
            key = IntentKey(queue, entry, czxid)
            status = None if code is None else ExecutionStatus(code, decode_bytes(message))
            intents[key] = Intent(key, host, entry_digest, object_, digest_before, status)
        return intents

    async def begin(self, intent: Intent) -> None:
        await self._write([_begin_row(intent)], is_forced=True)

    def begin_now(self, *intents: Intent, ended: Sequence[tuple[IntentKey, ExecutionStatus]] = ()) -> None:
        rows = [_finish_row(key, status) for key, status in ended]
        try:
            self._commit([*rows, *map(_begin_row, intents)], is_forced=True)
        except sqlite3.Error as error:
            raise _cannot_be_written(error) from error

    async def finish(self, key: IntentKey, status: ExecutionStatus) -> None:
        await self._write([_finish_row(key, status)], is_forced=False)

    def finish_soon(self, key: IntentKey, status: ExecutionStatus) -> None:
        self._soon.append(_finish_row(key, status))
        self._write_soon()

    async def forget(self, keys: Iterable[IntentKey]) -> None:
        rows: list[_Row] = [(_FORGET, (key.queue, key.entry, key.czxid)) for key in keys]
        if rows:
            await self._write(rows, is_forced=False)

    async def close(self) -> None:
        """Wait for what is under way, then close the file."""
        self._write_what_is_due()
        if self._flushing is not None:
            await self._flushing
        self._stop_timer()
        await self._call(self._db.close)
        self._thread.shutdown(wait=False)

    async def _write(self, rows: list[_Row], *, is_forced: bool) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.append(_Pending(rows, is_forced, done))
        self._start_flushing()
        await asyncio.shield(done)

    def _write_soon(self, pause_s: float = _SOON_S) -> None:
        if self._soon and self._soon_timer is None:
            loop = asyncio.get_running_loop()
            self._soon_timer = loop.call_later(pause_s, self._write_what_is_due)

    def _stop_timer(self) -> None:
        if self._soon_timer is not None:
            self._soon_timer.cancel()
            self._soon_timer = None

    def _write_what_is_due(self) -> None:
        self._stop_timer()
        if self._soon:
            self._start_flushing()

    def _start_flushing(self) -> None:
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush())

    async def _flush(self) -> None:
        """Commit whatever is waiting, again and again, until nothing is."""
        while self._pending or self._soon:
            batch, self._pending = self._pending, []
            rows = [row for pending in batch for row in pending.rows]
            is_forced = any(pending.is_forced for pending in batch)
            try:
                await self._call(functools.partial(self._commit, rows, is_forced))
            except Exception as error:  # a defect, too: nobody else would tell those who wait
                if not _is_passing(error):
                    logger.exception("ddl.intents_not_written")
                self._not_written(batch, error)
                if not self._pending:
                    self._write_soon(_AFTER_FAILURE_S)
                    return
            else:
                for pending in batch:
                    pending.done.set_result(None)

    def _not_written(self, batch: Sequence[_Pending], error: Exception) -> None:
        if not _is_passing(error):
            failure = _cannot_be_written(error) if isinstance(error, sqlite3.Error) else error
            for pending in batch:
                pending.done.set_exception(failure)
            return
        logger.error("ddl.intents_wait error=%s", error)
        for pending in batch:
            if pending.is_forced:
                pending.done.set_exception(_cannot_be_written(error))
            else:
                self._soon.extend(pending.rows)
                pending.done.set_result(None)

    def _commit(self, rows: list[_Row], is_forced: bool) -> None:
        """One transaction, on any thread. It takes along what is to be written soon; if it fails, that waits
        for the next one."""
        try:
            self._commit_once(rows, is_forced)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                raise
            with self._spare():
                self._commit_once(rows, is_forced)

    def _commit_once(self, rows: list[_Row], is_forced: bool) -> None:
        with self._lock:
            due: list[_Row] = []
            while self._soon:
                due.append(self._soon.popleft())
            try:
                self._db.execute(f"PRAGMA synchronous = {'FULL' if is_forced else 'NORMAL'}")
                self._db.execute("BEGIN IMMEDIATE")
                for statement, values in (*due, *rows):
                    self._db.execute(statement, values)
                self._db.execute("COMMIT")
            except BaseException:  # whatever it is: nothing of it may be left half done
                self._soon.extendleft(reversed(due))
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    async def _call(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)


def _begin_row(intent: Intent) -> _Row:
    key = intent.key
    return _BEGIN, (
        key.queue,
        key.entry,
        key.czxid,
        intent.host,
        intent.entry_digest,
        intent.object,
        intent.digest_before,
    )


def _finish_row(key: IntentKey, status: ExecutionStatus) -> _Row:
    return _FINISH, (status.code, encode_bytes(status.message), key.queue, key.entry, key.czxid)


def _is_passing(error: Exception) -> bool:
    """Whether the same may succeed later."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _PASSING


def _cannot_be_written(error: Exception) -> OnclusterError:
    message = f"The intent record cannot be written: {error}."
    if not _is_passing(error):
        return Corrupt(message)
    is_full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    return Unavailable(
        message,
        code=Code.NOT_ENOUGH_SPACE if is_full else Code.STD_EXCEPTION,
        hint="Make room on the disk of the node." if is_full else "Look at the disk of the node.",
    )
