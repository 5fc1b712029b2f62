"""Replicated databases as they are shown: SHOW CREATE DATABASE, and `system.databases`.

To chDB they are Atomic. Their own engine takes its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from engine.names import quote_string
from engine.node.databases.catalog import DatabaseCatalog
from engine.node.databases.create_text import ENGINE, engine_full, shown_create
from engine.node.statements.statement import Answer, Asked, WholeAnswer
from engine.node.system.system_tables import SystemView
from engine.sql import Statement, StatementKind, Token
from engine.sql.cursor import Cursor
from engine.storage import Scope


class ShowDatabase:
    """Handles SHOW CREATE DATABASE."""

    def __init__(self, catalog: DatabaseCatalog) -> None:
        self._catalog = catalog

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        if statement.kind is not StatementKind.SHOW:
            return None
        name = database_of_show_create(asked.sql)
        record = None if name is None else self._catalog.named(name)
        if record is None:
            return None
        format = statement.format or asked.format
        text = shown_create(record.name, record.text)
        shown = await asked.session.clone().query(
            f"SELECT {quote_string(text)} AS statement", format=format, scope=Scope(settings=asked.settings)
        )
        return WholeAnswer(shown, format=format)


def database_of_show_create(sql: str) -> str | None:
    """The database of SHOW CREATE DATABASE d and SHOW DATABASE d."""
    cursor = Cursor(sql)
    if not cursor.accept("SHOW"):
        return None
    cursor.accept("CREATE")
    return cursor.identifier() if cursor.accept("DATABASE") else None


class DatabasesView:
    """`system.databases`: over another view of it, if there is one."""

    name = "databases"

    def __init__(self, catalog: DatabaseCatalog, inner: SystemView | None) -> None:
        self._catalog = catalog
        self._inner = inner

    @property
    def is_needed(self) -> bool:
        return bool(self._catalog.all()) or (self._inner is not None and self._inner.is_needed)

    async def select(self, asked: Asked, tokens: Sequence[Token]) -> str:
        if self._inner is not None:
            below = await self._inner.select(asked, list(tokens))
        else:
            columns = "*, name AS database" if any(token.text == "database" for token in tokens) else "*"
            below = f"SELECT {columns} FROM system.databases"
        records = self._catalog.all()
        if not records:
            return below
        engines = _by_uuid("engine", {record.uuid: ENGINE for record in records})
        full = _by_uuid("engine_full", {record.uuid: engine_full(record.text) for record in records})
        return f"SELECT * REPLACE ({engines}, {full}) FROM ({below})"


def _by_uuid(column: str, texts: Mapping[UUID, str]) -> str:
    keys = ", ".join(quote_string(str(uuid)) for uuid in texts)
    values = ", ".join(map(quote_string, texts.values()))
    return f"transform(toString(uuid), [{keys}], [{values}], {column}) AS {column}"
