"""Compares the parts on disk with those in Keeper when a replica begins a term, and settles the differences.

Safety argument. It runs while `is_active` is ours, nothing is executed yet, and the queue with the whole log
is known. Parts that an operation of this process has in flight are left to it.

1. Staged parts that Keeper knows are published, except those that a queued REPLACE_RANGE will show together
   with what it hides, and those that a queued drop throws away or detaches. Others are thrown away: nobody
   was ever told of them.
2. Active parts that Keeper does not know and no part of Keeper's covers are *unexpected*. If their rows are
   more than the permitted share, nothing is done at all (231): then it is more likely that Keeper or the disk
   is the wrong one. Otherwise they go to `detached/ignored_…`; nothing is deleted.
3. Parts that Keeper knows and that are not here are *missing*: one multi removes `parts/<part>` and puts a
   GET_PART into the queue, so there is no moment at which neither says that the part is due.

What a queued drop will take away is neither unexpected nor missing: that entry began and was interrupted.
A crash after any step leaves a state in which all of it can be done again.

Source: ClickHouse's StorageReplicatedMergeTree::checkParts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from engine.errors import (
    Code,
    ConnectionLoss,
    KeeperAnswer,
    MultiFailed,
    NoNode,
    OperationTimeout,
    SqlError,
)
from engine.keeper.base import Create, CreateMode, Keeper, Node, Op, Remove
from engine.keeper.recipes import try_remove
from engine.replication.log_actions import Action, GetPart, ReplaceRange
from engine.replication.log_entry import LogEntry
from engine.replication.part_name import PartName
from engine.replication.part_set import ActivePartSet
from engine.replication.part_store import Fate
from engine.replication.replica import commit_part, peers
from engine.replication.replica.context import ReplicaContext
from engine.replication.text import time_text

log = logging.getLogger(__name__)


def check_broken(ctx: ReplicaContext, broken: Sequence[str], broken_bytes: int) -> None:
    """Raises SqlError 231 if more is broken than may be without a person having looked."""
    limit_bytes = ctx.settings.max_suspicious_broken_parts_bytes
    if broken_bytes > limit_bytes:
        raise SqlError(
            Code.TOO_MANY_UNEXPECTED_DATA_PARTS,
            f"Suspiciously big size ({len(broken)} parts, {broken_bytes} bytes in total) of all broken parts "
            f"of table {ctx.name} to remove while maximum allowed is {limit_bytes} bytes",
            hint=_HINT.format(path=ctx.me.force_restore_data),
        )
    limit = ctx.settings.max_suspicious_broken_parts
    if len(broken) > limit:
        raise SqlError(
            Code.TOO_MANY_UNEXPECTED_DATA_PARTS,
            f"Suspiciously many ({len(broken)}) broken parts of table {ctx.name} to remove while maximum "
            f"allowed is {limit}",
            hint=_HINT.format(path=ctx.me.force_restore_data),
        )


async def check_parts(ctx: ReplicaContext, keeper: Keeper, *, is_forced: bool) -> bool:
    """Settle the differences; whether `queue/` or `parts/` were changed, so that the queue has to be loaded
    again. Raises SqlError 231 TOO_MANY_UNEXPECTED_DATA_PARTS."""
    expected = _names((await keeper.children(ctx.me.parts)).names)
    unexpected = _unexpected(ctx, expected)
    if not is_forced:
        _check_ratio(ctx, unexpected)
    await _settle_staged(ctx, frozenset(expected))
    if unexpected:
        log.warning("replica.parts_ignored table=%s parts=%s", ctx.name, ",".join(map(str, unexpected)))
        await ctx.store.remove(unexpected, fate=Fate.DETACH, prefix="ignored")
    return await _fetch_missing(ctx, keeper, expected)


async def is_known_elsewhere(ctx: ReplicaContext, keeper: Keeper) -> bool:
    """Whether another replica, which is not lost, has one of the parts here that Keeper does not know as this
    one's. Then it is Keeper that has lost what it said of this replica. Moving its parts aside would leave it
    without rows that all others have: no entry of the log brings those again. To be asked when the queue and
    the log are known."""
    unexpected = _unexpected(ctx, _names((await keeper.children(ctx.me.parts)).names))
    if not unexpected:
        return False
    ours = ActivePartSet(unexpected)
    replicas = await peers.others(ctx, keeper)
    lost = await keeper.get_many([replica.is_lost for replica in replicas])
    listed = await keeper.children_many([replica.parts for replica in replicas])
    for is_lost, parts in zip(lost, listed, strict=True):
        if isinstance(parts, KeeperAnswer) or (isinstance(is_lost, Node) and is_lost.data == b"1"):
            continue
        if any(ours.parts_covered_by(theirs) for theirs in _names(parts.names)):
            return True
    return False


def _names(names: Iterable[str]) -> list[PartName]:
    return [part for name in names if (part := PartName.try_parse(name)) is not None]


async def settle_attaching(ctx: ReplicaContext, keeper: Keeper) -> None:
    """Of what an ATTACH that ended in the middle has left in `detached/`: what became a part of this replica
    goes, or it would be attached once more. To be called before anything takes parts away; Keeper may have
    lost the replica."""
    noted = {each: part for each, part in ctx.store.attaching.items() if part not in ctx.in_flight}
    if not noted:
        return
    (listed,) = await keeper.children_many([ctx.me.parts])
    if isinstance(listed, KeeperAnswer) and not isinstance(listed, NoNode):
        raise listed
    names = [] if isinstance(listed, KeeperAnswer) else listed.names
    there = ActivePartSet([*ctx.store.active, *_names(names)])
    for directory, part in sorted(noted.items()):
        if there.get_containing(part) is None:
            await ctx.store.forget_attaching(directory)
        else:
            log.info("replica.attached_before table=%s part=%s from=%s", ctx.name, part, directory)
            await ctx.store.remove_detached(directory)


async def enqueue(
    ctx: ReplicaContext, keeper: Keeper, actions: Sequence[Action], *, forgetting: Sequence[PartName] = ()
) -> None:
    """One multi: entries for this replica alone, and the nodes of parts they stand for removed.

    After a lost reply it looks: where the nodes to be removed are gone, the entries are there. Raises
    MultiFailed (NoNode) if a node was gone before.
    """
    ops: list[Op] = [
        Create(ctx.me.queue_prefix, own_entry(ctx, action).to_bytes(), CreateMode.PERSISTENT_SEQUENTIAL)
        for action in actions
    ]
    ops += [Remove(ctx.me.part(part)) for part in forgetting]
    while True:
        try:
            await keeper.multi(ops)
            return
        except (ConnectionLoss, OperationTimeout):
            if not forgetting:
                raise
            await keeper.sync(ctx.me.parts)
            if await keeper.exists(ctx.me.part(forgetting[0])) is None:
                return


def own_entry(ctx: ReplicaContext, action: Action) -> LogEntry:
    """An entry that is in no log; its source replica is empty."""
    return LogEntry(action, source_replica="", create_time=time_text(ctx.env.now_s()))


_HINT = (
    "Create {path} in Keeper, or the file flags/force_restore_data, to have them moved to detached/ and the "
    "right ones fetched."
)


def _unexpected(ctx: ReplicaContext, expected: Sequence[PartName]) -> list[PartName]:
    covering = ActivePartSet(expected)
    return sorted(
        part
        for part in ctx.store.active
        if covering.get_containing(part) is None
        and part not in ctx.in_flight
        and not ctx.queue.is_to_be_dropped(part)
        and ctx.queue.producer_of(part) is None
    )


def _check_ratio(ctx: ReplicaContext, unexpected: Sequence[PartName]) -> None:
    active = ctx.store.active
    rows = sum(part.rows for part in active.values())
    wrong = sum(active[part].rows for part in unexpected)
    ratio = ctx.settings.replicated_max_ratio_of_wrong_parts
    if wrong > rows * ratio:
        raise SqlError(
            Code.TOO_MANY_UNEXPECTED_DATA_PARTS,
            f"The local set of parts of table {ctx.name} doesn't look like the set of parts in Keeper: "
            f"{wrong} rows of {rows} total rows in filesystem are suspicious. There are {len(unexpected)} "
            f"unexpected parts with {wrong} rows",
            hint=_HINT.format(path=ctx.me.force_restore_data),
        )


async def _settle_staged(ctx: ReplicaContext, expected: frozenset[PartName]) -> None:
    replacing = {
        part
        for queued in ctx.queue.entries
        if isinstance(queued.entry.action, ReplaceRange)
        for part in queued.entry.new_parts
    }
    for part in sorted(ctx.store.staged):
        if part in ctx.in_flight or (part in expected and part in replacing):
            continue
        if part not in expected:
            await ctx.store.discard(part)
        elif not ctx.queue.is_to_be_dropped(part):
            await commit_part.publish(ctx, [part])
            log.info("replica.staged_published table=%s part=%s", ctx.name, part)


async def _fetch_missing(ctx: ReplicaContext, keeper: Keeper, expected: Sequence[PartName]) -> bool:
    here = ActivePartSet(ctx.store.active)
    wanted = ActivePartSet(expected)
    has_changed = False
    for part in sorted(expected):
        if (
            here.get_containing(part) is not None
            or part in ctx.store.staged
            or part in ctx.in_flight
            or ctx.queue.is_to_be_dropped(part)
        ):
            continue
        has_changed = True
        if part not in wanted:
            await try_remove(keeper, ctx.me.part(part))
            continue
        try:
            await enqueue(ctx, keeper, [GetPart(part)], forgetting=[part])
        except MultiFailed as failed:
            if not isinstance(failed.error, NoNode):
                raise
        log.warning("replica.part_missing table=%s part=%s", ctx.name, part)
    return has_changed
