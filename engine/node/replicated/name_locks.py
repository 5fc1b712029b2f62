"""One change at a time of what a name means: CREATE, DROP, RENAME and their kin of one table wait in line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

from engine.names import TableName


class NameLocks:
    """A lock per name, made when it is needed."""

    def __init__(self) -> None:
        self._locks: dict[TableName, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def hold(self, names: Iterable[TableName]) -> AsyncIterator[None]:
        """Hold all of them; always taken in the same order, so that nobody waits in a circle."""
        async with AsyncExitStack() as stack:
            for name in sorted(set(names)):
                await stack.enter_async_context(self._one(name))
            yield

    @asynccontextmanager
    async def _one(self, name: TableName) -> AsyncIterator[None]:
        lock, users = self._locks.get(name, (asyncio.Lock(), 0))
        self._locks[name] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[name]
            if users == 1:
                del self._locks[name]
            else:
                self._locks[name] = (lock, users - 1)
