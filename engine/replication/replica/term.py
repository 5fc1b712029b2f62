"""Terms of a replica: from its activation to the end of its session, again and again.

Safety argument. A replica acts only while the ephemeral `is_active` is its own session's.

1. Activation: `is_active` and the address in one multi. What an earlier session of this server left there is
   removed first, by content, address and version; another server's node, or that of a server with a copy of
   this one's data directory, means that somebody else runs this replica: it stays read-only (224) and tries
   again.
2. Then, still read-only: let go of what a RESTORE has put aside and will not attach, clone if lost, load the
   queue, copy the log, compare the table's columns and the parts on disk with Keeper.
   Entries that somebody has removed from the log are made up for, as far as others know them (`log_hole`),
   and so is an entry of the queue that cannot be read.
   Each of these may be repeated; a crash or a lost session leads back to 1.
3. Only then `ctx.keeper` is set: writes are accepted and the loops run.
4. The session's end makes the replica read-only at once (`is_readonly` asks the session itself), cancels the
   loops and leads back to 1. So does the loss of `is_active` for another reason.

It never removes another server's `is_active`.

Source: ClickHouse's ReplicatedMergeTreeRestartingThread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from engine.errors import (
    Code,
    ConnectionLoss,
    MalformedEntry,
    MultiFailed,
    NodeExists,
    NoNode,
    OnclusterError,
    OperationTimeout,
    SessionExpired,
    SqlError,
    UnknownOutcome,
)
from engine.keeper.base import Create, CreateMode, Keeper, SetData
from engine.keeper.recipes import Signal as WatchSignal
from engine.keeper.recipes import remove_unowned, try_remove
from engine.replication.commands.create import complete_table
from engine.replication.commands.restore import give_up_restoring
from engine.replication.creation import NewReplica
from engine.replication.host import ReplicaHost
from engine.replication.replica import clone, log_hole, log_puller, peers, startup_check
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.execution.outcome import LogHole, TermOver
from engine.replication.replica.queue import loader as queue_loader
from engine.replication.replica.structure_check import check_structure

log = logging.getLogger(__name__)

Loop = Callable[[ReplicaContext], Awaitable[None]]

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0
_ATTEMPTS_TO_ACTIVATE = 10


@dataclass(slots=True)
class Startup:
    """What the first activation has to settle. Once it has, nothing is left here.

    `broken` are directories that the store could not load, of `broken_bytes` in all; `is_forced` skips the
    sanity checks, as the flag in Keeper does.
    """

    broken: tuple[str, ...] = ()
    broken_bytes: int = 0
    is_forced: bool = False
    is_stopping: bool = False
    """Set before the task of the terms is cancelled: no other term begins."""


async def run_terms(ctx: ReplicaContext, startup: Startup, loops: Sequence[Loop]) -> None:
    """Activate, run the loops until the term is over, and so on. Until cancelled."""
    failures = 0
    while not startup.is_stopping:
        try:
            keeper = await ctx.holder.get()
            await activate(ctx, keeper, startup)
        except (OnclusterError, OSError) as error:
            failures += 1
            ctx.readonly_reason = error.display_text if isinstance(error, SqlError) else str(error)
            pause_s = min(FIRST_PAUSE_S * failures * (failures + 1) / 2, LONGEST_PAUSE_S)
            log.warning(
                "replica.not_activated table=%s replica=%s retry_in_s=%.1f reason=%s",
                ctx.name,
                ctx.replica,
                pause_s,
                error,
            )
            await ctx.env.sleep(pause_s * ctx.env.rng.uniform(0.8, 1.2))
            continue
        failures = 0
        await _run_term(ctx, keeper, loops)
        if startup.is_stopping:
            # A task group that is cancelled while a child fails tells of the child only (Python before 3.13).
            raise asyncio.CancelledError


async def _run_term(ctx: ReplicaContext, keeper: Keeper, loops: Sequence[Loop]) -> None:
    ctx.keeper = keeper
    ctx.readonly_reason = ""
    ctx.term_began.announce()
    reason = "the table is being detached"
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_until_expired(keeper))
            tasks.create_task(_until_not_active(ctx, keeper))
            for loop in loops:
                tasks.create_task(_run_loop(ctx, loop))
    except* (SessionExpired, TermOver) as over:
        reason = str(over.exceptions[0])
        log.warning("replica.term_over table=%s replica=%s reason=%s", ctx.name, ctx.replica, over.exceptions)
    finally:
        ctx.keeper = None
        ctx.readonly_reason = reason
        ctx.readonly_since_s = ctx.env.now_s()


async def _run_loop(ctx: ReplicaContext, loop: Loop) -> None:
    """A task group takes no notice of a child that was cancelled: the term would go on without the loop."""
    try:
        await loop(ctx)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise RuntimeError(f"{loop} of {ctx.name} was cancelled by what it waited for") from None


async def _until_expired(keeper: Keeper) -> None:
    over = asyncio.Event()
    keeper.on_expired(over.set)
    await over.wait()
    raise SessionExpired("Its session with Keeper is over")


async def _until_not_active(ctx: ReplicaContext, keeper: Keeper) -> None:
    """Raises TermOver when `is_active` is not ours any more although the session lives."""
    while True:
        signal = WatchSignal()
        try:
            stat = await keeper.exists(ctx.me.is_active, watch=signal)
        except (ConnectionLoss, OperationTimeout):
            await ctx.env.sleep(1.0)
            continue
        if stat is None or stat.ephemeral_owner != keeper.session_id:
            raise TermOver(f"{ctx.me.is_active} was removed or is another server's")
        await signal.wait()


async def activate(ctx: ReplicaContext, keeper: Keeper, startup: Startup) -> None:
    """All that comes before writes are accepted.

    Raises SqlError: 122 INCOMPATIBLE_COLUMNS, 224 REPLICA_IS_ALREADY_ACTIVE, 231
    TOO_MANY_UNEXPECTED_DATA_PARTS, 242 if the replica is not in Keeper, 415, 416; Corrupt for a queue that
    makes no sense; what Keeper and the store raise.
    """
    # What an earlier session of this replica wrote has to be seen, whichever server answers.
    await keeper.sync(ctx.paths.root)
    if await keeper.exists(ctx.me.root) is None:
        raise SqlError(
            Code.TABLE_IS_READ_ONLY,
            f"No metadata in Keeper for table {ctx.name}: {ctx.me.root} does not exist",
            hint="SYSTEM RESTORE REPLICA makes it anew from the local parts.",
        )
    await become_active(ctx, keeper)
    try:
        await _complete_table(ctx, keeper)
        is_forced = startup.is_forced or await keeper.exists(ctx.me.force_restore_data) is not None
        if not is_forced:
            startup_check.check_broken(ctx, startup.broken, startup.broken_bytes)
        for directory in startup.broken:  # before others of its partition are taken away, and it with them
            await ctx.store.set_aside(directory, "broken-on-start")
        startup.broken, startup.broken_bytes = (), 0
        ctx.metadata_version = peers.number((await keeper.get(ctx.me.metadata_version)).data)
        await startup_check.settle_attaching(ctx, keeper)
        await give_up_restoring(ctx, keeper)
        await clone.clone_if_lost(ctx, keeper)
        await _load(ctx, keeper)
        # Their numbers may be those of another log by now: SYSTEM RESTORE REPLICA makes one anew.
        ctx.own_inserts.clear()
        ctx.unsettled.clear()  # `check_parts` settles them
        is_whole = await _pull(ctx, keeper)
        if is_forced and is_whole and await startup_check.is_known_elsewhere(ctx, keeper):
            await keeper.set(ctx.me.is_lost, b"1")
            await clone.clone_if_lost(ctx, keeper)
            await queue_loader.load(ctx, keeper)
            await _pull(ctx, keeper)
        if is_whole:
            await check_structure(ctx, keeper, is_forced=is_forced)
        if await startup_check.check_parts(ctx, keeper, is_forced=is_forced):
            await queue_loader.load(ctx, keeper)
        startup.is_forced = False
        await try_remove(keeper, ctx.me.force_restore_data)
    except UnknownOutcome:
        raise
    except (OnclusterError, OSError):
        # It will not run soon, and must not seem to: others would wait for it and fetch from it.
        await retire(ctx, keeper)
        raise
    log.info("replica.activated table=%s replica=%s session=%#x", ctx.name, ctx.replica, keeper.session_id)


async def _load(ctx: ReplicaContext, keeper: Keeper) -> None:
    """An entry of the queue that nobody can read may ask for anything: what this replica is to have is then
    what another one has, whose queue can be read. Raises MalformedEntry where there is none."""
    try:
        await queue_loader.load(ctx, keeper)
    except MalformedEntry as error:
        try:
            is_copy = await log_hole.become_a_copy(ctx, keeper)
        except MalformedEntry:
            is_copy = False
        if not is_copy:
            raise error


async def _pull(ctx: ReplicaContext, keeper: Keeper) -> bool:
    """Whether all of the log is copied. Behind an entry that nobody can read nothing is; whoever runs when it
    comes goes on with all else, so whoever starts after it does, too."""
    while True:
        try:
            await log_puller.pull_on(ctx, keeper)
            return True
        except LogHole as hole:
            await log_hole.mend(ctx, keeper, hole)
        except MalformedEntry as error:
            log.error("replica.log_unreadable table=%s replica=%s error=%s", ctx.name, ctx.replica, error)
            return False


async def _complete_table(ctx: ReplicaContext, keeper: Keeper) -> None:
    """Nodes that a crashed CREATE, or an older server, has left out."""
    try:
        creator = (await keeper.get(ctx.me.creator_info)).data.decode("ascii", "replace")
        table_uuid = UUID(creator.partition("|")[0])
    except (NoNode, ValueError):
        return
    await complete_table(keeper, ctx.paths, NewReplica(b"", b"", table_uuid))


async def become_active(ctx: ReplicaContext, keeper: Keeper) -> None:
    """Make `is_active` ours. Raises SqlError 224 REPLICA_IS_ALREADY_ACTIVE if it is another server's."""
    identity = f"UUID_{ctx.server_uuid}".encode()
    for _ in range(_ATTEMPTS_TO_ACTIVATE):
        try:
            node = await keeper.get(ctx.me.is_active)
        except NoNode:
            pass
        else:
            if node.stat.ephemeral_owner == keeper.session_id:
                await keeper.set(ctx.me.host, ctx.host.to_bytes())
                return
            if not await remove_unowned(keeper, ctx.me.is_active):
                if node.data != identity or await _is_elsewhere(ctx, keeper):
                    break
                await try_remove(keeper, ctx.me.is_active, version=node.stat.version)
        try:
            await keeper.multi(
                [
                    Create(ctx.me.is_active, identity, CreateMode.EPHEMERAL),
                    SetData(ctx.me.host, ctx.host.to_bytes()),
                    # ClickHouse leaves the replica's own node empty and never reads it. By this name another
                    # shard with the same path is told apart while this server is down.
                    *([SetData(ctx.me.root, ctx.host_id.encode())] if ctx.host_id else []),
                ]
            )
            return
        except MultiFailed as failed:
            if isinstance(failed.error, NoNode):
                raise SqlError(
                    Code.TABLE_IS_READ_ONLY,
                    f"Replica {ctx.me.root} is dropped, perhaps by half: {failed.error.path} is missing",
                    hint="Drop the table, or SYSTEM DROP REPLICA and then SYSTEM RESTORE REPLICA.",
                ) from failed
            if not isinstance(failed.error, NodeExists):
                raise
        except (ConnectionLoss, OperationTimeout):
            await keeper.sync(ctx.me.is_active)
    raise SqlError(
        Code.REPLICA_IS_ALREADY_ACTIVE,
        f"Replica {ctx.me.root} appears to be already active",
        hint=(
            "If you're sure it's not, try again in a minute or remove znode "
            f"{ctx.me.is_active} by hand; otherwise give each server a replica name of its own."
        ),
    )


async def _is_elsewhere(ctx: ReplicaContext, keeper: Keeper) -> bool:
    """Whether whoever was activated last answers on another host: a copy of this server's data directory,
    which has its identity, too. If it was this server, before its name changed, its session ends soon. Its
    port may be another one at every start."""
    try:
        node = await keeper.get(ctx.me.host)
        active = ReplicaHost.from_bytes(node.data, where=ctx.me.host)
    except (NoNode, MalformedEntry):
        return False
    return active.host != ctx.host.host


async def retire(ctx: ReplicaContext, keeper: Keeper) -> None:
    """Remove `is_active` if it is this session's; the end of the session does it otherwise."""
    try:
        stat = await keeper.exists(ctx.me.is_active)
        if stat is not None and stat.ephemeral_owner == keeper.session_id:
            await try_remove(keeper, ctx.me.is_active)
    except OnclusterError as error:
        log.warning("replica.not_retired table=%s error=%s", ctx.name, error)
