"""What is seen of a cluster: values only. Host names are readable host ids ("node01:9000"); times are Unix
milliseconds."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from engine.migrations.states import MigrationState
from engine.operations.act import ActState
from engine.operations.records import FindingRecord, Sample

T = TypeVar("T")


class Level(enum.StrEnum):
    """How something is, for colours and for sorting; the worst last."""

    UNKNOWN = "unknown"
    OK = "ok"
    WARNING = "warning"
    CRITICAL = "critical"


class PartState(enum.StrEnum):
    """Whether a part of the picture can be relied on."""

    PENDING = "pending"
    """Asked for, and not answered yet."""
    READY = "ready"
    FAILED = "failed"
    """The last look failed; the value, if there is one, is of the look before it."""


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """One part of the picture: its latest value, of when that is, and what went wrong since."""

    state: PartState = PartState.PENDING
    value: T | None = None
    at_ms: int | None = None
    error: str = ""
    advice: str = ""


# --- hosts ------------------------------------------------------------------------------------------------


class Answer(enum.StrEnum):
    """Whether a server answers over HTTP."""

    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class ReplicatedTable:
    """One row of `system.replicas`."""

    table: str
    is_readonly: bool = False
    is_session_expired: bool = False
    queue_size: int = 0
    inserts_in_queue: int = 0
    absolute_delay_s: int = 0


@dataclass(frozen=True, slots=True)
class QueueTask:
    """One row of `system.replication_queue` that does not get on."""

    table: str
    type: str
    part: str
    since_ms: int
    tries: int
    last_exception: str = ""
    postpone_reason: str = ""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One unfinished row of `system.mutations`."""

    table: str
    mutation_id: str
    command: str
    since_ms: int
    parts_to_do: int
    fail_reason: str = ""


@dataclass(frozen=True, slots=True)
class SpoolRow:
    """One row of `system.distribution_queue`."""

    table: str
    files: int
    size_bytes: int
    broken_files: int
    errors: int
    is_blocked: bool
    last_exception: str = ""


