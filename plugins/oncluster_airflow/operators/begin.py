"""The run of a migration DAG, between its tasks: what `begin` leaves in XCom for those that come after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow.sdk import Context

from engine.config.model import Topology
from engine.ddl.output import DEFAULT_TIMEOUT_S, OutputMode
from engine.migrations.errors import MigrationRefused
from engine.migrations.files import Direction
from engine.migrations.lock import Binding
from engine.migrations.model import Run, RunRequest
from engine.migrations.selection import Leniency
from oncluster_airflow.workspace import Manifest

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

    def to_json(self) -> dict[str, Any]:
        """One value, since each look into XCom is a request to Airflow's API server."""
        return {"run": self.run.to_json(), "manifest": self.manifest.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Begun:
        return cls(Run.from_json(data["run"]), Manifest.from_json(data["manifest"]))


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


def require_hosts_that_were_shown(plan: Mapping[str, Any], topology: Topology) -> None:
    """Raises MigrationRefused when a statement that was approved would go to a host that has joined since:
    what it would destroy there nobody has seen."""
    for migration in plan["migrations"]:
        for statement in migration["statements"]:
            if not statement["needs_approval"]:
                continue
            cluster = topology.cluster(statement["cluster"])
            shown = {host["host"] for host in statement["hosts"]}
            joined = sorted({host.readable for host in cluster.host_ids} - shown)
            if joined:
                raise MigrationRefused(
                    f"{', '.join(joined)} joined {cluster.name} after the plan was approved.",
                    hint="Start a new run, which plans and asks anew.",
                )
