"""Parts of one INSERT that are committed together: step 1 of `commands.insert`, and the rounds until all are
there.

Safety argument: see there. A round begins only when it is certain that the one before has done nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from engine.errors import (
    Code,
    ConnectionLoss,
    KeeperUnavailable,
    OnclusterError,
    OperationTimeout,
    SessionExpired,
    SqlError,
)
from engine.replication.commands.insert_transaction import (
    InsertTransaction,
    Pending,
    Quorum,
    StartOver,
    pause_s,
)
from engine.replication.part_name import PartName
from engine.replication.replica.block_numbers import BlockNumber, Known, Wanted, allocate_all
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.quorum import check_quorum


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of one part. The name of a duplicate is that of the part that was written for it before."""

    name: PartName
    is_duplicate: bool


async def pause(ctx: ReplicaContext, attempt: int) -> None:
    """Before the `attempt`-th repetition; a read-only replica is waited for, so long at most."""
    if not ctx.is_readonly:
        await ctx.env.sleep(pause_s(ctx, attempt))
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(pause_s(ctx, attempt)):
            await ctx.term_began.wait()


async def insert_group(
    ctx: ReplicaContext,
    group: Sequence[Pending],
    quorum: Quorum | None,
    *,
    max_retries: int,
    early: BlockNumber | None = None,
) -> Sequence[Committed]:
    """Commit and publish all of `group`, or nothing of it, except what was inserted before. Block ids differ.
    `early` is a number for a group of one, see `early_number`.

    Raises SqlError: 319 when it is not known whether the group was inserted, 242, 285, 286 and the store's
    codes when nothing was; KeeperUnavailable, too, means that nothing was.
    """
    done: dict[int, Committed] = {}
    failure: OnclusterError | None = None
    try:
        for attempt in range(max_retries + 1):
            if attempt and not (attempt == 1 and early is not None):
                await pause(ctx, attempt)
            open_parts = {index: each for index, each in enumerate(group) if index not in done}
            try:
                done |= await _attempt(
                    ctx, open_parts, quorum, early if attempt == 0 else None, max_retries=max_retries
                )
            except (ConnectionLoss, OperationTimeout, SessionExpired, KeeperUnavailable, StartOver) as error:
                failure = error
            except SqlError as error:
                if error.code not in (Code.TABLE_IS_READ_ONLY, Code.READONLY):
                    raise
                failure = error
            if len(done) == len(group):
                return [done[index] for index in range(len(group))]
            if ctx.is_ending:
                break
    finally:
        for each in group:
            await _discard(ctx, each)
    assert failure is not None
    if isinstance(failure, SqlError):
        raise failure
    raise KeeperUnavailable(
        f"Nothing was inserted into {ctx.name}: {failure}", hint="The INSERT may be repeated."
    ) from failure


async def _discard(ctx: ReplicaContext, pending: Pending) -> None:
    """Throw away what is staged and was not committed. A part in doubt is not `staged` any more by then."""
    if pending.staged is not None:
        name, pending.staged = pending.staged, None
        if not ctx.in_flight.is_kept(name, pending):
            return
        try:
            await ctx.store.discard(name)
        finally:
            ctx.in_flight.let_go(name)


async def _attempt(
    ctx: ReplicaContext,
    pending: dict[int, Pending],
    quorum: Quorum | None,
    early: BlockNumber | None,
    *,
    max_retries: int,
) -> dict[int, Committed]:
    """One round. What is known already is in the result, and so is all else, or StartOver is raised."""
    keeper = ctx.session()
    alive = None
    if quorum is not None:
        alive = await check_quorum(ctx, keeper, quorum.required, is_parallel=quorum.is_parallel)
    wanted = [Wanted(each.partition_id, each.block_id) for each in pending.values()]
    done: dict[int, Committed] = {}
    locks: dict[int, BlockNumber] = {}
    numbers = await allocate_all(ctx, wanted) if early is None else [early]
    for (index, each), found in zip(pending.items(), numbers, strict=True):
        if isinstance(found, Known):
            is_ours = found.part in each.names
            done[index] = Committed(found.part, is_duplicate=not is_ours)
        else:
            locks[index] = found
    if locks:
        transaction = InsertTransaction(
            ctx, quorum, alive, [pending[index] for index in locks], [*locks.values()], max_retries
        )
        names = await transaction.run()
        done |= {index: Committed(name, is_duplicate=False) for index, name in zip(locks, names, strict=True)}
    return done
