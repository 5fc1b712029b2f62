"""Makes a replica that is lost, or new, like another one.

Safety argument. `is_lost` says 1 until the end, so a crash at any step repeats everything; `is_active` is
ours, so nobody else does the same.

1. Choose the source: of the replicas that are not lost the one with the least to do.
2. Empty `queue/`.
3. List the source's queue, then one multi: set `log_pointer` to the source's, with checks that the source's
   `is_lost` and `log_pointer` have not changed since. Nothing can have been removed from the log behind that
   pointer then, and what the source had not copied yet, this replica will copy itself. Then list its parts:
   what it did meanwhile is there. And its queue again, until `parts/` has not changed in between: a part that
   its part check found damaged is in one of the two.
4. Parts that the source does not have, will not make, and that no later entry of the log speaks of, are taken
   out of `parts/` and moved to `detached/clone_…`. Nothing is deleted. One whose insert was recorded, but has
   not heard of it yet, will be shown by that insert: an entry of our own, a DROP_RANGE around this one part,
   waits for it and detaches it. What is in `parts/` is listed before the log is, so that no insert that is
   recorded meanwhile is taken for one of these.
5. For every part of the source that is not here: GET_PART into `queue/`; ATTACH_PART where `detached/` may
   have it. Then the rest of the source's queue, byte for byte.
6. `is_lost` becomes 0.

Source: ClickHouse's StorageReplicatedMergeTree::cloneReplica.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.errors import (
    BadVersion,
    Code,
    ConnectionLoss,
    KeeperAnswer,
    MalformedEntry,
    MultiFailed,
    NoNode,
    OperationTimeout,
    SqlError,
)
from engine.keeper.base import Check, Create, CreateMode, Keeper, Op, SetData
from engine.keeper.recipes import MULTI_BATCH_SIZE, try_remove
from engine.replication.log_actions import (
    Action,
    AlterMetadata,
    AttachPart,
    DropRange,
    GetPart,
    RangeFate,
    ReplaceRange,
)
from engine.replication.log_entry import LogEntry
from engine.replication.part_name import MAX_BLOCK_NUMBER, MAX_LEVEL, PartName
from engine.replication.part_set import ActivePartSet
from engine.replication.part_store import Fate
from engine.replication.paths import ReplicaPaths, sequence_number
from engine.replication.replica import peers
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.log_puller import MAX_BATCH_BYTES
from engine.replication.replica.startup_check import own_entry

log = logging.getLogger(__name__)

_ATTEMPTS = 100
_LOST = b"1"


@dataclass(frozen=True, slots=True)
class _Queued:
    entry: LogEntry
    raw: bytes


async def clone_if_lost(ctx: ReplicaContext, keeper: Keeper, *, ahead_of: int = -1) -> bool:
    """Whether the replica was lost and is whole now (its queue will bring the parts). `ahead_of` as for
    `choose_source`.

    Raises SqlError 415 ALL_REPLICAS_LOST, 416 REPLICA_STATUS_CHANGED: try again later.
    """
    try:
        node = await keeper.get(ctx.me.is_lost)
    except NoNode:
        return False
    if node.data != _LOST:
        return False
    source = await choose_source(ctx, keeper, ahead_of=ahead_of)
    log.warning("replica.cloning table=%s source=%s is_new=%s", ctx.name, source.name, node.stat.version == 0)
    for name in (await keeper.children(ctx.me.queue)).names:
        await try_remove(keeper, ctx.me.queue_entry(name))
    queue = await _take_position(ctx, keeper, source)
    await _clone_from(ctx, keeper, source, queue)
    await _set(keeper, ctx.me.is_lost, b"0")
    return True


async def choose_source(ctx: ReplicaContext, keeper: Keeper, *, ahead_of: int = -1) -> ReplicaPaths:
    """The replica to copy, of those whose log pointer is beyond `ahead_of`. Raises SqlError 415."""
    log_numbers = [sequence_number(name) or 0 for name in (await keeper.children(ctx.paths.log)).names]
    log_end = max(log_numbers) + 1 if log_numbers else 0
    best: tuple[int, str] | None = None
    replicas = {replica.name: replica for replica in await peers.others(ctx, keeper)}
    for name, replica in sorted(replicas.items()):
        is_lost, pointer = await keeper.get_many([replica.is_lost, replica.log_pointer])
        queue = await keeper.exists(replica.queue)
        if isinstance(pointer, KeeperAnswer) or queue is None:
            continue
        if pointer.data and not pointer.data.isdigit():
            continue  # nobody can stand there
        if peers.number(pointer.data) <= ahead_of:
            continue
        if not isinstance(is_lost, KeeperAnswer) and is_lost.data == _LOST:
            continue
        to_do = log_end - peers.number(pointer.data) + queue.num_children
        if best is None or to_do < best[0]:
            best = (to_do, name)
    if best is None:
        raise SqlError(
            Code.ALL_REPLICAS_LOST,
            f"All replicas of table {ctx.name} are lost, none can be copied",
            hint="Decide which one has the data and set its is_lost to 0.",
        )
    return replicas[best[1]]


async def _take_position(ctx: ReplicaContext, keeper: Keeper, source: ReplicaPaths) -> list[_Queued]:
    """Stand at the source's place in the log; returns its queue as it was there."""
    for _ in range(_ATTEMPTS):
        pointer = await keeper.get(source.log_pointer)
        lost = await keeper.exists(source.is_lost)
        queue = await read_queue(keeper, source)
        ops: list[Op] = [SetData(ctx.me.log_pointer, pointer.data)]
        if lost is not None:
            ops.append(Check(source.is_lost, lost.version))
        ops.append(Check(source.log_pointer, pointer.stat.version))
        try:
            await keeper.multi(ops)
        except (ConnectionLoss, OperationTimeout):
            await keeper.sync(ctx.me.log_pointer)
            continue
        except MultiFailed as failed:
            if failed.error.path == source.is_lost:
                raise SqlError(
                    Code.REPLICA_STATUS_CHANGED, f"Replica {source.name} was marked as lost just now"
                ) from failed
            if isinstance(failed.error, BadVersion):
                continue
            raise
        now = await keeper.get(source.is_lost) if lost is not None else None
        if now is not None and now.data == _LOST:
            raise SqlError(Code.REPLICA_STATUS_CHANGED, f"Replica {source.name} is lost")
        return queue
    raise SqlError(
        Code.REPLICA_STATUS_CHANGED,
        f"Replica {source.name} goes on copying its log, no copy of it can be made",
    )


