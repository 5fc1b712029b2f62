"""Running a task on this host, at most once across crashes. The safety argument stands in
`engine.ddl.intents`.

A run belongs to the process, not to a Keeper session: when the session ends in the middle, the statement
goes on, and the next session finds its outcome here instead of starting it again. Its entry may have been
removed meanwhile, so that the next session does not know of it: `wait_for_earlier` keeps later statements on
the same object from taking effect before it.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from engine.ddl.attempt import Fence
from engine.ddl.begun import KnownStatements, shows_itself
from engine.ddl.executor import (
    Execution,
    FencedExecutor,
    FenceLost,
    Fingerprint,
    LocalExecutor,
    RecordingExecutor,
    SeriesExecutor,
)
from engine.ddl.failures import TryAgain, errors_of_the_program_are_tried_again, is_retriable
from engine.ddl.intents import BlockingIntentStore, Intent, IntentKey, IntentStore
from engine.ddl.recovery import NextStep, next_step, unknown_outcome
from engine.ddl.series import Series
from engine.ddl.series_runner import SeriesRunner
from engine.ddl.status import SUCCESS, ExecutionStatus
from engine.ddl.task import Task, execution_of, footprint_of, settings_of
from engine.env import Env
from engine.errors import Corrupt, OnclusterError, SqlError

logger = logging.getLogger(__name__)


class Judge(enum.Enum):
    """Who says whether an earlier attempt of this host took effect."""

    FINGERPRINTS = "fingerprints"
    KEEPER = "Keeper"
    """And it has said that it did not, and never will (`engine.ddl.attempt`)."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    task: Task
    fence: Fence | None
    judge: Judge


