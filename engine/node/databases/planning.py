"""What an ALTER would make of a table's metadata text, found out on an empty table of the same definition.

The text goes into Keeper in the transaction that commits the statement, before anything is altered. The
database of the empty table is there only meanwhile; a kill leaves it to the next start.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from engine.env import Env
from engine.errors import SqlError
from engine.names import TableName, quote_string
from engine.node.databases.texts import SchemaTexts, uuid_of
from engine.node.replicated.running.local_tables import LocalTables
from engine.node.statements.statement import Asked
from engine.sql.edit import Edit, apply_edits
from engine.sql.lenient import LENIENT
from engine.sql.parse import draft_of
from engine.storage import ChdbPool

log = logging.getLogger(__name__)

_DATABASE = "_oncluster_plan"
_AT_ONCE = {"alter_sync": "0", "mutations_sync": "0"}


class AlterPlanner:
    """Plans one ALTER at a time."""

    def __init__(self, pool: ChdbPool, local: LocalTables, texts: SchemaTexts, env: Env) -> None:
        self._pool = pool
        self._local = local
        self._texts = texts
        self._env = env
        self._lock = asyncio.Lock()
        self._is_left = False
        """The database of an earlier ALTER may be there: it could not be dropped, or made with an error."""

    async def clear(self) -> None:
        """Drop what is left; at the start it may be a kill's."""
        await self._local.run(f"DROP DATABASE IF EXISTS {_DATABASE} SYNC")

    async def altered(self, asked: Asked, table: TableName) -> str | None:
        """The text of `table` after the ALTER in `asked`; None if it is another kind of object, or there is
        no such table. Raises SqlError for an ALTER that chDB refuses."""
        raw = self._texts.read_raw(table)
        if raw is None or not raw.startswith("ATTACH TABLE ") or uuid_of(raw) is None:
            return None
        scratch = TableName(_DATABASE, "t")
        async with self._lock:
            made = self._env.new_uuid()
            head, newline, body = raw.partition("\n")
            create = f"CREATE TABLE {scratch.quoted} UUID {quote_string(str(made))}{newline}{body}"
            if self._is_left:
                await self.clear()
            self._is_left = True
            try:
                await self._local.run(f"CREATE DATABASE {_DATABASE} ENGINE = Atomic")
                await self._pool.query(create, format="Null", settings=LENIENT)
                await asked.session.clone().query(
                    _about(asked.sql, scratch),
                    format="Null",
                    params=asked.params,
                    scope=replace(asked.scope, settings={**asked.settings, **_AT_ONCE}),
                    multi=False,
                )
                altered = self._texts.read_raw(scratch)
            except SqlError as error:
                message = error.message.replace(scratch.quoted, table.quoted)
                message = message.replace(str(scratch), str(table))
                raise error.reworded(message) from error
            finally:
                await self._drop()
        if altered is None:
            return None
        return self._texts.of(f"{head}\n{altered.partition(chr(10))[2]}")

    async def _drop(self) -> None:
        """What could not be dropped is before the next ALTER: this one is planned, or has an error of its
        own."""
        try:
            await self.clear()
            self._is_left = False
        except SqlError as error:
            log.warning("databases.plan_not_dropped error=%s", error)


def _about(sql: str, table: TableName) -> str:
    """The statement with another table's name."""
    ref = draft_of(sql).refs[0]
    return apply_edits(sql, [Edit(ref.start, ref.end, table.quoted)])
