"""Fills the queue in memory from Keeper: at activation, and after a write whose outcome is unknown.

It only reads. Each of the functions may be repeated.
"""

from __future__ import annotations

import logging

from engine.errors import KeeperAnswer, MalformedEntry, NoNode
from engine.keeper.base import Keeper, Node, Watch
from engine.replication.log_entry import LogEntry
from engine.replication.mutation_entry import MutationEntry, mutation_number
from engine.replication.part_name import PartName
from engine.replication.paths import sequence_number
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.queue.queue import QueuedEntry

log = logging.getLogger(__name__)

BATCH = 500
"""Nodes that are read at a time."""


async def load(ctx: ReplicaContext, keeper: Keeper) -> None:
    """Everything anew: the replica's parts, its queue and the table's mutations.

    Raises MalformedEntry for an entry that this version does not understand: passing it over would make
    another replica of this one. Raises PartsIntersect.
    """
    names = (await keeper.children(ctx.me.parts)).names
    parts = [part for name in names if (part := PartName.try_parse(name)) is not None]
    if len(parts) < len(names):  # nobody's data: no other step looks at them, either
        log.error("replica.no_part_names table=%s path=%s", ctx.name, ctx.me.parts)
    ctx.queue.reset(parts)
    await add_new_entries(ctx, keeper)
    pointer = await keeper.get(ctx.me.mutation_pointer)
    done = mutation_number(pointer.data.decode("utf-8", "replace"))
    ctx.queue.mutation_pointer = -1 if done is None else done
    await load_mutations(ctx, keeper)
    for number, state in ctx.queue.mutations.items():
        if number <= ctx.queue.mutation_pointer:
            state.is_done, state.finished_s = True, pointer.stat.mtime_ms / 1e3


async def add_new_entries(ctx: ReplicaContext, keeper: Keeper) -> int:
    """Entries that are in `queue/` and not in memory; returns how many.

    Entries are added to `queue/` by this replica alone, and leave memory only after they left Keeper, so the
    listing decides which of them are new.
    """
    known = {queued.name for queued in ctx.queue.entries}
    listed = (await keeper.children(ctx.me.queue)).names
    names = [name for name in listed if sequence_number(name) is not None and name not in known]
    names.sort(key=lambda name: sequence_number(name) or 0)
    added = 0
    for start in range(0, len(names), BATCH):
        batch = names[start : start + BATCH]
        nodes = await keeper.get_many([ctx.me.queue_entry(name) for name in batch])
        for name, node in zip(batch, nodes, strict=True):
            if isinstance(node, NoNode):
                continue
            data = _value(node)
            try:
                entry = LogEntry.from_bytes(data, where=f"entry {name} of the queue of {ctx.me.root}")
            except MalformedEntry as error:
                log.error("replica.entry_unreadable table=%s entry=%s data=%r", ctx.name, name, data[:500])
                error.hint = (
                    f"Mend or remove {ctx.me.queue_entry(name)} in Keeper; the replica goes on by itself. "
                    "What it asks for is not done here if it is removed."
                )
                raise
            ctx.queue.add(QueuedEntry(name, entry, data))
            added += 1
    return added


async def load_mutations(ctx: ReplicaContext, keeper: Keeper, *, watch: Watch | None = None) -> None:
    """Make the queue's mutations those of Keeper, and wake whoever waits for a change of that.

    Mutations do not change, so only new ones are read, and those again that could not be read: they stop
    what depends on them and nothing else, until they are mended or removed. One that is removed between the
    listing and the reading was never here.
    """
    async with ctx.loading_mutations:
        listed = (await keeper.children(ctx.paths.mutations, watch=watch)).names
        numbers = sorted(number for name in listed if (number := mutation_number(name)) is not None)
        there = set(numbers)
        present = {number: state.entry for number, state in ctx.queue.mutations.items() if number in there}
        unreadable: dict[int, MalformedEntry] = {}
        fresh = [number for number in numbers if number not in present]
        for start in range(0, len(fresh), BATCH):
            batch = fresh[start : start + BATCH]
            nodes = await keeper.get_many([ctx.paths.mutation(number) for number in batch])
            for number, node in zip(batch, nodes, strict=True):
                if isinstance(node, NoNode):
                    continue
                try:
                    where = f"mutation {number:010} of {ctx.paths.root}"
                    present[number] = MutationEntry.from_bytes(_value(node), where=where)
                except MalformedEntry as error:
                    if number > ctx.queue.mutation_pointer:
                        unreadable[number] = _with_advice(ctx, number, error)
        before = {*ctx.queue.mutations, *ctx.queue.unreadable_mutations}
        killed = ctx.queue.set_mutations(present, unreadable)
        if killed:
            log.info("replica.mutations_gone table=%s numbers=%s", ctx.name, list(killed))
        if before != {*ctx.queue.mutations, *ctx.queue.unreadable_mutations}:
            ctx.merge_wanted.set()
            ctx.queue_changed.set()
            ctx.mutation_news.announce()


def _with_advice(ctx: ReplicaContext, number: int, error: MalformedEntry) -> MalformedEntry:
    error.hint = (
        f"Table {ctx.name} merges nothing, and does no mutation from this one on: KILL MUTATION, or removing "
        f"or mending {ctx.paths.mutation(number)} in Keeper, or a version that understands it, ends that."
    )
    if number not in ctx.queue.unreadable_mutations:
        log.error("replica.mutation_unreadable table=%s number=%010d error=%s", ctx.name, number, error)
    return error


def _value(answer: Node | KeeperAnswer) -> bytes:
    if isinstance(answer, KeeperAnswer):
        raise answer
    return answer.data
