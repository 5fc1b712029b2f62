"""Replicas that are asked one after the other, and the next one also when the one before says nothing.

A process that hangs, or a host that is cut off, takes connections and says nothing. Who waits for it to the
end before asking another waits ten seconds for every statement. So after a short silence the next replica is
asked too, and the first good answer counts, as with ClickHouse's hedged requests. A question changes nothing,
so one too many does no harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from engine.distributed.peers import Peer
from engine.errors import OnclusterError


class AskingInTurn:
    """`ask` raises OnclusterError. `silence_s` says how long a replica may say nothing before the next one is
    asked beside it; None: for as long as it likes."""

    def __init__(
        self,
        order: Sequence[Peer],
        ask: Callable[[Peer], Awaitable[int]],
        *,
        silence_s: Callable[[Peer], float | None],
    ) -> None:
        self._left = list(order)
        self._ask = ask
        self._silence_s = silence_s
        self._running: dict[asyncio.Task[int | OnclusterError], Peer] = {}
        self.silent: set[Peer] = set()
        """Those that have been passed over and have said nothing yet."""

    async def answers(self) -> AsyncGenerator[tuple[Peer, int | OnclusterError]]:
        """In the order in which they come. Close it to ask nobody any more."""
        try:
            while self._left or self._running:
                last = self._next() if self._left else None
                limit_s = self._silence_s(last) if last is not None and self._left else None
                done, _ = await asyncio.wait(
                    self._running, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED
                )
                if not done and last is not None:
                    self.silent.add(last)
                for task in done:
                    peer = self._running.pop(task)
                    self.silent.discard(peer)
                    yield peer, task.result()
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    def _next(self) -> Peer:
        peer = self._left.pop(0)
        self._running[asyncio.create_task(self._answer(peer))] = peer
        return peer

    async def _answer(self, peer: Peer) -> int | OnclusterError:
        try:
            return await self._ask(peer)
        except OnclusterError as error:
            return error
