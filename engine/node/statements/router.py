"""Where a statement goes: to the cluster, to Distributed or replicated tables, to the node's own, or to chDB.

A statement is classified by its text (`engine.sql`); what that cannot tell is left to chDB. Four things are
never chDB's: ON CLUSTER, what changes replicated tables, the tables of `system` that describe the cluster,
and statements that would reach the node's files or end its process.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    ExitStack,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import replace
from typing import Protocol

from engine.env import SystemEnv
from engine.errors import Code, OnclusterError, SqlError
from engine.killable import ends_by_kill
from engine.node.distributed.reading.failover import BegunAnswer, Failover
from engine.node.distributed.registry.overlooked import is_overlooked, overlooked_explained
from engine.node.replicated.running.statements import ReplicatedStatements, done
from engine.node.statements.asked_settings import flag
from engine.node.statements.kill_query import kill_query
from engine.node.statements.node_commands import NodeCommands
from engine.node.statements.node_statements import NodeStatements
from engine.node.statements.parallel import run_in_turn
from engine.node.statements.session_commands import of_any_size, of_session, settings_of_set
from engine.node.statements.statement import CHANGE_NO_DEFINITION, Answer, Asked, WholeAnswer, WriteInput
from engine.node.statements.temporary_tables import create_temporary, is_about_temporary, note_temporary
from engine.node.system.system_tables import SystemTables
from engine.sql import Statement, StatementKind, parse_statement, with_parameters
from engine.sql.if_not_exists import CREATES, with_if_not_exists
from engine.storage import ChdbSession, QueryResult
from engine.storage.guard import check_settings, check_statement
from engine.storage.statement_text import INPUT_TABLE, InsertText

log = logging.getLogger(__name__)

_ALLOWED_IN_READONLY = frozenset({StatementKind.SET, StatementKind.USE, StatementKind.SET_ROLE})
_MOST_MOVES = 5
"""So often a statement begins anew because a name has come to mean a Distributed table."""
_GET_IS_READONLY = (
    " For queries over HTTP, method GET implies readonly. You should use method POST for modifying queries."
)

RunOnCluster = Callable[[Asked, Statement], Awaitable[Answer]]
"""The distributed layer: submit, wait, answer."""


class Replicated(ReplicatedStatements, Protocol):
    """The node's replicated tables, as far as statements go (`engine.node.replicated.assembly`)."""

    async def insert(
        self,
        asked: Asked,
        insert: InsertText,
        rows: AsyncIterator[bytes],
        write_input: WriteInput,
    ) -> Answer | None:
        """Run an INSERT whose rows come as a stream; None when the table is not replicated."""
        ...

    def written_by_chdb(self, asked: Asked, statement: Statement) -> AbstractAsyncContextManager[None]:
        """In the block chDB runs a statement, an INSERT perhaps, that is about none of them. Entering and
        leaving raises SqlError 60 if a table that the INSERT writes to is replicated by now."""
        ...

    async def prepare_read(self, asked: Asked, statement: Statement) -> Asked:
        """The request as it has to be given to chDB."""
        ...

    def note_error(self, error: OnclusterError) -> None:
        """A statement has failed."""
        ...

    def changed(self) -> None:
        """chDB has run a statement that is neither a query nor an INSERT."""
        ...


class Distributed(ReplicatedStatements, Protocol):
    """The node's Distributed tables, as far as statements go (`engine.node.distributed.assembly`)."""

    def failover(self, asked: Asked, statement: Statement) -> Failover:
        """What is remembered of one statement from one beginning to the next."""
        ...

    async def prepare_read(self, asked: Asked, statement: Statement, failover: Failover) -> Asked:
        """The request with every Distributed table that it reads replaced by its shards."""
        ...

    async def names_moved(self, prepared: Asked, failover: Failover) -> bool:
        """Whether a name in the prepared statement has become a Distributed table's meanwhile."""
        ...

    async def target_moved(self, asked: Asked, failover: Failover) -> bool:
        """The same of what an INSERT writes to."""
        ...

    def following_kills(self) -> AbstractAsyncContextManager[None]:
        """In the block a KILL QUERY runs."""
        ...

    def turn(self, failover: Failover) -> AbstractAsyncContextManager[None]:
        """Within it the prepared statement runs."""
        ...

    async def insert(
        self,
        asked: Asked,
        insert: InsertText,
        rows: AsyncIterator[bytes],
        write_input: WriteInput,
    ) -> Answer | None:
        """Run an INSERT whose rows come as a stream; None when the table is not Distributed."""
        ...

    async def finished(self, statement: Statement) -> None:
        """A statement has run, whoever ran it."""
        ...

    def forget_views(self, statement: Statement) -> None:
        """A statement has run or was given up, and may have changed what a view reads."""
        ...


