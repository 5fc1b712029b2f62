"""CREATE TABLE of Distributed tables.

Safety argument. 1. Everything that can be refused is refused. 2. The record is written. 3. chDB makes a table
that holds nothing (`overlooked.PLACEHOLDER`) with the record's UUID. After a crash behind 2 the next start
removes the record; behind 3 the table is there. Between 2 and 3 no other statement takes the record for one
whose table is gone (`DistributedTables.making`). No other server is changed, and one is asked only for
columns that the statement does not list.

With AS SELECT, OR REPLACE or REPLACE the table is made under a temporary name, filled by an INSERT like a
client's, and takes its name when that has ended (`replacing`). So a table that is there has its rows, or had
none to get. An INSERT that fails leaves no table; what it had written on the shards stays there, as ever. It
has a token made of the table's UUID and this host: the queue may execute the statement again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from uuid import UUID

from engine.config.model import Topology
from engine.distributed.definition import ENGINE, DistributedDefinition
from engine.distributed.delivery import TOKEN_SETTING
from engine.env import Env
from engine.errors import Code, OnclusterError, SqlError
from engine.names import TableName, quote_string
from engine.node.distributed.definitions.replacing import Replacing, RunOther
from engine.node.distributed.registry.catalog import DistributedRecord
from engine.node.distributed.registry.create_sql import CreateText, as_create
from engine.node.distributed.registry.overlooked import make_overlooked_an_error
from engine.node.distributed.registry.tables import DistributedTables
from engine.node.distributed.sending.sharding_keys import check_sharding_key
from engine.node.distributed.sending.spools import Spools
from engine.node.distributed.sending.stage import Stages
from engine.node.replicated.definitions.taking_place import Taking
from engine.node.replicated.running.name_locks import NameLocks
from engine.node.replicated.running.statements import done
from engine.node.statements.asked_settings import settings_of
from engine.node.statements.statement import Answer, Asked
from engine.part_storage import LIKE_ONE_FOR_THE_SESSION
from engine.sql import Statement, StatementKind, expand_macros

_K = StatementKind
_SELECT = "SELECT "

RunInsert = Callable[[Asked], Awaitable[None]]
"""Runs an INSERT … SELECT into a Distributed table, as a client's."""


