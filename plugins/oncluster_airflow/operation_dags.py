"""The DAGs of all operations; `dags/operations.py` calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from airflow.sdk import DAG, get_parsing_context

from oncluster_airflow.cleanup_dag import ABANDON_DAG, CLEANUP_DAG, abandon_dag, cleanup_dag
from oncluster_airflow.drift_dag import DRIFT_DAG, drift_dag
from oncluster_airflow.health_dag import HEALTH_DAG, health_dag
from oncluster_airflow.keeper_backup_dag import BACKUP_DAG, RESTORE_DAG, backup_dag, restore_dag

MAKERS: dict[str, Callable[[], DAG]] = {
    HEALTH_DAG: health_dag,
    CLEANUP_DAG: cleanup_dag,
    ABANDON_DAG: abandon_dag,
    DRIFT_DAG: drift_dag,
    BACKUP_DAG: backup_dag,
    RESTORE_DAG: restore_dag,
}


def operation_dags() -> Iterator[DAG]:
    """Each DAG; when Airflow reads the file to run one task, only that task's."""
    wanted = get_parsing_context().dag_id
    for dag_id, make in MAKERS.items():
        if wanted in (None, dag_id):
            yield make()
