"""Commands on partitions whose messages are lost."""

from __future__ import annotations

from collections.abc import Sequence

from engine.keeper.base import Create, Op, OpResult
from engine.keeper.session import RequestKind
from tests.unit.replication.live_support import (
    PATHS,
    Live,
    LiveReplica,
)


def lose_message_to_log(live: Live, replica: LiveReplica, what: str) -> list[Sequence[Op]]:
    """The first transaction of the replica that writes to the log loses its request or its reply. Returns a
    list to which every such transaction is added."""
    session = replica.ctx.session()
    lose = live.server.lose_next_reply if what == "reply" else live.server.lose_next_request
    real = session.multi
    written: list[Sequence[Op]] = []

    async def watched(ops: Sequence[Op]) -> list[OpResult]:
        if any(isinstance(op, Create) and op.path == PATHS.log_prefix for op in ops):
            written.append(ops)
            if len(written) == 1:
                lose(session.session_id, kind=RequestKind.MULTI)
        return await real(ops)

    session.multi = watched  # type: ignore[method-assign]
    return written
