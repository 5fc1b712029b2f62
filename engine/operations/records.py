"""What operations did and saw, kept in the database: runs and their acts, findings, samples, alerts.

Whoever records an act does so before it happens, so that after a crash nobody has to guess what was begun.
Times are Unix milliseconds by the caller's clock (`Env`). Calls block for some milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from engine import database
from engine.env import Env
from engine.errors import Corrupt, Refused, Unavailable
from engine.operations import records_schema as schema
from engine.operations.act import ActResult, ActState, Plan
from engine.operations.finding import Finding

_ROWS_A_STATEMENT = 500


class RecordsUnavailable(Unavailable):
    """The database of the records cannot be used; nothing was recorded."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run of an operation."""

    run_id: str
    plan: Plan
    requested_by: str
    approved_by: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class FindingRecord:
    """One trouble over time. `resolved_ms` is None as long as it is seen."""

    finding: Finding
    scope: str
    first_seen_ms: int
    last_seen_ms: int
    resolved_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look changed: findings that were not there before, those that go on, and those that are gone."""

    new: tuple[FindingRecord, ...] = ()
    continuing: tuple[FindingRecord, ...] = ()
    resolved: tuple[FindingRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One figure. `metric` has its unit in its name (`absolute_delay_s`); `subject` is a table or empty."""

    metric: str
    value: float
    host: str = ""
    subject: str = ""
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class AlertRecord:
    """When people were last told of a fingerprint over a channel."""

    fingerprint: str
    channel: str
    first_sent_ms: int
    last_sent_ms: int
    times_sent: int


