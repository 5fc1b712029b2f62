"""A view's columns have the types that the view declares, whatever its SELECT gives, as in ClickHouse."""

from __future__ import annotations

from engine.distributed.select import IS_CHECKED
from engine.errors import SqlError
from engine.names import TableName, quote_identifier, quote_string
from engine.node.replicated.running.local_tables import LocalTables


async def with_declared_types(local: LocalTables, name: TableName, select: str, described: str) -> str:
    """The view's SELECT, or one around it that converts. A view with parameters declares nothing. `described`
    is a SELECT of the same columns, which chDB can describe."""
    declared = await local.rows(
        f"SELECT name, type FROM system.columns WHERE database = {quote_string(name.database)} "
        f"AND table = {quote_string(name.table)} ORDER BY position"
    )
    if not declared:
        return select
    try:
        given = {column: type_ for column, type_, *_ in await local.rows(f"DESCRIBE TABLE ({described})")}
    except SqlError:
        return select  # whoever reads the view is told why
    if not {column for column, _ in declared} <= given.keys():
        return select
    items = [_item(column, type_, given[column]) for column, type_ in declared]
    return f"SELECT {', '.join(items)} FROM ({select})" if any(" AS " in item for item in items) else select


def _item(column: str, declared: str, given: str) -> str:
    quoted = quote_identifier(column)
    if declared == given or declared.startswith("AggregateFunction"):
        return quoted
    cast = "_CAST" if IS_CHECKED.search(declared) else "CAST"  # whoever made the view was asked
    return f"{cast}({quoted}, {quote_string(declared)}) AS {quoted}"
