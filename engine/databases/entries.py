"""One entry of the log after the other, on a replica that has not sent it.

Safety argument. For each entry the replica waits until its initiator has committed it or given it up
(`proposal`), then carries it out and records that in one transaction: pointer, `finished`, digest. A crash
between effect and record leaves a digest that does not fit; the next start recognises the effect
(`unrecorded`), or compares every definition with Keeper's (`comparison`). What was carried out and could not
be recorded, because the connection or the session was lost, is recorded later and not carried out again: a
second EXCHANGE would undo the first, and a second TRUNCATE take rows that came since. An entry that is not
committed is passed over, but not where the log may have forgotten that it was: all definitions are compared.

The initiator's own entries are carried out in the client's task (`initiator`), whose end is waited for here.

Source: ClickHouse's DatabaseReplicatedDDLWorker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from engine.databases.cluster import is_there
from engine.databases.digest import LOST_DIGEST, digest_of
from engine.databases.entry_cleanup import may_be_removed
from engine.databases.progress import Progress
from engine.databases.replica import DatabaseReplica
from engine.databases.shard_turn import ShardTurn
from engine.databases.unrecorded import find_unrecorded
from engine.ddl.attempt import Fence
from engine.ddl.entry import DDLLogEntry
from engine.ddl.text import encode_bytes
from engine.errors import (
    Code,
    KeeperAnswer,
    MalformedEntry,
    NodeExists,
    NoNode,
    SessionExpired,
    SqlError,
)
from engine.keeper.base import NO_SESSION, Create, CreateMode, Keeper, Op, Remove, SetData
from engine.keeper.recipes import Signal, try_remove

log = logging.getLogger(__name__)

_TICK_S = 1.0


class EntryExecutor:
    """Called by the worker, for one entry at a time."""

    def __init__(self, replica: DatabaseReplica, progress: Progress) -> None:
        self._replica = replica
        self._progress = progress
        self._unrecorded = 0
        """An entry that this process has carried out and not recorded; 0: there is none."""

    async def process(self, keeper: Keeper, number: int) -> bool:
        """Returns when the replica is done with the entry: whether the cluster is another one now. Not done
        where `progress.restarts`: it may have been committed, and the log has forgotten it."""
        replica, progress = self._replica, self._progress
        progress.current = number
        progress.announce()
        async with progress.numbers:  # who has put an entry there notes it before it lets go
            own = progress.own.get(number)
        if own is not None:
            await own.wait()
        await self._remove_orphaned_try(keeper, number)
        await self._wait_for_initiator(keeper, number)
        path = replica.paths.entry(number)
        committed = await is_there(keeper, replica.paths.entry(number, "committed"))
        data = await is_there(keeper, path)
        if committed is None or data is None:
            if await may_be_removed(keeper, replica.paths, number):
                log.warning("databases.forgotten database=%s entry=%d", replica.name, number)
                progress.restarts = True
                return False
            log.info("databases.skipped database=%s entry=%d", replica.name, number)
            return False
        try:
            entry = DDLLogEntry.from_bytes(data, where=path)
        except MalformedEntry as error:
            raise SqlError(Code.DATABASE_REPLICATION_FAILED, error.message) from error
        if not entry.query:
            return True
        if committed == encode_bytes(str(replica.me)):
            return False
        if await keeper.exists(replica.paths.entry(number, f"finished/{replica.me}")) is None:
            await self._carry_out(keeper, number, entry)
        return False

    async def record_what_is_done(self, keeper: Keeper) -> None:
        """The session, or an earlier process, ended between effect and record: the definitions here are those
        of a later entry than Keeper says. If that cannot be said any more they are compared as they are."""
        replica = self._replica
        if not self._unrecorded:
            async with self._progress.definitions:
                self._unrecorded = await find_unrecorded(keeper, replica)
        number = self._unrecorded
        if not number:
            return
        digest = await is_there(keeper, replica.paths.replica(replica.me, "digest"))
        pointer = int((await keeper.get(replica.paths.replica(replica.me, "log_ptr"))).data)
        if digest != LOST_DIGEST and pointer < number:
            try:
                await self._show_active(keeper, number)
                await self._record(keeper, number, [])
            except KeeperAnswer as answer:
                log.warning(
                    "databases.not_recorded database=%s entry=%d answer=%s", replica.name, number, answer
                )
        self._unrecorded = 0

    async def _remove_orphaned_try(self, keeper: Keeper, number: int) -> None:
        """A `try` of this very session with nobody behind it: its client went away while it was made, or a
        broken connection kept it from being given up. The session may live for long, and everybody waits. So
        they do for one that no session owns, of a copy of Keeper's tree; a `try` is never made again."""
        path = self._replica.paths.entry(number, "try")
        stat = await keeper.exists(path)
        if stat is not None and stat.ephemeral_owner in (NO_SESSION, keeper.session_id):
            log.warning("databases.orphaned_try database=%s entry=%d", self._replica.name, number)
            await try_remove(keeper, path)

    async def _wait_for_initiator(self, keeper: Keeper, number: int) -> None:
        replica = self._replica
        path = replica.paths.entry(number, "try")
        deadline_s = replica.env.monotonic_s() + replica.settings.wait_entry_commited_timeout_sec
        while True:
            signal = Signal()
            try:
                await keeper.get(path, watch=signal)
            except NoNode:
                return
            left_s = deadline_s - replica.env.monotonic_s()
            if left_s <= 0:
                log.warning("databases.initiator_hangs database=%s entry=%d", replica.name, number)
                await try_remove(keeper, path)
                return
            if self._progress.is_stopping:
                raise SessionExpired("The node stops")
            try:
                async with asyncio.timeout(min(_TICK_S, left_s)):
                    await signal.wait()
            except TimeoutError:
                pass

    async def _carry_out(self, keeper: Keeper, number: int, entry: DDLLogEntry) -> None:
        replica, schema = self._replica, self._replica.schema
        settings = {setting.name: setting.value for setting in entry.settings}
        ops: Sequence[Op] = []
        await self._show_active(keeper, number)
        if number != self._unrecorded:
            log.info("databases.execute database=%s entry=%d", replica.name, number)
            schema.begins(number)
            execute = partial(schema.execute, number, entry.query, settings)
            if await schema.runs_once_per_shard(entry.query):
                turn = ShardTurn(keeper, replica.env, replica.paths, replica.me, number)
                ops = await turn.run(execute)
            else:
                await execute(Fence())
                self._unrecorded = number
        await self._record(keeper, number, ops)

    async def _show_active(self, keeper: Keeper, number: int) -> None:
        path = self._replica.paths.entry(number, f"active/{self._replica.me}")
        try:
            await keeper.create(path, mode=CreateMode.EPHEMERAL)
        except NodeExists:
            pass

    async def _record(self, keeper: Keeper, number: int, ops: Sequence[Op]) -> None:
        paths, me = self._replica.paths, self._replica.me
        async with self._progress.definitions:
            texts = self._replica.schema.texts()
            await keeper.multi(
                [
                    Remove(paths.entry(number, f"active/{me}")),
                    SetData(paths.replica(me, "log_ptr"), str(number).encode()),
                    Create(paths.entry(number, f"finished/{me}"), b"0\n"),
                    Create(paths.entry(number, f"synced/{me}"), b"0\n"),
                    SetData(paths.replica(me, "digest"), str(digest_of(texts)).encode()),
                    *ops,
                ]
            )
            self._progress.known = texts
        self._unrecorded = 0
