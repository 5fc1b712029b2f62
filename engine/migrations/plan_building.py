"""A plan, put together from what a run selects and what was found by looking around. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import getitem

from engine.config.model import Cluster
from engine.ddl.initiator import without_token
from engine.errors import Refused
from engine.migrations.decide import hosts_to_retry, step_of
from engine.migrations.errors import MigrationRefused, Problem
from engine.migrations.files import MigrationSet, ScriptStatement
from engine.migrations.host_configuration import misplaced_replicas, missing_macros, other_clusters
from engine.migrations.model import RunRequest
from engine.migrations.order import creations_before
from engine.migrations.plan import (
    Action,
    Facts,
    Plan,
    PlannedHost,
    PlannedMigration,
    PlannedStatement,
    Presence,
)
from engine.migrations.replica_places import Cause
from engine.migrations.selection import Selected
from engine.migrations.statements import Surroundings, needs_approval, qualified
from engine.migrations.states import CellState, LedgerRow
from engine.migrations.where import engines_of, where_of
from engine.names import HostId, TableName
from engine.sql import parse_statement, redact
from engine.wording import count, enumerated


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
    said += _not_retried(selected, planned)
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


def _not_retried(selected: Sequence[Selected], planned: Sequence[PlannedMigration]) -> Iterator[str]:
    """Where the run will stop, unless a host that was given up is found to have answered after all: a plan
    records nothing, and does not know that before the run looks."""
    for item, migration in zip(selected, planned, strict=True):
        for statement in migration.statements:
            if statement.refusal:
                yield (
                    f"{migration.version}.{item.script.direction} statement {statement.statement} will not "
                    f"be sent again, and the run stops before it: {statement.refusal}"
                )


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
            parsed = parse_statement(statement.sql)
            if not sent or surroundings.cluster_of(statement, parsed) != cluster.name:
                continue  # nothing is made, or on another cluster, which has shards of its own
            for table in qualified(parsed, statement, request)[:1]:
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
    error, code, refusal = "", 0, ""
    hosts: tuple[PlannedHost, ...] = ()
    sql, name = statement.sql, surroundings.cluster
    try:
        prepared = surroundings.prepare(statement, request, token="plan")
        name = prepared.cluster
        sql = without_token(prepared.entry.query)
        cluster = surroundings.topology.cluster(name)
        again, refusal = _retried(item, statement, request, prepared.hosts, cluster, facts)
        hosts = _hosts(item, number, cluster, facts, tables, again=again, refusal=refusal)
    except Refused as refused:
        error, code = str(refused), refused.code
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
        refusal=refusal,
    )


def _sent(item: Selected, number: int) -> tuple[LedgerRow, ...]:
    """What is known of a statement that the run goes on with."""
    is_same = item.record.direction is item.script.direction and item.record.state.is_open
    return item.record.rows_of(number) if is_same else ()


def _retried(
    item: Selected,
    statement: ScriptStatement,
    request: RunRequest,
    hosts: Sequence[HostId],
    cluster: Cluster,
    facts: Facts,
) -> tuple[list[HostId], str]:
    """Where it is sent again, and why it is not."""
    try:
        again = hosts_to_retry(
            step_of(item),
            statement,
            rows=_sent(item, statement.index),
            hosts=hosts,
            shards=[{replica.host_id for replica in shard.replicas} for shard in cluster.shards],
            request=request,
            cluster=cluster.name,
        )
    except MigrationRefused as refusal:
        return [], str(refusal)
    return again, facts.still_queued.get((item.migration.version, statement.index), "")


def _hosts(
    item: Selected,
    number: int,
    cluster: Cluster,
    facts: Facts,
    tables: Sequence[TableName],
    *,
    again: Sequence[HostId],
    refusal: str,
) -> tuple[PlannedHost, ...]:
    states = {row.host: row.state for row in _sent(item, number)}
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
                    action=_action(states[host], is_sent_again=host in again, refusal=refusal)
                    if host in states
                    else unsent,
                    state=states[host].value if host in states else "",
                    backlog=facts.backlog.get(host, 0),
                    rows=sum(t.rows for t in known) if known else None,
                    size_bytes=sum(t.size_bytes for t in known) if known else None,
                )
            )
    return tuple(result)


def _action(state: CellState, *, is_sent_again: bool, refusal: str) -> Action:
    if state.is_failure:
        return Action.REFUSED if refusal else Action.RETRY if is_sent_again else Action.NOTHING
    return Action.NOTHING if state is CellState.DONE else Action.WAIT
