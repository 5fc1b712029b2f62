"""ATTACH and REPLACE PARTITION … FROM a replicated table INTO one that is not, and CREATE TABLE … CLONE AS.

chDB carries them out, and reads from a copy of the replicated table whose parts carry no replicated names.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace

from engine.node.replicated.definitions.cloning import clone_in
from engine.node.replicated.definitions.truncate_all import Run
from engine.node.replicated.running.runtime import ReplicatedTables
from engine.node.replicated.running.statements import done
from engine.node.statements.statement import Answer, Asked
from engine.sql import AlterCommand, Statement, StatementKind
from engine.sql.cursor import Role
from engine.sql.edit import Edit, apply_edits
from engine.sql.parse import draft_of

_COPIES = frozenset({AlterCommand.ATTACH_PARTITION_FROM, AlterCommand.REPLACE_PARTITION})


class PlainTargetStatements:
    """Implements `ReplicatedStatements`."""

    def __init__(self, tables: ReplicatedTables, run: Run) -> None:
        self._tables = tables
        self._run = run

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        if statement.kind is StatementKind.ALTER_TABLE and _COPIES.intersection(statement.alter_commands):
            return await self._alter(asked, statement)
        clone = clone_in(asked.sql) if statement.kind is StatementKind.CREATE_TABLE else None
        if clone is None or statement.or_replace or self._tables.find_for(asked, clone.source) is None:
            return None
        name = statement.tables[0].within(asked.current_database)
        source = clone.source.within(asked.current_database)
        result = await asked.session.clone().query(
            f"EXISTS TABLE {name.quoted}", format="TSV", is_harmless=True
        )
        if result.text.strip() == "1":
            return None  # chDB says so, or IF NOT EXISTS
        await self._in_chdb(asked, clone.create)
        fill = f"ALTER TABLE {name.quoted} ATTACH PARTITION ALL FROM {source.quoted}"
        await self._run(replace(asked, sql=fill))
        return done(asked)

    async def _alter(self, asked: Asked, statement: Statement) -> Answer | None:
        if self._tables.is_ours(statement.tables[0].within(asked.current_database)):
            return None
        d = draft_of(asked.sql)
        edits = []
        async with AsyncExitStack() as copies:
            for ref in d.refs:
                table = self._tables.find_for(asked, ref.name) if ref.role is Role.TARGET else None
                if table is not None:
                    copy = await copies.enter_async_context(table.store.plain_copy())
                    edits.append(Edit(ref.start, ref.end, copy.quoted))
            if not edits:
                return None
            await self._in_chdb(asked, apply_edits(asked.sql, edits))
        return done(asked)

    async def _in_chdb(self, asked: Asked, sql: str) -> None:
        await asked.session.query(sql, format="Null", params=asked.params, scope=asked.scope, multi=False)
