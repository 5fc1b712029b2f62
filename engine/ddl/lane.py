"""One lane of a queue's worker: takes tasks from the backlog, claims them, has them executed, reports.

While several are waiting they are claimed and reported together (`engine.ddl.batch`), and executed together
where that is possible (`engine.ddl.series`); each is claimed before it is begun, and reported when it has
ended. A lane belongs to one session and ends with it; what is under way then goes on (`engine.ddl.runner`),
and of a series nothing more is begun.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from engine.ddl.backlog import Backlog
from engine.ddl.batch import CLAIMED_AHEAD, PATIENCE_S, Batch
from engine.ddl.failures import TryAgain
from engine.ddl.outcome import HostOutcome, HostState
from engine.ddl.outcome_record import correct_outcome_record
from engine.ddl.report import Claim, Report
from engine.ddl.runner import StatementRunner
from engine.ddl.series import Series
from engine.ddl.status import ExecutionStatus
from engine.ddl.task import Task
from engine.ddl.worker_memory import WorkerMemory
from engine.env import Env
from engine.errors import Busy
from engine.keeper.base import Keeper
from engine.names import HostId, QueuePaths, entry_number

logger = logging.getLogger(__name__)


class Lane:
    """Call `run`; it goes on until it is cancelled or fails.

    `execute` runs a claimed task by itself: its report, or None when the entry went away.
    """

    def __init__(
        self,
        *,
        keeper: Keeper,
        paths: QueuePaths,
        batch: Batch,
        backlog: Backlog,
        memory: WorkerMemory,
        runner: StatementRunner,
        env: Env,
        execute: Callable[[Task], Awaitable[Report | None]],
    ) -> None:
        self._keeper = keeper
        self._paths = paths
        self._batch = batch
        self._backlog = backlog
        self._memory = memory
        self._runner = runner
        self._env = env
        self._execute = execute

    async def run(self) -> None:
        """Claim, run, report, as many at once as are waiting."""
        batch, backlog = self._batch, self._backlog
        while True:
            task = backlog.try_take()
            if task is None:
                if batch.unreported:
                    await self._report_all()
                    continue
                task = await backlog.take()
            match await self._claim(task):
                case Claim.CLAIMED:
                    if await self._execute_series(task):
                        continue
                    report = await self._execute_meanwhile(task)
                    if report is not None:
                        batch.add(task, report)
                case Claim.GONE:
                    logger.info("ddl.entry_gone entry=%s", task.name)
                    self._memory.settle(task.name)
                case Claim.BEING_REMOVED:
                    # Half an entry: a cleaner is at work, or died at it. Whoever finds it whole again runs
                    # it.
                    logger.info("ddl.entry_being_removed entry=%s", task.name)
                    self._memory.look_again(task.name, self._env.monotonic_s())
            backlog.done(task)

    async def _claim(self, task: Task) -> Claim:
        batch = self._batch
        if batch.take_claim(task):
            if batch.has_to_be_told:
                await self._report_all()
            return Claim.CLAIMED
        tasks = [task, *self._backlog.following(CLAIMED_AHEAD)]
        if batch.unreported or len(tasks) > 1:
            reported = await batch.report_and_claim(tasks)
            if reported is not None:
                for each in reported:
                    self._memory.settle(each.name)
                return Claim.CLAIMED
            await self._report_all()
        while True:
            try:
                return await batch.reporter.claim(task.name, task.host)
            except Busy as error:
                # Another server, or another process of this one, executes under our name.
                logger.warning("ddl.claim_refused entry=%s holder=%s", task.name, error.holder)

    async def _report_all(self) -> None:
        batch = self._batch
        if len(batch.unreported) > 1:
            for task in await batch.report_and_claim([]) or ():
                self._memory.settle(task.name)
        for task, report in batch.take_unreported():
            await self._report(task, report)

    async def _execute_series(self, first: Task) -> bool:
        """Execute `first`, which is claimed, and what was claimed ahead; whether any of it was executed."""
        if not self._batch.claimed_ahead:
            return False
        series = await self._runner.start_series([first, *self._batch.claimed_ahead])
        if series is None:
            return False
        tasks = series.tasks
        logger.info(
            "ddl.claimed_together entry=%s until=%s entries=%d host=%s",
            first.name,
            max(task.name for task in tasks),
            len(tasks),
            first.host,
        )
        latest = max(entry_number(task.name) or 0 for task in tasks)
        self._memory.latest_executed = max(self._memory.latest_executed, latest)
        count = 0
        try:
            if not await series.wait(series.longest_s + PATIENCE_S):
                # One statement takes its time: everything that waited for company is reported meanwhile.
                series.stop()
                count += self._take_outcomes(series)
                await self._report_all()
                await self._batch.give_back_claims(but=series.begun_tasks)
                await series.wait()
        except TryAgain:
            pass  # the runner has told; what has no outcome is run singly
        finally:
            series.stop()
        return count + self._take_outcomes(series) > 0

    def _take_outcomes(self, series: Series) -> int:
        outcomes = series.new_outcomes()
        for task, status in outcomes:
            self._batch.take_claim(task)
            self._batch.add(task, Report(task.name, task.host, status))
        self._backlog.done(*(task for task, _ in outcomes))
        return len(outcomes)

    async def _execute_meanwhile(self, task: Task) -> Report | None:
        """Execute; if that takes a while, everything that waited for company is reported meanwhile."""
        if not self._batch.holds_something:
            return await self._execute(task)
        execution = asyncio.ensure_future(self._execute(task))
        try:
            await asyncio.wait({execution}, timeout=PATIENCE_S)
            if not execution.done():
                await self._report_all()
                await self._batch.give_back_claims()
            return await execution
        finally:
            execution.cancel()
            await asyncio.gather(execution, return_exceptions=True)

    async def _report(self, task: Task, report: Report) -> None:
        if not await self._batch.reporter.report(report):
            await correct_record(self._keeper, self._paths, task.name, task.czxid, task.host, report.status)
        self._memory.settle(task.name)


async def correct_record(
    keeper: Keeper, paths: QueuePaths, entry: str, czxid: int, host: HostId, status: ExecutionStatus
) -> None:
    """The entry was removed, as expired for this host, while it was executing here."""
    state = HostState.DONE if status.is_success else HostState.FAILED
    outcome = HostOutcome(host, state, code=status.code, error=status.message)
    if await correct_outcome_record(keeper, paths, entry, czxid, outcome):
        logger.warning("ddl.expired_entry_was_executed entry=%s host=%s", entry, host)
