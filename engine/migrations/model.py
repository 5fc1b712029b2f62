"""What a run is asked for, what it consists of, and how it goes. Values only; all of them travel as JSON,
because each step of a run may be a process of its own (Airflow's XCom).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from engine.ddl.output import DEFAULT_TIMEOUT_S, OutputMode
from engine.migrations.files import Direction
from engine.migrations.lock import DEFAULT_TTL_S, Binding, Lease
from engine.migrations.options import Options
from engine.migrations.selection import Leniency
from engine.migrations.states import CellState, LedgerRow, RunState, count_states
from engine.migrations.verdict import Patience, Verdict


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Who wants what.

    `run_id` is the caller's: unique per cluster, and the same when the same run is tried again. `target`: up
    to this version, or down to (and without) it; None is everything upwards and the last migration
    downwards, -1 downwards is everything. `timeout_s`, `output_mode`, `database` and `entry_version` are for
    statements whose file does not say. `approved_by` non-empty: destructive statements may be sent.
    """

    run_id: str
    direction: Direction = Direction.UP
    target: int | None = None
    requested_by: str = ""
    holder: str = ""
    binding: Binding = Binding.SESSION
    ttl_s: float = DEFAULT_TTL_S
    approved_by: str = ""
    timeout_s: int = DEFAULT_TIMEOUT_S
    output_mode: OutputMode = OutputMode.THROW
    database: str = "default"
    entry_version: int | None = None
    leniency: Leniency = field(default=Leniency())
    adopt_ledger: bool = False

    def patience(self, options: Options) -> Patience:
        return Patience(
            timeout_s=self.timeout_s if options.timeout_s is None else options.timeout_s,
            output_mode=options.output_mode or self.output_mode,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "direction": self.direction.value,
            "target": self.target,
            "requested_by": self.requested_by,
            "holder": self.holder,
            "binding": self.binding.value,
            "ttl_s": self.ttl_s,
            "approved_by": self.approved_by,
            "timeout_s": self.timeout_s,
            "output_mode": self.output_mode.value,
            "database": self.database,
            "entry_version": self.entry_version,
            "allow_gaps": self.leniency.gaps,
            "allow_out_of_order": self.leniency.out_of_order,
            "retry_failed": self.leniency.retry_failed,
            "adopt_ledger": self.adopt_ledger,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunRequest:
        return cls(
            run_id=data["run_id"],
            direction=Direction(data["direction"]),
            target=data["target"],
            requested_by=data["requested_by"],
            holder=data["holder"],
            binding=Binding(data["binding"]),
            ttl_s=data["ttl_s"],
            approved_by=data["approved_by"],
            timeout_s=data["timeout_s"],
            output_mode=OutputMode(data["output_mode"]),
            database=data["database"],
            entry_version=data["entry_version"],
            leniency=Leniency(
                gaps=data["allow_gaps"],
                out_of_order=data["allow_out_of_order"],
                retry_failed=data["retry_failed"],
            ),
            adopt_ledger=data["adopt_ledger"],
        )


@dataclass(frozen=True, slots=True, order=True)
class StatementRef:
    """One statement of one direction of one version; `statement` counts from 1."""

    version: int
    direction: Direction
    statement: int

    def to_json(self) -> dict[str, Any]:
        return {"version": self.version, "direction": self.direction.value, "statement": self.statement}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StatementRef:
        return cls(int(data["version"]), Direction(data["direction"]), int(data["statement"]))

    def __str__(self) -> str:
        return f"{self.version}.{self.direction} statement {self.statement}"


@dataclass(frozen=True, slots=True)
class Step:
    """One migration of a run."""

    version: int
    title: str
    direction: Direction
    generation: int
    statements: int

    @property
    def refs(self) -> tuple[StatementRef, ...]:
        return tuple(
            StatementRef(self.version, self.direction, number) for number in range(1, self.statements + 1)
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "title": self.title,
            "direction": self.direction.value,
            "generation": self.generation,
            "statements": self.statements,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Step:
        return cls(
            data["version"],
            data["title"],
            Direction(data["direction"]),
            data["generation"],
            data["statements"],
        )


@dataclass(frozen=True, slots=True)
class Run:
    """A run that has begun: its steps in order, and the lease while this process holds it."""

    request: RunRequest
    cluster: str
    steps: tuple[Step, ...]
    lease: Lease | None = None

    @property
    def refs(self) -> tuple[StatementRef, ...]:
        """Every statement of the run, in the order in which they are to be sent."""
        return tuple(ref for step in self.steps for ref in step.refs)

    def steps_before(self, step: Step) -> tuple[Step, ...]:
        return self.steps[: self.steps.index(step)]

    def empty_steps_before(self, step: Step) -> tuple[Step, ...]:
        """Those that stand directly before it, in order."""
        before = reversed(self.steps_before(step))
        return tuple(reversed(list(takewhile(lambda each: not each.statements, before))))

    def step(self, version: int) -> Step | None:
        return next((step for step in self.steps if step.version == version), None)

    def with_lease(self, lease: Lease | None) -> Run:
        return replace(self, lease=lease)

    def to_json(self) -> dict[str, Any]:
        """Without the lease: the next process re-enters it."""
        return {
            "request": self.request.to_json(),
            "cluster": self.cluster,
            "steps": [step.to_json() for step in self.steps],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Run:
        return cls(
            RunRequest.from_json(data["request"]),
            data["cluster"],
            tuple(Step.from_json(step) for step in data["steps"]),
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """One statement of a run as the ledger has it: `rows` holds one row per required host."""

    ref: StatementRef
    verdict: Verdict
    rows: tuple[LedgerRow, ...]

    @property
    def entries(self) -> tuple[str, ...]:
        """The queue entries to watch: of rows that are not final."""
        return tuple(sorted({row.entry for row in self.rows if row.entry and not row.state.is_final}))

    @property
    def failures(self) -> tuple[LedgerRow, ...]:
        return tuple(row for row in self.rows if row.state.is_failure)

    @property
    def counts(self) -> Mapping[CellState, int]:
        return count_states(self.rows)

    def to_json(self) -> dict[str, Any]:
        return {
            **self.ref.to_json(),
            "verdict": self.verdict.value,
            "entries": list(self.entries),
            "hosts": [row_to_json(row) for row in self.rows],
        }


@dataclass(frozen=True, slots=True)
class RunSummary:
    """How a run ended, with every row of its migrations."""

    run_id: str
    cluster: str
    state: RunState
    steps: tuple[Step, ...]
    rows: tuple[LedgerRow, ...]
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "cluster": self.cluster,
            "state": self.state.value,
            "note": self.note,
            "steps": [step.to_json() for step in self.steps],
            "rows": [row_to_json(row) for row in self.rows],
        }


def row_to_json(row: LedgerRow) -> dict[str, Any]:
    """A row of the ledger for people and programs; SQL and errors are redacted in the ledger already."""
    return {
        "version": row.version,
        "title": row.title,
        "direction": row.direction.value,
        "generation": row.generation,
        "statement": row.statement,
        "host": row.host.readable,
        "state": row.state.value,
        "code": row.code,
        "error": row.error,
        "started_ms": row.started_ms,
        "finished_ms": row.finished_ms,
        "duration_ms": row.duration_ms,
        "attempt": row.attempt,
        "entry": row.entry,
        "submission": row.submission,
        "sql": row.sql,
        "token": row.token,
        "run_id": row.run_id,
    }
