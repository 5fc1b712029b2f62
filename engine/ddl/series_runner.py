"""Running a series: which tasks are taken into it, and what becomes of its outcomes. The safety argument
stands in `engine.ddl.series`."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from engine.ddl.begun import KnownStatements
from engine.ddl.executor import Execution, SeriesExecutor, Step
from engine.ddl.failures import TryAgain, errors_of_the_program_are_tried_again
from engine.ddl.intents import BlockingIntentStore, IntentKey
from engine.ddl.recovery import tells_itself
from engine.ddl.series import IN_SERIES, Series, SeriesTask
from engine.ddl.series_order import in_groups
from engine.ddl.status import SUCCESS
from engine.ddl.task import Task, footprint_of
from engine.env import Env
from engine.errors import Corrupt, OnclusterError

logger = logging.getLogger(__name__)


class SeriesRunner:
    """At most one series at a time; nothing else is run before it is over (`until_over`)."""

    def __init__(
        self,
        executor: SeriesExecutor,
        intents: BlockingIntentStore,
        *,
        known: KnownStatements,
        env: Env,
        settings_of: Callable[[Task], Mapping[str, str]],
        execution_of: Callable[[Task], Execution],
    ) -> None:
        self._executor = executor
        self._intents = intents
        self._known = known
        self._env = env
        self._settings_of = settings_of
        self._execution_of = execution_of
        self._series: Series | None = None
        self._corrupt: Corrupt | None = None

    async def start(self, tasks: Sequence[Task]) -> Series | None:
        """Begin to run as many of `tasks`, from the first on, as may run in one go; None: less than two."""
        settings = self._settings_of(tasks[0])
        taken: dict[str, SeriesTask] = {}
        for task in tasks:
            if self._settings_of(task) != settings or not await self._takes(task):
                break
            step = Step(self._execution_of(task), task.statement, task.database)
            taken[task.name] = SeriesTask(
                task, step, self._known.key(task), partial(self._known.intent, task)
            )
        if len(taken) < 2:
            return None
        groups = in_groups([each.task for each in taken.values()])
        in_order = [[taken[task.name] for task in group] for group in groups]
        self._series = series = Series(in_order, self._intents, self._env)
        series.run = asyncio.create_task(self._run(series, settings), name="ddl series")
        series.run.add_done_callback(self._run_is_over)
        return series

    async def until_over(self) -> None:
        """Raises Corrupt if that has ended one: what it began is on disk alone, not to be begun again."""
        if self._series is not None and self._series.run is not None:
            await asyncio.wait({self._series.run})
        if self._corrupt is not None:
            raise self._corrupt

    def __contains__(self, key: IntentKey) -> bool:
        return self._series is not None and key in self._series

    async def _takes(self, task: Task) -> bool:
        return (
            task.statement.kind in IN_SERIES
            and not footprint_of(task).is_barrier
            and tells_itself(task.statement, task.query)
            and task not in self._known
            and await self._executor.takes_in_series(task.statement, task.database)
        )

    async def _run(self, series: Series, settings: Mapping[str, str]) -> None:
        try:
            with errors_of_the_program_are_tried_again():
                await self._executor.execute_series(series, settings)
        except Corrupt:
            raise
        except OnclusterError as error:
            failed = self._note_failure(series)
            await self._note_outcomes(series)
            if failed is None:
                raise TryAgain(error.message, code=error.code) from error
            series.add_failure(failed, await self._known.fail(failed, error))
        else:
            await self._note_outcomes(series)
        finally:
            series.stop()
            self._series = None

    def _run_is_over(self, run: asyncio.Task[None]) -> None:
        """It may end after the session that waited for it. Its outcomes are known then, and what has none is
        run by the next session."""
        error = None if run.cancelled() else run.exception()
        if error is not None:
            logger.info("ddl.series_broken_off error=%s", error)
        if isinstance(error, Corrupt):
            self._corrupt = error

    def _note_failure(self, series: Series) -> Task | None:
        task, begun = series.note_failure() or (None, None)
        if begun is not None:
            self._known.note(begun)
        return task

    async def _note_outcomes(self, series: Series) -> None:
        for intent in series.succeeded:
            self._known.note(dataclasses.replace(intent, status=SUCCESS))
        for intent in series.not_ended:
            await self._known.finish(intent, SUCCESS, can_wait=bool(intent.digest_before))
        if series.never_begun:  # what they say must not be compared with what others do later
            await self._known.forget([intent.key for intent in series.never_begun])
