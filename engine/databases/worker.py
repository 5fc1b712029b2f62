"""One Replicated database on one replica: it follows the log.

Safety argument. Entries are looked at in the order of their numbers. For each the worker waits until its
initiator has committed it or given it up (`proposal`), then carries it out and records that in one
transaction: pointer, `finished`, digest. A crash between effect and record leaves a digest that does not fit,
and the next start compares every definition with Keeper's (`comparison`), which finds them as they should be.
The pointer never passes an entry that was committed and not carried out; what fails is tried again, and after
a number of equal errors the definitions are compared. What was carried out and could not be recorded, because
the connection or the session was lost, is recorded later and not carried out again: a second EXCHANGE would
undo the first, and a second TRUNCATE take rows that came since.

The initiator's own entries are carried out in the client's task. The worker does not pass an entry of its own
before that task has ended.

Source: ClickHouse's DatabaseReplicatedDDLWorker and DatabaseReplicated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from engine.databases.cluster import (
    DatabaseCluster,
    database_uuid_in,
    is_there,
    read_cluster,
)
from engine.databases.comparison import compare
from engine.databases.digest import digest_of
from engine.databases.entry_cleanup import clean_log
from engine.databases.numbering import enqueue
from engine.databases.paths import DROPPED, DatabasePaths, ReplicaName
from engine.databases.schema import LocalSchema
from engine.databases.settings import DatabaseSettings
from engine.databases.shard_turn import ShardTurn
from engine.ddl.attempt import Fence
from engine.ddl.entry import DEFAULT_VERSION, DDLLogEntry
from engine.ddl.text import encode_bytes
from engine.env import Env
from engine.errors import (
    Code,
    KeeperAnswer,
    MalformedEntry,
    MultiFailed,
    NodeExists,
    NoNode,
    OnclusterError,
    SessionExpired,
    SqlError,
    Unavailable,
    UnknownOutcome,
)
from engine.keeper.base import Create, CreateMode, Keeper, Op, Remove, SetData
from engine.keeper.recipes import SessionHolder, Signal, try_remove
from engine.lifetime import end_if_cancelled
from engine.names import entry_number

log = logging.getLogger(__name__)

_PAUSE_S = 5.0
_SHORT_PAUSE_S = 0.5
TICK_S = 1.0
_START_S = 10.0
_NOT_STARTED = "it has not been started"
_LOST_DIGEST = b"42"
"""No digest is this one: the replica is recovered."""


_FINAL = frozenset({Code.TABLE_NOT_EMPTY, Code.ASYNC_LOAD_WAIT_FAILED})
"""It gets no better by waiting: a table that is empty elsewhere has rows here (DROP … IF EMPTY), or it could
not be loaded here."""


class DatabaseWorker:
    """Follows the log from `start` to `stop`."""

    def __init__(
        self,
        *,
        env: Env,
        holder: SessionHolder,
        paths: DatabasePaths,
        me: ReplicaName,
        host: str,
        server_uuid: str,
        schema: LocalSchema,
        settings: DatabaseSettings,
        database_name: Callable[[], str],
        group: str = "",
    ) -> None:
        """`host` is this replica's value in Keeper: `escaped_host:port:database_uuid`."""
        self._env = env
        self._holder = holder
        self.paths = paths
        self.me = me
        self._host = host
        self._server_uuid = server_uuid
        self._schema = schema
        self._settings = settings
        self._database_name = database_name
        self._group = group
        self.cluster = DatabaseCluster()
        self.readonly_reason = _NOT_STARTED
        self._ptr = 0
        """The last entry that this replica is done with, whatever became of it."""
        self._current = 0
        """The entry that the worker has come to."""
        self._own: dict[int, asyncio.Event] = {}
        """Entries that a client's task carries out; set when it has ended."""
        self._submitting: set[asyncio.Task[int]] = set()
        """Clients' statements; the client may have gone."""
        self._moved = asyncio.Event()
        self._wake = asyncio.Event()
        self._digest_lock = asyncio.Lock()
        self._enqueue_lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._restarts = False
        self._errors: tuple[str, int] = ("", 0)
        self._active_in: Keeper | None = None
        self._cleaned = 0
        self._unrecorded = 0
        """An entry that this process has carried out and not recorded; 0: there is none."""

    # -- life ------------------------------------------------------------------------------------------------

    @property
    def is_readonly(self) -> bool:
        return bool(self.readonly_reason)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"database {self.paths.root}")

    async def _wait_for_start(self) -> None:
        """Whoever has just created the database need not wait for it, so the first statement does."""
        try:
            async with asyncio.timeout(_START_S):
                while self.readonly_reason == _NOT_STARTED:
                    await self._moved.wait()
        except TimeoutError:
            pass

    async def stop(self, *, grace_s: float) -> None:
        """A statement of the log that is being carried out comes to its end, within the time."""
        self._is_stopping = True
        self.readonly_reason = "it is being stopped"
        self._wake.set()
        self._announce()
        tasks: list[asyncio.Task[None] | asyncio.Task[int]] = [*self._submitting]
        if self._task is not None:
            tasks.append(self._task)
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        keeper, self._active_in = self._active_in, None
        if keeper is not None and not keeper.is_expired:
            try:
                await try_remove(keeper, self.paths.replica(self.me, "active"))
            except OnclusterError as error:
                log.info("databases.active_stays database=%s error=%s", self._database_name(), error)

    async def _run(self) -> None:
        while not self._is_stopping:
            pause_s = _PAUSE_S
            try:
                keeper = await self._holder.get()
                await self._initialize(keeper)
                await self._follow(keeper)
                pause_s = 0.0
            except (Unavailable, UnknownOutcome) as error:
                end_if_cancelled()
                self._note_down(f"it cannot connect to ZooKeeper: {error.message}")
                pause_s = _SHORT_PAUSE_S
            except (OnclusterError, OSError) as error:
                end_if_cancelled()
                log.error("databases.failed database=%s error=%s", self._database_name(), error)
                if isinstance(error, KeeperAnswer):  # what should be in Keeper is not
                    self._restarts = True
                    self._note_down(f"ZooKeeper answers: {error.message}")
                await self._count_error(error)
            except Exception as error:  # a defect, too: nobody else would go on with the log
                end_if_cancelled()
                log.exception("databases.failed database=%s", self._database_name())
                await self._count_error(error)
            if pause_s and not self._is_stopping:
                await self._nap(pause_s)

    def _note_down(self, reason: str) -> None:
        if not self._is_stopping:
            self.readonly_reason = reason
        self._announce()

    async def _nap(self, pause_s: float) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _count_error(self, error: Exception) -> None:
        """The same error again and again: what is here is perhaps not what the log goes by."""
        text = str(error)
        last, count = self._errors
        self._errors = (text, count + 1 if text == last else 1)
        most = self._settings.max_retries_before_automatic_recovery
        keeper = self._holder.current
        if not most or keeper is None:
            return
        is_final = isinstance(error, SqlError) and error.code in _FINAL
        if self._errors[1] < most and not is_final:
            return
        self._errors = ("", 0)
        self._restarts = True
        try:
            await keeper.set(self.paths.replica(self.me, "digest"), _LOST_DIGEST)
            if is_final:
                self._wake.set()
        except OnclusterError as error:
            log.warning("databases.not_marked_lost database=%s error=%s", self._database_name(), error)

    # -- start of a session ----------------------------------------------------------------------------------

    async def _initialize(self, keeper: Keeper) -> None:
        if self._active_in is keeper and not self._restarts:
            self._be_writable()  # only the connection was lost
            return
        self._restarts = False
        try:
            await self._begin(keeper)
        except BaseException:  # whatever it is: the session goes on, and what was to be compared was not
            self._restarts = True
            raise

    async def _begin(self, keeper: Keeper) -> None:
        paths, me = self.paths, self.me
        value = await is_there(keeper, paths.replica(me))
        if value is None or value == DROPPED:
            self._note_down("its replica in ZooKeeper is gone: it was probably dropped")
            raise SqlError(
                Code.DATABASE_REPLICATION_FAILED,
                f"Replica {me} is not at {paths.root}: it was dropped",
                hint="DROP DATABASE, or SYSTEM RESTORE DATABASE REPLICA if Keeper has lost its data.",
            )
        if value != encode_bytes(self._host):
            if database_uuid_in(value) != database_uuid_in(encode_bytes(self._host)):
                self._note_down("its replica in ZooKeeper is another server's")
                raise SqlError(
                    Code.REPLICA_ALREADY_EXISTS,
                    f"Replica {me} at {paths.root} is {value.decode(errors='replace')}",
                )
            await keeper.set(paths.replica(me), encode_bytes(self._host))
            async with self._enqueue_lock:
                await self._enqueue_empty(keeper)
        await self._end_older_session(keeper)
        await self._record_what_is_done(keeper)
        async with self._digest_lock:  # not beside a statement of a client's that changes definitions
            log_ptr = await compare(
                keeper,
                self._env,
                paths,
                me,
                self._schema,
                self._settings,
                database_name=self._database_name(),
            )
        self._ptr = self._current = log_ptr
        self.cluster = await read_cluster(keeper, paths, self._group)
        try:
            await keeper.create(
                paths.replica(me, "active"), self._server_uuid.encode(), mode=CreateMode.EPHEMERAL
            )
        except NodeExists:
            raise SqlError(
                Code.REPLICA_IS_ALREADY_ACTIVE, f"Replica {me} at {paths.root} is active"
            ) from None
        self._active_in = keeper
        self._be_writable()
        log.info("databases.active database=%s ptr=%d", self._database_name(), log_ptr)

    def _be_writable(self) -> None:
        if not self._is_stopping:
            self.readonly_reason = ""
        self._announce()

    async def _end_older_session(self, keeper: Keeper) -> None:
        """An `active` of this server is an older session's; another's is waited for by trying again."""
        path = self.paths.replica(self.me, "active")
        value = await is_there(keeper, path)
        if value is not None and value.split(b"\t")[0] == self._server_uuid.encode():
            await try_remove(keeper, path)

    # -- the log ---------------------------------------------------------------------------------------------

    async def _follow(self, keeper: Keeper) -> None:
        """Until the node stops; raises at the end of the session."""
        while not self._is_stopping and not self._restarts:
            signal = Signal()
            names = (await keeper.children(self.paths.log, watch=signal)).names
            numbers = sorted(n for name in names if (n := entry_number(name)) is not None and n > self._ptr)
            if numbers and await self._has_missed_entries(keeper):
                self._restarts = True
                return
            is_other_cluster = False
            for number in numbers:
                if self._is_stopping or self._restarts:
                    return
                is_other_cluster |= await self._process(keeper, number)
                self._errors = ("", 0)
                self._ptr = max(self._ptr, number)
                self._announce()
            if is_other_cluster:
                self.cluster = await read_cluster(keeper, self.paths, self._group)
            if numbers:
                await self._clean(keeper)
                continue
            waits = [asyncio.ensure_future(signal.wait()), asyncio.ensure_future(self._wake.wait())]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
                ends = await asyncio.gather(*waits, return_exceptions=True)
            self._wake.clear()
            for end in ends:
                if isinstance(end, SessionExpired):
                    raise end

    async def _has_missed_entries(self, keeper: Keeper) -> bool:
        """Whether entries behind the pointer may have been removed (`clean_log`): a listing lacks them.

        Asked after the listing, in the same session: what is missing there was removed for a pointer that is
        no newer than this one.
        """
        newest = int((await keeper.get(self.paths.max_log_ptr)).data)
        keep = int((await keeper.get(self.paths.logs_to_keep)).data)
        if self._ptr + keep >= newest:
            return False
        log.warning(
            "databases.too_far_behind database=%s ptr=%d newest=%d", self._database_name(), self._ptr, newest
        )
        return True

    async def _process(self, keeper: Keeper, number: int) -> bool:
        """Whether the cluster is another one now."""
        self._current = number
        self._announce()
        async with self._enqueue_lock:  # who has put an entry there notes it before it lets go
            own = self._own.get(number)
        if own is not None:
            await own.wait()
        await self._remove_orphaned_try(keeper, number)
        await self._wait_for_initiator(keeper, number)
        committed = await is_there(keeper, self.paths.entry(number, "committed"))
        data = await is_there(keeper, self.paths.entry(number))
        if committed is None or data is None:
            log.info("databases.skipped database=%s entry=%d", self._database_name(), number)
            return False
        try:
            entry = DDLLogEntry.from_bytes(data, where=self.paths.entry(number))
        except MalformedEntry as error:
            raise SqlError(Code.DATABASE_REPLICATION_FAILED, error.message) from error
        if not entry.query:
            return True
        if committed == encode_bytes(str(self.me)):
            return False
        if await keeper.exists(self.paths.entry(number, f"finished/{self.me}")) is None:
            await self._carry_out(keeper, number, entry)
        return False

    async def _remove_orphaned_try(self, keeper: Keeper, number: int) -> None:
        """A `try` of this very session with nobody behind it: its client went away while it was made, or a
        broken connection kept it from being given up. The session may live for long, and everybody waits."""
        path = self.paths.entry(number, "try")
        stat = await keeper.exists(path)
        if stat is not None and stat.ephemeral_owner == keeper.session_id:
            log.warning("databases.orphaned_try database=%s entry=%d", self._database_name(), number)
            await try_remove(keeper, path)

    async def _wait_for_initiator(self, keeper: Keeper, number: int) -> None:
        path = self.paths.entry(number, "try")
        deadline_s = self._env.monotonic_s() + self._settings.wait_entry_commited_timeout_sec
        while True:
            signal = Signal()
            try:
                await keeper.get(path, watch=signal)
            except NoNode:
                return
            left_s = deadline_s - self._env.monotonic_s()
            if left_s <= 0:
                log.warning("databases.initiator_hangs database=%s entry=%d", self._database_name(), number)
                await try_remove(keeper, path)
                return
            if self._is_stopping:
                raise SessionExpired("The node stops")
            try:
                async with asyncio.timeout(min(TICK_S, left_s)):
                    await signal.wait()
            except TimeoutError:
                pass

    async def _carry_out(self, keeper: Keeper, number: int, entry: DDLLogEntry) -> None:
        settings = {setting.name: setting.value for setting in entry.settings}
        ops: Sequence[Op] = []
        await self._show_active(keeper, number)
        if number != self._unrecorded:
            log.info("databases.execute database=%s entry=%d", self._database_name(), number)
            self._schema.begins(number)
            execute = partial(self._schema.execute, number, entry.query, settings)
            if await self._schema.runs_once_per_shard(entry.query):
                ops = await ShardTurn(keeper, self._env, self.paths, self.me, number).run(execute)
            else:
                await execute(Fence())
                self._unrecorded = number
        await self._record(keeper, number, ops)

    async def _show_active(self, keeper: Keeper, number: int) -> None:
        try:
            await keeper.create(self.paths.entry(number, f"active/{self.me}"), mode=CreateMode.EPHEMERAL)
        except NodeExists:
            pass

    async def _record_what_is_done(self, keeper: Keeper) -> None:
        """The session ended between effect and record: the definitions here are those of a later entry than
        Keeper says. If that cannot be said any more they are compared as they are."""
        number = self._unrecorded
        if not number:
            return
        digest = await is_there(keeper, self.paths.replica(self.me, "digest"))
        log_ptr = int((await keeper.get(self.paths.replica(self.me, "log_ptr"))).data)
        if digest != _LOST_DIGEST and log_ptr < number:
            try:
                await self._show_active(keeper, number)
                await self._record(keeper, number, [])
            except KeeperAnswer as answer:
                name = self._database_name()
                log.warning("databases.not_recorded database=%s entry=%d answer=%s", name, number, answer)
        self._unrecorded = 0

    async def _record(self, keeper: Keeper, number: int, ops: Sequence[Op]) -> None:
        async with self._digest_lock:
            digest = digest_of(self._schema.texts())
            await keeper.multi(
                [
                    Remove(self.paths.entry(number, f"active/{self.me}")),
                    SetData(self.paths.replica(self.me, "log_ptr"), str(number).encode()),
                    Create(self.paths.entry(number, f"finished/{self.me}"), b"0\n"),
                    Create(self.paths.entry(number, f"synced/{self.me}"), b"0\n"),
                    SetData(self.paths.replica(self.me, "digest"), str(digest).encode()),
                    *ops,
                ]
            )
        self._unrecorded = 0

    async def _clean(self, keeper: Keeper) -> None:
        """Now and then remove entries that everybody has had time for."""
        if self._ptr < self._cleaned + 100:
            return
        self._cleaned = self._ptr
        try:
            await clean_log(keeper, self.paths)
        except MultiFailed as error:
            log.warning("databases.not_cleaned database=%s error=%s", self._database_name(), error)

    async def _enqueue_empty(self, keeper: Keeper) -> None:
        entry = DDLLogEntry(version=DEFAULT_VERSION, query="", hosts=(), initiator=str(self.me))
        await enqueue(keeper, self._env, self.paths, self.me, entry, is_committed=True)

    def _announce(self) -> None:
        """Whoever waits for the worker looks again."""
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
