"""Statements that one replica of each shard executes for all of them.

Safety argument. `tries_to_execute` counts attempts, and its version is the fence: it rises with every
attempt.

1. `shards/<shard>` and `tries_to_execute` exist; `executed` does not. A crash leaves empty directories.
   The name is made of the shard's replicas as this host's configuration lists them; while a cluster is
   being changed, hosts may disagree. Of several nodes that share a replica with this host's shard, all
   take the one that was made first: each creates its own before it looks, so nobody misses an earlier one.
2. `lock`, ephemeral: only its owner begins an attempt. The session's end frees it.
3. multi{check lock, set tries_to_execute n+1, write `attempt`}: no earlier attempt can take effect from here
   on. `attempt` is this project's own (`engine.ddl.attempt`). It is not begun by a replica that cannot look
   at its table: one that is read-only while its node starts would only use up the tries.
4. The effect, conditional on the version of step 3, and its record in `attempt`, in one transaction: a
   replica that was paused for longer than its session finds its fence gone and changes nothing. A crash
   before the effect leaves an attempt without effect; after the effect, one with it; and Keeper tells which,
   to the same replica, back again, as to any other.
5. The report's one multi creates `executed` and this host's outcome, and gives the lock back. Other
   replicas see `executed` and report success, even of a statement that failed: the failure is this host's
   outcome.

An executor that cannot record effects is judged by fingerprints: the same replica knows from its intents;
another one compares what its table looks like now with `attempt`, where the executor says that replicas share
that view. Where nothing tells, statements that are harmless to repeat run again; others end here with
UNFINISHED 341. A ClickHouse server leaves no `attempt`; after it we do what another ClickHouse server would
do, which is to try again.

Source: ClickHouse's tryExecuteQueryOnLeaderReplica.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from dataclasses import dataclass, replace

from engine.ddl.attempt import Attempt, Effect, Fence
from engine.ddl.executor import FenceLost, Fingerprint
from engine.ddl.failures import TryAgain
from engine.ddl.recovery import NextStep, next_step, unknown_outcome
from engine.ddl.runner import Judge, StatementRunner
from engine.ddl.status import SUCCESS, ExecutionStatus
from engine.ddl.task import Task
from engine.env import Env
from engine.errors import Code, MultiFailed, NodeExists, NoNode, SessionExpired
from engine.keeper.base import Check, Create, CreateMode, Keeper, Node, Op, SetData, WatchEvent
from engine.keeper.recipes import create_if_not_exists, remove_unowned
from engine.names import QueuePaths

logger = logging.getLogger(__name__)

MAX_TRIES_TO_EXECUTE = 3
"""The counter may go beyond it by one: up to four attempts for a shard, as in ClickHouse."""
MAX_EXECUTION_TIMEOUT_S = 3600.0
NEVER_WRITTEN = -1
"""The version of a node that there is not."""
_NOT_READY_PAUSE_S = 1.0
_LONGEST_WAIT_S = 10.0
"""Watches wake us; this is for a watch that nobody will fire."""


class ShardEnd(enum.Enum):
    """How a once-per-shard statement ended here."""

    EXECUTED_HERE = "executed here"
    EXECUTED_BY_OTHER = "executed by another replica"
    GAVE_UP = "gave up"


@dataclass(frozen=True, slots=True)
class ShardResult:
    end: ShardEnd
    status: ExecutionStatus
    shard: str = ""
    lock_path: str | None = None
    executed_by: str | None = None


@dataclass(frozen=True, slots=True)
class _Attempts:
    """What Keeper has: the counter with its version, and who tried last, with the version of that."""

    tries: int
    version: int
    latest: Attempt | None = None
    latest_version: int = NEVER_WRITTEN

    @property
    def is_recorded(self) -> bool:
        """What the latest attempt has recorded, or nothing, is all that took effect."""
        if self.latest is None:
            return self.latest_version == NEVER_WRITTEN
        return self.latest.effect is not Effect.NOT_RECORDED and self.latest.number == self.tries


class ShardExecution:
    """One task on one replica, in one session."""

    def __init__(
        self, keeper: Keeper, env: Env, paths: QueuePaths, runner: StatementRunner, task: Task
    ) -> None:
        self._keeper = keeper
        self._env = env
        self._runner = runner
        self._task = task
        self._paths = paths
        self._shards_path = paths.shards(task.name)
        self._changed = asyncio.Event()
        self._has_lock = False
        self._use(task.place.shard.node_name)

    def _use(self, shard: str) -> None:
        name = self._task.name
        self._shard = shard
        self._shard_path = self._paths.shard(name, shard)
        self._executed_path = self._paths.shard(name, shard, "executed")
        self._tries_path = self._paths.shard(name, shard, "tries_to_execute")
        self._lock_path = self._paths.shard(name, shard, "lock")
        self._attempt_path = self._paths.shard(name, shard, "attempt")

    async def run(self) -> ShardResult:
        """Until this replica or another has executed, or nobody will.

        Raises NoNode when the entry goes away, SessionExpired and the like from Keeper.
        """
        names = await self._open()
        deadline_s = self._env.monotonic_s() + MAX_EXECUTION_TIMEOUT_S
        while self._env.monotonic_s() < deadline_s:
            if "executed" in names:
                await self._release()
                return ShardResult(ShardEnd.EXECUTED_BY_OTHER, SUCCESS)
            if self._has_lock or ("lock" not in names and await self._acquire()):
                result = await self._attempt()
                if result is not None:
                    return result
                await self._pause(longest_s=1.0)
            else:
                # Whether the tries are used up is looked at under the lock: the last may be under way.
                await self._pause(longest_s=_LONGEST_WAIT_S)
            names = await self._look()
        await self._release()
        return _gave_up(Code.TIMEOUT_EXCEEDED, "Cannot execute replicated DDL query, timeout exceeded")

    async def _look(self) -> tuple[str, ...]:
        """What there is of the shard. One look, one watch: any change to it wakes us."""
        self._changed.clear()
        return (await self._keeper.children(self._shard_path, watch=self._on_change)).names

    async def _open(self) -> tuple[str, ...]:
        """Step 1, and a first look."""
        try:
            names = await self._look()
        except NoNode:
            await self._make_nodes()
            names = await self._look()
        if "tries_to_execute" not in names:  # ClickHouse 18.16 does not count
            await create_if_not_exists(self._keeper, self._tries_path, b"0")
        if await self._agree_on_shard():
            names = await self._look()
        if "lock" in names and not await remove_unowned(self._keeper, self._lock_path):
            await self._find_own_lock()
        return names

    async def _make_nodes(self) -> None:
        ops = [Create(self._shards_path), Create(self._shard_path), Create(self._tries_path, b"0")]
        while ops:
            try:
                await self._keeper.multi(ops)
                return
            except MultiFailed as refusal:
                if not isinstance(refusal.error, NodeExists):
                    raise refusal.error from None
                ops = ops[refusal.index + 1 :]  # what exists has all its parents

    async def _agree_on_shard(self) -> bool:
        """Among nodes that share a replica with this host's shard, the oldest is the shard's. Whether it is
        another one than this host would have made."""
        names = (await self._keeper.children(self._shards_path)).names
        own = set(self._shard.split(","))
        candidates = [name for name in names if own & set(name.split(","))]
        if len(candidates) < 2:
            return False
        stats = await self._keeper.exists_many([self._paths.shard(self._task.name, c) for c in candidates])
        ages = [(stat.czxid, c) for stat, c in zip(stats, candidates, strict=True) if stat is not None]
        oldest = min(ages, default=(0, self._shard))[1]
        if oldest == self._shard:
            return False
        logger.warning("ddl.shard_renamed entry=%s own=%s taken=%s", self._task.name, self._shard, oldest)
        self._use(oldest)
        await create_if_not_exists(self._keeper, self._tries_path, b"0")
        return True

    # --- the lock -----------------------------------------------------------------------------------------

    async def _find_own_lock(self) -> None:
        """An earlier execution in this session may have it, and may not have been told."""
        stat = await self._keeper.exists(self._lock_path)
        self._has_lock = stat is not None and stat.ephemeral_owner == self._keeper.session_id

    async def _acquire(self) -> bool:
        try:
            await self._keeper.create(
                self._lock_path, str(self._task.host).encode(), mode=CreateMode.EPHEMERAL
            )
        except NodeExists:
            return False
        self._has_lock = True
        return True

    async def _release(self) -> None:
        if not self._has_lock:
            return
        self._has_lock = False
        try:
            await self._keeper.remove(self._lock_path)
        except NoNode:
            logger.warning("ddl.shard_lock_lost entry=%s", self._task.name)

    # --- one attempt, under the lock ----------------------------------------------------------------------

    async def _attempt(self) -> ShardResult | None:
        """None: no outcome, look again."""
        # The lock was a write of this session: what it reads now is not older.
        if await self._keeper.exists(self._executed_path) is not None:
            return None
        task, me = self._task, str(self._task.host)
        begun = self._runner.begun(task)
        if begun is not None and begun.status is not None:
            return self._executed_here(begun.status, by=me)
        found = await self._read_attempts()
        if found.latest is not None and found.latest.effect is Effect.WHOLE:
            self._log_takeover(found.latest, NextStep.REPORT_DONE)
            return self._executed_here(await self._runner.confirm(task), by=found.latest.host)
        try:
            if found.tries > MAX_TRIES_TO_EXECUTE:
                return await self._conclude(found, is_begun=begun is not None)
            digest = await self._runner.fingerprint(task)
        except TryAgain as error:
            logger.warning("ddl.shard_replica_not_ready entry=%s error=%s", task.name, error)
            await self._release()
            await self._env.sleep(_NOT_READY_PAUSE_S * self._env.rng.uniform(0.5, 1.0))
            return None
        begin = (
            self._begin if found.is_recorded and self._runner.records_effects else self._begin_by_judgement
        )
        attempt = await begin(found, digest)
        if attempt is None or isinstance(attempt, ShardResult):
            return attempt
        fence = Fence(Check(self._tries_path, version=found.version + 1), self._attempt_path, attempt)
        judge = Judge.KEEPER if begin == self._begin else Judge.FINGERPRINTS
        try:
            status = await self._runner.run(task, fence=fence, judge=judge)
        except (TryAgain, FenceLost) as error:
            logger.warning(
                "ddl.shard_attempt_failed entry=%s try=%d error=%s", task.name, found.tries + 1, error
            )
            return None
        return self._executed_here(status, by=str(task.host))

    async def _conclude(self, found: _Attempts, *, is_begun: bool) -> ShardResult:
        """The tries are used up. The last one of this replica may have taken effect. Raises TryAgain where it
        cannot be told now."""
        is_without_effect = found.latest is not None and found.latest.effect is Effect.NONE
        if is_begun and not is_without_effect:
            status = await self._runner.conclude(self._task)
            if status is not None:
                return self._executed_here(status, by=str(self._task.host))
        await self._release()
        return await self._exhausted()

    async def _begin(self, found: _Attempts, digest: str) -> Attempt | None:
        """Step 3, where Keeper says that nothing took effect, or which steps did. None: look again."""
        me, number = str(self._task.host), found.tries + 1
        if found.latest is None:
            attempt = Attempt(me, digest, Effect.NONE, number=number)
            write: Op = Create(self._attempt_path, attempt.to_bytes())
        else:
            self._log_takeover(found.latest, NextStep.EXECUTE)
            attempt = found.latest.begun_again(me, digest, number)
            write = SetData(self._attempt_path, attempt.to_bytes(), version=found.latest_version)
        return attempt if await self._write_under_lock(self._count(found), write) else None

    async def _begin_by_judgement(self, found: _Attempts, digest: str) -> Attempt | ShardResult | None:
        """Step 3, where fingerprints have to tell. `attempt` is kept until they have."""
        me, earlier = str(self._task.host), found.latest
        attempt = Attempt(me, digest)
        if self._runner.records_effects:
            attempt = Attempt(me, digest, Effect.NONE, number=found.tries + 1)
        if found.latest_version == NEVER_WRITTEN:
            write: Op = Create(self._attempt_path, attempt.to_bytes())
            return attempt if await self._write_under_lock(self._count(found), write) else None
        if not await self._write_under_lock(self._count(found)):
            return None
        # An earlier attempt of this very host stays as it is: its "before" is the one that counts.
        if earlier is not None and earlier.host == me:
            return replace(earlier, effect=Effect.NOT_RECORDED, steps=(), number=found.tries + 1)
        if earlier is not None and (decided := self._judge(earlier, digest)) is not None:
            return decided
        write = SetData(self._attempt_path, attempt.to_bytes())
        is_first = Check(self._tries_path, version=found.version + 1)
        return attempt if await self._write_under_lock(is_first, write) else None

    def _count(self, found: _Attempts) -> SetData:
        return SetData(self._tries_path, str(found.tries + 1).encode(), version=found.version)

    def _executed_here(self, status: ExecutionStatus, *, by: str) -> ShardResult:
        return ShardResult(ShardEnd.EXECUTED_HERE, status, self._shard, self._lock_path, by)

    async def _read_attempts(self) -> _Attempts:
        counter, latest = await self._keeper.get_many([self._tries_path, self._attempt_path])
        if not isinstance(counter, Node):
            raise counter
        if not isinstance(latest, Node):
            return _Attempts(_number(counter.data), counter.stat.version)
        return _Attempts(
            _number(counter.data),
            counter.stat.version,
            Attempt.from_bytes(latest.data),
            latest.stat.version,
        )

    def _judge(self, earlier: Attempt, digest: str) -> ShardResult | None:
        """Another replica began and recorded no end: did it happen? Its fence is broken, so it will not
        any more."""
        task = self._task
        before = Fingerprint.from_text(earlier.digest_before)
        now = Fingerprint.from_text(digest)
        is_shared = before is not None and now is not None and before.is_shared and now.is_shared
        step = next_step(task.statement, task.query, before if is_shared else None, now)
        self._log_takeover(earlier, step)
        match step:
            case NextStep.EXECUTE:
                return None
            case NextStep.REPORT_DONE:
                return self._executed_here(SUCCESS, by=earlier.host)
            case NextStep.REPORT_UNKNOWN:
                status = unknown_outcome(task.statement, begun_by=earlier.host)
                return self._executed_here(status, by=str(task.host))

    def _log_takeover(self, earlier: Attempt, step: NextStep) -> None:
        logger.warning(
            "ddl.shard_takeover entry=%s from=%s step=%s", self._task.name, earlier.host, step.value
        )

    async def _write_under_lock(self, *ops: Op) -> bool:
        try:
            await self._keeper.multi([Check(self._lock_path), *ops])
        except MultiFailed as refusal:
            logger.warning("ddl.shard_attempt_refused entry=%s error=%s", self._task.name, refusal)
            return False
        return True

    async def _exhausted(self) -> ShardResult:
        await self._keeper.sync(self._shard_path)
        if await self._keeper.exists(self._executed_path) is not None:
            return ShardResult(ShardEnd.EXECUTED_BY_OTHER, SUCCESS)
        return _gave_up(Code.UNFINISHED, "Cannot execute replicated DDL query, maximum retries exceeded")

    # --- waiting ------------------------------------------------------------------------------------------

    def _on_change(self, event: WatchEvent) -> None:
        self._changed.set()

    async def _pause(self, *, longest_s: float) -> None:
        """Until `executed` or the lock changes; a random moment more, so that not all replicas rush."""
        try:
            async with asyncio.timeout(self._env.rng.uniform(0.5, 1.0) * longest_s):
                await self._changed.wait()
        except TimeoutError:
            pass
        if self._keeper.is_expired:
            raise SessionExpired("The session ended while waiting for the shard")


def _gave_up(code: Code, message: str) -> ShardResult:
    status = ExecutionStatus(int(code), f"Code: {int(code)}. DB::Exception: {message} ({code.name})")
    return ShardResult(ShardEnd.GAVE_UP, status)


def _number(data: bytes) -> int:
    try:
        return int(data)
    except ValueError:
        return 0
