"""`select_sequential_consistency = 1`: a SELECT sees no row that a quorum has not confirmed.

Which blocks are confirmed is asked of Keeper before the statement begins; parts beyond them are left out by
`additional_table_filters` on the UUID that carries their names. A table in which no part is beyond them,
which is the usual case, is read as it is. A view is looked through: the filters hold for the tables that its
SELECT reads, and a materialized view has those of its target under its own name. What `merge()`, a table of
engine Merge or a parameterized view reads is not found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from engine.errors import Code, SqlError
from engine.names import TableName, quote_string
from engine.node.replicated.local_tables import LocalTables
from engine.node.replicated.runtime import ReplicatedTables, RunningTable
from engine.node.replicated.waiting import flag, settings_of
from engine.node.statement import Asked
from engine.part_storage.part_uuid import uuid_of
from engine.replication.commands.consistent_read import max_blocks
from engine.sql import Statement, StatementKind
from engine.sql.cursor import Cursor
from engine.sql.sources import read_tables

_READING = frozenset(
    {StatementKind.SELECT, StatementKind.INSERT, StatementKind.EXPLAIN, StatementKind.CREATE_TABLE}
)
_SETTING = "select_sequential_consistency"
_FILTERS = "additional_table_filters"


class ConsistentReads:
    """Adds the filters to statements that ask for them."""

    def __init__(self, tables: ReplicatedTables, local: LocalTables) -> None:
        self._tables = tables
        self._local = local

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
        for name, table in (await self._read(asked)).items():
            if hidden := await self._unconfirmed(table):
                filters[str(name)] = f"_part_uuid NOT IN ({', '.join(hidden)})"
        if not filters:
            return asked
        if settings.get(_FILTERS, "") not in ("", "{}"):
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                f"{_FILTERS} and {_SETTING} together are not supported.",
            )
        return replace(asked, settings={**asked.settings, _FILTERS: _as_map(filters)})

    async def _read(self, asked: Asked) -> Mapping[TableName, RunningTable]:
        """The replicated tables that a statement reads, by the name under which chDB takes their filters."""
        found: dict[TableName, RunningTable] = {}
        seen: set[TableName] = set()
        names = _names(asked.sql, asked.current_database)
        while names:
            seen |= names
            ours = {name: table for name in names if (table := self._tables.find(name)) is not None}
            found |= ours
            within: set[TableName] = set()
            for view, target, select in await self._views(names - ours.keys()):
                if select:
                    within |= _names(select, view.database)
                elif (table := self._tables.find(target)) is not None:
                    found[view] = table
            names = within - seen
        return found

    async def _views(self, names: Set[TableName]) -> Sequence[tuple[TableName, TableName, str]]:
        """Those of `names` that are views: plain ones with SELECT, materialized ones with target."""
        if not names:
            return []
        among = ", ".join(
            f"({quote_string(name.database)}, {quote_string(name.table)})" for name in sorted(names)
        )
        rows = await self._local.rows(
            "SELECT database, name, target_database, target_table, if(engine = 'View', as_select, '') "
            "FROM system.tables WHERE engine IN ('View', 'MaterializedView') "
            f"AND (database, name) IN ({among})"
        )
        return [(TableName(*row[:2]), TableName(*row[2:4]), row[4]) for row in rows]

    async def _unconfirmed(self, table: RunningTable) -> list[str]:
        limits = await max_blocks(table.ctx)
        return [
            f"'{uuid_of(part)}'"
            for part in sorted(table.store.active)
            if part.max_block > limits.get(part.partition_id, -1)
        ]


def _names(sql: str, database: str) -> set[TableName]:
    """The tables that a text reads."""
    refs = read_tables(Cursor(sql), 0)
    return {TableName(ref.name.database or database, ref.name.table) for ref in refs}


def _as_map(filters: Mapping[str, str]) -> str:
    items = ", ".join(f"{quote_string(name)}: {quote_string(text)}" for name, text in filters.items())
    return f"{{{items}}}"
