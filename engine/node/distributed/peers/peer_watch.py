"""Nodes that fall silent while statements read them, and an end to the waiting.

chDB waits for another node for as long as `receive_timeout` says, five minutes, and no KILL wakes it. So a
process that hangs, or a host that is cut off, holds every statement that was reading it, and with all their
turns taken the node answers no SELECT over Distributed tables at all. ClickHouse's hedged requests leave a
replica that sends nothing for two seconds.

Here a node that statements wait for is pinged, again and again. A ping is answered beside all work, so
silence does not mean that a statement takes long. Two in a row without any answer, and the connections on
which chDB waits for that node are shut down: its statements end with an error, and failover reads other
replicas.

1. Only statements that can begin anew, and have another replica to read, make the node watch. Another one
   that reads the same hung node at that time ends with an error, too.
2. Connections of the event loop (INSERTs, probes) are left alone; they have time limits of their own.
3. Two pings, because this node itself may have stood still: then the first one's time is over at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from engine.distributed.peers import Peer
from engine.env import Env
from engine.errors import OnclusterError
from engine.node.distributed.peers.shutting_down import shut_down_connections

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds: a watched node is pinged `every_s` and has `ping_s` for its answer, `pings` times in a row."""

    every_s: float = 2.0
    ping_s: float = 4.0
    pings: int = 2

    @property
    def round_s(self) -> float:
        """Until a node that is silent has been noticed."""
        return self.every_s + self.ping_s * self.pings


class Watching:
    """One statement's. `silent` are the nodes that fell silent meanwhile."""

    def __init__(self, watch: PeerWatch, peers: Iterable[Peer]) -> None:
        self._watch = watch
        self.peers = frozenset(peers)
        self.silent: set[Peer] = set()

    def end(self) -> None:
        """May be called twice."""
        self._watch.forget(self)


@dataclass(slots=True)
class _Watched:
    task: asyncio.Task[None]
    by: set[Watching] = field(default_factory=set)
    asking: set[asyncio.Task[object]] = field(default_factory=set)


class PeerWatch:
    """One for the whole node."""

    def __init__(
        self, env: Env, ping: Callable[[Peer], Awaitable[None]], failed: Callable[[Peer], None]
    ) -> None:
        """`ping` raises OnclusterError; with a TimeoutError as its cause it was silence."""
        self._env = env
        self._ping = ping
        self._failed = failed
        self._watched: dict[Peer, _Watched] = {}
        self._lingering: set[asyncio.Task[None]] = set()
        self.pace = Pace()

    async def close(self) -> None:
        watched, self._watched = self._watched, {}
        for one in watched.values():
            one.task.cancel()
        for task in self._lingering:
            task.cancel()
        await asyncio.gather(
            *(one.task for one in watched.values()), *self._lingering, return_exceptions=True
        )

    def begin(self, peers: Iterable[Peer]) -> Watching:
        """Watch these until that is ended."""
        watching = Watching(self, peers)
        for peer in watching.peers:
            if peer not in self._watched:
                self._watched[peer] = _Watched(asyncio.create_task(self._watch(peer)))
            self._watched[peer].by.add(watching)
        return watching

    def forget(self, watching: Watching) -> None:
        for peer in watching.peers:
            watched = self._watched.get(peer)
            if watched is None:
                continue
            watched.by.discard(watching)
            if not watched.by:
                del self._watched[peer]
                watched.task.cancel()

    def linger(self, peers: Iterable[Peer]) -> None:
        """Watch these for as long as it takes to notice that one is silent."""
        task = asyncio.create_task(self._linger(frozenset(peers)))
        self._lingering.add(task)
        task.add_done_callback(self._lingering.discard)

    async def _linger(self, peers: Iterable[Peer]) -> None:
        watching = self.begin(peers)
        try:
            await self._env.sleep(2 * self.pace.round_s)
        finally:
            watching.end()

    async def unless_silent(self, peer: Peer, asking: Awaitable[T]) -> T:
        """What another node is asked by this one itself. Raises TimeoutError when it falls silent."""
        watched = self._watched.get(peer)
        if watched is None:
            return await asking
        task = asyncio.ensure_future(asking)
        watched.asking.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if task not in watched.asking:
                raise TimeoutError from None
            raise
        finally:
            watched.asking.discard(task)
            task.cancel()

    async def while_it_answers(self, peer: Peer, asking: Awaitable[T]) -> T:
        """What another node is asked that may have many statements to run before. Raises TimeoutError when it
        falls silent, of which nobody else is told."""
        task = asyncio.ensure_future(asking)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=self.pace.every_s)
                if not task.done() and await self._is_silent(peer) and not task.done():
                    raise TimeoutError
            return await task
        finally:
            task.cancel()

    async def _watch(self, peer: Peer) -> None:
        while True:
            await self._env.sleep(self.pace.every_s)
            if await self._is_silent(peer):
                watched = self._watched[peer]
                for watching in watched.by:
                    watching.silent.add(peer)
                self._failed(peer)
                asking = list(watched.asking)
                watched.asking.clear()
                for task in asking:
                    task.cancel()
                ended = await shut_down_connections(peer.host, peer.http_port)
                log.warning("distributed.silent replica=%s connections=%d", peer.name, ended)

    async def _is_silent(self, peer: Peer) -> bool:
        for _ in range(self.pace.pings):
            try:
                async with asyncio.timeout(self.pace.ping_s):
                    await self._ping(peer)
            except TimeoutError:
                continue
            except OnclusterError as error:
                if isinstance(error.__cause__, TimeoutError):
                    continue
            return False
        return True
