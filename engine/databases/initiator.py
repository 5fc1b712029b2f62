"""Clients' statements on this replica: proposed in the log, carried out in their turn, committed.

Safety argument: that of `proposal`. A statement's number is given up, or its `try` goes with the session, if
it is not committed: the others wait for it no longer. One that Keeper was lost for before it was begun gets
another number. Committed and perhaps not carried out here, or not committed and not undone, the session
begins anew, which compares the definitions.

Source: ClickHouse's DatabaseReplicated::tryEnqueueReplicatedDDL and
DatabaseReplicatedDDLWorker::tryEnqueueAndExecuteEntry.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

from engine.databases.comparison import fits
from engine.databases.digest import digest_of
from engine.databases.numbering import enqueue, on_same_session
from engine.databases.progress import Progress
from engine.databases.proposal import Execute, Proposal
from engine.databases.replica import DatabaseReplica
from engine.ddl.entry import DEFAULT_VERSION, DDLLogEntry, Setting
from engine.ddl.text import encode_bytes
from engine.errors import (
    BadVersion,
    Code,
    ConnectionLoss,
    MultiFailed,
    NodeExists,
    OnclusterError,
    OperationTimeout,
    SessionExpired,
    SqlError,
)
from engine.keeper.base import CreateMode, Keeper, Op, SetData
from engine.keeper.recipes import try_remove

log = logging.getLogger(__name__)

_PATIENCE_S = 60.0
_PAUSE_S = 0.2


class NotBegun(SqlError):
    """Keeper was lost before anything was changed: the statement can be proposed again."""

    def __init__(self, database: str, why: str) -> None:
        super().__init__(
            Code.DATABASE_REPLICATION_FAILED,
            f"Database {database}: the statement was not proposed: {why}",
            hint="Nothing was changed, whatever is left in the log; it can be sent again.",
        )


class Initiator:
    """Any number of statements at once; the log puts them one behind the other."""

    def __init__(self, replica: DatabaseReplica, progress: Progress) -> None:
        self._replica = replica
        self._progress = progress
        self._tasks: set[asyncio.Task[int]] = set()

    @property
    def tasks(self) -> Collection[asyncio.Task[int]]:
        """Statements under way; their clients may have gone."""
        return self._tasks

    async def submit(
        self,
        query: str,
        *,
        settings: Mapping[str, str],
        initial_query_id: str,
        execute: Execute,
        timeout_s: float,
    ) -> int:
        """See `ReplicatedDatabase.submit`."""
        entry = DDLLogEntry(
            version=DEFAULT_VERSION,
            query=query,
            hosts=(),
            initiator=str(self._replica.me),
            settings=tuple(Setting.of(name, value) for name, value in sorted(settings.items())),
            initial_query_id=initial_query_id,
        )
        task = asyncio.get_running_loop().create_task(self._submit(entry, execute, timeout_s), name="submits")
        self._tasks.add(task)
        task.add_done_callback(self._is_submitted)
        return await asyncio.shield(task)

    def _is_submitted(self, task: asyncio.Task[int]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("databases.not_submitted database=%s error=%s", self._replica.name, error)

    async def _submit(self, entry: DDLLogEntry, execute: Execute, timeout_s: float) -> int:
        env, progress = self._replica.env, self._progress
        begun_s = env.monotonic_s()
        while True:
            try:
                return await self._try(entry, execute, begun_s + timeout_s)
            except NotBegun as error:
                if progress.is_stopping or env.monotonic_s() - begun_s >= min(timeout_s, _PATIENCE_S):
                    raise
                log.info("databases.proposed_again database=%s error=%s", self._replica.name, error)
            await env.sleep(_PAUSE_S)

    async def _try(self, entry: DDLLogEntry, execute: Execute, deadline_s: float) -> int:
        keeper = await self._session()
        done = asyncio.Event()
        number = await self._propose(keeper, entry, done)
        try:
            await self._execute(keeper, number, entry.query, execute, deadline_s)
        finally:
            done.set()
            del self._progress.own[number]
        return number

    async def _session(self) -> Keeper:
        """Raises SqlError 225."""
        progress = self._progress
        await progress.wait_for_keeper()
        keeper = progress.active_in
        if progress.is_readonly or keeper is None or keeper.is_expired:
            raise SqlError(
                Code.NO_ZOOKEEPER,
                f"Database {self._replica.name} is in readonly mode, because "
                + self._replica.holder.explain(
                    progress.readonly_reason or "it has no session with ZooKeeper"
                ),
                hint="Nothing was changed; try again.",
            )
        return keeper

    async def _propose(self, keeper: Keeper, entry: DDLLogEntry, done: asyncio.Event) -> int:
        replica, progress = self._replica, self._progress
        try:
            await self._check_lag(keeper)
            async with progress.numbers:
                number = await enqueue(
                    keeper, replica.env, replica.paths, replica.me, entry, is_committed=False
                )
                progress.own[number] = done
        except SqlError:
            raise
        except (ConnectionLoss, OperationTimeout, SessionExpired) as error:
            raise NotBegun(replica.name, error.message) from error
        except OnclusterError as error:
            raise SqlError(
                Code.DATABASE_REPLICATION_FAILED,
                f"Database {replica.name}: the statement was not proposed: {error.message}",
            ) from error
        return number

    async def _check_lag(self, keeper: Keeper) -> None:
        newest = int((await keeper.get(self._replica.paths.max_log_ptr)).data)
        lag = newest - self._progress.pointer
        if lag > self._replica.settings.max_replication_lag_to_enqueue:
            raise SqlError(
                Code.NOT_A_LEADER,
                "Cannot enqueue query on this replica, because it has replication lag of "
                f"{lag} queries. Try other replica.",
            )

    async def _execute(
        self, keeper: Keeper, number: int, query: str, execute: Execute, deadline_s: float
    ) -> None:
        replica, schema = self._replica, self._replica.schema
        proposal: Proposal | None = None
        try:
            await self._take_turn(keeper, number, deadline_s)
            once_per_shard = await schema.runs_once_per_shard(query)
            proposal = Proposal(keeper, replica, number, once_per_shard=once_per_shard)
            async with self._progress.definitions:
                schema.begins(number)
                await execute(proposal)
                if not proposal.is_used:
                    await proposal({})
                self._progress.known = proposal.texts
        except BaseException:  # whatever it is, also a cancellation: the number must not be waited for
            if proposal is None or not proposal.is_committed:
                await self._give_up(keeper, number)
            if proposal is not None and (proposal.is_committed or self._differs()):
                self._progress.restart()  # committed, and perhaps not carried out here; or not undone
            raise
        await self._correct(keeper, proposal)

    def _differs(self) -> bool:
        known = self._progress.known
        return not fits(self._replica.schema, str(digest_of(known)).encode(), known)

    async def _take_turn(self, keeper: Keeper, number: int, deadline_s: float) -> None:
        replica = self._replica
        await self._wait_for_turn(keeper, number, deadline_s)
        try:
            await keeper.create(
                replica.paths.entry(number, f"active/{replica.me}"), mode=CreateMode.EPHEMERAL
            )
        except NodeExists:
            pass
        except (ConnectionLoss, OperationTimeout, SessionExpired) as error:
            raise NotBegun(replica.name, error.message) from error

    async def _wait_for_turn(self, keeper: Keeper, number: int, deadline_s: float) -> None:
        progress = self._progress
        while progress.current < number:
            if progress.is_stopping or keeper.is_expired or progress.active_in is not keeper:
                why = "the session with ZooKeeper was lost while it waited for its turn"
                raise NotBegun(self._replica.name, why)
            left_s = deadline_s - self._replica.env.monotonic_s()
            if left_s <= 0:
                raise SqlError(
                    Code.UNFINISHED,
                    "Timeout: Cannot enqueue query on this replica, most likely because replica is busy with "
                    "previous queue entries",
                )
            await progress.moves(within_s=left_s)

    async def _give_up(self, keeper: Keeper, number: int) -> None:
        """The others skip the entry. If this cannot be said, the end of the session says it."""
        for leaf in (f"active/{self._replica.me}", "try"):
            try:
                await try_remove(keeper, self._replica.paths.entry(number, leaf))
            except OnclusterError as error:
                log.info("databases.try_stays database=%s error=%s", self._replica.name, error)

    async def _correct(self, keeper: Keeper, proposal: Proposal) -> None:
        """What was committed beforehand was planned; what is here counts."""
        if not proposal.changes:
            return
        replica = self._replica
        texts = replica.schema.texts()
        wrong = {
            name: texts[name]
            for name, text in proposal.changes.items()
            if text is not None
            and name in texts
            and texts[name] != text
            and not replica.schema.replicates(text)
        }
        if not wrong:
            return
        log.warning("databases.planned_wrong database=%s tables=%s", replica.name, list(wrong))
        try:
            async with self._progress.definitions:
                await on_same_session(replica.env, lambda: self._write_what_is_here(keeper, proposal, wrong))
        except OnclusterError as error:
            # The statement is committed and done; what Keeper has is looked at when the session begins anew.
            log.warning("databases.plan_stays database=%s error=%s", replica.name, error)
            self._progress.restart()

    async def _write_what_is_here(self, keeper: Keeper, proposal: Proposal, texts: Mapping[str, str]) -> None:
        """Not over what a later entry has defined. `max_log_ptr` gets another version and the same value, so
        that who reads a snapshot meanwhile reads it again."""
        replica, paths = self._replica, self._replica.paths
        while True:
            newest = await keeper.get(paths.max_log_ptr)
            here = replica.schema.texts()
            digest = str(digest_of(here)).encode()
            ops: list[Op] = [SetData(paths.replica(replica.me, "digest"), digest)]
            if int(newest.data) == proposal.number:
                ops.append(SetData(paths.max_log_ptr, newest.data, newest.stat.version))
                ops += [SetData(paths.table(name), encode_bytes(text)) for name, text in texts.items()]
            try:
                await keeper.multi(ops)
            except MultiFailed as failed:
                log.info("databases.plan_meets database=%s error=%s", replica.name, failed.message)
                if not isinstance(failed.error, BadVersion):
                    raise
            else:
                self._progress.known = here
                return
