"""What recovery does with the tables of a Replicated database in chDB.

Safety argument. It moves aside and destroys nothing that has rows: a table that is to go and has files of its
own is renamed into another database. What a CREATE OR REPLACE that was not committed has put away comes back
with its rows (`replacement`).
"""

from __future__ import annotations

import logging
from dataclasses import replace
from uuid import UUID

from engine.names import TableName, quote_identifier
from engine.node.databases.local_database import QUIET, LocalDatabase, replicates
from engine.node.databases.replacement import Replacement
from engine.node.databases.texts import uuid_of
from engine.node.replicated.definitions.view_definition import inner_name
from engine.sql.lenient import LENIENT

log = logging.getLogger(__name__)


class RecoverySteps:
    """Of one database."""

    def __init__(self, database: LocalDatabase, replacement: Replacement) -> None:
        self._database = database
        self._shell = database.shell
        self._replacement = replacement

    async def create(self, name: str, text: str) -> None:
        """A table, view or dictionary by its metadata text. Raises SqlError."""
        uuid = uuid_of(text)
        if uuid is not None and uuid == uuid_of(self._database.texts().get(name, "")):
            return
        whole = TableName(self._database.name, name)
        if await self._replacement.give_back(whole, text, replicates=replicates(text)):
            return
        await self._make_way(uuid)
        if uuid is not None and await self._undropped(whole, uuid, text):
            return
        head, newline, body = text.partition("\n")
        head = head.replace(" _ ", f" {whole.quoted} ", 1)
        definition = text.partition("\nAS ")[0]
        if not head.startswith("ATTACH MATERIALIZED VIEW") or "TO INNER UUID '" not in definition:
            head = head.replace("ATTACH ", "CREATE ", 1)  # an inner table is made by itself
        await self._database.carry_out(f"{head}{newline}{body}", LENIENT)

    async def _make_way(self, uuid: UUID | None) -> None:
        """A table of this UUID that was put away was altered by the others since."""
        for kept, text in self._replacement.kept().items():
            if uuid is not None and uuid_of(text) == uuid:
                await self._put_into(kept, f"{kept.table}_{uuid.hex[:8]}", replicated=False)

    async def _undropped(self, name: TableName, uuid: UUID, text: str) -> bool:
        """Whether chDB still had a table of this text that it has dropped, which is `name` now: the one of a
        materialized view whose replacement was not committed. Until it is gone no other can have its UUID.
        Raises SqlError."""
        if uuid not in await self._shell.local.dropped():
            return False
        log.warning("databases.undropped table=%s", name)
        await self._database.run(f"UNDROP TABLE {name.quoted} UUID '{uuid}'", QUIET)
        if self._database.texts().get(name.table) == text or replicates(text):
            return True
        await self._put_into(name, f"{name.table}_{uuid.hex[:8]}", replicated=False)
        return False

    async def rename(self, name: str, new_name: str) -> None:
        table, to = TableName(self._database.name, name), TableName(self._database.name, new_name)
        if self._shell.texts.is_held_back(table):
            self._rename_held_back(table, to)
            return
        await self._database.run(f"RENAME TABLE {table.quoted} TO {to.quoted}", QUIET)

    def _rename_held_back(self, table: TableName, to: TableName) -> None:
        """chDB does not have it; the node's record of a replicated table has its name."""
        catalog, uuid = self._shell.life.catalog, uuid_of(self._shell.texts.read_raw(table) or "")
        self._shell.texts.rename_held_back(table, to)
        record = None if uuid is None else catalog.get(uuid)
        if record is not None:
            catalog.put(replace(record, name=to))

    async def drop(self, name: str) -> None:
        """What has no rows of its own: a view, a dictionary, a table in memory. A table that a view has for
        its own stays."""
        text = self._database.texts().get(name, "")
        what = "DICTIONARY" if text.startswith("CREATE DICTIONARY") else "TABLE"
        whole = TableName(self._database.name, name)
        uuid = uuid_of(text)
        own = None if uuid is None else await self._shell.local.named(inner_name(whole, uuid))
        if own is None or uuid is None:
            await self._database.run(f"DROP {what} IF EXISTS {whole.quoted} SYNC", QUIET)
            return
        # With a view chDB drops no table that is detached; that is attached again also at the next start.
        await self._database.run(f"DETACH TABLE {own.name.quoted}", QUIET)
        try:
            await self._shell.local.drop(whole, uuid)
        finally:
            await self._database.run(f"ATTACH TABLE {own.name.quoted}", QUIET)

    async def move_aside(self, name: str, new_name: str, *, replicated: bool) -> None:
        """Into `<database>_broken_replicated_tables`, or else into `<database>_broken_tables`, whose tables
        have no UUID; for that chDB has to have them, and a plain table that it does not have goes to
        `oncluster/orphans`."""
        table = TableName(self._database.name, name)
        if self._shell.texts.is_held_back(table) and not replicated:
            self._shell.texts.set_aside(table)
            return
        await self._put_into(table, new_name, replicated=replicated)

    async def _put_into(self, table: TableName, new_name: str, *, replicated: bool) -> None:
        database = self._database.name
        to = f"{database}_broken_replicated_tables" if replicated else f"{database}_broken_tables"
        engine = "Atomic" if replicated else "Ordinary"
        await self._database.run(
            f"CREATE DATABASE IF NOT EXISTS {quote_identifier(to)} ENGINE = {engine}",
            {"allow_deprecated_database_ordinary": "1"},
        )
        aside = TableName(to, new_name)
        if self._shell.texts.is_held_back(table):
            self._rename_held_back(table, aside)
            return
        await self._database.run(f"RENAME TABLE {table.quoted} TO {aside.quoted}", QUIET)
