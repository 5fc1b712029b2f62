"""What the DDL queue gives to chDB itself, with the checks that a client's statements have in the router."""

from __future__ import annotations

from collections.abc import Callable

from engine.ddl.executor import Execution
from engine.sql import Statement, parse_statement
from engine.storage import ChdbPool
from engine.storage.local_executor import ChdbExecutor

Check = Callable[[str, Statement], None]
"""Of a text and its statement; raises SqlError for what must not run."""


class QueueExecutor(ChdbExecutor):
    """`ChdbExecutor`, except that it refuses what `check` refuses."""

    def __init__(self, pool: ChdbPool, *, lanes: int, check: Check) -> None:
        super().__init__(pool, lanes=lanes)
        self._check = check

    async def execute(self, execution: Execution) -> None:
        self._check(execution.sql, parse_statement(execution.sql))
        await super().execute(execution)

    async def execute_recorded(
        self,
        execution: Execution,
        *,
        statement: Statement,
        database: str,
        record: Callable[[str], None],
    ) -> None:
        self._check(execution.sql, statement)
        await super().execute_recorded(execution, statement=statement, database=database, record=record)
