"""One Replicated database on one replica: its parts put together, and how it comes, goes and is.

Safety argument: that of `worker`, `entries` and `proposal`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from engine.databases.cluster import DatabaseCluster, ReplicaState, read_cluster, read_states
from engine.databases.digest import digest_of
from engine.databases.initiator import Initiator
from engine.databases.joining import (
    create_database,
    create_replica,
    drop_other_replica,
    mark_dropped,
    remove_replica,
    restore_database,
)
from engine.databases.outcomes import ReplicaRow, outcome_rows
from engine.databases.progress import Progress
from engine.databases.proposal import Execute
from engine.databases.replica import DatabaseReplica
from engine.databases.worker import DatabaseWorker
from engine.ddl.output import OutputMode
from engine.errors import Code, MultiFailed, NoNode, OnclusterError, SqlError
from engine.keeper.base import Keeper

log = logging.getLogger(__name__)

_KEEPER_WAIT_S = 10.0
_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class DatabaseStatus:
    """For `system.database_replicas`. Numbers are 0 and the error is set where Keeper does not answer."""

    log_ptr: int = 0
    max_log_ptr: int = 0
    total_replicas: int = 0
    keeper_error: str = ""
    is_session_expired: bool = False


class ReplicatedDatabase:
    """`create` it or find it in Keeper, then `start` and `stop`."""

    def __init__(self, replica: DatabaseReplica, known: Mapping[str, str] = _NOTHING) -> None:
        """`known`: the definitions that were here when the process began."""
        self._replica = replica
        self._progress = Progress(known)
        self._initiator = Initiator(replica, self._progress)
        self._worker = DatabaseWorker(replica, self._progress)
        self._working: asyncio.Task[None] | None = None

    @property
    def cluster(self) -> DatabaseCluster:
        """The replicas as they were known last."""
        return self._progress.cluster

    @property
    def is_readonly(self) -> bool:
        return self._progress.is_readonly

    @property
    def readonly_reason(self) -> str:
        """Why statements are refused; empty if they are not."""
        return self._replica.holder.explain(self._progress.readonly_reason)

    async def create(self) -> None:
        """CREATE DATABASE. Raises SqlError 36, 253, 571, and what Keeper says."""
        keeper = await self._keeper()
        await create_database(
            keeper,
            self._replica.paths,
            database_name=self._replica.name,
            logs_to_keep=self._replica.settings.logs_to_keep,
        )
        await self._create_replica(keeper)
        self._progress.cluster = await read_cluster(keeper, self._replica.paths, self._replica.group)

    def start(self) -> None:
        """Follow the log in the background."""
        self._working = self._worker.start()

    async def stop(self, *, grace_s: float) -> None:
        """A statement of the log that is being carried out comes to its end, within the time."""
        self._progress.stop()
        tasks: list[asyncio.Task[None] | asyncio.Task[int]] = [*self._initiator.tasks]
        if self._working is not None:
            tasks.append(self._working)
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self._worker.leave()

    # -- statements ------------------------------------------------------------------------------------------

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
        return await self._initiator.submit(
            query,
            settings=settings,
            initial_query_id=initial_query_id,
            execute=execute,
            timeout_s=timeout_s,
        )

    def outcomes(
        self, number: int, *, mode: OutputMode, timeout_s: float, synced: bool
    ) -> AsyncGenerator[ReplicaRow, None]:
        """See `outcome_rows`, of all replicas that are known now."""
        return outcome_rows(
            self._replica.holder,
            self._replica.env,
            self._replica.paths,
            number,
            self.cluster.replicas,
            mode=mode,
            timeout_s=timeout_s,
            synced=synced,
        )

    async def definition_changed(self) -> None:
        """A table's own replication has changed its definition here."""
        keeper, replica = self._progress.active_in, self._replica
        if keeper is None or keeper.is_expired:
            return
        async with self._progress.definitions:
            texts = replica.schema.texts()
            try:
                digest = str(digest_of(texts)).encode()
                await keeper.set(replica.paths.replica(replica.me, "digest"), digest)
                self._progress.known = texts
            except OnclusterError as error:
                log.info("databases.digest_stays database=%s error=%s", replica.name, error)

    # -- SYSTEM, DROP ----------------------------------------------------------------------------------------

    async def sync(self, *, strict: bool, timeout_s: float) -> None:
        """Until this replica has done what was committed at the time of the call; `strict` also until it is
        not behind. Raises SqlError 159."""
        replica, progress = self._replica, self._progress
        newest = replica.paths.max_log_ptr
        deadline_s = replica.env.monotonic_s() + timeout_s
        keeper = await replica.holder.get(timeout_s=timeout_s)
        await keeper.sync(newest)
        target = int((await keeper.get(newest)).data)
        while progress.pointer < target or progress.is_readonly:
            left_s = deadline_s - replica.env.monotonic_s()
            if left_s <= 0 or progress.is_stopping:
                raise SqlError(
                    Code.TIMEOUT_EXCEEDED,
                    f"SYNC DATABASE REPLICA {replica.name}: database is readonly or command timed out. See "
                    f"the 'receive_timeout' setting. It has done entry {progress.pointer} of {target}.",
                )
            await progress.moves(within_s=left_s)
            if strict and progress.pointer >= target:
                target = int((await keeper.get(newest)).data)
                target -= replica.settings.max_replication_lag_to_enqueue

    async def restore(self) -> None:
        """SYSTEM RESTORE DATABASE REPLICA. Raises as `create`."""
        keeper = await self._keeper()
        await restore_database(
            keeper,
            self._replica.paths,
            self._replica.schema.texts(),
            database_name=self._replica.name,
            logs_to_keep=self._replica.settings.logs_to_keep,
        )
        await self._create_replica(keeper)
        self._progress.restart()

    async def drop_begin(self) -> None:
        """Before local tables go: nobody counts on this replica any more."""
        keeper, replica = await self._keeper(), self._replica
        async with self._progress.numbers:
            try:
                await mark_dropped(keeper, replica.env, replica.paths, replica.me, host=replica.host)
            except (NoNode, MultiFailed) as gone:
                log.info("databases.gone_already database=%s answer=%s", replica.name, gone)

    async def drop_end(self) -> None:
        """After local tables went."""
        await remove_replica(await self._keeper(), self._replica.paths, self._replica.me)

    async def drop_replica(self, full_name: str, *, if_there: bool) -> bool:
        """SYSTEM DROP DATABASE REPLICA of another one. Raises SqlError 305 for this one, 36."""
        replica = self._replica
        if full_name == str(replica.me):
            raise SqlError(
                Code.TABLE_WAS_NOT_DROPPED,
                f"There is a local database {replica.name}, which has the same path in ZooKeeper and the "
                "same replica name. Please check the path in query. If you want to drop replica of this "
                "database, use `DROP DATABASE`",
            )
        keeper = await self._keeper()
        async with self._progress.numbers:
            return await drop_other_replica(
                keeper, replica.env, replica.paths, full_name, if_there=if_there, me=replica.me
            )

    # -- how it is -------------------------------------------------------------------------------------------

    async def status(self) -> DatabaseStatus:
        keeper, pointer = self._replica.holder.current, self._progress.pointer
        if keeper is None:
            return DatabaseStatus(pointer, keeper_error=self.readonly_reason, is_session_expired=True)
        try:
            newest = int((await keeper.get(self._replica.paths.max_log_ptr)).data)
            replicas = len((await keeper.children(self._replica.paths.replicas)).names)
        except OnclusterError as error:
            return DatabaseStatus(log_ptr=pointer, keeper_error=str(error))
        return DatabaseStatus(pointer, newest, replicas)

    async def replica_states(self) -> Mapping[str, ReplicaState]:
        """By full name; empty when Keeper does not answer."""
        keeper = self._replica.holder.current
        if keeper is None:
            return {}
        try:
            return await read_states(keeper, self._replica.paths)
        except OnclusterError:
            return {}

    async def _keeper(self) -> Keeper:
        """Raises KeeperUnavailable: whoever holds up other statements does not wait for ever."""
        return await self._replica.holder.get(timeout_s=_KEEPER_WAIT_S)

    async def _create_replica(self, keeper: Keeper) -> None:
        replica = self._replica
        async with self._progress.numbers:
            await create_replica(
                keeper, replica.env, replica.paths, replica.me, host=replica.host, group=replica.group
            )
