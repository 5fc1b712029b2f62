"""How `oncluster migrate` shows things: tables on standard output, progress on standard error."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import click

from engine.cli.output import console, fits_as_table, print_json, print_table
from engine.config.model import Topology
from engine.ddl.output import DEFAULT_TIMEOUT_S
from engine.local.progress import ConsoleSink, Steps
from engine.migrations.decide import describe
from engine.migrations.departed import departed
from engine.migrations.files import MigrationSet
from engine.migrations.ledger import RunRow
from engine.migrations.lint import LintReport
from engine.migrations.model import Progress, Run, RunSummary, StatementRef, Step, row_to_json
from engine.migrations.plan import Plan, PlannedHost, PlannedStatement
from engine.migrations.rehearsal import Rehearsal, RehearsedStatement
from engine.migrations.selection import OTHERWISE
from engine.migrations.states import (
    CellState,
    LedgerRow,
    MigrationEvent,
    MigrationRecord,
    RunState,
    count_states,
    untouched,
)
from engine.migrations.verdict import Verdict
from engine.wording import count, listed, moment, shortened

_RUN = "migrating"
_MOST_HOST_COLUMNS = 8
_SQL_CHARS = 90


_PATIENCE_S = 2.0
"""Whatever takes no longer needs no word."""


@contextlib.contextmanager
def telling(step: str) -> Iterator[Steps]:
    """Tells on standard error what goes on, where it takes its time; inside a running event loop."""
    with ConsoleSink(console(stderr=True), first_word_s=_PATIENCE_S) as sink:
        steps = Steps(sink)
        steps.running(step)
        yield steps


class Reporter:
    """Tells on standard error how a run goes: a line for each statement, and what is waited for meanwhile."""

    def __init__(self) -> None:
        self._console = console(stderr=True)
        self._sink = ConsoleSink(self._console, first_word_s=_PATIENCE_S)
        self._steps = Steps(self._sink)
        self._told: set[StatementRef] = set()

    def __enter__(self) -> Reporter:
        self._sink.__enter__()
        self._steps.running(_RUN, "taking the lock")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sink.__exit__(kind, error, trace)

    def on_begin(self, run: Run) -> None:
        self._steps.running(
            _RUN, f"{count(len(run.steps), 'migration')}, {count(len(run.refs), 'statement')}"
        )

    def on_statement(self, progress: Progress) -> None:
        if progress.verdict is Verdict.WAIT:
            self._steps.running(_RUN, describe(progress))
        elif progress.ref not in self._told:
            self._told.add(progress.ref)
            self._console.print(f"  {describe(progress)}", markup=False, highlight=False)

    def on_migration(self, step: Step, record: MigrationRecord) -> None:
        self._console.print(f"{step.version} {step.title}: {record.state}", markup=False, highlight=False)


def show_summary(summary: RunSummary, topology: Topology) -> None:
    """What a run did, one line for each statement, the errors in full, and who is waited for in vain."""
    rows = []
    for step in summary.steps:
        for ref in step.refs:
            mine = [r for r in summary.rows if (r.version, r.statement) == (ref.version, ref.statement)]
            rows.append((step.version, step.title, ref.statement, _counts(mine), _longest(mine)))
    print_table(
        ("version", "title", "statement", "hosts", "ms"),
        rows,
        title=f"{summary.cluster}: {summary.state}",
        empty=f"{summary.cluster}: there was nothing to do.",
    )
    _show_failures(summary.rows)
    for note in departed(summary.rows, topology):
        click.echo(note)
    match summary.state:
        case RunState.PARTIAL:
            click.echo("Hosts that are away catch up by themselves; `oncluster migrate status` records it.")
        case RunState.UNFINISHED:
            click.echo("Not finished in time. What was sent goes on; repeat the command to attach to it.")
        case RunState.FAILED:
            otherwise = OTHERWISE[summary.steps[0].direction]
            click.echo(f"Remove the cause and repeat with --retry-failed; {otherwise}.")
        case RunState.DONE | RunState.RUNNING:
            pass


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """A folder, what the ledger has of it, and what there is to say about it."""

    migrations: MigrationSet
    records: Mapping[int, MigrationRecord]
    note: str = ""

    @property
    def all_records(self) -> list[MigrationRecord]:
        """Of every version that has files or rows."""
        result = []
        for version in sorted({*self.migrations.versions, *self.records}):
            migration = self.migrations.get(version)
            title = migration.title if migration else ""
            result.append(self.records.get(version) or untouched(version, title))
        return result


def show_status(clusters: Sequence[ClusterStatus], *, as_json: bool) -> None:
    """Migrations by hosts."""
    if as_json:
        print_json(
            {
                "clusters": [
                    {
                        "cluster": status.migrations.cluster,
                        "note": status.note,
                        "migrations": [_record_json(record) for record in status.all_records],
                    }
                    for status in clusters
                ]
            }
        )
        return
    for status in clusters:
        _show_cluster(status)


def _show_cluster(status: ClusterStatus) -> None:
    if status.note:
        click.echo(status.note, err=True)
    every = status.all_records
    hosts = sorted({row.host for record in every for row in record.rows})
    rows = [(record.version, record.title, _state(record)) for record in every]
    columns = ("version", "title", "state", *(host.readable for host in hosts))
    table: list[Sequence[object]] = [
        (*row, *(_cell([r for r in record.rows if r.host == host]) for host in hosts))
        for record, row in zip(every, rows, strict=True)
    ]
    if len(hosts) > _MOST_HOST_COLUMNS or not fits_as_table(columns, table):
        columns = ("version", "title", "state", "hosts")
        table = [(*row, _hosts_by_state(record.rows)) for record, row in zip(every, rows, strict=True)]
    print_table(columns, table, title=status.migrations.cluster)
    _show_failures([row for record in every if record.state.is_open for row in record.rows])


def show_history(runs: Sequence[RunRow], events: Sequence[MigrationEvent], *, as_json: bool) -> None:
    if as_json:
        print_json({"runs": [_run_json(run) for run in runs], "events": [_event_json(e) for e in events]})
        return
    print_table(
        ("begun", "run", "direction", "target", "by", "approved by", "state", "note"),
        [
            (
                *(moment(run.at_ms), run.run_id, run.direction, run.target),
                *(run.requested_by, run.approved_by, run.state, run.note),
            )
            for run in runs
        ],
        title="runs",
        empty="No run yet.",
    )
    print_table(
        ("at", "version", "title", "direction", "event", "generation", "by", "note"),
        [
            (moment(e.at_ms), e.version, e.title, e.direction, e.event, e.generation, e.done_by, e.note)
            for e in events
        ],
        title="migrations",
        empty="",
    )


def show_lint(report: LintReport) -> None:
    for finding in report.findings:
        if finding.stands:
            click.echo(str(finding))
    counts = f"{count(len(report.errors), 'error')}, {count(len(report.warnings), 'warning')}"
    click.echo(f"{counts}, {len(report.silenced)} silenced with a reason.")


def show_plan(plan: Plan) -> None:
    """Every statement once; hosts are listed where they differ."""
    for problem in plan.problems:
        click.echo(f"Forbids the run: {problem}")
    for note in plan.notes:
        click.echo(f"Note: {note}")
    print_table(
        ("version", "line", "statement", "where", "hosts", "touches", "remarks"),
        [
            (
                f"{migration.version} {migration.title}",
                statement.line,
                shortened(statement.sql, most=_SQL_CHARS),
                f"{statement.where} of {statement.cluster}",
                _planned_hosts(statement.hosts),
                _touches(statement.hosts),
                _remarks(statement),
            )
            for migration in plan.migrations
            for statement in migration.statements
        ],
        title=f"{plan.cluster}: {plan.direction}",
        empty=f"{plan.cluster}: there is nothing to do." if not plan.problems else "",
    )
    if plan.inactive_hosts:
        click.echo(f"Not on line: {', '.join(host.readable for host in plan.inactive_hosts)}.")
    waiting = {h.host: h.backlog for s in plan.statements for h in s.hosts if h.backlog}
    if waiting:
        listed = ", ".join(f"{host.readable} {number}" for host, number in sorted(waiting.items()))
        click.echo(f"Entries that wait in the queue before these: {listed}.")
    if plan.needs_approval:
        click.echo("This destroys data or asks for approval: run it with --approve.")


def show_rehearsal(rehearsal: Rehearsal) -> None:
    for text in dict.fromkeys(map(_not_rehearsed, rehearsal.not_rehearsed)):
        click.echo(text)
    for statement in rehearsal.not_repeatable:
        place = f"{statement.path}:{statement.line}"
        click.echo(f"{place}: not repeatable, which is no failure (code {statement.code}): {statement.error}")
    for statement in rehearsal.failures:
        place = f"{statement.path}:{statement.line}"
        click.echo(f"{place}: {statement.phase} failed (code {statement.code}): {statement.error}")
    for difference in rehearsal.differences:
        click.echo(str(difference))
    played = len(rehearsal.statements)
    took_ms = sum(statement.duration_ms for statement in rehearsal.statements)
    verdict = "ok" if rehearsal.is_ok else "failed"
    click.echo(f"Rehearsal {verdict}: {count(played, 'statement')} in {took_ms} ms.")
    if rehearsal.advice:
        click.echo(rehearsal.advice)


def _not_rehearsed(statement: RehearsedStatement) -> str:
    """With what the scratch said: a host may refuse the statement for the same reason."""
    said = f" (code {statement.code}): {statement.error}" if statement.error else ""
    return f"{statement.path}:{statement.line}: not rehearsed: {statement.note}{said}"


# --- cells ------------------------------------------------------------------------------------------------


def _counts(rows: Sequence[LedgerRow]) -> str:
    return ", ".join(f"{number} {state}" for state, number in count_states(rows).items()) or "not sent"


def _longest(rows: Sequence[LedgerRow]) -> int | None:
    return max((row.duration_ms for row in rows if row.duration_ms is not None), default=None)


def _cell(rows: Sequence[LedgerRow]) -> str:
    """All statements of a migration on one host: the state furthest from done, and the time they took."""
    if not rows:
        return ""
    state = _worst(rows)
    took_ms = sum(row.duration_ms or 0 for row in rows)
    return f"{state} {took_ms} ms" if state is CellState.DONE else state.value


def _worst(rows: Sequence[LedgerRow]) -> CellState:
    order = list(CellState)
    failures = (row.state for row in rows if row.state.is_failure)
    return next(failures, None) or min((row.state for row in rows), key=order.index)


def _hosts_by_state(rows: Sequence[LedgerRow]) -> str:
    """All statements of a migration: how many hosts have done it, and the others by name."""
    hosts: dict[CellState, list[str]] = {}
    for host in sorted({row.host for row in rows}):
        hosts.setdefault(_worst([row for row in rows if row.host == host]), []).append(host.readable)
    done = len(hosts.pop(CellState.DONE, ()))
    others = [f"{state}: {listed(names)}" for state, names in hosts.items()]
    return "; ".join([f"{done} done", *others] if done else others)


def _state(record: MigrationRecord) -> str:
    if record.state.is_open and record.direction.value == "down":
        return f"{record.state} (down)"
    return f"{record.state}: {record.note}" if record.note else record.state.value


def _show_failures(rows: Sequence[LedgerRow]) -> None:
    for row in rows:
        if row.state.is_failure:
            click.echo(f"{row.version} statement {row.statement} on {row.host.readable}: {row.state}")
            click.echo(f"  code {row.code}: {row.error}")


def _planned_hosts(hosts: Sequence[PlannedHost]) -> str:
    counts: dict[str, int] = {}
    for host in hosts:
        counts[host.action.value] = counts.get(host.action.value, 0) + 1
    return ", ".join(f"{number} {action}" for action, number in counts.items())


def _touches(hosts: Sequence[PlannedHost]) -> str:
    known = [host for host in hosts if host.rows is not None and host.size_bytes is not None]
    if not known:
        return ""
    rows = sum(host.rows or 0 for host in known)
    size_mib = sum(host.size_bytes or 0 for host in known) / 2**20
    return f"{rows} rows, {size_mib:.1f} MiB"


def _remarks(statement: PlannedStatement) -> str:
    said = [
        statement.error,
        "destroys" if statement.is_destructive else "",
        "rewrites data" if statement.rewrites_data else "",
        "asks for approval" if statement.needs_approval and not statement.is_destructive else "",
        f"waits {statement.timeout_s} s" if statement.timeout_s != DEFAULT_TIMEOUT_S else "",
        statement.output_mode if statement.output_mode != "throw" else "",
    ]
    return ", ".join(text for text in said if text)


def _record_json(record: MigrationRecord) -> dict[str, Any]:
    return {
        "version": record.version,
        "title": record.title,
        "state": record.state.value,
        "direction": record.direction.value,
        "generation": record.generation,
        "note": record.note,
        "rows": [row_to_json(row) for row in record.rows],
    }


def _run_json(run: RunRow) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "direction": run.direction.value,
        "target": run.target,
        "requested_by": run.requested_by,
        "approved_by": run.approved_by,
        "fence": run.fence,
        "at_ms": run.at_ms,
        "state": run.state.value,
        "note": run.note,
        "ended_ms": run.ended_ms,
    }


def _event_json(event: MigrationEvent) -> dict[str, Any]:
    return {
        "version": event.version,
        "title": event.title,
        "direction": event.direction.value,
        "generation": event.generation,
        "event": event.event.value,
        "statements": event.statements,
        "run_id": event.run_id,
        "done_by": event.done_by,
        "note": event.note,
        "at_ms": event.at_ms,
    }