class StatementRunner:
    """Runs tasks of one queue and knows the outcome of every one it ran."""

    def __init__(
        self,
        *,
        executor: LocalExecutor,
        intents: IntentStore,
        env: Env,
        queue: str,
        profile_settings: Callable[[], Mapping[str, str]],
    ) -> None:
        self._executor = executor
        self._env = env
        self._profile_settings = profile_settings
        self._known = KnownStatements(intents, queue)
        self._runs: dict[IntentKey, asyncio.Task[ExecutionStatus]] = {}
        self._under_way: dict[asyncio.Task[ExecutionStatus], Task] = {}
        self._recording: tuple[RecordingExecutor, BlockingIntentStore] | None = None
        self._series: SeriesRunner | None = None
        if isinstance(intents, BlockingIntentStore) and isinstance(executor, RecordingExecutor):
            self._recording = executor, intents
            if isinstance(executor, SeriesExecutor):
                self._series = SeriesRunner(
                    executor,
                    intents,
                    known=self._known,
                    env=env,
                    settings_of=self._settings,
                    execution_of=self._execution,
                )

    async def load(self) -> None:
        """Read what an earlier process left. Once."""
        await self._known.load()

    def begun(self, task: Task) -> Intent | None:
        """What is recorded of this very entry."""
        return self._known.find(task)

    async def fingerprint(self, task: Task) -> str:
        """What the statement would change, as it stands now; empty when the executor cannot tell.

        Raises TryAgain where it can tell in a moment: a replica that is read-only while its node starts must
        not be taken for one of which nothing is known.
        """
        try:
            return await self._executor.definition_digest(task.statement, task.database)
        except Corrupt:
            raise
        except OnclusterError as error:
            if isinstance(error, SqlError) and not is_retriable(error):
                logger.warning("ddl.no_digest entry=%s error=%s", task.name, error.message)
                return ""
            raise TryAgain(error.message, code=error.code) from error

    @property
    def records_effects(self) -> bool:
        """Whether what runs under a fence is recorded with its effect."""
        return isinstance(self._executor, FencedExecutor)

    async def run(
        self, task: Task, *, fence: Fence | None = None, judge: Judge = Judge.FINGERPRINTS
    ) -> ExecutionStatus:
        """The outcome of the task: run now, or of a run that has been under way, or as recorded before a
        crash.

        Cancelling this call leaves the run going. Raises TryAgain, and FenceLost.
        """
        await self._series_is_over()
        key = self._known.key(task)
        run = self._runs.get(key)
        if run is None:
            run = asyncio.create_task(self._run(_Attempt(task, fence, judge)), name=f"ddl {task.name}")
            self._under_way[run] = task
            run.add_done_callback(self._run_is_over)
            self._runs[key] = run
        return await self._wait_for(key, run)

    async def wait_for_earlier(self, task: Task) -> None:
        """Until nothing that an earlier session began is under way on what this task touches."""
        await self._series_is_over()
        footprint, key = footprint_of(task), self._known.key(task)
        before = [
            run
            for run, other in self._under_way.items()
            if self._known.key(other) != key and footprint.conflicts_with(footprint_of(other))
        ]
        if before:
            logger.info("ddl.waits_for_earlier entry=%s runs=%d", task.name, len(before))
            await asyncio.wait(before)

    async def _wait_for(self, key: IntentKey, run: asyncio.Task[ExecutionStatus]) -> ExecutionStatus:
        """A run is forgotten when somebody has taken note of its end."""
        try:
            return await asyncio.shield(run)
        finally:
            if run.done() and self._runs.get(key) is run:
                del self._runs[key]

    async def conclude(self, task: Task) -> ExecutionStatus | None:
        """The outcome of a task that was begun here and shall not be begun again; None if it had no
        effect."""
        await self._series_is_over()
        run = self._runs.get(self._known.key(task))
        if run is not None:
            try:
                return await self._wait_for(self._known.key(task), run)
            except (TryAgain, FenceLost) as error:
                logger.info("ddl.concluding entry=%s error=%s", task.name, error)
        intent = self.begun(task)
        if intent is None or intent.status is not None:
            return None if intent is None else intent.status
        decided = await self._recover(task, intent)
        return None if decided is None else await self._known.finish(intent, decided)

    async def confirm(self, task: Task) -> ExecutionStatus:
        """The outcome of a task that took effect, as is known for sure, be it here or elsewhere."""
        run = self._runs.get(self._known.key(task))
        if run is not None:
            try:
                return await self._wait_for(self._known.key(task), run)
            except (TryAgain, FenceLost) as error:
                logger.info("ddl.confirming entry=%s error=%s", task.name, error)
        intent = self.begun(task)
        if intent is None:
            return SUCCESS
        return intent.status or await self._known.finish(intent, SUCCESS)

    async def recover_gone(self, intent: Intent, task: Task) -> ExecutionStatus | None:
        """What became of an entry that was begun here and has been removed; None if it had no effect."""
        before = Fingerprint.from_text(intent.digest_before)
        now = Fingerprint.from_text(await self.fingerprint(task))
        return _status_after(next_step(task.statement, task.query, before, now), task)

    async def settle(self, task: Task, status: ExecutionStatus) -> None:
        """Record an outcome that was decided elsewhere (the shard's other replica, an error before the
        run)."""
        intent = self.begun(task)
        if intent is not None and intent.status is None:
            await self._known.finish(intent, status)

    @property
    def running(self) -> int:
        return len(self._runs)

    async def drain(self) -> None:
        """Wait for the runs under way; their outcomes are recorded."""
        with suppress(Corrupt):  # ended the worker, or will as soon as it runs again
            await self._series_is_over()
        if self._runs:
            await asyncio.wait(list(self._runs.values()))

    def forgettable(self, present: frozenset[str]) -> list[Intent]:
        """Intents of entries that are gone for good and not running; `present` are the queue's entries."""
        return self._known.forgettable(present, is_running=self._is_running)

    def _is_running(self, key: IntentKey) -> bool:
        if self._series is not None and key in self._series:
            return True
        run = self._runs.get(key)
        return run is not None and not run.done()

    async def forget(self, keys: Iterable[IntentKey]) -> None:
        keys = list(keys)
        await self._known.forget(keys)
        for key in keys:
            self._runs.pop(key, None)

    # --- one run ------------------------------------------------------------------------------------------

    def _run_is_over(self, run: asyncio.Task[ExecutionStatus]) -> None:
        """It may end after the session that waited for it; the next one asks it again."""
        del self._under_way[run]
        if not run.cancelled() and run.exception() is not None:
            logger.info("ddl.run_without_outcome run=%s error=%s", run.get_name(), run.exception())

    async def _run(self, attempt: _Attempt) -> ExecutionStatus:
        task = attempt.task
        intent = self.begun(task)
        if intent is not None and intent.status is not None:
            return intent.status
        if intent is not None and attempt.judge is Judge.FINGERPRINTS:
            decided = await self._recover(task, intent)
            if decided is not None:
                return await self._known.finish(intent, decided)
        try:
            with errors_of_the_program_are_tried_again():
                if intent is not None:
                    await self._execute(attempt)
                elif self._recording is not None and attempt.fence is None:
                    intent = await self._begin_and_execute(task, *self._recording)
                else:
                    intent = self._known.intent(task, await self.fingerprint(task))
                    await self._known.begin(intent)
                    await self._execute(attempt)
        except (FenceLost, Corrupt):
            raise
        except OnclusterError as error:
            return await self._known.fail(task, error)
        return await self._known.finish(intent, SUCCESS, can_wait=shows_itself(task, intent))

    async def start_series(self, tasks: Sequence[Task]) -> Series | None:
        """Begin to run as many of `tasks`, from the first on, as may run in one go (`engine.ddl.series`).

        None: that is less than two, run them singly. Nothing else may be run before the series is over.
        """
        await self._series_is_over()
        if self._series is None or self._under_way:
            return None
        return await self._series.start(tasks)

    async def _series_is_over(self) -> None:
        if self._series is not None:
            await self._series.until_over()

    async def _begin_and_execute(
        self, task: Task, executor: RecordingExecutor, intents: BlockingIntentStore
    ) -> Intent:
        """Digest, intent and effect by the executor's thread alone. The intent is known whatever is raised
        after it was recorded."""
        recorded: list[Intent] = []

        def record(digest: str) -> None:
            intent = self._known.intent(task, digest)
            intents.begin_now(intent)
            recorded.append(intent)

        try:
            await executor.execute_recorded(
                self._execution(task), statement=task.statement, database=task.database, record=record
            )
        finally:
            for intent in recorded:
                self._known.note(intent)
        return recorded[0]

    async def _recover(self, task: Task, intent: Intent) -> ExecutionStatus | None:
        """The outcome of a run whose end nobody recorded; None: it has to run."""
        before = Fingerprint.from_text(intent.digest_before)
        now = Fingerprint.from_text(await self.fingerprint(task))
        step = next_step(task.statement, task.query, before, now)
        logger.warning("ddl.recovered entry=%s object=%s step=%s", task.name, intent.object, step.value)
        return _status_after(step, task)

    async def _execute(self, attempt: _Attempt) -> None:
        task, executor = attempt.task, self._executor
        execution = self._execution(task)
        if attempt.fence is not None and isinstance(executor, FencedExecutor):
            await executor.execute_fenced(execution, fence=attempt.fence)
        else:
            await executor.execute(execution)

    def _settings(self, task: Task) -> dict[str, str]:
        return settings_of(task.entry, self._profile_settings())

    def _execution(self, task: Task) -> Execution:
        return execution_of(task, self._settings(task), query_id=str(self._env.new_uuid()))


def _status_after(step: NextStep, task: Task) -> ExecutionStatus | None:
    match step:
        case NextStep.REPORT_DONE:
            return SUCCESS
        case NextStep.REPORT_UNKNOWN:
            return unknown_outcome(task.statement, begun_by="an earlier attempt of this host")
        case NextStep.EXECUTE:
            return None
