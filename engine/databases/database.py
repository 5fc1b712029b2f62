"""One Replicated database on one replica: proposes entries for its log, comes and goes, says how it is.

Safety argument: that of `worker` and `proposal`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

from engine.databases.cluster import (
    ReplicaState,
    read_cluster,
    read_states,
)
from engine.databases.digest import digest_of
from engine.databases.joining import (
    create_database,
    create_replica,
    drop_other_replica,
    mark_dropped,
    remove_replica,
    restore_database,
)
from engine.databases.numbering import enqueue, on_same_session
from engine.databases.outcomes import ReplicaRow, outcome_rows
from engine.databases.proposal import Execute, Proposal
from engine.databases.worker import TICK_S, DatabaseWorker
from engine.ddl.entry import DEFAULT_VERSION, DDLLogEntry, Setting
from engine.ddl.output import OutputMode
from engine.ddl.text import encode_bytes
from engine.errors import (
    BadVersion,
    Code,
    MultiFailed,
    NodeExists,
    NoNode,
    OnclusterError,
    SqlError,
)
from engine.keeper.base import CreateMode, Keeper, Op, SetData
from engine.keeper.recipes import try_remove

log = logging.getLogger(__name__)

_KEEPER_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class DatabaseStatus:
    """For `system.database_replicas`. Numbers are 0 and the error is set where Keeper does not answer."""

    log_ptr: int = 0
    max_log_ptr: int = 0
    total_replicas: int = 0
    keeper_error: str = ""
    is_session_expired: bool = False


class ReplicatedDatabase(DatabaseWorker):
    """`create` it or find it in Keeper, then `start` and `stop`."""

    async def _keeper(self) -> Keeper:
        """Raises KeeperUnavailable: whoever holds up other statements does not wait for ever."""
        return await self._holder.get(timeout_s=_KEEPER_WAIT_S)

    async def create(self) -> None:
        """CREATE DATABASE. Raises SqlError 36, 253, 571, and what Keeper says."""
        keeper = await self._keeper()
        await create_database(
            keeper,
            self.paths,
            database_name=self._database_name(),
            logs_to_keep=self._settings.logs_to_keep,
        )
        async with self._enqueue_lock:
            await create_replica(keeper, self._env, self.paths, self.me, host=self._host, group=self._group)
        self.cluster = await read_cluster(keeper, self.paths, self._group)

    # -- the initiator ---------------------------------------------------------------------------------------

    async def submit(
        self,
        query: str,
        *,
        settings: Mapping[str, str],
        initial_query_id: str,
        execute: Execute,
        timeout_s: float,
    ) -> int:
        """Propose a statement, carry it out here, commit it: the entry's number.

        `execute` is awaited when all earlier entries are done here, and calls the `Commit` that it is given;
        if it does not, the entry is committed behind it. Raises SqlError 225, 529, 341, 571, and what
        `execute` raises.

        Cancelled, it goes on by itself: cut off in the middle it would leave `counter_lock` or `try`, which
        hold up all replicas for as long as this session lives, or a table that no other replica has.
        """
        submitting = asyncio.get_running_loop().create_task(
            self._submit(query, settings, initial_query_id, execute, timeout_s), name="submits"
        )
        self._submitting.add(submitting)
        submitting.add_done_callback(self._is_submitted)
        return await asyncio.shield(submitting)

    def _is_submitted(self, submitting: asyncio.Task[int]) -> None:
        self._submitting.discard(submitting)
        if not submitting.cancelled() and (error := submitting.exception()) is not None:
            log.info("databases.not_submitted database=%s error=%s", self._database_name(), error)

    async def _submit(
        self,
        query: str,
        settings: Mapping[str, str],
        initial_query_id: str,
        execute: Execute,
        timeout_s: float,
    ) -> int:
        await self._wait_for_start()
        keeper = self._active_in
        if self.is_readonly or keeper is None or keeper.is_expired:
            raise SqlError(
                Code.NO_ZOOKEEPER,
                f"Database {self._database_name()} is in readonly mode, because "
                f"{self.readonly_reason or 'it has no session with ZooKeeper'}",
                hint="Nothing was changed; try again.",
            )
        entry = DDLLogEntry(
            version=DEFAULT_VERSION,
            query=query,
            hosts=(),
            initiator=str(self.me),
            settings=tuple(Setting.of(name, value) for name, value in sorted(settings.items())),
            initial_query_id=initial_query_id,
        )
        done = asyncio.Event()
        try:
            await self._check_lag(keeper)
            async with self._enqueue_lock:
                number = await enqueue(keeper, self._env, self.paths, self.me, entry, is_committed=False)
                self._own[number] = done
        except SqlError:
            raise
        except OnclusterError as error:
            raise SqlError(
                Code.DATABASE_REPLICATION_FAILED,
                f"Database {self._database_name()}: the statement was not proposed: {error.message}",
                hint="Nothing was changed, whatever is left in the log; it can be sent again.",
            ) from error
        try:
            await self._execute_own(keeper, number, query, execute, timeout_s)
        finally:
            done.set()
            del self._own[number]
        return number

    async def _check_lag(self, keeper: Keeper) -> None:
        newest = int((await keeper.get(self.paths.max_log_ptr)).data)
        most = self._settings.max_replication_lag_to_enqueue
        if self._ptr + most < newest:
            raise SqlError(
                Code.NOT_A_LEADER,
                "Cannot enqueue query on this replica, because it has replication lag of "
                f"{newest - self._ptr} queries. Try other replica.",
            )

    async def _execute_own(
        self, keeper: Keeper, number: int, query: str, execute: Execute, timeout_s: float
    ) -> None:
        active = self.paths.entry(number, f"active/{self.me}")
        proposal: Proposal | None = None
        try:
            await self._wait_for_turn(keeper, number, timeout_s)
            try:
                await keeper.create(active, mode=CreateMode.EPHEMERAL)
            except NodeExists:
                pass
            proposal = Proposal(
                keeper,
                self._holder,
                self._env,
                self.paths,
                self.me,
                number,
                self._schema,
                once_per_shard=await self._schema.runs_once_per_shard(query),
                is_active=True,
            )
            async with self._digest_lock:
                self._schema.begins(number)
                await execute(proposal)
                if not proposal.is_used:
                    await proposal({})
        except BaseException:  # whatever it is, also a cancellation: the number must not be waited for
            if proposal is None or not proposal.is_committed:
                await self._give_up(keeper, number)
            else:
                self._restarts = True  # committed, and perhaps not carried out here
                self._wake.set()
            raise
        await self._correct(keeper, proposal)

    async def _wait_for_turn(self, keeper: Keeper, number: int, timeout_s: float) -> None:
        deadline_s = self._env.monotonic_s() + timeout_s
        while self._current < number:
            if self._is_stopping or keeper.is_expired or self._active_in is not keeper:
                raise SqlError(
                    Code.DATABASE_REPLICATION_FAILED,
                    "ZooKeeper session is lost while the query was waiting for its turn",
                    hint="Nothing was changed; try again.",
                )
            left_s = deadline_s - self._env.monotonic_s()
            if left_s <= 0:
                raise SqlError(
                    Code.UNFINISHED,
                    "Timeout: Cannot enqueue query on this replica, most likely because replica is busy with "
                    "previous queue entries",
                )
            moved = self._moved
            try:
                async with asyncio.timeout(min(TICK_S, left_s)):
                    await moved.wait()
            except TimeoutError:
                pass

    async def _give_up(self, keeper: Keeper, number: int) -> None:
        """The others skip the entry. If this cannot be said, the end of the session says it."""
        for leaf in (f"active/{self.me}", "try"):
            try:
                await try_remove(keeper, self.paths.entry(number, leaf))
            except OnclusterError as error:
                log.info("databases.try_stays database=%s error=%s", self._database_name(), error)

    async def _correct(self, keeper: Keeper, proposal: Proposal) -> None:
        """What was committed beforehand was planned; what is here counts."""
        if not proposal.changes:
            return
        texts = self._schema.texts()
        wrong = {
            name: texts[name]
            for name, text in proposal.changes.items()
            if text is not None
            and name in texts
            and texts[name] != text
            and not self._schema.replicates(text)
        }
        if not wrong:
            return
        log.warning("databases.planned_wrong database=%s tables=%s", self._database_name(), list(wrong))
        try:
            async with self._digest_lock:
                await on_same_session(self._env, lambda: self._write_what_is_here(keeper, proposal, wrong))
        except OnclusterError as error:
            # The statement is committed and done; what Keeper has is looked at when the session begins anew.
            log.warning("databases.plan_stays database=%s error=%s", self._database_name(), error)
            self._restarts = True
            self._wake.set()

    async def _write_what_is_here(self, keeper: Keeper, proposal: Proposal, texts: Mapping[str, str]) -> None:
        """Not over what a later entry has defined. `max_log_ptr` gets another version and the same value, so
        that who reads a snapshot meanwhile reads it again."""
        while True:
            newest = await keeper.get(self.paths.max_log_ptr)
            digest = str(digest_of(self._schema.texts())).encode()
            ops: list[Op] = [SetData(self.paths.replica(self.me, "digest"), digest)]
            if int(newest.data) == proposal.number:
                ops.append(SetData(self.paths.max_log_ptr, newest.data, newest.stat.version))
                ops += [SetData(self.paths.table(name), encode_bytes(text)) for name, text in texts.items()]
            try:
                await keeper.multi(ops)
            except MultiFailed as failed:
                log.info("databases.plan_meets database=%s error=%s", self._database_name(), failed.message)
                if not isinstance(failed.error, BadVersion):
                    raise
            else:
                return

    async def definition_changed(self) -> None:
        """A table's own replication has changed its definition here."""
        keeper = self._active_in
        if keeper is None or keeper.is_expired:
            return
        async with self._digest_lock:
            digest = digest_of(self._schema.texts())
            try:
                await keeper.set(self.paths.replica(self.me, "digest"), str(digest).encode())
            except OnclusterError as error:
                log.info("databases.digest_stays database=%s error=%s", self._database_name(), error)

    def outcomes(
        self, number: int, *, mode: OutputMode, timeout_s: float, synced: bool
    ) -> AsyncGenerator[ReplicaRow, None]:
        """See `outcome_rows`, of all replicas that are known now."""
        return outcome_rows(
            self._holder,
            self._env,
            self.paths,
            number,
            self.cluster.replicas,
            mode=mode,
            timeout_s=timeout_s,
            synced=synced,
        )

    # -- SYSTEM, DROP ----------------------------------------------------------------------------------------

    async def sync(self, *, strict: bool, timeout_s: float) -> None:
        """Until this replica has done what was committed at the time of the call; `strict` also until it is
        not behind. Raises SqlError 159."""
        deadline_s = self._env.monotonic_s() + timeout_s
        keeper = await self._holder.get(timeout_s=timeout_s)
        await keeper.sync(self.paths.max_log_ptr)
        target = int((await keeper.get(self.paths.max_log_ptr)).data)
        while self._ptr < target or self.is_readonly:
            left_s = deadline_s - self._env.monotonic_s()
            if left_s <= 0 or self._is_stopping:
                raise SqlError(
                    Code.TIMEOUT_EXCEEDED,
                    f"SYNC DATABASE REPLICA {self._database_name()}: database is readonly or command timed "
                    f"out. See the 'receive_timeout' setting. It has done entry {self._ptr} of {target}.",
                )
            moved = self._moved
            try:
                async with asyncio.timeout(min(TICK_S, left_s)):
                    await moved.wait()
            except TimeoutError:
                pass
            if strict and self._ptr >= target:
                target = int((await keeper.get(self.paths.max_log_ptr)).data)
                target -= self._settings.max_replication_lag_to_enqueue

    async def restore(self) -> None:
        """SYSTEM RESTORE DATABASE REPLICA. Raises as `create`."""
        keeper = await self._keeper()
        await restore_database(
            keeper,
            self.paths,
            self._schema.texts(),
            database_name=self._database_name(),
            logs_to_keep=self._settings.logs_to_keep,
        )
        async with self._enqueue_lock:
            await create_replica(keeper, self._env, self.paths, self.me, host=self._host, group=self._group)
        self._restarts = True
        self._wake.set()

    async def drop_begin(self) -> None:
        """Before local tables go: nobody counts on this replica any more."""
        keeper = await self._keeper()
        async with self._enqueue_lock:
            try:
                await mark_dropped(keeper, self._env, self.paths, self.me, host=self._host)
            except (NoNode, MultiFailed) as gone:
                log.info("databases.gone_already database=%s answer=%s", self._database_name(), gone)

    async def drop_end(self) -> None:
        """After local tables went."""
        await remove_replica(await self._keeper(), self.paths, self.me)

    async def drop_replica(self, full_name: str, *, if_there: bool) -> bool:
        """SYSTEM DROP DATABASE REPLICA of another one. Raises SqlError 305 for this one, 36."""
        if full_name == str(self.me):
            raise SqlError(
                Code.TABLE_WAS_NOT_DROPPED,
                "There is a local database "
                f"{self._database_name()}, which has the same path in ZooKeeper and the same replica name. "
                "Please check the path in query. If you want to drop replica of this database, use `DROP "
                "DATABASE`",
            )
        keeper = await self._keeper()
        async with self._enqueue_lock:
            return await drop_other_replica(
                keeper, self._env, self.paths, full_name, if_there=if_there, me=self.me
            )

    async def status(self) -> DatabaseStatus:
        keeper = self._holder.current
        if keeper is None:
            return DatabaseStatus(log_ptr=self._ptr, is_session_expired=True)
        try:
            newest = int((await keeper.get(self.paths.max_log_ptr)).data)
            replicas = len((await keeper.children(self.paths.replicas)).names)
        except OnclusterError as error:
            return DatabaseStatus(log_ptr=self._ptr, keeper_error=str(error))
        return DatabaseStatus(self._ptr, newest, replicas)

    async def replica_states(self) -> Mapping[str, ReplicaState]:
        """By full name; empty when Keeper does not answer."""
        keeper = self._holder.current
        if keeper is None:
            return {}
        try:
            return await read_states(keeper, self.paths)
        except OnclusterError:
            return {}
