"""Parts without rows, which mutations, a TTL or the loss of a part leave: they are dropped, as by DROP PART.

They cost little, but stand in the way: made of nothing, they have no projections, and are never merged with
neighbours that have some.

Safety argument. Nothing is dropped but parts that readers see here, that Keeper says are this replica's, that
have no row, and that nothing was assigned to: the multi of the DROP_PART entries sets `log` with the version
at which that was so. Whatever makes a row appear under such a name would have to be assigned first. Two
replicas that drop the same part at once: one is refused. The ids of inserted blocks stay: rows that somebody
deleted are not inserted again by a repeated insert, whether this was here in between or not; those of lost
parts have gone before. A crash leaves entries that every replica executes, or nothing.

Source: ClickHouse's MergeTreeData::clearEmptyParts, which forgets the ids, too.
"""

from __future__ import annotations

import logging

from engine.errors import BadVersion, MultiFailed, NoNode
from engine.keeper.base import Op, SetData
from engine.keeper.recipes import MULTI_BATCH_SIZE
from engine.replication.log_actions import DropRange, RangeFate
from engine.replication.log_entry import LogEntry
from engine.replication.quorum import LastQuorumParts
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.log_commit import commit_logged, log_op
from engine.replication.replica.merge_predicate import load_predicate
from engine.replication.text import time_text

log = logging.getLogger(__name__)


async def drop_empty_parts(ctx: ReplicaContext) -> int:
    """Assign their dropping; returns of how many. Raises UnknownOutcome; repeatable."""
    if not ctx.settings.remove_empty_parts:
        return 0
    empty = sorted(name for name, part in ctx.store.active.items() if not part.rows)
    if not empty:
        return 0
    keeper = ctx.session()
    predicate = await load_predicate(ctx)
    last = (await _last_quorum_parts(ctx)).parts
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
    try:
        done = await commit_logged(ctx, keeper, [*ops, SetData(ctx.paths.log, b"", predicate.log_version)])
    except MultiFailed as failed:
        if isinstance(failed.error, BadVersion):
            return 0  # something was assigned meanwhile: in the next round
        raise
    if done is None:
        return 0
    ctx.log_changed.set()
    log.info("replica.empty_parts_dropped table=%s parts=%s", ctx.name, ", ".join(map(str, doomed)))
    return len(doomed)


async def _last_quorum_parts(ctx: ReplicaContext) -> LastQuorumParts:
    """Readers with `select_sequential_consistency` look for them, or for what covers them, and would not find
    it any more."""
    path = ctx.paths.quorum_last_part
    try:
        return LastQuorumParts.from_bytes((await ctx.session().get(path)).data, where=path)
    except NoNode:
        return LastQuorumParts()
