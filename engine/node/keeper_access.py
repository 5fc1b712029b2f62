"""The node's way to Keeper, which may be there or not."""

from __future__ import annotations

from typing import Protocol

from engine.keeper.base import Keeper


class KeeperAccess(Protocol):
    """Sessions for whoever serves a request."""

    async def get(self, *, timeout_s: float | None = None) -> Keeper:
        """A live session. Raises KeeperUnavailable if there is none in time."""
        ...
