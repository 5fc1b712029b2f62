"""What the DDL queue gives to chDB itself, with the checks that a client's statements have in the router."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from engine.ddl.executor import Execution
from engine.node.statements.node_statements import NodeStatements, how_to_kill
from engine.node.statements.session_commands import by_our_query_id
from engine.sql import Statement, StatementKind, parse_statement, without_uuid
from engine.storage import ChdbPool
from engine.storage.local_executor import ChdbExecutor

_WITH_UUID = frozenset({"Atomic", "Replicated", "MaterializedPostgreSQL"})
"""Engines of databases. Source: ClickHouse's InterpreterCreateQuery::createDatabase."""

Check = Callable[[str, Statement], None]
"""Of a text and its statement; raises SqlError for what must not run."""


class QueueExecutor(ChdbExecutor):
    """`ChdbExecutor`, except that it refuses what `check` refuses, and that KILL QUERY also ends
    waits of the node's `statements`."""

    def __init__(self, pool: ChdbPool, *, lanes: int, check: Check, statements: NodeStatements) -> None:
        super().__init__(pool, lanes=lanes)
        self._pool_of_kills = pool
        self._check = check
        self._statements = statements

    async def execute(self, execution: Execution) -> None:
        statement = parse_statement(execution.sql)
        self._check(execution.sql, statement)
        await super().execute(_as_meant(execution, statement))
        await self._kill(execution.sql, statement)

    async def execute_recorded(
        self,
        execution: Execution,
        *,
        statement: Statement,
        database: str,
        record: Callable[[str], None],
    ) -> None:
        self._check(execution.sql, statement)
        await super().execute_recorded(
            _as_meant(execution, statement), statement=statement, database=database, record=record
        )
        await self._kill(execution.sql, statement)

    async def _kill(self, sql: str, statement: Statement) -> None:
        """Not waiting for their ends: each depends on its client, and the queue must go on."""
        if statement.kind is StatementKind.KILL_QUERY:
            chosen = await self._statements.chosen_by_kill(sql, self._pool_of_kills.session(one_shot=True))
            if how_to_kill(sql) != "TEST":
                for each in chosen:
                    each.kill()


def _as_meant(execution: Execution, statement: Statement) -> Execution:
    """KILL QUERY means the ids that clients gave, and the UUID that an initiator gives every new database is
    for those that have one."""
    match statement.kind:
        case StatementKind.KILL_QUERY:
            return replace(execution, sql=by_our_query_id(execution.sql))
        case StatementKind.CREATE_DATABASE if statement.engine and statement.engine not in _WITH_UUID:
            return replace(execution, sql=without_uuid(execution.sql))
        case _:
            return execution