async def read_queue(keeper: Keeper, source: ReplicaPaths) -> list[_Queued]:
    """Raises MalformedEntry."""
    names = [
        name for name in (await keeper.children(source.queue)).names if sequence_number(name) is not None
    ]
    names.sort(key=lambda name: sequence_number(name) or 0)
    queue: list[_Queued] = []
    for name, node in zip(
        names, await keeper.get_many([source.queue_entry(name) for name in names]), strict=True
    ):
        if isinstance(node, NoNode):
            continue  # Done in the meantime: its part is in the listing of parts, which follows.
        if isinstance(node, KeeperAnswer):
            raise node
        queue.append(_Queued(LogEntry.from_bytes(node.data, where=f"{source.queue}/{name}"), node.data))
    return queue


async def _clone_from(
    ctx: ReplicaContext, keeper: Keeper, source: ReplicaPaths, queue: Sequence[_Queued]
) -> None:
    await _adopt_metadata(ctx, keeper, source)
    parts, put_back = await _parts_of(keeper, source)
    wanted = wanted_parts(parts, [each.entry for each in [*queue, *put_back]])
    kept = ActivePartSet(wanted)
    own = _names((await keeper.children(ctx.me.parts)).names)
    to_come = [part for each in queue for part in each.entry.new_parts]
    for part in [*to_come, *await _named_later(ctx, keeper)]:
        # What the source is still to merge or to mutate may be here already, and nowhere else.
        if all(part.contains(other) for other in kept.intersecting(part)):
            kept.add(part)
    stray = sorted(
        part for part in ctx.store.active if kept.get_containing(part) is None and part not in ctx.in_flight
    )
    active, staged = ActivePartSet(ctx.store.active.keys() - set(stray)), ctx.store.staged.keys() & set(own)
    await ctx.store.remove(stray, fate=Fate.DETACH, prefix="clone")
    # What is here and Keeper has not recorded as ours is fetched, too: the check at start moves it aside, and
    # nothing else would say then that it is to be had.
    known = ActivePartSet([part for part in own if part in active or part in staged])
    for part in own:
        is_here = active.get_containing(part) is not None or known.get_containing(part) is not None
        is_wanted = kept.get_containing(part) is not None
        if part not in ctx.in_flight and not (is_wanted and is_here):
            await try_remove(keeper, ctx.me.part(part))
    missing = [part for part in wanted if known.get_containing(part) is None]
    actions = await _fetches(ctx, keeper, source, missing)
    outdated = [part for part in own if part in ctx.in_flight and kept.get_containing(part) is None]
    actions += [DropRange(_around(part), RangeFate.DETACH) for part in outdated]
    entries = [own_entry(ctx, action).to_bytes() for action in actions]
    entries += [each.raw for each in queue if not isinstance(each.entry.action, GetPart | AttachPart)]
    await _append(ctx, keeper, entries)
    log.info("replica.cloned table=%s parts_to_fetch=%d entries=%d", ctx.name, len(missing), len(entries))


def _around(part: PartName) -> PartName:
    """The range of this part's blocks."""
    return part._replace(level=MAX_LEVEL, mutation=MAX_BLOCK_NUMBER)


