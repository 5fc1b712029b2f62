"""What came of waiting for a statement on its hosts: the one form in which it travels through XCom and
triggers.

done              every host has done it
done_on_active    every host that is on line has done it; the others will, in queue order, when they are back
partial           a migration goes on although hosts are missing; they take it up in queue order
failed            a host refused it; the others' outcomes are known too
timeout           the time is over and hosts are still at it; the queue goes on, anybody can attach again
abandoned         a person said that some hosts will never do it; every other host has done it
gone              the entry left the queue before every host had answered: those hosts are `expired`, or
                  `unknown` where nothing was recorded of them
not_waited        nobody waited, as asked (timeout 0)
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.ddl.outcome import EntryStatus, HostOutcome, HostState
from engine.ddl.output import OutputMode
from engine.ddl.text import storable
from engine.names import HostId
from engine.sql import redact_prose

# XCom rows and trigger events live in Airflow's database; a stack trace per host does not belong there.
_MAX_ERROR_CHARS = 2000

STATE_KEY = "ddl_state"
HOSTS_KEY = "ddl_hosts"


class WaitState(enum.StrEnum):
    """How a wait ended."""

    DONE = "done"
    DONE_ON_ACTIVE = "done_on_active"
    PARTIAL = "partial"
    FAILED = "failed"
    TIMEOUT = "timeout"
    ABANDONED = "abandoned"
    GONE = "gone"
    NOT_WAITED = "not_waited"


@dataclass(frozen=True, slots=True)
class WaitResult:
    """The end of a wait. `note` says what there is to say besides the hosts; `at_limit` that time ended it
    (not part of the JSON form)."""

    state: WaitState
    entry: str
    hosts: tuple[HostOutcome, ...] = ()
    note: str = ""
    at_limit: bool = False

    @property
    def summary(self) -> str:
        """One line: how many hosts are in which state."""
        counts: dict[HostState, int] = {}
        for host in self.hosts:
            counts[host.state] = counts.get(host.state, 0) + 1
        listed = ", ".join(f"{counts[state]} {state}" for state in HostState if state in counts)
        return f"{self.entry}: {self.state}" + (f" ({listed})" if listed else "")

    @property
    def abandoned(self) -> tuple[HostOutcome, ...]:
        return tuple(host for host in self.hosts if host.state is HostState.ABANDONED)

    @property
    def first_error(self) -> HostOutcome | None:
        return next((host for host in self.hosts if host.state is HostState.FAILED), None)

    def to_json(self) -> dict[str, Any]:
        """Plain values, without secrets, errors cut to a length that a database row can bear."""
        return {
            "state": str(self.state),
            "entry": self.entry,
            "note": self.note,
            "hosts": [host_to_json(host) for host in self.hosts],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> WaitResult:
        return cls(
            WaitState(value["state"]),
            value["entry"],
            tuple(host_from_json(item) for item in value["hosts"]),
            value["note"],
        )


def error_text(host: HostOutcome) -> str:
    """A host's error for people: redacted, cut, and without bytes that are no text."""
    return storable(redact_prose(host.error))[:_MAX_ERROR_CHARS]


def host_to_json(host: HostOutcome) -> dict[str, Any]:
    return {
        "host": host.host.host,
        "port": host.host.port,
        "state": str(host.state),
        "code": host.code,
        "error": error_text(host),
        "started_ms": host.started_ms,
        "finished_ms": host.finished_ms,
        "duration_ms": host.duration_ms,
    }


def host_from_json(item: Mapping[str, Any]) -> HostOutcome:
    return HostOutcome(
        host=HostId(item["host"], item["port"]),
        state=HostState(item["state"]),
        code=item["code"],
        error=item["error"],
        started_ms=item["started_ms"],
        finished_ms=item["finished_ms"],
        duration_ms=item["duration_ms"],
    )


def judge(status: EntryStatus, mode: OutputMode) -> WaitState | None:
    """Whether waiting is over, from one look at the entry; None means: wait on.

    As in ClickHouse a failed host does not end the wait: the others' outcomes are collected first.
    """
    if status.is_complete:
        return at_end(status)
    if mode.value.endswith("_only_active"):
        # When every host looks off line the answer is not believed: ClickHouse then waits for all of them.
        some_answered = len(status.unfinished) < len(status.hosts)
        if some_answered and all(host.state is HostState.INACTIVE for host in status.unfinished):
            return WaitState.FAILED if status.failed else WaitState.DONE_ON_ACTIVE
    return None


def at_end(status: EntryStatus) -> WaitState:
    """How a wait ends when no outcome will change any more."""
    if status.failed:
        return WaitState.FAILED
    if status.is_done_on_all_hosts:
        return WaitState.DONE
    states = {host.state for host in status.hosts}
    is_abandoned = HostState.ABANDONED in states and HostState.EXPIRED not in states
    return WaitState.ABANDONED if is_abandoned else WaitState.GONE


def at_deadline(status: EntryStatus) -> WaitState:
    """How a wait ends whose time is over: a failure that is already known is not hidden by the timeout."""
    return WaitState.FAILED if status.failed else WaitState.TIMEOUT


def is_failure(state: WaitState, mode: OutputMode) -> bool:
    """Whether the task fails: `distributed_ddl_output_mode` as ClickHouse means it."""
    match state:
        case WaitState.DONE | WaitState.DONE_ON_ACTIVE | WaitState.PARTIAL | WaitState.NOT_WAITED:
            return False
        case WaitState.GONE:
            return True
        case WaitState.ABANDONED:
            # Modes that go on without hosts that are off line go on without those that will never come back.
            return mode in (OutputMode.NONE, OutputMode.THROW)
        case WaitState.FAILED:
            return mode is not OutputMode.NEVER_THROW
        case WaitState.TIMEOUT:
            return mode not in (
                OutputMode.NEVER_THROW,
                OutputMode.NULL_STATUS_ON_TIMEOUT,
                OutputMode.NULL_STATUS_ON_TIMEOUT_ONLY_ACTIVE,
            )


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Plain text columns, for logs. Line breaks inside a cell become blanks."""
    cells = [[" ".join(str("" if cell is None else cell).split()) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(columns), *cells]) for i in range(len(columns))]
    lines = [list(columns), ["-" * width for width in widths], *cells]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def hosts_table(hosts: Sequence[HostOutcome]) -> str:
    """Every host with its state, for the task's log."""
    return table(
        ("host", "state", "code", "ms", "error"),
        [
            (
                host.host.readable,
                str(host.state),
                host.code or "",
                host.duration_ms,
                error_text(host),
            )
            for host in hosts
        ],
    )
