"""`select_sequential_consistency = 1`: a SELECT sees no row that a quorum has not confirmed.

Which blocks are confirmed is asked of Keeper before the statement begins; parts beyond them are left out by
`additional_table_filters` on the UUID that carries their names. A table in which no part is beyond them,
which is the usual case, is read as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from engine.errors import Code, SqlError
from engine.names import quote_string
from engine.node.replicated.runtime import ReplicatedTables, RunningTable
from engine.node.replicated.waiting import flag, settings_of
from engine.node.statement import Asked
from engine.part_storage.part_uuid import uuid_of
from engine.replication.commands.consistent_read import max_blocks
from engine.sql import Statement, StatementKind
from engine.sql.cursor import Cursor
from engine.sql.sources import read_tables

_READING = frozenset({StatementKind.SELECT, StatementKind.INSERT, StatementKind.EXPLAIN})
_SETTING = "select_sequential_consistency"
_FILTERS = "additional_table_filters"


class ConsistentReads:
    """Adds the filters to statements that ask for them."""

    def __init__(self, tables: ReplicatedTables) -> None:
        self._tables = tables

    async def prepare(self, asked: Asked, statement: Statement) -> Asked:
        """The request with its filters. Raises SqlError 289 when this replica lacks confirmed parts, 242
        without Keeper."""
        if statement.kind not in _READING or not self._tables:
            return asked
        if not (_SETTING in asked.settings or _SETTING in asked.session.settings or _SETTING in asked.sql):
            return asked  # nearly always, and the text need not be taken apart
        settings = settings_of(asked)
        if not flag(settings, _SETTING, False):
            return asked
        filters: dict[str, str] = {}
        for ref in read_tables(Cursor(asked.sql), 0):
            table = self._tables.find_for(asked, ref.name)
            if table is not None and (hidden := await self._unconfirmed(table)):
                filters[str(table.name)] = f"_part_uuid NOT IN ({', '.join(hidden)})"
        if not filters:
            return asked
        if settings.get(_FILTERS, "") not in ("", "{}"):
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                f"{_FILTERS} and {_SETTING} together are not supported.",
            )
        return replace(asked, settings={**asked.settings, _FILTERS: _as_map(filters)})

    async def _unconfirmed(self, table: RunningTable) -> list[str]:
        limits = await max_blocks(table.ctx)
        return [
            f"'{uuid_of(part)}'"
            for part in sorted(table.store.active)
            if part.max_block > limits.get(part.partition_id, -1)
        ]


def _as_map(filters: Mapping[str, str]) -> str:
    items = ", ".join(f"{quote_string(name)}: {quote_string(text)}" for name, text in filters.items())
    return f"{{{items}}}"
