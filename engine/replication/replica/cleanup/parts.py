"""Nodes of `parts` that another part of this replica covers: what a crash in the middle of a merge leaves.
And staged copies of such parts: what a commit that failed leaves when a covering part comes first.

Safety argument. A node goes only if a part that contains it is in `parts`, too, and is active here, and if
the covered part itself is neither shown to readers, nor in flight, nor being made. The transaction checks
that the covering node still stands. A crash leaves some of them for the next round.

It never removes data that nothing active covers, and never the only node that stands for some rows.

Source: ClickHouse's ReplicatedMergeTree (clearOldPartsAndRemoveFromZK).
"""

from __future__ import annotations

import logging

from engine.errors import MultiFailed, NoNode
from engine.keeper.base import Check, Op, Remove
from engine.keeper.recipes import MULTI_BATCH_SIZE
from engine.replication.part_name import PartName
from engine.replication.part_set import ActivePartSet, PartsIntersect
from engine.replication.replica.context import ReplicaContext

log = logging.getLogger(__name__)


async def clean_parts(ctx: ReplicaContext) -> int:
    """Remove covered nodes; returns how many. Raises UnknownOutcome; repeatable."""
    keeper = ctx.session()
    for name in sorted(ctx.store.staged):
        is_free = name not in ctx.in_flight and not ctx.queue.is_in_production(name)
        if is_free and any(part != name and part.contains(name) for part in ctx.store.active):
            await ctx.store.discard(name)
    listed = [PartName.try_parse(name) for name in (await keeper.children(ctx.me.parts)).names]
    names = [name for name in listed if name is not None]
    try:
        outermost = ActivePartSet(names)
    except PartsIntersect as error:
        log.error("replication.parts_intersect table=%s error=%s", ctx.name, error)
        return 0
    active, staged = ctx.store.active, ctx.store.staged
    covered = [
        (name, holder)
        for name in names
        if (holder := outermost.get_containing(name)) is not None
        and holder != name
        and holder in active
        and name not in active
        and name not in staged
        and name not in ctx.in_flight
        and not ctx.queue.is_in_production(name)
    ]
    removed = 0
    for start in range(0, len(covered), MULTI_BATCH_SIZE // 2):
        batch = covered[start : start + MULTI_BATCH_SIZE // 2]
        ops: list[Op] = [Remove(ctx.me.part(name)) for name, _ in batch]
        ops += [Check(ctx.me.part(holder)) for holder in sorted({holder for _, holder in batch})]
        try:
            await keeper.multi(ops)
        except MultiFailed as failed:
            if isinstance(failed.error, NoNode):
                break  # something changed: next time
            raise
        removed += len(batch)
    if removed:
        log.info("replication.parts_cleaned table=%s removed=%d", ctx.name, removed)
    return removed
