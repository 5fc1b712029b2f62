"""`/replicas_status`: whether this node's replicas are up to date, for load balancers.

`Ok.` unless a table's delay has reached `min_absolute_delay_to_close` (0 is off), or its delay against the
best active replica `min_relative_delay_to_close`; then a line per such table.

Source: ClickHouse's ReplicasStatusHandler.
"""

from __future__ import annotations

import asyncio

from engine.errors import OnclusterError
from engine.node.replicated.running.runtime import ReplicatedTables
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.queue.view import absolute_delay_s, delays_s

_KEEPER_WAIT_S = 5.0


async def replicas_status(tables: ReplicatedTables) -> str:
    """Empty if all is well; else the delayed tables, one a line, with their delays in seconds."""
    lines = await asyncio.gather(*(_problem(table.ctx) for table in tables.all()))
    return "".join(f"{line}\n" for line in lines if line)


async def known_delays_s(ctx: ReplicaContext) -> tuple[float, float]:
    """(absolute delay, relative delay), as far as Keeper says so within five seconds: without it nobody knows
    how far the others are."""
    try:
        async with asyncio.timeout(_KEEPER_WAIT_S):
            return await delays_s(ctx)
    except (OnclusterError, TimeoutError):
        return absolute_delay_s(ctx), 0.0


async def _problem(ctx: ReplicaContext) -> str:
    absolute_s, relative_s = await known_delays_s(ctx)
    settings = ctx.settings
    is_late = bool(
        settings.min_absolute_delay_to_close and absolute_s >= settings.min_absolute_delay_to_close
    ) or bool(settings.min_relative_delay_to_close and relative_s >= settings.min_relative_delay_to_close)
    if not is_late:
        return ""
    return f"{ctx.name}:\tAbsolute delay: {int(absolute_s)}. Relative delay: {int(relative_s)}."
