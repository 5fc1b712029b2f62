"""Temporary tables and views that a node makes for one statement.

They are made in a session of their own, which ends with the statement. But a statement that may be about
temporary tables of the caller's session has to run there: so do they then, and are dropped behind it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Self

from engine.errors import SqlError
from engine.names import quote_identifier
from engine.node.statements.statement import Asked
from engine.storage import ChdbSession


class TablesBeside:
    """Those of one statement. `session` is where it has to run."""

    def __init__(self, session: ChdbSession) -> None:
        self.session = session
        self._made: list[str] = []

    @classmethod
    @asynccontextmanager
    async def of(cls, asked: Asked, *, for_text: str) -> AsyncIterator[Self]:
        """`for_text`: the longest of the texts that make views."""
        if not asked.session.may_have_temporary_tables:
            beside = cls(asked.session.clone(for_text=for_text))
            try:
                yield beside
            finally:
                await beside.session.close()
            return
        beside = cls(asked.session)
        try:
            yield beside
        finally:
            if not asked.is_stateless:
                with suppress(SqlError):  # the session is over, and they with it
                    await beside._drop()

    async def make_view(self, name: str, select: str) -> None:
        """Raises SqlError."""
        async with self.session.kept_open():
            await self.session.query(f"CREATE TEMPORARY VIEW {quote_identifier(name)} AS {select}")
        self._made.append(f"VIEW {quote_identifier(name)}")

    async def make_table(self, name: str, columns: str, rows: AsyncIterator[bytes] | None) -> None:
        """With these rows in JSONEachRow, if any. Without `columns` it has those of the table of that name in
        `system`. Raises SqlError."""
        quoted = quote_identifier(name)
        definition = f"({columns}) ENGINE = Memory" if columns else f"ENGINE = Memory AS system.{quoted}"
        async with self.session.kept_open():
            await self.session.query(f"CREATE TEMPORARY TABLE {quoted} {definition}")
            self._made.append(f"TABLE {quoted}")
            if rows is not None:
                await self.session.insert(f"INSERT INTO {quoted}", format="JSONEachRow", rows=rows)

    async def _drop(self) -> None:
        for made in self._made:
            await self.session.query(f"DROP TEMPORARY {made}")