@dataclass(frozen=True, slots=True)
class HostView:
    """One server. `notes` say what it could not be asked."""

    host: str
    answer: Answer
    error: str = ""
    version: str = ""
    uptime_s: int = 0
    tables: tuple[ReplicatedTable, ...] = ()
    queue_tasks: tuple[QueueTask, ...] = ()
    mutations: tuple[Mutation, ...] = ()
    spool: tuple[SpoolRow, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def absolute_delay_s(self) -> int:
        """Of the table that is furthest behind."""
        return max((table.absolute_delay_s for table in self.tables), default=0)

    @property
    def queue_size(self) -> int:
        return sum(table.queue_size for table in self.tables)

    @property
    def read_only(self) -> int:
        """How many tables take no writes."""
        return sum(table.is_readonly or table.is_session_expired for table in self.tables)

    @property
    def level(self) -> Level:
        if self.answer is Answer.DOWN:
            return Level.CRITICAL
        if self.read_only or any(row.broken_files for row in self.spool):
            return Level.CRITICAL
        if self.absolute_delay_s >= LAGGING_S or any(task.last_exception for task in self.queue_tasks):
            return Level.WARNING
        if any(m.fail_reason for m in self.mutations) or any(row.last_exception for row in self.spool):
            return Level.WARNING
        return Level.OK


LAGGING_S = 60
"""A replica that is further behind is coloured. What is worth an alert is the health check's to say."""


@dataclass(frozen=True, slots=True)
class HostsView:
    """Every host of the cluster, by name, in the order of the configuration."""

    hosts: Mapping[str, HostView] = field(default_factory=dict)

    @property
    def down(self) -> frozenset[str]:
        return frozenset(name for name, host in self.hosts.items() if host.answer is Answer.DOWN)


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """One shard as the configuration has it."""

    number: int
    hosts: tuple[str, ...]


# --- the queue --------------------------------------------------------------------------------------------


class Presence(enum.StrEnum):
    """What Keeper says of a host's worker. UNKNOWN: a server that does not say, such as an old one."""

    ACTIVE = "active"
    AWAY = "away"
    UNKNOWN = "unknown"


class Cell(enum.StrEnum):
    """One task on one host, as one letter."""

    DONE = "d"
    FAILED = "f"
    RUNNING = "r"
    WAITING = "w"
    AWAY = "a"
    """Not begun, and the host is known to be off line."""
    ABANDONED = "x"
    """A person said that the host will never do it, and why."""
    UNREAD = "u"
    """It has an outcome, which has not been read yet."""
    NONE = "."
    """The task is not for this host."""

    @property
    def is_open(self) -> bool:
        return self in (Cell.RUNNING, Cell.WAITING, Cell.AWAY)


class TaskForm(enum.StrEnum):
    """What is unusual about a task's node."""

    USUAL = "usual"
    UNREADABLE = "unreadable"
    """Its text cannot be parsed."""
    WITHOUT_DIRECTORIES = "without-directories"
    """Whoever submitted it has not made `active` and `finished`; the first worker does."""
    BEING_REMOVED = "being-removed"
    """`finished` without `active`: a cleaner is at it."""


@dataclass(frozen=True, slots=True)
class HostFailure:
    """What a host reported instead of success. The text is redacted."""

    code: int
    error: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Task:
    """One entry of the queue. `cells` has a letter for each of the view's hosts, `failures` are by host.

    `query` is redacted and one line; it is empty for a task that is not on the page that was asked for.
    """

    name: str
    created_ms: int
    cells: str
    form: TaskForm = TaskForm.USUAL
    query: str = ""
    cluster: str = ""
    initiator: str = ""
    failures: Mapping[str, HostFailure] = field(default_factory=dict)

    def cell(self, index: int) -> Cell:
        return Cell(self.cells[index])

    @property
    def is_open(self) -> bool:
        """Some host has no outcome yet."""
        return not _OPEN.isdisjoint(self.cells)

    @property
    def has_failures(self) -> bool:
        return Cell.FAILED.value in self.cells


_OPEN = frozenset(cell.value for cell in Cell if cell.is_open)


@dataclass(frozen=True, slots=True)
class QueueView:
    """What the queue has for one cluster: `hosts` are the columns, `tasks` the rows, the newest first.

    `unread` tasks are in the queue and have not been looked at yet; the next look goes on. Of entries for
    other clusters there is only `foreign_first`: by host the oldest one that it has not done.
    """

    path: str
    hosts: tuple[str, ...]
    tasks: tuple[Task, ...] = ()
    presence: Mapping[str, Presence] = field(default_factory=dict)
    unread: int = 0
    keeper_ms: float = 0.0
    foreign_first: Mapping[str, str] = field(default_factory=dict)

    @property
    def open_tasks(self) -> tuple[Task, ...]:
        return tuple(task for task in self.tasks if task.is_open)


# --- the database -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MigrationView:
    """One version. `counts` says how many hosts' statements are in which state."""

    version: int
    title: str
    state: MigrationState
    direction: str
    statements: int
    counts: Mapping[str, int]
    note: str
    at_ms: int
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunView:
    """One run of an operation: how many acts are in which state."""

    run_id: str
    operation: str
    at_ms: int
    requested_by: str
    approved_by: str
    acts: int
    counts: Mapping[ActState, int]


@dataclass(frozen=True, slots=True)
class RecordsView:
    """What the database knows: the ledger, findings, repairs and other runs, samples of replication lag."""

    migrations: tuple[MigrationView, ...] = ()
    findings: tuple[FindingRecord, ...] = ()
    resolved: tuple[FindingRecord, ...] = ()
    runs: tuple[RunView, ...] = ()
    lag: tuple[Sample, ...] = ()
    notes: tuple[str, ...] = ()


# --- all of it --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stuck:
    """Something that does not move, and why, in words. `host` is empty where it concerns several."""

    what: str
    why: str
    advice: str
    level: Level = Level.WARNING
    task: str = ""
    host: str = ""
    hosts: tuple[str, ...] = ()
    since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ClusterOverview:
    """The picture of a cluster. Its parts may be of different moments, and each may be missing."""

    cluster: str
    at_ms: int
    shards: tuple[ShardPlace, ...]
    hosts: Part[HostsView] = Part()
    queue: Part[QueueView] = Part()
    records: Part[RecordsView] = Part()
    stuck: tuple[Stuck, ...] = ()
