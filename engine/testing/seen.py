"""A watch for tests: it remembers what it was told."""

from __future__ import annotations

import asyncio

from engine.keeper.base import EventType, WatchEvent


class Seen:
    """A watch callback that keeps its events."""

    def __init__(self) -> None:
        self.events: list[WatchEvent] = []
        self._came = asyncio.Event()

    def __call__(self, event: WatchEvent) -> None:
        self.events.append(event)
        self._came.set()

    @property
    def types(self) -> list[EventType]:
        return [event.type for event in self.events]

    async def wait(self, *, timeout_s: float = 120.0) -> WatchEvent:
        """The first event. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            await self._came.wait()
        return self.events[0]
