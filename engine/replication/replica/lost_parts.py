"""What takes the place of a part that no replica has any more: an empty part, or nothing.

Safety argument. The caller has found, after a sync and with the whole log copied, that no replica, active or
not, has the part in `parts/`, nor one covering it, nor what it could be made of. The ids of its blocks go
first: a repeated insert must not be swallowed by what is gone.

An empty part is staged and committed as a produced one is; the multi counts it in `lost_part_count`. It is in
flight from the moment at which the caller has seen that an entry needs it and that nobody makes or drops it:
what would do so then waits.

Where none can be made, because nothing says which value the partition's id stands for, and no replica has any
part of that partition, nothing is left that an empty part would stand between: one multi puts a DROP_PART of
the part, or of what the log wants to make of it, into the log, counts it, and sets `log` with the version at
which all this was so. Of two replicas that do so at once one is refused. The entry takes the part's entries
out of every queue; without it they would stay there for ever.

Source: ClickHouse's StorageReplicatedMergeTree::createEmptyPartInsteadOfLost, which in the second case asks a
person to drop the partition.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from engine.errors import BadVersion, Code, KeeperAnswer, MultiFailed, NoNode, SqlError
from engine.keeper.base import Keeper, Op, SetData
from engine.replication.log_actions import DropRange, RangeFate
from engine.replication.log_entry import LogEntry
from engine.replication.part_name import PartName
from engine.replication.replica import peers, quorum
from engine.replication.replica.cleanup import blocks as cleanup_blocks
from engine.replication.replica.commit_part import commit_produced
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.log_commit import commit_logged, log_op
from engine.replication.replica.merging.predicate import load_predicate
from engine.replication.text import time_text

log = logging.getLogger(__name__)


async def replace_lost(ctx: ReplicaContext, keeper: Keeper, part: PartName) -> bool:
    """Whether it is done; false if something changed meanwhile. Raises SqlError 48 where neither way is
    open."""
    try:
        async with ctx.in_flight.hold(part):
            await cleanup_blocks.forget_blocks(keeper, ctx.paths, part)
            extra = await _count_lost(ctx, keeper)
            if part not in ctx.store.staged:
                await ctx.store.stage_empty(part)
            await commit_produced(ctx, part, extra=extra)
    except SqlError as error:
        if error.code != Code.NOT_IMPLEMENTED or await _is_anything_left(ctx, keeper, part.partition_id):
            raise
        if not await _drop(ctx, keeper, part, error):
            return False
        log.error("replica.part_lost table=%s part=%s: dropped, as its partition is empty", ctx.name, part)
    else:
        log.error("replica.part_lost table=%s part=%s: replaced with an empty part", ctx.name, part)
    return True


async def _count_lost(ctx: ReplicaContext, keeper: Keeper) -> Sequence[Op]:
    try:
        node = await keeper.get(ctx.paths.lost_part_count)
    except NoNode:
        return []
    count = peers.number(node.data) + 1
    return [SetData(ctx.paths.lost_part_count, str(count).encode(), node.stat.version)]


async def _is_anything_left(ctx: ReplicaContext, keeper: Keeper, partition_id: str) -> bool:
    """Whether this or another replica has a part of the partition: then an empty one can be made later."""
    replicas = [ctx.me, *await peers.others(ctx, keeper)]
    for listed in await keeper.children_many([replica.parts for replica in replicas]):
        if isinstance(listed, NoNode):
            continue
        if isinstance(listed, KeeperAnswer):
            raise listed
        names = map(PartName.try_parse, listed.names)
        if any(name is not None and name.partition_id == partition_id for name in names):
            return True
    return False


async def _drop(ctx: ReplicaContext, keeper: Keeper, part: PartName, otherwise: SqlError) -> bool:
    """Raises `otherwise` where a part has to be there."""
    predicate = await load_predicate(ctx, frozenset())
    if ctx.queue.is_to_be_dropped(part) or await _is_anything_left(ctx, keeper, part.partition_id):
        return False
    wanted = ctx.queue.virtual_parts.get_containing(part) or part
    if any(wanted.contains(last) for last in (await quorum.last_quorum_parts(ctx, keeper)).parts):
        raise otherwise
    entry = LogEntry(DropRange(wanted, RangeFate.DROP), ctx.replica, time_text(ctx.env.now_s()))
    ops: list[Op] = [log_op(ctx.paths, entry), SetData(ctx.paths.log, b"", predicate.log_version)]
    try:
        done = await commit_logged(ctx, keeper, [*ops, *await _count_lost(ctx, keeper)])
    except MultiFailed as failed:
        if isinstance(failed.error, BadVersion):
            return False
        raise
    ctx.log_changed.set()
    return done is not None
