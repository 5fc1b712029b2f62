"""Background loops of a term: they survive a lost connection, and end with the session."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from engine.errors import OnclusterError, SessionExpired
from engine.lifetime import end_if_cancelled
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.execution.outcome import TermOver

log = logging.getLogger(__name__)

RETRY_PAUSE_S = 1.0
"""As ClickHouse does after an error in one of its background tasks."""


async def keep_running(
    ctx: ReplicaContext, what: str, step: Callable[[ReplicaContext], Awaitable[None]]
) -> None:
    """Run `step` again and again, with a pause after each error. Until cancelled.

    Raises SessionExpired and TermOver: the term is over then. What Keeper or the disk have against one step
    is logged, and the loop goes on: a replica that stands still at one thing still does the others.
    """
    while True:
        try:
            await step(ctx)
        except (SessionExpired, TermOver):
            raise
        except (OnclusterError, OSError) as error:
            end_if_cancelled()
            if ctx.is_readonly:
                raise SessionExpired("The session of the replica is over") from error
            log.warning("replica.step_failed table=%s step=%s error=%s", ctx.name, what, error)
            await ctx.env.sleep(RETRY_PAUSE_S * ctx.env.rng.uniform(0.5, 1.5))
