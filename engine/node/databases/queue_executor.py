"""What the DDL queue (ON CLUSTER) runs statements on, where some databases are Replicated.

CREATE and DROP of such a database are this host's, as a client's would be. Statements on objects in one are
refused: every replica of the database would carry them out once for each host of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from engine.ddl.attempt import Fence
from engine.ddl.executor import Execution, Steps
from engine.errors import Code, SqlError
from engine.node.databases.routing import concerns_objects
from engine.node.databases.statements import NOT_INITIAL, DatabaseStatements
from engine.node.distributed.executor import DistributedExecutor
from engine.node.statements.executor_layer import ExecutorLayer
from engine.sql import Statement, parse_statement
from engine.storage import ChdbSession


class DatabasesExecutor(ExecutorLayer[DistributedExecutor]):
    """Implements `LocalExecutor`, `RecordingExecutor`, `SeriesExecutor` and `FencedExecutor`."""

    def __init__(
        self,
        inner: DistributedExecutor,
        *,
        statements: DatabaseStatements,
        new_session: Callable[[], ChdbSession],
    ) -> None:
        super().__init__(inner, new_session=new_session)
        self._statements = statements

    async def execute_fenced(self, execution: Execution, *, fence: Fence) -> None:
        statement = parse_statement(execution.sql)
        asked = self._asked(execution)
        try:
            if self._statements.concerns(asked, statement):
                if concerns_objects(statement):
                    raise SqlError(Code.INCORRECT_QUERY, NOT_INITIAL)
                answer = await self._statements.run(asked, statement)
                if answer is not None:
                    await answer.finish()
                    return
        finally:
            await asked.session.close()
        await self._inner.execute_fenced(execution, fence=fence)

    async def execute_recorded(
        self,
        execution: Execution,
        *,
        statement: Statement,
        database: str,
        record: Callable[[str], None],
    ) -> None:
        if self._concerns(statement, database):
            record(await self._inner.definition_digest(statement, database))
            await self.execute(execution)
            return
        await self._inner.execute_recorded(execution, statement=statement, database=database, record=record)

    async def takes_in_series(self, statement: Statement, database: str) -> bool:
        return not self._concerns(statement, database) and await self._inner.takes_in_series(
            statement, database
        )

    async def execute_series(self, steps: Steps, settings: Mapping[str, str]) -> None:
        await self._inner.execute_series(steps, settings)

    def _concerns(self, statement: Statement, database: str) -> bool:
        return self._statements.concerns_in(statement, database or "default")
