"""Who inserts into a Distributed table, and who has to be alone with it.

INSERTs share a table; what takes it away, or changes the names of its columns, waits until those that are
under way have ended, and holds up new ones. So no INSERT puts rows into the spool of a table that is gone,
which nobody would send.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID

from engine.errors import Code, SqlError


@dataclass(slots=True, eq=False)
class _Gate:
    users: int = 0
    is_closed: bool = False
    waiting: int = 0
    """Those who hold on to this object, though they do not insert."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class TableGates:
    """One gate for each table's UUID, made when it is needed."""

    def __init__(self) -> None:
        self._gates: dict[UUID, _Gate] = {}

    def enter(self, uuid: UUID) -> bool:
        """Join those who insert; False, without doing so, while somebody is or waits to be alone."""
        gate = self._gates.setdefault(uuid, _Gate())
        if gate.is_closed:
            return False
        gate.users += 1
        return True

    def leave(self, uuid: UUID) -> None:
        """Of one who entered."""
        gate = self._gates[uuid]
        gate.users -= 1
        self._changed(uuid, gate)

    async def opened(self, uuid: UUID) -> None:
        """Wait until nobody is alone with the table any more."""
        gate = self._gates.get(uuid)
        if gate is None:
            return
        gate.waiting += 1
        try:
            while gate.is_closed:
                await gate.changed.wait()
        finally:
            gate.waiting -= 1
            self._changed(uuid, gate)

    @asynccontextmanager
    async def alone(self, uuid: UUID, *, timeout_s: float) -> AsyncIterator[None]:
        """No INSERT is under way inside, and none begins. Raises SqlError 473 when one does not end."""
        gate = self._gates.setdefault(uuid, _Gate())
        gate.waiting += 1
        is_mine = False
        try:
            try:
                async with asyncio.timeout(timeout_s):
                    while gate.is_closed:
                        await gate.changed.wait()
                    gate.is_closed = is_mine = True
                    while gate.users:
                        await gate.changed.wait()
            except TimeoutError:
                raise SqlError(
                    Code.DEADLOCK_AVOIDED,
                    f"An INSERT into the table has not ended within {timeout_s:g} seconds.",
                    hint="Nothing was changed. Wait for it, or end it: see system.processes.",
                ) from None
            yield
        finally:
            gate.waiting -= 1
            if is_mine:
                gate.is_closed = False
            self._changed(uuid, gate)

    def _changed(self, uuid: UUID, gate: _Gate) -> None:
        gate.changed.set()
        gate.changed = asyncio.Event()
        if not gate.users and not gate.waiting and self._gates.get(uuid) is gate:
            del self._gates[uuid]
