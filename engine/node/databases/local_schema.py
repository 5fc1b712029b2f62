"""The tables of one Replicated database in chDB, as the database's worker sees and changes them.

Safety argument. What is executed here is executed by the same handlers that a client's statements go through,
so replicated and Distributed tables keep their own promises; the rest is that of `initiated`, `logged` and
`recovering`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from uuid import UUID

from engine.databases import Commit
from engine.databases.digest import hash_of
from engine.ddl.attempt import Fence
from engine.names import quote_identifier
from engine.node.databases.begun import BegunEntry
from engine.node.databases.initiated import InitiatedStatements
from engine.node.databases.local_database import QUIET, LocalDatabase, Shell, replicates
from engine.node.databases.logged import LoggedStatements
from engine.node.databases.other_hashes import OtherHashes
from engine.node.databases.recovering import RecoverySteps
from engine.node.databases.replacement import Replacement
from engine.node.replicated.definitions.own_tables import table_behind
from engine.node.statements.statement import Asked
from engine.sql import parse_statement, runs_once_per_shard


class ChdbSchema:
    """One database; implements `LocalSchema`. `name` is its present one."""

    def __init__(
        self, shell: Shell, uuid: UUID, name: Callable[[], str], begun: BegunEntry, others: OtherHashes
    ) -> None:
        self._database = database = LocalDatabase(shell, name)
        self._begun = begun
        self._others = others
        self._replacement = Replacement(uuid, shell.texts, lambda sql: database.run(sql, QUIET))
        self._initiated = InitiatedStatements(database, self._replacement, others)
        self._logged = LoggedStatements(database, begun, self._replacement)
        self._recovery = RecoverySteps(database, self._replacement)

    def texts(self) -> Mapping[str, str]:
        return self._database.texts()

    def replicates(self, text: str) -> bool:
        return replicates(text)

    async def has_data(self, name: str) -> bool:
        return await self._database.has_data(name)

    async def has_rows(self, name: str) -> bool:
        return await self._database.has_rows(name)

    async def runs_once_per_shard(self, query: str) -> bool:
        statement = parse_statement(query)
        if not runs_once_per_shard(statement) or not statement.tables:
            return False
        table = self._database.whole(statement.tables[0])
        return await table_behind(self._database.shell.life, table) is not None

    # -- statements of the log -------------------------------------------------------------------------------

    async def execute_as_initiator(self, asked: Asked, commit: Commit) -> None:
        """See `InitiatedStatements.execute`."""
        await self._initiated.execute(asked, commit)

    async def execute(self, number: int, query: str, settings: Mapping[str, str], fence: Fence) -> None:
        await self._logged.execute(number, query, settings, fence)

    async def redo(self, query: str, settings: Mapping[str, str]) -> None:
        await self._logged.redo(query, settings)

    def is_effect_of(self, number: int, query: str, digest: int) -> bool:
        return self._logged.is_effect_of(number, query, digest)

    def before_create(self, query: str) -> Mapping[str, str] | None:
        return self._logged.before_create(query)

    async def take_back(self, query: str) -> None:
        await self._logged.take_back(query)

    def begins(self, number: int) -> None:
        self._begun.begins(number)

    def begun(self) -> int:
        return self._begun.number

    def alters_itself(self, table: str) -> None:
        """The own replication of a replicated table is about to give it another definition."""
        text = self.texts().get(table)
        if text is not None:
            self._others.add(table, hash_of(table, text))

    def other_hashes(self) -> Mapping[str, Collection[int]]:
        return self._others.all()

    # -- recovery --------------------------------------------------------------------------------------------

    async def create(self, name: str, text: str) -> None:
        await self._recovery.create(name, text)

    async def rename(self, name: str, new_name: str) -> None:
        await self._recovery.rename(name, new_name)

    async def drop(self, name: str) -> None:
        await self._recovery.drop(name)

    async def move_aside(self, name: str, new_name: str, *, replicated: bool) -> None:
        await self._recovery.move_aside(name, new_name, replicated=replicated)

    async def settle(self) -> None:
        await self._replacement.settle()

    # -- the end ---------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """The database is gone."""
        self._begun.forget()
        self._others.forget()

    async def drop_database(self, name: str) -> None:
        """With all that is in it. Raises SqlError."""
        await self._replacement.settle()
        await self._database.run(f"DROP DATABASE IF EXISTS {quote_identifier(name)} SYNC", QUIET)
