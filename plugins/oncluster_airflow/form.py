"""The form of a DAG is the DAG's alone: its tasks have no copies of it. What it does not have is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import DAG, Context, Param

from oncluster_airflow.errors import TaskRefused

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


def refuse_unknown_parameters(context: Context) -> None:
    """Raises TaskRefused for a parameter that the form does not have.

    Airflow takes any when a run is triggered, and a misspelt `target_version` would mean: everything, a
    misspelt `mode` of a load: replace what is there. Names that begin with `_` are other tools'.
    """
    dag: Any = context["dag"]
    dag_run: Any = context["dag_run"]
    given = {str(name) for name in (dag_run.conf or {}) if not str(name).startswith("_")}
    if unknown := sorted(given - set(dag.params)):
        raise TaskRefused(
            f"There is no parameter {', '.join(unknown)}; there are {', '.join(sorted(dag.params))}."
        )
