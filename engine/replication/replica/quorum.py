"""Inserts that need several replicas to have their part, and what becomes of those that never get there.

Safety argument.

1. The insert's own transaction makes the quorum node, with this replica in it, and checks that the replica
   is still the one that counted its peers (`is_active`, `host`). So a pending quorum always has a part behind
   it.
2. A replica adds its name only after the part is durable and in its `parts` (`part_is_here`, `report_held`),
   with the version it has read; the last one removes the node and, unless quorums run in parallel, notes the
   part in `last_part` in the same transaction (what nobody can read there stays as it is). A lost reply is
   followed by looking again: who is listed, or finds the node gone, is done.
3. A quorum is given up (`give_up`) when no active replica has the part. The transaction checks the version of
   every replica's `host`, which changes in the transaction that makes a replica active: so none that has the
   part can have come back meanwhile. The same transaction removes the block id, so a repeated insert is not
   swallowed, and notes the part in `failed_parts`.
4. A replica that comes back looks at `failed_parts` first and sets its copies aside (`forget_failed`): the
   part first, then its node in `parts`. A crash between leaves a part that is missing, whose fetch finds that
   it was given up.

It never removes a quorum node whose part an active replica has, and never counts a replica twice.

Source: ClickHouse's ReplicatedMergeTree.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import (
    BadVersion,
    Code,
    KeeperAnswer,
    MalformedEntry,
    MultiFailed,
    NodeExists,
    NoNode,
    SqlError,
)
from engine.keeper.base import Check, Children, Create, Keeper, Node, Op, Remove, SetData, Watch
from engine.keeper.recipes import try_remove
from engine.replication.log_actions import GetPart
from engine.replication.part_name import PartName
from engine.replication.part_set import containing
from engine.replication.part_store import Fate
from engine.replication.paths import TablePaths
from engine.replication.quorum import LastQuorumParts, QuorumStatus
from engine.replication.replica.cleanup.blocks import removals_of_blocks
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.queue.queue import QueuedEntry

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Alive:
    """That this replica is active, as the insert saw it: the versions of `is_active` and `host`."""

    is_active_version: int
    host_version: int
    replicas: int
    active: int

    def checks(self, ctx: ReplicaContext) -> Sequence[Op]:
        """BadVersion or NoNode: the replica was activated anew, or is not active any more."""
        return (
            Check(ctx.me.is_active, self.is_active_version),
            Check(ctx.me.host, self.host_version),
        )


# --- before the insert ------------------------------------------------------------------------------------


async def count_replicas(ctx: ReplicaContext, keeper: Keeper) -> Alive:
    """Who is active. Raises SqlError 164 READONLY if this replica is not."""
    names = (await keeper.children(ctx.paths.replicas)).names
    others = [ctx.paths.replica(name).is_active for name in names if name != ctx.replica]
    is_active, host, *rest = await keeper.exists_many([ctx.me.is_active, ctx.me.host, *others])
    if is_active is None or host is None:
        raise SqlError(Code.READONLY, f"Replica {ctx.replica} of {ctx.name} is not active right now.")
    active = 1 + sum(stat is not None for stat in rest)
    return Alive(is_active.version, host.version, len(names), active)


async def check_quorum(ctx: ReplicaContext, keeper: Keeper, required: int, *, is_parallel: bool) -> Alive:
    """What has to hold before an insert with a quorum begins.

    Raises SqlError 285 for too few active replicas, 286 if another such insert is under way and this one may
    not run beside it, 164 if this replica is not active.
    """
    alive = await count_replicas(ctx, keeper)
    if alive.active < required:
        raise SqlError(
            Code.TOO_FEW_LIVE_REPLICAS,
            f"Number of alive replicas ({alive.active}) is less than requested quorum "
            f"({required}/{alive.replicas}).",
        )
    if not is_parallel:
        try:
            node = await keeper.get(ctx.paths.quorum_status)
        except NoNode:
            return alive
        if readable_status(node.data, ctx.paths.quorum_status) is not None:
            raise pending_quorum(ctx)
        raise SqlError(
            Code.UNSATISFIED_QUORUM_FOR_PREVIOUS_WRITE,
            f"{ctx.paths.quorum_status} in Keeper cannot be read, so nobody knows which part of {ctx.name} "
            "waits for a quorum.",
            hint="Remove the node by hand, or insert with insert_quorum_parallel = 1.",
        )
    return alive


def readable_status(data: bytes, path: str) -> QuorumStatus | None:
    """None, and an error in the log, for what somebody else has written there: no replica can count itself
    for that quorum, nor give it up, and nothing else has to wait for it."""
    try:
        return QuorumStatus.from_bytes(data, where=path)
    except MalformedEntry as error:
        log.error("replication.quorum_unreadable path=%s error=%s", path, error)
        return None


def pending_quorum(ctx: ReplicaContext) -> SqlError:
    """286: quorums that are not parallel come one after the other."""
    return SqlError(
        Code.UNSATISFIED_QUORUM_FOR_PREVIOUS_WRITE,
        f"Quorum for previous write has not been satisfied yet (table {ctx.name}, "
        f"{ctx.paths.quorum_status}).",
        hint="Wait until the other replicas have it, or insert with insert_quorum_parallel = 1.",
    )


def quorum_create(ctx: ReplicaContext, part: PartName, required: int, *, is_parallel: bool) -> Create:
    """The node of a quorum that begins, with this replica in it. NodeExists: another is under way."""
    path = ctx.paths.parallel_quorum(part) if is_parallel else ctx.paths.quorum_status
    return Create(path, QuorumStatus(part, required, frozenset({ctx.replica})).to_bytes())


# --- the replicas that have the part ----------------------------------------------------------------------


async def part_is_here(ctx: ReplicaContext, part: PartName) -> None:
    """Count this replica for the quorum that waits for `part`, if one does. The part (or one that covers it)
    is durable and in this replica's `parts`. Repeatable; raises UnknownOutcome."""
    keeper = ctx.session()
    for path in (ctx.paths.parallel_quorum(part), ctx.paths.quorum_status):
        await _add_replica(ctx, keeper, path, part)


