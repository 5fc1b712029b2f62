"""The flag `force_restore_data`: a replica whose parts differ too much from Keeper's is to follow the others.

Safety argument. The others are healthy, so they have, or are about to fetch, all that Keeper knows.
1. The flag is created, and the replica restarted: it moves the parts that Keeper does not know to
   `detached/`, fetches what it lacks, and removes the flag.
2. Where Keeper's list of its parts was wrong itself, it lacks what it had. So when it is active and its parts
   do not become those of the others, `is_lost` becomes 1 and it is restarted: it copies list and queue of a
   healthy replica, and fetches.
A crash leaves a flag or a mark that does the same at the next start, and the act done again goes on. If the
replica does not come up in time the flag is taken back, so that it surprises nobody later. Nothing is
deleted.
"""

from __future__ import annotations

from engine.errors import NodeExists, ReplyLost
from engine.keeper.recipes import create_ancestors, try_remove
from engine.operations.repair.activity import is_kept_active
from engine.operations.repair.performing import Steps, Work, wait_until_healthy
from engine.operations.repair.proof import prove
from engine.replication.paths import TablePaths


async def _is_not_like_the_others(work: Work) -> bool:
    replica = work.state.replica(work.replica)
    if replica.told is None or replica.registered is None:
        return False
    return bool(replica.trouble) or not await _becomes_like_the_others(work)


async def _becomes_like_the_others(work: Work) -> bool:
    """Replicas that take INSERTs differ for moments; one look at such a moment says nothing."""
    return (await prove(work.site, [work.path], wait_s=work.wait_s)).is_equal


async def _objection(work: Work) -> str:
    if work.trouble and await is_kept_active(work.site.keeper, work.site.env, work.path, work.replica):
        return "it is active in Keeper: another server may run the same replica"
    return ""


async def _force(work: Work) -> None:
    keeper, replica = work.site.keeper, TablePaths(work.path).replica(work.replica)
    if work.trouble:
        await create_ancestors(keeper, replica.force_restore_data)
        try:
            await keeper.create(replica.force_restore_data)
        except NodeExists:
            pass  # of an earlier attempt, or an operator's
        await _restart(work)
        if await wait_until_healthy(work):
            return  # it did not help; whoever waits for the effect says so
    if not await _becomes_like_the_others(work):
        await keeper.set(replica.is_lost, b"1")
        await _restart(work)


async def _restart(work: Work) -> None:
    try:
        await work.client.command(f"SYSTEM RESTART REPLICA {work.table.quoted}")
    except ReplyLost:
        pass  # what is looked at then decides


async def take_back(work: Work) -> None:
    """Remove the flag of an attempt that did not help."""
    await try_remove(work.site.keeper, TablePaths(work.path).replica(work.replica).force_restore_data)


FORCE_RESTORE = Steps(needed=_is_not_like_the_others, objection=_objection, do=_force)
