"""Which mutations there are, and which of them are done.

Safety argument. A mutation is done on a replica when no part that it applies to is here, is in the queue, or
can still come from an insert that has its block number already (`MergePredicate.is_finished`). The block
numbers being committed are read before the log is pulled, so an insert is seen on one side or the other.

1. `mutation_pointer` is set to the last mutation up to which all are done. It only grows; others read it to
   wait, and the cleanup removes a mutation only when all pointers have passed it.
2. Then the mutations count as done in memory. A crash between 1 and 2 leaves a pointer that the next start
   reads.

It never removes a mutation, and never passes over one that is not done.

Source: ClickHouse's ReplicatedMergeTreeQueue::tryFinalizeMutations.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from engine.keeper.base import WatchEvent
from engine.replication.replica.background import keep_running
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.merging.predicate import load_predicate
from engine.replication.replica.queue.loader import load_mutations
from engine.replication.replica.queue.queue import MutationState
from engine.replication.replica.switches import Activity

log = logging.getLogger(__name__)

RECHECK_S = 1.0
"""While something is unfinished, it is looked at that often: an insert that gives up its block number makes
no other noise."""


async def run(ctx: ReplicaContext) -> None:
    """Until cancelled or until the session is over (SessionExpired)."""
    is_known = False

    def changed(_event: WatchEvent) -> None:
        nonlocal is_known
        is_known = False
        ctx.mutation_news.announce()

    async def step(ctx: ReplicaContext) -> None:
        nonlocal is_known
        news = ctx.mutation_news.upcoming()
        if not is_known or ctx.queue.unreadable_mutations:  # nothing tells of one that is mended
            is_known = True  # until the watch says otherwise, which may be before the answer is here
            try:
                await load_mutations(ctx, ctx.session(), watch=changed)
            except BaseException:  # also a cancellation: the next step has to ask again
                is_known = False
                raise
        is_open = await finish_mutations(ctx)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RECHECK_S if is_open else None):
                await news.wait()

    await keep_running(ctx, "track mutations", step)


async def finish_mutations(ctx: ReplicaContext) -> bool:
    """Note what is done now; returns whether anything is not."""
    candidates = _candidates(ctx)
    # Whether they are done, only the whole log says.
    if not candidates or ctx.switches.is_stopped(Activity.PULLING):
        return _is_any_open(ctx)
    predicate = await load_predicate(ctx)
    finished: list[MutationState] = []
    for state in candidates:
        if not predicate.is_finished(state.number, state.entry):
            break
        finished.append(state)
    if finished:
        last = finished[-1].number
        await ctx.session().set(ctx.me.mutation_pointer, f"{last:010}".encode())
        ctx.queue.mutation_pointer = last
        for state in finished:
            state.is_done, state.finished_s = True, ctx.env.now_s()
            state.forget_failure()
        log.info("replica.mutations_done table=%s last=%d", ctx.name, last)
        ctx.queue_changed.set()
        ctx.merge_wanted.set()
        ctx.mutation_news.announce()
    return _is_any_open(ctx)


def _is_any_open(ctx: ReplicaContext) -> bool:
    if ctx.queue.unreadable_mutations:
        return True
    return any(not state.is_done for state in ctx.queue.mutations.values())


def _candidates(ctx: ReplicaContext) -> list[MutationState]:
    """The unfinished mutations, from the first on, that no part known here has to do with any more.

    An ALTER's mutation counts only when its metadata is applied: until then the table could not read what
    the mutation makes.
    """
    candidates: list[MutationState] = []
    for state in ctx.queue.mutations.values():
        if state.is_done:
            continue
        version = state.alter_version
        if any(number < state.number for number in ctx.queue.unreadable_mutations):
            break
        if ctx.queue.parts_to_do(state.number) or (version is not None and version > ctx.metadata_version):
            break
        candidates.append(state)
    return candidates
