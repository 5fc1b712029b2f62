"""A merge or a mutation that is under way is given up when it is not wanted any more.

Safety argument. What it has made is thrown away before anybody was told of it; the entry stays in the queue,
and is executed anew when it may be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from engine.replication.part_name import PartName
from engine.replication.part_store import Part
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.execution.outcome import Postponed

_LOOK_S = 1.0
"""News that come while nobody waits for them are seen that late."""


async def make(
    ctx: ReplicaContext, result: PartName, work: Awaitable[Part], *, why_not: Callable[[], str]
) -> None:
    """Have `work` stage `result`. `why_not` is asked at the context's `mutation_news`, and says why it is to
    be given up, or nothing. Raises Postponed with that, when nothing is staged; and what `work` raises."""
    task = asyncio.ensure_future(work)
    news: asyncio.Future[None] | None = None
    try:
        while not task.done():
            if reason := why_not():
                await _stop(task)
                await ctx.store.discard(result)
                raise Postponed(reason)
            news = asyncio.ensure_future(ctx.mutation_news.wait())
            await asyncio.wait([task, news], timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            await _stop(news)
        task.result()
    finally:
        await _stop(task, *(() if news is None else (news,)))


async def _stop(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
