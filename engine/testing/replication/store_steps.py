"""How a part store in memory goes about its disk: step by step, where each may be the last or go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

from engine.env import Env
from engine.replication.columns import Columns
from engine.replication.part_store import AlterPlan
from engine.replication.table_definition import TableDefinition
from engine.replication.table_metadata import TableMetadata
from engine.testing.replication.alter import planned
from engine.testing.replication.disk import StoreDisk
from engine.testing.replication.store_events import StoreFaults
from engine.testing.simulated_process import Process


class StoreSteps:
    """One process's way to its disk."""

    def __init__(self, disk: StoreDisk, env: Env, process: Process | None, faults: StoreFaults) -> None:
        self.disk = disk
        self.faults = faults
        self._env = env
        self._process = process

    async def _step(self) -> None:
        """Time passes; a kill or an error of the disk may fall here. What follows happens at one moment."""
        await self._pass_time()
        self.faults.touch_disk()

    async def _pass_time(self) -> None:
        taken_s = self.faults.draw_write_s()
        await (self._env.sleep(taken_s) if taken_s > 0 else asyncio.sleep(0))
        await self._after()

    async def _pause(self) -> None:
        """In the receiver's task: a stopped sender keeps it waiting, and no gate of the sender ends it."""
        await asyncio.sleep(0)
        if self._process is not None:
            await self._process.while_it_runs()

    async def _after(self) -> None:
        if self._process is not None:
            await self._process.while_it_runs()
            self._process.gate()


class StoredDefinition(StoreSteps):
    """The table's definition, and what changes it."""

    async def definition(self) -> TableDefinition:
        return self.disk.definition

    async def plan_alter(self, commands: str, *, allowed: Collection[str] = ()) -> AlterPlan:
        return planned(self.disk.definition, commands)

    async def apply_alter(
        self,
        columns: Columns,
        metadata: TableMetadata,
        renames: Mapping[str, str],
        mutation: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        await self._step()
        self.disk.definition = replace(self.disk.definition, columns=columns, metadata=metadata)
        await self._after()

    async def apply_settings(self, changes: Mapping[str, str | None]) -> None:
        await self._step()
        settings = dict(self.disk.definition.settings)
        for name, value in changes.items():
            if value is None:
                settings.pop(name, None)
            else:
                settings[name] = value
        self.disk.definition = replace(self.disk.definition, settings=tuple(settings.items()))
        await self._after()

    async def apply_comment(self, comment: str) -> None:
        await self._step()
        self.disk.definition = replace(self.disk.definition, comment=comment)
        await self._after()
