"""Steps that a cancelled command must not leave half done.

A query can be cancelled at any await, also between sending a transaction and hearing of it. Whoever has parts
staged for it must neither throw them away then nor forget to publish them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_running: set[asyncio.Task[Any]] = set()
"""asyncio itself holds tasks only weakly."""


async def uninterrupted(steps: Coroutine[Any, Any, T]) -> T:
    """Run `steps` to their end, even if the caller is cancelled, who then does not learn the result.

    They have to end by themselves: what is waited for without a limit belongs outside.
    """
    task = asyncio.create_task(steps)
    _running.add(task)
    task.add_done_callback(_end)
    return await asyncio.shield(task)


def _end(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled():
        task.exception()  # nobody may be there any more to look at it
