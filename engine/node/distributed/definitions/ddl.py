"""DROP, DETACH, TRUNCATE, ALTER and their kin of Distributed tables. Only the node's own table is touched.

Safety argument. A name means what chDB says, and a table is known by its UUID, so RENAME and EXCHANGE are
chDB's alone. INSERTs that are under way end before DROP, DETACH and TRUNCATE. If the table's setting
`flush_on_detach` says so (it does by default), DROP and DETACH send what is pending first. When that does not
succeed DETACH fails with the table in place; DROP goes on, as in ClickHouse: chDB's table goes first, then
what was still to be sent, then the record; a crash between leaves the rest to the next start.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from uuid import UUID

from engine.distributed.definition import ENGINE
from engine.errors import Code, OnclusterError, SqlError
from engine.node.distributed.definitions.alter import AlterDistributed
from engine.node.distributed.definitions.create_views import CreateViews
from engine.node.distributed.definitions.replacing import Replacing, RunOther
from engine.node.distributed.registry.tables import DistributedTable, DistributedTables
from engine.node.distributed.sending.spools import Spools
from engine.node.replicated.definitions.truncate_all import is_truncate_all, truncate_all
from engine.node.replicated.running.name_locks import NameLocks
from engine.node.replicated.running.statements import done
from engine.node.statements.statement import Answer, Asked
from engine.sql import Statement, StatementKind, parse_statement, tokenize

log = logging.getLogger(__name__)

_K = StatementKind


class DistributedDdl:
    """Handles statements about Distributed tables that are neither CREATE nor INSERT."""

    def __init__(
        self,
        tables: DistributedTables,
        *,
        spools: Spools,
        names: NameLocks,
        replacing: Replacing,
        alter: AlterDistributed,
        views: CreateViews,
        run_other: RunOther,
    ) -> None:
        self._tables = tables
        self._spools = spools
        self._names = names
        self._replacing = replacing
        self._alter_table = alter
        self._run_other = run_other
        self._views = views

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        if not len(self._tables):
            return None
        match statement.kind:
            case _K.DROP_TABLE | _K.DETACH_TABLE:
                is_ours = await self._drop_or_detach(asked, statement)
            case _K.TRUNCATE_DATABASE if is_truncate_all(asked.sql):
                is_ours = await self._truncate_all(asked, statement)
            case _K.DROP_DATABASE | _K.TRUNCATE_DATABASE:
                await self._before_all_go(statement.database or "")
                is_ours = False
            case _K.TRUNCATE_TABLE:
                is_ours = await self._truncate(asked, statement)
            case _K.ALTER_TABLE:
                is_ours = await self._alter(asked, statement)
            case _K.OPTIMIZE | _K.DELETE | _K.UPDATE | _K.CREATE_INDEX | _K.DROP_INDEX | _K.CHECK_TABLE:
                await self._refuse(asked, statement)
                is_ours = False
            case _K.CREATE_MATERIALIZED_VIEW:
                is_ours = await self._views.create(asked, statement)
            case _:
                is_ours = False
        return done(asked) if is_ours else None

    async def _drop_or_detach(self, asked: Asked, statement: Statement) -> bool:
        names = [t.within(asked.current_database) for t in statement.tables]
        words = [token.text.upper() for token in tokenize(asked.sql) if token.is_significant]
        if statement.kind is _K.DROP_TABLE and not statement.temporary and len(names) == 1:
            uuid = (await self._tables.damaged()).get(names[0])
            if uuid is not None:
                await self._drop_damaged(asked, uuid)
                return True
        found = [await self._tables.find(name) for name in names]
        if statement.temporary or not any(found):
            return False
        verb = statement.kind.value.split(" ")[0]
        flags = " ".join(word for word in ("PERMANENTLY", "SYNC") if word in words)
        async with self._names.hold(names):
            for name in names:
                if_exists = "IF EXISTS " if statement.if_exists else ""
                one = replace(asked, sql=f"{verb} TABLE {if_exists}{name.quoted} {flags}")
                table = await self._tables.find(name)
                if table is None:
                    await self._run_other(one)
                elif statement.kind is _K.DROP_TABLE:
                    await self._drop(one, table)
                else:
                    await self._detach(one, table)
        return True

    async def _drop(self, asked: Asked, table: DistributedTable) -> None:
        async with self._replacing.alone(asked, table):
            await self._flush_if_possible(table)
            await self._in_chdb(asked)
            await self._spools.remove(table.uuid)
            self._tables.catalog.remove(table.uuid)

    async def _drop_damaged(self, asked: Asked, uuid: UUID) -> None:
        """Nobody can say any more where its pending rows were to go."""
        await self._in_chdb(asked)
        await self._spools.remove(uuid)
        self._tables.catalog.remove(uuid)
        self._tables.changed()

    async def _before_all_go(self, database: str) -> None:
        """DROP DATABASE and TRUNCATE DATABASE drop all tables."""
        for table in await self._tables.all():
            if table.name.database == database:
                await self._flush_if_possible(table)

    async def _flush_if_possible(self, table: DistributedTable) -> None:
        if not table.definition.number("flush_on_detach", 1):
            return
        try:
            await self._spools.flush(table)
        except OnclusterError as error:
            log.warning("distributed.dropped_with_rows_pending table=%s error=%s", table.name, error)

    async def _detach(self, asked: Asked, table: DistributedTable) -> None:
        async with self._replacing.alone(asked, table):
            if table.definition.number("flush_on_detach", 1):
                await self._spools.flush(table)
            await self._spools.stop(table.uuid)
            try:
                await self._in_chdb(asked)
            finally:
                await self._spools.refresh()

    async def _truncate(self, asked: Asked, statement: Statement) -> bool:
        table = await self._tables.find_for(asked, statement.tables[0]) if statement.tables else None
        if table is None:
            return False
        async with self._replacing.alone(asked, table):
            await self._spools.truncate(table)
        return True

    async def _truncate_all(self, asked: Asked, statement: Statement) -> bool:
        if all(table.name.database != statement.database for table in await self._tables.all()):
            return False
        await truncate_all(self._tables.local, asked, statement, self._run_any)
        return True

    async def _run_any(self, asked: Asked) -> None:
        if await self.run(asked, parse_statement(asked.sql)) is None:
            await self._run_other(asked)

    async def _alter(self, asked: Asked, statement: Statement) -> bool:
        table = await self._tables.find_for(asked, statement.tables[0]) if statement.tables else None
        if table is None:
            return False
        await self._alter_table.run(asked, statement, table)
        return True

    async def _refuse(self, asked: Asked, statement: Statement) -> None:
        for name in statement.tables:
            if await self._tables.find_for(asked, name) is not None:
                raise SqlError(
                    Code.NOT_IMPLEMENTED,
                    f"{statement.kind.value} is not supported by storage {ENGINE}.",
                    hint="Run it on the tables of the shards, ON CLUSTER.",
                )

    async def _in_chdb(self, asked: Asked) -> None:
        try:
            await asked.session.query(
                asked.sql, format="Null", params=asked.params, scope=asked.scope, multi=False
            )
        finally:
            self._tables.changed()
