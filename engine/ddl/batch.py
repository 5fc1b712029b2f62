"""What one lane has claimed ahead and not yet reported, so that a long queue costs one request for many
entries.

With one lane it is known which tasks come next. The lane claims up to `CLAIMED_AHEAD` of them in one request,
runs them one after the other, and reports them along with the next claims. When nothing is waiting a task is
claimed and reported by itself, at once.

Safety argument. Each part of such a request is what `engine.ddl.report` would do singly, and it is all or
nothing: where it is refused, nothing has happened and everything is done singly. What a batch holds back is
only the telling: it never holds back a report for longer than a statement that takes `PATIENCE_S`, nor for
more than `LONGEST_DELAY_S` altogether, or than a series may take, and it does not keep claims while a
statement takes its time, because who looks at the queue reads them as *running*. A crash leaves outcomes that
are recorded here and not there, which is what a crash before any report leaves, and claims that go with the
session.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from engine.ddl.report import Report, Reporter
from engine.ddl.task import Task
from engine.env import Env

logger = logging.getLogger(__name__)

CLAIMED_AHEAD = 32
PATIENCE_S = 0.1
LONGEST_DELAY_S = 0.1


@dataclass(slots=True)
class Batch:
    """One lane's, in one session."""

    reporter: Reporter
    env: Env
    unreported: list[tuple[Task, Report]] = field(default_factory=list)
    _ahead: dict[str, Task] = field(default_factory=dict)
    _oldest_s: float = 0.0

    @property
    def holds_something(self) -> bool:
        return bool(self.unreported or self._ahead)

    @property
    def has_to_be_told(self) -> bool:
        """Whether the next statement may not begin before the reports are written.

        A statement that ran for its shard is such: as long as it is not reported, another replica that takes
        over compares the object with what it was before, and must not meet the effects of later statements.
        """
        if any(report.executed_shard is not None for _, report in self.unreported):
            return True
        return bool(self.unreported) and self.env.monotonic_s() - self._oldest_s > LONGEST_DELAY_S

    def add(self, task: Task, report: Report) -> None:
        """An outcome that has to be reported."""
        if not self.unreported:
            self._oldest_s = self.env.monotonic_s()
        self.unreported.append((task, report))

    def take_claim(self, task: Task) -> bool:
        """Whether the task was claimed ahead; it is the caller's now."""
        return self._ahead.pop(task.name, None) is not None

    async def report_and_claim(self, tasks: Sequence[Task]) -> list[Task] | None:
        """Report everything and claim `tasks` in one request; the first is the caller's.

        Returns the tasks that were reported; None: nothing happened, do it singly.
        """
        reports = [report for _, report in self.unreported]
        if not await self.reporter.report_and_claim(reports, [(task.name, task.host) for task in tasks]):
            return None
        self._ahead.update((task.name, task) for task in tasks[1:])
        return self.take_unreported_tasks()

    def take_unreported(self) -> list[tuple[Task, Report]]:
        """What has to be reported; it is the caller's now."""
        taken, self.unreported = self.unreported, []
        return taken

    def take_unreported_tasks(self) -> list[Task]:
        return [task for task, _ in self.take_unreported()]

    @property
    def claimed_ahead(self) -> list[Task]:
        """In queue order."""
        return list(self._ahead.values())

    async def give_back_claims(self, *, but: Collection[Task] = ()) -> None:
        """A statement takes its time: what was claimed ahead is waiting and not running, but for these."""
        kept = {task.name for task in but}
        back = [task for name, task in self._ahead.items() if name not in kept]
        for task in back:
            del self._ahead[task.name]
        await self.reporter.unclaim_all([(task.name, task.host) for task in back])
