"""Scratch tables that are filled with a merge's sources before the merge may begin.

Who assigns a merge and waits for it needs several round trips to Keeper until it is in the queue; meanwhile
its table can be made. It is a short cut only: nothing is promised, whoever merges makes a table where there
is none, where it cannot be told that it has the structure that the table has now, or where making it failed.

A table belongs to whoever takes its `Prepared` out of the map, and that one drops it: the merge, or the end
of `holding`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from engine.part_storage.scratch_tables import Scratch, ScratchTables
from engine.part_storage.workers import Connection, Length, Workers
from engine.replication.part_name import PartName


@dataclass(frozen=True, slots=True)
class Filled:
    """`epoch` is that of the table's structure before `scratch` was made."""

    scratch: Scratch
    epoch: int


@dataclass(frozen=True, slots=True)
class _Prepared:
    sources: tuple[PartName, ...]
    making: asyncio.Task[Filled]


class PreparedMerges:
    """Of one table. `fill` is a step that makes a merge's scratch table."""

    def __init__(
        self,
        scratch: ScratchTables,
        workers: Workers,
        fill: Callable[[Connection, Sequence[PartName], PartName], Filled],
    ) -> None:
        self._scratch = scratch
        self._workers = workers
        self._fill = fill
        self._prepared: dict[PartName, _Prepared] = {}

    @asynccontextmanager
    async def holding(self, sources: Sequence[PartName], result: PartName) -> AsyncIterator[None]:
        """Begin to make the table; it is there for `take` until the end of the `with` block."""
        if result in self._prepared:
            yield
            return
        step = self._workers.run(  # of hundreds of parts it takes longer than a short step may
            lambda connection: self._fill(connection, sources, result), length=Length.LONG
        )
        prepared = _Prepared(tuple(sources), asyncio.create_task(step))
        self._prepared[result] = prepared
        try:
            yield
        finally:
            if self._prepared.get(result) is prepared:
                del self._prepared[result]
                await asyncio.shield(self._drop(prepared))

    async def take(self, sources: Sequence[PartName], result: PartName) -> Filled | None:
        """What was made for this merge, and is the caller's now."""
        prepared = self._prepared.get(result)
        if prepared is None or prepared.sources != tuple(sources):
            return None
        await asyncio.wait([prepared.making])
        if self._prepared.get(result) is not prepared:
            return None
        del self._prepared[result]
        return None if prepared.making.exception() else prepared.making.result()

    async def close(self) -> None:
        """Drop what nobody has taken."""
        prepared, self._prepared = list(self._prepared.values()), {}
        for each in prepared:
            await self._drop(each)

    async def _drop(self, prepared: _Prepared) -> None:
        await asyncio.wait([prepared.making])
        if prepared.making.exception() is None:
            scratch = prepared.making.result().scratch
            await self._workers.run(lambda connection: self._scratch.drop(connection, scratch))
