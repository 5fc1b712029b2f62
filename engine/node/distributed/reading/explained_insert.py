"""EXPLAIN PIPELINE INSERT INTO a Distributed table: how its rows are made.

What takes them, a table of the same columns here, is shown as a function that throws them away.
"""

from __future__ import annotations

from engine.names import quote_identifier, quote_string
from engine.node.distributed.registry.tables import DistributedTables
from engine.node.statements.statement import Asked
from engine.sql.cursor import Cursor
from engine.sql.edit import Edit, apply_edits
from engine.sql.parse import draft_of


async def with_explained_insert(asked: Asked, tables: DistributedTables) -> str:
    """The text with `null()` in the place of such a table; any other text as it is. Raises SqlError 62."""
    cursor = Cursor(asked.sql)
    if not cursor.accept("EXPLAIN", "PIPELINE"):
        return asked.sql
    cursor.skip_to("INSERT", "SELECT", "WITH", "FROM", "(")
    if cursor.word != "INSERT":
        return asked.sql
    begin = cursor.token.start
    refs = draft_of(asked.sql[begin:]).refs
    table = await tables.find_for(asked, refs[0].name) if refs else None
    if table is None:
        return asked.sql
    cursor.accept("INSERT", "INTO")
    structure = ", ".join(
        f"{quote_identifier(column.name)} {column.type}" for column in table.columns if column.is_sent
    )
    place = Edit(cursor.token.start, begin + refs[0].end, f"FUNCTION null({quote_string(structure)})")
    return apply_edits(asked.sql, [place])
