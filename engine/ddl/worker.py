"""The worker of one queue on one host: reads entries in order, executes those that name this host, reports.

How the parts fit. `scan` follows the queue by a watch, reads new entries in batches ahead of the
execution, and puts what is this host's into the `Backlog`. Each of `pool_size` lanes takes a task, claims
it (`report`), runs it (`runner`, or `shards` for statements that one replica of each shard runs) and
reports. While tasks are waiting, the reports and claims of several go in one request (`batch`).

Safety argument, by what ends in the middle.

- The Keeper session: lanes stop, claims go with the session; a statement under way goes on, its outcome is
  kept by the runner, and the next session reports it. Nothing that ran is run again.
- The process: the runner's intents, see `engine.ddl.intents`.
- A connection: the request may have been executed; claims and reports look at what is there (`report`).
- The queue's directory was made anew (its czxid changed): names mean other entries, so everything remembered
  about names is dropped.

An entry that nobody can read gets its error under this node's own host id and holds up nobody. An entry
that is not for this host is never touched (`scan`).

Source: ClickHouse's DDLWorker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from engine.config.model import DistributedDdl, Topology
from engine.ddl.backlog import Backlog
from engine.ddl.batch import Batch
from engine.ddl.entry import OLDEST_VERSION, DDLLogEntry
from engine.ddl.executor import LocalExecutor
from engine.ddl.failures import TryAgain, errors_of_the_program_are_tried_again, is_retriable, status_of
from engine.ddl.identity import NodeIdentity, Resolver
from engine.ddl.intents import Intent, IntentStore
from engine.ddl.lane import Lane, correct_record
from engine.ddl.matching import HostMatcher
from engine.ddl.outcome_record import read_outcome_record
from engine.ddl.own_sessions import OwnSessions
from engine.ddl.replicas import ReplicaMarker
from engine.ddl.report import Claim, Report, Reporter
from engine.ddl.runner import StatementRunner
from engine.ddl.scan import QueueScan
from engine.ddl.shards import ShardEnd, ShardExecution
from engine.ddl.status import BEFORE_EXECUTION
from engine.ddl.task import Task, interpret_without_cluster
from engine.ddl.worker_memory import WorkerMemory
from engine.env import Env
from engine.errors import (
    BadArguments,
    Code,
    ConfigError,
    ConnectionLoss,
    Corrupt,
    KeeperAnswer,
    KeeperUnavailable,
    MultiFailed,
    NoAuth,
    NoNode,
    OnclusterError,
    OperationTimeout,
    SessionExpired,
    SqlError,
    UnknownOutcome,
)
from engine.keeper.base import Keeper, KeeperFactory
from engine.keeper.recipes import create_ancestors
from engine.lifetime import unless_set
from engine.names import HostId, entry_number
from engine.sql import runs_once_per_shard

logger = logging.getLogger(__name__)

RETRY_PAUSE_S = 5.0
"""After a failure that is not Keeper's, and at most between two tries of a retriable statement (ClickHouse:
always 5 s)."""
FIRST_RETRY_PAUSE_S = 0.3
"""Doubled with each try: an ALTER that came too early for this replica need not wait long."""
TRIES_OF_A_DEFECT = 10
"""So often, which takes half a minute, a statement is tried that the program itself fails at: what it means
for one table must not hold up all others."""
RECONNECT_PAUSE_S, LONGEST_RECONNECT_PAUSE_S = 0.2, 2.0
"""Doubled as long as there is no session: who refuses one answers at once."""
_CLOSE_TIMEOUT_S = 5.0


class DDLWorker:
    """Call `run` once; `stop` ends it.

    - `factory` opens Keeper sessions; the worker owns the one it uses.
    - `topology` gives the present clusters and macros; call `topology_changed` when they are others.
    - `own_sessions` are those of the other queues' workers in this server, too.
    - `profile_settings` are the settings of `distributed_ddl.profile`.
    - `users`: only statements of these are carried out, as far as entries name who wants them; None: all.
    - `on_round` is called after each scan of the queue (the cleaner wants to know).
    """

    def __init__(
        self,
        *,
        factory: KeeperFactory,
        env: Env,
        executor: LocalExecutor,
        intents: IntentStore,
        identity: NodeIdentity,
        topology: Callable[[], Topology],
        queue: DistributedDdl,
        resolver: Resolver,
        own_sessions: OwnSessions | None = None,
        profile_settings: Callable[[], Mapping[str, str]] = dict,
        users: Collection[str] | None = None,
        on_round: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        if queue.pool_size <= 0:
            raise SqlError(Code.ARGUMENT_OUT_OF_BOUND, "distributed_ddl.pool_size should be greater then 0")
        self._factory = factory
        self._env = env
        self._executor = executor
        self._identity = identity
        self._topology = topology
        self._queue = queue
        self._paths = queue.paths
        self._resolver = resolver
        self._own_sessions = own_sessions or OwnSessions()
        self._users = users
        self._on_round = on_round
        self._runner = StatementRunner(
            executor=executor, intents=intents, env=env, queue=queue.path, profile_settings=profile_settings
        )
        self._memory = WorkerMemory()
        if queue.pool_size > 1:
            logger.warning(
                "ddl.pool_size size=%d statements of different objects may overtake", queue.pool_size
            )

    @property
    def max_entry(self) -> int:
        """The largest entry number this host has handled (ClickHouse's metric MaxDDLEntryID); -1: none
        yet."""
        return self._memory.max_entry

    # --- life ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until `stop`. Raises Corrupt and ConfigError; survives everything that Keeper does, and errors in
        the program."""
        await self._runner.load()
        keeper: Keeper | None = None
        reconnect_pause_s = RECONNECT_PAUSE_S
        try:
            while not self._memory.is_stopping:
                try:
                    if keeper is None or keeper.is_expired:
                        keeper = await unless_set(self._memory.stopping, self._opened())
                    if keeper is not None:
                        reconnect_pause_s = RECONNECT_PAUSE_S
                        await self._serve(keeper)
                except (ConnectionLoss, SessionExpired, OperationTimeout, KeeperUnavailable) as error:
                    logger.warning("ddl.worker_reconnects error=%s", error)
                    await self._pause(reconnect_pause_s)
                    reconnect_pause_s = min(2 * reconnect_pause_s, LONGEST_RECONNECT_PAUSE_S)
                except (Corrupt, ConfigError):
                    raise
                except KeeperAnswer as error:
                    logger.warning("ddl.worker_starts_over error=%s", error)
                    self._memory.start_over()
                    await self._pause(RETRY_PAUSE_S if _will_last(error) else RECONNECT_PAUSE_S)
                except OnclusterError as error:
                    logger.warning("ddl.worker_starts_over error=%s", error)
                    self._memory.start_over()
                    await self._pause(RETRY_PAUSE_S)
                except Exception:  # a defect, too: nobody else would go on with the queue
                    logger.exception("ddl.worker_starts_over")
                    self._memory.start_over()
                    await self._pause(RETRY_PAUSE_S)
        finally:
            if keeper is not None:
                await _close(keeper)

    def stop(self) -> None:
        """End `run` soon. A statement under way is not interrupted; `drain` waits for it."""
        self._memory.stopping.set()
        self._memory.wake.set()

    async def drain(self) -> None:
        """Wait until nothing of this queue runs here; call after `run` has ended."""
        await self._runner.drain()

    def topology_changed(self) -> None:
        """The clusters were re-read: mark new host ids, look again at entries of hosts that were not
        found."""
        self._memory.topology_serial += 1
        self._memory.wake.set()

    async def forget_intents(self, keeper: Keeper, present: frozenset[str]) -> None:
        """Drop the records of entries that are gone; `present` are the queue's entries, read after a sync.

        Where an entry was recorded as expired for this host although it had begun here, the record is put
        right.
        """
        intents = self._runner.forgettable(present)
        told = []
        for intent in intents:
            try:
                await self._tell_record(keeper, intent)
            except TryAgain as error:
                logger.warning("ddl.intent_kept entry=%s error=%s", intent.key.entry, error)
                continue
            told.append(intent.key)
        await self._runner.forget(told)

    async def _tell_record(self, keeper: Keeper, intent: Intent) -> None:
        record = await read_outcome_record(keeper, self._paths, intent.key.entry)
        host = HostId.parse(intent.host)
        if record is None or record.czxid != intent.key.czxid or host not in record.unreported:
            return
        status = intent.status
        if status is None:
            entry = DDLLogEntry(OLDEST_VERSION, record.query, (host,))
            task = interpret_without_cluster(intent.key.entry, intent.key.czxid, b"", entry, host)
            status = await self._runner.recover_gone(intent, task) if task is not None else None
        if status is not None:
            await correct_record(keeper, self._paths, intent.key.entry, intent.key.czxid, host, status)

    # --- one session --------------------------------------------------------------------------------------

    async def _serve(self, keeper: Keeper) -> None:
        self._check_session(keeper)
        sibling_ended = asyncio.Event()
        with self._own_sessions.living(keeper.session_id, when_another_ends=sibling_ended.set):
            await self._serve_marked(keeper, sibling_ended)

    async def _serve_marked(self, keeper: Keeper, sibling_ended: asyncio.Event) -> None:
        await create_ancestors(keeper, self._paths.entry("x"))
        await keeper.sync(self._paths.root)
        marker = ReplicaMarker(
            keeper, self._env, self._paths, self._identity, self._resolver, self._own_sessions
        )
        await marker.mark(self._topology())
        matcher = HostMatcher(
            self._identity,
            self._resolver,
            self._env,
            host_name=self._queue.host_name,
            is_claimed_by_us=marker.is_claimed_by_us,
        )
        await matcher.check_host_name()
        reporter = Reporter(keeper, self._paths, self._identity)
        backlog = Backlog(lanes=self._queue.pool_size)
        over = asyncio.Event()
        keeper.on_expired(over.set)
        scan = QueueScan(
            keeper=keeper,
            env=self._env,
            paths=self._paths,
            memory=self._memory,
            marker=marker,
            matcher=matcher,
            reporter=reporter,
            runner=self._runner,
            backlog=backlog,
            identity=self._identity,
            resolver=self._resolver,
            topology=self._topology,
            users=self._users,
            on_round=self._on_round,
        )
        await _first_to_end(
            scan.run(),
            _until_expired(over),
            self._keep_marked(marker, sibling_ended),
            *(self._lane(keeper, reporter, backlog).run() for _ in range(self._queue.pool_size)),
        )

    def _lane(self, keeper: Keeper, reporter: Reporter, backlog: Backlog) -> Lane:
        return Lane(
            keeper=keeper,
            paths=self._paths,
            batch=Batch(reporter, self._env),
            backlog=backlog,
            memory=self._memory,
            runner=self._runner,
            env=self._env,
            execute=partial(self._execute, keeper, reporter),
        )

    async def _keep_marked(self, marker: ReplicaMarker, sibling_ended: asyncio.Event) -> None:
        """What is not urgent, once; and whatever another queue's worker had marked when its session ends."""
        await marker.mark_others(self._topology())
        while await sibling_ended.wait():
            sibling_ended.clear()
            marker.forget_siblings()
            await marker.mark(self._topology())
            await marker.mark_others(self._topology())

    async def _execute(self, keeper: Keeper, reporter: Reporter, task: Task) -> Report | None:
        """The report of a claimed task; None when the entry went away or waits for another time."""
        logger.info("ddl.claimed entry=%s host=%s object=%s", task.name, task.host, task.object_text)
        self._memory.latest_executed = max(self._memory.latest_executed, entry_number(task.name) or 0)
        await self._runner.wait_for_earlier(task)
        pause_s, tries = FIRST_RETRY_PAUSE_S, 0
        while True:
            try:
                tries += 1
                with errors_of_the_program_are_tried_again():
                    return await self._run_here_or_for_the_shard(keeper, task)
            except NoNode as error:
                if await keeper.exists(self._paths.entry(task.name)) is not None:
                    raise
                logger.warning("ddl.entry_gone entry=%s error=%s", task.name, error)
                self._memory.settle(task.name)
                return None
            except TryAgain as error:
                if error.is_defect and tries >= TRIES_OF_A_DEFECT:
                    logger.error("ddl.defect entry=%s error=%s", task.name, error)
                    status = status_of(error)
                    await self._runner.settle(task, status)
                    return Report(task.name, task.host, status)
                logger.warning("ddl.will_try_again entry=%s code=%d error=%s", task.name, error.code, error)
                await reporter.unclaim(task.name, task.host)
                await self._pause(pause_s)
                pause_s = min(2 * pause_s, RETRY_PAUSE_S)
                if await reporter.claim(task.name, task.host) is not Claim.CLAIMED:
                    self._memory.settle(task.name)
                    return None

    async def _run_here_or_for_the_shard(self, keeper: Keeper, task: Task) -> Report:
        try:
            is_for_shard = await self._runs_once_per_shard(task)
        except SqlError as error:
            if is_retriable(error):
                raise TryAgain(error.message, code=error.code) from error
            status = status_of(error, prefix=BEFORE_EXECUTION)
            await self._runner.settle(task, status)
            return Report(task.name, task.host, status)
        if not is_for_shard:
            return Report(task.name, task.host, await self._runner.run(task))
        execution = ShardExecution(keeper, self._env, self._paths, self._runner, task)
        result = await execution.run()
        await self._runner.settle(task, result.status)
        if result.end is not ShardEnd.EXECUTED_HERE:
            return Report(task.name, task.host, result.status)
        return Report(
            task.name,
            task.host,
            result.status,
            executed_shard=result.shard,
            executed_by=result.executed_by,
            lock_path=result.lock_path,
        )

    async def _runs_once_per_shard(self, task: Task) -> bool:
        if task.place.is_circular or not task.tables or not runs_once_per_shard(task.statement):
            return False
        engine = await self._executor.table_engine(task.tables[0])
        return engine is not None and self._executor.supports_replication(engine)

    def _check_session(self, keeper: Keeper) -> None:
        if keeper.is_expired:
            raise SessionExpired("The Keeper session is over")

    async def _opened(self) -> Keeper:
        return await self._factory()

    async def _pause(self, longest_s: float) -> None:
        await self._env.sleep(longest_s * self._env.rng.uniform(0.5, 1.0))


def _will_last(error: KeeperAnswer) -> bool:
    """Whether it is no matter of what stands there now: a quota, or somebody else's ACL."""
    answer = error.error if isinstance(error, MultiFailed) else error
    return isinstance(answer, BadArguments | NoAuth)


async def _until_expired(over: asyncio.Event) -> None:
    await over.wait()
    raise SessionExpired("The Keeper session is over")


async def _first_to_end(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run them together until one ends or fails; cancel the others, and end as that one did."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    failures = [t.exception() for t in tasks if t.done() and not t.cancelled() and t.exception() is not None]
    # A session's end shows up in several of them; anything else is the more telling.
    failures.sort(key=lambda error: isinstance(error, (UnknownOutcome, KeeperUnavailable)))
    if failures and failures[0] is not None:
        raise failures[0]


async def _close(keeper: Keeper) -> None:
    try:
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            await keeper.close()
    except (TimeoutError, OnclusterError) as error:
        logger.info("ddl.session_left_to_expire error=%s", error)
