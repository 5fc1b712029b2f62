"""Waiting for a quorum, on watches and over lost connections and sessions. It only reads."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Sequence

from engine.errors import ConnectionLoss, KeeperUnavailable, NoNode, OperationTimeout, SessionExpired
from engine.keeper.base import Keeper
from engine.replication.part_name import PartName
from engine.replication.quorum import QuorumStatus
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.quorum import is_failed

_PAUSE_S = 0.5
"""Before Keeper is asked again after it did not answer."""


class QuorumEnd(enum.Enum):
    """What became of a quorum that was waited for."""

    REACHED = "reached"
    FAILED = "failed"
    """It was given up: the part is, or will be, set aside everywhere, and its block id is forgotten."""
    TIMEOUT = "timeout"


class Wake:
    """A watch for several nodes at once: set by whichever fires first, and by the end of the session."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def __call__(self, event: object) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()


async def any_session(ctx: ReplicaContext, *, timeout_s: float | None = None) -> Keeper:
    """The session of the present term, or the node's while there is no term: good for looking.

    Raises KeeperUnavailable.
    """
    if ctx.keeper is not None and not ctx.keeper.is_expired:
        return ctx.keeper
    return await ctx.holder.get(timeout_s=timeout_s)


async def wait_for_quorum(
    ctx: ReplicaContext, part: PartName, *, deadline_s: float, is_parallel: bool = False
) -> QuorumEnd:
    """Wait, on watches, until no quorum node names `part`; `deadline_s` is of the monotonic clock.
    `is_parallel`: its quorum is certainly one that runs in parallel.

    Goes on over lost connections and sessions. Raises MalformedEntry for a node that cannot be read.
    """
    paths = [ctx.paths.parallel_quorum(part)]
    if not is_parallel:
        paths.append(ctx.paths.quorum_status)
    while (left_s := deadline_s - ctx.env.monotonic_s()) > 0:
        try:
            async with asyncio.timeout(left_s):
                keeper = await any_session(ctx)
                if keeper is not ctx.keeper:
                    # For a server that lags behind there is no such quorum, as if it were reached. The
                    # session of a term has caught up when the term began.
                    await keeper.sync(paths[0])
                wake = Wake()
                if not await _is_pending(keeper, paths, part, wake):
                    return QuorumEnd.FAILED if await is_failed(ctx, part, keeper) else QuorumEnd.REACHED
                await wake.wait()
        except TimeoutError:
            break
        except (ConnectionLoss, OperationTimeout, SessionExpired, KeeperUnavailable):
            await ctx.env.sleep(_PAUSE_S)
    return QuorumEnd.TIMEOUT


async def _is_pending(keeper: Keeper, paths: Sequence[str], part: PartName, wake: Wake) -> bool:
    for path in paths:
        try:
            node = await keeper.get(path, watch=wake)
        except NoNode:
            continue
        if QuorumStatus.from_bytes(node.data, where=path).part == part:
            return True
    return False


async def wait_until_active(ctx: ReplicaContext, *, deadline_s: float) -> bool:
    """Wait until `is_active` belongs to this process again, at most until `deadline_s` (monotonic).

    False: the replica is not active, or another server goes by its name. What this process has stored then
    does not count for any quorum.
    """
    while True:
        try:
            keeper = ctx.keeper
            if keeper is not None and not keeper.is_expired:
                stat = await keeper.exists(ctx.me.is_active)
                if stat is not None and stat.ephemeral_owner == keeper.session_id:
                    return True
        except (ConnectionLoss, OperationTimeout, SessionExpired):
            pass
        if ctx.is_ending or ctx.env.monotonic_s() >= deadline_s:
            return False
        await ctx.env.sleep(min(_PAUSE_S, max(0.01, deadline_s - ctx.env.monotonic_s())))
