"""The Replicated databases of this node: their life from CREATE to DROP, and with the node's own.

Safety argument. The record says which step comes next (`catalog`); every step can be repeated.

CREATE: 1. record CREATING. 2. chDB's Atomic database, under the record's UUID. 3. the replica in Keeper. 4.
record ATTACHED. An error that the client sees leaves nothing: the record turns DROPPING. A crash after 1 or 2
is undone by the next start, after 3 finished.

DROP: 1. record DROPPING. 2. Keeper knows that this replica is going. 3. the tables, then chDB's database. 4.
the replica in Keeper. 5. the record. A crash anywhere goes on with what is left; while Keeper cannot be
reached, 4 waits.

Nothing here touches another server's replica in Keeper.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from engine.config.model import Cluster, Topology
from engine.databases import (
    DatabasePaths,
    DatabaseReplica,
    DatabaseSettings,
    ReplicaName,
    ReplicatedDatabase,
    drop_other_replica,
)
from engine.ddl import NodeIdentity
from engine.env import Env
from engine.errors import Code, KeeperUnavailable, OnclusterError, SqlError, Unavailable, UnknownOutcome
from engine.keeper.recipes import SessionHolder
from engine.lifetime import until_done
from engine.names import TableName, quote_identifier, quote_string
from engine.node.databases.at_start import TextsAtStart
from engine.node.databases.begun import BegunEntry
from engine.node.databases.catalog import DatabaseCatalog, DatabaseRecord, DatabaseState
from engine.node.databases.clusters import cluster_of
from engine.node.databases.create_text import parse_create, place_of
from engine.node.databases.local_database import Shell
from engine.node.databases.local_schema import ChdbSchema
from engine.node.databases.other_hashes import OtherHashes
from engine.node.databases.replacement import replaced_database
from engine.node.keeper_path import path_in_own_keeper
from engine.node.replicated.definitions.dependents import check_database
from engine.node.statements.statement import Asked
from engine.sql import Statement, tokenize

log = logging.getLogger(__name__)

_KEEPER_WAIT_S = 5.0
_RETRY_PAUSE_S = 2.0
_DEFAULT_PLACE = ("/clickhouse/databases/{uuid}", "{shard}", "{replica}")


@dataclass(slots=True, eq=False)
class RunningDatabase:
    """One attached database."""

    record: DatabaseRecord
    core: ReplicatedDatabase
    schema: ChdbSchema

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def has_many_shards(self) -> bool:
        return self.core.cluster.has_many_shards


class ReplicatedDatabases:
    """All of them."""

    def __init__(
        self,
        *,
        env: Env,
        catalog: DatabaseCatalog,
        shell: Shell,
        holder: SessionHolder,
        identity: NodeIdentity,
        topology: Callable[[], Topology],
        as_started: TextsAtStart,
    ) -> None:
        self._env = env
        self._as_started = as_started
        self.catalog = catalog
        self._shell = shell
        self.holder = holder
        self._identity = identity
        self._topology = topology
        self._running: dict[UUID, RunningDatabase] = {}
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    # -- for statements --------------------------------------------------------------------------------------

    @property
    def macros(self) -> Mapping[str, str]:
        return self._topology().macros

    def find(self, name: str | None) -> RunningDatabase | None:
        for database in self._running.values():
            if database.name == name:
                return database
        return None

    def all(self) -> Sequence[RunningDatabase]:
        """In the order of their names."""
        return sorted(self._running.values(), key=lambda database: database.name)

    def replicates(self, table: TableName) -> bool:
        """Whether a table of this node is a replicated one."""
        return self._shell.life.tables.find(table) is not None

    def text_of(self, table: TableName) -> str | None:
        """The metadata text of any table of this node; None if there is none, or chDB keeps no file of it."""
        raw = self._shell.texts.read_raw(table)
        return None if raw is None else self._shell.texts.of(raw)

    def is_held_back(self, table: TableName) -> bool:
        """Whether this node alone does not have it, since it could not be loaded when the node started."""
        return self._shell.texts.is_held_back(table)

    def macros_of(self, database: str) -> Mapping[str, str]:
        """What macros of a table stand for that the configuration does not have: the database's shard and
        replica, also for a table that is made aside. Source: ClickHouse's Macros::expand, which
        prefers explicit ones."""
        uuid = replaced_database(database)
        record = self.catalog.named(database) if uuid is None else self.catalog.by_uuid.get(uuid)
        if record is None:
            return {}
        return {"database": record.name, "shard": record.place.shard, "replica": record.place.replica}

    def clusters(self) -> Mapping[str, Cluster]:
        """Each database is a cluster of its replicas."""
        known = self._topology().clusters
        return {
            database.name: cluster_of(database.name, database.core.cluster, known)
            for database in self._running.values()
            if database.core.cluster.shards
        }

    # -- the node's start and end ----------------------------------------------------------------------------

    async def load(self) -> None:
        """Know the databases; nothing runs yet. Raises Corrupt."""
        names = await self._names()
        for record in self.catalog.load():
            name = names.get(record.uuid)
            if name is not None and name != record.name:
                record = replace(record, name=name)
                self.catalog.put(record)
            if record.state is DatabaseState.ATTACHED and name is not None:
                self._attach(record)
            elif record.state is DatabaseState.CREATING:
                self.catalog.put(replace(record, state=DatabaseState.DROPPING))

    def start(self) -> None:
        """Follow the databases' logs in the background; what CREATE and DROP left goes on there, too."""
        for database in self._running.values():
            database.core.start()
        for record in self.catalog.all():
            if record.state is DatabaseState.DROPPING:
                self._until_done(partial(self._drop_later, record.uuid), f"drop database {record.name}")

    async def stop(self, *, grace_s: float) -> None:
        """Statements under way come to their end, within the time."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(
            *(database.core.stop(grace_s=grace_s) for database in self._running.values()),
            return_exceptions=True,
        )

    async def _names(self) -> Mapping[UUID, str]:
        rows = await self._shell.local.rows("SELECT toString(uuid), name FROM system.databases")
        return {UUID(uuid): name for uuid, name in rows}

    def _attach(self, record: DatabaseRecord) -> RunningDatabase:
        def name() -> str:
            return running.record.name

        begun = BegunEntry(self.catalog.directory / f"{record.uuid}.begun")
        others = OtherHashes(self.catalog.directory / f"{record.uuid}.others")
        schema = ChdbSchema(self._shell, record.uuid, name, begun, others)
        core = self._core(record, schema, name)
        running = RunningDatabase(record, core, schema)
        self._running[record.uuid] = running
        return running

    def _core(
        self, record: DatabaseRecord, schema: ChdbSchema, name: Callable[[], str]
    ) -> ReplicatedDatabase:
        place = record.place
        replica = DatabaseReplica(
            env=self._env,
            holder=self.holder,
            paths=DatabasePaths(place.path),
            me=ReplicaName(place.shard, place.replica),
            host=f"{self._identity.host_id}:{record.uuid}",
            server_uuid=str(self._identity.server_uuid),
            schema=schema,
            settings=DatabaseSettings.of(record.text.settings),
            database_name=name,
        )
        started = self._as_started.get(record.uuid, {})
        known = {table: self._shell.texts.of(raw) for table, raw in started.items()}
        return ReplicatedDatabase(replica, known)

    # -- CREATE ----------------------------------------------------------------------------------------------

    async def create(self, asked: Asked, sql: str) -> None:
        """Raises SqlError 36, 82, 225, 253 and what the checks say."""
        text = parse_create(sql, _DEFAULT_PLACE)
        DatabaseSettings.of(text.settings)
        async with self._lock:
            there = next((u for u, name in (await self._names()).items() if name == text.name), None)
            if there is not None:
                if text.if_not_exists or there == text.uuid:
                    return
                raise SqlError(Code.DATABASE_ALREADY_EXISTS, f"Database {text.name} already exists.")
            uuid = text.uuid or self._env.new_uuid()
            place = place_of(text.arguments, macros=self.macros, uuid=uuid, takes_uuid=text.uuid is not None)
            for other in self.catalog.all():
                if other.place == place and other.state is not DatabaseState.DROPPING:
                    raise SqlError(
                        Code.REPLICA_ALREADY_EXISTS,
                        f"Replica {place.full_name} of {place.path} is the database {other.name} here",
                    )
            await self._require_keeper()
            await self._create(DatabaseRecord(uuid, text.name, place, text, DatabaseState.CREATING))

    async def _create(self, record: DatabaseRecord) -> None:
        self.catalog.put(record)
        running = None
        try:
            comment = f" COMMENT {quote_string(record.text.comment)}" if record.text.comment else ""
            await self._shell.local.run(
                f"CREATE DATABASE {quote_identifier(record.name)} UUID '{record.uuid}' "
                f"ENGINE = Atomic{comment}"
            )
            running = self._attach(record)
            await running.core.create()
        except BaseException:
            await self._undo_create(replace(record, state=DatabaseState.DROPPING), running)
            raise
        running.record = replace(record, state=DatabaseState.ATTACHED)
        self.catalog.put(running.record)
        running.core.start()

    async def _undo_create(self, record: DatabaseRecord, running: RunningDatabase | None) -> None:
        self.catalog.put(record)
        self._running.pop(record.uuid, None)
        try:
            if running is not None:
                await self._finish_drop(record, running)
                return
        except (OnclusterError, OSError) as error:
            log.warning("databases.undo_goes_on database=%s error=%s", record.name, error)
        self._until_done(partial(self._drop_later, record.uuid), f"undo database {record.name}")

    async def _require_keeper(self) -> None:
        try:
            await self.holder.get(timeout_s=_KEEPER_WAIT_S)
        except KeeperUnavailable as error:
            raise SqlError(
                Code.NO_ZOOKEEPER,
                f"Can't create replicated database without ZooKeeper: {error.message}",
                hint="Nothing was created; try again when Keeper can be reached.",
            ) from error

    # -- DROP ------------------------------------------------------------------------------------------------

    async def drop(self, asked: Asked, database: RunningDatabase) -> None:
        """Raises SqlError 999 without Keeper, 630 where others need a table, and what chDB says; the database
        stays then."""
        words = [token.text.upper() for token in tokenize(asked.sql) if token.is_significant]
        async with self._lock:
            if "EMPTY" in words[:5] and database.schema.texts():
                raise SqlError(
                    Code.DATABASE_NOT_EMPTY, f"New table appeared in database {database.name} being dropped"
                )
            await self._require_keeper()
            await check_database(asked, self._shell.local, database.name)
            record = replace(database.record, state=DatabaseState.DROPPING)
            self.catalog.put(record)
            self._running.pop(record.uuid, None)
            await database.core.stop(grace_s=_KEEPER_WAIT_S)
            try:
                await self._finish_drop(record, database)
            except (OnclusterError, OSError) as error:
                log.warning("databases.drop_goes_on database=%s error=%s", record.name, error)
                self._until_done(partial(self._drop_later, record.uuid), f"drop database {record.name}")
                if not isinstance(error, Unavailable | UnknownOutcome):
                    raise

    async def _finish_drop(self, record: DatabaseRecord, database: RunningDatabase) -> None:
        await database.core.drop_begin()
        name = (await self._names()).get(record.uuid)
        if name is not None:
            await database.schema.drop_database(name)
        await database.core.drop_end()
        self.catalog.remove(record.uuid)
        database.schema.forget()

    async def _drop_later(self, uuid: UUID) -> None:
        await self.holder.get()
        record = self.catalog.by_uuid.get(uuid)
        if record is not None and record.state is DatabaseState.DROPPING:
            database = self._attach(record)
            self._running.pop(uuid, None)
            await self._finish_drop(record, database)

    async def drop_replica_of(
        self, database: RunningDatabase, full_name: str, *, with_tables: bool, if_there: bool = False
    ) -> None:
        """SYSTEM DROP DATABASE REPLICA. Raises SqlError 305, 36, 48."""
        _refuse_with_tables(with_tables)
        if if_there and full_name == database.record.place.full_name:
            return
        await database.core.drop_replica(full_name, if_there=if_there)

    async def drop_replica_at(self, path: str, full_name: str, *, with_tables: bool) -> None:
        """The same by the database's path in Keeper."""
        path = "/" + path_in_own_keeper(path).strip("/")
        for database in self._running.values():
            if database.record.place.path == path:
                await self.drop_replica_of(database, full_name, with_tables=with_tables)
                return
        _refuse_with_tables(with_tables)
        keeper = await self.holder.get(timeout_s=_KEEPER_WAIT_S)
        await drop_other_replica(keeper, self._env, DatabasePaths(path), full_name, if_there=False, me=None)

    # -- DETACH, ATTACH, RENAME ------------------------------------------------------------------------------

    async def detach(self, asked: Asked, database: RunningDatabase) -> None:
        async with self._lock:
            await database.core.stop(grace_s=_KEEPER_WAIT_S)
            self._running.pop(database.record.uuid, None)
            try:
                await self._shell.run_here(asked)
            except OnclusterError:
                self._attach(database.record).core.start()
                raise

    async def attach(self, asked: Asked, statement: Statement) -> None:
        async with self._lock:
            await self._shell.run_here(asked)
            record = self.catalog.named(statement.database or "")
            if record is not None and record.uuid not in self._running:
                self._attach(record).core.start()

    async def rename(self, asked: Asked, database: RunningDatabase, statement: Statement) -> None:
        """The tables' texts and the path in Keeper do not name the database."""
        async with self._lock:
            await self._shell.run_here(asked)
            database.record = replace(database.record, name=statement.new_database or database.name)
            self.catalog.put(database.record)

    async def alter(self, asked: Asked, database: RunningDatabase) -> None:
        """Of this replica only, as in ClickHouse. The comment is what there is to change."""
        async with self._lock:
            await self._shell.run_here(asked)
            [(comment,)] = await self._shell.local.rows(
                f"SELECT comment FROM system.databases WHERE name = {quote_string(database.name)}"
            )
            record = database.record
            database.record = replace(record, text=replace(record.text, comment=comment))
            self.catalog.put(database.record)

    def _until_done(self, step: Callable[[], Awaitable[None]], name: str) -> None:
        """In the background, until the node stops."""
        work = until_done(step, name, env=self._env, pause_s=_RETRY_PAUSE_S)
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _refuse_with_tables(with_tables: bool) -> None:
    if with_tables:
        raise SqlError(
            Code.NOT_IMPLEMENTED,
            "SYSTEM DROP DATABASE REPLICA … WITH TABLES is not supported",
            hint="SYSTEM DROP REPLICA 'r' FROM DATABASE d drops that replica of the tables.",
        )
