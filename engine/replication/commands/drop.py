"""Removing a replica from Keeper, and with the last one the table.

Safety argument.

1. `is_lost` becomes 1: other replicas stop keeping the log for this one, and do not clone from it.
2. `host` is removed: from here on the replica cannot be activated any more (activation sets it). For a dead
   replica this is one transaction with the proof that it is not active.
3. Everything below the replica goes, children first, `creator_info` last, with the replica. A crash leaves a
   replica without `host`; the same command again goes on, and so does a CREATE of that replica.
4. If no replica is left, one transaction removes `replicas` and makes `dropped` with an ephemeral lock. From
   then on nobody can join the table. A crash before it leaves a table without replicas, which the next DROP
   or CREATE at that path finishes off, because what it says about inserted blocks is about data that is gone.
5. Under the lock all other children go, and a last transaction removes lock, `dropped` and the table. A crash
   leaves `dropped`, and whoever creates a table there takes the lock and goes on.

The lock lasts as long as the session, and every removal checks that it is there: who has lost it, with the
session or because Keeper has lost the table, cannot remove anything any more, neither of another table that
was made at the path since. The nodes of a replica go only as long as it has no `host`, which one that was
made again has. All steps may be repeated; a lost reply is followed by looking again.

6. Where the table's UUID is in its path, the nodes above the table that are empty go, up to the one with the
   UUID in its name: nobody else has anything there. A CREATE of another shard that meets one that has gone
   makes it again.

It never removes a table that has a replica, and no other node above the table's path.

Source: ClickHouse's ReplicatedMergeTree.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Collection, Sequence

from engine.errors import (
    Code,
    ConnectionLoss,
    KeeperUnavailable,
    MultiFailed,
    NodeExists,
    NoNode,
    NotEmpty,
    OperationTimeout,
    SqlError,
)
from engine.keeper.base import NO_SESSION, Check, Create, CreateMode, Keeper, Op, Remove, SetData
from engine.keeper.recipes import remove_recursive, remove_unowned, try_remove, wait_until_gone
from engine.replication.paths import ReplicaPaths, TablePaths

log = logging.getLogger(__name__)

_TRIES = 5
_ROUNDS = 10


class Dropped(enum.Enum):
    """What `drop_replica` removed."""

    NOTHING = "nothing"
    """There was no such replica."""
    REPLICA = "replica"
    TABLE = "table"
    """It was the last replica, and the table went with it (or somebody else removes it right now)."""


async def drop_replica(keeper: Keeper, paths: TablePaths, me: ReplicaPaths) -> Dropped:
    """Remove a replica whose background work has ended, and the table with its last replica.

    Asks again a few times when a reply is lost, then raises UnknownOutcome: call it again, on a new session
    if the old one is over.
    """
    for last in (*[False] * (_TRIES - 1), True):
        try:
            return await _drop(keeper, paths, me)
        except (ConnectionLoss, OperationTimeout):
            if last:
                raise
    raise AssertionError("unreachable")


async def drop_dead_replica(
    keeper: Keeper,
    paths: TablePaths,
    name: str,
    *,
    local_replicas: Collection[str] = (),
    proof: Sequence[Op] = (),
) -> Dropped:
    """SYSTEM DROP REPLICA: remove what a server that is gone has left.

    `local_replicas` are the names of this server's own replicas of the table. `proof` goes into the
    transaction after which the replica cannot become active: what the caller rests on. Raises SqlError 305
    TABLE_WAS_NOT_DROPPED for one of those, for an active replica, and where no replicated table is;
    MultiFailed if the proof does not hold; otherwise as `drop_replica`.
    """
    if name in local_replicas:
        raise SqlError(
            Code.TABLE_WAS_NOT_DROPPED,
            f"We can't drop local replica {name} of {paths.root}, please use `DROP TABLE` if you want to "
            "clean the data and drop this replica",
        )
    dead = paths.replica(name)
    replicas, dropped = await keeper.exists_many([paths.replicas, paths.dropped])
    if replicas is None and dropped is None:
        raise SqlError(Code.TABLE_WAS_NOT_DROPPED, f"{paths.root} does not look like a table path.")
    for last in (*[False] * (_TRIES - 1), True):
        try:
            await _retire(keeper, dead, proof)
            found = await _remove_retired(keeper, dead)
            return Dropped.TABLE if await remove_table_without_replicas(keeper, paths) else found
        except (ConnectionLoss, OperationTimeout):
            if last:
                raise
    raise AssertionError("unreachable")


async def _retire(keeper: Keeper, dead: ReplicaPaths, proof: Sequence[Op]) -> None:
    """Make it impossible that the replica becomes active, if it is not. Raises SqlError 305 if it is."""
    active = SqlError(
        Code.TABLE_WAS_NOT_DROPPED,
        f"Can't remove replica: {dead.name}, because it's active (replica path: {dead.root})",
        hint="Stop its server first, or drop the table there.",
    )
    if await keeper.exists(dead.is_active) is not None:
        raise active
    host, is_lost = await keeper.exists_many([dead.host, dead.is_lost])
    if proof and host is None:
        return  # a former attempt has proven it and come this far
    ops: list[Op] = [*proof, Create(dead.is_active), Remove(dead.is_active), Remove(dead.host)]
    if is_lost is not None:
        ops.append(SetData(dead.is_lost, b"1"))
    try:
        await keeper.multi(ops)
    except MultiFailed as failed:
        if failed.index < len(proof):
            raise
        if isinstance(failed.error, NodeExists):
            raise active from None
        if not isinstance(failed.error, NoNode):
            raise
        # No replica, or one that a former attempt has left without `host`: that one cannot become active.


async def _drop(keeper: Keeper, paths: TablePaths, me: ReplicaPaths) -> Dropped:
    if await keeper.exists(me.root) is not None:
        try:
            await keeper.set(me.is_lost, b"1")
        except NoNode:
            pass  # a former attempt came this far
        await try_remove(keeper, me.host)
    found = await _remove_retired(keeper, me)
    return Dropped.TABLE if await remove_table_without_replicas(keeper, paths) else found


async def _remove_retired(keeper: Keeper, me: ReplicaPaths) -> Dropped:
    """Step 3, of a replica without `host`."""
    if await keeper.exists(me.root) is None:
        return Dropped.NOTHING
    for _ in range(_ROUNDS):
        if await _remove_replica_nodes(keeper, me):
            break
    log.info("replication.replica_dropped replica=%s", me.root)
    return Dropped.REPLICA


async def _remove_replica_nodes(keeper: Keeper, me: ReplicaPaths) -> bool:
    """Whether all is gone. `creator_info` stays to the end: by it a server that crashed knows its replica."""
    try:
        names = (await keeper.children(me.root)).names
    except NoNode:
        return True
    # A replica of this name that was made meanwhile has a `host`: its nodes are not ours.
    fence: list[Op] = [Create(me.host), Remove(me.host)]
    try:
        for name in names:
            if f"{me.root}/{name}" != me.creator_info:
                await remove_recursive(keeper, f"{me.root}/{name}", fence=fence)
        ops: list[Op] = [*fence, Remove(me.root)]
        if await keeper.exists(me.creator_info) is not None:
            ops.insert(len(fence), Remove(me.creator_info))
        await keeper.multi(ops)
    except MultiFailed as failed:
        if isinstance(failed.error, NodeExists) and failed.index < len(fence):
            log.warning("replication.replica_made_anew replica=%s", me.root)
            return True
        if not isinstance(failed.error, NoNode | NotEmpty):
            raise
        return await keeper.exists(me.root) is None
    return True


async def remove_table_without_replicas(keeper: Keeper, paths: TablePaths) -> bool:
    """Remove the table if it has no replica; true if it had none. Steps 4 and 5; repeatable."""
    ops: list[Op] = [
        Remove(paths.replicas),
        Create(paths.dropped),
        Create(paths.dropped_lock, mode=CreateMode.EPHEMERAL),
    ]
    try:
        if (await keeper.children(paths.replicas)).names:
            return False
        await keeper.multi(ops)
    except NoNode:
        return await finish_dropping(keeper, paths)
    except MultiFailed as failed:
        if isinstance(failed.error, NotEmpty):
            return False  # a replica appeared
        if isinstance(failed.error, NoNode):
            return await finish_dropping(keeper, paths)
        raise
    await _remove_table_nodes(keeper, paths)
    return True


async def finish_dropping(keeper: Keeper, paths: TablePaths) -> bool:
    """Go on where somebody who dropped the table has stopped. True if the table is being dropped, or was.

    Does nothing while somebody else holds the lock.
    """
    try:
        await keeper.create(paths.dropped_lock, mode=CreateMode.EPHEMERAL)
    except NoNode:
        return await keeper.exists(paths.root) is None
    except NodeExists:
        if await remove_unowned(keeper, paths.dropped_lock):
            return await finish_dropping(keeper, paths)
        stat = await keeper.exists(paths.dropped_lock)
        if stat is None or stat.ephemeral_owner != keeper.session_id:
            return True
        # Our own, from an attempt whose reply was lost, or another statement of this server: removing twice
        # does no harm.
    await _remove_table_nodes(keeper, paths)
    return True


async def wait_until_dropped(keeper: Keeper, paths: TablePaths, *, timeout_s: float) -> None:
    """For a table that has no replica: until nothing of it is left. The lock of a process that was killed
    goes with its session, and the rest is removed here.

    Raises KeeperUnavailable where another session keeps the lock for so long; otherwise as `drop_replica`.
    """
    for _ in range(_ROUNDS):
        if await keeper.exists(paths.dropped) is None:
            return
        stat = await keeper.exists(paths.dropped_lock)
        if stat is not None and stat.ephemeral_owner not in (NO_SESSION, keeper.session_id):
            try:
                async with asyncio.timeout(timeout_s):
                    await wait_until_gone(keeper, paths.dropped_lock)
            except TimeoutError:
                break
        await finish_dropping(keeper, paths)
    raise KeeperUnavailable(
        f"{paths.root} has no replica, and is still being removed by another session with Keeper",
        hint="If that is of a process that was killed, it ends by itself: repeat the statement then.",
    )


async def remove_empty_above(keeper: Keeper, paths: TablePaths, uuid: str) -> None:
    """Step 6, when the table has gone. Repeatable; nothing where `uuid` is not above the table."""
    parent = paths.root.rpartition("/")[0]
    while uuid in parent:
        try:
            await keeper.remove(parent)
        except NotEmpty:
            return
        except NoNode:
            pass  # a former attempt came this far
        parent = parent.rpartition("/")[0]


async def _remove_table_nodes(keeper: Keeper, paths: TablePaths) -> None:
    """Under the lock. What is left (somebody added nodes meanwhile) is for the next who creates a table."""
    try:
        names = (await keeper.children(paths.root)).names
    except NoNode:
        return
    # Whoever removed the lock has made room for another table: its nodes are not ours.
    fence = [Check(paths.dropped_lock)]
    ops: list[Op] = [Remove(paths.dropped_lock), Remove(paths.dropped), Remove(paths.root)]
    try:
        for name in names:
            child = f"{paths.root}/{name}"
            if child != paths.dropped:
                await remove_recursive(keeper, child, fence=fence)
        await keeper.multi(ops)
    except MultiFailed as failed:
        if not isinstance(failed.error, NotEmpty | NoNode):
            raise
        log.warning("replication.table_not_wholly_dropped path=%s reason=%s", paths.root, failed)
        return
    log.info("replication.table_dropped path=%s", paths.root)
