"""Who waits for a statement that runs to its end, whether somebody is there or not."""

from __future__ import annotations

import asyncio
from typing import Any


class Audience:
    """When the end is reached, and nobody is there any more, nobody has to be told: ON CLUSTER waits for
    other hosts then, which may take for ever."""

    def __init__(self) -> None:
        self._is_there, self._is_carried_out = True, False
        self._task: asyncio.Task[Any] | None = None

    def waits_for(self, task: asyncio.Task[Any]) -> None:
        self._task = task

    def leaves(self) -> None:
        self._is_there = False
        self._end_if_for_nobody()

    def note_carried_out(self) -> None:
        self._is_carried_out = True
        self._end_if_for_nobody()

    def _end_if_for_nobody(self) -> None:
        if self._is_carried_out and not self._is_there and self._task is not None:
            self._task.cancel()
