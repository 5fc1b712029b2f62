"""SYSTEM SYNC REPLICA: wait until this replica has done what it has to.

It changes nothing but the replica's own queue, by copying the table's log into it, which it would do anyway.

Source: ClickHouse's StorageReplicatedMergeTree.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Collection

from engine.errors import Code, ConnectionLoss, OperationTimeout, SessionExpired, SqlError
from engine.killable import ends_by_kill
from engine.replication.log_actions import AttachPart, DropRange, GetPart, ReplaceRange
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.log_puller import pull
from engine.replication.replica.queue.queue import QueuedEntry
from engine.replication.replica.switches import Activity

_LIGHT = (GetPart, AttachPart, DropRange, ReplaceRange)
_LOOK_AGAIN_S = 1.0
"""A new term loads the queue anew without saying so."""
_PAUSE_S = 0.2


class SyncMode(enum.Enum):
    """What is waited for; the value is the word of the statement."""

    DEFAULT = ""
    """All entries that are in the queue once the log has been copied."""
    STRICT = "STRICT"
    """An empty queue."""
    LIGHTWEIGHT = "LIGHTWEIGHT"
    """As DEFAULT, without merges, mutations and ALTERs."""
    PULL = "PULL"
    """Nothing but the copying of the log."""


async def sync_replica(
    ctx: ReplicaContext, mode: SyncMode, timeout_s: float, sources: Collection[str] = ()
) -> None:
    """Copy the log, then wait as `mode` says; with `sources`, only for entries that these replicas wrote.

    Raises SqlError: 159 TIMEOUT_EXCEEDED after `timeout_s`, 242 if the replica is read-only at the start, 236
    while SYSTEM STOP PULLING REPLICATION LOG holds, 394 by KILL QUERY, 36 for sources without LIGHTWEIGHT.
    """
    if sources and mode is not SyncMode.LIGHTWEIGHT:
        raise SqlError(Code.BAD_ARGUMENTS, "SYNC REPLICA … FROM is only for LIGHTWEIGHT.")
    ctx.session()
    if ctx.switches.is_stopped(Activity.PULLING):
        raise SqlError(
            Code.ABORTED,
            f"The log of {ctx.name} is not copied: pulling it was stopped.",
            hint="SYSTEM START PULLING REPLICATION LOG lets it go on.",
        )
    try:
        with ends_by_kill():
            async with asyncio.timeout(timeout_s):
                await _pull(ctx)
                if mode is not SyncMode.PULL:
                    await _wait(ctx, mode, frozenset(sources))
    except TimeoutError:
        left = [each.name for each in ctx.queue.entries]
        raise SqlError(
            Code.TIMEOUT_EXCEEDED,
            f"SYNC REPLICA {ctx.name}: command timed out after {timeout_s:g} s "
            f"(entries in the queue: {len(left)}).",
            hint="See the 'receive_timeout' setting, and system.replication_queue for what holds it up.",
        ) from None


async def _pull(ctx: ReplicaContext) -> None:
    while True:
        try:
            await ctx.session().sync(ctx.paths.log)
            await pull(ctx)
            return
        except (ConnectionLoss, OperationTimeout, SessionExpired):
            pass
        except SqlError as error:
            if error.code != Code.TABLE_IS_READ_ONLY:
                raise
        await ctx.env.sleep(_PAUSE_S)  # a lost session comes back, within the statement's patience


async def _wait(ctx: ReplicaContext, mode: SyncMode, sources: frozenset[str]) -> None:
    awaited = {each.name for each in ctx.queue.entries if _is_awaited(each, mode, sources)}
    while True:
        if not ctx.is_readonly:  # without a term the queue in memory may be one that is being loaded
            present = {each.name for each in ctx.queue.entries}
            if not (present if mode is SyncMode.STRICT else awaited & present):
                return
        try:
            async with asyncio.timeout(_LOOK_AGAIN_S):
                await ctx.mutation_news.wait()
        except TimeoutError:
            pass


def _is_awaited(queued: QueuedEntry, mode: SyncMode, sources: frozenset[str]) -> bool:
    if sources and queued.entry.source_replica not in sources:
        return False
    return mode is not SyncMode.LIGHTWEIGHT or isinstance(queued.entry.action, _LIGHT)
