"""ATTACH PARTITION and ATTACH PART from `detached/`, and DROP DETACHED.

Safety argument. A detached part comes back as an insert that is not deduplicated. One command at a time does
this on a replica (`ctx.attaching`), so no directory is attached twice; it is not interrupted when its query
is cancelled.

1. Take a block number; stage a checked copy of the directory under the name that it gives.
2. One multi: the entry ATTACH_PART with the part's checksum, the removal of the lock, the replica's part.
   Refused because the lock was taken away by a dropped partition: begin at 1 with another number.
3. Publish the part, then remove the directory.

A crash after 1 leaves a staged part that Keeper does not know, which the next start throws away; after 2 one
that it publishes. Then the directory is still there, too; the store has noted which part was staged of it, so
the next term, or the next ATTACH, removes it (`startup_check.settle_attaching`), and no row is attached twice
by a user who does not know what became of the first command. After a lost reply the log is searched for the
entry. Where that cannot tell any more, or the table ends before, the part stays staged: a start, or
`cleanup.staged_sweep`, asks Keeper. Other replicas take the part from their own `detached/` if it has the
same checksum, or fetch it.

Source: ClickHouse's StorageReplicatedMergeTree::attachPartition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from operator import itemgetter

from engine.errors import (
    Code,
    ConnectionLoss,
    KeeperAnswer,
    MultiFailed,
    NoNode,
    OperationTimeout,
    SessionExpired,
    SqlError,
)
from engine.keeper.base import Create, Op
from engine.replication.commands.drop_range import ATTEMPTS, PAUSE_S, cannot_assign
from engine.replication.commands.uninterrupted import uninterrupted
from engine.replication.commands.waiting import DEFAULT_INACTIVE_TIMEOUT_S, Sync, wait_for_entries
from engine.replication.log_actions import AttachPart
from engine.replication.log_entry import LogEntry
from engine.replication.part_name import PartName, inserted
from engine.replication.part_set import covered
from engine.replication.part_store import DetachedPart
from engine.replication.replica.block_numbers import BlockNumber, BlockNumbers, Purpose, allocate, give_up
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.log_commit import Committed, Logged, commit_logged, log_op
from engine.replication.replica.startup_check import settle_attaching
from engine.replication.text import time_text

log = logging.getLogger(__name__)


async def attach_partition(
    ctx: ReplicaContext,
    partition_id: str,
    *,
    sync: Sync = Sync.OWN,
    inactive_timeout_s: float = DEFAULT_INACTIVE_TIMEOUT_S,
    fence: Sequence[Op] = (),
) -> list[PartName]:
    """Attach what a user detached of a partition; returns the new parts. Nothing if there is nothing.

    Parts that another detached part contains are left where they are. Raises SqlError of the store for a
    damaged part (those before it are attached then), 242, 341.
    """

    def chosen(detached: Sequence[DetachedPart]) -> Sequence[DetachedPart]:
        return _without_covered(
            [part for part in detached if not part.prefix and _partition_of(part) == partition_id]
        )

    attached = await uninterrupted(_attach_all(ctx, chosen, fence))
    await _wait(ctx, attached, sync, inactive_timeout_s)
    return [name for name, _ in attached]


async def attach_part(
    ctx: ReplicaContext,
    directory: str,
    *,
    sync: Sync = Sync.OWN,
    inactive_timeout_s: float = DEFAULT_INACTIVE_TIMEOUT_S,
    fence: Sequence[Op] = (),
) -> PartName:
    """Attach one directory of `detached/`. Raises SqlError 233 if there is none of that name, and as
    `attach_partition`."""

    def chosen(detached: Sequence[DetachedPart]) -> Sequence[DetachedPart]:
        found = [part for part in detached if part.directory == directory and part.name is not None]
        if not found:
            raise _no_such(ctx, directory)
        return found

    attached = await uninterrupted(_attach_all(ctx, chosen, fence))
    await _wait(ctx, attached, sync, inactive_timeout_s)
    return attached[0][0]


async def drop_detached(
    ctx: ReplicaContext, *, partition_id: str | None = None, directory: str | None = None
) -> list[str]:
    """Remove from this replica's `detached/` one directory, a partition's, or (neither given) all.

    Returns what was removed. Raises SqlError 233 if the directory is not there.
    """
    async with ctx.attaching:
        found = await ctx.store.detached()
        chosen = [
            part.directory
            for part in found
            if (directory is None or part.directory == directory)
            and (partition_id is None or _partition_of(part) == partition_id)
        ]
        if directory is not None and not chosen:
            raise _no_such(ctx, directory)
        for each in chosen:
            await ctx.store.remove_detached(each)
    return chosen


def _no_such(ctx: ReplicaContext, directory: str) -> SqlError:
    return SqlError(Code.BAD_DATA_PART_NAME, f'Detached part "{directory[:200]}" of {ctx.name} not found.')


def _without_covered(parts: Sequence[DetachedPart]) -> list[DetachedPart]:
    named = [(part.name, part) for part in parts if part.name is not None]
    inner = set(covered(name for name, _ in named))
    return [part for name, part in sorted(named, key=itemgetter(0)) if name not in inner]


def _partition_of(part: DetachedPart) -> str | None:
    return None if part.name is None else part.name.partition_id


async def _attach_all(
    ctx: ReplicaContext,
    choose: Callable[[Sequence[DetachedPart]], Sequence[DetachedPart]],
    fence: Sequence[Op],
) -> list[tuple[PartName, Logged]]:
    """The new parts with their entries. `fence` goes into the last multi, or into one of its own."""
    attached: list[tuple[PartName, Logged]] = []
    async with ctx.attaching:
        await settle_attaching(ctx, ctx.session())
        parts = choose(await ctx.store.detached())
        for part in parts:
            attached.append(await _attach(ctx, part, fence if part is parts[-1] else ()))
        if not parts and fence:
            await ctx.session().multi(fence)
    return attached


async def _wait(
    ctx: ReplicaContext, attached: Sequence[tuple[PartName, Logged]], sync: Sync, inactive_timeout_s: float
) -> None:
    entries = [entry for _, entry in attached]
    await wait_for_entries(ctx, entries, sync=sync, inactive_timeout_s=inactive_timeout_s)


async def _attach(ctx: ReplicaContext, part: DetachedPart, fence: Sequence[Op]) -> tuple[PartName, Logged]:
    assert part.name is not None
    for _ in range(ATTEMPTS):
        try:
            number = await allocate(ctx, part.name.partition_id, purpose=Purpose.INSERT)
        except (ConnectionLoss, OperationTimeout, SessionExpired):
            await ctx.env.sleep(PAUSE_S)
            continue
        name = inserted(number.partition_id, number.number, part.level)
        async with ctx.in_flight.hold(name):
            done = await _stage_and_commit(ctx, part, number, name, fence)
            if done is None:
                continue
            ctx.queue.add_virtual(name)
            await ctx.store.publish([name])
        await ctx.store.remove_detached(part.directory)
        ctx.log_changed.set()
        ctx.merge_wanted.set()
        log.info("replication.attached table=%s part=%s from=%s", ctx.name, name, part.directory)
        return name, done.entries[0]
    raise cannot_assign(ctx, f"ATTACH PART {part.directory}")


async def _stage_and_commit(
    ctx: ReplicaContext, part: DetachedPart, number: BlockNumber, name: PartName, fence: Sequence[Op]
) -> Committed | None:
    """None: the number was taken away, or it is certain that nothing was executed; nothing is left then.
    Where nobody knows whether it was, the part stays staged: Keeper may have it by now."""
    is_used = is_in_doubt = False
    try:
        staged = await ctx.store.stage_detached(part.directory, name)
        action = AttachPart(name, staged.digest.hash_text.upper())
        ops: list[Op] = [
            log_op(ctx.paths, LogEntry(action, ctx.replica, time_text(ctx.env.now_s()))),
            number.unlock,
            Create(ctx.me.part(name), staged.header.to_bytes()),
        ]
        is_in_doubt = True
        try:
            done = await commit_logged(ctx, number.keeper, [*ops, *fence])
        except MultiFailed as failed:
            is_in_doubt = False
            if failed.index >= len(ops) or not isinstance(failed.error, NoNode):
                raise
            done = None
        except KeeperAnswer:
            is_in_doubt = False
            raise
        is_in_doubt = False
        if done is not None:
            is_used = True
            number.used()
        return done
    finally:
        if not is_used:
            await give_up(ctx, BlockNumbers((number,)))
            if not is_in_doubt:
                await ctx.store.discard(name)