async def report_held(ctx: ReplicaContext) -> None:
    """As `part_is_here`, for every part that a quorum waits for and this replica has. At activation."""
    keeper = ctx.session()
    parts = [part for part, _ in await pending_parts(keeper, ctx.paths)]
    active = tuple(ctx.store.active)
    for part in parts:
        holder = containing(active, part)
        if holder is not None and await keeper.exists(ctx.me.part(holder)) is not None:
            await part_is_here(ctx, part)


async def pending_parts(keeper: Keeper, paths: TablePaths) -> Sequence[tuple[PartName, QuorumStatus]]:
    """The parts that wait for their quorum, parallel or not, as far as their nodes can be read."""
    nodes = [paths.quorum_status]
    try:
        names = (await keeper.children(paths.quorum_parallel)).names
        nodes += [f"{paths.quorum_parallel}/{name}" for name in names if PartName.try_parse(name)]
    except NoNode:
        pass  # a table of a server before 20.10
    found: list[tuple[PartName, QuorumStatus]] = []
    for path, node in zip(nodes, await keeper.get_many(nodes), strict=True):
        if isinstance(node, Node):
            status = readable_status(node.data, path)
            if status is not None:
                found.append((status.part, status))
    return found


async def _add_replica(ctx: ReplicaContext, keeper: Keeper, path: str, part: PartName) -> None:
    while True:
        try:
            node = await keeper.get(path)
        except NoNode:
            return
        status = readable_status(node.data, path)
        if status is None or status.part != part:
            return
        if ctx.replica in status.replicas and not status.is_reached:
            return
        status = status.with_replica(ctx.replica)
        try:
            if not status.is_reached:
                await keeper.set(path, status.to_bytes(), version=node.stat.version)
                return
            ops: list[Op] = [Remove(path, node.stat.version)]
            if path == ctx.paths.quorum_status:
                ops.append(await _last_part_update(ctx, keeper, part))
            await keeper.multi(ops)
        except (BadVersion, NoNode):
            continue
        except MultiFailed as failed:
            if isinstance(failed.error, BadVersion | NoNode | NodeExists):
                continue
            raise
        log.info("replication.quorum_reached table=%s part=%s replica=%s", ctx.name, part, ctx.replica)
        return


