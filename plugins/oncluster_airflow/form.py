"""The form of a DAG stays the DAG's: its tasks have no copy."""

from __future__ import annotations

from airflow.sdk import DAG
from airflow.sdk.definitions.param import ParamsDict


def drop_copies_of_the_form(dag: DAG) -> DAG:
    """Airflow gives every task a copy of the DAG's parameters, and checks each against the schema of schemas
    whenever it writes the DAG down: that was most of the time of reading a file of DAGs. What a task finds in
    its context are the DAG's own, with what was given for the run."""
    for task in dag.tasks:
        task.params = ParamsDict()
    return dag
