"""Several tasks executed one after the other by one thread: a long queue costs one change of threads for many
statements.

Safety argument. Each task's steps are those of `engine.ddl.intents`, in their order and on one thread: its
digest is read and its intent forced to disk before its own effect. Tasks about different objects are begun
together, in one transaction: none of them changes what the digest of another is about. In the same
transaction are the outcomes of those before, so that they are on disk before any later effect on the same
object. What a crash leaves is what it leaves where tasks are run singly: intents with an outcome, intents
whose digests tell it, and intents of statements that have not begun, whose digests say so.

1. Only tasks that digests tell about for sure take part (CREATE and DROP of tables), none of which was begun
   before, and none while anything that an earlier session began is under way.
2. The first one that fails ends the series. It has an outcome, or it is run singly by the next attempt.
3. A series that is stopped begins nothing more: when `stop` has returned it is known which task may still be
   under way. It is stopped when the session ends, and when it or one of its statements takes its time.
   What was recorded and is not begun then is recorded anew when it is run.

A series is a part of the queue that has no gaps. Its tasks run in the queue's order, but for those of which
it does not matter which one is first (`engine.ddl.series_order`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.ddl.executor import Step, Steps
from engine.ddl.intents import BlockingIntentStore, Intent, IntentKey
from engine.ddl.status import SUCCESS, ExecutionStatus
from engine.ddl.task import Task
from engine.env import Env
from engine.sql import Statement, StatementKind

LONGEST_PER_TASK_S = 0.01
"""Several times what one takes. After so long for each of its tasks a series begins nothing more, so that the
outcomes of a short one are told soon, and a long queue, in which everybody waits anyway, costs less."""
IN_SERIES = frozenset({StatementKind.CREATE_TABLE, StatementKind.DROP_TABLE})
"""Most of what a long queue carries."""


@dataclass(frozen=True, slots=True)
class SeriesTask:
    """`begin` makes the intent from the digest."""

    task: Task
    step: Step
    key: IntentKey
    begin: Callable[[str], Intent]


class Series:
    """Implements `Steps`, which is called on any thread; the rest is for the event loop.

    `groups` run one after the other; the tasks of each are recorded together.
    """

    def __init__(
        self, groups: Sequence[Sequence[SeriesTask]], intents: BlockingIntentStore, env: Env
    ) -> None:
        self._groups = list(groups)
        self._tasks = [each for group in groups for each in group]
        self._intents = intents
        self._env = env
        self.longest_s = LONGEST_PER_TASK_S * len(self._tasks)
        self._deadline_s = env.monotonic_s() + self.longest_s
        self._lock = threading.Lock()
        self._is_stopped = False
        self._taken = 0
        self._succeeded = 0
        self._ended = 0
        self._begun: list[Intent] = []
        self._failure: list[tuple[Task, ExecutionStatus]] = []
        self._is_failure = False
        self._told = 0
        self.run: asyncio.Task[None] | None = None
        """Set by who starts it; ends when nothing of the series is under way any more."""

    # --- Steps --------------------------------------------------------------------------------------------

    def take(self) -> Sequence[Step]:
        """The next group."""
        with self._lock:
            if self._is_stopped or not self._groups:
                return ()
            group = self._groups.pop(0)
            self._taken += len(group)
            return [each.step for each in group]

    def record(self, digests: Sequence[str]) -> None:
        parts = self._tasks[self._succeeded : self._taken]
        begun = [each.begin(digest) for each, digest in zip(parts, digests, strict=True)]
        self._intents.begin_now(*begun, ended=[(intent.key, SUCCESS) for intent in self.not_ended])
        self._ended = self._succeeded
        self._begun += begun
        if not all(digests):
            self.stop()  # after a crash nobody could tell: an outcome is not left to a later intent

    def done(self) -> bool:
        with self._lock:
            self._succeeded += 1
            self._is_stopped = self._is_stopped or self._env.monotonic_s() > self._deadline_s
            return not self._is_stopped

    # --- who waits for it ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """Nothing is begun any more."""
        with self._lock:
            self._is_stopped = True

    async def wait(self, longest_s: float | None = None) -> bool:
        """Whether it is over. Raises what its run raised."""
        assert self.run is not None
        await asyncio.wait({self.run}, timeout=longest_s)
        if self.run.done():
            self.run.result()
        return self.run.done()

    def new_outcomes(self) -> list[tuple[Task, ExecutionStatus]]:
        """Those that came since the last call, in the order in which they ran."""
        succeeded = self._succeeded
        new = [(each.task, SUCCESS) for each in self._tasks[self._told : succeeded]]
        self._told = succeeded
        failed, self._failure = self._failure, []
        return [*new, *failed]

    @property
    def tasks(self) -> list[Task]:
        """In the order in which they run."""
        return [each.task for each in self._tasks]

    @property
    def begun_tasks(self) -> list[Task]:
        """Of a stopped series: what has ended or may be under way; nothing is added any more."""
        return [each.task for each in self._tasks[: self._succeeded + 1]]

    # --- who runs it --------------------------------------------------------------------------------------

    @property
    def succeeded(self) -> list[Intent]:
        """Of what has taken effect."""
        return self._begun[: self._succeeded]

    @property
    def not_ended(self) -> list[Intent]:
        """Of what has taken effect, those whose outcomes are in no later intent's transaction."""
        return self._begun[self._ended : self._succeeded]

    def note_failure(self) -> tuple[Task, Intent | None] | None:
        """The executor has raised: whose failure it is, and its intent if it was begun; None if nothing was
        taken."""
        at = self._succeeded
        self._is_failure = True
        if at == self._taken:
            return None
        return self._tasks[at].task, self._begun[at] if at < len(self._begun) else None

    @property
    def never_begun(self) -> list[Intent]:
        """Of a series that is over: recorded together with others, and not executed."""
        return self._begun[self._succeeded + self._is_failure :]

    def add_failure(self, task: Task, status: ExecutionStatus) -> None:
        """The outcome of the task that failed."""
        self._failure.append((task, status))

    def __contains__(self, key: object) -> bool:
        return any(each.key == key for each in self._tasks)


class ToldSteps:
    """Steps of which somebody on the event loop is told when they have taken effect. `last` is the statement
    taken last."""

    def __init__(self, steps: Steps, tell: Callable[[Statement], None] | None) -> None:
        self._steps = steps
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._taken: list[Step] = []
        self.last: Statement | None = None

    def take(self) -> Sequence[Step]:
        taken = tuple(self._steps.take())
        self._taken = list(taken)
        if taken:
            self.last = taken[-1].statement
        return taken

    def record(self, digests: Sequence[str]) -> None:
        self._steps.record(digests)

    def done(self) -> bool:
        if self._tell is not None:
            self._loop.call_soon_threadsafe(self._tell, self._taken.pop(0).statement)
        return self._steps.done()
