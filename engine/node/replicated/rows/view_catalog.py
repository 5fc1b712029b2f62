"""Which materialized views this node has, and what else writes into tables; read from chDB."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from engine.names import TableName, quote_string
from engine.node.replicated.rows.feeders import FEEDER_ENGINES, feeder_of
from engine.node.replicated.rows.views import Links, View
from engine.node.replicated.running.local_tables import LocalTables
from engine.sql.cursor import Cursor
from engine.sql.sources import read_tables
from engine.storage.errors import told

_EDGES = """
SELECT database, name, dependencies_database, dependencies_table
FROM system.tables WHERE notEmpty(dependencies_table)
"""
_WRITERS = f"""
SELECT database, name, engine, toString(uuid), target_database, target_table, as_select, engine_full,
    create_table_query
FROM system.tables
WHERE engine IN ('MaterializedView', {", ".join(map(quote_string, sorted(FEEDER_ENGINES)))})
"""
_COLUMNS = """
SELECT database, table, groupArray(name) FROM (
    SELECT database, table, name FROM system.columns
    WHERE default_kind NOT IN ('MATERIALIZED', 'ALIAS') AND (database, table) IN ({})
    ORDER BY database, table, position
) GROUP BY database, table
"""


async def read_links(local: LocalTables) -> Links:
    """Materialized views that run on INSERT, ordered by name, and feeders. Raises SqlError."""
    views, feeders = [], []
    for database, name, engine, uuid, *target, select, engine_full, text in await local.rows(_WRITERS):
        table, written = TableName(database, name), TableName(*target)
        told(text, table)
        if engine != "MaterializedView" or _is_refreshed(text):
            feeder = feeder_of(table, engine, engine_full, written)
            feeders += [feeder] if feeder is not None else []
        if engine == "MaterializedView":
            views.append((table, UUID(uuid), written, select))
    return Links(await _runs(local, views) if views else (), feeders)


async def _runs(
    local: LocalTables, views: Sequence[tuple[TableName, UUID, TableName, str]]
) -> Sequence[View]:
    sources: dict[TableName, list[TableName]] = {}
    for database, table, view_databases, view_tables in await local.rows(_EDGES):
        for view in map(TableName, view_databases, view_tables):
            sources.setdefault(view, []).append(TableName(database, table))
    # By name, and not of the views that are there by now: the target of one that was detached meanwhile, and
    # may be there again, has its columns all the same.
    names = {name for view, _, target, _ in views for name in (view, target)}
    pairs = ", ".join(
        f"({quote_string(name.database)}, {quote_string(name.table)})" for name in sorted(names)
    )
    columns = {
        TableName(database, table): tuple(taken)
        for database, table, taken in await local.rows(_COLUMNS.format(pairs))
    }
    found = []
    for view, uuid, target, select in views:
        taken, declared = columns.get(target, ()), columns.get(view, ())
        read = {ref.name for ref in read_tables(Cursor(select), 0)}
        for source in sources.get(view, ()):
            if source in read:  # a table that was renamed stays the view's, which reads another one now
                found.append(View(view, uuid, source, target, taken, declared, select))
    return sorted(found, key=lambda view: (view.name, view.source))


def _is_refreshed(create_query: str) -> bool:
    cursor = Cursor(create_query)
    cursor.skip_to("REFRESH", "AS")
    return cursor.word == "REFRESH"
