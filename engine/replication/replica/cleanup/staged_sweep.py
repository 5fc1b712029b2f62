"""Settles staged parts that nobody waits for any more: what a cancelled operation left in doubt.

Safety argument. A part is left over if no operation has it in flight, no entry of the queue makes it, and it
has been so for `LEFT_OVER_S` without a break. Whatever the operation sent to Keeper is decided by then. After
a sync, and with the whole log copied, so that no entry is on its way that will show the part together with
what it replaces:
1. Keeper has it in `parts/`: it was committed, and is published (or thrown away if something that readers see
   covers it);
2. Keeper does not have it: it never was, nobody was told of it, and it is thrown away.
A crash in between leaves it to the next start, which does the same. It never touches what readers see.
"""

from __future__ import annotations

import logging

from engine.keeper.recipes import try_remove
from engine.replication.part_name import PartName
from engine.replication.part_set import containing
from engine.replication.replica import commit_part, log_puller
from engine.replication.replica.background import keep_running
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.switches import Activity

log = logging.getLogger(__name__)

LEFT_OVER_S = 60.0
_PAUSE_S = 20.0


async def run(ctx: ReplicaContext) -> None:
    """Look now and then. Until cancelled."""
    since_s: dict[PartName, float] = {}

    async def step(ctx: ReplicaContext) -> None:
        await ctx.env.sleep(_PAUSE_S)
        now_s = ctx.env.monotonic_s()
        left = [part for part in sorted(ctx.store.staged) if _is_left_over(ctx, part)]
        for part in list(since_s):
            if part not in left:
                del since_s[part]
        for part in left:
            if now_s - since_s.setdefault(part, now_s) >= LEFT_OVER_S:
                await _settle(ctx, part)

    await keep_running(ctx, "settle staged parts", step)


def _is_left_over(ctx: ReplicaContext, part: PartName) -> bool:
    return (
        part not in ctx.in_flight
        and not ctx.queue.is_in_production(part)
        and ctx.queue.producer_of(part) is None
        and not ctx.queue.is_to_be_dropped(part)
    )


async def _settle(ctx: ReplicaContext, part: PartName) -> None:
    if ctx.switches.is_stopped(Activity.PULLING):
        return
    keeper = ctx.session()
    await keeper.sync(ctx.me.parts)
    await log_puller.pull(ctx)
    is_known = await keeper.exists(ctx.me.part(part)) is not None
    is_covered = containing(ctx.store.active, part) is not None
    if part not in ctx.store.staged or not _is_left_over(ctx, part):
        return
    log.info("replica.staged_settled table=%s part=%s is_known=%s", ctx.name, part, is_known)
    if not is_known:
        await ctx.store.discard(part)
        return
    if is_covered:
        await try_remove(keeper, ctx.me.part(part))
    else:
        ctx.queue.add_virtual(part)
    await commit_part.publish(ctx, [part])