class Records:
    """The first write makes the tables where there are none. Nothing is asked of the database before it has
    to be: who only looks at a cluster is not to be held up by it.

    Raises ConfigError (the URL); every method raises RecordsUnavailable.
    """

    def __init__(self, url: str | Path, *, env: Env) -> None:
        self._env = env
        self._database = database.Database(
            database.database_engine(url, what="records"), _refusal, database.Tables(_are_there, _make)
        )

    @property
    def url(self) -> str:
        """Where they are, the password hidden."""
        return self._database.url

    def now_ms(self) -> int:
        return int(self._env.now_s() * 1000)

    # --- runs and acts ------------------------------------------------------------------------------------

    def begin_run(self, run_id: str, plan: Plan, *, requested_by: str, approved_by: str) -> RunRecord:
        """Record a run, or find it again. Raises Refused when the run was begun with another plan."""
        with self._database.writing() as connection:
            known = self._run(connection, run_id)
            if known is None:
                known = RunRecord(run_id, plan, requested_by, approved_by, self.now_ms())
                connection.execute(
                    schema.operation_runs.insert().values(
                        run_id=run_id,
                        cluster=plan.cluster,
                        operation=plan.operation,
                        plan=json.dumps(plan.to_json(), ensure_ascii=False),
                        plan_checksum=plan.checksum,
                        requested_by=requested_by,
                        approved_by=approved_by,
                        at_ms=known.at_ms,
                    )
                )
        if known.plan.checksum != plan.checksum:
            raise Refused(
                f"Run {run_id} was begun with another plan ({known.plan.checksum}) than this one "
                f"({plan.checksum}).",
                hint="Plan again under a new run id.",
            )
        return known

    def run(self, run_id: str) -> RunRecord | None:
        with self._database.reading() as connection:
            return self._run(connection, run_id)

    def runs(self, cluster: str, operation: str = "", *, limit: int = 50) -> tuple[RunRecord, ...]:
        """The newest first; of all operations when none is named."""
        table = schema.operation_runs
        query = sa.select(table).where(table.c.cluster == cluster)
        if operation:
            query = query.where(table.c.operation == operation)
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(table.c.at_ms.desc()).limit(limit)).all()
        return tuple(_run_of(row) for row in rows)

    def record_act(self, run_id: str, act_id: str, result: ActResult, *, operator: str) -> None:
        """One more row; earlier ones stay."""
        with self._database.writing() as connection:
            connection.execute(
                schema.act_events.insert().values(
                    run_id=run_id,
                    act_id=act_id,
                    state=result.state.value,
                    detail=result.detail,
                    operator=operator,
                    at_ms=self.now_ms(),
                )
            )

    def acts_of(self, run_id: str) -> dict[str, ActResult]:
        """The latest state of each act of the run that was begun, by act id."""
        table = schema.act_events
        with self._database.reading() as connection:
            rows = connection.execute(
                sa.select(table).where(table.c.run_id == run_id).order_by(table.c.id)
            ).all()
        return {row.act_id: ActResult(ActState(row.state), row.detail) for row in rows}

    # --- findings -----------------------------------------------------------------------------------------

    def see_findings(self, cluster: str, scope: str, found: Sequence[Finding]) -> Seen:
        """Record what a look found: open findings of the scope that were not found again are resolved.

        `scope` names the look ("health", "drift"), so that one look does not resolve what another found.
        """
        now = self.now_ms()
        table = schema.findings
        by_fingerprint = {finding.fingerprint: finding for finding in found}
        new, continuing, resolved = [], [], []
        with self._database.writing() as connection:
            rows = connection.execute(
                sa.select(table).where(
                    table.c.cluster == cluster, table.c.scope == scope, table.c.resolved_ms.is_(None)
                )
            ).all()
            for row in rows:
                finding = by_fingerprint.pop(row.fingerprint, None)
                if finding is None:
                    values: dict[str, object] = {"resolved_ms": now}
                    resolved.append(_finding_of(row, resolved_ms=now))
                else:
                    values = _finding_values(finding) | {"last_seen_ms": now}
                    continuing.append(FindingRecord(finding, scope, row.first_seen_ms, now))
                connection.execute(table.update().where(table.c.id == row.id).values(**values))
            for finding in by_fingerprint.values():
                connection.execute(
                    table.insert().values(
                        fingerprint=finding.fingerprint,
                        cluster=cluster,
                        scope=scope,
                        first_seen_ms=now,
                        last_seen_ms=now,
                        **_finding_values(finding),
                    )
                )
                new.append(FindingRecord(finding, scope, now, now))
        return Seen(tuple(new), tuple(continuing), tuple(resolved))

    def open_findings(self, cluster: str, scope: str = "") -> tuple[FindingRecord, ...]:
        """The worst first, then the oldest; of all scopes when none is named."""
        return self._findings(cluster, scope, schema.findings.c.resolved_ms.is_(None))

    def resolved_findings(self, cluster: str, *, since_ms: int, scope: str = "") -> tuple[FindingRecord, ...]:
        """What went away since then."""
        return self._findings(cluster, scope, schema.findings.c.resolved_ms >= since_ms)

    def _findings(
        self, cluster: str, scope: str, condition: sa.ColumnElement[bool]
    ) -> tuple[FindingRecord, ...]:
        table = schema.findings
        query = sa.select(table).where(table.c.cluster == cluster, condition)
        if scope:
            query = query.where(table.c.scope == scope)
        with self._database.reading() as connection:
            rows = connection.execute(
                query.order_by(table.c.severity.desc(), table.c.first_seen_ms, table.c.id)
            ).all()
        return tuple(_finding_of(row, resolved_ms=row.resolved_ms) for row in rows)

    # --- samples ------------------------------------------------------------------------------------------

    def add_samples(self, cluster: str, samples: Iterable[Sample]) -> None:
        """A sample whose `at_ms` is 0 is of now. One taken twice at one millisecond is stored once."""
        now = self.now_ms()
        rows = {
            (sample.metric, sample.host, sample.subject, sample.at_ms or now): sample for sample in samples
        }
        values = [
            {
                "cluster": cluster,
                "metric": metric,
                "host": host,
                "subject": subject,
                "at_ms": at_ms,
                "value": sample.value,
            }
            for (metric, host, subject, at_ms), sample in rows.items()
        ]
        with self._database.writing() as connection:
            for begin in range(0, len(values), _ROWS_A_STATEMENT):
                connection.execute(
                    self._insert_or_ignore(schema.samples), values[begin : begin + _ROWS_A_STATEMENT]
                )

    def samples(
        self,
        cluster: str,
        metric: str,
        *,
        host: str | None = None,
        subject: str | None = None,
        since_ms: int = 0,
        limit: int = 100_000,
    ) -> tuple[Sample, ...]:
        """The oldest first; of all hosts and subjects where none is named. The newest `limit` at most."""
        table = schema.samples
        query = sa.select(table).where(
            table.c.cluster == cluster, table.c.metric == metric, table.c.at_ms >= since_ms
        )
        if host is not None:
            query = query.where(table.c.host == host)
        if subject is not None:
            query = query.where(table.c.subject == subject)
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(table.c.at_ms.desc()).limit(limit)).all()
        return tuple(
            Sample(row.metric, row.value, row.host, row.subject, row.at_ms) for row in reversed(rows)
        )

    def prune_samples(self, *, before_ms: int) -> int:
        """Remove what is older; how many that were."""
        with self._database.writing() as connection:
            done = connection.execute(schema.samples.delete().where(schema.samples.c.at_ms < before_ms))
            return int(done.rowcount)

    # --- alerts -------------------------------------------------------------------------------------------

    def alerts(self, cluster: str, channel: str) -> dict[str, AlertRecord]:
        """What was told over the channel and not yet taken back, by fingerprint."""
        table = schema.alerts
        with self._database.reading() as connection:
            rows = connection.execute(
                sa.select(table).where(table.c.cluster == cluster, table.c.channel == channel)
            ).all()
        return {
            row.fingerprint: AlertRecord(
                row.fingerprint, row.channel, row.first_sent_ms, row.last_sent_ms, row.times_sent
            )
            for row in rows
        }

    def record_message(
        self, cluster: str, channel: str, *, told: Iterable[str] = (), over: Iterable[str] = ()
    ) -> None:
        """A message was sent now that told of these fingerprints and said that those are over; in one
        transaction. What is over and comes again is told again."""
        now = self.now_ms()
        table = schema.alerts
        with self._database.writing() as connection:
            for fingerprint in told:
                key = sa.and_(table.c.fingerprint == fingerprint, table.c.channel == channel)
                updated = connection.execute(
                    table.update()
                    .where(key)
                    .values(cluster=cluster, last_sent_ms=now, times_sent=table.c.times_sent + 1)
                )
                if not updated.rowcount:
                    connection.execute(
                        table.insert().values(
                            fingerprint=fingerprint,
                            channel=channel,
                            cluster=cluster,
                            first_sent_ms=now,
                            last_sent_ms=now,
                            times_sent=1,
                        )
                    )
            for fingerprint in over:
                connection.execute(
                    table.delete().where(table.c.fingerprint == fingerprint, table.c.channel == channel)
                )

    # --- inside -------------------------------------------------------------------------------------------

    def _insert_or_ignore(self, table: sa.Table) -> sa.Insert:
        if self._database.dialect == "postgresql":
            from sqlalchemy.dialects.postgresql import insert as postgresql_insert

            return postgresql_insert(table).on_conflict_do_nothing()
        return sa.insert(table).prefix_with("OR IGNORE", dialect="sqlite")

    @staticmethod
    def _run(connection: Connection, run_id: str) -> RunRecord | None:
        table = schema.operation_runs
        row = connection.execute(sa.select(table).where(table.c.run_id == run_id)).one_or_none()
        return None if row is None else _run_of(row)


