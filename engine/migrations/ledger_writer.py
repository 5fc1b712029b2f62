"""Appending to the ledger; the safety argument stands in `engine.migrations.ledger`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite

from engine.ddl.outcome import HostOutcome
from engine.ddl.text import storable
from engine.migrations import ledger_schema as schema
from engine.migrations.errors import LedgerCorrupt
from engine.migrations.files import Direction
from engine.migrations.ledger_store import LedgerStore
from engine.migrations.model import Step
from engine.migrations.states import CellState, Event, RunState
from engine.names import HostId


@dataclass(frozen=True, slots=True)
class Attempt:
    """One sending of one statement, as recorded before it is sent. `sql` is redacted."""

    token: str
    version: int
    title: str
    direction: Direction
    generation: int
    statement: int
    attempt: int
    line: int
    statement_checksum: str
    file_checksum: str
    sql: str
    hosts: tuple[HostId, ...]


@dataclass(frozen=True, slots=True)
class LedgerWriter:
    """Appends for one run under its fence. Every method raises StaleFence once another run took over."""

    store: LedgerStore
    cluster: str
    run_id: str
    fence: int

    def record_run(
        self, *, direction: Direction, target: int | None, requested_by: str, approved_by: str
    ) -> None:
        self._append(
            schema.runs,
            {
                "direction": direction.value,
                "target": target,
                "requested_by": requested_by,
                "approved_by": approved_by,
            },
        )

    def record_run_state(self, state: RunState, note: str = "") -> None:
        """Appends unless the run's latest state says the same."""
        column = schema.run_events.c
        with self.store.writing() as connection:
            last = connection.execute(
                sa.select(column.state, column.note)
                .where(column.cluster == self.cluster, column.run_id == self.run_id)
                .order_by(column.id.desc())
                .limit(1)
            ).first()
            if last is None or (last.state, last.note) != (state.value, note):
                self._insert(connection, schema.run_events, {"state": state.value, "note": note})

    def record_event(
        self,
        event: Event,
        *,
        version: int,
        title: str,
        direction: Direction,
        generation: int,
        statements: int,
        file_checksum: str,
        done_by: str,
        note: str = "",
    ) -> None:
        """Raises MigrationRefused for `applied` and `rolled_back` while a host lacks its `done` (M6)."""
        self._append(
            schema.migrations,
            {
                "version": version,
                "title": title,
                "direction": direction.value,
                "generation": generation,
                "event": event.value,
                "statements": statements,
                "file_checksum": file_checksum,
                "done_by": done_by,
                "note": note,
            },
        )

    def record_step(self, event: Event, step: Step, file_checksum: str, done_by: str) -> None:
        """As `record_event`."""
        self.record_event(
            event,
            version=step.version,
            title=step.title,
            direction=step.direction,
            generation=step.generation,
            statements=step.statements,
            file_checksum=file_checksum,
            done_by=done_by,
        )

    def record_attempt(self, attempt: Attempt) -> None:
        """Before it is sent. Raises LedgerCorrupt when the token stands for something else already."""
        h = schema.statement_hosts.c
        with self.store.writing() as connection:
            found = {
                HostId(row.host, row.port)
                for row in connection.execute(sa.select(h.host, h.port).where(h.token == attempt.token))
            }
            if found and found != set(attempt.hosts):
                raise LedgerCorrupt(
                    f"The ledger has {attempt.token} for {_names(found)}, not for {_names(attempt.hosts)}."
                )
            self._insert(
                connection,
                schema.statements,
                {
                    "token": attempt.token,
                    "version": attempt.version,
                    "title": attempt.title,
                    "direction": attempt.direction.value,
                    "generation": attempt.generation,
                    "statement": attempt.statement,
                    "attempt": attempt.attempt,
                    "line": attempt.line,
                    "statement_checksum": attempt.statement_checksum,
                    "file_checksum": attempt.file_checksum,
                    "sql": attempt.sql,
                },
            )
            for host in attempt.hosts:
                self._insert(
                    connection,
                    schema.statement_hosts,
                    {"token": attempt.token, "host": host.host, "port": host.port},
                )

    def record_submission(self, token: str, *, entry: str, outcome: str) -> None:
        """Raises LedgerCorrupt when the token already has another entry."""
        column = schema.submissions.c
        with self.store.writing() as connection:
            self._insert(connection, schema.submissions, {"token": token, "entry": entry, "outcome": outcome})
            found = connection.scalar(sa.select(column.entry).where(column.token == token))
            if found != entry:
                raise LedgerCorrupt(f"The ledger has {token} as {found}, the queue has it as {entry}.")

    def record_outcomes(self, token: str, seen: Sequence[HostOutcome]) -> list[HostId]:
        """Appends what had changed and returns the hosts concerned.

        What a host has said itself is never followed by anything; what others said of it (it expired, it was
        abandoned) is followed by that alone. Raises LedgerCorrupt when a host contradicts itself.
        """
        column = schema.outcomes.c
        changed: list[HostId] = []
        with self.store.writing() as connection:
            known: dict[HostId, tuple[CellState, int]] = {}
            for row in connection.execute(
                sa.select(column.host, column.port, column.state, column.code)
                .where(column.token == token)
                .order_by(column.id)
            ):
                known[HostId(row.host, row.port)] = CellState(row.state), row.code
            for outcome in seen:
                state = CellState(outcome.state.value)
                before = known.get(outcome.host)
                if before is not None and not _is_news(before[0], state):
                    _check_not_contradicted(token, outcome, state, before)
                    continue
                self._insert(
                    connection,
                    schema.outcomes,
                    {
                        "token": token,
                        "host": outcome.host.host,
                        "port": outcome.host.port,
                        "state": state.value,
                        "code": outcome.code,
                        "error": storable(outcome.error),
                        "started_ms": outcome.started_ms,
                        "finished_ms": outcome.finished_ms,
                        "duration_ms": outcome.duration_ms,
                    },
                )
                changed.append(outcome.host)
        return changed

    def _append(self, table: Table, values: Mapping[str, object]) -> None:
        with self.store.writing() as connection:
            self._insert(connection, table, values)

    def _insert(self, connection: Connection, table: Table, values: Mapping[str, object]) -> None:
        """Adds the row unless one with its key is there."""
        row: dict[str, object] = {"cluster": self.cluster, "fence": self.fence, **values}
        if "run_id" in table.c:
            row["run_id"] = self.run_id
        if "at_ms" in table.c:
            row["at_ms"] = self.store.now_ms()
        dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
        connection.execute(dialect.insert(table).values(**row).on_conflict_do_nothing())


def _is_news(before: CellState, now: CellState) -> bool:
    if before is now or before.is_reported:
        return False
    if before.is_given_up:
        return now.is_reported or now is CellState.ABANDONED
    return True


def _check_not_contradicted(
    token: str, outcome: HostOutcome, state: CellState, before: tuple[CellState, int]
) -> None:
    """A queue that was cleaned says less than before (`expired` for what was done), never the opposite."""
    if state.is_reported and before != (state, outcome.code):
        raise LedgerCorrupt(
            f"{outcome.host.readable} was {before[0]} (code {before[1]}) for {token} and is now {state} "
            f"(code {outcome.code})."
        )


def _names(hosts: Sequence[HostId] | set[HostId]) -> str:
    return ", ".join(sorted(host.readable for host in hosts)) or "no host"
