"""A column that a materialized view reads is not dropped, as in ClickHouse.

chDB refuses such an ALTER itself. That of a replicated table, and of any table of a Replicated database, is
decided in Keeper before chDB carries it out, and could not be taken back: every replica would try it for
ever. So chDB is asked before, on an empty table of the same columns that is read by the same views.

The database of that table is there only meanwhile; a kill leaves it to the next start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from engine.errors import Code, SqlError
from engine.names import TableName
from engine.node.replicated.rows.view_sql import reading_from
from engine.node.replicated.rows.views import View, ViewGraph
from engine.node.replicated.running.local_tables import LocalTables
from engine.sql.lenient import LENIENT

_DATABASE = "_oncluster_views"
_TABLE = TableName(_DATABASE, "t")


class DroppedColumns:
    """Asks about one ALTER at a time."""

    def __init__(self, local: LocalTables, graph: ViewGraph) -> None:
        self._local = local
        self._graph = graph
        self._lock = asyncio.Lock()

    async def clear(self) -> None:
        """At the start: what a kill has left."""
        await self._local.run(f"DROP DATABASE IF EXISTS {_DATABASE} SYNC")

    async def check(self, table: TableName, drops: Sequence[str], *, engine: str = "") -> None:
        """`drops` are the sub-commands of an ALTER that drop columns. Raises SqlError 524; whatever else is
        wrong with them shows when the ALTER is planned. `engine` is the empty table's where it is to have
        another one than `table` has in chDB."""
        views = await self._graph.of(table) if drops else ()
        if not views:
            return
        async with self._lock:
            await self._local.run(f"CREATE DATABASE {_DATABASE} ENGINE = Atomic")
            try:
                names = await self._made(table, views, f" ENGINE = {engine}" if engine else "")
                await self._try(drops, names)
            finally:
                await self._local.run(f"DROP DATABASE IF EXISTS {_DATABASE} SYNC")

    async def _made(self, table: TableName, views: Sequence[View], engine: str) -> dict[str, TableName]:
        """The views by the names that they have here. Raises SqlError where one's SELECT is wrong already, as
        ClickHouse does: nobody can tell what it reads."""
        await self._local.run(f"CREATE TABLE {_TABLE.quoted} AS {table.quoted}{engine}", settings=LENIENT)
        names: dict[str, TableName] = {}
        for number, view in enumerate(views, start=1):
            name = f"v{number}"
            made = f"CREATE MATERIALIZED VIEW {_DATABASE}.{name} ENGINE = Null AS "
            try:
                await self._local.run(f"{made}{reading_from(view.select, view.source, _TABLE)}")
            except SqlError as error:
                raise SqlError(
                    error.code,
                    f"{error.message}: in materialized view {view.name}, which reads {table}",
                    hint=error.hint,
                    name=error.name,
                ) from error
            names[f"'{name}'"] = view.name
        return names

    async def _try(self, drops: Sequence[str], names: dict[str, TableName]) -> None:
        try:
            await self._local.run(f"ALTER TABLE {_TABLE.quoted} {', '.join(drops)}", settings=LENIENT)
        except SqlError as error:
            if error.code != Code.ALTER_OF_COLUMN_IS_FORBIDDEN:
                return
            message = error.message
            for name, view in names.items():
                message = message.replace(name, f"'{view.table}'")
            raise SqlError(error.code, message) from error
