"""A plan for people: as a table for the log, and as the question that asks for approval."""

from __future__ import annotations

from collections.abc import Sequence

from engine.migrations.model import StatementRef
from engine.migrations.plan import Action, Plan, PlannedHost, PlannedMigration, PlannedStatement, Presence
from engine.migrations.rehearsal import Rehearsal
from engine.wording import count, shortened
from oncluster_airflow.markdown import fenced, inline
from oncluster_airflow.outcomes import table

_SHOWN_CHARS = 120


def refs_of(plan: Plan) -> list[StatementRef]:
    """Every statement of the plan, in order."""
    return [
        StatementRef(migration.version, plan.direction, statement.statement)
        for migration in plan.migrations
        for statement in migration.statements
    ]


def plan_text(plan: Plan) -> str:
    """What would run on each host, statement by statement, then what is worth knowing."""
    parts = [f"{plan.cluster}, {plan.direction}: {count(len(plan.statements), 'statement')}"]
    if plan.statements:
        parts.append(
            table(
                ("migration", "statement", "what", "where", "hosts", "remarks"),
                [
                    (
                        f"{migration.version}_{migration.title}",
                        statement.statement,
                        shortened(statement.sql, most=_SHOWN_CHARS),
                        statement.where,
                        _hosts(statement.hosts),
                        _remarks(statement),
                    )
                    for migration in plan.migrations
                    for statement in migration.statements
                ],
            )
        )
        parts.append(
            table(
                ("host", "shard", "on line", "waiting in the queue", "would run"),
                [
                    (
                        host.host.readable,
                        host.shard,
                        host.presence,
                        host.backlog,
                        sum(_acts(item) for statement in plan.statements for item in _of(statement, host)),
                    )
                    for host in _distinct(plan)
                ],
            )
        )
    if plan.inactive_hosts:
        names = ", ".join(host.readable for host in plan.inactive_hosts)
        parts.append(f"Off line, and waited for unless the output mode says otherwise: {names}")
    parts += [f"note: {note}" for note in plan.notes]
    parts += [f"problem: {problem}" for problem in plan.problems]
    return "\n\n".join(parts)


def approval_question(plan: Plan) -> dict[str, str]:
    """Subject and Markdown body: the statements that need approval, with the size of what they concern."""
    pairs = [
        (migration, statement)
        for migration in plan.migrations
        for statement in migration.statements
        if statement.needs_approval
    ]
    body = [
        f"To be run {plan.direction} on `{plan.cluster}`: **{count(len(plan.statements), 'statement')}**.",
        "These need approval:",
        *(_question(migration, statement) for migration, statement in pairs),
    ]
    if plan.inactive_hosts:
        body.append(f"Off line now: {', '.join(host.readable for host in plan.inactive_hosts)}.")
    body += [f"Note: {inline(note)}" for note in plan.notes]
    body.append("Nothing has been sent yet. Rejecting ends the run. Only this plan is approved.")
    share = f"{len(pairs)} of {len(plan.statements)} statements ({plan.direction})"
    return {
        "subject": f"{plan.cluster}: approve {share}",
        "body": "\n\n".join(body),
    }


def rehearsal_text(rehearsal: Rehearsal) -> str:
    """Every statement in every phase, then what differs that should not."""
    parts = [
        table(
            ("migration", "phase", "statement", "state", "ms", "remarks"),
            [
                (
                    f"{item.version}_{item.title}",
                    item.phase,
                    item.statement,
                    item.state,
                    item.duration_ms,
                    item.error or item.note,
                )
                for item in rehearsal.statements
            ],
        )
    ]
    return "\n\n".join(parts + [str(difference) for difference in rehearsal.differences])


def _question(migration: PlannedMigration, statement: PlannedStatement) -> str:
    rows = [host.rows for host in statement.hosts if host.rows is not None]
    size = f" Rows there now, all hosts together: {sum(rows):,}." if rows else ""
    remarks = inline(_remarks(statement))
    return (
        f"{migration.version}_{inline(migration.title)}, statement {statement.statement} ({statement.where}"
        f"{', ' + remarks if remarks else ''}):{size}\n\n{fenced(statement.sql, 'sql')}"
    )


def _remarks(statement: PlannedStatement) -> str:
    remarks = []
    if statement.is_destructive:
        remarks.append("destroys data")
    if statement.rewrites_data:
        remarks.append("rewrites data")
    if statement.needs_approval:
        remarks.append("needs approval")
    if statement.error:
        remarks.append(statement.error)
    return ", ".join(remarks)


def _hosts(hosts: Sequence[PlannedHost]) -> str:
    """`6 run`, or with the names where they differ."""
    counts: dict[Action, list[str]] = {}
    for host in hosts:
        counts.setdefault(host.action, []).append(host.host.readable)
    if len(counts) == 1:
        return ", ".join(f"{len(names)} {action}" for action, names in counts.items())
    return "; ".join(f"{action}: {', '.join(names)}" for action, names in counts.items())


def _acts(host: PlannedHost) -> bool:
    return host.action in (Action.RUN, Action.RETRY)


def _of(statement: PlannedStatement, host: PlannedHost) -> list[PlannedHost]:
    return [item for item in statement.hosts if item.host == host.host]


def _distinct(plan: Plan) -> list[PlannedHost]:
    hosts: dict[str, PlannedHost] = {}
    for statement in plan.statements:
        for host in statement.hosts:
            known = hosts.get(host.host.readable)
            if known is None or known.presence is Presence.UNKNOWN:
                hosts[host.host.readable] = host
    return list(hosts.values())
