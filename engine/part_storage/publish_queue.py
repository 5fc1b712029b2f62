"""Changes of what readers of a table see, one statement for all that wait.

To publish a part costs the same for one and for ten: whoever comes while another change is being made is done
together with all who wait. Where the change of several fails, each is made alone: one of them is to blame.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from engine.errors import OnclusterError
from engine.part_storage.publishing import Change

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Waiting:
    change: Change
    done: asyncio.Future[None]


class PublishQueue:
    """Of one table. `publish_at_once` makes changes while `changing` is held; `name` is the table's."""

    def __init__(
        self,
        publish_at_once: Callable[[Sequence[Change]], Awaitable[None]],
        changing: asyncio.Lock,
        *,
        name: Callable[[], str],
    ) -> None:
        self._publish_at_once = publish_at_once
        self._changing = changing
        self._name = name
        self._waiting: list[_Waiting] = []
        self._working: asyncio.Task[None] | None = None

    async def publish(self, change: Change) -> None:
        """Return when readers see it. A caller that is cancelled takes it back, or waits if it is being made.
        Raises what `publish_at_once` raises."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(change, loop.create_future())
        self._waiting.append(waiting)
        if self._working is None or self._working.done():
            self._working = loop.create_task(self._work())
        try:
            await asyncio.shield(waiting.done)
        except asyncio.CancelledError:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            else:
                await asyncio.wait([waiting.done])
                waiting.done.exception()  # seen: the caller is gone
            raise

    async def close(self) -> None:
        """Wait for what is under way."""
        if self._working is not None:
            await asyncio.wait([self._working])

    async def _work(self) -> None:
        while self._waiting:
            async with self._changing:
                batch, self._waiting = self._waiting, []
                if batch:
                    await self._make(batch)

    async def _make(self, batch: Sequence[_Waiting]) -> None:
        try:
            await self._publish_at_once([waiting.change for waiting in batch])
        except (OnclusterError, OSError) as error:
            await self._failed(batch, error)
        except Exception as error:  # nobody else would tell those who wait
            log.exception("part_storage.defect table=%s", self._name())
            await self._failed(batch, error)
        else:
            for waiting in batch:
                waiting.done.set_result(None)

    async def _failed(self, batch: Sequence[_Waiting], error: Exception) -> None:
        if len(batch) == 1:
            batch[0].done.set_exception(error)
            return
        for waiting in batch:
            await self._make([waiting])
