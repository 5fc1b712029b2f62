"""Transfers of parts that are under way to a replica. What is dropped is not waited for, and SYSTEM STOP
FETCHES ends them.

Safety argument. A transfer that is given up leaves nothing (see `PartFetcher`), and whoever had it under way
is told that the part is unavailable, as when its connection breaks. Parts that are staged already are not
touched.

Source: ClickHouse cancels fetches of a partition that is dropped, and all when they are stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from engine.replication.fetching import PartUnavailable
from engine.replication.part_name import PartName
from engine.replication.part_store import Part


class Fetches:
    """Of one replica."""

    def __init__(self) -> None:
        self._under_way: dict[asyncio.Task[Part], PartName] = {}
        self._dropped: list[PartName] = []
        self._stopped: set[asyncio.Task[Part]] = set()

    async def of(self, part: PartName, transfer: Coroutine[Any, Any, Part]) -> Part:
        """The result of `transfer`, which brings `part`. Raises what it raises, and PartUnavailable when the
        part is dropped meanwhile, or fetches are stopped."""
        if self._is_dropped(part):
            transfer.close()
            raise _dropped(part)
        task = asyncio.ensure_future(transfer)
        self._under_way[task] = part
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is None or caller.cancelling():
                raise
            if self._is_dropped(part):
                raise _dropped(part) from None
            if task in self._stopped:
                raise PartUnavailable(f"Fetching of part {part} was cancelled") from None
            raise
        finally:
            del self._under_way[task]
            self._stopped.discard(task)

    def stop(self) -> None:
        """End all that are under way."""
        for task in self._under_way:
            self._stopped.add(task)
            task.cancel()

    @contextmanager
    def given_up_inside(self, span: PartName) -> Iterator[None]:
        """Nothing inside `span` is on its way any more, nor begins to be."""
        self._dropped.append(span)
        for task, part in self._under_way.items():
            if span.contains(part):
                task.cancel()
        try:
            yield
        finally:
            self._dropped.remove(span)

    def _is_dropped(self, part: PartName) -> bool:
        return any(span.contains(part) for span in self._dropped)


def _dropped(part: PartName) -> PartUnavailable:
    return PartUnavailable(f"Part {part} is not fetched any more: it is dropped")
