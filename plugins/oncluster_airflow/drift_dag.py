"""The DAG that compares schemas.

choose → [cluster]  check → plan → approve → act
"""

from __future__ import annotations

from airflow.sdk import DAG, BaseOperator

from oncluster_airflow.operation_dag import Operation, mode_param, operation_dag, plan_approve_act
from oncluster_airflow.operation_plan import Mode
from oncluster_airflow.operators.drift import (
    ActDriftRepairOperator,
    CheckDriftOperator,
    PlanDriftRepairOperator,
)
from oncluster_airflow.settings import OperationSettings

DRIFT_DAG = "schema_drift"

_DOC = """
Compares every database, table, view, dictionary and function over all hosts, with Keeper and with the ledger.

* **check** which host lacks what, or has it otherwise, and which migration's entry explains it. It succeeds
  whatever it finds; people are told what is new.
* **plan** the fewest statements that set it right without a risk (*Repair*: `plan`, or `act`)
* **approve** waits for an answer before anything is sent
* **act** sends them, host by host, and compares once more

The same from a terminal: `oncluster drift`.
"""


def drift_dag() -> DAG:
    """The DAG; reading it needs no connection."""
    return operation_dag(DRIFT_DAG, _operation)


def _operation(settings: OperationSettings) -> Operation:
    return Operation(
        DRIFT_DAG,
        "Compares schemas over hosts, Keeper and ledger; repairs after approval",
        _DOC,
        _fill,
        params={
            "repair": mode_param(
                "Repair",
                Mode.NONE,
                (Mode.NONE, Mode.PLAN, Mode.ACT),
                "none: only compare. plan: show what would set it right. act: show it, ask, then do it.",
            )
        },
        schedule=settings.drift_schedule,
        deadline_s=settings.deadline_s,
    )


def _fill(cluster: str) -> BaseOperator:
    check = CheckDriftOperator(task_id="check", cluster=cluster)
    plan, _ = plan_approve_act(
        lambda: PlanDriftRepairOperator(task_id="plan", cluster=cluster),
        lambda plan, approve: ActDriftRepairOperator(
            task_id="act", cluster=cluster, plan_task=plan, approve_task=approve
        ),
        cluster=cluster,
    )
    check >> plan
    return check
