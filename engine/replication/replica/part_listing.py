"""The names of a replica's parts in Keeper, one listing for all who want to know at the same time.

A listing of thousands of names costs more than what each of many entries that drop something does with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from engine.keeper.base import Keeper
from engine.replication.part_name import PartName


class PartListing:
    """Of one replica: `path` is its `parts`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._reading = asyncio.Lock()
        self._waiting: tuple[Keeper, asyncio.Task[Sequence[PartName]]] | None = None
        """The listing that is to begin next, with its session."""

    async def get(self, keeper: Keeper) -> Sequence[PartName]:
        """Read after this call began. Raises what Keeper says."""
        if self._waiting is None or self._waiting[0] is not keeper:
            self._waiting = (keeper, asyncio.create_task(self._read(keeper)))
            self._waiting[1].add_done_callback(_seen)
        return await asyncio.shield(self._waiting[1])

    async def _read(self, keeper: Keeper) -> Sequence[PartName]:
        async with self._reading:
            if self._waiting is not None and self._waiting[0] is keeper:
                self._waiting = None
            names = (await keeper.children(self._path)).names
        return [part for name in names if (part := PartName.try_parse(name)) is not None]


def _seen(task: asyncio.Task[Sequence[PartName]]) -> None:
    """Perhaps nobody waits for its error any more."""
    if not task.cancelled():
        task.exception()