def _are_there(connection: Connection) -> bool:
    return database.has_table(connection, schema.alerts.name)


def _make(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        # Two who make them at once: CREATE TABLE IF NOT EXISTS alone can fail on the catalog's index.
        connection.execute(
            sa.text("SELECT pg_advisory_xact_lock(hashtextextended('oncluster_operations', 0))")
        )
    schema.metadata.create_all(connection)


def _refusal(error: SQLAlchemyError | OSError, url: str) -> RecordsUnavailable:
    message = str(getattr(error, "orig", None) or error).strip()
    return RecordsUnavailable(
        f"The records at {url} cannot be used: {message}",
        hint="Is that where they are (--records-url, ONCLUSTER_RECORDS_URL), up, writable, and its disk not "
        "full?",
    )


def _run_of(row: sa.Row[tuple[object, ...]]) -> RunRecord:
    try:
        plan = Plan.from_json(json.loads(row.plan))
    except (KeyError, ValueError) as error:
        raise Corrupt(f"The record of run {row.run_id} does not parse: {error}") from error
    return RunRecord(row.run_id, plan, row.requested_by, row.approved_by, row.at_ms)


def _finding_values(finding: Finding) -> dict[str, object]:
    return {
        "kind": finding.kind.value,
        "severity": int(finding.severity),
        "finding": json.dumps(finding.to_json(), ensure_ascii=False),
    }


def _finding_of(row: sa.Row[tuple[object, ...]], *, resolved_ms: int | None) -> FindingRecord:
    try:
        finding = Finding.from_json(json.loads(row.finding))
    except (KeyError, ValueError) as error:
        raise Corrupt(f"The record of finding {row.fingerprint} does not parse: {error}") from error
    return FindingRecord(finding, row.scope, row.first_seen_ms, row.last_seen_ms, resolved_ms)
