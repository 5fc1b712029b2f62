"""The statements that the HTTP server is running, by their query ids: no id is used twice at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from engine.config.model import User
from engine.errors import Code, SqlError
from engine.node.http.query import HttpQuery
from engine.node.statements.node_statements import NodeStatements
from engine.storage import ChdbPool

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Running:
    """A statement of one user."""

    task: asyncio.Task[Any]
    user: str


class RunningStatements:
    """`statements`: those that the node is busy with, whose waits a statement of the same id ends, too."""

    def __init__(self, pool: ChdbPool, statements: NodeStatements | None, *, most: int = 0) -> None:
        """`most`: so many may be counted at once; 0 for any number."""
        self._pool = pool
        self._most = most
        self._counted = 0
        self._statements = statements
        self._running: dict[str, Running] = {}

    async def make_way(self, query: HttpQuery, user: User) -> None:
        """Raises SqlError 216 while another statement has this id, unless it is the same user's and shall be
        replaced (`replace_running_query`), and ends in time."""
        other = self._running.get(query.query_id)
        if other is not None and query.replace_wait_s is not None and other.user == user.name:
            if not await self._pool.kill(query.query_id) and self._statements is not None:
                self._statements.kill(query.query_id)
            await asyncio.wait({other.task}, timeout=query.replace_wait_s)
        if query.query_id in self._running:
            raise SqlError(
                Code.QUERY_WITH_SAME_ID_IS_ALREADY_RUNNING,
                f"Query with id = {query.query_id} is already running.",
            )

    def begin(self, query_id: str, user: User, task: asyncio.Task[Any]) -> Running:
        """From now on `task` runs the statement, also if another did until now."""
        running = self._running[query_id] = Running(task, user.name)
        return running

    def end(self, query_id: str, running: Running) -> None:
        """Nothing if another task runs the statement by now."""
        if self._running.get(query_id) is running:
            del self._running[query_id]

    @contextmanager
    def counted(self) -> Iterator[None]:
        """In the block a statement runs, or waits for its turn. Raises SqlError 202 for one too many."""
        if self._most and self._counted >= self._most:
            raise SqlError(
                Code.TOO_MANY_SIMULTANEOUS_QUERIES, f"Too many simultaneous queries. Maximum: {self._most}"
            )
        self._counted += 1
        try:
            yield
        finally:
            self._counted -= 1

    async def finish(self, *, grace_s: float) -> None:
        """Wait until all have ended; who has not after `grace_s` seconds is cancelled."""
        tasks = {each.task for each in self._running.values() if not each.task.done()}
        if not tasks:
            return
        log.info("node.finishing statements=%d grace_s=%g", len(tasks), grace_s)
        _, late = await asyncio.wait(tasks, timeout=grace_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