async def _parts_of(keeper: Keeper, source: ReplicaPaths) -> tuple[list[PartName], list[_Queued]]:
    """The source's parts, and the entries by which it fetches again what it had, of one moment."""
    for _ in range(_ATTEMPTS):
        parts = await keeper.children(source.parts)
        put_back = [
            each
            for each in await read_queue(keeper, source)
            if isinstance(each.entry.action, GetPart | AttachPart) and not each.entry.source_replica
        ]
        now = await keeper.exists(source.parts)
        if now is not None and now.cversion == parts.stat.cversion:
            return _names(parts.names), put_back
    raise SqlError(
        Code.REPLICA_STATUS_CHANGED, f"The parts of replica {source.name} change faster than they are listed"
    )


def _names(names: Iterable[str]) -> list[PartName]:
    return sorted(part for name in names if (part := PartName.try_parse(name)) is not None)


def wanted_parts(parts: Sequence[PartName], queue: Sequence[LogEntry]) -> ActivePartSet:
    """The source's parts, and what it is still to fetch, without what it is about to drop of that."""
    dropped = dropped_ranges(queue)
    wanted = ActivePartSet(parts)
    for entry in queue:
        if isinstance(entry.action, GetPart | AttachPart):
            part = entry.action.part
            if not any(span.contains(part) for span in dropped):
                wanted.add(part)
    return wanted


def dropped_ranges(queue: Sequence[LogEntry]) -> list[PartName]:
    """What these entries take away."""
    return [
        entry.action.range
        for entry in queue
        if isinstance(entry.action, DropRange)
        or (isinstance(entry.action, ReplaceRange) and entry.action.drops)
    ]


async def _named_later(ctx: ReplicaContext, keeper: Keeper) -> list[PartName]:
    """Parts that the log will speak of, from the new position on: what is here of them must stay, because
    nobody else may have it yet. Raises MalformedEntry for an entry that cannot be read, if anything is here.
    """
    start = peers.number((await keeper.get(ctx.me.log_pointer)).data)
    names = [n for n in (await keeper.children(ctx.paths.log)).names if (sequence_number(n) or 0) >= start]
    named: list[PartName] = []
    for first in range(0, len(names), MULTI_BATCH_SIZE):
        batch = names[first : first + MULTI_BATCH_SIZE]
        for name, node in zip(
            batch, await keeper.get_many([ctx.paths.log_entry(name) for name in batch]), strict=True
        ):
            if isinstance(node, KeeperAnswer):
                continue
            try:
                named += LogEntry.from_bytes(node.data, where=f"{name} of {ctx.paths.log}").new_parts
            except MalformedEntry:
                if ctx.store.active:
                    raise
    return named


async def _fetches(
    ctx: ReplicaContext, keeper: Keeper, source: ReplicaPaths, missing: Sequence[PartName]
) -> list[Action]:
    detached = {
        each.name.partition_id
        for each in await ctx.store.detached()
        if each.name and each.prefix in ("", "restoring")
    }
    actions: list[Action] = []
    for part in missing:
        header = await peers.header(keeper, source, part) if part.partition_id in detached else None
        actions.append(GetPart(part) if header is None else AttachPart(part, header.digest.hash_text))
    return actions


async def _adopt_metadata(ctx: ReplicaContext, keeper: Keeper, source: ReplicaPaths) -> None:
    """If the source's metadata is of another version, an entry that makes it ours comes first."""
    theirs, metadata, columns = await keeper.get_many(
        [source.metadata_version, source.metadata, source.columns]
    )
    if any(isinstance(node, KeeperAnswer) for node in (theirs, metadata, columns)):
        return
    assert not isinstance(theirs, KeeperAnswer)
    assert not isinstance(metadata, KeeperAnswer) and not isinstance(columns, KeeperAnswer)
    version = peers.number(theirs.data)
    if version == ctx.metadata_version:
        return
    action = AlterMetadata(
        version,
        have_mutation=False,
        columns=columns.data.decode("utf-8", "surrogateescape"),
        metadata=metadata.data.decode("utf-8", "surrogateescape"),
    )
    await _append(ctx, keeper, [own_entry(ctx, action).to_bytes()])


async def _append(ctx: ReplicaContext, keeper: Keeper, entries: Sequence[bytes]) -> None:
    """Nothing is repeated here after a lost reply: the error goes up, and cloning begins anew."""
    batch: list[Op] = []
    size_bytes = 0
    for data in entries:
        size_bytes += len(data)
        if batch and (len(batch) == MULTI_BATCH_SIZE or size_bytes > MAX_BATCH_BYTES):
            await keeper.multi(batch)
            batch, size_bytes = [], len(data)
        batch.append(Create(ctx.me.queue_prefix, data, CreateMode.PERSISTENT_SEQUENTIAL))
    await keeper.multi(batch)


async def _set(keeper: Keeper, path: str, data: bytes) -> None:
    while True:
        try:
            await keeper.set(path, data)
            return
        except (ConnectionLoss, OperationTimeout):
            await keeper.sync(path)
