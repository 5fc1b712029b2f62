"""`apply_mutations_on_fly = 1`: a SELECT sees what mutations have made of the rows, also those under way.

ClickHouse applies them to what is read. chDB knows nothing of the mutations of a replicated table, so the
statement waits until this replica has done those that it knows of. That is the same to who reads, but for the
time it takes.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.errors import Code, SqlError
from engine.node.replicated.running.runtime import RunningTable
from engine.replication.commands.mutate import wait_for_mutation
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.switches import Activity

SETTING = "apply_mutations_on_fly"


async def wait_for_mutations(tables: Iterable[RunningTable]) -> None:
    """Raises SqlError 236 while merges are stopped, and mutations with them, 341 if one fails, 242 without
    Keeper; none of them where nothing is to be done."""
    for table in tables:
        ctx = table.ctx
        pending = [number for number, state in ctx.queue.mutations.items() if not state.is_done]
        if pending:
            await _wait(ctx, max(pending))


async def _wait(ctx: ReplicaContext, number: int) -> None:
    if ctx.switches.is_stopped(Activity.MERGES):
        raise SqlError(
            Code.ABORTED,
            f"{SETTING}: mutation {number:010} of {ctx.name} is not done, and merges are stopped.",
            hint="SYSTEM START MERGES lets it go on.",
        )
    try:
        await wait_for_mutation(ctx, number)
    except SqlError:
        if number in ctx.queue.mutations:
            raise  # else it was killed: nothing is left to be seen
