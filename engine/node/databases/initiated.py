"""Statements that a client sends to this replica of a Replicated database: run here, committed for all.

Safety argument. `moments` says when a statement is committed: behind its effect, where that can be undone;
before it, where it cannot, after everything that could still refuse it was asked. What is undone, or left for
the start of a session, is put right by `recovery`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from engine.databases import Commit
from engine.databases.digest import hash_of
from engine.errors import Code, OnclusterError, SqlError, UnknownOutcome
from engine.names import TableName
from engine.node.databases.commit_fence import CommitFence
from engine.node.databases.droppable import check_droppable
from engine.node.databases.local_database import DISTRIBUTED, QUIET, LocalDatabase
from engine.node.databases.moments import DETACHES, Moment, moment_of, opposite_of
from engine.node.databases.other_hashes import OtherHashes
from engine.node.databases.replacement import Replacement, has_rows_of_its_own, replaces_table
from engine.node.databases.texts import changes, uuid_of
from engine.node.databases.unfinished import check_unfinished
from engine.node.replicated.definitions.if_empty import without_if_empty
from engine.node.replicated.definitions.own_tables import table_behind
from engine.node.replicated.parts.partition_sql import alter_pieces, column_drops
from engine.node.replicated.running.drop_limits import check_replaced
from engine.node.statements.statement import Asked
from engine.sql import AlterCommand, Statement, StatementKind, parse_statement, redact

log = logging.getLogger(__name__)

_K = StatementKind
_INNER = ".inner"


class InitiatedStatements:
    """Of one database."""

    def __init__(self, database: LocalDatabase, replacement: Replacement, others: OtherHashes) -> None:
        self._database = database
        self._shell = database.shell
        self._replacement = replacement
        self._others = others

    async def execute(self, asked: Asked, commit: Commit) -> None:
        """`asked.sql` is a statement of the log with this database's name. Raises what chDB says, and what
        `commit` says; nothing was changed then, as far as it can be undone."""
        # What stays a short name, as a dictionary's in a string, means the same as on the other replicas.
        asked = replace(asked, database=self._database.name)
        statement = parse_statement(asked.sql)
        match moment_of(statement):
            case Moment.BEHIND if await self._takes_rows_place(statement):
                await check_replaced(self._shell.local, asked, statement.tables[0])
                await self._replace(asked, statement.tables[0], commit)
            case Moment.BEHIND:
                await self._behind(asked, statement, commit)
            case Moment.BEFORE:
                await self._before(asked, statement, commit)
            case Moment.PLANNED:
                await self._planned(asked, statement, commit)
            case Moment.DATA if await table_behind(self._shell.life, statement.tables[0]) is not None:
                await self._with_commit(asked, commit, {})
            case Moment.DATA:
                await self._shell.run_here(asked)
                await commit({})

    async def _behind(self, asked: Asked, statement: Statement, commit: Commit) -> None:
        database = self._database.name
        before = self._database.texts()
        await self._shell.run_here(asked)
        changed = changes(before, self._database.texts())
        try:
            await commit(changed)
        except UnknownOutcome:
            raise  # undone or not: one of the two is wrong, and only the start of a session knows which
        except OnclusterError:
            new = [TableName(database, name) for name in changed.keys() - before.keys()]
            await self._undo(opposite_of(asked.sql, statement, new))
            raise

    async def _takes_rows_place(self, statement: Statement) -> bool:
        """Whether rows would be dropped that are not to go yet."""
        if not replaces_table(statement):
            return False
        name = statement.tables[0].table
        old = self._database.texts().get(name)
        return old is not None and has_rows_of_its_own(old) and await self._database.has_data(name)

    async def _replace(self, asked: Asked, name: TableName, commit: Commit) -> None:
        before = self._database.texts()
        await self._replacement.make(asked, self._shell.run_here)
        try:
            await commit(changes(before, self._database.texts()))
        except UnknownOutcome:
            raise  # as in `_behind`
        except OnclusterError:
            try:
                await self._replacement.undo(name)
            except OnclusterError as error:
                log.error("databases.not_put_back database=%s error=%s", self._database.name, error)
            raise
        await self._replacement.settle()

    async def _undo(self, statements: Sequence[str]) -> None:
        for sql in statements:
            try:
                await self._database.run(sql)
            except OnclusterError as error:
                name, shown = self._database.name, redact(sql)
                log.error("databases.not_undone database=%s sql=%s error=%s", name, shown, error)

    async def _before(self, asked: Asked, statement: Statement, commit: Commit) -> None:
        texts = self._database.texts()
        name = statement.tables[0].table
        text = texts.get(name)
        if text is None:  # chDB's to say, also with IF EXISTS
            await self._shell.run_here(asked)
            await commit({})
            return
        uuid = uuid_of(text)
        inner = [other for other in texts if other.startswith(_INNER) and str(uuid) in other]
        if statement.kind in DETACHES:
            inner = []
        await check_droppable(self._database, asked, statement, inner)
        await commit(dict.fromkeys([name, *inner]))
        quiet = replace(asked, sql=without_if_empty(asked.sql), settings={**asked.settings, **QUIET})
        await self._shell.run_here(quiet)

    async def _planned(self, asked: Asked, statement: Statement, commit: Commit) -> None:
        name = statement.tables[0]
        text = self._database.texts().get(name.table, "")
        if AlterCommand.RENAME_COLUMN in statement.alter_commands and DISTRIBUTED in text:
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                "RENAME COLUMN of a Distributed table is not supported in a Replicated database",
                hint="DROP the table and CREATE it: it has no rows of its own.",
            )
        planned = await self._shell.planner.altered(asked, name)
        if planned is None:  # a view, or nothing at all
            await self._behind(asked, statement, commit)
            return
        changed = changes({name.table: self._database.texts().get(name.table, "")}, {name.table: planned})
        table = self._shell.life.tables.find(name)
        if table is None:
            await self._shell.dropped_columns.check(name, column_drops(alter_pieces(asked.sql)))
            await check_unfinished(self._shell.local, name, asked.sql)
            await commit(changed)
            await self._shell.run_here(asked)
            return
        # The digest says so before the table's own replication comes to it.
        self._others.add(name.table, hash_of(name.table, planned))
        await self._with_commit(asked, commit, changed)

    async def _with_commit(self, asked: Asked, commit: Commit, changed: Mapping[str, str | None]) -> None:
        """Of a replicated table: in one transaction with the table's own, where that is the whole of it."""
        fence = CommitFence(await commit.ops(changed))
        try:
            await self._shell.run_here(replace(asked, fence=fence))
        except OnclusterError:
            if fence.is_handed_out:
                await commit.handed_over()
            raise
        if not fence.is_handed_out or not await commit.handed_over():
            await commit(changed)
