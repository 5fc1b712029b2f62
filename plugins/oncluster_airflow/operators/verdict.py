"""Whether a run of a migration DAG counts as a success.

Airflow looks at the last task before the teardowns, `applied`, and takes one that was skipped for a success.
A person who marks a run as failed (or as successful) while it is under way has all tasks skipped that are
still to come, and the ones at work ended: then Airflow would show a run as a success that has done half of
what it was to do. What was done stands in the ledger, so `verdict` says what `close` read there. A teardown,
it runs all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import BaseOperator, Context

from engine.migrations.states import RunState
from oncluster_airflow.errors import TaskRefused
from oncluster_airflow.operators.approval import is_rejected
from oncluster_airflow.operators.begin import APPROVE_TASK, MANIFEST_KEY, PLAN_TASK, run_of
from oncluster_airflow.operators.migration import SUMMARY_KEY

_GOOD = frozenset({RunState.DONE, RunState.PARTIAL})
_GOES_ON = "What was sent goes on; run the DAG again, and it attaches to that."
_ADVICE = {
    RunState.RUNNING: _GOES_ON,
    RunState.UNFINISHED: _GOES_ON,
    RunState.FAILED: "Nothing further is sent. Repair the cause, then run the DAG again with `retry_failed`, "
    "or roll the migration back.",
}


class VerdictOperator(BaseOperator):
    """Fails when the run has not done what it began, or did not begin though it was to. Changes nothing."""

    ui_color = "#fdf3d8"

    def __init__(self, *, close_task: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.close_task = close_task

    def execute(self, context: Context) -> str:
        ti: Any = context["ti"]
        if run_of(context) is None:
            if _was_to_begin(context):
                raise TaskRefused("The run was ended before it began; nothing was sent.")
            return "not begun"
        summary: Mapping[str, Any] | None = ti.xcom_pull(task_ids=self.close_task, key=SUMMARY_KEY)
        if summary is None:
            raise TaskRefused(f"Nobody knows how the run ended: `{self.close_task}` did not say. Clear it.")
        state = RunState(summary["state"])
        if state not in _GOOD:
            note = summary["note"] or "it was ended before all was done"
            raise TaskRefused(f"The run is {state}: {note}. {_ADVICE[state]}")
        return state.value


def _was_to_begin(context: Context) -> bool:
    """There was a plan with something to do, that was wanted, and that nobody has rejected."""
    ti: Any = context["ti"]
    params: Any = context["params"]
    if bool(params.get("plan_only", False)) or is_rejected(context, APPROVE_TASK):
        return False
    planned = ti.xcom_pull(task_ids=PLAN_TASK, key=MANIFEST_KEY)
    return planned is None or bool(planned)
