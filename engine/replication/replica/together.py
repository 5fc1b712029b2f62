"""Who comes while others are being served is served together with all who wait by then.

Nobody waits for others to come: the first of them is served alone and at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class _Waiting(Generic[T]):
    item: T
    is_served: bool | None = None
    """None until its turn has come."""


class Together(Generic[T]):
    """Items of one kind, in turns. There is no task behind it: one of those who wait does it for all."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._waiting: list[_Waiting[T]] = []

    async def serve(self, item: T, serve_all: Callable[[Sequence[T]], Awaitable[bool]]) -> bool:
        """Whether `serve_all` has served `item` among others. False: each of them is to see to itself, also
        where the one that did it was cancelled. Raises what `serve_all` raises, to one of them."""
        mine = _Waiting(item)
        self._waiting.append(mine)
        try:
            async with self._turn:
                if mine.is_served is None:
                    await self._serve(serve_all)
        finally:
            if mine in self._waiting:
                self._waiting.remove(mine)
        return bool(mine.is_served)

    async def _serve(self, serve_all: Callable[[Sequence[T]], Awaitable[bool]]) -> None:
        batch, self._waiting = self._waiting, []
        is_served = False
        try:
            is_served = await serve_all([each.item for each in batch])
        finally:
            for each in batch:
                each.is_served = is_served
