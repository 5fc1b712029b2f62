"""The tables of `system` that are the node's own: what chDB has under these names is empty or not there.

A statement that names one of them runs beside a temporary table of the same name that was made and filled
just before (`tables_beside`); `system.clusters` in its text becomes `clusters`. So every SELECT works, with
joins, subqueries and column qualifiers, and readers of different moments do not disturb each other.
A SELECT from one view alone gets its text as a subquery instead: chDB then analyses it once.
Statements that are kept (views) are left alone, since they would keep the temporary table's name, and are
refused where chDB has nothing to read in the table's place.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol, runtime_checkable

from engine.errors import Code, SqlError
from engine.names import quote_identifier, quote_string
from engine.node.statements.statement import Asked
from engine.node.statements.tables_beside import TablesBeside
from engine.node.system.shown_as_select import (
    mentions_information_schema,
    show_as_select,
    shown_database,
    without_information_schema,
)
from engine.node.system.shown_system_table import system_table_as_select, system_table_shown
from engine.sql import AlterCommand, Statement, StatementKind, Token, tokenize
from engine.sql.tokens import literal_value, name_of
from engine.storage import ChdbSession
from engine.storage.statement_text import LONG_TEXT

_BATCH_BYTES = 1 << 20
_LIST = "tables"
"""The table of `system` that shows temporary ones, too."""
_REWRITTEN = frozenset(
    {
        StatementKind.SELECT,
        StatementKind.EXPLAIN,
        StatementKind.DESCRIBE,
        StatementKind.SHOW,
        StatementKind.INSERT,
        StatementKind.CREATE_TABLE,
    }
)
_KEPT = frozenset(
    {
        StatementKind.CREATE_VIEW,
        StatementKind.CREATE_MATERIALIZED_VIEW,
        StatementKind.CREATE_LIVE_VIEW,
        StatementKind.CREATE_WINDOW_VIEW,
        StatementKind.ATTACH_VIEW,
    }
)
_MAY_FOLLOW = frozenset({"", ")", ";", "AS", "WHERE", "GROUP", "ORDER", "LIMIT", "FORMAT", "SETTINGS"})
_READING = frozenset({StatementKind.SELECT, StatementKind.INSERT, StatementKind.CREATE_TABLE})
_ANY_COLUMN = frozenset({"*", "COLUMNS", "NATURAL", "{"})

Row = Mapping[str, object]


Provide = Callable[[Asked, Statement], AbstractAsyncContextManager[tuple[str, ChdbSession]]]
"""As `SystemTables.provide`: the text to run, and the session for it."""


@asynccontextmanager
async def provide_as_it_is(asked: Asked, statement: Statement) -> AsyncIterator[tuple[str, ChdbSession]]:
    yield asked.sql, asked.session


class SystemTable(Protocol):
    """One of the node's own tables."""

    @property
    def name(self) -> str: ...

    @property
    def columns(self) -> str:
        """The column list for CREATE TABLE; empty where chDB's own table of that name has the same."""
        ...

    async def rows(self, asked: Asked, tokens: list[Token]) -> Iterable[Row]:
        """What is in it now. `tokens` are those of the statement, without white space. Raises SqlError."""
        ...


@runtime_checkable
class SystemView(Protocol):
    """A view in the place of chDB's own table of that name."""

    @property
    def name(self) -> str: ...

    @property
    def is_needed(self) -> bool:
        """False: chDB's own table is right as it is now."""
        ...

    async def select(self, asked: Asked, tokens: list[Token]) -> str:
        """What the view shows; it reads `system.<name>`. `tokens` are those of the statement."""
        ...


def words_of_select(tokens: Sequence[Token]) -> frozenset[str] | None:
    """The words among which a SELECT's columns are; None for another statement, and where it may use columns
    that it does not name. What a view shows of columns that nobody names need not be found out."""
    texts = {token.text.upper() for token in tokens}
    if tokens[0].text.upper() not in ("SELECT", "WITH") or texts & _ANY_COLUMN:
        return None
    return frozenset(literal_value(token) for token in tokens if token.is_name)


