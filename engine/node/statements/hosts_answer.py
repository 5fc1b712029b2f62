"""Rows that the node itself gives: what many hosts did with one statement, in the client's format."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Protocol

from engine.ddl.text import encode_bytes, escape
from engine.errors import OnclusterError, SqlError
from engine.killable import ends_by_kill
from engine.names import quote_string
from engine.node.statements.session_commands import trailing_settings
from engine.node.statements.statement import Asked
from engine.sql import output_settings
from engine.storage import QueryResult, Scope

NOTHING = QueryResult(b"", 0, 0, 0, 0, 0, 0.0)
"""The result of a statement that answers no rows."""

_PLAIN_FORMATS = frozenset({"TabSeparated", "TSV"})
"""Written here: the usual answer to DDL is worth no query, which costs more than everything else in it."""


class HostRow(Protocol):
    """What is said of one host."""

    def values(self) -> tuple[object, ...]: ...


class HostsAnswer:
    """The rows of all hosts, formatted when the last one is known, and then the error, if any.

    ClickHouse's HTTP interface, too, holds back what fits its buffer, so that a client sees either rows or an
    exception.
    """

    def __init__(
        self,
        asked: Asked,
        rows: AsyncIterator[HostRow],
        *,
        columns: tuple[tuple[str, str], ...] | None,
        format: str,
    ) -> None:
        """`columns`: names and types of the rows' values; None waits as well, and shows no row."""
        self.format = format
        self.native_revision = 0
        self._asked = asked
        self._rows = rows
        self._columns = columns
        self._is_read = False
        self._error: OnclusterError | None = None
        self._result = NOTHING

    async def read(self) -> bytes:
        """Waits for the end; gives all rows at once."""
        if self._is_read:
            return b""
        self._is_read = True
        found: list[tuple[object, ...]] = []

        async def collect() -> None:
            async with aclosing(self._rows) as rows:  # type: ignore[type-var]  # it is a generator
                async for row in rows:
                    found.append(row.values())

        try:
            with ends_by_kill():
                await collect()
        except SqlError as error:
            self._error = error
        if self._columns is not None:
            self._result = await format_rows(self._asked, self._columns, found, format=self.format)
        return self._result.data

    async def finish(self) -> QueryResult:
        if self._error is not None:
            raise self._error
        return self._result


async def format_rows(
    asked: Asked,
    columns: tuple[tuple[str, str], ...],
    rows: Sequence[tuple[object, ...]],
    *,
    format: str,
) -> QueryResult:
    """Rows of texts and numbers as chDB writes them in `format`, with these very column types."""
    settings = _format_settings(asked)
    if format in _PLAIN_FORMATS and not settings:
        data = encode_bytes("".join("\t".join(map(_plain, row)) + "\n" for row in rows))
        size = len(data)
        return QueryResult(data, len(rows), size, 0, 0, len(rows), 0.0)
    structure = quote_string(", ".join(f"{name} {type_}" for name, type_ in columns))
    blank = tuple(
        "NULL" if "Nullable" in type_ else "''" if type_ == "String" else "0" for _, type_ in columns
    )
    values = [tuple(_literal(value) for value in row) for row in rows]
    tuples = ", ".join(f"({', '.join(row)})" for row in values or [blank])
    limit = "" if rows else " LIMIT 0"
    session = asked.session.clone()
    sql = f"SELECT * FROM values({structure}, {tuples}){limit}"
    return await session.query(sql, format=format, scope=Scope(settings=settings))


def settings_of_ddl(asked: Asked) -> dict[str, str]:
    """What holds for a statement of DDL: the session's settings, the request's, its own."""
    return {
        **asked.session.settings,
        **asked.settings,
        **output_settings(asked.sql),
        **trailing_settings(asked.sql),
    }


def _format_settings(asked: Asked) -> dict[str, str]:
    """Settings of the statement that change how values are written."""
    return {n: v for n, v in settings_of_ddl(asked).items() if n.startswith(("format_", "output_format_"))}


def _plain(value: object) -> str:
    """A value in TabSeparated."""
    if value is None:
        return "\\N"
    return escape(value) if isinstance(value, str) else str(value)


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    return quote_string(value) if isinstance(value, str) else str(value)
