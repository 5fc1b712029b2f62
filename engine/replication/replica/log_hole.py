"""Entries of the log were removed that this replica has not copied: what it does about them.

The log is numbered without gaps, and cleaning takes entries away from its beginning, so a gap behind the log
pointer means that somebody has removed entries by hand, perhaps one that no replica could read. What they
said, only those know who have copied them.

Safety argument. It runs at the start of a term: nothing is executed, the queue is known, and all of the log
before the hole has been copied.

1. Where another replica that is not lost has copied something of it, this one makes itself a copy of that
   (`clone`). `is_lost` becomes 1 in a transaction that checks that the other has not become lost, so two
   replicas can never both rely on each other. A crash leaves a lost replica, which clones at its next start.
   One that stands before a hole itself is not copied while it is active, but waited for: it will pass that,
   and take over what is only here.
2. Otherwise nobody has executed what is missing. An INSERT has made its part one of its replica's all the
   same (that is one transaction with the entry): what the others have is put into the queue, but for what
   they are still to drop; where that cannot be told, only parts whose block id is there, which would have
   been forgotten with a drop. Then the pointer passes the hole, in one transaction with the last of these
   entries. After a crash before that, parts that are queued already are not queued again.
   A merge that is lost is assigned again. A DROP or REPLACE PARTITION that is lost has happened nowhere, or
   only where it was asked for; the error in the log says so. Columns and metadata are taken from the table.

It never removes a part; what a copy has no use for goes to `detached/`.

ClickHouse passes over such holes without a word, and is without those parts until they are merged elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from engine.errors import KeeperAnswer, MalformedEntry, MultiFailed, SqlError
from engine.keeper.base import Check, Children, Create, CreateMode, Keeper, Node, Op, SetData
from engine.keeper.recipes import MULTI_BATCH_SIZE
from engine.replication.log_actions import Action, AlterMetadata, GetPart
from engine.replication.log_entry import LogEntry
from engine.replication.part_name import PartName
from engine.replication.paths import ReplicaPaths, sequence_number
from engine.replication.replica import clone, peers
from engine.replication.replica.cleanup.blocks import inserted_parts
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.execution.outcome import LogHole, TermOver
from engine.replication.replica.queue import loader as queue_loader
from engine.replication.replica.startup_check import own_entry

log = logging.getLogger(__name__)


async def mend(ctx: ReplicaContext, keeper: Keeper, hole: LogHole) -> None:
    """After it the queue is loaded anew, and the log can be copied. Repeatable. Raises SqlError 415 and 416,
    MalformedEntry, what Keeper raises."""
    log.error(
        "replica.log_hole table=%s replica=%s first=%d next=%d", ctx.name, ctx.replica, hole.first, hole.next
    )
    numbers = {sequence_number(name) for name in (await keeper.children(ctx.paths.log)).names}
    ahead = await _ahead(ctx, keeper, hole)
    for name, pointer in ahead.items():
        stands_before_hole = pointer not in numbers and any((each or 0) > pointer for each in numbers)
        if stands_before_hole and await keeper.exists(ctx.paths.replica(name).is_active) is not None:
            raise TermOver(f"{hole} Waiting for replica {name}, which meets such a hole, too.")
    if not ahead:
        await _pass_over(ctx, keeper, hole)
        await queue_loader.load(ctx, keeper)
    elif not await become_a_copy(ctx, keeper, ahead_of=hole.first):
        raise TermOver(f"{hole} The replicas that have copied them change just now: {', '.join(ahead)}.")


async def _ahead(ctx: ReplicaContext, keeper: Keeper, hole: LogHole) -> Mapping[str, int]:
    """Log pointers of the replicas that have copied more than this one."""
    found: dict[str, int] = {}
    for replica in await peers.others(ctx, keeper):
        is_lost, pointer = await keeper.get_many([replica.is_lost, replica.log_pointer])
        if not isinstance(pointer, Node) or (isinstance(is_lost, Node) and is_lost.data == b"1"):
            continue
        if peers.number(pointer.data) > hole.first:
            found[replica.name] = peers.number(pointer.data)
    return found


async def become_a_copy(ctx: ReplicaContext, keeper: Keeper, *, ahead_of: int = -1) -> bool:
    """Give up what this replica has of the log and its queue, for those of another one whose log pointer is
    beyond `ahead_of`. False: there is none that could be copied, and nothing was done."""
    try:
        source = await clone.choose_source(ctx, keeper, ahead_of=ahead_of)
    except SqlError:
        return False
    lost = await keeper.exists(source.is_lost)
    await clone.read_queue(keeper, source)  # if that cannot be read, nothing is given up
    ops: list[Op] = [] if lost is None else [Check(source.is_lost, lost.version)]
    try:
        await keeper.multi([*ops, SetData(ctx.me.is_lost, b"1")])
    except MultiFailed:
        return False
    await clone.clone_if_lost(ctx, keeper, ahead_of=ahead_of)
    await queue_loader.load(ctx, keeper)
    return True


async def _pass_over(ctx: ReplicaContext, keeper: Keeper, hole: LogHole) -> None:
    pointer = await keeper.get(ctx.me.log_pointer)
    if peers.number(pointer.data) != hole.first:
        return  # it was passed by an attempt whose answer was lost
    actions: list[Action] = [GetPart(part) for part in await _parts_of_others(ctx, keeper, hole)]
    actions += await _metadata(ctx, keeper, hole)
    entries: list[Op] = [
        Create(ctx.me.queue_prefix, own_entry(ctx, action).to_bytes(), CreateMode.PERSISTENT_SEQUENTIAL)
        for action in actions
    ]
    while len(entries) > MULTI_BATCH_SIZE:
        await keeper.multi(entries[:MULTI_BATCH_SIZE])
        entries = entries[MULTI_BATCH_SIZE:]
    passing = SetData(ctx.me.log_pointer, str(hole.next).encode(), pointer.stat.version)
    await keeper.multi([*entries, passing])
    log.error(
        "replica.log_hole_passed table=%s replica=%s first=%d next=%d taken_over=%s: no replica had copied "
        "these entries; look whether a DROP or REPLACE PARTITION is to be repeated",
        ctx.name,
        ctx.replica,
        hole.first,
        hole.next,
        [action.text() for action in actions],
    )


async def _parts_of_others(ctx: ReplicaContext, keeper: Keeper, hole: LogHole) -> Sequence[PartName]:
    """What other replicas have, or will have, that this one has not, nor will have, nor has dropped. Of those
    of which it cannot be told what they still have to drop, what was never dropped for sure."""
    found: list[PartName] = []
    virtual = ctx.queue.virtual_parts.copy()
    for replica in await peers.others(ctx, keeper):
        # Read before the parts: what is dropped meanwhile is not among them.
        to_do = await _left_to_do(ctx, keeper, replica, hole.first)
        listed = await keeper.children_many([replica.parts])
        names = listed[0].names if isinstance(listed[0], Children) else ()
        parts = [part for name in names if (part := PartName.try_parse(name)) is not None]
        if to_do is None:
            inserted = await inserted_parts(keeper, ctx.paths, {part.partition_id for part in parts})
            parts = [part for part in parts if any(part.contains(each) for each in inserted)]
        dropped = clone.dropped_ranges(to_do or [])
        for part in clone.wanted_parts(parts, to_do or []):
            if any(span.contains(part) for span in dropped):
                continue
            if virtual.get_containing(part) is None and all(
                part.contains(other) for other in virtual.intersecting(part)
            ):
                virtual.add(part)
                found.append(part)
    return found


async def _left_to_do(
    ctx: ReplicaContext, keeper: Keeper, replica: ReplicaPaths, end: int
) -> Sequence[LogEntry] | None:
    """The replica's queue, and what it will copy of the log before the hole. None if that cannot be told: it
    may have what all others have dropped. It will make itself a copy of one of them."""
    is_lost, pointer = await keeper.get_many([replica.is_lost, replica.log_pointer])
    if not isinstance(pointer, Node) or (isinstance(is_lost, Node) and is_lost.data == b"1"):
        return None
    try:
        queue = await clone.read_queue(keeper, replica)
        first = peers.number(pointer.data)
        nodes = await keeper.get_many([f"{ctx.paths.log_prefix}{number:010}" for number in range(first, end)])
        if any(isinstance(node, KeeperAnswer) for node in nodes):
            return None
        to_copy = [LogEntry.from_bytes(node.data) for node in nodes if isinstance(node, Node)]
    except MalformedEntry as error:
        log.error("replica.log_hole_not_taken_over table=%s from=%s error=%s", ctx.name, replica.name, error)
        return None
    return [*(each.entry for each in queue), *to_copy]


async def _metadata(ctx: ReplicaContext, keeper: Keeper, hole: LogHole) -> Sequence[Action]:
    """The ALTER that was lost with the hole, if one was and none comes after it."""
    metadata, columns = await keeper.get(ctx.paths.metadata), await keeper.get(ctx.paths.columns)
    version = metadata.stat.version
    queued = [
        each.entry.action.alter_version
        for each in ctx.queue.entries
        if isinstance(each.entry.action, AlterMetadata)
    ]
    if version <= max([ctx.metadata_version, *queued]):
        return []
    names = [
        name
        for name in (await keeper.children(ctx.paths.log)).names
        if (sequence_number(name) or 0) >= hole.next
    ]
    for node in await keeper.get_many([ctx.paths.log_entry(name) for name in names]):
        try:
            if isinstance(node, Node) and isinstance(LogEntry.from_bytes(node.data).action, AlterMetadata):
                return []
        except MalformedEntry:
            continue
    has_mutation = any(state.alter_version == version for state in ctx.queue.mutations.values())
    texts = [node.data.decode("utf-8", "surrogateescape") for node in (columns, metadata)]
    return [AlterMetadata(version, have_mutation=has_mutation, columns=texts[0], metadata=texts[1])]
