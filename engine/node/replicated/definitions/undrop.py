"""UNDROP TABLE of a replicated table that was dropped a moment ago.

DROP TABLE without SYNC leaves the data on the disk for `database_atomic_delay_before_drop_table_sec`, as
ClickHouse does. The replica's znodes go at once (in ClickHouse with the data), so UNDROP is chDB's UNDROP and
then what SYSTEM RESTORE REPLICA does: the replica joins the others and takes what it has instead of fetching
it, or, if it was the last, makes the table anew of its parts.

Safety argument. What the store keeps beside chDB's table, and a copy of the record, stay with the data
(`TableLifecycle.dropped`), until chDB has removed that.

1. Refused while the DROP is not finished in Keeper, or if the replica is there again, somebody else's.
2. Record RESTORING. 3. chDB's UNDROP. A crash after 2 leaves a record without a table: it is removed.
4. The table is attached, read-only, and its replica is restored (`engine.replication.commands.restore`, whose
   argument holds from there). A crash makes the next start do it. 5. Record ATTACHED; the copy goes.

Source: ClickHouse's InterpreterUndropQuery, DatabaseCatalog::dequeueDroppedTableCleanup.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from uuid import UUID

from engine.env import Env
from engine.errors import Code, KeeperUnavailable, OnclusterError, SqlError, Unavailable, UnknownOutcome
from engine.node.replicated.running.catalog import TableRecord, TableState
from engine.node.replicated.running.lifecycle import TableLifecycle
from engine.node.replicated.running.local_tables import LocalTable
from engine.node.replicated.running.runtime import RunningTable
from engine.node.replicated.running.statements import done
from engine.node.statements.statement import Answer, Asked
from engine.replication.commands.restore import attach_restored
from engine.sql import Statement, StatementKind

log = logging.getLogger(__name__)

_KEEPER_WAIT_S = 5.0
_ACTIVE_WAIT_S = 30.0
_FORGET_PERIOD_S = 600.0


class UndropStatements:
    """Implements `ReplicatedStatements`; `finish_interrupted` at the node's start."""

    def __init__(self, life: TableLifecycle, env: Env) -> None:
        self._life = life
        self._env = env

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        if statement.kind is not StatementKind.UNDROP_TABLE:
            return None
        table = statement.tables[0]
        name = table.within(asked.current_database)
        uuid = await self._life.local.last_dropped(name, statement.uuid)
        dropped = self._life.dropped.get(uuid) if uuid is not None else None
        if dropped is None:
            return None  # chDB's own, or dropped before UNDROP was there (`drop_rename` refuses that)
        async with self._life.names.hold([name]):
            restored = await self._undrop(asked, replace(dropped, name=name, state=TableState.RESTORING))
        await restored.replica.wait_until_active(timeout_s=_ACTIVE_WAIT_S)
        if not restored.ctx.is_readonly:
            await attach_restored(restored.ctx)
        return done(asked)

    async def finish_interrupted(self) -> None:
        """At the node's start: steps 4 and 5 where a crash came between."""
        for record in self._life.catalog.all():
            if record.state is not TableState.RESTORING:
                continue
            local = (await self._life.local.by_uuid([record.uuid])).get(record.uuid)
            if local is None:
                self._life.catalog.remove(record.uuid)
                continue
            table = await self._attach(record, local)
            self._life.until_done(partial(self._restore_later, table), f"undrop {record.name}")

    async def forget_regularly(self) -> None:
        """What is kept goes not long after the data. Ends with an error, or cancelled."""
        while True:
            if self._life.dropped.all():
                await forget_dropped(self._life)
            await self._env.sleep(_FORGET_PERIOD_S)

    async def _undrop(self, asked: Asked, record: TableRecord) -> RunningTable:
        life = self._life
        await self._check_place(record)
        life.catalog.put(record)
        try:
            async with life.tables.local_writes.taking([record.name]):
                await asked.session.query(
                    f"UNDROP TABLE {record.name.quoted} UUID '{record.uuid}'",
                    format="Null",
                    scope=asked.scope,
                    multi=False,
                )
        except SqlError:
            life.catalog.remove(record.uuid)
            raise
        [local] = (await life.local.by_uuid([record.uuid])).values()
        table = await self._attach(record, local)
        try:
            await self._restore(table)
        except (Unavailable, UnknownOutcome) as error:
            log.warning("replicated.undrop_goes_on table=%s error=%s", record.name, error)
            life.until_done(partial(self._restore_later, table), f"undrop {record.name}")
        return table

    async def _check_place(self, record: TableRecord) -> None:
        life = self._life
        await life.check_new_name(record.name)
        if life.catalog.get(record.uuid) is not None:
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                f"Table {record.name} cannot be undropped yet: its DROP is not finished in Keeper.",
                hint="UNDROP again when Keeper can be reached.",
            )
        try:
            keeper = await life.holder.get(timeout_s=_KEEPER_WAIT_S)
        except KeeperUnavailable as error:
            raise SqlError(
                Code.TABLE_IS_READ_ONLY,
                f"Cannot undrop replicated table {record.name}: {error.message}",
                hint="Nothing was done; UNDROP again when Keeper can be reached.",
            ) from error
        if life.catalog.at(record.me) is not None or await keeper.exists(record.me.root) is not None:
            raise SqlError(
                Code.REPLICA_ALREADY_EXISTS,
                f"Cannot undrop {record.name}: replica {record.me.root} exists again.",
                hint="DROP TABLE it, or, if its server is gone for good, SYSTEM DROP REPLICA; then UNDROP.",
            )

    async def _attach(self, record: TableRecord, local: LocalTable) -> RunningTable:
        table = await self._life.attach(record, local, is_started=False)
        table.ctx.readonly_reason = "its replica is being restored after UNDROP"
        await table.replica.start()
        return table

    async def _restore(self, table: RunningTable) -> None:
        """Raises Unavailable, UnknownOutcome."""
        life = self._life
        try:
            await table.replica.restore(table.uuid)
        except (Unavailable, UnknownOutcome):
            raise
        except OnclusterError as error:
            keeper = await life.holder.get(timeout_s=_KEEPER_WAIT_S)
            if not await life.is_ours(keeper, table.record):  # else an attempt before has made it
                table.ctx.readonly_reason = f"its replica could not be restored: {error}"
                log.critical("replicated.not_undropped table=%s error=%s", table.name, error)
        table.record = replace(table.record, state=TableState.ATTACHED)
        life.catalog.put(table.record)
        life.dropped.remove(table.uuid)
        log.info("replicated.undropped table=%s replica=%s", table.name, table.ctx.me.root)

    async def _restore_later(self, table: RunningTable) -> None:
        await self._life.holder.get()
        async with self._life.unfinished(table.uuid, TableState.RESTORING) as record:
            if record is not None:
                await self._restore(table)


async def forget_dropped(life: TableLifecycle) -> None:
    """Remove what is kept of tables whose data chDB has removed by now."""
    kept: set[UUID] = await life.local.dropped()
    for record in life.dropped.all():
        is_over = record.uuid not in kept and life.catalog.get(record.uuid) is None
        if is_over and not await life.local.by_uuid([record.uuid]):
            await life.local.forget(record.uuid)
            life.dropped.remove(record.uuid)
