"""Parts of other replicas' inserts that come straight from the log, without passing through `queue/`.

A replica that is up to date finds one new entry at a time, of an insert, and has the part a few milliseconds
later. To copy such an entry, to commit its part and to remove the entry are three transactions, each of which
Keeper forces to its disk. Here one does it all: the part becomes the replica's, and the log pointer passes
the entry.

Safety argument. Only within a pull (`ctx.pulling` is held), with nothing in the queue, for inserts without a
quorum.

1. Each part is fetched as an entry of the queue would have it fetched, from a replica that has exactly it,
   and is in flight from before that until 3. A crash leaves a staged part that Keeper does not know.
2. `commit_parts`, with the log pointer in its transaction: whatever is refused, lost or repeated there, the
   pointer has passed the entries if and only if their parts are the replica's.
3. The parts are published. Until that is done they stand in `ctx.unsettled`: the next pull asks Keeper,
   behind a sync, which of them were committed, and publishes those. A crash, or the end of the term, leaves
   that to the next start.

Whatever else happens (no such replica, a transfer that fails, or one that takes longer than `PATIENCE_S`),
the entries are copied to the queue as always; a transfer under way goes on meanwhile, and whoever executes
its entry waits for it.

It never moves the log pointer without the parts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from engine.errors import OnclusterError
from engine.keeper.base import Keeper, Op
from engine.replication.fetching import Agreed
from engine.replication.log_actions import GetPart
from engine.replication.log_entry import LogEntry
from engine.replication.part_checksums import PartDiffers
from engine.replication.part_name import PartName
from engine.replication.replica import commit_part, peers
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.switches import Activity

log = logging.getLogger(__name__)

T = TypeVar("T")

MOST = 4
"""Entries at a time; where there are more, the queue brings order into them."""
PATIENCE_S = 0.2
"""How long the log may stand still for a transfer."""


class DirectFetches:
    """Of one term. `close` at its end."""

    def __init__(self, ctx: ReplicaContext) -> None:
        self._ctx = ctx
        self._tasks: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """End the transfers that are under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def take(self, keeper: Keeper, entries: Sequence[LogEntry], pointer: Sequence[Op]) -> bool:
        """Have the parts of `entries`, and execute `pointer`, which passes them, in the same transaction.

        False: nothing was done, the entries are to be copied. Raises what Keeper and the store raise.
        """
        ctx = self._ctx
        parts = [part for entry in entries if (part := self._part_of(entry)) is not None]
        if not parts or len(parts) != len(entries) or not self._is_calm():
            return False
        async with AsyncExitStack() as held:
            holds = [await held.enter_async_context(AsyncExitStack()) for _ in parts]
            for hold, part in zip(holds, parts, strict=True):
                await hold.enter_async_context(ctx.in_flight.hold(part))
            fetches = [self._start(self._fetch(keeper, part)) for part in parts]
            _, late = await asyncio.wait(fetches, timeout=PATIENCE_S)
            if late:
                for hold, fetch in zip(holds, fetches, strict=True):  # nobody waits for another's transfer
                    self._start(_release(hold.pop_all(), fetch))
                return False
            found = [fetch.result() for fetch in fetches]
            agreed = {part: each for part, each in zip(parts, found, strict=True) if each is not None}
            if len(agreed) != len(parts):
                return False
            return await self._commit(agreed, pointer)

    async def _commit(self, agreed: dict[PartName, Agreed], pointer: Sequence[Op]) -> bool:
        ctx = self._ctx
        ctx.unsettled |= agreed.keys()
        try:
            await commit_part.commit_parts(ctx, list(agreed), agreed=agreed, extra=pointer)
        except PartDiffers:
            ctx.unsettled -= agreed.keys()  # refused, and so was the pointer
            return False
        ctx.unsettled -= agreed.keys()
        for part, each in agreed.items():
            log.info("replica.fetched_directly table=%s part=%s from=%s", ctx.name, part, each.replica.name)
        ctx.mutation_news.announce()
        return True

    async def _fetch(self, keeper: Keeper, part: PartName) -> Agreed | None:
        ctx = self._ctx
        try:
            holders = await peers.active_holders(ctx, keeper, part)
            for holder in holders:
                if holder.part == part and holder.header is not None and holder.address is not None:
                    transfer = ctx.fetcher.fetch(
                        holder.address,
                        holder.replica,
                        part,
                        into=ctx.paced(ctx.store),
                        expected=holder.header,
                    )
                    await ctx.fetches.of(part, transfer)
                    return Agreed(holder.replica, holder.header)
        except (OnclusterError, OSError) as error:
            log.info("replica.not_fetched_directly table=%s part=%s error=%s", ctx.name, part, error)
        return None

    def _part_of(self, entry: LogEntry) -> PartName | None:
        """The part of an insert of another replica, without a quorum, if it is new here in every way."""
        ctx = self._ctx
        match entry.action:
            case GetPart(part) if entry.source_replica not in ("", ctx.replica) and not entry.quorum:
                is_new = (
                    not part.patched_partition
                    and ctx.queue.virtual_parts.get_containing(part) is None
                    and not ctx.queue.virtual_parts.intersecting(part)
                    and part not in ctx.store.staged
                    and part not in ctx.store.active
                    and part not in ctx.in_flight
                )
                return part if is_new else None
        return None

    def _is_calm(self) -> bool:
        """Whether nothing is to be done before, and nothing is stopped."""
        ctx = self._ctx
        stopped = (Activity.FETCHES, Activity.QUEUES, Activity.PULLING)
        return not len(ctx.queue) and not any(map(ctx.switches.is_stopped, stopped))

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _release(hold: AsyncExitStack, fetch: asyncio.Task[Agreed | None]) -> None:
    async with hold:
        await asyncio.wait([fetch])


async def settle(ctx: ReplicaContext, keeper: Keeper) -> None:
    """Publish what was committed, and not published, by a `take` that did not come to its end."""
    if not ctx.unsettled:
        return
    await keeper.sync(ctx.me.parts)
    for part in sorted(ctx.unsettled):
        if await keeper.exists(ctx.me.part(part)) is not None:
            ctx.queue.add_virtual(part)
            await commit_part.publish(ctx, [part])
        ctx.unsettled.discard(part)
