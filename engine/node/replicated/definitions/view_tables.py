"""CREATE MATERIALIZED VIEW … ENGINE = Replicated…: a view with a replicated table of its own.

Safety argument. The table is one like any other (`lifecycle`), whose record says which view it is made for.

1. The table, and its replica in Keeper. 2. With POPULATE its rows. 3. The view, attached to the table: from
here on INSERTs run it. 4. The record says that the view is there.

An error, and a crash before 3, leave a table without a view: it goes as an unfinished one does (`leftovers`),
at once, at the next start, or when a statement comes that wants its replica. From the queue the statement
comes again with the same UUIDs and goes on with the table that is there; its rows are left out as duplicates.
Whether 3 was done the view's own definition says. A table whose view was there is never dropped by itself.

DROP of the view is one of its table (`drop_rename`). Rows that come to the source while POPULATE reads may be
missing in the view, as ClickHouse's documentation says.

Source: ClickHouse's StorageMaterializedView, InterpreterCreateQuery::fillTableIfNeeded.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from uuid import UUID

from engine.ddl.attempt import Fence
from engine.env import Env
from engine.errors import Code, OnclusterError, SqlError, Unavailable, UnknownOutcome
from engine.names import TableName, quote_identifier
from engine.node.replicated.definitions.create import CreateStatements, RunInsert
from engine.node.replicated.definitions.definition_sql import Definition, is_create_of_replicated
from engine.node.replicated.definitions.leftovers import drop_leftover, note_view, undo
from engine.node.replicated.definitions.refusals import refuse_definition, refuse_refresh
from engine.node.replicated.definitions.view_definition import ViewDefinition, inner_name
from engine.node.replicated.running.catalog import TableRecord
from engine.node.replicated.running.lifecycle import TableLifecycle
from engine.node.replicated.running.statements import done
from engine.node.statements.asked_settings import flag, settings_of
from engine.node.statements.statement import Answer, Asked
from engine.sql import Statement, StatementKind

CheckSources = Callable[[Asked], Awaitable[None]]
"""Raises SqlError for a view that reads what is written inside chDB."""


class ViewTableStatements:
    """Implements `ReplicatedStatements`."""

    def __init__(
        self,
        life: TableLifecycle,
        create: CreateStatements,
        *,
        env: Env,
        run_insert: RunInsert,
        check_sources: CheckSources,
    ) -> None:
        self._life = life
        self._tables = create
        self._env = env
        self._run_insert = run_insert
        self._check_sources = check_sources

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        if statement.kind is not StatementKind.CREATE_MATERIALIZED_VIEW or not is_create_of_replicated(
            statement.kind, statement.engine
        ):
            return None
        refuse_refresh(asked.sql)
        view = statement.tables[0].within(asked.current_database)
        text = ViewDefinition(asked.sql)
        uuid = UUID(statement.uuid) if statement.uuid else self._env.new_uuid()
        inner = inner_name(view, uuid)
        async with self._life.names.hold([view, inner]):
            if not await self._is_there(statement, view):
                await self._check_sources(asked)
                await self._make(asked, text, view, uuid, inner)
        return done(asked)

    async def _is_there(self, statement: Statement, view: TableName) -> bool:
        """Raises SqlError 57 for something else under the view's name, 48 for OR REPLACE of anything."""
        local = await self._life.local.named(view)
        if local is None and view not in (await self._life.local.detached()).values():
            return False
        is_same = local is not None and str(local.uuid) == (statement.uuid or "").lower()
        if statement.if_not_exists or is_same:
            return True
        if statement.or_replace:
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                f"{view} cannot be replaced by a materialized view with a replicated table of its own.",
                hint="Create the view under another name, EXCHANGE TABLES, then DROP the old one.",
            )
        raise SqlError(Code.TABLE_ALREADY_EXISTS, f"Table {view} already exists.")

    async def _make(
        self, asked: Asked, text: ViewDefinition, view: TableName, uuid: UUID, inner: TableName
    ) -> None:
        life = self._life
        await self._tables.check_database(view)
        names, described = await self._columns(asked, text)
        columns = text.columns or described
        inner_uuid = text.inner_uuid or self._env.new_uuid()
        definition = Definition(text.of_table(inner, inner_uuid, columns))
        refuse_definition(asked, definition)
        if not await self._tables.is_there(inner):
            place = self._tables.place(definition, inner, inner_uuid, is_uuid_given=True)
            await self._tables.make(asked, definition, inner, inner_uuid, place, for_view=uuid)
        record = life.catalog.named(inner)
        if record is None:
            raise SqlError(Code.TABLE_ALREADY_EXISTS, f"Table {inner} already exists.")
        try:
            if text.columns:
                await self._check_columns(record, names)
            if text.populates:
                listed = ", ".join(map(quote_identifier, names))
                insert = f"INSERT INTO {inner.quoted} ({listed}) SELECT {listed} FROM ({text.select}\n)"
                await self._run_insert(replace(asked, sql=insert, fence=Fence()))
            shown = text.with_keeper_arguments(record.shown_path, record.shown_replica)
            await asked.session.query(
                shown.of_view(view, uuid, record.uuid, columns),
                format="Null",
                params=asked.params,
                scope=asked.scope,
                multi=False,
            )
        except OnclusterError:
            await self._undo_or_later(inner)
            raise
        except BaseException:  # cancelled, perhaps behind the view
            self._drop_later(inner)
            raise
        finally:
            life.on_change()
        note_view(life, record)

    async def _columns(self, asked: Asked, text: ViewDefinition) -> tuple[list[str], str]:
        """The names of what the view's SELECT gives, and a list of columns for it; none for a SELECT that
        cannot be, where that is allowed. Raises SqlError where it is not."""
        try:
            found = await asked.session.clone().query(
                f"DESCRIBE TABLE ({text.select}\n)",
                format="JSONCompactEachRow",
                params=asked.params,
                scope=asked.scope,
            )
        except SqlError:
            is_allowed = flag(settings_of(asked), "allow_materialized_view_with_bad_select", False)
            if is_allowed and text.columns and not text.populates:
                return [], ""
            raise
        rows = [json.loads(line) for line in found.data.decode("utf-8", "surrogateescape").splitlines()]
        return [row[0] for row in rows], f"({', '.join(f'{quote_identifier(r[0])} {r[1]}' for r in rows)})"

    async def _check_columns(self, record: TableRecord, names: Sequence[str]) -> None:
        """Raises SqlError 8 for a column of the SELECT that the table has not got."""
        table = self._life.tables.by_uuid(record.uuid)
        if table is None:
            return
        columns = {column.name for column in (await table.store.definition()).columns.columns}
        for name in names:
            if name not in columns:
                raise SqlError(
                    Code.THERE_IS_NO_COLUMN,
                    f"SELECT query outputs column with name '{name}', which is not found in the view's "
                    "table.",
                    hint="Use AS to give it the name of a column of the view.",
                )

    async def _undo_or_later(self, inner: TableName) -> None:
        record = self._life.catalog.named(inner)
        if record is None or record.for_view is None:
            return
        try:
            await undo(self._life, record)
        except (Unavailable, UnknownOutcome):
            self._drop_later(inner)

    def _drop_later(self, inner: TableName) -> None:
        self._life.later(drop_leftover(self._life, self._env, inner), f"drop {inner}")
