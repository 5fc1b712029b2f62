"""Why servers do not answer, take no rows, are behind or do not send, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.operations.overview.model import Answer, ClusterOverview, HostView, Level, PartState, Stuck
from engine.operations.overview.words import said
from engine.wording import count, enumerated

_PATIENCE_S = 15
_MOST_A_HOST = 3

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


def stuck_servers(overview: ClusterOverview, *, told: set[str]) -> Iterator[Stuck]:
    if overview.hosts.state is PartState.FAILED:
        yield Stuck(
            "The servers cannot be asked.", overview.hosts.error, overview.hosts.advice, Level.CRITICAL
        )
    hosts = (overview.hosts.value.hosts if overview.hosts.value else {}).values()
    down = [host for host in hosts if host.answer is Answer.DOWN and host.host not in told]
    if down:
        yield Stuck(
            what=f"{enumerated(host.host for host in down)} {'does' if len(down) == 1 else 'do'} not answer.",
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
            what=f"{enumerated(expired)} on {host.host} {_takes(expired)} no rows.",
            why="The host has lost its session with Keeper.",
            advice="It opens a new one by itself; if it does not, look at the network between it and Keeper.",
            level=Level.CRITICAL,
            host=host.host,
        )
    if read_only:
        yield Stuck(
            what=f"{enumerated(read_only)} on {host.host} {_takes(read_only)} no rows.",
            why="The replica is read-only: it is starting, or what it needs in Keeper is not there.",
            advice="The health check tells which of the two, and proposes the repair.",
            level=Level.CRITICAL,
            host=host.host,
        )


def _replication(host: HostView, now_ms: int) -> Iterator[Stuck]:
    reported = 0
    for task in host.queue_tasks:
        if (now_ms - task.since_ms) / 1000 < _PATIENCE_S or not (task.last_exception or task.tries > 10):
            continue
        reported += 1
        if reported > _MOST_A_HOST:
            return
        reason = task.last_exception or task.postpone_reason
        yield Stuck(
            what=f"{task.table} on {host.host} is behind: {task.type} {task.part} was tried "
            f"{count(task.tries, 'time')}.",
            why=said(reason) or "The server does not say why.",
            advice=explain(reason),
            host=host.host,
            since_ms=task.since_ms,
        )


def _mutations(host: HostView) -> Iterator[Stuck]:
    for mutation in [mutation for mutation in host.mutations if mutation.fail_reason][:_MOST_A_HOST]:
        yield Stuck(
            what=f"Mutation {mutation.mutation_id} of {mutation.table} on {host.host} fails again and again.",
            why=said(mutation.fail_reason),
            advice=f"Remove the cause, or KILL MUTATION: {said(mutation.command)}",
            host=host.host,
            since_ms=mutation.since_ms,
        )


def _spool(host: HostView) -> Iterator[Stuck]:
    for row in host.spool:
        if row.broken_files:
            yield Stuck(
                what=f"{count(row.broken_files, 'file')} of {row.table} on {host.host} can never be sent.",
                why=said(row.last_exception) or "The files are damaged.",
                advice="Their rows are in no shard. Look into the files before the cleanup removes them.",
                level=Level.CRITICAL,
                host=host.host,
            )
        elif row.is_blocked or row.last_exception:
            why = "Sending was stopped (SYSTEM STOP DISTRIBUTED SENDS)." if row.is_blocked else ""
            yield Stuck(
                what=f"{count(row.files, 'file')} of {row.table} {_wait(row.files)} on {host.host}.",
                why=why or said(row.last_exception),
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


def _takes(tables: Sequence[str]) -> str:
    return "takes" if len(tables) == 1 else "take"


def _wait(files: int) -> str:
    return "waits" if files == 1 else "wait"
