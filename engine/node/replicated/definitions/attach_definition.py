"""ATTACH TABLE with the whole definition: `ATTACH TABLE t UUID '…' (…) ENGINE = Replicated…MergeTree(…) …`.

This is how backups put tables back: the data directory is there, or it comes later, and Keeper may know
nothing of the table. Nothing is written to Keeper: a replica that Keeper has and this table has made goes on;
without one the table is read-only until SYSTEM RESTORE REPLICA makes it from the parts that are here.

Safety argument: that of `convert`, whose steps 2 to 4 and 6 it takes, with path and name of the definition. A
replica in Keeper that another table or server has made is refused before anything is done.

Source: ClickHouse's InterpreterCreateQuery, StorageReplicatedMergeTree (attach without metadata in Keeper).
"""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from engine.errors import Code, SqlError
from engine.names import TableName
from engine.node.replicated.definitions.convert import Converter
from engine.node.replicated.definitions.create import CreateStatements
from engine.node.replicated.definitions.definition_sql import Definition, is_create_of_replicated
from engine.node.replicated.definitions.new_table import make_in_chdb
from engine.node.replicated.definitions.refusals import refuse_definition
from engine.node.replicated.running.catalog import TableRecord, TableState
from engine.node.replicated.running.lifecycle import TableLifecycle
from engine.node.replicated.running.statements import done
from engine.node.statements.statement import Answer, Asked
from engine.sql import Statement, StatementKind

_KEEPER_WAIT_S = 5.0
_ACTIVE_WAIT_S = 10.0


class AttachDefinitionStatements:
    """Implements `ReplicatedStatements`."""

    def __init__(self, life: TableLifecycle, create: CreateStatements, converter: Converter) -> None:
        self._life = life
        self._create = create
        self._converter = converter

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        if statement.kind is not StatementKind.ATTACH_TABLE:
            return None
        if not is_create_of_replicated(statement.kind, statement.engine):
            return None
        definition = Definition(asked.sql)
        refuse_definition(asked, definition)
        table = statement.tables[0]
        name = table.within(asked.current_database)
        if statement.uuid is None:
            raise SqlError(
                Code.INCORRECT_QUERY,
                f"ATTACH TABLE {name} with a definition needs the table's UUID in an Atomic database.",
                hint=f"ATTACH TABLE {name} UUID '…' (…) ENGINE = …; ATTACH TABLE {name} alone attaches what "
                "DETACH TABLE detached; CREATE TABLE makes a new replica.",
            )
        async with self._life.names.hold([name]):
            await self._attach(asked, statement, definition, name, UUID(statement.uuid))
        return done(asked)

    async def _attach(
        self, asked: Asked, statement: Statement, definition: Definition, name: TableName, uuid: UUID
    ) -> None:
        life = self._life
        known = life.catalog.get(uuid)
        if await life.local.named(name) is not None:
            if statement.if_not_exists or (known is not None and known.name == name):
                return
            raise SqlError(Code.TABLE_ALREADY_EXISTS, f"Table {name} already exists.")
        if known is not None:
            raise SqlError(
                Code.TABLE_ALREADY_EXISTS,
                f"The table with UUID {uuid} is {known.name} of this node.",
                hint=f"ATTACH TABLE {known.name} is enough, if it is detached.",
            )
        place = self._create.place(definition, name, uuid, is_uuid_given=True)
        record = place.record(definition, name, uuid, TableState.CONVERTING)
        user_settings = await life.local.settings_as_written(record.user_settings, asked.params)
        record = replace(record, user_settings=user_settings)
        await self._check_place(record)
        life.catalog.put(record)
        try:
            async with life.tables.local_writes.taking([name]):
                await make_in_chdb(asked, definition, record)
        except SqlError:
            life.catalog.remove(uuid)
            raise
        [local] = (await life.local.by_uuid([uuid])).values()
        table = await self._converter.attach_prepared(record, local)
        if await life.is_ours(await life.holder.get(timeout_s=_KEEPER_WAIT_S), record):
            await table.replica.wait_until_active(timeout_s=_ACTIVE_WAIT_S)

    async def _check_place(self, record: TableRecord) -> None:
        life = self._life
        await self._create.check_database(record.name)
        await life.check_new_name(record.name)
        other = life.catalog.at(record.me)
        if other is not None:
            raise SqlError(
                Code.REPLICA_ALREADY_EXISTS,
                f"Replica {record.me.root} already exists: it is table {other.name} of this node.",
                hint="Use another path or another replica name.",
            )
        keeper = await life.holder.get(timeout_s=_KEEPER_WAIT_S)
        if await keeper.exists(record.me.root) is not None and not await life.is_ours(keeper, record):
            raise SqlError(
                Code.REPLICA_ALREADY_EXISTS,
                f"Replica {record.me.root} already exists, made by another table or another server.",
                hint="If its server is gone for good, SYSTEM DROP REPLICA removes it; then ATTACH again, and "
                "SYSTEM RESTORE REPLICA.",
            )
