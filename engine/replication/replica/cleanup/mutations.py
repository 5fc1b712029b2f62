"""Finished mutations are kept for the user to see, `finished_mutations_to_keep` of them.

Safety argument. A mutation may go once every replica has noted in `mutation_pointer` that it, and all before
it, are done; then no part exists that it applies to, and none that does can appear: its number is taken. The
transaction checks that no replica was added since (which may still have such parts to fetch, and looks at
`mutations` first). A crash leaves fewer of them, oldest gone first.

It never removes one that a replica may have to apply, nor the last ones.

Source: ClickHouse's ReplicatedMergeTreeCleanupThread::clearOldMutations.
"""

from __future__ import annotations

import logging

from engine.errors import BadVersion, MultiFailed, NoNode
from engine.keeper.base import Check, Node, Op, Remove
from engine.keeper.recipes import MULTI_BATCH_SIZE
from engine.replication.mutation_entry import mutation_number
from engine.replication.replica.context import ReplicaContext

log = logging.getLogger(__name__)


async def clean_mutations(ctx: ReplicaContext) -> int:
    """Remove finished mutations; returns how many. Raises UnknownOutcome; repeatable."""
    keeper, to_keep = ctx.session(), ctx.settings.finished_mutations_to_keep
    if not to_keep:
        return 0  # as in ClickHouse: all are kept
    numbers = [mutation_number(name) for name in (await keeper.children(ctx.paths.mutations)).names]
    present = sorted(number for number in numbers if number is not None)
    if len(present) <= to_keep:
        return 0
    replicas = await keeper.children(ctx.paths.replicas)
    pointers = await keeper.get_many([ctx.paths.replica(name).mutation_pointer for name in replicas.names])
    least: int | None = None
    for pointer in pointers:
        done = mutation_number(pointer.data.decode("ascii", "replace")) if isinstance(pointer, Node) else None
        if done is None:
            return 0  # a replica that has finished none yet, or is being dropped
        least = done if least is None else min(least, done)
    finished = [number for number in present if least is not None and number <= least]
    doomed = finished[: max(0, len(finished) - to_keep)]
    removed = 0
    for start in range(0, len(doomed), MULTI_BATCH_SIZE):
        batch = doomed[start : start + MULTI_BATCH_SIZE]
        ops: list[Op] = [Remove(ctx.paths.mutation(number)) for number in batch]
        try:
            await keeper.multi([*ops, Check(ctx.paths.replicas, replicas.stat.version)])
        except MultiFailed as failed:
            if isinstance(failed.error, BadVersion | NoNode):
                break  # a replica was added, or another one cleans, too: next time
            raise
        removed += len(batch)
    if removed:
        log.info("replication.mutations_cleaned table=%s removed=%d", ctx.name, removed)
    return removed
