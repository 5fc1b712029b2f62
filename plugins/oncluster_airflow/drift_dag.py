"""The DAG that compares schemas.

choose → [cluster]  check → plan → approve → act
"""

from __future__ import annotations

from oncluster_airflow.operation_dag import Operation, repair_param, tasks
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


def drift(settings: OperationSettings) -> Operation:
    return Operation(
        dag_id=DRIFT_DAG,
        title="Compares schemas over hosts, Keeper and ledger; repairs after approval",
        doc=_DOC,
        fill=tasks(PlanDriftRepairOperator, ActDriftRepairOperator, check=CheckDriftOperator),
        params={"repair": repair_param()},
        schedule=settings.drift_schedule,
        deadline_s=settings.deadline_s,
    )