class CreateDistributed:
    """Handles CREATE TABLE, and ATTACH TABLE with a definition."""

    def __init__(
        self,
        tables: DistributedTables,
        *,
        stages: Stages,
        spools: Spools,
        names: NameLocks,
        replacing: Replacing,
        env: Env,
        own_host: str,
        topology: Callable[[], Topology],
        run_other: RunOther,
        run_insert: RunInsert,
        columns_on_shards: Callable[[DistributedDefinition], Awaitable[str]],
    ) -> None:
        """`columns_on_shards`: those of the shards' table, as CREATE lists them."""
        self._tables = tables
        self._stages = stages
        self._spools = spools
        self._names = names
        self._replacing = replacing
        self._env = env
        self._own_host = own_host
        self._topology = topology
        self._run_other = run_other
        self._run_insert = run_insert
        self._columns_on_shards = columns_on_shards

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        if statement.kind is _K.ATTACH_TABLE and statement.engine == ENGINE:
            # With a whole definition it is CREATE: chDB would make a table of its own engine Distributed.
            asked = replace(asked, sql=as_create(asked.sql))
        elif statement.kind is not _K.CREATE_TABLE or not statement.tables:
            return None
        if statement.engine != ENGINE:
            if statement.temporary:
                return None  # it has an engine of its own, whatever it is like
            if statement.or_replace and await self._replaced_by_another(asked, statement):
                return done(asked)
            if statement.engine is not None:
                return None
            source = CreateText(asked.sql).source if len(self._tables) else None
            like = None if source is None else await self._tables.find_for(asked, source)
            if like is None:
                return None
            asked = replace(asked, sql=f"{asked.sql.rstrip('; ')} ENGINE = {like.definition.engine_full}")
        if statement.temporary:
            raise SqlError(Code.INCORRECT_QUERY, "Temporary tables cannot have the engine Distributed")
        named = statement.tables[0]
        name = named.within(asked.current_database)
        async with self._names.hold([name]):
            await self._create(asked, statement, name)
        return done(asked)

    async def _replaced_by_another(self, asked: Asked, statement: Statement) -> bool:
        """CREATE OR REPLACE of another engine: what is pending is sent first, and the record goes with its
        table. After a crash between, the next start removes the record."""
        table = await self._tables.find_for(asked, statement.tables[0])
        if table is None:
            return False
        async with self._names.hold([table.name]), self._replacing.alone(asked, table):
            await self._spools.settle(table)
            try:
                await self._run_other(asked)
            finally:
                self._tables.changed()
            if table.uuid not in await self._tables.local.by_uuid([table.uuid]):
                await self._spools.remove(table.uuid)
                self._tables.catalog.remove(table.uuid)
                self._tables.changed()
        return True

    async def _create(self, asked: Asked, statement: Statement, name: TableName) -> None:
        text = CreateText(asked.sql)
        definition = DistributedDefinition.parse(text.clause, current_database=asked.current_database)
        cluster = expand_macros(definition.cluster, self._topology().macros)
        definition = replace(definition, cluster=cluster)
        if not statement.or_replace and await self._is_there(statement, name):
            return
        engine = await self._tables.local.engine_of_database(name.database)
        if engine is None:
            raise SqlError(Code.UNKNOWN_DATABASE, f"Database {name.database} does not exist.")
        if engine != "Atomic":
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                f"Distributed tables need a database with engine Atomic; {name.database} has {engine}.",
            )
        await self._check_policy(definition)
        definition = replace(definition, sharding_key=await _as_chdb_writes(asked, definition.sharding_key))
        columns = ""
        if not text.has_columns and text.source is None and not text.has_select:
            columns = f" ({await self._columns_on_shards(definition)})"
            asked = replace(asked, settings={**asked.settings, **LIKE_ONE_FOR_THE_SESSION})
        uuid = UUID(statement.uuid) if statement.uuid else self._env.new_uuid()
        if text.select is None and not statement.or_replace:
            await self._make(asked, text, columns, definition, name, uuid)
            return

        async def make(temporary: TableName) -> None:
            await self._make(asked, text, columns, definition, temporary, uuid)
            if text.select is not None:
                await self._fill(asked, text.select, temporary, uuid)

        taking = Taking.WHATEVER_IS_THERE if statement.or_replace else Taking.A_FREE_NAME
        if text.is_bare_replace:
            taking = Taking.A_TABLES_PLACE
        await self._replacing.put_in_place(asked, name, uuid, make, taking=taking)

    async def _check_policy(self, definition: DistributedDefinition) -> None:
        """The spool is in the node's own directory whatever the policy; an unknown one is a mistake."""
        if not definition.policy:
            return
        known = await self._tables.local.rows("SELECT DISTINCT policy_name FROM system.storage_policies")
        if [definition.policy] not in known:
            raise SqlError(Code.UNKNOWN_POLICY, f"Unknown storage policy `{definition.policy}`")

    async def _is_there(self, statement: Statement, name: TableName) -> bool:
        existing = await self._tables.local.named(name)
        if existing is None:
            return False
        record = self._tables.catalog.get(existing.uuid)
        is_same = statement.uuid is not None and str(existing.uuid) == statement.uuid.lower()
        if statement.if_not_exists or (is_same and record is not None):
            return True
        raise SqlError(Code.TABLE_ALREADY_EXISTS, f"Table {name} already exists.")

    async def _make(
        self,
        asked: Asked,
        text: CreateText,
        columns: str,
        definition: DistributedDefinition,
        name: TableName,
        uuid: UUID,
    ) -> None:
        local = self._tables.local
        await make_overlooked_an_error(local)
        with self._tables.making(DistributedRecord(uuid, name, definition)):
            try:
                await asked.session.query(
                    text.for_chdb(uuid, name, columns=columns),
                    format="Null",
                    params=asked.params,
                    scope=asked.scope,
                    multi=False,
                )
                if definition.sharding_key:
                    await check_sharding_key(self._stages, definition.sharding_key, name.quoted)
            except SqlError:
                await local.drop(name, uuid)
                self._tables.catalog.remove(uuid)
                raise
            finally:
                self._tables.changed()
            if uuid not in await local.by_uuid([uuid]):
                self._tables.catalog.remove(uuid)  # IF NOT EXISTS, and somebody else was faster

    async def _fill(self, asked: Asked, select: str, name: TableName, uuid: UUID) -> None:
        token = settings_of(asked).get(TOKEN_SETTING) or f"{uuid}:{self._own_host}"
        insert = replace(
            asked,
            sql=f"INSERT INTO {name.quoted} {select}",
            settings={**asked.settings, TOKEN_SETTING: token},
        )
        try:
            await self._run_insert(insert)
        except OnclusterError:
            await self._replacing.forget(uuid, name)
            raise


async def _as_chdb_writes(asked: Asked, key: str) -> str:
    """The sharding key as servers show it and as it counts in the digest of a Replicated database."""
    if not key:
        return key
    sql = f"SELECT formatQuerySingleLine({quote_string(_SELECT + key)})"
    try:
        result = await asked.session.clone(for_text=sql).query(sql, format="TSVRaw")
    except SqlError:
        return key  # what is wrong with it chDB says of the statement
    return result.text.removesuffix("\n").removeprefix(_SELECT)
