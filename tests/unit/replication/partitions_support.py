"""Commands on partitions whose messages are lost or refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.errors import BadArguments
from engine.keeper.base import ANY_VERSION, Create, CreateMode, Op, OpResult
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
    lose = getattr(live.server, f"lose_next_{what}")
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


def fill_before_log(replica: LiveReplica) -> Callable[[], None]:
    """Keeper refuses as a whole the replica's first transaction that makes an entry of the log or a mutation,
    and what it writes from then on, as an etcd does that is full. The result makes room."""
    session = replica.ctx.session()
    real_multi, real_remove = session.multi, session.remove
    is_full = False

    async def multi(ops: Sequence[Op]) -> list[OpResult]:
        nonlocal is_full
        is_full |= any(isinstance(op, Create) and op.mode is CreateMode.PERSISTENT_SEQUENTIAL for op in ops)
        if is_full:
            raise BadArguments(ops[0].path, "full")
        return await real_multi(ops)

    async def remove(path: str, *, version: int = ANY_VERSION) -> None:
        if is_full:
            raise BadArguments(path, "full")
        await real_remove(path, version=version)

    def make_room() -> None:
        del session.multi, session.remove

    session.multi, session.remove = multi, remove  # type: ignore[method-assign]
    return make_room
