"""What a run would do, said before it does anything. The values and the pure part; the looking around is
`engine.migrations.gather`.

For every statement and host: the text that would run, where, whether it rewrites or destroys data, whether
the host is on line, how much waits for it in the queue, and how much data the statement touches.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import getitem
from typing import Any

from engine.config.model import Cluster
from engine.ddl.initiator import without_token
from engine.errors import Refused
from engine.migrations.errors import Problem
from engine.migrations.files import Direction, MigrationSet
from engine.migrations.host_configuration import (
    HostConfiguration,
    misplaced_replicas,
    missing_macros,
    other_clusters,
)
from engine.migrations.model import RunRequest
from engine.migrations.order import creations_before
from engine.migrations.replica_places import Cause
from engine.migrations.selection import Selected
from engine.migrations.statements import Surroundings, needs_approval, qualified
from engine.migrations.states import CellState, MigrationState
from engine.migrations.where import Where, engines_of, where_of
from engine.names import HostId, TableName
from engine.sql import parse_statement, redact
from engine.wording import count, enumerated


class Presence(enum.StrEnum):
    """Whether a host is on line. Servers before 2024 do not say; they are `unknown` until they are asked."""

    ACTIVE = "active"
    INACTIVE = "inactive"
    UNKNOWN = "unknown"


class Action(enum.StrEnum):
    """What would happen to one statement on one host."""

    RUN = "run"
    RETRY = "retry"
    WAIT = "wait"
    NOTHING = "nothing"


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
            statement.needs_approval and any(h.action in (Action.RUN, Action.RETRY) for h in statement.hosts)
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


def build_plan(
    migrations: MigrationSet,
    selected: Sequence[Selected],
    request: RunRequest,
    surroundings: Surroundings,
    facts: Facts,
    *,
    problems: Sequence[Problem] = (),
    notes: Sequence[str] = (),
) -> Plan:
    """Raises nothing for statements that cannot be sent: they carry their error and are among the
    problems."""
    engines = engines_of(migrations, request)
    planned = []
    found = list(problems)
    for item in selected:
        statements = tuple(
            _statement(item, number, request, surroundings, facts, engines)
            for number in range(1, len(item.script.statements) + 1)
        )
        found += [
            Problem(str(item.script.path), s.line, "not-sendable", s.error, s.code)
            for s in statements
            if s.error
        ]
        planned.append(
            PlannedMigration(
                item.migration.version,
                item.migration.title,
                str(item.script.path),
                item.record.state,
                item.script.checksum,
                statements,
            )
        )
    said = [*notes, *facts.notes, *_without_up(selected), *_held_up(selected, planned, request)]
    said += _configured_otherwise(selected, planned, request, surroundings, facts)
    if facts.holder:
        said.append(f"A run is at work now: {facts.holder}.")
    return Plan(
        surroundings.cluster,
        request.direction,
        request.target,
        tuple(planned),
        tuple(sorted(found)),
        tuple(said),
    )


def _without_up(selected: Sequence[Selected]) -> list[str]:
    """A file that was lost looks the same as one that was never written."""
    return [
        f"{item.migration.name} has no up file: nothing is sent for it."
        for item in selected
        if not item.script.is_there
    ]


def _held_up(
    selected: Sequence[Selected], planned: Sequence[PlannedMigration], request: RunRequest
) -> Iterator[str]:
    """Statements at which a run that goes on without hosts that are off line will stop (`order`)."""
    statements = [(item, statement) for item in selected for statement in item.script.statements]
    plans = [statement for migration in planned for statement in migration.statements]
    for number, (item, statement) in enumerate(statements):
        if not request.patience(statement.options).output_mode.waits_for_active_only:
            continue
        before = partial(getitem, [each for _, each in statements], slice(number))
        for creation in creations_before(statement, before, request):
            hosts = plans[creation].hosts
            shards = Counter(host.shard for host in hosts)
            away = [
                host.host.readable
                for host in hosts
                if host.presence is Presence.INACTIVE
                and host.action is not Action.NOTHING
                and shards[host.shard] > 1
            ]
            if away:
                yield (
                    f"{item.migration.version}.{request.direction} statement {statement.index} changes a "
                    f"replicated table that {', '.join(away)} has still to make; it is not sent before."
                )


def _configured_otherwise(
    selected: Sequence[Selected],
    planned: Sequence[PlannedMigration],
    request: RunRequest,
    surroundings: Surroundings,
    facts: Facts,
) -> Iterator[str]:
    """Why a host may refuse what is sent to it, or do it elsewhere (`host_configuration`)."""
    cluster = surroundings.topology.clusters.get(surroundings.cluster)
    if not selected or cluster is None:
        return
    ours = {shard.number: tuple(r.host_id for r in shard.replicas) for shard in cluster.shards}
    yield from other_clusters(cluster.name, ours, facts.configurations)
    misplaced: dict[Cause, list[str]] = defaultdict(list)
    for item, migration in zip(selected, planned, strict=True):
        for statement, plan in zip(item.script.statements, migration.statements, strict=True):
            sent = {host.host for host in plan.hosts if host.action in (Action.RUN, Action.RETRY)}
            asked = {host: its for host, its in facts.configurations.items() if host in sent}
            for macro, hosts in missing_macros(statement, asked).items():
                yield (
                    f"{item.migration.version}.{item.script.direction} statement {statement.index} needs the "
                    f"macro '{macro}', which {enumerated(host.readable for host in hosts)} "
                    f"{'do' if len(hosts) > 1 else 'does'} not have: it will be refused there (139)."
                )
            for table in qualified(parse_statement(statement.sql), statement, request)[:1] if sent else ():
                for cause, clause in misplaced_replicas(statement, table, ours, facts.configurations):
                    place = f"{item.migration.version}.{item.script.direction} statement {statement.index}"
                    misplaced[cause].append(f"By their macros, {clause}: {place}")
    for first, *others in misplaced.values():
        yield f"{first} and {count(len(others), 'other statement')}." if others else f"{first}."


def tables_of(selected: Sequence[Selected], request: RunRequest) -> list[TableName]:
    """The tables whose size matters to a plan: of statements that change or drop what is there."""
    names: dict[TableName, None] = {}
    for item in selected:
        for statement in item.script.statements:
            parsed = parse_statement(statement.sql)
            if parsed.is_destructive or parsed.rewrites_data or parsed.alter_commands:
                names |= dict.fromkeys(qualified(parsed, statement, request))
    return list(names)


def _statement(
    item: Selected,
    number: int,
    request: RunRequest,
    surroundings: Surroundings,
    facts: Facts,
    engines: Mapping[TableName, str],
) -> PlannedStatement:
    statement = item.script.statements[number - 1]
    parsed = parse_statement(statement.sql)
    tables = qualified(parsed, statement, request)
    patience = request.patience(statement.options)
    error, code = "", 0
    hosts: tuple[PlannedHost, ...] = ()
    sql, name = statement.sql, surroundings.cluster
    try:
        prepared = surroundings.prepare(statement, request, token="plan")
        name = prepared.cluster
        sql = without_token(prepared.entry.query)
        hosts = _hosts(item, number, request, surroundings.topology.cluster(name), facts, tables)
    except Refused as refusal:
        error, code = str(refusal), refusal.code
    return PlannedStatement(
        statement=number,
        line=statement.line,
        sql=redact(sql),
        cluster=name,
        where=where_of(
            parsed,
            [engines[name] for name in tables if name in engines]
            + [found.engine for (_, name), found in facts.tables.items() if name in tables],
        ),
        is_destructive=parsed.is_destructive,
        rewrites_data=parsed.rewrites_data,
        needs_approval=needs_approval(statement),
        timeout_s=patience.timeout_s,
        output_mode=patience.output_mode.value,
        hosts=hosts,
        error=error,
        code=code,
    )


def _hosts(
    item: Selected,
    number: int,
    request: RunRequest,
    cluster: Cluster,
    facts: Facts,
    tables: Sequence[TableName],
) -> tuple[PlannedHost, ...]:
    is_same = item.record.direction is request.direction and item.record.state.is_open
    states = {row.host: row.state for row in item.record.rows_of(number)} if is_same else {}
    # What was sent before a host joined is not sent to it.
    unsent = Action.NOTHING if states else Action.RUN
    result = []
    for shard in cluster.shards:
        for replica in shard.replicas:
            host = replica.host_id
            known = [facts.tables[host, t] for t in tables if (host, t) in facts.tables]
            result.append(
                PlannedHost(
                    host=host,
                    shard=shard.number,
                    presence=facts.presence.get(host, Presence.UNKNOWN),
                    action=_action(states[host], retry_failed=request.leniency.retry_failed)
                    if host in states
                    else unsent,
                    state=states[host].value if host in states else "",
                    backlog=facts.backlog.get(host, 0),
                    rows=sum(t.rows for t in known) if known else None,
                    size_bytes=sum(t.size_bytes for t in known) if known else None,
                )
            )
    return tuple(result)


def _action(state: CellState, *, retry_failed: bool) -> Action:
    if state.is_failure:
        return Action.RETRY if retry_failed else Action.NOTHING
    return Action.NOTHING if state is CellState.DONE else Action.WAIT
