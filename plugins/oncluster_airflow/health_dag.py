"""The DAG that looks after replicas.

    choose → [cluster]  check → plan → approve → act

It runs on a schedule and only looks: findings are recorded and told, figures are kept for trends. Repairs are
made when somebody asks for them in the form, and approves their plan.
"""

from __future__ import annotations

from airflow.sdk import Param

from engine.operations.health import Depth
from oncluster_airflow.operation_dag import Operation, lines_param, repair_param, tasks
from oncluster_airflow.operators.health import CheckHealthOperator
from oncluster_airflow.operators.repair import ActRepairOperator, PlanRepairOperator
from oncluster_airflow.settings import OperationSettings

HEALTH_DAG = "replica_health"

_DOC = """
Looks at every host, replica, queue and disk of a cluster, and at Keeper.

* **check** what is wrong is recorded, and people are told: once, again after some hours, and when it is over.
  It succeeds whatever it finds; when it fails, nobody has looked.
* **plan** which repairs fit, one replica of a shard at a time (*Repair*: `plan`, or `act`)
* **approve** waits for an answer before anything is done
* **act** repairs, and proves that all replicas have the same parts afterwards

The same from a terminal: `oncluster health check`, `oncluster health repair`.
"""


def health(settings: OperationSettings) -> Operation:
    return Operation(
        dag_id=HEALTH_DAG,
        title="Checks replicas, queues, disks and Keeper; repairs after approval",
        doc=_DOC,
        fill=tasks(PlanRepairOperator, ActRepairOperator, check=CheckHealthOperator),
        params={
            "repair": repair_param(),
            "depth": Param(
                Depth.TELLS.value,
                type="string",
                enum=[depth.value for depth in Depth],
                title="How closely to look",
                description="reads-data also reads every byte of every replicated table, which takes long.",
                section="More",
            ),
            "limit": Param(
                None,
                type=["null", "integer"],
                minimum=1,
                title="Repairs at most",
                description="What is left is in the next plan. Empty: as the configuration says.",
                section="More",
            ),
            "findings": lines_param(
                "Only these findings",
                "Fingerprints, or how they begin, one a line. None: all.",
                section="More",
            ),
        },
        schedule=settings.health_schedule,
        deadline_s=settings.health_deadline_s,
        retries=1,
    )
