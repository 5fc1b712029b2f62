"""What is started and stopped, as an async context.

async with TcpProxy("127.0.0.1", port) as link: ...
"""

from __future__ import annotations

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
