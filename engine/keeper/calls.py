"""Requests that wait for an answer, each until a time of its own."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar


def fail(future: asyncio.Future[Any], error: Exception) -> None:
    """Also if nobody waits any more, and then without asyncio's complaint."""
    if not future.done():
        future.set_exception(error)
        future.exception()


class Call:
    """One request under way. `deadline_s` is of the loop's clock."""

    __slots__ = ("deadline_s", "future", "path")

    def __init__(self, path: str, deadline_s: float) -> None:
        self.path = path
        self.deadline_s = deadline_s
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def answer(self, value: Any) -> None:
        if not self.future.done():
            self.future.set_result(value)

    def fail(self, error: Exception) -> None:
        fail(self.future, error)


CallT = TypeVar("CallT", bound=Call)


class Deadlines(Generic[CallT]):
    """The requests of one session in their order, which is that of their deadlines: one timer does for all.
    `expire` is called with each request whose time is over."""

    def __init__(self, expire: Callable[[CallT], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._expire = expire
        self._calls: deque[CallT] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: CallT) -> None:
        self._calls.append(call)
        if self._timer is None:
            self._timer = self._loop.call_at(call.deadline_s, self._look)
        while self._calls[0].future.done():
            self._calls.popleft()

    def _look(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        calls = self._calls
        while calls and (calls[0].future.done() or calls[0].deadline_s <= now_s):
            call = calls.popleft()
            if not call.future.done():
                self._expire(call)
        if calls:
            self._timer = self._loop.call_at(calls[0].deadline_s, self._look)

    def fail_all(self, error: Callable[[], Exception]) -> None:
        """Nothing is under way any more."""
        calls, self._calls = self._calls, deque()
        self.stop()
        for call in calls:
            call.fail(error())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
