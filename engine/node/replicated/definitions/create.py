"""CREATE TABLE of replicated tables, and of what replaces one: what it says, checked, and the steps of both.

Safety argument: that of `lifecycle`. Before its first step nothing is changed, and everything that can be
refused without a change is refused: names, macros, Keeper's absence, a replica that another table of this
node is, a table in Keeper that belongs to another shard. With AS SELECT and CLONE AS the table gets its rows
under a temporary name, as with OR REPLACE (`replacing`): one that is there has them, whatever was cut short
before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from uuid import UUID

from engine.config.model import Topology
from engine.ddl.attempt import Fence
from engine.env import Env
from engine.errors import (
    Code,
    KeeperUnavailable,
    OnclusterError,
    SqlError,
)
from engine.keeper.base import Keeper
from engine.names import TableName
from engine.node.keeper_path import path_in_own_keeper
from engine.node.replicated.definitions.cloning import clone_in
from engine.node.replicated.definitions.definition_sql import REPLICATED, Definition, is_create_of_replicated
from engine.node.replicated.definitions.leftovers import clear_place
from engine.node.replicated.definitions.new_table import Place, make_in_chdb
from engine.node.replicated.definitions.own_tables import own_table
from engine.node.replicated.definitions.refusals import no_replace, refuse_definition, refuse_unsupported
from engine.node.replicated.definitions.replacing import replace_table
from engine.node.replicated.definitions.shard_check import Defaults, check_shard
from engine.node.replicated.definitions.taking_place import Taking, create_of
from engine.node.replicated.running.catalog import TableState
from engine.node.replicated.running.lifecycle import TableLifecycle
from engine.node.replicated.running.statements import done
from engine.node.statements.statement import Answer, Asked
from engine.part_storage.hidden_settings import HIDDEN_SETTINGS
from engine.replication.commands.create import CheckPlace, Structure
from engine.replication.paths import TablePaths
from engine.sql import Statement, StatementKind, expand_macros

_K = StatementKind
_KEEPER_WAIT_S = 5.0
_CREATES = frozenset(
    {
        _K.CREATE_TABLE,
        _K.ATTACH_TABLE,
        _K.CREATE_VIEW,
        _K.CREATE_MATERIALIZED_VIEW,
        _K.CREATE_LIVE_VIEW,
        _K.CREATE_WINDOW_VIEW,
    }
)

RunInsert = Callable[[Asked], Awaitable[None]]
"""Runs an INSERT … SELECT as if a client had sent it."""


class CreateStatements:
    """Implements `ReplicatedStatements`."""

    def __init__(
        self,
        life: TableLifecycle,
        *,
        env: Env,
        topology: Callable[[], Topology],
        defaults: Defaults,
        run_insert: RunInsert,
    ) -> None:
        self._life = life
        self._env = env
        self._topology = topology
        self._defaults = defaults
        self._run_insert = run_insert
        self.macros_of: Callable[[str], Mapping[str, str]] = lambda _: {}
        """By database, what macros stand for in it that the configuration does not have."""

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        if statement.kind not in _CREATES:
            return None
        clone = clone_in(asked.sql) if statement.kind is _K.CREATE_TABLE else None
        without_rows = asked if clone is None else replace(asked, sql=clone.create)
        definition = await self._definition(without_rows, statement)
        if definition is None:
            return await self._replace_by_other(asked, statement)
        asked = without_rows
        if clone is not None:
            definition.rows_of = clone.source.within(asked.current_database)
        refuse_unsupported(statement)
        refuse_definition(asked, definition)
        table = statement.tables[0]
        name = table.within(asked.current_database)
        async with self._life.names.hold([name]):
            if statement.or_replace:
                await self._replace(asked, statement, definition, name)
            else:
                await self._create(asked, statement, definition, name)
        return done(asked)

    async def _definition(self, asked: Asked, statement: Statement) -> Definition | None:
        """Of a statement that makes a replicated table; None for any other."""
        if is_create_of_replicated(statement.kind, statement.engine):
            return Definition(asked.sql)
        if statement.kind is not _K.CREATE_TABLE or statement.engine is not None or statement.temporary:
            return None  # a temporary table has an engine of its own, whatever it is like
        definition = Definition(asked.sql)
        if definition.source is None:
            return None
        source = self._life.tables.find_for(asked, definition.source)
        record = (
            await own_table(self._life, definition.source.within(asked.current_database))
            if source is None
            else source.record
        )
        if record is None:
            return None
        local = (await self._life.local.by_uuid([record.uuid]))[record.uuid]
        shown = Definition(local.create_query).shown(
            record.shown_path, record.shown_replica, hidden=HIDDEN_SETTINGS, user=record.user_settings
        )
        return Definition(definition.like(shown))

    # -- the statement ---------------------------------------------------------------------------------------

    async def _replace_by_other(self, asked: Asked, statement: Statement) -> Answer | None:
        """What is not replicated, in the place of what may be; None if that is none of ours."""
        if not statement.or_replace or not statement.tables or statement.temporary:
            return None
        name = statement.tables[0].within(asked.current_database)
        is_ours = self._life.tables.is_ours(name)
        if not is_ours and await own_table(self._life, name) is None:
            return None
        if not is_ours or statement.kind is not _K.CREATE_TABLE:
            raise no_replace(name)
        uuid = UUID(statement.uuid) if statement.uuid else self._env.new_uuid()

        async def make(temporary: TableName) -> None:
            sql = create_of(asked.sql, temporary, uuid=None if statement.uuid else uuid)
            await self._run_insert(replace(asked, sql=sql, fence=Fence()))

        async with self._life.names.hold([name]):
            await replace_table(
                self._life,
                self._env,
                asked,
                name,
                uuid,
                None,
                make=make,
                taking=_taking(Definition(asked.sql)),
            )
        return done(asked)

    async def _create(
        self, asked: Asked, statement: Statement, definition: Definition, name: TableName
    ) -> None:
        life = self._life
        await life.free_name(name)
        if await self.is_there(name):
            record = life.catalog.named(name)
            is_same = statement.uuid and record is not None and str(record.uuid) == statement.uuid.lower()
            if statement.if_not_exists or is_same:
                return  # the same: an entry of the queue that is executed once more
            raise SqlError(Code.TABLE_ALREADY_EXISTS, f"Table {name} already exists.")
        await self.check_database(name)
        uuid = UUID(statement.uuid) if statement.uuid else self._env.new_uuid()
        place = self.place(definition, name, uuid, is_uuid_given=statement.uuid is not None)
        if not definition.is_filled:
            await self.make(asked, definition, name, uuid, place)
            return
        await life.check_new_name(name)
        try:
            await self._put_in_place(asked, definition, name, uuid, place, Taking.A_FREE_NAME)
        except SqlError as error:
            # IF NOT EXISTS, and somebody else's plain table was there in the meantime.
            was_faster = statement.if_not_exists and error.code == Code.TABLE_ALREADY_EXISTS
            if not was_faster or await life.local.named(name) is None:
                raise

    async def _replace(
        self, asked: Asked, statement: Statement, definition: Definition, name: TableName
    ) -> None:
        await self.check_database(name)
        uuid = UUID(statement.uuid) if statement.uuid else self._env.new_uuid()
        place = self.place(definition, name, uuid, is_uuid_given=statement.uuid is not None)
        await self._put_in_place(asked, definition, name, uuid, place, _taking(definition))

    async def _put_in_place(
        self,
        asked: Asked,
        definition: Definition,
        name: TableName,
        uuid: UUID,
        place: Place,
        taking: Taking,
    ) -> None:
        await replace_table(
            self._life,
            self._env,
            asked,
            name,
            uuid,
            place.me,
            make=lambda temporary: self.make(asked, definition, temporary, uuid, place),
            taking=taking,
        )

    async def make(
        self,
        asked: Asked,
        definition: Definition,
        name: TableName,
        uuid: UUID,
        place: Place,
        *,
        for_view: UUID | None = None,
    ) -> None:
        """All steps, with the rows of AS SELECT or CLONE AS; the caller holds the name, which nothing has.
        `for_view` is the view whose own table this is going to be."""
        life = self._life
        await life.check_new_name(name)
        keeper = await self._keeper()
        await self._clear_place(place, uuid)
        # Before anything is made; and again with the replica.
        await self.check_place(name.database)(keeper, place.paths)
        record = place.record(definition, name, uuid, TableState.CREATING)
        user_settings = await life.local.settings_as_written(record.user_settings, asked.params)
        record = replace(record, for_view=for_view, user_settings=user_settings)
        life.catalog.put(record)
        try:
            async with life.tables.local_writes.taking([name]):
                await make_in_chdb(asked, definition, record)
            is_made = uuid in await life.local.by_uuid([uuid])
        except SqlError:
            await life.undo_in_chdb(record)
            raise
        if not is_made:
            # IF NOT EXISTS, and somebody else's plain table was there in the meantime.
            life.catalog.remove(uuid)
            return
        try:
            structure = Structure.AN_OLDER_ONE if asked.is_decided else Structure.THE_TABLES
            table = await life.finish_create(record, keeper, structure=structure)
        except OnclusterError:
            await life.undo_create(record)
            raise
        await life.wait_until_active(table)
        if definition.select is not None:
            insert = f"INSERT INTO {table.name.quoted} {definition.select}"
            await self._run_insert(replace(asked, sql=insert, fence=Fence()))
        elif definition.rows_of is not None:
            source = definition.rows_of.quoted
            attach = f"ALTER TABLE {table.name.quoted} ATTACH PARTITION ALL FROM {source}"
            await self._run_insert(replace(asked, sql=attach, fence=Fence()))

    def check_place(self, database: str) -> CheckPlace:
        """For a table of this database. It raises SqlError 36 when another shard has the path."""

        async def check(keeper: Keeper, paths: TablePaths) -> None:
            await check_shard(keeper, paths, self._topology(), self._defaults, database=database)

        return check

    async def is_there(self, name: TableName) -> bool:
        """Whether a table of this name exists; what an earlier CREATE left half done is finished first."""
        life = self._life
        record = life.catalog.named(name)
        if record is not None and record.state is TableState.CREATING:
            try:
                await life.finish_create(record, await self._keeper())
            except SqlError:
                await life.undo_create(record)
                return False
        if await life.local.named(name) is not None:
            return True
        return record is not None and record.uuid in await life.local.detached()

    async def check_database(self, name: TableName) -> None:
        """Raises SqlError 81 and 48 for one that can have no replicated table."""
        engine = await self._life.local.engine_of_database(name.database)
        if engine is None:
            raise SqlError(Code.UNKNOWN_DATABASE, f"Database {name.database} does not exist.")
        if engine != "Atomic":
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                f"Replicated tables need a database with engine Atomic; {name.database} has {engine}.",
            )

    async def _keeper(self) -> Keeper:
        try:
            return await self._life.holder.get(timeout_s=_KEEPER_WAIT_S)
        except KeeperUnavailable as error:
            raise KeeperUnavailable(
                f"Cannot create a replicated table: {error.message}",
                hint="Nothing was created; try again when Keeper can be reached.",
            ) from error

    async def _clear_place(self, place: Place, uuid: UUID) -> None:
        """Raises SqlError 253 when this replica is a table of this node; finishes a DROP of one that was."""
        life = self._life
        await clear_place(life, self._env, place.me)
        for record in (life.catalog.at(place.me), life.catalog.get(uuid)):
            if record is None or life.catalog.get(record.uuid) is None:
                continue
            if record.state is TableState.DROPPING:
                await life.finish_drop(record)
            elif record.me == place.me:
                raise SqlError(
                    Code.REPLICA_ALREADY_EXISTS,
                    f"Replica {place.me.root} already exists: it is table {record.name} of this node.",
                    hint="Use another path or another replica name.",
                )
            else:
                raise SqlError(Code.TABLE_ALREADY_EXISTS, f"Table {record.name} has the UUID {uuid} already.")

    # -- the place in Keeper --------------------------------------------------------------------

    def place(self, definition: Definition, name: TableName, uuid: UUID, *, is_uuid_given: bool) -> Place:
        """Macros expanded as ClickHouse does: what is shown keeps all but {database} and {table}."""
        given = definition.keeper_arguments()
        path, replica = given or (self._defaults.replica_path, self._defaults.replica_name)
        return self._place(path, replica, name, uuid, is_uuid_given=is_uuid_given)

    def default_place(self, name: TableName, uuid: UUID) -> Place:
        """Of a table that exists already, with this UUID, and has no arguments of its own."""
        path, replica = self._defaults.replica_path, self._defaults.replica_name
        return self._place(path, replica, name, uuid, is_uuid_given=True)

    def _place(self, path: str, replica: str, name: TableName, uuid: UUID, *, is_uuid_given: bool) -> Place:
        of_database = self.macros_of(name.database)
        names = {"database": of_database.get("database", name.database), "table": name.table}
        shown_path, shown_replica = _expand_known(path, names), _expand_known(replica, names)
        macros = {
            "server_uuid": str(self._defaults.server_uuid),
            **of_database,
            **self._topology().macros,
        }
        if is_uuid_given:
            macros["uuid"] = str(uuid)
        elif "{uuid}" in shown_path + shown_replica and "uuid" not in macros:
            raise SqlError(
                Code.BAD_ARGUMENTS,
                f"Macro 'uuid' and empty arguments of {REPLICATED}MergeTree are supported only for ON "
                "CLUSTER queries with Atomic database engine",
                hint="Each server would make up a UUID of its own: use ON CLUSTER, or write UUID '…' behind "
                "the table's name, or give path and replica name.",
            )
        table_path = path_in_own_keeper(expand_macros(shown_path, macros))
        if not table_path.startswith("/"):
            raise SqlError(Code.BAD_ARGUMENTS, f"ZooKeeper path must starts with '/', got '{table_path}'")
        paths = TablePaths(table_path)
        replica_name = expand_macros(shown_replica, macros)
        if not replica_name:
            raise SqlError(Code.BAD_ARGUMENTS, f"The replica name of table {name} is empty.")
        return Place(paths.replica(replica_name), paths, shown_path, shown_replica)


def _taking(definition: Definition) -> Taking:
    """Of a statement that replaces."""
    return Taking.A_TABLES_PLACE if definition.is_bare_replace else Taking.WHATEVER_IS_THERE


def _expand_known(text: str, macros: Mapping[str, str]) -> str:
    for name, value in macros.items():
        text = text.replace(f"{{{name}}}", value)
    return text
