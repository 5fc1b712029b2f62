"""Whether a replica has all rows of a range, as they will stay, which MOVE PARTITION takes away from all."""

from __future__ import annotations

import asyncio

from engine.errors import Code, SqlError
from engine.replication.log_actions import MergeParts
from engine.replication.part_name import PartName
from engine.replication.replica import log_puller
from engine.replication.replica.context import ReplicaContext

_SETTLING_S = 120.0
_RECHECK_S = 1.0


async def until_whole(ctx: ReplicaContext, span: PartName) -> None:
    """Until the rows of every part inside `span` that there will be are here, as they will stay.

    Raises SqlError 384 when that takes too long."""
    give_up_at_s = ctx.env.monotonic_s() + _SETTLING_S
    await log_puller.pull(ctx)
    while missing := _first_lacking(ctx, span):
        if ctx.env.monotonic_s() >= give_up_at_s:
            raise SqlError(
                Code.PART_IS_TEMPORARILY_LOCKED,
                f"Part {missing} of {ctx.name} is not here yet, or a mutation of it is not done",
                hint="See system.replication_queue and system.mutations.",
            )
        ctx.merge_wanted.set()
        try:
            async with asyncio.timeout(_RECHECK_S):
                await ctx.mutation_news.wait()
        except TimeoutError:
            pass


def _first_lacking(ctx: ReplicaContext, span: PartName) -> PartName | None:
    for part in ctx.queue.virtual_parts.intersecting(span):
        if ctx.queue.unreadable_mutations:  # it may be one of this part
            return part
        if lacking := _lacking_of(ctx, part):
            return lacking
    return None


def _lacking_of(ctx: ReplicaContext, part: PartName) -> PartName | None:
    """What of a part is not here, or has a mutation to come. Sources are as good as what a merge makes of
    them, unless somebody wants rows to go in it."""
    queue = ctx.queue
    if part.is_range or queue.target_version(part) is not None:
        return part
    if part in ctx.store.active:
        return None
    maker = queue.producer_of(part)
    match maker.entry.action if maker is not None else None:
        case MergeParts(sources=sources, deduplicate=False, cleanup=False):
            return next((lacking for each in sources if (lacking := _lacking_of(ctx, each))), None)
        case _:
            return part
