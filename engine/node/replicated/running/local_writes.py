"""INSERTs that chDB carries out by names, the table's and those of its views' targets, and names that become
replicated tables'.

chDB looks a name up when it comes to the statement. What it found would be a replicated table if one got the
name between the decision that an INSERT is chDB's and that moment: its rows would be in chDB's table, on this
node only.

Safety argument. 1. Whoever gives a replicated table a name takes the name first: no INSERT of that name is
handed to chDB from then on. 2. It waits for those that were handed over before: chDB has not given the name
away yet, so they find what they were meant for, or nothing. 3. chDB gives the table its name, and the
registry of replicated tables has it. 4. The name is let go, and INSERTs that waited see what it means. One
that takes longer than `PATIENCE_S` is waited for no more: it is not acknowledged when the name is a
replicated table's at its end.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager

from engine.names import TableName
from engine.replication.replica.context import Broadcast

log = logging.getLogger(__name__)

PATIENCE_S = 15.0


class LocalWrites:
    """Of one node. Names are whole."""

    def __init__(self) -> None:
        self._under_way: Counter[TableName] = Counter()
        self._taken: dict[TableName, bool] = {}
        """Whether chDB may be giving the name away already."""
        self._changed = Broadcast()

    def is_taken(self, name: TableName) -> bool:
        """Whether it is becoming a replicated table's: nothing that writes to it is handed to chDB now."""
        return name in self._taken

    def is_given(self, name: TableName) -> bool:
        """Whether chDB may have given it to a replicated table while an INSERT was under way."""
        return self._taken.get(name, False)

    async def settled(self, name: TableName) -> None:
        """Wait until it is known what the name means."""
        while name in self._taken:
            await self._changed.wait()

    @contextmanager
    def under_way(self, *names: TableName) -> Iterator[None]:
        """An INSERT into these is chDB's in the block."""
        self._under_way.update(names)
        try:
            yield
        finally:
            self._under_way.subtract(names)
            if any(not self._under_way[name] for name in names):
                self._under_way = +self._under_way
                self._changed.announce()

    @asynccontextmanager
    async def taking(self, names: Iterable[TableName]) -> AsyncIterator[None]:
        """In the block chDB gives them to replicated tables. The caller holds the names (`NameLocks`)."""
        names = frozenset(names)
        self._taken |= dict.fromkeys(names, False)
        try:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    while names & self._under_way.keys():
                        await self._changed.wait()
            except TimeoutError:
                log.warning("replicated.insert_under_way names=%s", sorted(map(str, names)))
            self._taken |= dict.fromkeys(names, True)
            yield
        finally:
            for name in names:
                del self._taken[name]
            self._changed.announce()
