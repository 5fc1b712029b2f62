"""What the database says: the migrations ledger, findings, runs of operations, samples of lag.

These calls block for some milliseconds: on an event loop they belong into a thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from engine.errors import OnclusterError
from engine.migrations.ledger import Ledger
from engine.migrations.states import MigrationRecord, count_states
from engine.operations.overview.lag import LAG_METRIC
from engine.operations.overview.model import MigrationView, RecordsView, RunView
from engine.operations.records import Records
from engine.operations.site import Site

LAG_SINCE_S = 24 * 3600
RESOLVED_SINCE_S = 24 * 3600
_MOST_RUNS = 20
_MOST_FAILURES = 5


def read_database(site: Site, *, lag_since_s: float = LAG_SINCE_S) -> RecordsView:
    """Raises RecordsUnavailable; a ledger that cannot be read is a note."""
    now_ms = int(site.env.now_s() * 1000)
    notes: list[str] = []
    migrations: tuple[MigrationView, ...] = ()
    if site.ledger_url:
        try:
            ledger = Ledger(site.ledger_url, env=site.env)
            migrations = tuple(_migration(record) for record in ledger.records(site.cluster).values())
            if not ledger.is_made:
                notes.append(f"There is no migrations ledger at {ledger.url} yet.")
        except OnclusterError as error:
            notes.append(f"The migrations ledger cannot be read: {error.message}")
    return RecordsView(
        migrations=migrations,
        findings=site.records.open_findings(site.cluster),
        resolved=site.records.resolved_findings(site.cluster, since_ms=now_ms - int(RESOLVED_SINCE_S * 1000)),
        runs=_runs(site.records, site.cluster),
        lag=site.records.samples(site.cluster, LAG_METRIC, since_ms=now_ms - int(lag_since_s * 1000)),
        notes=tuple(notes),
    )


def _migration(record: MigrationRecord) -> MigrationView:
    failures = [
        f"statement {row.statement} on {row.host.readable}: code {row.code}: {row.error}"
        for row in record.rows
        if row.state.is_failure
    ]
    return MigrationView(
        version=record.version,
        title=record.title,
        state=record.state,
        direction=record.direction.value,
        statements=record.statements,
        counts={state.value: number for state, number in count_states(record.rows).items()},
        note=record.note,
        at_ms=record.at_ms,
        failures=tuple(failures[:_MOST_FAILURES]),
    )


def _runs(records: Records, cluster: str) -> tuple[RunView, ...]:
    found: Sequence[RunView] = [
        RunView(
            run_id=run.run_id,
            operation=run.plan.operation,
            at_ms=run.at_ms,
            requested_by=run.requested_by,
            approved_by=run.approved_by,
            acts=len(run.plan.acts),
            counts=Counter(result.state for result in records.acts_of(run.run_id).values()),
        )
        for run in records.runs(cluster, limit=_MOST_RUNS)
    ]
    return tuple(found)
