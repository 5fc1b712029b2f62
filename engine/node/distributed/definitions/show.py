"""Distributed tables as they are shown: SHOW CREATE TABLE, and `system.tables`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.distributed.definition import ENGINE
from engine.names import quote_string
from engine.node.distributed.registry.create_sql import with_engine
from engine.node.distributed.registry.overlooked import OVERLOOKED
from engine.node.distributed.registry.tables import DistributedTable, DistributedTables
from engine.node.statements.statement import Answer, Asked, WholeAnswer
from engine.node.system.shown_tables import replaced_text, table_of_show_create
from engine.node.system.system_tables import SystemView, words_of_select
from engine.part_storage import SCRATCH_DATABASE
from engine.sql import Statement, StatementKind, Token
from engine.sql.settings_clauses import settings_of_text
from engine.storage import Scope


class ShowDistributed:
    """Handles SHOW CREATE TABLE."""

    def __init__(self, tables: DistributedTables) -> None:
        self._tables = tables

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        if statement.kind is not StatementKind.SHOW or not len(self._tables):
            return None
        name = table_of_show_create(asked.sql)
        table = None if name is None else await self._tables.find_for(asked, name)
        if table is None:
            return None
        scope = Scope(settings={**asked.settings, **settings_of_text(asked.sql)})
        found = await asked.session.clone().query(
            f"SHOW CREATE TABLE {table.name.quoted}", format="TSVRaw", scope=scope
        )
        text = with_engine(found.text.removesuffix("\n"), table.definition.engine_full)
        format = statement.format or asked.format
        shown = await asked.session.clone().query(
            f"SELECT {quote_string(text)} AS statement", format=format, scope=scope
        )
        return WholeAnswer(shown, format=format)


class DistributedTablesView:
    """`system.tables`: over the view for replicated tables, if there is one."""

    name = "tables"

    def __init__(self, tables: DistributedTables, inner: SystemView | None) -> None:
        self._tables = tables
        self._inner = inner

    @property
    def is_needed(self) -> bool:
        return len(self._tables) > 0 or (self._inner is not None and self._inner.is_needed)

    async def select(self, asked: Asked, tokens: list[Token]) -> str:
        if self._inner is not None:
            below = await self._inner.select(asked, tokens)
        else:
            columns = "*, name AS table" if any(token.text == "table" for token in tokens) else "*"
            below = f"SELECT {columns} FROM system.tables WHERE database != '{SCRATCH_DATABASE}'"
        tables = await self._tables.all()
        if not tables:
            return below
        words = words_of_select(tokens)
        values: Sequence[tuple[str, Callable[[DistributedTable], str]]] = (
            ("engine", lambda table: ENGINE),
            ("engine_full", lambda table: table.definition.engine_full),
            ("create_table_query", _create_query),
        )
        replaced = ", ".join(
            replaced_text(column, {table.uuid: value(table) for table in tables})
            for column, value in values
            if words is None or column in words
        )
        columns = f"* REPLACE ({replaced})" if replaced else "*"
        hidden = f"({quote_string(OVERLOOKED.database)}, {quote_string(OVERLOOKED.table)})"
        return f"SELECT {columns} FROM ({below}) WHERE (database, name) != {hidden}"


def _create_query(table: DistributedTable) -> str:
    return with_engine(table.create_query, table.definition.engine_full)
