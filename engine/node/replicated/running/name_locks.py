"""One change at a time of what a name means: CREATE, DROP, RENAME and their kin of one table wait in line.
What is done with a whole database waits for all that is under way in it, and keeps out what comes then."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

from engine.names import TableName
from engine.replication.replica.context import Broadcast


class NameLocks:
    """A lock per name, made when it is needed. All are taken in the same order, databases first, so that
    nobody waits in a circle."""

    def __init__(self) -> None:
        self._locks: dict[TableName, tuple[asyncio.Lock, int]] = {}
        self._inside: Counter[str] = Counter()
        """By database, how many hold names of it."""
        self._whole: set[str] = set()
        """Databases that are held."""
        self._let_go = Broadcast()

    @asynccontextmanager
    async def hold(self, names: Iterable[TableName]) -> AsyncIterator[None]:
        """Hold all of them. Whoever holds a name may take others of its database: a database that is waited
        for keeps nobody out."""
        names = set(names)
        async with AsyncExitStack() as stack:
            for database in sorted({name.database for name in names}):
                await stack.enter_async_context(self._one_inside(database))
            for name in sorted(names):
                await stack.enter_async_context(self._one(name))
            yield

    @asynccontextmanager
    async def hold_databases(self, databases: Iterable[str]) -> AsyncIterator[None]:
        """Hold all names of them, also those that nobody knows yet; the holder takes none by itself."""
        async with AsyncExitStack() as stack:
            for database in sorted(set(databases)):
                await stack.enter_async_context(self._all_of(database))
            yield

    @asynccontextmanager
    async def _one_inside(self, database: str) -> AsyncIterator[None]:
        while database in self._whole:
            await self._let_go.wait()
        self._inside[database] += 1
        try:
            yield
        finally:
            self._inside[database] -= 1
            if not self._inside[database]:
                del self._inside[database]
                self._let_go.announce()

    @asynccontextmanager
    async def _all_of(self, database: str) -> AsyncIterator[None]:
        while database in self._whole or database in self._inside:
            await self._let_go.wait()
        self._whole.add(database)
        try:
            yield
        finally:
            self._whole.discard(database)
            self._let_go.announce()

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
