"""Waiting for a node to appear, change or go, on watches.

On ConnectionLoss or OperationTimeout the caller calls again; on SessionExpired it does so on a new session.
Nothing was changed, and what happened in between is seen at the start of the next call: each of these looks
before it waits, and its watch is armed by the very read that looked.
"""

from __future__ import annotations

import asyncio

from engine.errors import NoNode, SessionExpired
from engine.keeper.base import EventType, Keeper, Stat, WatchEvent


class Signal:
    """A watch callback to wait on: `await signal.wait()` returns the event, and raises SessionExpired at the
    end of the session."""

    def __init__(self) -> None:
        self._future: asyncio.Future[WatchEvent] = asyncio.get_running_loop().create_future()

    def __call__(self, event: WatchEvent) -> None:
        if not self._future.done():
            self._future.set_result(event)

    @property
    def is_set(self) -> bool:
        """Whether the watch has fired, or the session is over."""
        return self._future.done()

    async def wait(self) -> WatchEvent:
        event = await asyncio.shield(self._future)
        if event.type is EventType.SESSION:
            raise SessionExpired("The session ended while waiting", hint=f"Waited at {event.path}.")
        return event


async def wait_until_changed(keeper: Keeper, path: str, seen: Stat | None) -> Stat | None:
    """Wait until the node differs from what `seen` says (None: missing): made, removed, or its value set."""
    while True:
        signal = Signal()
        stat = await keeper.exists(path, watch=signal)
        if (stat is None) != (seen is None) or (stat and seen and stat.mzxid != seen.mzxid):
            return stat
        await signal.wait()


async def wait_until_exists(keeper: Keeper, path: str) -> Stat:
    """Wait for the node to be made; returns at once if it is there."""
    while True:
        signal = Signal()
        stat = await keeper.exists(path, watch=signal)
        if stat is not None:
            return stat
        await signal.wait()


async def wait_until_gone(keeper: Keeper, path: str) -> None:
    """Wait for the node to be removed; returns at once if it is missing.

    The watch is armed by `get`, which leaves none behind on a missing node.
    """
    while True:
        signal = Signal()
        try:
            await keeper.get(path, watch=signal)
        except NoNode:
            return
        await signal.wait()
