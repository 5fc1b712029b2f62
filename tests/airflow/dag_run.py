"""A DAG run by hand: its form, its XCom, and one task after the other as a worker executes it."""

from __future__ import annotations

import datetime
import json
from types import SimpleNamespace
from typing import Any


class DagRun:
    """`execute` runs one task once. What it leaves passes through JSON, as in Airflow; `skipped` has the ids
    of the tasks that were skipped among those after it. `states` are what Airflow says of tasks."""

    def __init__(self, dag: Any, form: dict[str, Any], *, run_id: str, run_type: str = "manual") -> None:
        self.dag = dag
        self.form = form
        self.conf = form
        self.run_id = run_id
        self.run_type = run_type
        self.xcoms: dict[tuple[str, str], Any] = {}
        self.skipped: set[str] = set()
        self.states: dict[str, str | None] = {}
        self.run_after = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC)

    def context(self, task_id: str) -> Any:
        run = self

        class TaskInstance:
            map_index = -1
            dag_id = run.dag.dag_id
            run_id = run.run_id
            log_url = f"http://airflow/{run.run_id}"
            start_date = None

            def __init__(self) -> None:
                self.task_id = task_id

            def xcom_push(self, *, key: str, value: object) -> None:
                run.xcoms[task_id, key] = json.loads(json.dumps(value))

            def xcom_pull(self, *, task_ids: str, key: str = "return_value") -> Any:
                return run.xcoms.get((task_ids, key))

            @staticmethod
            def get_task_states(*, dag_id: str, task_ids: list[str], run_ids: list[str]) -> dict[str, Any]:
                return {run_id: {one: run.states.get(one) for one in task_ids} for run_id in run_ids}

        ti = TaskInstance()
        return {
            "ti": ti,
            "task_instance": ti,
            "dag": self.dag,
            "task": self.dag.get_task(task_id),
            "params": self.form,
            "dag_run": SimpleNamespace(
                run_id=self.run_id,
                run_type=self.run_type,
                conf=self.conf,
                triggering_user_name="ada",
                start_date=None,
                run_after=self.run_after,
            ),
            "outlet_events": _OutletEvents(),
        }

    def execute(self, task_id: str) -> Any:
        from airflow.sdk.exceptions import DownstreamTasksSkipped

        try:
            result = self.dag.get_task(task_id).execute(self.context(task_id))
        except DownstreamTasksSkipped as skip:
            self.skipped |= {str(task) for task in skip.tasks}
            return None
        self.xcoms[task_id, "return_value"] = json.loads(json.dumps(result))
        return result

    def approve(self, task_id: str = "approve", *, by: str = "grace") -> None:
        """What the approval leaves in XCom once somebody has approved."""
        self.xcoms[task_id, "return_value"] = {
            "chosen_options": ["Approve"],
            "responded_by_user": {"id": "1", "name": by},
        }
        plan_task = self.dag.get_task(task_id).plan_task
        if checksum := self.xcoms.get((plan_task, "approval"), {}).get("checksum"):
            self.xcoms[task_id, "asked"] = checksum


class _OutletEvents(dict[Any, Any]):
    def __missing__(self, key: object) -> Any:
        self[key] = SimpleNamespace(extra=None)
        return self[key]


async def events(trigger: Any) -> list[Any]:
    """What a triggerer would be told."""
    return [event async for event in trigger.run()]
