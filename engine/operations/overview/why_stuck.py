"""Why does it not go on? In words, from what was seen. Pure.

Hosts execute the queue in its order, one task after the other. So of all tasks that wait on a host only the
oldest one has a reason of its own: the others wait for it. One sentence for each host says more than one for
each task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from engine.operations.overview.model import (
    Answer,
    Cell,
    ClusterOverview,
    HostView,
    Level,
    PartState,
    Presence,
    QueueView,
    Stuck,
    Task,
    TaskForm,
)
from engine.wording import count, duration, shortened

PATIENCE_S = 15
"""A task that is younger is not stuck but new."""
LONG_S = 600
"""From this age on it is critical."""
_FRESH_FAILURE_S = 24 * 3600
_MOST_FAILURES = 10
_MOST_A_HOST = 3
_QUERY_CHARS = 80
_ERROR_CHARS = 400

_EXCEPTIONS: tuple[tuple[str, str], ...] = (
    (
        "no active replica has part",
        "A replica that has the part is off line: bring it back. Is it lost, ask the health check.",
    ),
    ("no_replica_has_part", "A replica that has the part is off line: bring it back."),
    ("not enough space", "Free space on that host's disk."),
    ("not_enough_space", "Free space on that host's disk."),
    ("memory limit", "The host has too little memory for the merge or mutation; give it more, or less work."),
    ("checksum", "The part is damaged on the host it comes from; its own part check will fetch or drop it."),
    ("connection refused", "The replica that has the part does not answer at its interserver port."),
    ("session expired", "The host has lost its session with Keeper and opens a new one by itself."),
)
"""What is known of the errors that a replica's queue hangs on, by a piece of their text in lower case."""


def why_stuck(overview: ClusterOverview) -> tuple[Stuck, ...]:
    """Everything that does not move, the worst and the oldest first."""
    tasks = list(_tasks(overview))
    found = [
        *_keeper(overview),
        *tasks,
        *_hosts(overview, told={host for item in tasks for host in item.hosts}),
    ]
    order = list(Level)
    now_ms = overview.at_ms
    found.sort(key=lambda item: (-order.index(item.level), item.since_ms or now_ms, item.what))
    return tuple(found)


# --- Keeper and the queue ---------------------------------------------------------------------------------


def _keeper(overview: ClusterOverview) -> Iterator[Stuck]:
    part = overview.queue
    if part.state is PartState.FAILED:
        yield Stuck(
            what="The queue cannot be read.",
            why=part.error,
            advice=part.advice
            or "Until Keeper answers, no statement ON CLUSTER is executed and replicated tables take no "
            "rows. Look at ZooKeeper or Keeper and at the network to it.",
            level=Level.CRITICAL,
        )


def _tasks(overview: ClusterOverview) -> Iterator[Stuck]:
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
        what=f"{_names(names)} {verb} not done {first.task.name} ({_query(first.task)}){behind}.",
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
                "Look in that server's log for its connection to Keeper.",
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
                f"{_said(failing[0].fail_reason)}"
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
            by_error.setdefault((failure.code, _without_host(failure.error, host)), []).append(host)
        for (code, error), hosts in by_error.items():
            yield Stuck(
                what=f"{task.name} ({_query(task)}) failed on {_names(hosts)}.",
                why=_said(error) if error.startswith("Code:") else f"Code {code}: {_said(error)}",
                advice="Remove the cause and send it again (run its migration again, if it is one's); other "
                "hosts keep what they have done.",
                task=task.name,
                host=hosts[0] if len(hosts) == 1 else "",
                since_ms=task.created_ms,
            )


# --- servers ----------------------------------------------------------------------------------------------


def _hosts(overview: ClusterOverview, *, told: set[str]) -> Iterator[Stuck]:
    if overview.hosts.state is PartState.FAILED:
        yield Stuck(
            "The servers cannot be asked.", overview.hosts.error, overview.hosts.advice, Level.CRITICAL
        )
    hosts = (overview.hosts.value.hosts if overview.hosts.value else {}).values()
    down = [host for host in hosts if host.answer is Answer.DOWN and host.host not in told]
    if down:
        yield Stuck(
            what=f"{_names(host.host for host in down)} {'does' if len(down) == 1 else 'do'} not answer.",
            why=down[0].error,
            advice="Start the server, or bring back the network to it.",
            level=Level.CRITICAL,
            host=down[0].host if len(down) == 1 else "",
        )
    for host in hosts:
        yield from _read_only(host)
        yield from _replication(host, overview.at_ms)
        yield from _mutations(host)
        yield from _spool(host)


