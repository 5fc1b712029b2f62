"""What of a simulated node of the DDL queue outlives its process: the record of its intents.

Each write passes the gates of its process (`engine.testing.simulated_process`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine.ddl.intents import Intent, IntentKey
from engine.ddl.status import ExecutionStatus
from engine.testing.simulated_process import GatedEnv, GatedKeeper, Process, gated_factory

__all__ = ["GatedEnv", "GatedKeeper", "IntentDisk", "ModelIntentStore", "Process", "gated_factory"]


@dataclass(slots=True)
class IntentDisk:
    """What a host's intent file holds. `unsynced` is what a power cut takes back, newest last."""

    rows: dict[IntentKey, Intent] = field(default_factory=dict)
    unsynced: list[tuple[IntentKey, Intent | None]] = field(default_factory=list)

    def put(self, key: IntentKey, row: Intent | None, *, is_forced: bool) -> None:
        if is_forced:
            self.unsynced.clear()
        else:
            self.unsynced.append((key, self.rows.get(key)))
        if row is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = row

    def cut_power(self) -> None:
        """Everything that was not forced to disk is as it was before."""
        for key, row in reversed(self.unsynced):
            if row is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = row
        self.unsynced.clear()


class ModelIntentStore:
    """One process's way to its `IntentDisk`; implements `IntentStore` and `BlockingIntentStore`."""

    def __init__(self, disk: IntentDisk, process: Process) -> None:
        self._disk = disk
        self._process = process
        self._soon: list[tuple[IntentKey, ExecutionStatus]] = []

    async def load(self, queue: str) -> Mapping[IntentKey, Intent]:
        self._process.gate()
        return {key: row for key, row in self._disk.rows.items() if key.queue == queue}

    async def begin(self, intent: Intent) -> None:
        await self._write(intent.key, replace(intent, status=None), is_forced=True)

    def begin_now(self, *intents: Intent, ended: Sequence[tuple[IntentKey, ExecutionStatus]] = ()) -> None:
        self._process.gate()
        self._soon += ended
        for intent in intents:
            self._put(intent.key, replace(intent, status=None), is_forced=True)
        self._process.gate()

    async def finish(self, key: IntentKey, status: ExecutionStatus) -> None:
        row = self._disk.rows.get(key)
        if row is not None:
            await self._write(key, replace(row, status=status), is_forced=False)

    def finish_soon(self, key: IntentKey, status: ExecutionStatus) -> None:
        """Written with the next write; the process's end takes along what was not."""
        self._soon.append((key, status))

    async def forget(self, keys: Iterable[IntentKey]) -> None:
        for key in keys:
            await self._write(key, None, is_forced=False)

    async def close(self) -> None:
        """Nothing is open."""

    async def _write(self, key: IntentKey, row: Intent | None, *, is_forced: bool) -> None:
        self._process.gate()
        await asyncio.sleep(0)
        self._process.gate()
        self._put(key, row, is_forced=is_forced)
        self._process.gate()

    def _put(self, key: IntentKey, row: Intent | None, *, is_forced: bool) -> None:
        for ended, status in self._soon:
            if ended in self._disk.rows:
                self._disk.put(ended, replace(self._disk.rows[ended], status=status), is_forced=False)
        self._soon.clear()
        self._disk.put(key, row, is_forced=is_forced)
