"""A Distributed table takes the place of another table, or another table that of a Distributed one.

Safety argument. 1. The new table is made, and filled, under a temporary name that its UUID gives; an error
undoes it. 2. If the old table is Distributed, INSERTs into it end, everything that waits in its spool is
sent, and the statement is refused if anything stays: pending rows must neither be lost nor go where the new
table sends its own. 3. EXCHANGE TABLES, at one moment; without an old table RENAME. 4. What has the temporary
name now is dropped. A crash leaves a table under the temporary name: an unfinished new one, or an old one
with nothing left to send. The next start drops it if it is Distributed.

Source: ClickHouse's InterpreterCreateQuery::doCreateOrReplaceTable.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from uuid import UUID

from engine.errors import OnclusterError
from engine.names import TableName
from engine.node.distributed.registry.tables import DistributedTable, DistributedTables
from engine.node.distributed.sending.spools import Spools
from engine.node.replicated.definitions.taking_place import Taking, check_place, is_temporary, temporary_name
from engine.node.statements.asked_settings import number, settings_of
from engine.node.statements.statement import Asked

log = logging.getLogger(__name__)

_LOCK_TIMEOUT_S = 120.0

RunOther = Callable[[Asked], Awaitable[None]]
"""Runs a statement about tables that are not Distributed, or about names only."""


class Replacing:
    """Exchanges, and drops what was exchanged out."""

    def __init__(self, tables: DistributedTables, spools: Spools, run_other: RunOther) -> None:
        self._tables = tables
        self._spools = spools
        self._run_other = run_other

    async def put_in_place(
        self,
        asked: Asked,
        name: TableName,
        uuid: UUID,
        make: Callable[[TableName], Awaitable[None]],
        *,
        taking: Taking,
    ) -> None:
        """All steps, for a new Distributed table. `make` leaves nothing when it fails.

        Raises SqlError: 60 and 57 as `taking` says, 48 for a view, 473 and what `Spools.settle` raises for an
        old table with rows pending, and what `make` and chDB raise.
        """
        temporary = temporary_name(name, uuid)
        old = await self._tables.local.named(name)
        if old is not None and old.uuid == uuid:  # the queue executes its entry once more
            await self.drop(asked, temporary)
            return
        check_place(name, old, taking)
        await self.drop(asked, temporary)
        await make(temporary)
        try:
            async with AsyncExitStack() as stack:
                if (table := await self._tables.find(name)) is not None:
                    await stack.enter_async_context(self.alone(asked, table))
                    await self._spools.settle(table)
                await self._exchange(asked, temporary, name, is_new=old is None)
        except OnclusterError:
            await self.drop(asked, temporary)
            raise
        if old is not None:
            await self.drop(asked, temporary)

    def alone(self, asked: Asked, table: DistributedTable) -> AbstractAsyncContextManager[None]:
        """Nobody inserts into the table inside. Raises SqlError 473 after `lock_acquire_timeout`."""
        timeout_s = number(settings_of(asked), "lock_acquire_timeout", _LOCK_TIMEOUT_S)
        return self._tables.gates.alone(table.uuid, timeout_s=timeout_s)

    async def _exchange(self, asked: Asked, temporary: TableName, name: TableName, *, is_new: bool) -> None:
        verb, between = ("RENAME TABLE", "TO") if is_new else ("EXCHANGE TABLES", "AND")
        try:
            await self._plain(asked, f"{verb} {temporary.quoted} {between} {name.quoted}")
        finally:
            self._tables.note_given([temporary, name])

    async def drop(self, asked: Asked, name: TableName) -> None:
        """Drop what has this name, if anything has, with what its spool still holds."""
        local = await self._tables.local.named(name)
        if local is None:
            return
        if self._tables.catalog.get(local.uuid) is None:
            await self._plain(asked, f"DROP TABLE IF EXISTS {name.quoted} SYNC")
            return
        await self.forget(local.uuid, name)

    async def forget(self, uuid: UUID, name: TableName) -> None:
        """Drop a Distributed table, its spool and its record."""
        try:
            await self._tables.local.drop(name, uuid)
        finally:
            self._tables.changed()
        await self._spools.remove(uuid)
        self._tables.catalog.remove(uuid)
        self._tables.changed()

    async def drop_leftovers(self) -> None:
        """At the node's start: what a crash left under a temporary name."""
        for table in await self._tables.all():
            if is_temporary(table.name):
                try:
                    await self.forget(table.uuid, table.name)
                except (OnclusterError, OSError) as error:
                    log.warning("distributed.leftover_stays table=%s error=%s", table.name, error)

    async def _plain(self, asked: Asked, sql: str) -> None:
        limits = {"max_table_size_to_drop": "0", "max_partition_size_to_drop": "0"}
        await self._run_other(replace(asked, sql=sql, settings={**asked.settings, **limits}, params={}))
