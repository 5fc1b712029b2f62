"""The DAGs of operations; see `oncluster_airflow.operation_dags` (an airflow plugin's package)."""

from __future__ import annotations

from oncluster_airflow.operation_dags import operation_dags

for dag in operation_dags():
    globals()[dag.dag_id] = dag