async def _last_part_update(ctx: ReplicaContext, keeper: Keeper, part: PartName) -> Op:
    """What somebody else has written there is left as it is: who reads with `select_sequential_consistency`
    is told of it, and would otherwise miss the parts of other partitions. The quorum is reached all the same.
    """
    path = ctx.paths.quorum_last_part
    try:
        node = await keeper.get(path)
    except NoNode:
        return Create(path, LastQuorumParts((part,)).to_bytes())
    try:
        last = readable_last_parts(node.data, path).with_part(part)
    except MalformedEntry as error:
        log.error("replication.last_part_unreadable path=%s part=%s error=%s", path, part, error)
        return Check(path, node.stat.version)
    return SetData(path, last.to_bytes(), node.stat.version)


def readable_last_parts(data: bytes, path: str) -> LastQuorumParts:
    """Raises MalformedEntry, with what to do, for what somebody else has written there."""
    try:
        return LastQuorumParts.from_bytes(data, where=path)
    except MalformedEntry as error:
        error.hint = (
            f"Nobody can say which quorum inserts came last: mend {path} in Keeper, or make it empty; then "
            "select_sequential_consistency promises nothing of the quorum inserts before."
        )
        raise


async def last_quorum_parts(ctx: ReplicaContext, keeper: Keeper) -> LastQuorumParts:
    """Those that readers with `select_sequential_consistency` look for, or for what covers them: neither may
    be dropped by itself. Raises MalformedEntry."""
    path = ctx.paths.quorum_last_part
    try:
        return readable_last_parts((await keeper.get(path)).data, path)
    except NoNode:
        return LastQuorumParts()


async def holders(
    keeper: Keeper, paths: TablePaths, part: PartName, *, watch: Watch | None = None
) -> Sequence[str]:
    """The replicas that have `part`, or one that covers it, in their `parts`. Active or not."""
    names = (await keeper.children(paths.replicas)).names
    found: list[str] = []
    for name in names:
        try:
            children = await keeper.children(paths.replica(name).parts, watch=watch)
        except NoNode:
            continue
        parts = (PartName.try_parse(child) for child in children.names)
        if any(each is not None and each.contains(part) for each in parts):
            found.append(name)
    return found


# --- quorums that fail ------------------------------------------------------------------------------------


async def is_failed(ctx: ReplicaContext, part: PartName, keeper: Keeper | None = None) -> bool:
    """Whether the quorum of `part` was given up."""
    return await (keeper or ctx.session()).exists(ctx.paths.failed_part(part)) is not None


async def give_up(ctx: ReplicaContext, queued: QueuedEntry) -> bool:
    """For a GET_PART that no active replica can give: give up the quorum that waits for it, if one does.

    An entry of a clone or of a check says nothing of a quorum; the part may be one of a quorum all the same.

    True: the entry is finished, nobody will ever have the part. False: something changed meanwhile, or the
    quorum was reached before; keep the entry and try again later. Raises UnknownOutcome; repeatable.
    """
    entry = queued.entry
    if not isinstance(entry.action, GetPart):
        return False
    part = entry.action.part
    keeper = ctx.session()
    if await is_failed(ctx, part, keeper):
        return True
    names = (await keeper.children(ctx.paths.replicas)).names
    replicas = [ctx.paths.replica(name) for name in names]
    hosts = await keeper.exists_many([replica.host for replica in replicas])
    # Only after the versions are known: who becomes active from here on changes one of them.
    active = await keeper.exists_many([replica.is_active for replica in replicas])
    awake = {name for name, stat in zip(names, active, strict=True) if stat is not None}
    if not awake.isdisjoint(await holders(keeper, ctx.paths, part)):
        return False
    found = await _quorum_node_of(ctx, keeper, part)
    if found is None:
        if entry.quorum:
            log.warning("replication.part_of_quorum_unavailable table=%s part=%s", ctx.name, part)
        return False
    path, version = found
    ops: list[Op] = [
        Check(replica.host, host.version)
        for replica, host in zip(replicas, hosts, strict=True)
        if host is not None
    ]
    ops += [Remove(path, version), Create(ctx.paths.failed_part(part))]
    if entry.block_id:
        ops += await _block_removals(keeper, ctx.paths, entry.block_id, part)
    else:
        ops += await removals_of_blocks(keeper, ctx.paths, part)
    try:
        await keeper.multi(ops)
    except MultiFailed as failed:
        if isinstance(failed.error, BadVersion | NoNode | NodeExists):
            return False
        raise
    log.warning("replication.quorum_failed table=%s part=%s by=%s", ctx.name, part, ctx.replica)
    return True


