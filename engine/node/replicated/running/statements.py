"""Where the handlers of statements about replicated tables meet.

Each handler looks at a statement and either answers it or says that it is not its own. The router asks them
in the order of their registration before it gives a statement to chDB; so does the executor of the DDL
queue, with the statement's `fence` in `Asked`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from engine.node.statements.hosts_answer import NOTHING
from engine.node.statements.statement import Answer, Asked, WholeAnswer
from engine.sql import Statement


class ReplicatedStatements(Protocol):
    """Handles one family of statements."""

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        """The answer, or None when the statement is somebody else's (chDB's in the end). Raises SqlError."""
        ...


class StatementHandlers:
    """`ReplicatedStatements` that asks others, one after another."""

    def __init__(self, handlers: Iterable[ReplicatedStatements] = ()) -> None:
        self._handlers = list(handlers)

    def register(self, handler: ReplicatedStatements) -> None:
        self._handlers.append(handler)

    def put_first(self, handler: ReplicatedStatements) -> None:
        self._handlers.insert(0, handler)

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        for handler in self._handlers:
            answer = await handler.run(asked, statement)
            if answer is not None:
                return answer
        return None


def done(asked: Asked) -> Answer:
    """The answer of a statement that has no rows."""
    return WholeAnswer(NOTHING, format=asked.format)
