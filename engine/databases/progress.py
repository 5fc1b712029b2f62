"""How far one replica of a Replicated database has come with the log.

The worker moves it; clients' statements and SYNC look at it and wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from engine.databases.cluster import DatabaseCluster
from engine.keeper.base import Keeper

_KEEPER_WAIT_S = 10.0
_TICK_S = 1.0


class Progress:
    """Of one process. `announce` behind each change that somebody may wait for."""

    def __init__(self, known: Mapping[str, str]) -> None:
        """`known`: the definitions that were here when the process began; none of a new database."""
        self.cluster = DatabaseCluster()
        self.readonly_reason = "it has not been started"
        """Empty: statements are taken."""
        self._waits_for_keeper = True
        """Read-only until it has a session, and for no other reason."""
        self.pointer = 0
        """The last entry that this replica is done with, whatever became of it."""
        self.current = 0
        """The entry that the worker has come to."""
        self.active_in: Keeper | None = None
        """The session that has this replica's `active`."""
        self.known = known
        """Definitions at this process's start, or those whose digest it has written last."""
        self.own: dict[int, asyncio.Event] = {}
        """Entries that a client's task carries out; set when it has ended."""
        self.definitions = asyncio.Lock()
        """Held while definitions change together with their digest in Keeper."""
        self.numbers = asyncio.Lock()
        """Held while an entry gets its number."""
        self.stopping = asyncio.Event()
        self.restarts = False
        """The session's beginning is to be done again: definitions are compared with Keeper's."""
        self._moved = asyncio.Event()
        self._wake = asyncio.Event()

    @property
    def is_stopping(self) -> bool:
        return self.stopping.is_set()

    @property
    def is_readonly(self) -> bool:
        return bool(self.readonly_reason)

    def note_down(self, reason: str) -> None:
        """Statements are refused from now on."""
        if not self.is_stopping:
            self.readonly_reason = reason
            self._waits_for_keeper = False
        self.announce()

    def note_keeper_away(self, why: str) -> None:
        """Statements are refused unless it comes back soon (`wait_for_keeper`)."""
        self.note_down(f"it cannot connect to ZooKeeper: {why}")
        self._waits_for_keeper = True

    def be_writable(self) -> None:
        self.note_down("")

    def stop(self) -> None:
        self.stopping.set()
        self.readonly_reason = "it is being stopped"
        self._waits_for_keeper = False
        self.wake()
        self.announce()

    # -- those that wait for the worker ----------------------------------------------------------------------

    def announce(self) -> None:
        """Whoever waits for the worker looks again."""
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def moves(self, *, within_s: float) -> None:
        """Until something is announced, a second at most: what is looked at may also change in Keeper."""
        moved = self._moved
        try:
            async with asyncio.timeout(min(_TICK_S, within_s)):
                await moved.wait()
        except TimeoutError:
            pass

    async def wait_for_keeper(self) -> None:
        """A little. Keeper may change its leader, and whoever has just created the database has not waited
        for its session."""
        try:
            async with asyncio.timeout(_KEEPER_WAIT_S):
                while self._waits_for_keeper:
                    await self._moved.wait()
        except TimeoutError:
            pass

    # -- the worker, which waits for work --------------------------------------------------------------------

    def wake(self) -> None:
        """The worker does not wait any longer, whatever for."""
        self._wake.set()

    def restart(self) -> None:
        """What is here may not be what Keeper says: compare, now."""
        self.restarts = True
        self.wake()

    async def woken(self) -> None:
        await self._wake.wait()

    def sleep_again(self) -> None:
        self._wake.clear()

    async def nap(self, pause_s: float) -> None:
        """Until `wake`, or `pause_s` seconds."""
        try:
            async with asyncio.timeout(pause_s):
                await self.woken()
        except TimeoutError:
            pass
        self.sleep_again()