class Databases(ReplicatedStatements, Protocol):
    """The node's Replicated databases, as far as statements go (`engine.node.databases.statements`)."""

    def concerns(self, asked: Asked, statement: Statement) -> bool:
        """False: the statement has nothing to do with them."""
        ...

    def without_cluster(self, asked: Asked, statement: Statement) -> tuple[Asked, Statement]:
        """Without ON CLUSTER where that says nothing. Raises SqlError 80."""
        ...


class StatementRouter:
    """All statements of all clients pass here."""

    def __init__(
        self,
        *,
        tables: SystemTables,
        run_on_cluster: RunOnCluster,
        commands: NodeCommands | None = None,
        replicated: Replicated | None = None,
        distributed: Distributed | None = None,
        statements: NodeStatements | None = None,
        databases: Databases | None = None,
        trusted_backups: Sequence[str] = (),
    ) -> None:
        self._trusted_backups = trusted_backups
        self._statements = statements or NodeStatements(SystemEnv())
        self._databases = databases
        self._tables = tables
        self._run_on_cluster = run_on_cluster
        self._commands = commands
        self._replicated = replicated
        self._distributed = distributed

    def note_error(self, error: OnclusterError) -> None:
        """Tell of a statement that has failed, also late, in the middle of its answer."""
        if self._replicated is not None:
            self._replicated.note_error(error)

    @asynccontextmanager
    async def run(self, asked: Asked) -> AsyncIterator[Answer]:
        """Run a statement that brings no rows of its own. Leaving the block early cancels it.

        Raises SqlError, or lets the answer's `finish` raise it.
        """
        statement = parse_statement(asked.sql)
        sql = with_parameters(asked.sql, asked.parameters, statement)
        if statement.kind in CREATES and flag(
            {**asked.session.settings, **asked.settings}, "create_if_not_exists", False
        ):
            sql = with_if_not_exists(sql)
        if sql != asked.sql:
            asked, statement = replace(asked, sql=sql), parse_statement(sql)
        await self._check(asked, statement)
        if statement.kind is StatementKind.PARALLEL_WITH and self._has_tables_of_its_own:
            await run_in_turn(asked, self.run)
            yield done(asked)
            return
        is_of_database = self._databases is not None and self._databases.concerns(asked, statement)
        if self._databases is not None and is_of_database:
            asked, statement = self._databases.without_cluster(asked, statement)
        if statement.on_cluster is not None:
            with self._statements.enter(asked, statement):
                yield await self._run_on_cluster(asked, statement)
            return
        if self._databases is not None and is_of_database:
            with self._statements.enter(asked, statement):
                answer = await self._databases.run(asked, statement)
                if answer is not None:
                    yield answer
                    return
        if self._commands is not None and self._commands.takes(statement):
            self._commands.run(statement)
            yield done(asked)
            return
        note_temporary(asked, statement)
        try:
            async with self._run_here(asked, statement) as answer:
                yield answer
        finally:
            # Also of a statement that was cancelled: chDB may have carried it out.
            if self._distributed is not None:
                self._distributed.forget_views(statement)

    @property
    def _has_tables_of_its_own(self) -> bool:
        """Whether chDB must not be given statements about some tables."""
        return any(each is not None for each in (self._replicated, self._distributed, self._databases))

    async def run_here(self, asked: Asked) -> None:
        """Run a statement of a Replicated database's log, or of the node's own making, on this node only, as
        a client's. Raises SqlError."""
        statement = parse_statement(asked.sql)
        try:
            async with self._run_here(asked, statement) as answer:
                while await answer.read():
                    pass
                await answer.finish()
        finally:
            if self._distributed is not None:
                self._distributed.forget_views(statement)

    @asynccontextmanager
    async def _run_here(self, asked: Asked, statement: Statement) -> AsyncIterator[Answer]:
        with ExitStack() as entered:
            if statement.kind is not StatementKind.KILL_QUERY:
                entered.enter_context(self._statements.enter(asked, statement))
            if statement.is_query:  # it changes nothing: it may end anywhere
                entered.enter_context(ends_by_kill())
            async with self._run_with_failover(asked, statement) as answer:
                yield answer

    @asynccontextmanager
    async def _run_with_failover(self, asked: Asked, statement: Statement) -> AsyncIterator[Answer]:
        if self._distributed is None:
            async with self._run_once(asked, statement) as answer:
                yield answer
            return
        failover = self._distributed.failover(asked, statement)
        moves_left = _MOST_MOVES
        while True:
            prepared = await self._distributed.prepare_read(asked, statement, failover)
            is_given = False
            try:
                async with self._distributed.turn(failover), self._run_once(prepared, statement) as answer:
                    if failover.can_begin_anew:
                        answer = await BegunAnswer.of(answer, failover)
                    elif failover.watches_names and statement.kind is StatementKind.SELECT:
                        # chDB has looked up all names when the first byte is there.
                        answer = await BegunAnswer.of(answer, failover, held_bytes=0)
                    if await self._distributed.names_moved(prepared, failover):
                        moves_left -= 1
                        if moves_left < 0:
                            raise SqlError(Code.ABORTED, "Tables of the statement change names all the time")
                        continue
                    is_given = True
                    yield answer
                    return
            except SqlError as error:
                if is_given:
                    raise
                if (
                    is_overlooked(error)
                    and moves_left
                    and await self._distributed.names_moved(prepared, failover)
                ):
                    moves_left -= 1
                    continue
                is_placeholder = statement.kind is StatementKind.INSERT and error.code == Code.NOT_IMPLEMENTED
                if is_placeholder and moves_left and await self._distributed.target_moved(asked, failover):
                    moves_left -= 1
                    continue
                if await failover.begins_anew(error):
                    continue
                explained = failover.explained(error)
                if explained is error:
                    raise
                raise explained from error

    @asynccontextmanager
    async def _run_once(self, asked: Asked, statement: Statement) -> AsyncIterator[Answer]:
        is_for_chdb = await is_about_temporary(asked, statement)
        if self._distributed is not None and not is_for_chdb:
            answer = await self._distributed.run(asked, statement)
            if answer is not None:
                yield answer
                return
        if self._replicated is not None:
            answer = None if is_for_chdb else await self._replicated.run(asked, statement)
            if answer is not None:
                await self._finished(statement)
                yield answer
                return
            asked = await self._replicated.prepare_read(asked, statement)
        if statement.is_query and not asked.filled_in.key:
            self._statements.leave(statement)
        async with self._tables.provide(asked, statement) as (sql, session):
            is_select = statement.kind is StatementKind.SELECT or sql.startswith("SELECT")
            sql = asked.filled_in.of(sql)
            if asked.has_one_row and statement.kind is StatementKind.SELECT:
                result = await asked.run(sql, session=session, is_harmless=True)
                yield WholeAnswer(result, format=statement.format or asked.format)
                return
            if is_select:
                async with session.stream(
                    sql,
                    format=asked.format,
                    params=asked.params,
                    scope=asked.scope,
                    native_revision=asked.native_revision,
                ) as stream:
                    yield stream
                return
            if statement.kind is StatementKind.KILL_QUERY:
                yield await self._kill(asked, statement, sql, session)
                return
            leaves_nothing = statement.is_query or statement.kind is StatementKind.INSERT
            asked, sql = of_session(asked, statement), of_any_size(sql, asked, statement)
            async with self._written_by_chdb(asked, statement, is_for_chdb=is_for_chdb):
                result = await asked.run(sql, session=session, is_harmless=leaves_nothing)
            self._remember(asked, statement)
            may_redefine = not statement.is_query and statement.kind not in CHANGE_NO_DEFINITION
            if self._replicated is not None and may_redefine:
                self._replicated.changed()
            await self._finished(statement)
            yield WholeAnswer(result, format=statement.format or asked.format)

    async def _kill(self, asked: Asked, statement: Statement, sql: str, session: ChdbSession) -> Answer:
        following = nullcontext() if self._distributed is None else self._distributed.following_kills()
        async with following:
            return await kill_query(asked, statement, session, self._statements)

    async def insert(self, asked: Asked, insert: InsertText, rows: AsyncIterator[bytes]) -> Answer:
        """Run an INSERT whose rows come as a stream. Raises SqlError."""
        statement = parse_statement(insert.head)
        head = with_parameters(insert.head, asked.parameters, statement)
        if head != insert.head:
            insert, asked = replace(insert, head=head), replace(asked, sql=head)
            statement = parse_statement(head)
        await self._check(asked, statement)
        with self._statements.enter(asked, statement):
            if self._distributed is None or not insert.input_structure:
                with overlooked_explained():
                    return await self._insert_rows(asked, statement, insert, rows)
            # It is a SELECT, which may read Distributed tables beside the rows.
            failover = self._distributed.failover(asked, statement)
            asked = await self._distributed.prepare_read(replace(asked, sql=insert.head), statement, failover)
            async with self._distributed.turn(failover):
                return await self._insert_rows(asked, statement, replace(insert, head=asked.sql), rows)

    async def _insert_rows(
        self, asked: Asked, statement: Statement, insert: InsertText, rows: AsyncIterator[bytes]
    ) -> Answer:
        is_for_chdb = await is_about_temporary(asked, statement)
        if self._distributed is not None and not is_for_chdb:
            answer = await self._distributed.insert(asked, insert, rows, self._insert_from_input)
            if answer is not None:
                return answer
        if self._replicated is not None and not is_for_chdb:
            answer = await self._replicated.insert(asked, insert, rows, self._insert_from_input)
            if answer is not None:
                return answer
        async with self._written_by_chdb(asked, statement, is_for_chdb=is_for_chdb):
            if insert.input_structure:
                result = await self._insert_from_input(asked, insert, rows)
            else:
                result = await asked.session.insert(
                    insert.head, format=insert.format, rows=rows, params=asked.params, scope=asked.scope
                )
        return WholeAnswer(result, format=asked.format)

    def _written_by_chdb(
        self, asked: Asked, statement: Statement, *, is_for_chdb: bool
    ) -> AbstractAsyncContextManager[None]:
        if self._replicated is None or is_for_chdb:
            return nullcontext()
        return self._replicated.written_by_chdb(asked, statement)

    async def _insert_from_input(
        self, asked: Asked, insert: InsertText, rows: AsyncIterator[bytes]
    ) -> QueryResult:
        """chDB has no `input()`: the rows wait in a temporary table, in memory, until they are all there."""
        session = asked.session.clone()
        try:
            async with session.kept_open():
                await session.query(create_temporary(INPUT_TABLE, insert.input_structure))
                await session.insert(
                    f"INSERT INTO {INPUT_TABLE}", format=insert.format, rows=rows, params=asked.params
                )
            return await session.query(
                insert.head, params=asked.params, scope=replace(asked.scope, is_readonly=False), multi=False
            )
        finally:
            await session.close()

    async def _finished(self, statement: Statement) -> None:
        if self._distributed is not None:
            await self._distributed.finished(statement)

    async def _check(self, asked: Asked, statement: Statement) -> None:
        if statement.kind is StatementKind.EMPTY:
            raise SqlError(Code.SYNTAX_ERROR, "Empty query")
        # readonly = 2 allows temporary tables; chDB knows which of the two it is.
        is_readonly = asked.is_readonly or (asked.session.is_readonly and not statement.temporary)
        is_change = not statement.is_query and statement.kind not in _ALLOWED_IN_READONLY
        if is_readonly and is_change and not await is_about_temporary(asked, statement):
            if statement.kind is not StatementKind.INSERT:  # its rows may not be here yet
                await asked.check_syntax()
            raise SqlError(
                Code.READONLY,
                "Cannot execute query in readonly mode."
                + (_GET_IS_READONLY if asked.is_readonly and not asked.session.is_readonly else ""),
            )
        if statement.kind is StatementKind.OTHER:  # chDB takes `exit` and such for words to a client
            await asked.check_syntax()
        check_statement(statement, asked.sql, trusted_backups=self._trusted_backups)
        check_settings(asked.settings)
        self._tables.check(asked.sql, statement, database=asked.current_database)

    def _remember(self, asked: Asked, statement: Statement) -> None:
        if statement.kind is StatementKind.USE and statement.database:
            asked.session.note_database(statement.database)
        elif statement.kind is StatementKind.SET:
            for name, value in settings_of_set(asked.sql).items():
                asked.session.note_setting(name, value)
