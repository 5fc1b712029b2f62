"""The run of a migration DAG, between its tasks: what `begin` leaves in XCom for those that come after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow.sdk import Context

from engine.ddl.output import DEFAULT_TIMEOUT_S, OutputMode
from engine.migrations.decide import is_begun, is_finished
from engine.migrations.files import Direction
from engine.migrations.lock import Binding
from engine.migrations.model import Run, RunRequest, StatementRef
from engine.migrations.selection import Leniency
from oncluster_airflow.shown import Shown
from oncluster_airflow.workspace import Manifest, Workspace

BEGIN_TASK = "begin"
PLAN_TASK = "plan"
APPROVE_TASK = "approve"
RUN_KEY = "run"
MANIFEST_KEY = "manifest"
PLAN_KEY = "plan"


@dataclass(frozen=True, slots=True)
class Begun:
    """A run that has begun, and the statements it may send."""

    run: Run
    manifest: Manifest
    shown: Shown

    def require_as_begun(self, workspace: Workspace, ref: StatementRef) -> None:
        """Raises MigrationRefused when the statement's file has changed, or it would go to hosts for which
        nobody has approved it. Sent before, it goes to no others."""
        self.manifest.require_unchanged(workspace.migrations, ref)
        step = self.run.step(ref.version)
        record = workspace.ledger.record(workspace.cluster, ref.version, statement=ref.statement)
        is_sent = (
            record is not None
            and step is not None
            and (is_finished(record, step) or (is_begun(record, step) and record.rows_of(ref.statement)))
        )
        if not is_sent:
            self.shown.require_none_joined(workspace.topology, ref)

    def to_json(self) -> dict[str, Any]:
        """One value, since each look into XCom is a request to Airflow's API server."""
        return {
            "run": self.run.to_json(),
            "manifest": self.manifest.to_json(),
            "shown": self.shown.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Begun:
        return cls(
            Run.from_json(data["run"]),
            Manifest.from_json(data["manifest"]),
            Shown.from_json(data.get("shown", ())),
        )


def run_of(context: Context) -> Begun | None:
    """What `begin` left, or None when it did not run."""
    ti: Any = context["ti"]
    left = ti.xcom_pull(task_ids=BEGIN_TASK, key=RUN_KEY)
    return Begun.from_json(left) if left else None


def request_of(context: Context, *, approved_by: str = "") -> RunRequest:
    """The run that the DAG's parameters ask for. The same DAG run always has the same `run_id`."""
    params: Any = context["params"]
    dag_run: Any = context["dag_run"]
    ti: Any = context["ti"]
    target = params.get("target_version")
    return RunRequest(
        run_id=ti.run_id,
        direction=Direction(params.get("direction", Direction.UP)),
        target=None if target in (None, "") else int(target),
        requested_by=getattr(dag_run, "triggering_user_name", None) or "airflow",
        holder=f"Airflow, DAG {ti.dag_id}, run {ti.run_id}",
        binding=Binding.TTL,
        approved_by=approved_by,
        timeout_s=int(params.get("timeout", DEFAULT_TIMEOUT_S)),
        output_mode=OutputMode(params.get("output_mode", "throw")),
        leniency=Leniency(
            gaps=bool(params.get("allow_gaps", False)),
            out_of_order=bool(params.get("allow_out_of_order", False)),
            retry_failed=bool(params.get("retry_failed", False)),
        ),
    )
