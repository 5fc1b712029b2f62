"""`system.detached_parts` without what nobody has detached: parts that lie in `detached/` for a moment, on
their way to readers, and those of the tables in which parts are made."""

from __future__ import annotations

from engine.names import quote_string
from engine.node.replicated.running.runtime import ReplicatedTables
from engine.node.statements.statement import Asked
from engine.part_storage.table_state import PASSING_MARK
from engine.part_storage.workers import SCRATCH_DATABASE
from engine.sql import Token


class DetachedPartsView:
    """Implements SystemView."""

    name = "detached_parts"

    def __init__(self, tables: ReplicatedTables) -> None:
        self._tables = tables

    @property
    def is_needed(self) -> bool:
        return bool(self._tables.all())

    async def select(self, asked: Asked, tokens: list[Token]) -> str:
        return (
            f"SELECT * FROM system.detached_parts WHERE database != {quote_string(SCRATCH_DATABASE)} "
            f"AND NOT endsWith(name, {quote_string(f'_{PASSING_MARK}')})"
        )
