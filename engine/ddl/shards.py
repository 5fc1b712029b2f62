"""Statements that one replica of each shard executes for all of them.

Safety argument. `tries_to_execute` counts attempts, and its version is the fence: it rises with every
attempt.

1. `shards/<shard>` and `tries_to_execute` exist; `executed` does not. A crash leaves empty directories.
   The name is made of the shard's replicas as this host's configuration lists them; while a cluster is
   being changed, hosts may disagree. Of several nodes that share a replica with this host's shard, all
   take the one that was made first: each creates its own before it looks, so nobody misses an earlier one.
2. `lock`, ephemeral: only its owner begins an attempt. The session's end frees it.
3. multi{check lock, set tries_to_execute n+1}: no earlier attempt can take effect from here on. With it, or
   after it where there was an earlier attempt, `attempt` is written; it is this project's own: who, and what
   the object looked like before. A crash before the effect leaves an attempt without effect; after the
   effect, one with it. The same replica, back again, knows from its intents; another one compares what its
   table looks like now with `attempt`, where the executor says that replicas share that view.
4. The effect, conditional on the version of step 3 where the executor can do that: a replica that was
   paused for longer than its session finds its fence gone and changes nothing.
5. The report's one multi creates `executed` and this host's outcome, and gives the lock back. Other
   replicas see `executed` and report success, even of a statement that failed: the failure is this host's
   outcome.

Where an attempt of another replica ended without outcome and nothing tells whether it took effect, statements
that are harmless to repeat run again; others end here with UNFINISHED 341. A ClickHouse server leaves no
`attempt`; after it we do what another ClickHouse server would do, which is to try again.

Source: ClickHouse's tryExecuteQueryOnLeaderReplica.
"""

from __future__ import annotations

import asyncio
import enum
import json
import logging
from dataclasses import dataclass

from engine.ddl.executor import FenceLost, Fingerprint
from engine.ddl.recovery import NextStep, next_step, unknown_outcome
from engine.ddl.runner import StatementRunner, TryAgain
from engine.ddl.status import SUCCESS, ExecutionStatus
from engine.ddl.task import Task
from engine.env import Env
from engine.errors import Code, MultiFailed, NodeExists, NoNode, SessionExpired
from engine.keeper.base import Check, Create, CreateMode, Keeper, Node, Op, SetData, WatchEvent
from engine.keeper.recipes import create_if_not_exists
from engine.names import QueuePaths

logger = logging.getLogger(__name__)

MAX_TRIES_TO_EXECUTE = 3
"""The counter may go beyond it by one: up to four attempts for a shard, as in ClickHouse."""
MAX_EXECUTION_TIMEOUT_S = 3600.0
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
class Attempt:
    """The data of `attempt`: who began the latest attempt, and on what."""

    host: str
    digest_before: str

    def to_bytes(self) -> bytes:
        return json.dumps({"host": self.host, "before": self.digest_before}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Attempt | None:
        try:
            facts = json.loads(data)
            return cls(str(facts["host"]), str(facts["before"]))
        except (ValueError, KeyError, TypeError):
            return None


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
        if "lock" in names:
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
        counter, earlier = await self._read_attempts()
        tries, version = _number(counter.data), counter.stat.version
        if tries > MAX_TRIES_TO_EXECUTE and begun is None:
            await self._release()
            return await self._exhausted()
        count = SetData(self._tries_path, str(tries + 1).encode(), version=version)
        if earlier is None:
            attempt = Attempt(me, await self._runner.fingerprint(task))
            if not await self._write_under_lock(count, Create(self._attempt_path, attempt.to_bytes())):
                return None
        else:
            if not await self._write_under_lock(count):
                return None
            # An earlier attempt of this very host stays as it is: its "before" is the one that counts.
            if earlier.host != me:
                digest = await self._runner.fingerprint(task)
                decided = self._judge(earlier, digest)
                if decided is not None:
                    return decided
                write = SetData(self._attempt_path, Attempt(me, digest).to_bytes())
                if not await self._write_under_lock(Check(self._tries_path, version=version + 1), write):
                    return None
        try:
            status = await self._runner.run(task, fence=[Check(self._tries_path, version=version + 1)])
        except (TryAgain, FenceLost) as error:
            logger.warning("ddl.shard_attempt_failed entry=%s try=%d error=%s", task.name, tries + 1, error)
            return None
        return self._executed_here(status, by=str(task.host))

    def _executed_here(self, status: ExecutionStatus, *, by: str) -> ShardResult:
        return ShardResult(ShardEnd.EXECUTED_HERE, status, self._shard, self._lock_path, by)

    async def _read_attempts(self) -> tuple[Node, Attempt | None]:
        """The counter, and who tried last."""
        counter, latest = await self._keeper.get_many([self._tries_path, self._attempt_path])
        if not isinstance(counter, Node):
            raise counter
        return counter, Attempt.from_bytes(latest.data) if isinstance(latest, Node) else None

    def _judge(self, earlier: Attempt, digest: str) -> ShardResult | None:
        """Another replica began and recorded no end: did it happen? Its fence is broken, so it will not
        any more."""
        task = self._task
        before = Fingerprint.from_text(earlier.digest_before)
        now = Fingerprint.from_text(digest)
        is_shared = before is not None and now is not None and before.is_shared and now.is_shared
        step = next_step(task.statement, task.query, before if is_shared else None, now)
        logger.warning("ddl.shard_takeover entry=%s from=%s step=%s", task.name, earlier.host, step.value)
        match step:
            case NextStep.EXECUTE:
                return None
            case NextStep.REPORT_DONE:
                return self._executed_here(SUCCESS, by=earlier.host)
            case NextStep.REPORT_UNKNOWN:
                status = unknown_outcome(task.statement, begun_by=earlier.host)
                return self._executed_here(status, by=str(task.host))

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