async def forget_dropped(ctx: ReplicaContext, dropped: PartName) -> None:
    """Remove the quorums that wait for parts inside a range, or a part, that this replica has just dropped.

    Nobody will fetch such a part any more, and its node would refuse other quorum inserts for ever. Its
    insert came before the drop, and ends as if the quorum had been reached. Repeatable.
    """
    keeper = ctx.session()
    for part, _ in await pending_parts(keeper, ctx.paths):
        if dropped.contains(part) and (found := await _quorum_node_of(ctx, keeper, part)) is not None:
            path, version = found
            await try_remove(keeper, path, version=version)
            log.info("replication.quorum_dropped table=%s part=%s", ctx.name, part)


async def _quorum_node_of(ctx: ReplicaContext, keeper: Keeper, part: PartName) -> tuple[str, int] | None:
    for path in (ctx.paths.parallel_quorum(part), ctx.paths.quorum_status):
        try:
            node = await keeper.get(path)
        except NoNode:
            continue
        status = readable_status(node.data, path)
        if status is not None and status.part == part:
            return path, node.stat.version
    return None


async def _block_removals(
    keeper: Keeper, paths: TablePaths, block_ids: str, part: PartName
) -> Sequence[Remove]:
    """Of the entry's block ids those that still name the part. One that an insert has used since stays."""
    directories = (paths.blocks, paths.async_blocks, paths.deduplication_hashes)
    nodes = [
        f"{directory}/{name}"
        for name in block_ids.split(",")
        if name and "/" not in name
        for directory in directories
    ]
    found = await keeper.get_many(nodes)
    return [
        Remove(path, node.stat.version)
        for path, node in zip(nodes, found, strict=True)
        if not isinstance(node, KeeperAnswer) and node.data == str(part).encode()
    ]


async def forget_failed(ctx: ReplicaContext) -> None:
    """Set aside this replica's copies of parts whose quorum was given up. At activation; repeatable."""
    keeper = ctx.session()
    try:
        children: Children | None = await keeper.children(ctx.paths.quorum_failed_parts)
    except NoNode:
        children = None
    for name in children.names if children else ():
        part = PartName.try_parse(name)
        if part is not None and part not in ctx.in_flight:
            await set_failed_aside(ctx, part)


async def set_failed_aside(ctx: ReplicaContext, part: PartName) -> None:
    """Remove a part whose quorum failed from what readers see, then from `parts`.

    A crash in between leaves a part that is missing, and whose fetch finds that it was given up. In the other
    order it would leave one that Keeper does not know, and too many of those stop a replica at its start.
    Whoever comes again after a lost reply finds the part in neither place, and has still to forget it.
    """
    keeper = ctx.session()
    is_here = part in ctx.store.active or part in ctx.store.staged
    if is_here:
        log.warning("replication.part_without_quorum table=%s part=%s", ctx.name, part)
        await ctx.store.remove([part], fate=Fate.DETACH, prefix="noquorum")
        await ctx.store.discard(part)
    if is_here or await keeper.exists(ctx.me.part(part)) is not None:
        await try_remove(keeper, ctx.me.part(part))
    ctx.queue.forget(part)
