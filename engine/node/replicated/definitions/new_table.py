"""A table that is to be made here: where it is in Keeper, the node's record of it, and chDB's part of it."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from engine.names import TableName
from engine.node.replicated.definitions.definition_sql import Definition
from engine.node.replicated.running.catalog import TableRecord, TableState
from engine.node.statements.statement import Asked
from engine.part_storage.hidden_settings import HIDDEN_SETTINGS
from engine.replication.paths import ReplicaPaths, TablePaths


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table is in Keeper, and how that is shown."""

    me: ReplicaPaths
    paths: TablePaths
    shown_path: str
    shown_replica: str

    def record(self, definition: Definition, name: TableName, uuid: UUID, state: TableState) -> TableRecord:
        """The record of a table that `definition` makes here."""
        return TableRecord(
            uuid=uuid,
            name=name,
            zookeeper_path=self.paths.root,
            replica=self.me.name,
            shown_path=self.shown_path,
            shown_replica=self.shown_replica,
            state=state,
            user_settings=definition.hidden_from_user(HIDDEN_SETTINGS),
        )


async def make_in_chdb(asked: Asked, definition: Definition, record: TableRecord) -> None:
    """The plain table that holds the rows, with the settings and parameters of the statement. Raises
    SqlError."""
    await asked.session.query(
        definition.for_chdb(record.uuid, record.name, HIDDEN_SETTINGS),
        format="Null",
        params=asked.params,
        scope=asked.scope,
        multi=False,
    )
