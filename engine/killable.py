"""Waits that KILL QUERY ends.

What a node does besides chDB is done whole or not at all, so a statement is killed where it waits for others
and nowhere else: there it fails with QUERY_WAS_CANCELLED 394 as if the wait itself had failed. Whose wait it
is, the context of the task says, which every task that it starts inherits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from engine.errors import Code, SqlError


class Killable:
    """One statement."""

    def __init__(self) -> None:
        self.is_killed = False
        self._is_over = False
        self._waiting: list[asyncio.Task[Any]] = []

    def kill(self) -> None:
        """End what it waits for now, and whatever it would wait for later. May be called twice."""
        if not self.is_killed:
            self.is_killed = True
            for task in set(self._waiting):
                task.cancel()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Waits in the block, and until its end in tasks that begin in it, are this statement's."""
        before = _current.get()
        _current.set(self)
        try:
            yield
        finally:
            self._is_over = True
            _current.set(before)

    @contextmanager
    def wait(self, task: asyncio.Task[Any]) -> Iterator[None]:
        """`ends_by_kill`, in `task`."""
        if self._is_over:
            yield
            return
        if self.is_killed:
            raise cancelled()
        self._waiting.append(task)
        try:
            yield
        except asyncio.CancelledError:
            # Somebody else may have cancelled it, too.
            if self.is_killed and task.uncancel() == 0:
                raise cancelled() from None
            raise
        finally:
            self._waiting.remove(task)


_current: ContextVar[Killable | None] = ContextVar("killable", default=None)


@contextmanager
def ends_by_kill() -> Iterator[None]:
    """Around a wait on the event loop that leaves nothing half done wherever it ends. Raises SqlError 394
    when the statement is killed, also when that was before."""
    statement, task = _current.get(), asyncio.current_task()
    if statement is None or task is None:
        yield
        return
    with statement.wait(task):
        yield


def is_part_of_another() -> bool:
    """Whether what begins now is done for a statement that is running."""
    return _current.get() is not None


def cancelled() -> SqlError:
    """What a killed statement fails with."""
    return SqlError(Code.QUERY_WAS_CANCELLED, "Query was cancelled")
