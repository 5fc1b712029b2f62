"""What a table gets of something else that it is made like, written into its CREATE in the log, as ClickHouse
does it.

The something else may be on the initiator only, or be another thing elsewhere. A replica that could not make
the table would come to no later entry. The initiator makes it as the statement says.

    AS other [ENGINE = …]          what chDB makes of it on an empty table: columns, constraints and comment;
                                   of a MergeTree also indices, projections, and each of the keys that is not
                                   given (PARTITION BY, PRIMARY KEY, ORDER BY, SAMPLE BY)
    AS SELECT, AS function()       the columns of the result; a SELECT that fills the table stays, of each
                                   replica's own rows
"""

from __future__ import annotations

import logging

from engine.env import Env
from engine.errors import SqlError
from engine.names import TableName, quote_identifier, quote_string
from engine.node.replicated.definitions.definition_sql import Definition, comment_at
from engine.node.replicated.running.local_tables import LocalTables
from engine.node.statements.definition_places import behind_name, described, select_of
from engine.node.statements.statement import Asked
from engine.sql import StatementKind
from engine.sql.cursor import Cursor, Role
from engine.sql.draft import Draft
from engine.sql.edit import Edit, apply_edits
from engine.sql.lenient import LENIENT
from engine.sql.parse import draft_of
from engine.storage.layout import SCRATCH_DATABASE

log = logging.getLogger(__name__)

AS_THEY_ARE = {"flatten_nested": "0", "data_type_default_nullable": "0"}
"""Columns that were written out are taken as they stand."""


class TableColumns:
    """Of tables that are about to be made."""

    def __init__(self, local: LocalTables, env: Env) -> None:
        self._local = local
        self._env = env

    async def written_out(self, asked: Asked, sql: str) -> str:
        """`sql`, of the log, as the other replicas get it; unchanged if it names its columns, or where they
        cannot be told: chDB is to say why."""
        d = draft_of(sql)
        if d.kind is not StatementKind.CREATE_TABLE or not d.refs:
            return sql
        at = behind_name(d)
        if d.words[at : at + 1] == ["("]:
            return sql
        behind = d.tokens[at - 1].end
        try:
            other = next((ref for ref in d.refs[1:] if ref.role is Role.SOURCE), None)
            if other is not None and _ends_with(d, d.at_offset(other.start), "AS"):
                if d.engine is None:
                    return sql  # it gets the other one's engine, too
                return f"{sql[:behind]} {await self._like_table(other.name, d)}"
            if d.body is not None and _ends_with(d, d.body, "AS"):
                columns = await _of_result(asked, f"({select_of(d)}\n)")
                edits = [Edit(behind, behind, columns)]
                if _ends_with(d, d.body, "EMPTY", "AS"):
                    edits.append(Edit(d.tokens[d.body - 2].start, comment_at(d), ""))
                return apply_edits(sql, edits)
            if d.words[at : at + 1] == ["AS"] and d.words[at + 2 : at + 3] == ["("]:
                columns = await _of_result(asked, sql[d.tokens[at + 1].start : comment_at(d)])
                return apply_edits(sql, [Edit(behind, behind, columns)])
        except SqlError as error:
            log.info("databases.columns_not_told error=%s", error)
        return sql

    async def _like_table(self, table: TableName, d: Draft) -> str:
        """What stands behind the name of a table that is made like `table`, with an engine of its own."""
        wanted, comment = Definition(d.sql), d.sql[comment_at(d) :]
        begin, end = wanted.storage
        keys = d.sql[wanted.behind_engine : end]
        is_mergetree = (d.engine or "").endswith("MergeTree")
        engine = f"MergeTree {keys}" if is_mergetree else "Null"
        made = Definition(await self._made(f"AS {table.quoted} ENGINE = {engine} {comment}"))
        storage = d.sql[begin:end]
        if is_mergetree:
            storage = f"ENGINE = {wanted.engine}{made.sql[made.behind_engine : made.storage[1]]}"
        c = Cursor(made.sql)
        c.skip_to("(")
        columns_at = c.token.start
        c.skip_brackets()
        return f"{made.sql[columns_at : c.last_end]} {storage}{made.sql[made.storage[1] :]}"

    async def _made(self, definition: str) -> str:
        """chDB's text of a table that is there only meanwhile. Raises SqlError where it cannot be made."""
        scratch = TableName(SCRATCH_DATABASE, f"as_{self._env.new_uuid().hex}")
        await self._local.run(f"CREATE DATABASE IF NOT EXISTS {SCRATCH_DATABASE} ENGINE = Memory")
        await self._local.run(f"CREATE TABLE {scratch.quoted} {definition}", settings=LENIENT)
        try:
            found = await self._local.named(scratch)
        finally:
            await self._local.run(f"DROP TABLE IF EXISTS {scratch.quoted} SYNC")
        return found.create_query if found is not None else ""


async def _of_result(asked: Asked, source: str) -> str:
    return f" ({', '.join(_column(*row[:5]) for row in await described(asked, source))})"


def _column(name: str, type_name: str, kind: str, default: str, comment: str) -> str:
    """A function's result may have what a table's columns have."""
    text = f"{quote_identifier(name)} {type_name}"
    if kind:
        text += f" {kind} {default}"
    return f"{text} COMMENT {quote_string(comment)}" if comment else text


def _ends_with(d: Draft, at: int, *words: str) -> bool:
    """Whether these stand before a token."""
    return d.words[at - len(words) : at] == list(words)