class SystemTables:
    """Rewrites statements that name one of `tables`."""

    def __init__(self, tables: Iterable[SystemTable | SystemView]) -> None:
        self._tables = {table.name: table for table in tables}
        names = "|".join(map(re.escape, self._tables))
        self._names = re.compile(rf"\b(?:{names})\b")

    def check(self, sql: str, statement: Statement, *, database: str) -> None:
        """Raises SqlError 48 for an INSERT into one of the tables, and for a view over one: chDB would find
        it absent or empty whenever somebody reads the view. `database` is the current one."""
        if statement.kind is StatementKind.INSERT:
            self._check_target(statement, database)
        is_kept = statement.kind in _KEPT or AlterCommand.MODIFY_QUERY in statement.alter_commands
        if not is_kept or not self._names.search(sql):
            return
        tokens = [token for token in tokenize(sql) if token.is_significant]
        used, _ = self._rewrite(sql, tokens, in_system=database == "system")
        for table in used:
            if not isinstance(table, SystemView):
                raise SqlError(
                    Code.NOT_IMPLEMENTED,
                    f"A view cannot read system.{table.name}: a node makes this table for each query anew.",
                    hint=f"Read system.{table.name} in the query itself, or keep a copy of its rows with "
                    "CREATE TABLE … AS SELECT.",
                )

    def _check_target(self, statement: Statement, database: str) -> None:
        for target in statement.tables:
            if target.table in self._tables and target.within(database).database == "system":
                raise SqlError(Code.NOT_IMPLEMENTED, f"Method write is not supported by table {target}.")

    @asynccontextmanager
    async def provide(self, asked: Asked, statement: Statement) -> AsyncIterator[tuple[str, ChdbSession]]:
        """The text to run and the session for it: those of `asked` unless one of the tables is named."""
        if shown := system_table_shown(asked, statement):
            table = self._tables.get(shown)
            own_columns = "" if table is None or isinstance(table, SystemView) else table.columns
            yield (
                await system_table_as_select(asked, statement, shown, own_columns=own_columns),
                asked.session,
            )
            return
        sql = await self._as_select(asked, statement)
        if statement.kind not in _REWRITTEN or not self._names.search(sql):
            yield asked.sql, asked.session
            return
        tokens = [token for token in tokenize(sql) if token.is_significant]
        used, rewritten = self._rewrite(sql, tokens, in_system=asked.current_database == "system")
        if not used:
            yield (asked.sql if rewritten == sql else rewritten), asked.session
            return
        if statement.kind is StatementKind.SHOW and (database := shown_database(asked.sql)):
            await asked.session.clone().query(
                f"SHOW TABLES FROM {quote_identifier(database)} LIMIT 0"
            )  # or 81
        if (
            len(used) == 1
            and isinstance(view := used[0], SystemView)
            and statement.kind is StatementKind.SELECT
            and not _is_readonly(asked)  # who may only read may not use all that a view is made of
            and (place := _only_place(view.name, tokens)) is not None
        ):
            start, end, alias = place
            text = f"{sql[:start]}({await view.select(asked, tokens)}){alias}{sql[end:]}"
            if len(text) <= LONG_TEXT:
                yield text, asked.session
                return
            if not asked.session.may_have_temporary_tables:
                session = asked.session.clone(for_text=text)
                try:
                    yield text, session
                finally:
                    await session.close()
                return
        selects = {t.name: await t.select(asked, tokens) for t in used if isinstance(t, SystemView)}
        if _LIST in selects:  # what is made here is nobody's table
            made = ", ".join(quote_string(table.name) for table in used)
            selects[_LIST] = f"SELECT * FROM ({selects[_LIST]}) WHERE database != '' OR name NOT IN ({made})"
        async with TablesBeside.of(asked, for_text=max(selects.values(), key=len, default="")) as beside:
            for table in used:
                if isinstance(table, SystemView):
                    await beside.make_view(table.name, selects[table.name])
                    continue
                has_rows = statement.kind in _READING or sql is not asked.sql
                rows = _as_json(await table.rows(asked, tokens)) if has_rows else None
                await beside.make_table(table.name, table.columns, rows)
            yield rewritten, beside.session

    async def _as_select(self, asked: Asked, statement: Statement) -> str:
        if statement.kind is StatementKind.SHOW:
            return show_as_select(asked.sql, database=asked.current_database)
        view = self._tables.get(_LIST)
        is_shown = isinstance(view, SystemView) and view.is_needed and statement.kind in _READING
        if not is_shown or not mentions_information_schema(asked.sql):
            return asked.sql
        definition = await asked.session.clone().query(
            "SELECT as_select FROM system.tables WHERE database = 'information_schema' AND name = 'tables'",
            format="TSVRaw",
        )
        return without_information_schema(asked.sql, definition.text.strip())

    def _rewrite(
        self, sql: str, tokens: list[Token], *, in_system: bool
    ) -> tuple[list[SystemTable | SystemView], str]:
        used: dict[str, SystemTable | SystemView] = {}
        pieces: list[str] = []
        at = 0
        for index, token in enumerate(tokens):
            table = self._tables.get(name_of(token))
            if table is None or (isinstance(table, SystemView) and not table.is_needed):
                continue
            before = tokens[max(0, index - 3) : index]
            if len(before) >= 2 and before[-1].text == "." and name_of(before[-2]).lower() == "system":
                if len(before) == 3 and before[0].text == ".":
                    continue
                if len(before) == 3 and before[0].text.upper() == "AS":  # CREATE TABLE … AS: of its columns
                    if not isinstance(table, SystemView) and table.columns:
                        pieces += (sql[at : before[0].start], f"({table.columns})")
                        at = token.end
                    continue
                pieces += (sql[at : before[-2].start], quote_identifier(table.name))
                at = token.end
                used[table.name] = table
            elif (
                in_system
                and before
                and before[-1].text.upper() in ("FROM", "JOIN", "TABLE", "DESCRIBE", "DESC")
            ):
                used[table.name] = table
        return list(used.values()), "".join([*pieces, sql[at:]])


def _is_readonly(asked: Asked) -> bool:
    return asked.is_readonly or asked.session.is_readonly or "readonly" in asked.settings


def _only_place(name: str, tokens: list[Token]) -> tuple[int, int, str] | None:
    """Where `system.<name>` stands in a statement (start, end, and the alias that a subquery needs there), if
    it stands there once, behind FROM, and what follows it may follow a subquery."""
    places = [at for at, token in enumerate(tokens) if name_of(token) == name]
    at = places[0] if len(places) == 1 else 0
    if at < 3 or tokens[at - 1].text != "." or name_of(tokens[at - 2]).lower() != "system":
        return None
    behind = tokens[at + 1].text.upper() if at + 1 < len(tokens) else ""
    if tokens[at - 3].text.upper() != "FROM" or behind not in _MAY_FOLLOW:
        return None
    alias = "" if behind == "AS" else f" AS {quote_identifier(name)}"
    return tokens[at - 2].start, tokens[at].end, alias


async def _as_json(rows: Iterable[Row]) -> AsyncIterator[bytes]:
    """Lines of JSONEachRow; bytes that are no UTF-8 pass as they are."""
    buffer = bytearray()
    for row in rows:
        buffer += json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n"
        if len(buffer) >= _BATCH_BYTES:
            yield bytes(buffer)
            buffer.clear()
    if buffer:
        yield bytes(buffer)
