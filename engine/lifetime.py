"""What is started and stopped, as an async context; and how work in the background goes on and ends.

async with TcpProxy("127.0.0.1", port) as link: ...
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from engine.env import Env
from engine.errors import OnclusterError

log = logging.getLogger(__name__)

T = TypeVar("T")


class Startable(ABC):
    """Entering starts it and leaving stops it. Who needs arguments for `start` calls the two by hand."""

    @abstractmethod
    async def start(self) -> None:
        """On failure nothing is left running."""

    @abstractmethod
    async def stop(self) -> None:
        """May be called twice."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def end_if_cancelled() -> None:
    """For a loop that goes on after errors. Raises CancelledError where a cancellation has become another
    error on its way: `asyncio.gather` raises what one of its awaitables raised at the moment at which all of
    them were cancelled."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def unless_set(event: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`; None when the event is set before, which cancels `work`."""
    working = asyncio.ensure_future(work)
    ending = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((working, ending), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, ending):
            task.cancel()
        await asyncio.gather(working, ending, return_exceptions=True)


async def until_done(step: Callable[[], Awaitable[None]], what: str, *, env: Env, pause_s: float) -> None:
    """Run `step`, which nobody waits for, until it ends without an error, with a pause after each; `what` is
    for the log. An error in the program is logged with its trace, and tried again like any other: nobody else
    would do it before the next start."""
    while True:
        try:
            await step()
            return
        except OnclusterError as error:
            end_if_cancelled()
            log.warning("background.again what=%r retry_in_s=%g error=%s", what, pause_s, error)
        except Exception:
            end_if_cancelled()
            log.exception("background.again what=%r retry_in_s=%g", what, pause_s)
        await env.sleep(pause_s)
