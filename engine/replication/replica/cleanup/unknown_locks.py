"""Removes block number locks that lost replies have left: nodes of this session that nobody knows.

Safety argument. `ctx.block_locks.doubtful` names the partitions in which a reply to a request for a number
was lost; whatever that request did is done when the session answers again.

1. The partition stops being doubtful. A reply that is lost from now on is a doubt of its own, which must not
   be forgotten when this one is settled.
2. Behind a sync (the server may be another one, and behind) the locks are listed. Requests of a session are
   executed in their order, and no request for a number is under way at that moment: every lock of this
   session in the listing is in `held`, or left over.
3. Those that are left over are removed. Who fails on the way, or is cancelled, leaves the partition doubtful.

Repeatable. Locks of former sessions go by themselves.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from engine.errors import NoNode
from engine.keeper.base import Keeper
from engine.keeper.recipes import try_remove

if TYPE_CHECKING:
    from engine.replication.replica.context import ReplicaContext

log = logging.getLogger(__name__)


async def remove_unknown_locks(ctx: ReplicaContext, keeper: Keeper) -> None:
    """In all partitions that are doubtful and where nobody asks for a number right now. Raises what Keeper
    says."""
    doubtful = ctx.block_locks.doubtful
    for partition_id in sorted(doubtful):
        doubtful.discard(partition_id)
        is_settled = False
        try:
            is_settled = await _settle(ctx, keeper, partition_id)
        finally:
            if not is_settled:
                doubtful.add(partition_id)


async def _settle(ctx: ReplicaContext, keeper: Keeper, partition_id: str) -> bool:
    locks = ctx.block_locks
    directory = ctx.paths.partition_block_numbers(partition_id)
    await keeper.sync(directory)
    if locks.asking[partition_id]:
        return False  # a node in the listing could be the one that is being asked for
    try:
        children = await keeper.children(directory)
    except NoNode:
        return True
    held = [f"{directory}/{name}" for name in children.names]
    suspects = [path for path in held if path not in locks.held]
    for path, stat in zip(suspects, await keeper.exists_many(suspects), strict=True):
        if stat is not None and stat.ephemeral_owner == keeper.session_id and path not in locks.held:
            log.info("replication.unknown_lock_removed path=%s", path)
            await try_remove(keeper, path)
    return True
