"""What a replica tidies up by itself, every half minute to five minutes: the table's log, block ids, finished
mutations and parts without rows (if it may lead), and its own leftovers.

Each part of it is safe by itself and says why; here they only take turns. One that fails does not keep the
others from running, and is tried again in the next round.

The next round comes when there should be `cleanup_thread_preferred_points_per_iteration` things to remove, by
what this one removed, but not before `cleanup_delay_period` and not after `max_cleanup_delay_period`. A table
that was idle and is written to again is looked at earlier.

Source: ClickHouse's ReplicatedMergeTreeCleanupThread.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from engine.errors import Corrupt, Refused
from engine.replication.replica.background import keep_running
from engine.replication.replica.cleanup.blocks import BlockCleanup
from engine.replication.replica.cleanup.empty import drop_empty_parts
from engine.replication.replica.cleanup.log import clean_log
from engine.replication.replica.cleanup.mutations import clean_mutations
from engine.replication.replica.cleanup.parts import clean_parts
from engine.replication.replica.cleanup.unknown_locks import remove_unknown_locks
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.switches import Activity
from engine.replication.settings import ReplicatedSettings

log = logging.getLogger(__name__)

_MERGED = 1.3
"""Entries of the log for one insert: four or five parts are merged by one more."""


class Cleanup:
    """One term's cleaning."""

    def __init__(self, ctx: ReplicaContext) -> None:
        self._ctx = ctx
        self._blocks = BlockCleanup(ctx)
        self._delay_s = ctx.settings.cleanup_delay_period

    async def run(self) -> None:
        """A round after each delay, with jitter. Until cancelled; raises SessionExpired."""
        await keep_running(self._ctx, "cleanup", self._step)

    async def run_once(self) -> float:
        """One round; returns its points, about the number of inserts it has cleaned up after. Raises
        UnknownOutcome; what definite answers say against one part of it is logged."""
        ctx = self._ctx
        entries = blocks = others = 0
        if ctx.is_leader:
            entries = await self._do("log", lambda: clean_log(ctx))
            blocks = await self._do("blocks", self._blocks.run_once)
            others = await self._do("mutations", lambda: clean_mutations(ctx))
            others += await self._do("empty parts", lambda: drop_empty_parts(ctx))
        parts = await self._do("parts", lambda: clean_parts(ctx))
        await remove_unknown_locks(ctx, ctx.session())
        return (blocks / 2 + (entries + parts) / _MERGED) / 3 + others

    async def _step(self, ctx: ReplicaContext) -> None:
        await self._pause()
        if not ctx.switches.is_stopped(Activity.CLEANUP):
            self._delay_s = next_delay_s(self._delay_s, await self.run_once(), ctx.settings)

    async def _pause(self) -> None:
        """Sleep, but look now and then whether much has happened since, or something stands in the way of
        merges."""
        ctx, settings = self._ctx, self._ctx.settings
        first = ctx.log_pointer
        enough = 2 * settings.cleanup_thread_preferred_points_per_iteration
        left_s = self._delay_s + settings.cleanup_delay_period_random_add * ctx.env.rng.random()
        while left_s > 0:
            step_s = min(left_s, max(settings.cleanup_delay_period, 1.0))
            await ctx.env.sleep(step_s)
            left_s -= step_s
            if ctx.log_pointer - first >= enough or ctx.block_locks.doubtful:
                return

    async def _do(self, what: str, clean: Callable[[], Awaitable[int]]) -> int:
        try:
            return await clean()
        except (Refused, Corrupt) as error:
            log.info("replication.not_cleaned table=%s what=%s reason=%s", self._ctx.name, what, error)
            return 0


def next_delay_s(delay_s: float, points: float, settings: ReplicatedSettings) -> float:
    """How long to wait after a round that came `delay_s` after the one before and removed so much."""
    shortest_s, wanted = settings.cleanup_delay_period, settings.cleanup_thread_preferred_points_per_iteration
    longest_s = max(settings.max_cleanup_delay_period, shortest_s)
    if not wanted:
        return shortest_s
    return min(max(delay_s * wanted / points, shortest_s), longest_s) if points else longest_s


async def run(ctx: ReplicaContext) -> None:
    """The loop of a term."""
    await Cleanup(ctx).run()
