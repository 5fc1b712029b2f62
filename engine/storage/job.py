"""A function on a worker thread, and whoever waits for it on the event loop.

It runs to its end, whoever is cancelled while waiting: chDB is not to be left in the middle of something.
`run_in_executor` and `shield` need a task for each function and five turns of the event loop from its end to
whoever waits, a tenth of what a small SELECT costs; here it is no task and two turns.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Job(Generic[T]):
    """Begins at once, or when the executor has a thread for it. Made and waited for on the event loop."""

    def __init__(self, executor: Executor, function: Callable[[], T]) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: set[asyncio.Future[None]] = set()
        self._result: Future[T] = executor.submit(function)
        self._result.add_done_callback(self._tell)

    @property
    def is_over(self) -> bool:
        return self._result.done()

    async def result(self) -> T:
        """What the function returns; raises what it raises."""
        await self.end()
        return self._result.result()

    async def end(self, *, timeout_s: float | None = None) -> None:
        """Return when the function has ended, whatever came of it, or after `timeout_s`."""
        if self.is_over:
            return
        waiting = self._loop.create_future()
        self._waiting.add(waiting)
        timer = None if timeout_s is None else self._loop.call_later(timeout_s, _wake, waiting)
        try:
            await waiting
        finally:
            self._waiting.discard(waiting)
            if timer is not None:
                timer.cancel()

    def _tell(self, _: Future[T]) -> None:
        """On the worker thread. Whoever finds the function running waits before this gets to the loop."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
            self._loop.call_soon_threadsafe(self._wake_all)

    def _wake_all(self) -> None:
        for waiting in self._waiting:
            _wake(waiting)


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
