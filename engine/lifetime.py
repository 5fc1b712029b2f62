"""What is started and stopped, as an async context; and how a loop in the background ends.

async with TcpProxy("127.0.0.1", port) as link: ...
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Startable(ABC):
    """Entering starts it and leaving stops it. Who needs arguments for `start` calls the two by hand."""

    @abstractmethod
    async def start(self) -> None:
        """On failure nothing is left running."""

    @abstractmethod
    async def stop(self) -> None:
        """May be called twice."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def end_if_cancelled() -> None:
    """For a loop that goes on after errors. Raises CancelledError where a cancellation has become another
    error on its way: `asyncio.gather` raises what one of its awaitables raised at the moment at which all of
    them were cancelled."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
