"""The transaction of the parts of one INSERT: steps 2 to 4 of `commands.insert`, and what follows when it
gets no answer.

Safety argument: see there. The rule here: as long as it is not known whether the transaction was executed,
the names stay in flight, the staged parts stay staged, and nothing is sent but removals of the number locks
and reads.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field

from engine.errors import (
    BadArguments,
    Code,
    ConnectionLoss,
    KeeperAnswer,
    KeeperUnavailable,
    MultiFailed,
    NodeExists,
    NoNode,
    OnclusterError,
    OperationTimeout,
    SessionExpired,
    SqlError,
    Unavailable,
    ran_out,
)
from engine.keeper.base import Create, CreateMode, Keeper, Op
from engine.replication.block_id import BlockId
from engine.replication.log_actions import Action, AttachPart, GetPart
from engine.replication.log_entry import LogEntry
from engine.replication.part_name import PartName, inserted
from engine.replication.part_set import containing
from engine.replication.part_store import Part
from engine.replication.replica.block_numbers import Abandoned, BlockNumber
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.quorum import Alive, pending_quorum, quorum_create
from engine.replication.replica.quorum_waiting import any_session
from engine.replication.text import encode_bytes, time_text

log = logging.getLogger(__name__)

_FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
_CHECK_AFTER_S = 300.0
"""When the part check looks at a part whose insert ended without an answer, as in ClickHouse."""
_SESSION_WAIT_S = 3.0
"""How long at least each look what became of an insert waits for a session with Keeper."""
_TRIES_TO_SHOW = 6
"""Repetitions, in some six seconds; then the part check and the sweep of staged parts show it."""
_LAST_LOOK_S = 5.0
"""How long a cancelled insert may look what became of it."""


def get_part(part: Part) -> Action:
    """The entry of an inserted part: others fetch it."""
    return GetPart(part.name)


def attach_part(part: Part) -> Action:
    """The entry of an attached part: who has the same in `detached/` takes that, others fetch it."""
    return AttachPart(part.name, part.digest.hash_text)


@dataclass(slots=True)
class Pending:
    """A part on its way. `stage` makes it a staged part of the name that it gets, and is called once;
    `action` is what the log will say, `level` stands in the name. `staged` is the name it is staged under,
    `names` are all that it had so far: none means that it has not been staged."""

    partition_id: str
    block_id: BlockId | None
    stage: Callable[[PartName], Awaitable[Part]]
    action: Callable[[Part], Action] = get_part
    level: int = 0
    staged: PartName | None = None
    names: list[PartName] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Quorum:
    """How many replicas an insert waits for."""

    required: int
    is_parallel: bool


class StartOver(Unavailable):
    """Nothing was committed, and with other numbers it may work."""


class _Kind(enum.Enum):
    """What an operation of the transaction is for, by which its refusal is understood."""

    LOG = "log"
    UNLOCK = "unlock"
    QUORUM = "quorum"
    ALIVE = "alive"
    BLOCK = "block"
    PART = "part"


def pause_s(ctx: ReplicaContext, attempt: int) -> float:
    """Before the `attempt`-th repetition, counted from 1; with jitter."""
    longest_s: float = min(LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(attempt - 1, 10))
    return longest_s * ctx.env.rng.uniform(0.5, 1.0)


class InsertTransaction:
    """Steps 2 to 4 for parts that have numbers."""

    def __init__(
        self,
        ctx: ReplicaContext,
        quorum: Quorum | None,
        alive: Alive | None,
        pending: Sequence[Pending],
        locks: Sequence[BlockNumber],
        max_retries: int,
    ) -> None:
        self._ctx = ctx
        self._max_retries = max_retries
        self._quorum = quorum
        self._alive = alive
        self._pending = pending
        self._locks = locks
        self._names = [
            inserted(lock.partition_id, lock.number, each.level)
            for each, lock in zip(pending, locks, strict=True)
        ]
        self._kinds: list[_Kind] = []
        self._create_time = ""
        self._is_in_doubt = self._was_in_doubt = False

    async def run(self) -> Sequence[PartName]:
        """The names of the parts, committed and published. Raises StartOver or SqlError."""
        async with AsyncExitStack() as stack:
            try:
                for name in self._names:
                    self._refuse_taken(name)
                    await stack.enter_async_context(self._ctx.in_flight.hold(name))
                await self._commit()
            except BaseException:  # also a cancellation: see `_leave`
                await self._leave()
                raise
            for lock in self._locks:
                lock.used()
            await self._publish()
        return self._names

    def _refuse_taken(self, name: PartName) -> None:
        """Two parts of one name are of two tables: the replica was restored when one had its number."""
        if name in self._ctx.in_flight:
            raise StartOver(f"Part {name} of another table in Keeper is in flight")

    async def _commit(self) -> None:
        keeper = self._locks[0].keeper
        ops = self._ops([await self._stage(*each) for each in zip(self._pending, self._names, strict=True)])
        self._is_in_doubt = True
        try:
            await self._send(keeper, ops)
        except MultiFailed as failed:
            self._is_in_doubt = False
            raise self._refusal(failed) from failed
        except KeeperAnswer:  # of the request as a whole: etcd is full
            self._is_in_doubt = False
            raise
        except (ConnectionLoss, OperationTimeout, SessionExpired) as error:
            self._was_in_doubt = True
            log.info("replication.insert_in_doubt table=%s parts=%s", self._ctx.name, self._names)
            if not await self._find_out():
                self._is_in_doubt = False
                raise StartOver("The transaction of the insert got lost") from error

    async def _stage(self, pending: Pending, name: PartName) -> Part:
        if pending.staged is None:
            part = await pending.stage(name)
        elif not self._ctx.in_flight.is_kept(pending.staged, pending):
            pending.staged = None
            raise SqlError(
                Code.UNEXPECTED_ZOOKEEPER_ERROR,
                f"Nothing was inserted into {self._ctx.name}: the replica was restored meanwhile, and what "
                "was to be inserted is put aside in detached/.",
                hint="The INSERT may be repeated.",
            )
        else:
            part = await self._ctx.store.rename_staged(pending.staged, name)
            self._ctx.in_flight.let_go(pending.staged)
        pending.staged = name
        pending.names.append(name)
        return part

    def _ops(self, parts: Sequence[Part]) -> Sequence[Op]:
        ctx = self._ctx
        ops: list[tuple[_Kind, Op]] = []
        self._create_time = time_text(ctx.env.now_s())
        for part, pending, lock in zip(parts, self._pending, self._locks, strict=True):
            block_id = str(pending.block_id) if pending.block_id is not None else ""
            entry = LogEntry(
                pending.action(part),
                source_replica=ctx.replica,
                create_time=self._create_time,
                block_id=block_id,
                quorum=self._quorum.required if self._quorum else 0,
            )
            node = Create(ctx.paths.log_prefix, entry.to_bytes(), CreateMode.PERSISTENT_SEQUENTIAL)
            ops += [(_Kind.LOG, node), (_Kind.UNLOCK, lock.unlock)]
            if self._quorum is not None and self._alive is not None:
                required, is_parallel = self._quorum.required, self._quorum.is_parallel
                ops.append((_Kind.QUORUM, quorum_create(ctx, part.name, required, is_parallel=is_parallel)))
                ops += [(_Kind.ALIVE, check) for check in self._alive.checks(ctx)]
            if pending.block_id is not None:
                written = encode_bytes(str(part.name))
                ops.append((_Kind.BLOCK, Create(ctx.paths.block(pending.block_id), written)))
            ops.append((_Kind.PART, Create(ctx.me.part(part.name), part.header.to_bytes())))
        self._kinds = [kind for kind, _ in ops]
        return [op for _, op in ops]

    async def _send(self, keeper: Keeper, ops: Sequence[Op]) -> None:
        """Send the transaction, and note which entries of the log need not be copied; those with a quorum
        do."""
        self._ctx.inserts_on_their_way += 1
        try:
            results = await keeper.multi(ops)
        finally:
            self._ctx.inserts_on_their_way -= 1
        if self._quorum is None and keeper is self._ctx.keeper:
            self._ctx.own_inserts |= {
                str(made).rpartition("/")[2]: self._create_time
                for kind, made in zip(self._kinds, results, strict=True)
                if kind is _Kind.LOG
            }

    def _refusal(self, failed: MultiFailed) -> OnclusterError:
        ctx = self._ctx
        match self._kinds[failed.index]:
            case _Kind.UNLOCK:
                return StartOver("The block number was taken away: by a dropped partition, or a lost session")
            case _Kind.ALIVE:
                return StartOver("The replica was activated anew since the insert began")
            case _Kind.BLOCK if isinstance(failed.error, NodeExists):
                return StartOver("The same block was inserted by somebody else right now")
            case _Kind.QUORUM if isinstance(failed.error, NodeExists):
                return pending_quorum(ctx)
            case _Kind.PART if isinstance(failed.error, NoNode):
                return SqlError(
                    Code.UNEXPECTED_ZOOKEEPER_ERROR,
                    f"Replica {ctx.me.root} of {ctx.name} is not in Keeper any more; nothing was inserted.",
                    hint="SYSTEM RESTORE REPLICA makes it anew.",
                )
        return SqlError(
            Code.UNEXPECTED_ZOOKEEPER_ERROR,
            f"Nothing was inserted into {ctx.name}: {failed}",
        )

    # -- no answer -----------------------------------------------------------------------------------------

    async def _find_out(self) -> bool:
        """Whether the transaction was executed; if not, it cannot be any more. Raises SqlError 319 when
        Keeper stays away, or full, longer than the insert's retries last, and at once when the table ends."""
        ctx, attempt = self._ctx, 0
        while True:
            attempt += 1
            began_s, least_s = ctx.env.monotonic_s(), pause_s(ctx, attempt)
            try:
                was_executed = await ctx.unless_ending(self._look_soon(max(_SESSION_WAIT_S, least_s)))
                if was_executed is None:
                    raise unknown_status(ctx, "the table is being detached, dropped or replaced")
                return was_executed
            except (
                ConnectionLoss,
                OperationTimeout,
                SessionExpired,
                KeeperUnavailable,
                BadArguments,  # of an etcd that is full: not even the lock can be removed
            ) as error:
                if attempt > self._max_retries:
                    raise unknown_status(ctx, f"Keeper does not answer: {error}") from error
            taken_s = ctx.env.monotonic_s() - began_s
            await ctx.unless_ending(ctx.env.sleep(max(0.0, least_s - taken_s)))

    async def _look_soon(self, timeout_s: float) -> bool:
        """As `_look`, on a session that there is within the time."""
        return await self._look(await any_session(self._ctx, timeout_s=timeout_s))

    async def _look(self, keeper: Keeper) -> bool:
        """The removal is what makes the read final: see `Abandoned`. One lock stands for all, the transaction
        removes all or none."""
        if await self._locks[0].abandon(keeper) is Abandoned.REMOVED:
            return False
        found = await keeper.exists_many([self._ctx.me.part(name) for name in self._names])
        if any(stat is not None for stat in found):
            return True
        if await keeper.exists(self._ctx.me.parts) is None:
            raise unknown_status(self._ctx, f"replica {self._ctx.me.root} was dropped meanwhile")
        return False

    async def _leave(self) -> None:
        """The insert ends with an error, or is cancelled. Numbers that stay behind would stop merges."""
        if self._is_in_doubt:
            self._was_in_doubt = True
            with suppress(OnclusterError, TimeoutError):
                async with asyncio.timeout(_LAST_LOOK_S):
                    if await self._look(await any_session(self._ctx)):
                        await self._publish()
                        return
                    self._is_in_doubt = False
        if self._is_in_doubt:
            for name in self._names:
                self._ctx.check_later(name, delay_s=_CHECK_AFTER_S)
            for pending in self._pending:
                pending.staged = None
        for pending in self._pending:
            if pending.staged is not None:
                self._ctx.in_flight.keep(pending.staged, pending)
        for lock in self._locks:
            lock.leave()
        with suppress(OnclusterError, TimeoutError):
            async with asyncio.timeout(_LAST_LOOK_S):
                for lock in self._locks:
                    await lock.abandon()

    def _covered(self) -> Sequence[PartName]:
        """Parts that something that readers see covers already. Nobody makes such a thing while a part is in
        flight, so only what was in doubt is worth the look."""
        active = tuple(self._ctx.store.active)
        return [name for name in self._names if containing(active, name) is not None]

    async def _publish(self) -> None:
        """The transaction was executed."""
        ctx = self._ctx
        for pending, name in zip(self._pending, self._names, strict=True):
            ctx.queue.add_virtual(name)
            pending.staged = None
        covered = self._covered() if self._was_in_doubt else ()
        try:
            await self._show([name for name in self._names if name not in covered])
            for name in covered:
                await ctx.store.discard(name)
        except Exception as error:  # a defect, too: the parts are there, and readers do not see them
            for name in self._names:
                ctx.check_later(name)
            if not isinstance(error, SqlError | OSError):
                raise
            raise unknown_status(ctx, f"the parts are stored but could not be shown: {error}") from error
        ctx.merge_wanted.set()

    async def _show(self, names: Sequence[PartName]) -> None:
        """Have readers see the parts. Where memory or descriptors run out just then, it is tried again: a
        repetition of the insert is told that all is there, and would be wrong about what it sees."""
        ctx, attempt = self._ctx, 0
        while True:
            attempt += 1
            try:
                await ctx.store.publish(names)
                return
            except (SqlError, OSError) as error:
                if not ran_out(error) or attempt > _TRIES_TO_SHOW or ctx.is_ending:
                    raise
                log.info("replication.show_again table=%s parts=%s error=%s", ctx.name, names, error)
            await ctx.unless_ending(ctx.env.sleep(pause_s(ctx, attempt)))


def unknown_status(ctx: ReplicaContext, reason: str) -> SqlError:
    """319. The message is ClickHouse's."""
    return SqlError(
        Code.UNKNOWN_STATUS_OF_INSERT,
        f"Unknown status of INSERT into {ctx.name}, client must retry. Reason: {reason}",
        hint="A repetition is not stored twice, if deduplication is on.",
    )
