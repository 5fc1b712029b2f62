"""Tasks of this host in queue order, handed out so that statements of one object never overtake each
other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from engine.ddl.task import Footprint, Task, footprint_of
from engine.names import entry_number


@dataclass(slots=True)
class _Slot:
    task: Task
    footprint: Footprint
    is_taken: bool = False


class Backlog:
    """Waiting and running tasks. With one lane it is a plain queue."""

    def __init__(self, *, lanes: int) -> None:
        self._lanes = lanes
        self._slots: list[_Slot] = []
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, name: object) -> bool:
        return any(slot.task.name == name for slot in self._slots)

    def names(self) -> frozenset[str]:
        return frozenset(slot.task.name for slot in self._slots)

    @property
    def latest(self) -> int:
        """The number of the latest entry in it; -1 if it is empty."""
        return max((entry_number(slot.task.name) or 0 for slot in self._slots), default=-1)

    def add(self, task: Task) -> None:
        """Tasks come in queue order."""
        footprint = Footprint(is_barrier=True) if self._lanes == 1 else footprint_of(task)
        self._slots.append(_Slot(task, footprint))
        self._changed.set()

    def try_take(self) -> Task | None:
        """The first waiting task that conflicts with nothing before it."""
        for at, slot in enumerate(self._slots):
            if slot.is_taken:
                continue
            if not any(slot.footprint.conflicts_with(earlier.footprint) for earlier in self._slots[:at]):
                slot.is_taken = True
                return slot.task
            if slot.footprint.is_barrier:
                return None
        return None

    def following(self, most: int) -> list[Task]:
        """The tasks that will be taken next, in order, as far as that is certain: with one lane it is."""
        if self._lanes > 1:
            return []
        return [slot.task for slot in self._slots[: most + 1] if not slot.is_taken][:most]

    async def take(self) -> Task:
        """Waits for one."""
        while True:
            task = self.try_take()
            if task is not None:
                return task
            self._changed.clear()
            await self._changed.wait()

    def done(self, *tasks: Task) -> None:
        """These have run here; what they conflict with may go on."""
        over = set(map(id, tasks))
        self._slots = [slot for slot in self._slots if id(slot.task) not in over]
        self._changed.set()

    async def wait_until_shorter_than(self, length: int) -> None:
        while len(self._slots) >= length:
            self._changed.clear()
            await self._changed.wait()