def _read_only(host: HostView) -> Iterator[Stuck]:
    expired = [table.table for table in host.tables if table.is_session_expired]
    read_only = [table.table for table in host.tables if table.is_readonly and not table.is_session_expired]
    if expired:
        yield Stuck(
            what=f"{_names(expired)} on {host.host} {_takes(expired)} no rows.",
            why="The host has lost its session with Keeper.",
            advice="It opens a new one by itself; if it does not, look at the network between it and Keeper.",
            level=Level.CRITICAL,
            host=host.host,
        )
    if read_only:
        yield Stuck(
            what=f"{_names(read_only)} on {host.host} {_takes(read_only)} no rows.",
            why="The replica is read-only: it is starting, or what it needs in Keeper is not there.",
            advice="The health check tells which of the two, and proposes the repair.",
            level=Level.CRITICAL,
            host=host.host,
        )


def _replication(host: HostView, now_ms: int) -> Iterator[Stuck]:
    reported = 0
    for task in host.queue_tasks:
        if (now_ms - task.since_ms) / 1000 < PATIENCE_S or not (task.last_exception or task.tries > 10):
            continue
        reported += 1
        if reported > _MOST_A_HOST:
            return
        reason = task.last_exception or task.postpone_reason
        yield Stuck(
            what=f"{task.table} on {host.host} is behind: {task.type} {task.part} was tried "
            f"{count(task.tries, 'time')}.",
            why=_said(reason) or "The server does not say why.",
            advice=explain(reason),
            host=host.host,
            since_ms=task.since_ms,
        )


def _mutations(host: HostView) -> Iterator[Stuck]:
    for mutation in [mutation for mutation in host.mutations if mutation.fail_reason][:_MOST_A_HOST]:
        yield Stuck(
            what=f"Mutation {mutation.mutation_id} of {mutation.table} on {host.host} fails again and again.",
            why=_said(mutation.fail_reason),
            advice=f"Remove the cause, or KILL MUTATION: {_said(mutation.command)}",
            host=host.host,
            since_ms=mutation.since_ms,
        )


def _spool(host: HostView) -> Iterator[Stuck]:
    for row in host.spool:
        if row.broken_files:
            yield Stuck(
                what=f"{count(row.broken_files, 'file')} of {row.table} on {host.host} can never be sent.",
                why=_said(row.last_exception) or "The files are damaged.",
                advice="Their rows are in no shard. Look into the files before the cleanup removes them.",
                level=Level.CRITICAL,
                host=host.host,
            )
        elif row.is_blocked or row.last_exception:
            why = "Sending was stopped (SYSTEM STOP DISTRIBUTED SENDS)." if row.is_blocked else ""
            yield Stuck(
                what=f"{count(row.files, 'file')} of {row.table} {_wait(row.files)} on {host.host}.",
                why=why or _said(row.last_exception),
                advice="SYSTEM START DISTRIBUTED SENDS." if row.is_blocked else explain(row.last_exception),
                host=host.host,
            )


def explain(exception: str) -> str:
    """What to do about an error that a replica's queue or a spool hangs on."""
    text = exception.lower()
    for piece, advice in _EXCEPTIONS:
        if piece in text:
            return advice
    return "It is tried again by itself. If it stays, look in that server's log."


# --- words ------------------------------------------------------------------------------------------------


def _takes(tables: Sequence[str]) -> str:
    return "takes" if len(tables) == 1 else "take"


def _wait(files: int) -> str:
    return "waits" if files == 1 else "wait"


def _names(names: Iterable[str]) -> str:
    listed = list(names)
    if len(listed) > 3:
        return f"{', '.join(listed[:3])} and {len(listed) - 3} more"
    return " and ".join([", ".join(listed[:-1]), listed[-1]] if len(listed) > 1 else listed)


def _query(task: Task) -> str:
    return shortened(task.query, most=_QUERY_CHARS)


def _said(error: str) -> str:
    return shortened(error, most=_ERROR_CHARS)


def _without_host(error: str, host: str) -> str:
    """The same error of two hosts is one error, though each names itself."""
    return error.replace(host, "…")
