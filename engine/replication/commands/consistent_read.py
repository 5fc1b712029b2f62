"""`select_sequential_consistency`: which parts a SELECT may read, so that it sees all and only what quorum
inserts have acknowledged. It works with quorums that do not run in parallel, as in ClickHouse.

Nothing is changed. Source: ClickHouse's StorageReplicatedMergeTree::getMaxAddedBlocks.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.errors import Code, NoNode, SqlError
from engine.replication.log_actions import AttachPart, GetPart
from engine.replication.part_set import containing
from engine.replication.quorum import QuorumStatus
from engine.replication.replica import log_puller
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.quorum import last_quorum_parts


async def max_blocks(ctx: ReplicaContext) -> Mapping[str, int]:
    """By partition, the largest block number that may be read: a part that ends above it is left out, and so
    are parts of partitions that are not listed.

    Raises SqlError: 289 REPLICA_IS_NOT_IN_QUORUM if this replica lacks a part whose quorum was reached, 242
    while it is read-only; MalformedEntry for what nobody can read below `quorum`; UnknownOutcome when Keeper
    does not answer.
    """
    keeper = ctx.session()
    # A follower that lags behind would let a part be missed that was acknowledged before this SELECT.
    await keeper.sync(ctx.paths.quorum_last_part)
    pending = await _status(ctx)
    last_parts = (await last_quorum_parts(ctx, keeper)).parts
    await log_puller.pull(ctx)  # now the queue knows of all that came before those parts
    active = tuple(ctx.store.active)
    limits: dict[str, int] = {}
    for part in active:
        limits[part.partition_id] = max(part.max_block, limits.get(part.partition_id, -1))
    if pending is not None:
        limits[pending.part.partition_id] = pending.part.min_block - 1
    for part in last_parts:
        if containing(active, part) is None:
            raise SqlError(
                Code.REPLICA_IS_NOT_IN_QUORUM,
                f"Replica doesn't have part {part} which was successfully written to quorum of other "
                "replicas.",
                hint="Send query to another replica or disable 'select_sequential_consistency' setting.",
            )
        limits[part.partition_id] = part.max_block
    _check_earlier(ctx, limits)
    return limits


def _check_earlier(ctx: ReplicaContext, limits: Mapping[str, int]) -> None:
    """Of each partition Keeper names only the last part. Those before it may have had their quorum on other
    replicas: their entries, which come before that of the last one in the log, wait in the queue here."""
    for queued in ctx.queue.entries:
        if not isinstance(queued.entry.action, GetPart | AttachPart):
            continue
        if not queued.entry.quorum and queued.entry.source_replica:
            continue
        part = queued.entry.action.part
        if part.max_block <= limits.get(part.partition_id, -1) and containing(ctx.store.active, part) is None:
            raise SqlError(
                Code.REPLICA_IS_NOT_IN_QUORUM,
                f"Replica has not fetched part {part} yet, whose quorum may have been reached without it.",
                hint="Send query to another replica or disable 'select_sequential_consistency' setting.",
            )


async def _status(ctx: ReplicaContext) -> QuorumStatus | None:
    try:
        node = await ctx.session().get(ctx.paths.quorum_status)
    except NoNode:
        return None
    return QuorumStatus.from_bytes(node.data, where=ctx.paths.quorum_status)
