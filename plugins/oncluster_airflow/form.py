"""The form of a DAG is the DAG's alone: its tasks have no copies of it."""

from __future__ import annotations

from collections.abc import Mapping

from airflow.sdk import DAG, Param

_LARGEST = 2**63 - 1


def with_form(dag: DAG, form: Mapping[str, Param]) -> DAG:
    """Give a DAG that has its tasks the parameters that people fill in.

    A task that is made when they are there gets a copy of them, and Airflow checks each copy against the
    schema of schemas when it writes the DAG down: that was most of the time of reading a file of DAGs. What a
    task finds in its context are the DAG's own, with what was given for the run.

    Numbers get bounds where they have none, so that Airflow refuses at once what it cannot carry: an integer
    of more than 64 bits ends each task without a word, and the DAG processor when it is to call a callback.
    """
    for param in form.values():
        if any(kind in param.schema.get("type", ()) for kind in ("integer", "number")):
            param.schema = {"minimum": -_LARGEST, "maximum": _LARGEST, **param.schema}
    dag.params = dict(form)  # type: ignore[assignment]  # converted by the attribute
    return dag
