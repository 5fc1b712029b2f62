"""Views over Distributed tables are put into a statement as the SELECTs that they are.

What is a view, and reads a Distributed table however indirectly, is remembered until a statement may have
changed it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

from engine.distributed.select.own_names import database_edits
from engine.distributed.select.references import alias_behind, table_names, tables_of
from engine.errors import Code, SqlError
from engine.names import TableName, quote_identifier, quote_string
from engine.node.distributed.reading.settings_around import settings_of_statement
from engine.node.distributed.reading.table_filters import filter_of
from engine.node.distributed.reading.view_places import OF_TARGET, ViewPlace, whole_names
from engine.node.distributed.reading.view_types import with_declared_types
from engine.node.distributed.reading.view_virtuals import Virtuals
from engine.node.distributed.registry.tables import DistributedTables
from engine.node.replicated.running.local_tables import LocalTables
from engine.node.statements.definition_places import select_of
from engine.node.statements.statement import Asked
from engine.node.statements.temporary_tables import is_temporary
from engine.node.statements.view_parameters import view_calls, with_arguments
from engine.sql.cursor import Cursor, NameRef
from engine.sql.edit import Edit, apply_edits
from engine.sql.parse import draft_of
from engine.storage.errors import told

OF_CHDB = frozenset({"system", "information_schema", "INFORMATION_SCHEMA"})
"""Databases in which nobody makes tables: what is made there is gone with the process."""
_MAX_VIEWS = 50
_MAX_REMEMBERED = 4096


class DistributedViews:
    """The views of this node that read Distributed tables."""

    def __init__(self, tables: DistributedTables, local: LocalTables) -> None:
        self._tables = tables
        self._local = local
        self._before: dict[TableName, str] = {}
        self.generation = 0
        self.reads_merged: Callable[[str, str], Awaitable[bool]] | None = None
        """Whether a SELECT, in a database, reads Distributed tables by way of merge() or Merge tables."""
        self.describable: Callable[[str, str], Awaitable[str]] | None = None
        """A SELECT, in a database, as chDB can describe it."""

    def forget(self) -> None:
        """A statement that may have made or changed a view has run or was given up."""
        self.generation += 1
        self._before.clear()

    def names_in(self, select: str) -> Sequence[TableName]:
        """The names of tables as they are written."""
        return [ref.name for ref in table_names(select)]

    async def reads_distributed(self, name: TableName) -> bool:
        """Whether a view of this name reads, however indirectly, a Distributed table."""
        return bool(await self._views([name]))

    async def select_reads_distributed(self, sql: str, database: str) -> bool:
        """The same of a text with subqueries."""
        return await self._reads_distributed(sql, database, 0)

    async def all_names(self, sql: str, database: str) -> frozenset[TableName]:
        """What a text reads by name, in a database, and what the views among that read."""
        found: set[TableName] = set()
        new = _read_in(sql, database)
        while new and len(found) < _MAX_REMEMBERED:
            found |= new
            selects = await self._selects(sorted(new))
            new = {name for inner, _, select in selects for name in _read_in(select, inner)} - found
        return frozenset(found)

    async def replaced(self, asked: Asked) -> str:
        """The text with every view that reads a Distributed table replaced by its SELECT. Raises SqlError."""
        sql = asked.sql
        for _ in range(_MAX_VIEWS):
            refs = names_read(sql)
            temporary = {ref: ref.name for ref in refs if await is_temporary(asked, ref.name)}
            others = {
                ref: ref.name.within(asked.current_database)
                for ref in refs
                if ref not in temporary and await self._tables.find_for(asked, ref.name) is None
            }
            views = dict(await self._views(list(others.values())))
            views |= await _temporary_views(asked, set(temporary.values()))
            named = (temporary | others).items()
            places = {ref: ViewPlace(ref.start, ref.end, name) for ref, name in named if name in views}
            settings = settings_of_statement(asked, sql)
            virtuals = Virtuals(sql, await self._columns(list(views)) if Virtuals.may_be_in(sql) else {})
            columns = await self._needed_columns(sql, places.values(), views)
            edits: list[Edit] = []
            for ref, place in places.items():
                select = _filtered(asked, settings, sql, place, views[place.view])
                edits += place.edits(sql, virtuals.with_them(ref, place.view, select), columns[place.view])
            edits += virtuals.edits()
            edits += await self._called(asked, sql)
            edits += whole_names(sql, list(places.values()), edits)
            if not edits:
                return sql
            sql = apply_edits(sql, edits)
        raise SqlError(Code.NOT_IMPLEMENTED, f"More than {_MAX_VIEWS} views within each other")

    async def _called(self, asked: Asked, sql: str) -> Sequence[Edit]:
        """Views with parameters."""
        calls = {call: call.name.within(asked.current_database) for call in view_calls(sql)}
        views = await self._views(list(calls.values()))
        places = {
            call: ViewPlace(call.start, call.end, name) for call, name in calls.items() if name in views
        }
        settings = settings_of_statement(asked, sql)
        columns = await self._needed_columns(sql, places.values(), views)
        edits = database_edits(Cursor(sql), list(views), [(call.start, call.end) for call in calls])
        for call, place in places.items():
            select = _filtered(asked, settings, sql, place, with_arguments(views[place.view], call))
            edits += place.edits(sql, select, columns[place.view])
        return edits

    async def _views(self, names: Sequence[TableName]) -> Mapping[TableName, str]:
        """The SELECTs of those that are views and read, however indirectly, a Distributed table."""
        before = self._before
        found = {name: before[name] for name in names if before.get(name)}
        asked = [name for name in names if name.database not in OF_CHDB and name not in before]
        if not asked:
            return found
        generation = self.generation
        rows = await self._selects(asked)
        fresh = dict.fromkeys(asked, "")
        for database, name, select in rows:
            if await self._reads_distributed(select, database, 0):
                view = TableName(database, name)
                described = select if self.describable is None else await self.describable(select, database)
                fresh[view] = await with_declared_types(self._local, view, select, described)
        if generation == self.generation:
            if len(before) > _MAX_REMEMBERED:
                before.clear()
            before.update(fresh)
        return found | {name: select for name, select in fresh.items() if select}

    async def _needed_columns(
        self, sql: str, places: Iterable[ViewPlace], views: Mapping[TableName, str]
    ) -> Mapping[TableName, frozenset[str]]:
        """The columns of views where they are needed, else none."""
        needed = [place.view for place in places if place.needs_columns(sql, views[place.view])]
        return defaultdict(frozenset, await self._columns(needed))

    async def _columns(self, names: Sequence[TableName]) -> Mapping[TableName, frozenset[str]]:
        """The columns of views."""
        if not names:
            return {}
        wanted = ", ".join(f"({quote_string(n.database)}, {quote_string(n.table)})" for n in names)
        rows = await self._local.rows(
            f"SELECT database, table, name FROM system.columns WHERE (database, table) IN ({wanted})"
        )
        return {
            name: frozenset(column for *table, column in rows if TableName(*table) == name) for name in names
        }

    async def _selects(self, names: Sequence[TableName]) -> Sequence[tuple[str, str, str]]:
        """Database, name and SELECT of those that are views. A materialized one is its columns of its target,
        which chDB would read as empty if it is Distributed."""
        wanted = ", ".join(f"({quote_string(n.database)}, {quote_string(n.table)})" for n in names)
        rows = await self._local.rows(
            "SELECT database, name, engine, as_select, target_database, target_table FROM system.tables "
            f"WHERE engine IN ('View', 'MaterializedView') AND (database, name) IN ({wanted})"
        )
        found = []
        for database, name, engine, select, *target in rows:
            told(select, TableName(database, name))
            if engine == "MaterializedView":
                if await self._tables.find(TableName(*target)) is None:
                    continue
                columns = await self._local.rows(
                    "SELECT name FROM system.columns WHERE default_kind NOT IN ('MATERIALIZED', 'ALIAS') "
                    f"AND database = {quote_string(database)} AND table = {quote_string(name)} "
                    "ORDER BY position"
                )
                listed = ", ".join(quote_identifier(column) for (column,) in columns)
                select = f"SELECT {listed} FROM {TableName(*target).quoted} {OF_TARGET}"
            found.append((database, name, select))
        return found

    async def _reads_distributed(self, select: str, database: str, depth: int) -> bool:
        names = sorted(_read_in(select, database))
        for name in names:
            if await self._tables.find(name) is not None:
                return True
        if self.reads_merged is not None and await self.reads_merged(select, database):
            return True
        if depth >= _MAX_VIEWS or not names:
            return False
        rows = await self._selects(names)
        for inner_database, _, inner in rows:
            if await self._reads_distributed(inner, inner_database, depth + 1):
                return True
        return False


async def _temporary_views(asked: Asked, names: Collection[TableName]) -> Mapping[TableName, str]:
    """The SELECTs of those temporary tables that are views, whatever they read."""
    if not names:
        return {}
    wanted = ", ".join(quote_string(name.table) for name in names)
    sql = "SELECT name, create_table_query FROM system.tables WHERE is_temporary AND engine = 'View'"
    with asked.session.left_open():
        found = await asked.session.query(f"{sql} AND name IN ({wanted})", format="JSONCompactEachRow")
    lines = (line.decode("utf-8", "surrogateescape") for line in found.data.splitlines())
    creates = map(json.loads, lines)
    return {TableName("", name): select_of(draft_of(create)) for name, create in creates}


def _read_in(sql: str, database: str) -> set[TableName]:
    """The tables and views that a text reads, in a database."""
    found = [ref.name for ref in table_names(sql)] + [call.name for call in view_calls(sql)]
    return {name.within(database) for name in found}


def names_read(sql: str) -> list[NameRef]:
    """Every name of a table that the statement reads, without those that it writes: INSERT INTO t, CREATE
    TABLE t."""
    cursor = Cursor(sql)
    return [ref for ref in tables_of(cursor) if not _is_target(cursor, ref)]


def _is_target(cursor: Cursor, ref: NameRef) -> bool:
    at = cursor.at_offset(ref.start)
    return at > 0 and cursor.words[at - 1] in ("INTO", "TABLE")


def _filtered(asked: Asked, settings: Mapping[str, str], sql: str, place: ViewPlace, select: str) -> str:
    """The SELECT with what `additional_table_filters` says of the view."""
    alias = alias_behind(sql, place.end)
    condition = filter_of(settings, place.view, alias=alias, current=asked.current_database)
    return f"SELECT * FROM ({select}) WHERE {condition}" if condition else select
