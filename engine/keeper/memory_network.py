"""The network between clients and the memory Keeper: two first-in-first-out wires per session, and
partitions."""

from __future__ import annotations

from collections.abc import Callable

from engine.env import Env
from engine.keeper.base import WatchEvent
from engine.keeper.faults import Direction
from engine.keeper.memory_session import MemorySession, Reply, Request


class Network:
    """Delays are ranges (least, most) in seconds; with (0, 0) a message takes one turn of the loop.

    `serve` is called for each request that arrives; whoever takes it off the session's wire finds them in
    order.
    """

    def __init__(
        self, env: Env, serve: Callable[[MemorySession], None], *, latency_s: tuple[float, float]
    ) -> None:
        self._env = env
        self._serve = serve
        self._latency_s = latency_s
        self._has_latency = latency_s[1] > 0
        self.partitions: dict[str, Direction] = {}

    def is_cut_off(self, client: str) -> bool:
        """Whether requests of this client do not get through."""
        return client in self.partitions and self.partitions[client] is not Direction.FROM_KEEPER

    def is_deaf(self, client: str) -> bool:
        """Whether replies to this client do not get through."""
        return client in self.partitions and self.partitions[client] is not Direction.TO_KEEPER

    def draw_s(self, range_s: tuple[float, float]) -> float:
        """A delay out of a range."""
        return self._env.rng.uniform(*range_s) if range_s[1] > 0 else 0.0

    def draw_latency_s(self) -> float:
        return self.draw_s(self._latency_s)

    def send(self, session: MemorySession, request: Request) -> None:
        """Put a request on the wire."""
        session.to_server.append(request)
        if self._has_latency:
            session.sent_until_s = max(session.sent_until_s, session.loop.time() + self.draw_latency_s())
            session.loop.call_at(session.sent_until_s, self._serve, session)
        else:
            session.loop.call_soon(self._serve, session)

    def deliver(self, session: MemorySession, message: Reply | WatchEvent) -> None:
        """Put a reply or an event on the wire."""
        session.to_client.append(message)
        now_s = session.loop.time()
        if self._has_latency:
            session.replied_until_s = max(session.replied_until_s, now_s + self.draw_latency_s())
        if session.replied_until_s > now_s:
            session.loop.call_at(session.replied_until_s, session.receive)
        else:
            session.loop.call_soon(session.receive)

    def flush(self, session: MemorySession) -> None:
        """After a partition: everything that was held arrives now."""
        for _ in session.to_server:
            session.loop.call_soon(self._serve, session)
        for _ in session.to_client:
            session.loop.call_soon(session.receive)
