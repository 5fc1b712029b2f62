"""CREATE OR REPLACE of a table that has rows, on the initiator of a database's statement.

The old table goes with its rows as the last step of such a statement, when nobody knows yet whether the
statement will be committed. So the steps are taken one by one:

1. The new table is made, and filled, in a database that is there for this only. An error drops it.
2. EXCHANGE TABLES puts it in the old one's place, and the old one into that database, at one moment.
3. The statement is committed. If it is not, 2 is done again: everything is as before.
4. That database goes, with what is in it.

Safety argument. Rows go in 4 only: behind the commit, or when a session begins and the definitions are those
that Keeper has (`settle`). A crash between 2 and 4, and an outcome that nobody knows, leave the old table
there. If the statement was not committed, the recovery of this replica finds the old definition missing, and
takes the table with its rows from there (`give_back`). Recovery and statements exclude one another.
A replicated table is a replica in Keeper all the time, in whichever database it is.

Source: ClickHouse's InterpreterCreateQuery::doCreateOrReplaceTable, which commits with the exchange.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from uuid import UUID

from engine.errors import Code, OnclusterError, SqlError
from engine.names import TableName, quote_identifier
from engine.node.databases.texts import SchemaTexts, uuid_of
from engine.node.replicated.definitions.taking_place import create_of
from engine.node.statements.statement import Asked
from engine.sql import Statement, StatementKind
from engine.sql.parse import draft_of

log = logging.getLogger(__name__)

_TABLE = "ATTACH TABLE "
_PREFIX = "_oncluster_replaced_"

Run = Callable[[str], Awaitable[None]]
"""A statement of the node's own. Raises SqlError."""


class Replacement:
    """Of the tables of one Replicated database, which has this UUID."""

    def __init__(self, uuid: UUID, texts: SchemaTexts, run: Run) -> None:
        self._database = f"{_PREFIX}{uuid.hex}"
        self._texts = texts
        self._run = run
        self._is_undecided = texts.has_database(self._database)
        """Whether what is there may be an old table that is to come back."""

    async def make(self, asked: Asked, run_here: Callable[[Asked], Awaitable[None]]) -> None:
        """1 and 2. Raises SqlError, and nothing was changed then."""
        name = draft_of(asked.sql).refs[0].name
        kept = self._kept(name)
        if self._is_undecided and self._texts.has_database(self._database):
            raise SqlError(
                Code.DATABASE_REPLICATION_FAILED,
                f"{name} is not replaced: a table whose replacement failed has its rows in {kept.database}",
                hint="It comes back when this node begins a session with ZooKeeper: restart it. With the "
                "database's setting check_consistency = 0 it does not: RENAME or DROP it.",
            )
        await self.settle()
        await self._run(f"CREATE DATABASE {quote_identifier(self._database)} ENGINE = Atomic")
        try:
            await run_here(replace(asked, sql=create_of(asked.sql, kept)))
            self._is_undecided = True
            await self._exchange(name)
        except SqlError as error:  # and nothing else: cut off, the exchange may take place nevertheless
            await self.settle()
            message = error.message.replace(kept.quoted, name.quoted).replace(str(kept), str(name))
            raise error.reworded(message) from error

    async def undo(self, name: TableName) -> None:
        """2 again, then 4: the statement was not committed. Raises SqlError, and everything stays then."""
        await self._exchange(name)
        await self.settle()

    async def settle(self) -> None:
        """4, if there is anything. What cannot be dropped waits for the next time."""
        self._is_undecided = False
        if not self._texts.has_database(self._database):
            return
        try:
            await self._run(f"DROP DATABASE IF EXISTS {quote_identifier(self._database)}")
        except OnclusterError as error:
            log.warning("databases.replaced_stays database=%s error=%s", self._database, error)

    def kept(self) -> Mapping[TableName, str]:
        """The tables that are there, and their metadata texts."""
        texts = self._texts.read(self._database)
        return {TableName(self._database, name): text for name, text in texts.items()}

    async def give_back(self, name: TableName, text: str, *, replicates: bool) -> bool:
        """Whether a table of this text was there, which is `name` now. One that replicates is the table of
        this UUID, whatever its text: it follows its other replicas. Raises SqlError."""
        uuid = uuid_of(text)
        for kept, its_text in self.kept().items():
            if uuid is not None and (its_text == text or (replicates and uuid_of(its_text) == uuid)):
                log.warning("databases.given_back table=%s", name)
                await self._run(f"RENAME TABLE {kept.quoted} TO {name.quoted}")
                return True
        return False

    async def _exchange(self, name: TableName) -> None:
        await self._run(f"EXCHANGE TABLES {name.quoted} AND {self._kept(name).quoted}")

    def _kept(self, name: TableName) -> TableName:
        return TableName(self._database, name.table)


def replaced_database(name: str) -> UUID | None:
    """The UUID of the Replicated database in whose place tables are made in the database of this name."""
    if not name.startswith(_PREFIX):
        return None
    try:
        return UUID(name.removeprefix(_PREFIX))
    except ValueError:
        return None


def replaces_table(statement: Statement) -> bool:
    """Whether it is CREATE OR REPLACE TABLE, or REPLACE TABLE."""
    return statement.kind is StatementKind.CREATE_TABLE and statement.or_replace and not statement.temporary


def has_rows_of_its_own(text: str) -> bool:
    """Of a metadata text: whether there is a table behind it that may have some."""
    return text.startswith(_TABLE) and "\nENGINE = Distributed(" not in text
