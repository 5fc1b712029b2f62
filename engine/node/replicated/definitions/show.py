"""Replicated tables as they are shown: SHOW CREATE TABLE, and `system.tables`.

Both go by chDB's own text, in which the replicated engine takes the place of the plain one and the hidden
settings are left out.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from engine.names import TableName, quote_string
from engine.node.replicated.definitions.definition_sql import REPLICATED, Definition
from engine.node.replicated.running.catalog import TableRecord, TableState
from engine.node.replicated.running.lifecycle import TableLifecycle
from engine.node.replicated.running.local_tables import LocalTable
from engine.node.statements.statement import Answer, Asked, WholeAnswer
from engine.node.statements.temporary_tables import is_temporary
from engine.node.system.shown_tables import replaced_text, table_of_show_create
from engine.node.system.system_tables import words_of_select
from engine.part_storage.hidden_settings import HIDDEN_SETTINGS
from engine.part_storage.workers import SCRATCH_DATABASE
from engine.sql import Statement, StatementKind, Token
from engine.sql.cursor import Cursor
from engine.sql.settings_clauses import settings_of_text
from engine.storage import Scope


def shown_definition(record: TableRecord, create_query: str) -> str:
    """chDB's CREATE text of the table as the user made it."""
    user = tuple(record.user_settings.items())
    return _shown(create_query, record.shown_path, record.shown_replica, user)


@functools.lru_cache(maxsize=4096)
def _shown(create_query: str, path: str, replica: str, user: tuple[tuple[str, str], ...]) -> str:
    return Definition(create_query).shown(path, replica, hidden=HIDDEN_SETTINGS, user=dict(user))


class ShowStatements:
    """Implements `ReplicatedStatements` for SHOW CREATE TABLE."""

    def __init__(self, life: TableLifecycle) -> None:
        self._life = life

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        if statement.kind is not StatementKind.SHOW:
            return None
        databases = _show_databases(asked.sql)
        if databases:
            format = statement.format or asked.format
            found = await asked.session.clone(needs_database=False).query(
                databases, format=format, scope=Scope(settings=asked.settings)
            )
            return WholeAnswer(found, format=format)
        name = table_of_show_create(asked.sql)
        record = None if name is None else self._record(asked, name)
        if name is None or record is None or await is_temporary(asked, name):
            return None
        scope = Scope(settings={**asked.settings, **settings_of_text(asked.sql)})
        found = await asked.session.clone(needs_database=False).query(
            f"SHOW CREATE TABLE {record.name.quoted}", format="TSVRaw", scope=scope
        )
        text = shown_definition(record, found.text.removesuffix("\n"))
        format = statement.format or asked.format
        shown = await asked.session.clone(needs_database=False).query(
            f"SELECT {quote_string(text)} AS statement", format=format, scope=scope
        )
        return WholeAnswer(shown, format=format)

    def _record(self, asked: Asked, name: TableName) -> TableRecord | None:
        table = self._life.tables.find_for(asked, name)
        if table is not None:
            return table.record
        return self._life.catalog.named(name.within(asked.current_database))


def _show_databases(sql: str) -> str:
    """SHOW DATABASES [[NOT] LIKE | ILIKE 'pattern'] [LIMIT n] as a SELECT without the node's own database;
    empty for any other text."""
    cursor = Cursor(sql)
    if not cursor.accept("SHOW", "DATABASES"):
        return ""
    begins = cursor.at
    cursor.skip_to("LIMIT", "FORMAT", "INTO", "SETTINGS")
    pattern = sql[cursor.tokens[begins].start : cursor.last_end] if cursor.at > begins else ""
    rest = cursor.at
    cursor.skip_to("FORMAT", "INTO", "SETTINGS")
    limit = sql[cursor.tokens[rest].start : cursor.last_end] if cursor.at > rest else ""
    where = f"name != '{SCRATCH_DATABASE}'" + (f" AND name {pattern}" if pattern else "")
    return f"SELECT name FROM system.databases WHERE {where} ORDER BY name {limit}"


class TablesView:
    """`system.tables`: a view over chDB's, as `SystemTables` makes it for each statement that names it."""

    name = "tables"

    def __init__(self, life: TableLifecycle) -> None:
        self._life = life

    @property
    def is_needed(self) -> bool:
        """Whether chDB's table would show something that nobody should see."""
        return bool(self._life.catalog.all())

    async def select(self, asked: Asked, tokens: Sequence[Token]) -> str:
        words = words_of_select(tokens)
        records = [r for r in self._life.catalog.all() if r.state is not TableState.DROPPING]
        replaced = []
        if records:
            keys = ", ".join(quote_string(str(record.uuid)) for record in records)
            ours = f"toString(uuid) IN ({keys})"
            replaced.append(f"if({ours}, concat('{REPLICATED}', engine), engine) AS engine")
        replaced += await self._texts(records, words)
        replaced += self._numbers(words)
        columns = f"* REPLACE ({', '.join(replaced)})" if replaced else "*"
        if any(token.text == "table" for token in tokens):
            columns += ", name AS table"
        return f"SELECT {columns} FROM system.tables WHERE database != '{SCRATCH_DATABASE}'"

    async def _texts(self, records: Sequence[TableRecord], words: frozenset[str] | None) -> list[str]:
        """The columns with text of definitions, if they are wanted: each definition is taken apart."""
        texts = {"engine_full": _engine_full, "create_table_query": _create_query}
        wanted = {column: text for column, text in texts.items() if words is None or column in words}
        if not wanted:
            return []
        found = await self._life.local.by_uuid([record.uuid for record in records])
        shown = [(record, found[record.uuid]) for record in records if record.uuid in found]
        return [
            replaced_text(column, {r.uuid: text(r, t) for r, t in shown})
            for column, text in wanted.items()
            if shown
        ]

    def _numbers(self, words: frozenset[str] | None) -> list[str]:
        """How many parts there are, without those by which chDB covers what it has dropped, and the version
        of the definition in Keeper."""
        tables = self._life.tables.all()
        keys = ", ".join(quote_string(str(table.uuid)) for table in tables)
        parts = [len(table.store.active) for table in tables]
        numbers = {
            "parts": parts,
            "active_parts": parts,
            "metadata_version": [max(0, table.ctx.metadata_version) for table in tables],
        }
        return [
            f"transform(toString(uuid), [{keys}], {values}, {column}) AS {column}"
            for column, values in numbers.items()
            if tables and (words is None or column in words)
        ]


class DatabasesView:
    """`system.databases` without the node's own database."""

    name = "databases"
    is_needed = True  # what makes that one may be a Distributed table, or a replicated one that is gone

    async def select(self, asked: Asked, tokens: Sequence[Token]) -> str:
        columns = "*, name AS database" if any(token.text == "database" for token in tokens) else "*"
        return f"SELECT {columns} FROM system.databases WHERE name != '{SCRATCH_DATABASE}'"


def _engine_full(record: TableRecord, local: LocalTable) -> str:
    head = "CREATE TABLE t (`a` Int8) ENGINE = "
    return shown_definition(record, head + local.engine_full).removeprefix(head)


def _create_query(record: TableRecord, local: LocalTable) -> str:
    return shown_definition(record, local.create_query)
