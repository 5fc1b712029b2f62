"""Waiting until replicas have done what an entry of the table's log asks for.

An entry is done on a replica when the replica has copied it (its log pointer has passed it) and the copy, the
same bytes, is gone from its queue. Replicas that are not active are waited for only so long. A log without
the entry, which no replica that is not lost has copied, is that of a table that was made anew: nobody will do
it.

Nothing is changed here. Each step looks before it waits and arms its watch by the very read that looked, so a
lost connection or session costs a look more and nothing else. A new session may be with a server that lags
behind, and has not heard of the entry: it catches up first. That of a term has done so when the term began.
A replica that was dropped has nothing left to do.

Source: ClickHouse's StorageReplicatedMergeTree (waiting for replicas to process a log entry).
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from engine.env import Env
from engine.errors import Code, ConnectionLoss, NoNode, OperationTimeout, SessionExpired, SqlError
from engine.keeper.base import Keeper, Watch
from engine.keeper.recipes import Signal
from engine.killable import ends_by_kill
from engine.replication.paths import ReplicaPaths, TablePaths, sequence_number
from engine.replication.replica import peers
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.log_commit import Logged, find_entries

log = logging.getLogger(__name__)

DEFAULT_INACTIVE_TIMEOUT_S = 120.0
"""`replication_wait_for_inactive_replica_timeout`: 0 does not wait for inactive replicas, less waits for
ever."""

_PAUSE_S = 0.2
_NAMED = 3
"""Entries that an error names."""

T = TypeVar("T")


class Sync(enum.Enum):
    """Who has to be done before a command returns; the value is that of `alter_sync` and `mutations_sync`."""

    NONE = 0
    OWN = 1
    ALL = 2


async def wait_for_entry(
    ctx: ReplicaContext,
    entry: Logged,
    *,
    sync: Sync = Sync.OWN,
    inactive_timeout_s: float = DEFAULT_INACTIVE_TIMEOUT_S,
) -> None:
    """As `wait_for_entries`, for one."""
    await wait_for_entries(ctx, [entry], sync=sync, inactive_timeout_s=inactive_timeout_s)


async def wait_for_entries(
    ctx: ReplicaContext,
    entries: Sequence[Logged],
    *,
    sync: Sync = Sync.OWN,
    inactive_timeout_s: float = DEFAULT_INACTIVE_TIMEOUT_S,
) -> None:
    """Wait until `sync` has been done with all of `entries`, which are in the log.

    Raises SqlError 341 UNFINISHED, which names the replicas that were inactive for too long.
    """
    if not entries:
        return
    waits = [
        (replica, _ProcessedEntries(ctx.paths, replica, entries).are_done)
        for replica in await replicas_of(ctx, sync)
    ]
    late = await wait_on_replicas(ctx, waits, inactive_timeout_s=inactive_timeout_s)
    if late:
        names = ", ".join(entry.name for entry in entries[:_NAMED])
        more = f" and {len(entries) - _NAMED} more entries" if len(entries) > _NAMED else ""
        raise unfinished(late, f"process {names}{more} of {ctx.paths.root}")


def unfinished(replicas: Sequence[str], what: str) -> SqlError:
    """The error about replicas that did not do their part in time."""
    return SqlError(
        Code.UNFINISHED,
        f"Timeout exceeded while waiting for replicas {', '.join(sorted(replicas))} to {what}. "
        "Probably these replicas are inactive.",
        hint="It was recorded in Keeper; they will do it when they are back.",
    )


Look = Callable[[Keeper, Watch], Awaitable[bool]]
"""Whether it is done; if not, the watch was armed on whatever has to change. NoNode: no such replica."""


async def wait_on_replicas(
    ctx: ReplicaContext, waits: Sequence[tuple[ReplicaPaths, Look]], *, inactive_timeout_s: float
) -> list[str]:
    """Wait for all at once; the names of replicas that stayed inactive for too long, and of this one if its
    table ends meanwhile. The first error of a `Look` ends the waiting, and so does KILL QUERY (394)."""
    try:
        with ends_by_kill():
            async with asyncio.TaskGroup() as group:
                tasks = [
                    (
                        replica.name,
                        group.create_task(
                            _wait_unless_ending(ctx, replica, look, inactive_timeout_s=inactive_timeout_s)
                        ),
                    )
                    for replica, look in waits
                ]
    except BaseExceptionGroup as several:  # callers know single errors
        raise several.exceptions[0] from None
    return [name for name, task in tasks if not task.result()]


async def with_session(ctx: ReplicaContext, read: Callable[[Keeper], Awaitable[T]]) -> T:
    """The result of `read`, which changes nothing: again after a lost connection, on a new session if the
    old one is over. Raises UnknownOutcome when the table ends while Keeper does not answer."""
    while True:
        keeper = await ctx.any_session_until_end()
        try:
            if keeper is not ctx.keeper:
                await keeper.sync(ctx.paths.root)
            return await read(keeper)
        except (ConnectionLoss, OperationTimeout):
            await ctx.env.sleep(_PAUSE_S)
        except SessionExpired:
            continue


async def in_term(ctx: ReplicaContext, read: Callable[[Keeper], Awaitable[T]]) -> T:
    """As `with_session`, for what makes sense only while the replica is active. Raises SqlError 242."""
    while True:
        keeper = ctx.session()
        try:
            return await read(keeper)
        except (ConnectionLoss, OperationTimeout, SessionExpired):
            await ctx.env.sleep(_PAUSE_S)


async def replicas_of(ctx: ReplicaContext, sync: Sync) -> list[ReplicaPaths]:
    """Who has to be done, as of now; by name."""
    match sync:
        case Sync.NONE:
            return []
        case Sync.OWN:
            return [ctx.me]
        case Sync.ALL:
            found = await with_session(ctx, lambda keeper: keeper.children(ctx.paths.replicas))
            return [ctx.paths.replica(name) for name in found.names]


class _ProcessedEntries:
    """Looks whether one replica is through with entries of the log."""

    def __init__(self, table: TablePaths, replica: ReplicaPaths, entries: Sequence[Logged]) -> None:
        self._table = table
        self._replica = replica
        self._newest = max(entries, key=lambda entry: sequence_number(entry.name) or 0)
        self._raws = frozenset(entry.raw for entry in entries)
        self._queued: list[str] | None = None
        """Those that were in the queue after all had been copied; None before."""

    async def are_done(self, keeper: Keeper, watch: Watch) -> bool:
        if self._queued is None:
            if not await self._has_copied(keeper, watch):
                return await self._is_another_log(keeper)
            self._queued = await find_entries(keeper, self._replica.queue, self._raws)
        while self._queued:
            try:
                await keeper.get(self._replica.queue_entry(self._queued[-1]), watch=watch)
                return False
            except NoNode:
                self._queued.pop()
        return True

    async def _has_copied(self, keeper: Keeper, watch: Watch | None = None) -> bool:
        pointer = (await keeper.get(self._replica.log_pointer, watch=watch)).data
        return peers.number(pointer) > (sequence_number(self._newest.name) or 0)

    async def _is_another_log(self, keeper: Keeper) -> bool:
        """Whether Keeper has lost the table meanwhile. An entry stays in the log until every replica has
        copied it but for those that are marked as lost before."""
        try:
            return (await keeper.get(self._table.log_entry(self._newest.name))).data != self._newest.raw
        except NoNode:
            if (await keeper.get(self._replica.is_lost)).data == b"1":
                return False
            return not await self._has_copied(keeper)


async def _wait_unless_ending(
    ctx: ReplicaContext, replica: ReplicaPaths, look: Look, *, inactive_timeout_s: float
) -> bool:
    """As `_wait_on_replica`; false at once when it is this replica and its table ends: until it is attached
    again, which nobody may ever do, nothing is done here any more."""
    waiting = _wait_on_replica(ctx, replica, look, inactive_timeout_s=inactive_timeout_s)
    if replica != ctx.me:
        return await waiting
    return await ctx.unless_ending(waiting) or False


async def _wait_on_replica(
    ctx: ReplicaContext, replica: ReplicaPaths, look: Look, *, inactive_timeout_s: float
) -> bool:
    """True when done; false when the replica was inactive for `inactive_timeout_s` on end."""
    env = ctx.env
    give_up_at_s: float | None = None
    presence: Signal | None = None
    caught_up = ctx.keeper
    while True:
        keeper = await ctx.holder.get()
        try:
            if keeper is not caught_up:
                await keeper.sync(replica.root)
                caught_up = keeper
            progress = Signal()
            if await look(keeper, progress):
                return True
            if presence is None:
                presence = Signal()
                if await keeper.exists(replica.is_active, watch=presence) is not None:
                    give_up_at_s = None
                elif inactive_timeout_s >= 0 and give_up_at_s is None:
                    give_up_at_s = env.monotonic_s() + inactive_timeout_s
            if give_up_at_s is not None and env.monotonic_s() >= give_up_at_s:
                return False
            if await _either(env, progress, presence, until_s=give_up_at_s) is presence:
                presence = None
        except NoNode:
            log.info("replication.not_waiting replica=%s reason=dropped", replica.name)
            return True
        except (ConnectionLoss, OperationTimeout):
            presence = None
            await env.sleep(_PAUSE_S)
        except SessionExpired:
            presence = None


async def _either(env: Env, progress: Signal, presence: Signal, *, until_s: float | None) -> Signal | None:
    """The one that came first (`presence` if both did); None when the time is up. Raises SessionExpired."""
    waiting = [asyncio.ensure_future(each.wait()) for each in (presence, progress)]
    try:
        timeout_s = None if until_s is None else max(0.0, until_s - env.monotonic_s())
        done, _ = await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for signal, task in zip((presence, progress), waiting, strict=True):
            if task in done:
                task.result()
                return signal
        return None
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
