"""What the layers of the queue's executor have in common: each takes what is its own and leaves the rest to
the one within it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from engine.config.model import User
from engine.ddl.attempt import Fence
from engine.ddl.executor import Execution, LocalExecutor, RecordingExecutor, SeriesExecutor
from engine.names import TableName
from engine.node.statements.statement import Asked
from engine.sql import Statement
from engine.storage import ChdbSession


class InnerExecutor(LocalExecutor, RecordingExecutor, SeriesExecutor, Protocol):
    """What a layer has within it: chDB itself, or a layer."""

    async def close(self) -> None: ...


Inner = TypeVar("Inner", bound=InnerExecutor)


class ExecutorLayer(ABC, Generic[Inner]):
    """Implements `LocalExecutor` and `FencedExecutor` around `inner`. Sessions are `new_session`'s."""

    def __init__(self, inner: Inner, *, new_session: Callable[[], ChdbSession]) -> None:
        self._inner = inner
        self._new_session = new_session

    @abstractmethod
    async def execute_fenced(self, execution: Execution, *, fence: Fence) -> None: ...

    async def execute(self, execution: Execution) -> None:
        await self.execute_fenced(execution, fence=Fence())

    async def table_engine(self, table: TableName) -> str | None:
        return await self._inner.table_engine(table)

    def supports_replication(self, engine: str) -> bool:
        return self._inner.supports_replication(engine)

    async def definition_digest(self, statement: Statement, database: str) -> str:
        return await self._inner.definition_digest(statement, database)

    async def validate(self, sql: str) -> str:
        return await self._inner.validate(sql)

    async def close(self) -> None:
        await self._inner.close()

    def _asked(self, execution: Execution, fence: Fence | None = None) -> Asked:
        """The statement as a client's would be. Whoever asks closes its session."""
        return Asked(
            sql=execution.sql,
            user=User(execution.user),
            session=self._new_session(),
            query_id=execution.query_id,
            settings=execution.settings,
            fence=Fence() if fence is None else fence,
        )
