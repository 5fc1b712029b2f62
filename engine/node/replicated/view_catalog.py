"""Which materialized views this node has, read from chDB."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from engine.names import TableName
from engine.node.replicated.local_tables import LocalTables
from engine.node.replicated.views import View

_EDGES = """
SELECT database, name, dependencies_database, dependencies_table
FROM system.tables WHERE notEmpty(dependencies_table)
"""
_VIEWS = """
SELECT database, name, toString(uuid), target_database, target_table, as_select
FROM system.tables WHERE engine = 'MaterializedView'
"""
_COLUMNS = """
SELECT database, table, groupArray(name) FROM (
    SELECT database, table, name FROM system.columns
    WHERE default_kind NOT IN ('MATERIALIZED', 'ALIAS')
      AND (database, table) IN (
        SELECT arrayJoin([(database, name), (target_database, target_table)])
        FROM system.tables WHERE engine = 'MaterializedView')
    ORDER BY database, table, position
) GROUP BY database, table
"""


async def read_views(local: LocalTables) -> Sequence[View]:
    """Every materialized view that runs on INSERT, ordered by name. Raises SqlError."""
    views = await local.rows(_VIEWS)
    if not views:
        return ()
    sources: dict[TableName, list[TableName]] = {}
    for database, table, view_databases, view_tables in await local.rows(_EDGES):
        for view in map(TableName, view_databases, view_tables):
            sources.setdefault(view, []).append(TableName(database, table))
    columns = {
        TableName(database, table): tuple(names) for database, table, names in await local.rows(_COLUMNS)
    }
    found = []
    for database, name, uuid, target_database, target_table, select in views:
        view = TableName(database, name)
        target = TableName(target_database, target_table)
        wanted = set(columns.get(target, ()))
        common = tuple(column for column in columns.get(view, ()) if column in wanted)
        for source in sources.get(view, ()):
            found.append(View(view, UUID(uuid), source, target, common, select))
    return sorted(found, key=lambda view: (view.name, view.source))
