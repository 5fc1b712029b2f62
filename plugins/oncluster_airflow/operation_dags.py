"""The DAGs of all operations; `dags/operations.py` calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from airflow.sdk import DAG, get_parsing_context

from oncluster_airflow.cleanup_dag import ABANDON_DAG, CLEANUP_DAG, abandon, cleanup
from oncluster_airflow.drift_dag import DRIFT_DAG, drift
from oncluster_airflow.health_dag import HEALTH_DAG, health
from oncluster_airflow.keeper_backup_dag import BACKUP_DAG, RESTORE_DAG, backup, restore
from oncluster_airflow.operation_dag import Operation, operation_dag
from oncluster_airflow.settings import OperationSettings

OPERATIONS: dict[str, Callable[[OperationSettings], Operation]] = {
    HEALTH_DAG: health,
    CLEANUP_DAG: cleanup,
    ABANDON_DAG: abandon,
    DRIFT_DAG: drift,
    BACKUP_DAG: backup,
    RESTORE_DAG: restore,
}


def operation_dags() -> Iterator[DAG]:
    """Each DAG; when Airflow reads the file to run one task, only that task's. Needs no connection."""
    wanted = get_parsing_context().dag_id
    for dag_id, make in OPERATIONS.items():
        if wanted in (None, dag_id):
            yield operation_dag(dag_id, make)
