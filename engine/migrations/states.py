"""What the ledger's rows add up to. Pure: rows in, states out.

    pending      nothing was sent
    running      sent, not finished; hosts are at work or statements are still to be sent
    waiting      everything was sent, and only hosts that are off line are missing; they catch up by
                 themselves
    failed       a host failed, or its task expired before it came back, or was abandoned by a person, or
                 nobody knows what became of it; nothing further is sent
    applied      every required host is done (M6)
    marked       a person declared it applied, with a reason; no host proves it
    rolled_back  the down file is done on every required host; as good as pending

`running`, `waiting` and `failed` are of the direction that the record names.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from engine.migrations.files import Direction
from engine.names import HostId


class CellState(enum.StrEnum):
    """One statement on one host. The queue's states, and RECORDED: nothing has been seen of it yet."""

    RECORDED = "recorded"
    WAITING = "waiting"
    INACTIVE = "inactive"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    EXPIRED = "expired"
    """It was removed from the queue before the host had done it."""
    UNKNOWN = "unknown"
    """Nobody knows whether it is done: the queue has lost it, or the host says that it does not know."""
    ABANDONED = "abandoned"

    @property
    def is_final(self) -> bool:
        return self is CellState.DONE or self.is_failure

    @property
    def is_failure(self) -> bool:
        """The host is not known to have done it and is not waited for. Abandoned is one: no migration is
        applied that a required host lacks, whatever a person knows about the host; they may mark it applied.
        """
        return self is CellState.FAILED or self.is_given_up

    @property
    def is_given_up(self) -> bool:
        """Not by the host's own word, or by one that leaves it open: should it have done it after all, or do
        it yet, that is recorded."""
        return self in (CellState.EXPIRED, CellState.UNKNOWN, CellState.ABANDONED)

    @property
    def is_reported(self) -> bool:
        """By the host's own word, which is never followed by another."""
        return self in (CellState.DONE, CellState.FAILED)


class MigrationState(enum.StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    FAILED = "failed"
    APPLIED = "applied"
    MARKED = "marked"
    ROLLED_BACK = "rolled_back"

    @property
    def is_in_schema(self) -> bool:
        """Its changes count as there: a new run passes over it."""
        return self in (MigrationState.APPLIED, MigrationState.MARKED)

    @property
    def is_open(self) -> bool:
        return self in (MigrationState.RUNNING, MigrationState.WAITING, MigrationState.FAILED)

    @property
    def is_untouched(self) -> bool:
        return self in (MigrationState.PENDING, MigrationState.ROLLED_BACK)


class Event(enum.StrEnum):
    """Rows of `oncluster_migrations`."""

    STARTED = "started"
    APPLIED = "applied"
    ROLLED_BACK = "rolled_back"
    MARKED_APPLIED = "marked_applied"
    MARKED_UNAPPLIED = "marked_unapplied"


class RunState(enum.StrEnum):
    """How a run stands.

    `partial`: everything asked for is done on every host that is on line; the others catch up.
    """

    RUNNING = "running"
    DONE = "done"
    PARTIAL = "partial"
    UNFINISHED = "unfinished"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class MigrationEvent:
    """One row of `oncluster_migrations`."""

    version: int
    title: str
    direction: Direction
    generation: int
    event: Event
    statements: int
    file_checksum: str
    run_id: str
    done_by: str
    note: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One row of `oncluster_ledger`: a statement of a migration on a host, as it stands."""

    version: int
    title: str
    direction: Direction
    generation: int
    statement: int
    host: HostId
    state: CellState
    code: int
    error: str
    started_ms: int | None
    finished_ms: int | None
    duration_ms: int | None
    attempt: int
    token: str
    entry: str
    submission: str
    line: int
    sql: str
    statement_checksum: str
    file_checksum: str
    run_id: str
    recorded_ms: int
    observed_ms: int | None


@dataclass(frozen=True, slots=True)
class MigrationRecord:
    """What the ledger knows of one version.

    `rows` are those of the present generation and direction. Of a migration that has come to its end they are
    those of its `statements`: one that failed everywhere and was taken out of the file is no part of it.
    """

    version: int
    title: str
    direction: Direction
    generation: int
    state: MigrationState
    statements: int
    file_checksum: str
    rows: tuple[LedgerRow, ...]
    note: str = ""
    at_ms: int = 0

    def rows_of(self, statement: int) -> tuple[LedgerRow, ...]:
        return tuple(row for row in self.rows if row.statement == statement)

    @property
    def next_generation(self) -> int:
        """The generation of the next `up`: rolling back ends one."""
        return self.generation + 1 if self.state is MigrationState.ROLLED_BACK else self.generation


def untouched(version: int, title: str = "") -> MigrationRecord:
    """The record of a version of which the ledger has nothing."""
    return MigrationRecord(version, title, Direction.UP, 1, MigrationState.PENDING, 0, "", ())


def records(events: Sequence[MigrationEvent], rows: Iterable[LedgerRow]) -> dict[int, MigrationRecord]:
    """Versions to their records. `events` are in the order in which they were written."""
    by_key: dict[tuple[int, Direction, int], list[LedgerRow]] = {}
    for row in rows:
        by_key.setdefault((row.version, row.direction, row.generation), []).append(row)
    last: dict[int, MigrationEvent] = {}
    for event in events:
        last[event.version] = event
    return {
        version: _record(event, by_key.get((version, event.direction, event.generation), ()))
        for version, event in sorted(last.items())
    }


def _record(event: MigrationEvent, rows: Sequence[LedgerRow]) -> MigrationRecord:
    ordered = tuple(sorted(rows, key=lambda row: (row.statement, row.host)))
    match event.event:
        case Event.STARTED:
            state = open_state(ordered, statements=event.statements)
        case Event.APPLIED:
            state = MigrationState.APPLIED
        case Event.MARKED_APPLIED:
            state = MigrationState.MARKED
        case Event.ROLLED_BACK | Event.MARKED_UNAPPLIED:
            state = MigrationState.ROLLED_BACK
    if event.event in (Event.APPLIED, Event.ROLLED_BACK):
        ordered = tuple(row for row in ordered if row.statement <= event.statements)
    return MigrationRecord(
        version=event.version,
        title=event.title,
        direction=event.direction,
        generation=event.generation,
        state=state,
        statements=event.statements,
        file_checksum=event.file_checksum,
        rows=ordered,
        note=event.note,
        at_ms=event.at_ms,
    )


def open_state(rows: Sequence[LedgerRow], *, statements: int) -> MigrationState:
    """FAILED, WAITING or RUNNING of a migration that was started and not finished."""
    if any(row.state.is_failure for row in rows):
        return MigrationState.FAILED
    missing = [row for row in rows if row.state is not CellState.DONE]
    all_sent = len({row.statement for row in rows}) == statements
    if all_sent and missing and all(row.state is CellState.INACTIVE for row in missing):
        return MigrationState.WAITING
    return MigrationState.RUNNING


def count_states(rows: Iterable[LedgerRow]) -> Mapping[CellState, int]:
    """How many hosts are in which state, in the order of the enum, states without hosts left out."""
    counts = dict.fromkeys(CellState, 0)
    for row in rows:
        counts[row.state] += 1
    return {state: number for state, number in counts.items() if number}
