"""From a record in the catalog to a running replica and back: the steps of CREATE, DROP and the node's start.

Safety argument. Every step can be repeated, and the record says which one comes next (`catalog`).

CREATE: 1. record CREATING. 2. chDB's table, under the record's UUID. 3. the replica in Keeper, with a
`creator_info` of that UUID and this server. 4. record ATTACHED. A crash after 1 leaves a record without a
table: it is removed. After 2 or 3 the table is there for readers, and read-only; the rest is done when Keeper
can be reached, or, when Keeper's answer is a refusal, undone. An error that the client sees leaves nothing:
the record turns DROPPING.

DROP: 1. record DROPPING. 2. the replica stops. 3. chDB's table. 4. the replica in Keeper, if its
`creator_info` says that it is this table's. 5. the record. A crash anywhere goes on with what is left; while
Keeper cannot be reached, 4 waits, and a CREATE of the same replica does 4 and 5 first.

Nothing here touches a replica in Keeper that another table or another server has made.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

from engine.config.graphite import GraphiteRollup
from engine.env import Env
from engine.errors import (
    Code,
    KeeperUnavailable,
    NoNode,
    OnclusterError,
    SqlError,
    Unavailable,
    UnknownOutcome,
    ran_out,
)
from engine.keeper.base import Keeper
from engine.keeper.recipes import SessionHolder
from engine.lifetime import end_if_cancelled, until_done
from engine.names import TableName
from engine.node.replicated.running.catalog import WITHOUT_RECORD, TableCatalog, TableRecord, TableState
from engine.node.replicated.running.local_tables import LocalTable, LocalTables
from engine.node.replicated.running.name_locks import NameLocks
from engine.node.replicated.running.runtime import ReplicatedTables, RunningTable, TableFactory
from engine.part_storage.hidden_settings import HIDDEN_SETTINGS
from engine.replication.commands.create import CheckPlace, Structure, create_replica
from engine.replication.commands.drop import drop_replica, remove_empty_above, remove_table_without_replicas
from engine.replication.creation import NewReplica
from engine.replication.table_definition import TableDefinition, parse_definition
from engine.storage import DiskReserve

log = logging.getLogger(__name__)

_RETRY_PAUSE_S = 2.0
_KEEPER_WAIT_S = 5.0
_ACTIVE_WAIT_S = 10.0
_WRITERS_WAIT_S = 15.0


class Leaves(enum.Enum):
    """What DROP TABLE leaves behind for a while."""

    DATA = "the data, for UNDROP"
    NOTHING = "nothing (SYNC)"


class TableLifecycle:
    """Knows every table of the catalog."""

    def __init__(
        self,
        *,
        env: Env,
        catalog: TableCatalog,
        dropped: TableCatalog,
        tables: ReplicatedTables,
        local: LocalTables,
        holder: SessionHolder,
        factory: TableFactory,
        server_uuid: UUID,
        on_change: Callable[[], None],
        reserve: DiskReserve,
    ) -> None:
        self._reserve = reserve
        self.catalog = catalog
        self.dropped = dropped
        """What UNDROP may still bring back."""
        self.tables = tables
        self.local = local
        self.holder = holder
        self.names = NameLocks()
        self.on_change = on_change
        self._env = env
        self._factory = factory
        self._server_uuid = server_uuid
        self.rollups: Mapping[str, GraphiteRollup] = {}
        """The rules of GraphiteMergeTree tables, functions by their own names."""
        self.check_new_name: Callable[[TableName], Awaitable[None]] = _nothing_to_check
        """Raises SqlError for a name that a replicated table must not have."""
        self.check_place: Callable[[str], CheckPlace] = lambda database: _nothing_to_check
        """For a table of a database; raises SqlError for a path that another shard has."""
        self._tasks: set[asyncio.Task[None]] = set()
        tables.recorded = self._recorded

    def _recorded(self) -> Collection[TableName]:
        return [r.name for r in self.catalog.all() if r.state is not TableState.DROPPING]

    # -- the node's start and end ----------------------------------------------------------------------------

    async def start(self, *, force: bool = False) -> None:
        """Attach every table that chDB has attached; what CREATE and DROP left goes on in the background.

        `force` skips the sanity checks of this start.
        """
        records = self.catalog.load()
        self.dropped.load()
        found = await self.local.by_uuid([record.uuid for record in records])
        for record in records:
            local = found.get(record.uuid)
            if local is not None and local.name != record.name:
                record = replace(record, name=local.name)
                self.catalog.put(record)
            match record.state, local:
                case TableState.DROPPING, _:
                    self.until_done(partial(self._drop_later, record.uuid), f"drop {record.name}")
                case TableState.CREATING, None:
                    self.catalog.remove(record.uuid)
                case TableState.CREATING, LocalTable():
                    await self.attach(record, local, is_started=False)
                    self.until_done(partial(self._create_later, record.uuid), f"create {record.name}")
                case TableState.ATTACHED, LocalTable():
                    await self.attach(record, local)
                case TableState.CONVERTING | TableState.RESTORING | TableState.LEAVING, _:
                    pass  # the converters', and UNDROP's
                case TableState.ATTACHED, None:
                    log.info("replicated.not_attached table=%s uuid=%s", record.name, record.uuid)
        await self._tell_of_lost_records()
        started = [t for t in self.tables.all() if t.record.state is TableState.ATTACHED]
        await asyncio.gather(*(self._start_replica(table, force=force) for table in started))

    async def _tell_of_lost_records(self) -> None:
        for local in await self.local.with_settings(HIDDEN_SETTINGS):
            if self.catalog.get(local.uuid) is None:
                log.critical(
                    "replicated.no_record table=%s uuid=%s: %s", local.name, local.uuid, WITHOUT_RECORD
                )

    async def _start_replica(self, table: RunningTable, *, force: bool) -> None:
        """A table that cannot be loaded is that table's trouble, not the node's, and is tried again."""
        if not await self._is_loaded(table, force=force):
            self.later(self._load_until_done(table, force=force), f"load {table.name}")

    async def _load_until_done(self, table: RunningTable, *, force: bool) -> None:
        while self.tables.by_uuid(table.uuid) is table and not table.ctx.is_ending:
            await self._env.sleep(_RETRY_PAUSE_S)
            if await self._is_loaded(table, force=force):
                return

    async def _is_loaded(self, table: RunningTable, *, force: bool) -> bool:
        try:
            await table.replica.start(force=force)
        except (OnclusterError, OSError) as error:
            end_if_cancelled()
            table.ctx.readonly_reason = f"its parts could not be loaded: {error}"
            log.critical("replicated.not_loaded table=%s error=%s", table.name, error)
            return False
        return True

    async def stop(self) -> None:
        """Stop all replicas; nothing is detached. What one of them raises does not keep the others."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        tables = self.tables.all()
        ends = await asyncio.gather(*(table.replica.stop() for table in tables), return_exceptions=True)
        for table, end in zip(tables, ends, strict=True):
            if isinstance(end, Exception):
                log.error("replicated.not_stopped table=%s error=%r", table.name, end, exc_info=end)
        await asyncio.gather(*(table.store.close() for table in tables))

    # -- running tables --------------------------------------------------------------------------------------

    async def attach(
        self, record: TableRecord, local: LocalTable, *, is_started: bool = True
    ) -> RunningTable:
        """Make the table known; the caller starts its replica."""
        table = await self.make(record, local)
        if not is_started:
            table.ctx.readonly_reason = "its creation is not finished"
        self.tables.add(table)
        self.on_change()
        return table

    async def make(self, record: TableRecord, local: LocalTable) -> RunningTable:
        """A table that does nothing and that nobody knows; its store has to be closed."""
        return await self._factory.make(replace(record, name=local.name), local)

    async def detach(self, table: RunningTable) -> None:
        """Stop the replica, forget the table; chDB's is as it was."""
        await self._stop(table)
        await table.store.close()

    async def _stop(self, table: RunningTable) -> None:
        await table.end(timeout_s=_WRITERS_WAIT_S)
        self.tables.discard(table)
        self.on_change()

    async def reattach(self, uuid: UUID) -> RunningTable | None:
        """Start what chDB has attached again, and give it a moment to become writable; None if chDB has not,
        or the table is no replicated one. Raises what keeps it from being loaded; it is detached then."""
        record = self.catalog.get(uuid)
        local = (await self.local.by_uuid([uuid])).get(uuid)
        if record is None or local is None or record.state is not TableState.ATTACHED:
            return None
        if (running := self.tables.by_uuid(uuid)) is not None:
            return running
        table = await self.attach(record, local)
        try:
            await table.replica.start()
        except BaseException:  # whatever it is: readers could find what a swap has left
            await self.detach(table)
            await self.local.run(f"DETACH TABLE {table.name.quoted}")
            raise
        try:
            if await self.is_ours(await self.holder.get(timeout_s=_KEEPER_WAIT_S), record):
                await self.wait_until_active(table)
        except (Unavailable, UnknownOutcome):
            pass  # it is read-only until Keeper is there
        return table

    async def wait_until_active(self, table: RunningTable) -> None:
        """Give the replica a moment to become writable; nothing happens if it does not."""
        await table.replica.wait_until_active(timeout_s=_ACTIVE_WAIT_S)

    # -- CREATE ----------------------------------------------------------------------------------------------

    async def finish_create(
        self, record: TableRecord, keeper: Keeper, *, structure: Structure = Structure.THE_TABLES
    ) -> RunningTable:
        """Steps 3 and 4. Raises what Keeper's side says; nothing is undone here."""
        local = (await self.local.by_uuid([record.uuid])).get(record.uuid)
        if local is None:
            raise SqlError(Code.UNKNOWN_TABLE, f"Table {record.name} does not exist.")
        definition = self.definition_of(local)
        new = self.new_replica(record, definition)
        check_place = self.check_place(record.name.database)
        await create_replica(
            keeper, record.paths, record.me, new, definition, check_place=check_place, structure=structure
        )
        record = replace(record, state=TableState.ATTACHED, name=local.name)
        self.catalog.put(record)
        table = self.tables.by_uuid(record.uuid)
        if table is None:
            table = await self.attach(record, local)
        else:
            table.record = record
        await table.replica.start()
        return table

    def definition_of(self, local: LocalTable) -> TableDefinition:
        """Raises as `parse_definition`."""
        return parse_definition(local.create_query, rollups=self.rollups)

    def new_replica(self, record: TableRecord, definition: TableDefinition) -> NewReplica:
        """What this node brings to Keeper with the table."""
        return NewReplica(
            metadata=definition.metadata.to_bytes(),
            columns=definition.columns.to_bytes(),
            table_uuid=record.uuid,
            server_uuid=self._server_uuid,
        )

    async def undo_in_chdb(self, record: TableRecord) -> None:
        """After an error of CREATE before Keeper heard of it. Without memory for it now, it is a DROP that
        goes on in the background, or in the next CREATE at the same place."""
        try:
            await self.local.drop(record.name, record.uuid)
        except SqlError as error:
            if not ran_out(error):
                raise
            self.catalog.put(replace(record, state=TableState.DROPPING))
            self.until_done(partial(self._undo_later, record.uuid), f"undo {record.name}")
            return
        self.catalog.remove(record.uuid)

    async def free_name(self, name: TableName) -> None:
        """Before a CREATE: what chDB could not drop yet of one that failed is no table of this name."""
        for record in self.catalog.all():
            if record.name == name and record.state is TableState.DROPPING:
                await self._drop_local(record)

    async def _undo_later(self, uuid: UUID) -> None:
        record = self.catalog.get(uuid)
        if record is None:
            return
        await self.holder.get()
        async with self.names.hold([record.name]):  # no CREATE of the same name, which may have the same UUID
            await self._drop_later(uuid)

    async def undo_create(self, record: TableRecord) -> None:
        """After an error of CREATE: everything of the table goes, Keeper's side when it can be reached."""
        self.catalog.put(replace(record, state=TableState.DROPPING))
        table = self.tables.by_uuid(record.uuid)
        if table is not None:
            await self._stop(table)
        try:
            await self._drop_local(record)
        except SqlError as error:  # it is tried again below
            if not ran_out(error):
                raise
        if table is not None:
            await table.store.destroy()
        await self._finish_or_later(record)

    async def _create_later(self, uuid: UUID) -> None:
        keeper = await self.holder.get()
        async with self.unfinished(uuid, TableState.CREATING) as record:
            if record is not None:
                await self._finish_or_undo(record, keeper)

    async def _finish_or_undo(self, record: TableRecord, keeper: Keeper) -> None:
        try:
            await self.finish_create(record, keeper)
        except (Unavailable, UnknownOutcome):
            raise
        except OnclusterError as error:
            log.error("replicated.create_undone table=%s error=%s", record.name, error)
            await self.undo_create(record)

    @asynccontextmanager
    async def unfinished(self, uuid: UUID, state: TableState) -> AsyncIterator[TableRecord | None]:
        """For what goes on in the background with an attached table that is in `state`: hold its name, so
        that no statement does anything with it meanwhile. None if there is no such table any more. Wait for
        Keeper before: statements do not wait for it, and are not to wait for the name."""
        while True:
            record = self.catalog.get(uuid)
            if record is None or record.state is not state or self.tables.by_uuid(uuid) is None:
                yield None
                return
            async with self.names.hold([record.name]):
                if self.catalog.get(uuid) == record and self.tables.by_uuid(uuid) is not None:
                    yield record
                    return

    # -- DROP ------------------------------------------------------------------------------------------------

    async def drop(
        self, record: TableRecord, drop_in_chdb: Callable[[], Awaitable[None]], *, leaves: Leaves
    ) -> None:
        """All steps; Keeper's may go on in the background. When chDB refuses, the table goes on as before.

        Raises SqlError, and OSError when it cannot be written down; the table goes on then, too.
        """
        table = self.tables.by_uuid(record.uuid)
        self.tables.being_dropped.add(record.name)
        try:
            with self._reserve.lent():
                await self._drop_here(record, table, drop_in_chdb, leaves=leaves)
        finally:
            self.tables.being_dropped.discard(record.name)
        if table is not None:
            await (table.store.close() if leaves is Leaves.DATA else table.store.destroy())
        await self._finish_or_later(record)

    async def _drop_here(
        self,
        record: TableRecord,
        table: RunningTable | None,
        drop_in_chdb: Callable[[], Awaitable[None]],
        *,
        leaves: Leaves,
    ) -> None:
        try:
            if leaves is Leaves.DATA:
                self.dropped.put(record)
            self.catalog.put(replace(record, state=TableState.DROPPING))
        except OSError:
            self.dropped.remove(record.uuid)
            raise
        if table is not None:
            await self._stop(table)
        try:
            await drop_in_chdb()
        except SqlError as error:
            if ran_out(error) and await self._is_gone(record.uuid):
                log.warning("replicated.dropped_in_spite_of table=%s error=%s", record.name, error)
                return
            self.catalog.put(record)
            self.dropped.remove(record.uuid)
            if table is not None:
                await table.store.close()
                await self._take_up_again(record)
            raise

    async def _take_up_again(self, record: TableRecord) -> None:
        """After a DROP that chDB refused. Memory that lacks for it is waited for: a table that stayed
        detached would be missing here, also for the DROP when it is repeated. Raises what else keeps it from
        being loaded; it is detached then."""
        while True:
            try:
                if record.uuid in await self.local.detached():  # by the attempt before
                    await self.local.run(f"ATTACH TABLE {record.name.quoted}")
                await self.reattach(record.uuid)
                return
            except SqlError as error:
                if not ran_out(error):
                    raise
                log.warning("replicated.not_taken_up_yet table=%s error=%s", record.name, error)
            await self._env.sleep(_RETRY_PAUSE_S)

    async def _is_gone(self, uuid: UUID) -> bool:
        """Whether chDB has the table no more. It has to be known: it is asked until it has memory to tell."""
        while True:
            try:
                return uuid not in await self.local.by_uuid([uuid])
            except SqlError as error:
                if not ran_out(error):
                    raise
                log.warning("replicated.look_again uuid=%s error=%s", uuid, error)
            await self._env.sleep(_RETRY_PAUSE_S)

    async def dropped_by_chdb(self, record: TableRecord) -> None:
        """chDB has dropped the table already: the rest of the steps."""
        self.catalog.put(replace(record, state=TableState.DROPPING))
        await self._finish_or_later(record)

    async def _finish_or_later(self, record: TableRecord) -> None:
        try:
            await self.finish_drop(record)
        except (OnclusterError, OSError) as error:
            log.warning("replicated.drop_goes_on table=%s error=%s", record.name, error)
            self.until_done(partial(self._drop_later, record.uuid), f"drop {record.name}")
            if not isinstance(error, Unavailable | UnknownOutcome):
                raise

    async def _drop_local(self, record: TableRecord) -> None:
        local = (await self.local.by_uuid([record.uuid])).get(record.uuid)
        if local is not None:
            await self.local.drop(local.name, record.uuid)

    async def finish_drop(self, record: TableRecord) -> None:
        """Steps 3 to 5, as far as they are not done. Raises Unavailable, UnknownOutcome."""
        await self._drop_local(record)
        keeper = await self.holder.get(timeout_s=_KEEPER_WAIT_S)
        if await self.is_ours(keeper, record):
            await drop_replica(keeper, record.paths, record.me)
        elif await keeper.exists(record.me.root) is None:
            # An attempt that ended with its process may have come to the table, which it did not finish.
            await remove_table_without_replicas(keeper, record.paths)
        if await keeper.exists(record.paths.dropped) is not None:
            raise KeeperUnavailable(
                f"{record.paths.root} is being removed by another session with Keeper",
                hint="If that is of a process that was killed, it is removed when its session ends.",
            )
        if "{uuid}" in record.shown_path:
            await remove_empty_above(keeper, record.paths, str(record.uuid))
        if self.dropped.get(record.uuid) is None:
            await self.local.forget(record.uuid)
        self.catalog.remove(record.uuid)

    async def is_ours(self, keeper: Keeper, record: TableRecord) -> bool:
        """Whether the replica in Keeper is the one that this record's table made."""
        try:
            info = (await keeper.get(record.me.creator_info)).data
        except NoNode:
            return False
        return info == f"{record.uuid}|{self._server_uuid}".encode()

    async def _drop_later(self, uuid: UUID) -> None:
        await self.holder.get()
        current = self.catalog.get(uuid)
        if current is not None and current.state is TableState.DROPPING:
            await self.finish_drop(current)

    # -- background ------------------------------------------------------------------------------------------

    def later(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Let `work` go on in the background; it is cancelled when the node stops."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def until_done(self, step: Callable[[], Awaitable[None]], name: str) -> asyncio.Task[None]:
        """As `later`, again after each error."""
        return self.later(until_done(step, name, env=self._env, pause_s=_RETRY_PAUSE_S), name)


async def _nothing_to_check(*_: object) -> None: ...
