"""The flag `force_restore_data`: a replica whose parts differ too much from Keeper's is to follow Keeper.

Safety argument. The others are healthy, so what Keeper knows is to be had from them. 1. The flag is created
in Keeper. 2. The replica is restarted: it moves the parts that Keeper does not know to `detached/`, fetches
what it lacks, and removes the flag. A crash between 1 and 2 leaves the flag, which does the same at the next
start; the act done again goes on. If the replica does not come up in time the flag is taken back, so that it
surprises nobody later.
"""

from __future__ import annotations

from engine.errors import NodeExists
from engine.keeper.recipes import create_ancestors, try_remove
from engine.operations.repair.performing import Steps, Work
from engine.replication.paths import TablePaths


async def _is_not_activated(work: Work) -> bool:
    replica = work.state.replica(work.replica)
    return replica.told is not None and replica.told.is_readonly and replica.registered is not None


async def _objection(work: Work) -> str:
    if work.state.replica(work.replica).is_active:
        return "it is active in Keeper: another server may run the same replica"
    return ""


async def _force(work: Work) -> None:
    flag = TablePaths(work.path).replica(work.replica).force_restore_data
    await create_ancestors(work.site.keeper, flag)
    try:
        await work.site.keeper.create(flag)
    except NodeExists:
        pass  # of an earlier attempt, or an operator's
    await work.client.command(f"SYSTEM RESTART REPLICA {work.table.quoted}")


async def _still_wrong(work: Work) -> str:
    return work.trouble


async def take_back(work: Work) -> None:
    """Remove the flag of an attempt that did not help."""
    await try_remove(work.site.keeper, TablePaths(work.path).replica(work.replica).force_restore_data)


FORCE_RESTORE = Steps(needed=_is_not_activated, objection=_objection, do=_force, still_wrong=_still_wrong)
