"""Parts without rows, which mutations, a TTL or the loss of a part leave: they are dropped, as by DROP PART.

They cost little, but stand in the way: made of nothing, they have no projections, and are never merged with
neighbours that have some.

Safety argument. Nothing is dropped but parts that readers see here, that Keeper says are this replica's, that
have no row, and that nothing was assigned to: the multi of the DROP_PART entries sets `log` with the version
at which that was so. Whatever makes a row appear under such a name would have to be assigned first. Two
replicas that drop the same part at once: one is refused. The ids of the blocks that were inserted go in the
same multi, as with every DROP PART: an insert of the same block must not be swallowed by what is gone, nor
wait for replicas that have it. A crash leaves entries that every replica executes, or nothing.

Source: ClickHouse's MergeTreeData::clearEmptyParts.
"""

from __future__ import annotations

import logging

from engine.errors import BadVersion, MultiFailed, NoNode
from engine.keeper.base import Op, SetData
from engine.keeper.recipes import MULTI_BATCH_SIZE, try_remove
from engine.replication.log_actions import DropRange, RangeFate
from engine.replication.log_entry import LogEntry
from engine.replication.replica.cleanup.blocks import removals_of_blocks
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.log_commit import commit_logged, log_op
from engine.replication.replica.merging.predicate import load_predicate
from engine.replication.replica.quorum import last_quorum_parts
from engine.replication.text import time_text

log = logging.getLogger(__name__)

_MAX_REMOVALS = 4000
"""Block ids that go into one multi; more would not fit into a request."""


async def drop_empty_parts(ctx: ReplicaContext) -> int:
    """Assign their dropping; returns of how many. Raises UnknownOutcome; repeatable."""
    if not ctx.settings.remove_empty_parts:
        return 0
    empty = sorted(name for name, part in ctx.store.active.items() if not part.rows)
    if not empty:
        return 0
    keeper = ctx.session()
    predicate = await load_predicate(ctx, frozenset())
    last = (await last_quorum_parts(ctx, keeper)).parts
    free = [
        part
        for part in empty
        if not predicate.why_not(part) and not any(part.contains(needed) for needed in last)
    ]
    doomed = free[:MULTI_BATCH_SIZE]
    stats = await keeper.exists_many([ctx.me.part(part) for part in doomed])
    doomed = [part for part, stat in zip(doomed, stats, strict=True) if stat is not None]
    if not doomed:
        return 0
    create_time = time_text(ctx.env.now_s())
    ops: list[Op] = [
        log_op(ctx.paths, LogEntry(DropRange(part, RangeFate.DROP), ctx.replica, create_time))
        for part in doomed
    ]
    ops.append(SetData(ctx.paths.log, b"", predicate.log_version))
    removals = await removals_of_blocks(keeper, ctx.paths, *doomed)
    for removal in removals[_MAX_REMOVALS:]:
        await try_remove(keeper, removal.path, version=removal.version)
    try:
        done = await commit_logged(ctx, keeper, [*ops, *removals[:_MAX_REMOVALS]])
    except MultiFailed as failed:
        if isinstance(failed.error, BadVersion | NoNode):
            return 0  # something was assigned or cleaned up meanwhile: in the next round
        raise
    if done is None:
        return 0
    ctx.log_changed.set()
    log.info("replica.empty_parts_dropped table=%s parts=%s", ctx.name, ", ".join(map(str, doomed)))
    return len(doomed)
