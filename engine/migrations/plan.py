"""What a run would do, said before it does anything: the values. `engine.migrations.gather` looks around,
`engine.migrations.plan_building` puts together.

For every statement and host: the text that would run, where, whether it rewrites or destroys data, whether
the host is on line, how much waits for it in the queue, and how much data the statement touches.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.migrations.errors import Problem
from engine.migrations.files import Direction
from engine.migrations.host_configuration import HostConfiguration
from engine.migrations.states import MigrationState
from engine.migrations.where import Where
from engine.names import HostId, TableName


class Presence(enum.StrEnum):
    """Whether a host is on line. Servers before 2024 do not say; they are `unknown` until they are asked."""

    ACTIVE = "active"
    INACTIVE = "inactive"
    UNKNOWN = "unknown"


class Action(enum.StrEnum):
    """What would happen to one statement on one host."""

    RUN = "run"
    RETRY = "retry"
    REFUSED = "refused"
    """A retry was asked for, and is refused as things stand; a note of the plan says why."""

    WAIT = "wait"
    NOTHING = "nothing"


_MAY_BE_SENT = (Action.RUN, Action.RETRY, Action.REFUSED)
"""The last, when the run's own look finds that the host has failed after all."""


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What a node says of a table that a statement acts on; rows and bytes are those of its active parts."""

    engine: str
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found by looking around; empty where nobody was asked or could answer."""

    presence: Mapping[HostId, Presence] = field(default_factory=dict)
    backlog: Mapping[HostId, int] = field(default_factory=dict)
    tables: Mapping[tuple[HostId, TableName], TableFacts] = field(default_factory=dict)
    configurations: Mapping[HostId, HostConfiguration] = field(default_factory=dict)
    still_queued: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """By version and statement, why it is not sent again: a host may do what was sent first."""
    holder: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedHost:
    host: HostId
    shard: int
    presence: Presence
    action: Action
    state: str
    backlog: int
    rows: int | None = None
    size_bytes: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "host": self.host.readable,
            "shard": self.shard,
            "presence": self.presence.value,
            "action": self.action.value,
            "state": self.state,
            "backlog": self.backlog,
            "rows": self.rows,
            "size_bytes": self.size_bytes,
        }


@dataclass(frozen=True, slots=True)
class PlannedStatement:
    """`sql` is what goes into the queue, without secrets."""

    statement: int
    line: int
    sql: str
    cluster: str
    where: Where
    is_destructive: bool
    rewrites_data: bool
    needs_approval: bool
    timeout_s: int
    output_mode: str
    hosts: tuple[PlannedHost, ...]
    error: str = ""
    code: int = 0
    refusal: str = ""
    """Why the retry that was asked for is refused as things stand."""

    def to_json(self) -> dict[str, Any]:
        return {
            "statement": self.statement,
            "line": self.line,
            "sql": self.sql,
            "cluster": self.cluster,
            "where": self.where.value,
            "destructive": self.is_destructive,
            "rewrites_data": self.rewrites_data,
            "needs_approval": self.needs_approval,
            "timeout_s": self.timeout_s,
            "output_mode": self.output_mode,
            "error": self.error,
            "code": self.code,
            "refusal": self.refusal,
            "hosts": [host.to_json() for host in self.hosts],
        }


@dataclass(frozen=True, slots=True)
class PlannedMigration:
    version: int
    title: str
    path: str
    state: MigrationState
    checksum: str
    statements: tuple[PlannedStatement, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "title": self.title,
            "path": self.path,
            "state": self.state.value,
            "checksum": self.checksum,
            "statements": [statement.to_json() for statement in self.statements],
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """`problems` forbid the run; `notes` are worth knowing."""

    cluster: str
    direction: Direction
    target: int | None
    migrations: tuple[PlannedMigration, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        return not self.migrations

    @property
    def statements(self) -> tuple[PlannedStatement, ...]:
        return tuple(statement for migration in self.migrations for statement in migration.statements)

    @property
    def needs_approval(self) -> bool:
        """Something that would be sent destroys data, or its file asks for approval."""
        return any(
            statement.needs_approval and any(h.action in _MAY_BE_SENT for h in statement.hosts)
            for statement in self.statements
        )

    @property
    def inactive_hosts(self) -> tuple[HostId, ...]:
        found = {host.host for s in self.statements for host in s.hosts if host.presence is Presence.INACTIVE}
        return tuple(sorted(found))

    def to_json(self) -> dict[str, Any]:
        return {
            "cluster": self.cluster,
            "direction": self.direction.value,
            "target": self.target,
            "needs_approval": self.needs_approval,
            "inactive_hosts": [host.readable for host in self.inactive_hosts],
            "problems": [
                {"path": p.path, "line": p.line, "rule": p.rule, "message": p.message, "code": p.code}
                for p in self.problems
            ],
            "notes": list(self.notes),
            "migrations": [migration.to_json() for migration in self.migrations],
        }
