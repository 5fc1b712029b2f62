"""Why tasks of the queue are not done, host by host, in words. Pure.

Hosts execute the queue in its order, one task after the other. So of all tasks that wait on a host only the
oldest one has a reason of its own: the others wait for it. One sentence for each host says more than one for
each task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.errors import Code
from engine.operations.overview.model import (
    Answer,
    Cell,
    ClusterOverview,
    HostView,
    Level,
    Presence,
    QueueView,
    Stuck,
    Task,
    TaskForm,
)
from engine.operations.overview.words import said
from engine.wording import count, duration, enumerated, shortened

PATIENCE_S = 15
"""A task that is younger is not stuck but new."""
LONG_S = 600
"""From this age on it is critical."""
_FRESH_FAILURE_S = 24 * 3600
_MOST_FAILURES = 10


def stuck_tasks(overview: ClusterOverview) -> Iterator[Stuck]:
    view = overview.queue.value
    if view is None:
        return
    yield from _odd_forms(view, overview.at_ms)
    yield from _failures(view, overview.at_ms)
    hosts = overview.hosts.value.hosts if overview.hosts.value else {}
    shards = {host: shard.hosts for shard in overview.shards for host in shard.hosts}
    oldest_first = [task for task in reversed(view.tasks) if task.is_open]
    # Hosts that wait for the same reason with the same task are one sentence, be it a hundred.
    alike: dict[tuple[str, str, str], list[_Head]] = {}
    for index, host in enumerate(view.hosts):
        waiting = [task for task in oldest_first if task.cell(index).is_open]
        age_s = (overview.at_ms - waiting[0].created_ms) / 1000 if waiting else 0
        if age_s < PATIENCE_S:
            continue
        head = _Head(
            host, waiting[0], index, view, hosts.get(host), shards.get(host, ()), age_s, len(waiting) - 1
        )
        alike.setdefault((head.task.name, *_why_host_waits(head)), []).append(head)
    for (_, why, advice), heads in alike.items():
        yield _not_done(heads, why, advice)


def _not_done(heads: Sequence[_Head], why: str, advice: str) -> Stuck:
    first = heads[0]
    more = max(head.behind for head in heads)
    behind = f", and {count(more, 'task')} behind it" if more else ""
    names = [head.host for head in heads]
    verb = "has" if len(names) == 1 else "have"
    return Stuck(
        what=f"{enumerated(names)} {verb} not done {first.task.name} ({_query(first.task)}){behind}.",
        why=why,
        advice=advice,
        level=Level.CRITICAL if first.age_s >= LONG_S else Level.WARNING,
        task=first.task.name,
        host=names[0] if len(names) == 1 else "",
        hosts=tuple(names),
        since_ms=first.task.created_ms,
    )


@dataclass(frozen=True, slots=True)
class _Head:
    """The oldest open task of a host."""

    host: str
    task: Task
    index: int
    view: QueueView
    server: HostView | None
    shard: Sequence[str]
    age_s: float
    behind: int

    @property
    def foreign_before(self) -> str:
        """An entry for another cluster that the host has to do first; empty if none."""
        name = self.view.foreign_first.get(self.host, "")
        return name if name < self.task.name else ""

    @property
    def executing_for_shard(self) -> str:
        """A replica of the same shard that is executing this task; empty if none."""
        columns = {host: number for number, host in enumerate(self.view.hosts)}
        for other in self.shard:
            if other in columns and self.task.cell(columns[other]) is Cell.RUNNING:
                return other
        return ""


def _why_host_waits(head: _Head) -> tuple[str, str]:
    """Reason and advice."""
    is_down = head.server is not None and head.server.answer is Answer.DOWN
    presence = head.view.presence.get(head.host, Presence.UNKNOWN)
    match head.task.cell(head.index):
        case Cell.RUNNING:
            return (
                f"It is executing it; the task is {duration(head.age_s)} old.",
                _advice_for_running(head.server),
            )
        case Cell.AWAY if is_down:
            return (
                "The host is off line: it answers neither over HTTP, nor has it a session with Keeper.",
                "Start the server. It takes the tasks up in their order by itself.",
            )
        case Cell.AWAY:
            return (
                "The host's queue worker is off line: it has no session with Keeper"
                + (", though the server answers over HTTP." if head.server else "."),
                "Look in its log for its connection to Keeper, or that its name is another server's.",
            )
        case _ if is_down:
            return (
                f"The host does not answer over HTTP: {head.server.error if head.server else ''}",
                "Start the server, or bring back the network to it. It takes the tasks up by itself.",
            )
        case _ if other := head.executing_for_shard:
            return (
                f"It waits for {other} of its shard, which executes the statement for both.",
                f"Look at what {other} is doing.",
            )
        case _ if before := head.foreign_before:
            return (
                f"It has {before} before it, which is for another cluster with the same queue.",
                "Look at that cluster's page, or ask those who may: what is stuck there is stuck here.",
            )
        case _ if presence is Presence.ACTIVE:
            return (
                "It is on line, has nothing before it in the queue, and has not begun.",
                "Look for the task in its log: perhaps it does not take the host's name for its own.",
            )
        case _ if head.server is not None:
            return (
                "The server answers over HTTP; whether it works on this queue is not known.",
                "Check the path in its distributed_ddl section, and that its name is that in the task.",
            )
        case _:
            return (
                "The host is not in the cluster's configuration any more, or was never asked.",
                "If it is gone for good, the cleanup marks its tasks as abandoned.",
            )


def _advice_for_running(server: HostView | None) -> str:
    if server is not None:
        failing = [mutation for mutation in server.mutations if mutation.fail_reason]
        if failing:
            return (
                f"Its mutation {failing[0].mutation_id} of {failing[0].table} fails and is tried again: "
                f"{said(failing[0].fail_reason)}"
            )
        if server.mutations:
            first = server.mutations[0]
            return (
                f"A mutation of {first.table} is unfinished ({count(first.parts_to_do, 'part')} to do); "
                "an ALTER that waits for it ends with it."
            )
    return "Look at system.processes on that host. The statement goes on, whoever waits for it or not."


def _odd_forms(view: QueueView, now_ms: int) -> Iterator[Stuck]:
    for task in view.tasks:
        age_s = (now_ms - task.created_ms) / 1000
        if task.form is TaskForm.UNREADABLE:
            yield Stuck(
                what=f"{task.name} cannot be read.",
                why="Its text is not what a server writes, or does not say which cluster it is for.",
                advice="The hosts' logs say whether they passed over it. Cleaning the queue removes it.",
                task=task.name,
                since_ms=task.created_ms,
            )
        elif task.form is TaskForm.WITHOUT_DIRECTORIES and age_s >= PATIENCE_S:
            yield Stuck(
                what=f"No host has looked at {task.name} ({_query(task)}).",
                why="Whoever submitted it was interrupted, and no worker has taken it up since.",
                advice="Check that at least one of its hosts is on line and works on this queue.",
                task=task.name,
                since_ms=task.created_ms,
            )


def _failures(view: QueueView, now_ms: int) -> Iterator[Stuck]:
    fresh = [
        task for task in view.tasks if task.failures and now_ms - task.created_ms <= _FRESH_FAILURE_S * 1000
    ]
    for task in fresh[:_MOST_FAILURES]:
        by_error: dict[tuple[int, str], list[str]] = {}
        for host, failure in task.failures.items():
            if _was_made_good(view, task, host):
                continue
            by_error.setdefault((failure.code, _without_host(failure.error, host)), []).append(host)
        for (code, error), hosts in by_error.items():
            yield Stuck(
                what=f"{task.name} ({_query(task)}) failed on {enumerated(hosts)}.",
                why=said(error) if error.startswith("Code:") else f"Code {code}: {said(error)}",
                advice=_after_failure(code),
                task=task.name,
                host=hosts[0] if len(hosts) == 1 else "",
                since_ms=task.created_ms,
            )


def _after_failure(code: int) -> str:
    if code == Code.UNKNOWN_FORMAT_VERSION:
        # As it is, these hosts would refuse it each time.
        return (
            "Their version does not know this form of an entry. Send the statement again with a smaller "
            "distributed_ddl_entry_format_version (a migration's: entry_version in its file, then run it "
            "with retry_failed); servers of 18.16 know 1 only. Other hosts keep what they have done."
        )
    return (
        "Remove the cause and send it again (a migration's: run it with retry_failed); other hosts keep what "
        "they have done."
    )


def _was_made_good(view: QueueView, failed: Task, host: str) -> bool:
    """Whether the host has done the same statement in a later task: somebody has sent it again. Of a task
    that is not on the page nobody knows the text here."""
    if not failed.query or host not in view.hosts:
        return False
    index = view.hosts.index(host)
    return any(
        task.query == failed.query and task.name > failed.name and task.cell(index) is Cell.DONE
        for task in view.tasks
    )


def _query(task: Task) -> str:
    return shortened(task.query, most=80)


def _without_host(error: str, host: str) -> str:
    """The same error of two hosts is one error, though each names itself."""
    return error.replace(host, "…")
