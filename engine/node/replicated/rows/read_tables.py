"""Which replicated tables a statement reads, through views, `merge()` and tables of engine Merge, too."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from engine.names import TableName, quote_string
from engine.node.replicated.running.local_tables import LocalTables
from engine.node.replicated.running.runtime import ReplicatedTables, RunningTable
from engine.node.statements.merged_tables import Merge, Merged, merge_calls, merge_of_engine, merged_tables
from engine.node.statements.statement import Asked
from engine.node.statements.view_parameters import view_calls
from engine.sql.cursor import Cursor
from engine.sql.sources import read_tables
from engine.storage.errors import told

MERGE_FUNCTION = TableName("_table_function", "merge")
"""By this name chDB takes the filters of all calls of `merge()`."""


@dataclass(slots=True)
class ReadMerge:
    """What merges tables, by the name under which chDB takes its filters, and the replicated ones among them
    by the names under which rows come from there. `has_parts`: some table of it has columns about parts."""

    name: TableName
    tables: dict[TableName, RunningTable] = field(default_factory=dict)
    has_parts: bool = False


@dataclass(slots=True)
class ReadTables:
    """`tables` are read by name; the names are those under which chDB takes their filters."""

    tables: dict[TableName, RunningTable] = field(default_factory=dict)
    merges: list[ReadMerge] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Source:
    """A view, with SELECT or with target, or a table of engine Merge."""

    name: TableName
    select: str
    target: TableName
    engine: str
    engine_full: str


class Readings:
    """Finds them by names in the text and in those of views."""

    def __init__(self, tables: ReplicatedTables, local: LocalTables) -> None:
        self._tables = tables
        self._local = local

    async def of(self, asked: Asked) -> ReadTables:
        found = ReadTables()
        seen: set[TableName] = set()
        names, merges = _in_text(asked.sql, asked.current_database)
        while names or merges:
            seen |= names
            within: set[TableName] = set()
            for merge in merges:
                read, views = await self._merged(merge, asked.current_database)
                found.merges.append(read)
                within |= views
            found.tables |= {name: table for name in names if (table := self._tables.find(name)) is not None}
            merges = []
            for source in await self._sources(names - found.tables.keys()):
                if source.engine == "Merge":
                    merges.append(merge_of_engine(source.engine_full, source.name))
                elif source.engine == "View":
                    inner, calls = _in_text(told(source.select, source.name), source.name.database)
                    within |= inner
                    merges += calls
                elif (table := self._tables.find(source.target)) is not None:
                    found.tables[source.name] = table
            names = within - seen
        return found

    async def _merged(self, merge: Merge, database: str) -> tuple[ReadMerge, set[TableName]]:
        """What it reads, and the views among that."""
        read, views = ReadMerge(merge.own or MERGE_FUNCTION), set()
        pending, seen = [merge], {merge.own}
        while pending:
            for one in await merged_tables(self._local, pending.pop(), database):
                if one.engine == "Merge" and one.name not in seen:
                    seen.add(one.name)
                    pending.append(merge_of_engine(one.engine_full, one.name))
                elif one.engine == "View":
                    views.add(one.name)
                elif (table := await self._table(one)) is not None:
                    read.tables[one.name] = table
                read.has_parts |= one.engine.endswith("MergeTree") or one.name in read.tables
        return read, views

    async def _table(self, one: Merged) -> RunningTable | None:
        """The table itself, or the target of a materialized view."""
        if one.engine != "MaterializedView":
            return self._tables.find(one.name)
        targets = [self._tables.find(source.target) for source in await self._sources({one.name})]
        return targets[0] if targets else None

    async def _sources(self, names: Set[TableName]) -> Sequence[_Source]:
        if not names:
            return []
        among = ", ".join(
            f"({quote_string(name.database)}, {quote_string(name.table)})" for name in sorted(names)
        )
        rows = await self._local.rows(
            "SELECT database, name, as_select, target_database, target_table, engine, engine_full "
            "FROM system.tables WHERE engine IN ('View', 'MaterializedView', 'Merge') "
            f"AND (database, name) IN ({among})"
        )
        return [_Source(TableName(*row[:2]), row[2], TableName(*row[3:5]), *row[5:7]) for row in rows]


def _in_text(sql: str, database: str) -> tuple[set[TableName], list[Merge]]:
    """The tables and views that a text reads, and what it merges. Names have a database."""
    names = [ref.name for ref in read_tables(Cursor(sql), 0)] + [call.name for call in view_calls(sql)]
    merges = [call.merge for call in merge_calls(sql)]
    return {name.within(database) for name in names}, merges
