"""Another definition for a table, without its parts being rewritten under chDB's names."""

from __future__ import annotations

from collections.abc import Mapping

from engine.errors import Code, SqlError
from engine.part_storage.scratch_tables import ScratchTables
from engine.part_storage.table_state import TableState
from engine.part_storage.workers import Connection, Workers
from engine.replication.columns import Columns
from engine.replication.part_store import AlterPlan
from engine.replication.table_metadata import TableMetadata


class Alterer:
    """Steps of one table."""

    def __init__(self, state: TableState, scratch: ScratchTables, workers: Workers) -> None:
        self._state = state
        self._scratch = scratch
        self._workers = workers

    def plan(self, connection: Connection, commands: str) -> AlterPlan:
        """See `PartStore.plan_alter`."""
        raise SqlError(Code.NOT_IMPLEMENTED, "ALTER of a replicated table is not there yet")

    def apply(
        self,
        connection: Connection,
        columns: Columns,
        metadata: TableMetadata,
        renames: Mapping[str, str],
    ) -> None:
        """See `PartStore.apply_alter`."""
        raise SqlError(Code.NOT_IMPLEMENTED, "ALTER of a replicated table is not there yet")

    def apply_settings(self, connection: Connection, changes: Mapping[str, str | None]) -> None:
        """See `PartStore.apply_settings`."""
        raise SqlError(Code.NOT_IMPLEMENTED, "ALTER of a replicated table is not there yet")
