"""What other nodes do for a statement ends when that is killed, or when nobody waits for it any more.

chDB waits for another node's answer, and no KILL wakes it. The other node notices that the connection is gone
when it writes, which an aggregation does at its very end. So it is told: it kills what it does for the
statement, the waiting ends with that error, and the statement with it.

The request may be on its way while the other node is told, so it is told more than once, and as long as the
statement does not end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager

from engine.distributed.peers import Peer
from engine.errors import OnclusterError
from engine.node.distributed.peers.peer_health import PeerHealth
from engine.node.distributed.reading.failover import Failover, first_line
from engine.node.statements.reads_key import kill_all_of

log = logging.getLogger(__name__)

_PAUSES_S = (0.0, 0.5, 2.0)
_LATER_PAUSE_S = 5.0
"""For as long as the statement goes on."""
_LOOK_EVERY_S = 0.2


class RunningReads:
    """One for the whole node."""

    def __init__(self, health: PeerHealth) -> None:
        self._health = health
        self._running: dict[str, set[Failover]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @contextmanager
    def running(self, failover: Failover) -> Iterator[None]:
        """In the block the statement runs."""
        query_id = failover.asked.query_id
        self._running.setdefault(query_id, set()).add(failover)
        try:
            yield
        finally:
            self._running[query_id].discard(failover)
            if not self._running[query_id]:
                del self._running[query_id]

    @asynccontextmanager
    async def following_kills(self) -> AsyncIterator[None]:
        """In the block a KILL runs, which may wait for the statements that it kills."""
        task = asyncio.create_task(self._follow())
        try:
            yield
            await self._end_killed()
        finally:
            task.cancel()

    async def _follow(self) -> None:
        while True:
            await self._health.env.sleep(_LOOK_EVERY_S)
            await self._end_killed()

    async def _end_killed(self) -> None:
        if self._running:
            for query_id in await self._health.pool.killed():
                self.kill(query_id)

    def kill(self, query_id: str) -> None:
        """chDB was told to end the statements that run under this id."""
        for failover in self._running.get(query_id, set()):
            self.give_up(failover)

    def give_up(self, failover: Failover) -> None:
        """The statement is over before its time. May be called twice."""
        if not failover.is_killed and failover.filled_in.key:
            failover.is_killed = True
            task = asyncio.create_task(self._tell(failover))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _tell(self, failover: Failover) -> None:
        peers = {read.peer for read in failover.reads}
        for pause_s in _PAUSES_S:
            await self._health.env.sleep(pause_s)
            await self._tell_all(peers, failover.filled_in.key)
        while failover in self._running.get(failover.asked.query_id, ()):
            await self._health.env.sleep(_LATER_PAUSE_S)
            await self._tell_all(peers, failover.filled_in.key)

    async def _tell_all(self, peers: Collection[Peer], key: str) -> None:
        await asyncio.gather(*(self._tell_one(peer, key) for peer in peers))

    async def _tell_one(self, peer: Peer, key: str) -> None:
        try:
            await self._health.client(peer).query_text(kill_all_of(key))
        except OnclusterError as error:
            log.info("distributed.not_ended replica=%s key=%s error=%s", peer.name, key, first_line(error))
