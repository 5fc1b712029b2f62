"""CREATE MATERIALIZED VIEW at a Distributed table: checked, and filled.

The node runs the views whose source, or target, it knows; chDB runs all others, and for it a Distributed
table is an empty one. A view's source is the first table of its FROM: an INSERT into that is what runs the
view, and other tables that it names are read whole then.

POPULATE. 1. The view is made without it. 2. `INSERT INTO view SELECT …`, as a client would: a failure drops
the view again. Rows that this node takes for the source meanwhile may be in the view twice, and those that
another node takes may be missing, as in ClickHouse. A crash leaves a view that is not filled, or partly.
"""

from __future__ import annotations

from dataclasses import replace

from engine.errors import Code, OnclusterError, SqlError
from engine.names import quote_identifier, quote_string
from engine.node.distributed.definitions.replacing import RunOther
from engine.node.distributed.registry.tables import DistributedTables
from engine.node.statements.statement import Asked
from engine.sql import Statement
from engine.sql.cursor import Cursor, NameRef
from engine.sql.edit import Edit, apply_edits
from engine.sql.sources import read_tables
from engine.sql.tokens import TokenKind


class CreateViews:
    """Handles CREATE MATERIALIZED VIEW. `has_views`: this node runs views."""

    def __init__(self, tables: DistributedTables, run_other: RunOther, *, has_views: bool) -> None:
        self._tables = tables
        self._run_other = run_other
        self._has_views = has_views

    async def create(self, asked: Asked, statement: Statement) -> bool:
        """Make and fill a view over a Distributed table; False for any other, which is not made yet.

        Raises SqlError 48 for one whose rows would be lost or wrong, and what chDB raises.
        """
        refs = read_tables(Cursor(asked.sql), 0)
        read = [ref for ref in refs if await self._tables.find_for(asked, ref.name) is not None]
        written = [name for name in statement.targets if await self._tables.find_for(asked, name) is not None]
        if not read and not written:
            return False
        words = Cursor(asked.sql).words
        about = (*(ref.name for ref in read), *written)[0]
        if not self._has_views:
            why = "this node has no Keeper, and without one views are chDB's, which cannot read it."
        elif "REFRESH" in words:
            why = "chDB, which refreshes it, can neither read it nor write to it."
        elif read and len({ref.name for ref in refs}) > 1 and not _is_source(asked.sql, read[0], refs):
            why = (
                "it may read others too only if the Distributed one is the first table of FROM: an INSERT "
                "into that is what runs the view."
            )
        elif read and (filling := _Filling.of(asked.sql)) is not None:
            await self._fill(asked, statement, filling)
            return True
        else:
            return False
        raise SqlError(
            Code.NOT_IMPLEMENTED,
            f"A materialized view cannot be made at the Distributed table {about}: {why}",
            hint="Let it read and write tables on each shard.",
        )

    async def _fill(self, asked: Asked, statement: Statement, filling: _Filling) -> None:
        first = statement.tables[0]
        name = first.within(asked.current_database)
        was_there = await self._tables.local.named(name) is not None
        await self._run_other(replace(asked, sql=filling.create))
        if was_there:
            return  # IF NOT EXISTS
        columns = ", ".join(
            quote_identifier(column)
            for (column,) in await self._tables.local.rows(
                "SELECT name FROM system.columns WHERE default_kind NOT IN ('MATERIALIZED', 'ALIAS') "
                f"AND database = {quote_string(name.database)} AND table = {quote_string(name.table)} "
                "ORDER BY position"
            )
        )
        insert = f"INSERT INTO {name.quoted} ({columns}) SELECT {columns} FROM ({filling.select})"
        try:
            await self._run_other(replace(asked, sql=insert))
        except OnclusterError:
            await self._run_other(replace(asked, sql=f"DROP TABLE IF EXISTS {name.quoted} SYNC"))
            raise


class _Filling:
    """A CREATE with POPULATE, in two."""

    def __init__(self, create: str, select: str) -> None:
        self.create = create
        self.select = select

    @classmethod
    def of(cls, sql: str) -> _Filling | None:
        cursor = Cursor(sql)
        if not cursor.skip_to("POPULATE", "SELECT") or cursor.word != "POPULATE":
            return None
        populate = cursor.token
        if not cursor.skip_to("AS"):
            return None
        tokens = [token for token in cursor.tokens if token.text != ";"]
        has_comment = tokens[-1].kind is TokenKind.STRING and tokens[-2].text.upper() == "COMMENT"
        end = tokens[-2].start if has_comment else tokens[-1].end
        select = sql[cursor.tokens[cursor.at + 1].start : end]
        return cls(apply_edits(sql, [Edit(populate.start, populate.end, "")]), select)


def _is_source(sql: str, ref: NameRef, refs: list[NameRef]) -> bool:
    """Whether it is the first table of the view's FROM; False also where that is hard to see."""
    cursor = Cursor(sql)
    words = [word for token, word in zip(cursor.tokens, cursor.words, strict=True) if token.start < ref.start]
    begins = words[words.index("SELECT") :] if "SELECT" in words else []
    return ref is refs[0] and "WITH" not in words and begins.count("SELECT") == begins.count("FROM") >= 1
