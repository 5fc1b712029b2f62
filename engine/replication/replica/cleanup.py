"""What a replica tidies up by itself, every half minute or so: the table's log, block ids, finished mutations
(if it may lead), and its own leftovers.

Each part of it is safe by itself and says why; here they only take turns. One that fails does not keep the
others from running, and is tried again in the next round.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from engine.errors import SqlError
from engine.replication.replica.background import keep_running
from engine.replication.replica.cleanup_blocks import BlockCleanup
from engine.replication.replica.cleanup_log import clean_log
from engine.replication.replica.cleanup_mutations import clean_mutations
from engine.replication.replica.cleanup_parts import clean_parts
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.switches import Activity
from engine.replication.replica.unknown_locks import remove_unknown_locks

log = logging.getLogger(__name__)


class Cleanup:
    """One term's cleaning."""

    def __init__(self, ctx: ReplicaContext) -> None:
        self._ctx = ctx
        self._blocks = BlockCleanup(ctx)

    async def run(self) -> None:
        """A round after each period, with jitter. Until cancelled; raises SessionExpired."""
        await keep_running(self._ctx, "cleanup", self._step)

    async def run_once(self) -> None:
        """One round. Raises UnknownOutcome; what definite answers say against one part of it is logged."""
        ctx = self._ctx
        if ctx.is_leader:
            await self._do("log", lambda: clean_log(ctx))
            await self._do("blocks", self._blocks.run_once)
            await self._do("mutations", lambda: clean_mutations(ctx))
        await self._do("parts", lambda: clean_parts(ctx))
        await remove_unknown_locks(ctx, ctx.session())

    async def _step(self, ctx: ReplicaContext) -> None:
        settings = ctx.settings
        jitter_s = settings.cleanup_delay_period_random_add * ctx.env.rng.random()
        await ctx.env.sleep(settings.cleanup_delay_period + jitter_s)
        if not ctx.switches.is_stopped(Activity.CLEANUP):
            await self.run_once()

    async def _do(self, what: str, clean: Callable[[], Awaitable[int]]) -> None:
        try:
            await clean()
        except SqlError as error:
            log.info("replication.not_cleaned table=%s what=%s reason=%s", self._ctx.name, what, error)


async def run(ctx: ReplicaContext) -> None:
    """The loop of a term."""
    await Cleanup(ctx).run()
