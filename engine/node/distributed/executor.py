"""What the DDL queue runs statements on, where some tables are Distributed.

Statements about Distributed tables go the way of a client's; SYSTEM RELOAD CONFIG is the node's own. All else
is the inner executor's, and so are fingerprints: a Distributed table is there exactly when its table in chDB
is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from engine.ddl.attempt import Fence
from engine.ddl.executor import Execution, Steps
from engine.ddl.series import ToldSteps
from engine.distributed.definition import ENGINE
from engine.names import TableName
from engine.node.distributed.assembly import DistributedNode
from engine.node.distributed.definitions.guard import concerns_guard, is_mutation
from engine.node.replicated.executor import ReplicatedExecutor
from engine.node.statements.executor_layer import ExecutorLayer
from engine.node.statements.node_commands import NodeCommands
from engine.sql import Statement, StatementKind, parse_statement
from engine.storage import ChdbSession
from engine.storage.guard import check_statement

_K = StatementKind
_READS = frozenset({_K.CREATE_TABLE, _K.CREATE_VIEW})
_READING = re.compile(r"\b(AS|CONSTRAINT|PROJECTION|TTL)\b", re.IGNORECASE)


class DistributedExecutor(ExecutorLayer[ReplicatedExecutor]):
    """Implements `LocalExecutor`, `RecordingExecutor`, `SeriesExecutor` and `FencedExecutor`."""

    def __init__(
        self,
        inner: ReplicatedExecutor,
        *,
        node: DistributedNode,
        new_session: Callable[[], ChdbSession],
        commands: NodeCommands,
    ) -> None:
        super().__init__(inner, new_session=new_session)
        self._node = node
        self._commands = commands

    async def execute_fenced(self, execution: Execution, *, fence: Fence) -> None:
        statement = parse_statement(execution.sql)
        if self._commands.takes(statement):
            self._commands.run(statement)
            return
        execution = await self._readable(execution, statement)
        if await self._is_ours(statement, ""):
            asked = self._asked(execution)
            try:
                answer = await self._node.run(asked, statement)
            finally:
                await asked.session.close()
            if answer is not None:
                await answer.finish()
                return
        try:
            await self._inner.execute_fenced(execution, fence=fence)
        finally:
            self._node.forget_views(statement)
        await self._node.finished(statement)

    async def execute_recorded(
        self,
        execution: Execution,
        *,
        statement: Statement,
        database: str,
        record: Callable[[str], None],
    ) -> None:
        if await self._is_ours(statement, database):
            record(await self._inner.definition_digest(statement, database))
            await self.execute(execution)
            return
        execution = await self._readable(execution, statement)
        try:
            await self._inner.execute_recorded(
                execution, statement=statement, database=database, record=record
            )
        finally:
            self._node.forget_views(statement)
        await self._node.finished(statement)

    async def takes_in_series(self, statement: Statement, database: str) -> bool:
        return not await self._is_ours(statement, database) and await self._inner.takes_in_series(
            statement, database
        )

    async def execute_series(self, steps: Steps, settings: Mapping[str, str]) -> None:
        told = ToldSteps(steps, self._node.forget_views if len(self._node.tables) else None)
        try:
            await self._inner.execute_series(told, settings)
        finally:
            if told.last is not None:
                self._node.forget_views(told.last)
        if told.last is not None:
            await self._node.finished(told.last)

    async def table_engine(self, table: TableName) -> str | None:
        engine = await self._inner.table_engine(table)
        name = table.within("default")
        return ENGINE if engine and await self._node.tables.find(name) is not None else engine

    async def _readable(self, execution: Execution, statement: Statement) -> Execution:
        """What reads Distributed tables, which chDB cannot: CREATE TABLE … AS SELECT, and subqueries of
        DELETE and UPDATE. Raises SqlError for what is kept and would read some."""
        if is_mutation(statement):
            return await self._with_values(execution, statement)
        if statement.kind not in _READS or not _READING.search(execution.sql):
            return execution
        check_statement(statement, execution.sql)
        asked = self._asked(execution)
        try:
            prepared = await self._node.prepare_read(asked, statement, self._node.failover(asked, statement))
        finally:
            await asked.session.close()
        if prepared.sql == execution.sql:
            return execution
        return replace(execution, sql=prepared.sql)

    async def _with_values(self, execution: Execution, statement: Statement) -> Execution:
        asked = self._asked(execution)
        try:
            asked = await self._node.with_values(asked, statement)
        finally:
            await asked.session.close()
        if asked.sql == execution.sql:
            return execution
        return replace(execution, sql=asked.sql, settings=asked.settings)

    async def _is_ours(self, statement: Statement, database: str) -> bool:
        """Whether the handlers of Distributed tables have to be asked, or it is about the node itself."""
        if self._commands.takes(statement):
            return True
        if statement.kind in (_K.CREATE_TABLE, _K.ATTACH_TABLE) and statement.engine == ENGINE:
            return True
        if not len(self._node.tables):
            return False
        if statement.kind is _K.CREATE_TABLE and statement.engine is None:
            return True
        if statement.kind is _K.CREATE_MATERIALIZED_VIEW or concerns_guard(statement):
            return True
        if statement.kind is _K.SYSTEM and "DISTRIBUTED" in statement.system_command:
            return True
        for name in (*statement.tables, *statement.targets):
            whole = name.within(database or "default")
            if await self._node.tables.find(whole) is not None:
                return True
        return False
