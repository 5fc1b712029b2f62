"""Removes executed entries from the queue, several in one transaction.

Safety argument. An entry comes here when it has been executed (`execution.runner`), and stays in memory,
marked as executing, until it is gone from Keeper.

1. One multi removes all that are waiting and writes the times of inserts. A crash, or a session that is lost,
   before it leaves the entries: they are executed again, to no further effect.
2. After a lost reply Keeper is asked, behind a `sync`, which of them are still there; those are sent again.
   An entry that is gone already counts as removed, and the others are sent without it.
3. Only then they leave memory, and whoever waits for one is told.

It never removes an entry that it was not given.

Source: ClickHouse's ReplicatedMergeTreeQueue::removeProcessedEntry, which removes them one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from engine.errors import ConnectionLoss, MultiFailed, NoNode, OnclusterError, OperationTimeout
from engine.keeper.base import Op, Remove, SetData
from engine.replication.log_actions import AttachPart, GetPart
from engine.replication.replica.context import ReplicaContext, Signal
from engine.replication.replica.insert_times import unix_s, unix_text
from engine.replication.replica.queue.queue import QueuedEntry

_GATHER_S = 0.03
"""How long an entry may wait for others, if nothing can be waiting for it."""
_ENOUGH = 8
"""As many do not wait: they keep others from being executed."""
_MAX_BATCH = 100


class Removals:
    """Of one term. `run` does the work; `remove` may be called at any time."""

    def __init__(self, ctx: ReplicaContext) -> None:
        self._ctx = ctx
        self._waiting: list[tuple[QueuedEntry, asyncio.Future[None]]] = []
        self._news = Signal()

    async def remove(self, queued: QueuedEntry) -> None:
        """Returns when it is gone. Raises what Keeper says."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((queued, done))
        self._news.set()
        await done

    async def run(self) -> None:
        """Until cancelled. What Keeper has against a transaction is told to whoever waits for it."""
        while True:
            await self._news.wait()
            await self._gather()
            while self._waiting:
                batch, self._waiting = self._waiting[:_MAX_BATCH], self._waiting[_MAX_BATCH:]
                try:
                    await self._send([queued for queued, _ in batch])
                except OnclusterError as error:
                    for _, done in batch:
                        if not done.done():
                            done.set_exception(error)
                else:
                    for _, done in batch:
                        if not done.done():
                            done.set_result(None)

    async def _gather(self) -> None:
        """Inserts that come one after the other are removed together."""
        try:
            async with asyncio.timeout(_GATHER_S):
                while not self._is_urgent():
                    await self._news.wait()
        except TimeoutError:
            pass

    def _is_urgent(self) -> bool:
        """Merges, mutations and ranges wait for what they need."""
        queue = self._ctx.queue
        return len(self._waiting) >= _ENOUGH or len(queue) > queue.count(GetPart, AttachPart)

    async def _send(self, batch: Sequence[QueuedEntry]) -> None:
        ctx = self._ctx
        keeper = ctx.session()
        left = list(batch)
        while left:
            paths = [ctx.me.queue_entry(queued.name) for queued in left]
            try:
                await keeper.multi([*map(Remove, paths), *self._times(batch)])
                break
            except MultiFailed as failed:
                if failed.index >= len(left) or not isinstance(failed.error, NoNode):
                    raise
                del left[failed.index]
            except (ConnectionLoss, OperationTimeout):
                await keeper.sync(ctx.me.queue)
                there = await keeper.exists_many(paths)
                left = [queued for queued, stat in zip(left, there, strict=True) if stat is not None]
        for queued in batch:
            ctx.queue.remove(queued, is_done=not queued.is_given_up)
        done_s = map(unix_s, _inserts(batch))
        ctx.max_processed_insert_s = max([ctx.max_processed_insert_s, *done_s])
        ctx.merge_wanted.set()

    def _times(self, batch: Sequence[QueuedEntry]) -> Sequence[Op]:
        ctx = self._ctx
        inserts = _inserts(batch)
        if not inserts:
            return ()
        times: list[Op] = []
        oldest = ctx.queue.oldest_insert(besides=batch)
        if oldest != ctx.queue.oldest_insert():
            times.append(SetData(ctx.me.min_unprocessed_insert_time, unix_text(oldest)))
        latest = max(inserts, key=unix_s)
        if unix_s(latest) > ctx.max_processed_insert_s:
            times.append(SetData(ctx.me.max_processed_insert_time, unix_text(latest)))
        return times


def _inserts(batch: Sequence[QueuedEntry]) -> Sequence[str]:
    """The create times of those that have one."""
    return [
        queued.entry.create_time
        for queued in batch
        if isinstance(queued.entry.action, GetPart | AttachPart) and queued.entry.create_time
    ]
