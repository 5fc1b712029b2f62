"""A plain MergeTree table becomes a replicated one: the file `convert_to_replicated` in its data directory.

Safety argument. It runs at the node's start. No part is copied or deleted, and no step is lost by a crash.

1. Before chDB starts, which would act on the file itself, the file is moved to `oncluster/replicated/convert`
   under the table's UUID (`start_flags`). A crash between copy and removal leaves both; the next start
   removes the second.
2. A record CONVERTING, with path and replica name of the configuration's defaults. From here on every start
   goes on with the table, and the file of 1 is not needed any more.
3. chDB's own merges of it are kept away for good (the hidden settings) and those under way are waited for.
4. Each part gets its present name as its replicated one (`uuid.txt`), which readers do not see. A UUID that
   it has already says nothing: it may be of another table.
5. When Keeper can be reached, RESTORE REPLICA (`engine.replication.commands.restore`, whose argument holds
   from there): parts go to `detached/restoring_…`, the table is made in Keeper, parts are attached as
   inserts are. While that lasts readers see fewer rows. A replica in Keeper that this table has not made is
   left alone: the table stays read-only, and the log says why.
6. The record is ATTACHED.

`ATTACH TABLE … AS REPLICATED` does 2 to 4 and 6 with a table that was detached, and leaves 5 to SYSTEM
RESTORE REPLICA: until then it is read-only. A crash before 6 makes the next start do 5, too.

Source: ClickHouse's DatabaseOrdinary (convert_to_replicated).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import UUID

from engine.env import Env
from engine.errors import Code, OnclusterError, SqlError, Unavailable, UnknownOutcome
from engine.keeper.base import Keeper
from engine.names import TableName
from engine.node.replicated.definitions.create import CreateStatements
from engine.node.replicated.definitions.definition_sql import Definition
from engine.node.replicated.running.catalog import TableRecord, TableState
from engine.node.replicated.running.lifecycle import TableLifecycle
from engine.node.replicated.running.local_tables import LocalTable
from engine.node.replicated.running.runtime import RunningTable
from engine.node.replicated.running.table_readonly import refuse_table_readonly
from engine.node.start_flags import to_be_converted
from engine.node.whole_files import write_whole
from engine.part_storage.hidden_settings import HIDDEN_SETTINGS
from engine.part_storage.part_uuid import UUID_FILE, uuid_of
from engine.part_storage.takeable import check_takeable
from engine.replication.commands.restore import restore_replica
from engine.replication.part_name import PartName

log = logging.getLogger(__name__)

_PAUSE_S = 0.2
_KEEPER_WAIT_S = 5.0


class Converter:
    """`run` it once, when the tables of the catalog are attached."""

    def __init__(self, life: TableLifecycle, create: CreateStatements, env: Env, path: Path) -> None:
        self._life = life
        self._create = create
        self._env = env
        self._wanted = to_be_converted(path)

    async def run(self) -> None:
        """Steps 2 to 4 for all tables that are due; the rest goes on in the background. What cannot be
        converted stays as it is, and the log says why."""
        for flag in sorted(self._wanted.iterdir()) if self._wanted.is_dir() else ():
            found = await self._life.local.by_uuid([UUID(flag.name)])
            for local in found.values():
                await self._record(local)
            flag.unlink()
        for record in self._life.catalog.all():
            if record.state is TableState.CONVERTING:
                try:
                    found = await self._life.local.by_uuid([record.uuid])
                    if not found and record.uuid not in await self._life.local.detached():
                        self._life.catalog.remove(record.uuid)  # of an ATTACH that did not come to the table
                    for local in found.values():
                        table = await self._prepare(record, local)
                        self._life.until_done(partial(self._finish, table, local), f"convert {record.name}")
                except OnclusterError as error:
                    log.error("replicated.not_converted table=%s error=%s", record.name, error)

    async def attach(self, name: TableName) -> None:
        """ATTACH TABLE … AS REPLICATED. Raises SqlError: 57 for a table that is not detached, 60 for none, 36
        and 48 for one that cannot be converted, 253 if its replica is in Keeper; then it stays detached."""
        life = self._life
        if await life.local.named(name) is not None:
            raise SqlError(
                Code.TABLE_ALREADY_EXISTS,
                f"Table {name} is attached.",
                hint="DETACH TABLE it first.",
            )
        uuids = [uuid for uuid, detached in (await life.local.detached()).items() if detached == name]
        if not uuids:
            raise SqlError(Code.UNKNOWN_TABLE, f"Table {name} does not exist.")
        if life.catalog.get(uuids[0]) is not None:
            raise SqlError(
                Code.BAD_ARGUMENTS, f"Table {name} is replicated already.", hint="ATTACH TABLE is enough."
            )
        await life.check_new_name(name)
        keeper = await life.holder.get(timeout_s=_KEEPER_WAIT_S)
        async with life.tables.local_writes.taking([name]):
            await life.local.run(f"ATTACH TABLE {name.quoted}")
            try:
                [local] = (await life.local.by_uuid(uuids)).values()
                record = self._record_of(local)
                await self._check_parts(local)
                if await keeper.exists(record.me.root) is not None:
                    raise SqlError(
                        Code.REPLICA_ALREADY_EXISTS,
                        f"Replica {record.me.root} already exists.",
                        hint="If its server is gone for good, SYSTEM DROP REPLICA removes it.",
                    )
            except OnclusterError:
                await life.local.run(f"DETACH TABLE {name.quoted}")
                raise
            life.catalog.put(record)
        await self.attach_prepared(record, local)

    async def attach_prepared(self, record: TableRecord, local: LocalTable) -> RunningTable:
        """Steps 3, 4 and 6 of a table that chDB has attached and whose record is CONVERTING."""
        table = await self._prepare(record, local)
        table.record = replace(record, state=TableState.ATTACHED)
        self._life.catalog.put(table.record)
        await table.replica.start()
        return table

    async def _record(self, local: LocalTable) -> None:
        """Step 2."""
        if self._life.catalog.get(local.uuid) is not None:
            return
        try:
            await self._life.check_new_name(local.name)
            await self._check_parts(local)
            self._life.catalog.put(self._record_of(local))
        except SqlError as error:
            log.error("replicated.not_converted table=%s error=%s", local.name, error)

    def _record_of(self, local: LocalTable) -> TableRecord:
        if not local.is_merge_tree:
            raise SqlError(
                Code.BAD_ARGUMENTS, f"Table {local.name} cannot be replicated: its engine is {local.engine}."
            )
        definition = Definition(local.create_query)
        refuse_table_readonly(definition.settings)
        place = self._create.default_place(local.name, local.uuid)
        return TableRecord(
            uuid=local.uuid,
            name=local.name,
            zookeeper_path=place.paths.root,
            replica=place.me.name,
            shown_path=place.shown_path,
            shown_replica=place.shown_replica,
            state=TableState.CONVERTING,
            user_settings=definition.hidden_from_user(HIDDEN_SETTINGS),
        )

    async def _check_parts(self, local: LocalTable) -> None:
        """Raises SqlError 48. Found out later, such a part would stay in `detached/` with its rows."""
        for part, path in await self._life.local.active_parts(local.name):
            with suppress(FileNotFoundError):  # merged away in this moment
                check_takeable(Path(path), local.name, part)

    async def _prepare(self, record: TableRecord, local: LocalTable) -> RunningTable:
        """Steps 3 and 4."""
        life = self._life
        name = local.name.quoted
        await life.local.run(f"ALTER TABLE {name} MODIFY SETTING {_assignments(HIDDEN_SETTINGS)}")
        await life.local.run(f"SYSTEM STOP MERGES {name}")
        try:
            while await life.local.is_changing_parts(local.name):
                await self._env.sleep(_PAUSE_S)
            for part, path in await life.local.active_parts(local.name):
                parsed = PartName.try_parse(part)
                file = Path(path) / UUID_FILE
                if parsed is not None:
                    write_whole(file, str(uuid_of(parsed)).encode())
        finally:
            await life.local.run(f"SYSTEM START MERGES {name}")
        table = await life.attach(record, local, is_started=False)
        await table.store.load()
        return table

    async def _finish(self, table: RunningTable, local: LocalTable) -> None:
        """Steps 5 and 6."""
        life = self._life
        table.ctx.readonly_reason = "it is being converted to a replicated table"
        keeper = await life.holder.get()
        async with life.unfinished(table.uuid, TableState.CONVERTING) as record:
            if record is not None:
                await self._join(table, local, keeper)

    async def _join(self, table: RunningTable, local: LocalTable, keeper: Keeper) -> None:
        life, ctx = self._life, table.ctx
        try:
            if not await life.is_ours(keeper, table.record):
                definition = life.definition_of(local)
                await restore_replica(ctx, keeper, life.new_replica(table.record, definition), definition)
        except (Unavailable, UnknownOutcome):
            raise
        except OnclusterError as error:
            ctx.readonly_reason = f"it could not be converted to a replicated table: {error}"
            log.critical("replicated.not_converted table=%s error=%s", table.name, error)
            return
        table.record = replace(table.record, state=TableState.ATTACHED)
        life.catalog.put(table.record)
        await table.replica.start()
        log.info("replicated.converted table=%s replica=%s", table.name, ctx.me.root)


def _assignments(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in settings.items())
