"""One DAG per folder of migrations; see `oncluster_airflow.migration_dag` (an airflow plugin's package)."""

from __future__ import annotations

from oncluster_airflow.migration_dag import migration_dags

for dag in migration_dags():
    globals()[dag.dag_id] = dag
