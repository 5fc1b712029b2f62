"""What the page can start: runs of DAGs that look and plan, nothing that changes a cluster by itself.

The button posts to Airflow's own API with the user's own login, so Airflow decides who may, and records who
did. Acting on a plan is asked for and approved in Airflow, where the plan is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from oncluster_airflow.cleanup_dag import CLEANUP_DAG
from oncluster_airflow.drift_dag import DRIFT_DAG
from oncluster_airflow.health_dag import HEALTH_DAG
from oncluster_airflow.keeper_backup_dag import BACKUP_DAG
from oncluster_airflow.migration_dag import dag_id_of


@dataclass(frozen=True, slots=True)
class Action:
    """One button, or a link only where `conf` is None: such a DAG is started from its own form."""

    dag_id: str
    label: str
    what: str
    conf: Mapping[str, Any] | None = field(default=None)


def actions(cluster: str) -> tuple[Action, ...]:
    """In the order in which they are shown."""
    return (
        Action(
            HEALTH_DAG,
            "Check health, plan repairs",
            "Looks at every replica, records findings, and shows the repairs that fit.",
            {"cluster": cluster, "repair": "plan"},
        ),
        Action(
            DRIFT_DAG,
            "Compare schemas",
            "Compares definitions over hosts, Keeper and ledger, and shows the smallest repair.",
            {"cluster": cluster, "repair": "plan"},
        ),
        Action(
            CLEANUP_DAG,
            "Plan a cleanup",
            "Shows what of the queue and of dead replicas could go. Nothing is removed.",
            {"cluster": cluster, "mode": "plan"},
        ),
        Action(BACKUP_DAG, "Back up Keeper", "One file with Keeper's tree. Started from its own form."),
        Action(dag_id_of(cluster), "Migrate", "Plans, asks, and applies. Started from its own form."),
    )


def dag_run_of(run_id: str) -> tuple[str, str] | None:
    """DAG and run of an operation's run id that names them, `<dag id>/<run id>[/…]`; None for others."""
    dag_id, slash, rest = run_id.partition("/")
    if not slash or not rest:
        return None
    return dag_id, rest.partition("/")[0]
