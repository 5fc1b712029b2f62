"""DROP, DETACH, TRUNCATE, ALTER and their kin of Distributed tables. Only the node's own table is touched.

Safety argument. A name means what chDB says, and a table is known by its UUID, so RENAME and EXCHANGE are
chDB's alone. DROP removes chDB's table first, then what was still to be sent, then the record; a crash
between leaves the rest to the next start. DETACH sends what is pending first, if the table's setting
`flush_on_detach` says so, and fails with the table in place when that does not succeed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from engine.distributed.definition import ENGINE
from engine.errors import Code, SqlError
from engine.names import TableName
from engine.node.distributed.spools import Spools
from engine.node.distributed.tables import DistributedTable, DistributedTables
from engine.node.replicated.name_locks import NameLocks
from engine.node.replicated.statements import done
from engine.node.statement import Answer, Asked
from engine.sql import AlterCommand, Statement, StatementKind, tokenize
from engine.sql.cursor import Cursor
from engine.sql.sources import read_tables

_K = StatementKind
_ALTERS = frozenset(
    {
        AlterCommand.ADD_COLUMN,
        AlterCommand.DROP_COLUMN,
        AlterCommand.MODIFY_COLUMN,
        AlterCommand.COMMENT_COLUMN,
        AlterCommand.MODIFY_COMMENT,
    }
)

RunOther = Callable[[Asked], Awaitable[None]]
"""Runs a statement about tables that are not Distributed."""


class DistributedDdl:
    """Handles statements about Distributed tables that are neither CREATE nor INSERT."""

    def __init__(
        self, tables: DistributedTables, *, spools: Spools, names: NameLocks, run_other: RunOther
    ) -> None:
        self._tables = tables
        self._spools = spools
        self._names = names
        self._run_other = run_other

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        if not len(self._tables):
            return None
        match statement.kind:
            case _K.DROP_TABLE | _K.DETACH_TABLE:
                is_ours = await self._drop_or_detach(asked, statement)
            case _K.TRUNCATE_TABLE:
                is_ours = await self._truncate(asked, statement)
            case _K.ALTER_TABLE:
                is_ours = await self._alter(asked, statement)
            case _K.OPTIMIZE | _K.DELETE | _K.UPDATE | _K.CREATE_INDEX | _K.DROP_INDEX:
                await self._refuse(asked, statement)
                is_ours = False
            case _K.CREATE_MATERIALIZED_VIEW:
                await self._refuse_view(asked, statement)
                is_ours = False
            case _:
                is_ours = False
        return done(asked) if is_ours else None

    async def _drop_or_detach(self, asked: Asked, statement: Statement) -> bool:
        names = [TableName(t.database or asked.current_database, t.table) for t in statement.tables]
        found = [await self._tables.find(name) for name in names]
        if statement.temporary or not any(found):
            return False
        words = [token.text.upper() for token in tokenize(asked.sql) if token.is_significant]
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
        await self._in_chdb(asked)
        await self._spools.remove(table.uuid)
        self._tables.catalog.remove(table.uuid)

    async def _detach(self, asked: Asked, table: DistributedTable) -> None:
        if table.definition.number("flush_on_detach", 1):
            await self._spools.flush(table)
        await self._spools.stop(table.uuid)
        try:
            await self._in_chdb(asked)
        finally:
            await self._spools.refresh()

    async def _truncate(self, asked: Asked, statement: Statement) -> bool:
        table = await self._tables.find_for(asked, statement.tables[0])
        if table is None:
            return False
        await self._spools.truncate(table)
        return True

    async def _alter(self, asked: Asked, statement: Statement) -> bool:
        table = await self._tables.find_for(asked, statement.tables[0])
        if table is None:
            return False
        other = [command for command in statement.alter_commands if command not in _ALTERS]
        if other:
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                f"Alter of type '{other[0].value}' is not supported by storage {ENGINE}.",
                hint="ALTER the tables on the shards: ALTER TABLE … ON CLUSTER.",
            )
        await self._in_chdb(asked)
        return True

    async def _refuse(self, asked: Asked, statement: Statement) -> None:
        for name in statement.tables:
            if await self._tables.find_for(asked, name) is not None:
                raise SqlError(
                    Code.NOT_IMPLEMENTED,
                    f"{statement.kind.value} is not supported by storage {ENGINE}.",
                    hint="Run it on the tables of the shards, ON CLUSTER.",
                )

    async def _refuse_view(self, asked: Asked, statement: Statement) -> None:
        """chDB would write the view's rows into a table that keeps none, and never see an INSERT into it."""
        sources = [ref.name for ref in read_tables(Cursor(asked.sql), 0)]
        for name in (*statement.targets, *sources):
            if await self._tables.find_for(asked, name) is not None:
                raise SqlError(
                    Code.NOT_IMPLEMENTED,
                    f"A materialized view cannot read from, or write to, the Distributed table {name}.",
                    hint="Let it write to a table on each shard.",
                )

    async def _in_chdb(self, asked: Asked) -> None:
        try:
            await asked.session.query(
                asked.sql, format="Null", params=asked.params, scope=asked.scope, multi=False
            )
        finally:
            self._tables.changed()
