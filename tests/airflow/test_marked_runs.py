"""Runs of a migration DAG that a person marks as failed or as successful while they are under way.

Airflow then skips what is still to come, but the teardowns, and takes skipped tasks for successes.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.dag_run import DagRun

DONE, UNFINISHED = {"state": "done", "note": ""}, {"state": "unfinished", "note": "2 of node01"}
BEGUN = {"run": {}, "manifest": []}
PLANNED = [{"version": 1, "direction": "up", "statement": 1, "checksum": "x"}]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DagRun:
    """`begin` needs no Keeper here: what it leaves is written by the tests."""
    from oncluster_airflow.migration_dag import migration_dag
    from oncluster_airflow.operators import verdict

    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "0001_a.up.sql").write_text("CREATE DATABASE IF NOT EXISTS a;")
    monkeypatch.setattr(
        verdict, "run_of", lambda context: context["ti"].xcom_pull(task_ids="begin", key="run")
    )
    dag = migration_dag(folder)
    return DagRun(dag, dag.params.dump(), run_id="manual__1")


@dataclass(frozen=True)
class TaskInstance:
    task_id: str
    state: str


def is_a_success(run: DagRun, **states: str) -> bool:
    """As Airflow judges a run whose tasks are all over; those that are not named were skipped."""
    from airflow.models.dagrun import DagRun as AirflowRun
    from airflow.utils.state import State

    tis: Any = [TaskInstance(task.task_id, states.get(task.task_id, "skipped")) for task in run.dag.tasks]
    judge: Any = AirflowRun._tis_for_dagrun_state
    return all(one.state in State.success_states for one in judge(None, dag=run.dag, tis=tis))


def verdict_of(run: DagRun) -> str:
    from oncluster_airflow.errors import TaskRefused

    try:
        run.execute("verdict")
    except TaskRefused:
        return "failed"
    return "success"


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        ({("plan", "manifest"): PLANNED, ("begin", "run"): BEGUN, ("close", "summary"): UNFINISHED}, False),
        ({("plan", "manifest"): PLANNED, ("begin", "run"): BEGUN}, False),
        ({("plan", "manifest"): PLANNED, ("begin", "run"): BEGUN, ("close", "summary"): DONE}, True),
        ({("plan", "manifest"): PLANNED}, False),
        ({}, False),
        ({("plan", "manifest"): []}, True),
    ],
    ids=[
        "ended between statements", "ended, and not closed", "all was done", "ended before it began",
        "ended before the plan", "nothing to do",
    ],
)  # fmt: skip
def test_a_run_whose_tasks_were_skipped_is_a_success_only_if_the_ledger_says_so(
    run: DagRun, left: dict[tuple[str, str], Any], expected: bool
) -> None:
    run.xcoms = dict(left)
    states = {"close": "success" if ("close", "summary") in left else "skipped"}
    assert is_a_success(run, **states, verdict=verdict_of(run)) is expected


@pytest.mark.parametrize(
    ("state", "advice"), [("failed", "with `retry_failed`"), ("unfinished", "it attaches to that")]
)
def test_the_verdict_says_what_to_do_next(run: DagRun, state: str, advice: str) -> None:
    """A statement that failed is not attached to: it is sent again only when somebody asks for it."""
    from oncluster_airflow.errors import TaskRefused

    run.xcoms = {("begin", "run"): BEGUN, ("close", "summary"): {"state": state, "note": "1.up on node03"}}
    with pytest.raises(TaskRefused, match=f"The run is {state}: 1.up on node03.*{advice}"):
        run.execute("verdict")


def test_a_rejected_run_is_a_success(run: DagRun) -> None:
    from airflow.sdk.exceptions import DownstreamTasksSkipped

    run.xcoms = {("plan", "manifest"): PLANNED}
    answer = {
        "chosen_options": ["Reject"],
        "params_input": {},
        "responded_at": datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC),
        "responded_by_user": {"id": "1", "name": "grace"},
    }
    with pytest.raises(DownstreamTasksSkipped):
        run.dag.get_task("approve").execute_complete(run.context("approve"), answer)
    assert is_a_success(run, approve="success", verdict=verdict_of(run))


def test_a_plan_that_was_all_that_was_asked_for_is_a_success(run: DagRun) -> None:
    run.xcoms = {("plan", "manifest"): PLANNED}
    run.form["plan_only"] = True
    assert is_a_success(run, plan="success", verdict=verdict_of(run))


def test_a_task_that_failed_fails_the_run_whatever_the_verdict_is(run: DagRun) -> None:
    run.xcoms = {("plan", "manifest"): PLANNED, ("begin", "run"): BEGUN, ("close", "summary"): DONE}
    assert verdict_of(run) == "success"
    assert not is_a_success(run, applied="upstream_failed", close="success", verdict="success")
