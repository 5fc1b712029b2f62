"""CREATE TABLE of Distributed tables.

Safety argument. 1. Everything that can be refused is refused. 2. The record is written. 3. chDB makes a table
of engine Null with the record's UUID. After a crash behind 2 the next start removes the record; behind 3 the
table is there. No other server is asked or changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

from engine.config.model import Topology
from engine.distributed.definition import ENGINE, DistributedDefinition
from engine.distributed.sharding import slot_expression
from engine.env import Env
from engine.errors import Code, SqlError
from engine.names import TableName
from engine.node.distributed.catalog import DistributedRecord
from engine.node.distributed.create_sql import CreateText
from engine.node.distributed.stage import Stages
from engine.node.distributed.tables import DistributedTables
from engine.node.replicated.name_locks import NameLocks
from engine.node.replicated.statements import done
from engine.node.statement import Answer, Asked
from engine.sql import Statement, StatementKind, expand_macros

_K = StatementKind


class CreateDistributed:
    """Handles CREATE TABLE."""

    def __init__(
        self,
        tables: DistributedTables,
        *,
        stages: Stages,
        names: NameLocks,
        env: Env,
        topology: Callable[[], Topology],
    ) -> None:
        self._tables = tables
        self._stages = stages
        self._names = names
        self._env = env
        self._topology = topology

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        if statement.kind is not _K.CREATE_TABLE or not statement.tables:
            return None
        if statement.engine != ENGINE:
            await self._protect(asked, statement)
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
        name = TableName(named.database or asked.current_database, named.table)
        async with self._names.hold([name]):
            await self._create(asked, statement, name)
        return done(asked)

    async def _protect(self, asked: Asked, statement: Statement) -> None:
        """CREATE OR REPLACE of another engine: the record has to go with its table."""
        if statement.or_replace and await self._tables.find_for(asked, statement.tables[0]) is not None:
            raise _no_replace(statement.tables[0])

    async def _create(self, asked: Asked, statement: Statement, name: TableName) -> None:
        text = CreateText(asked.sql)
        definition = DistributedDefinition.parse(text.clause, current_database=asked.current_database)
        cluster = expand_macros(definition.cluster, self._topology().macros)
        definition = replace(definition, cluster=cluster)
        local = self._tables.local
        existing = await local.named(name)
        if existing is not None:
            record = self._tables.catalog.get(existing.uuid)
            is_same = statement.uuid is not None and str(existing.uuid) == statement.uuid.lower()
            if statement.if_not_exists or (is_same and record is not None):
                return
            if statement.or_replace:
                raise _no_replace(name)
            raise SqlError(Code.TABLE_ALREADY_EXISTS, f"Table {name} already exists.")
        engine = await local.engine_of_database(name.database)
        if engine is None:
            raise SqlError(Code.UNKNOWN_DATABASE, f"Database {name.database} does not exist.")
        if engine != "Atomic":
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                f"Distributed tables need a database with engine Atomic; {name.database} has {engine}.",
            )
        if not text.has_columns and text.source is None:
            raise SqlError(
                Code.EMPTY_LIST_OF_COLUMNS_PASSED,
                f"CREATE TABLE {name} has no columns.",
                hint="Give them, or name a table that has them: CREATE TABLE d AS t ENGINE = Distributed(…).",
            )
        uuid = UUID(statement.uuid) if statement.uuid else self._env.new_uuid()
        self._tables.catalog.put(DistributedRecord(uuid, name, definition))
        try:
            await asked.session.query(
                text.for_chdb(uuid, name), format="Null", params=asked.params, scope=asked.scope, multi=False
            )
            if definition.sharding_key:
                type_ = await self._stages.type_of(definition.sharding_key, name)
                slot_expression(definition.sharding_key, type_, 1)
        except SqlError:
            await local.drop(name, uuid)
            self._tables.catalog.remove(uuid)
            raise
        finally:
            self._tables.changed()
        if uuid not in await local.by_uuid([uuid]):
            self._tables.catalog.remove(uuid)  # IF NOT EXISTS, and somebody else was faster


def _no_replace(name: TableName) -> SqlError:
    return SqlError(
        Code.NOT_IMPLEMENTED,
        f"CREATE OR REPLACE is not supported for the Distributed table {name}.",
        hint="DROP it, then CREATE it: it has no rows of its own.",
    )
