"""How many bytes of parts a table may send and fetch in a second.

Source: ClickHouse's MergeTreeSettings, max_replicated_fetches_network_bandwidth and
max_replicated_sends_network_bandwidth.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from engine.env import Env
from engine.replication.fetching import PartReceiver
from engine.replication.part_header import PartHeader
from engine.replication.part_name import PartName
from engine.replication.part_store import IncomingPart, Part, PartFile


class Bandwidth:
    """Shared by all transfers of a table in one direction. `limit` tells the bytes per second at any time, 0
    for as many as there are."""

    def __init__(self, env: Env, limit: Callable[[], int]) -> None:
        self._env = env
        self._limit = limit
        self._used_until_s = 0.0

    async def pace(self, content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same bytes, each when there is bandwidth for it. In pieces of a second at most, so that a slow
        transfer is not taken for one that stands still."""
        async for piece in content:
            at = 0
            while at < len(piece):
                limit = self._limit()
                size = min(limit, len(piece) - at) if limit else len(piece) - at
                await self._have(size, limit)
                yield piece if size == len(piece) else piece[at : at + size]
                at += size

    async def _have(self, size: int, limit: int) -> None:
        if not limit:
            return
        now_s = self._env.monotonic_s()
        begins_s = max(now_s, self._used_until_s)
        self._used_until_s = begins_s + size / limit
        if begins_s > now_s:
            await self._env.sleep(begins_s - now_s)


class PacedReceiver:
    """A PartReceiver that takes no more bytes than the bandwidth has."""

    def __init__(self, receiver: PartReceiver, bandwidth: Bandwidth) -> None:
        self._receiver = receiver
        self._bandwidth = bandwidth

    @asynccontextmanager
    async def receive(self, name: PartName) -> AsyncIterator[IncomingPart]:
        async with self._receiver.receive(name) as incoming:
            yield _PacedPart(incoming, self._bandwidth)


class _PacedPart:
    def __init__(self, incoming: IncomingPart, bandwidth: Bandwidth) -> None:
        self._incoming = incoming
        self._bandwidth = bandwidth

    def have_room(self, size_bytes: int) -> None:
        self._incoming.have_room(size_bytes)

    async def write(self, file: PartFile, content: AsyncIterator[bytes]) -> None:
        await self._incoming.write(file, self._bandwidth.pace(content))

    async def finish(self, expected: PartHeader | None) -> Part:
        return await self._incoming.finish(expected)
