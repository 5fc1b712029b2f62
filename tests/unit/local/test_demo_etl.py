"""The demo's load with Spark: how a run that fails ends the demo, and what is shown of one that does not."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import cast

import pytest
from rich.console import Console

from engine.env import SystemEnv
from engine.etl.report import LoadReport, TableReport
from engine.local.airflow_api import AirflowApi, TaskInstance
from engine.local.demo_etl import (
    EtlResult,
    LoadRunFailed,
    earlier_runs,
    load_with_spark,
    run_that_follows,
)
from engine.local.demo_result import DemoResult, show_result
from engine.local.progress import StepEvent, Steps
from engine.local.state import StackState

TABLE = TableReport("flights.flights_all", "flights.flights", 3, {1: 1, 2: 2})
REPORT = LoadReport("j", "overwrite", "2013-01-01", "2014-01-31", False, 4, 3, 1, (TABLE,))
REPLICA = {"table": "flights.flights", "shard": 1, "host": "node01", "expected": 1, "rows": 1, "exact": True}
CHECK = {"passed": True, "problems": [], "replicas": [{**REPLICA, "error": ""}]}
RESULT = EtlResult("run1", REPORT, CHECK, "node06", ("origin", "flights"), (("EWR", 120_835), ("JFK", 7)))


class Api:
    """An Airflow whose ETL run ends as told."""

    def __init__(self, states: dict[str, str]) -> None:
        self.states = states

    async def run_ids(self, dag_id: str) -> list[str]:
        return ["of the demo before", "asset_triggered__1"]

    async def wait(self, dag_id: str, run_id: str, **_: object) -> str:
        return "failed" if "failed" in self.states.values() else "success"

    async def task_instances(self, dag_id: str, run_id: str) -> list[TaskInstance]:
        return [TaskInstance(task, -1, state, 2, None, None, None) for task, state in self.states.items()]

    async def task_log(self, dag_id: str, run_id: str, task_id: str, *, try_number: int) -> str:
        return f"{task_id} said no in {run_id}, try {try_number}"


@pytest.mark.parametrize(
    ("states", "hint"),
    [
        (
            {"targets": "success", "load": "failed", "check": "upstream_failed"},
            "load said no in asset_triggered__1, try 2",
        ),
        ({"targets": "skipped", "load": "skipped", "check": "skipped"}, ""),
    ],
)
async def test_a_run_that_did_not_load_ends_the_demo_with_its_last_words(
    states: dict[str, str], hint: str
) -> None:
    api = cast(AirflowApi, Api(states))
    with pytest.raises(LoadRunFailed, match="asset_triggered__1") as failed:
        run = run_that_follows(api, await earlier_runs(api) - {"asset_triggered__1"}, env=SystemEnv())
        await load_with_spark(api, cast(StackState, None), Steps(Silent()), run=run)
    assert hint in failed.value.hint


class Silent:
    def show(self, event: StepEvent) -> None:
        pass


def test_rows_of_each_replica_and_the_answer_are_shown() -> None:
    recorder = Console(width=160, record=True, file=io.StringIO())
    show_result(DemoResult(clusters=(), schemas={}, answered=(), seconds=0.0, etl=RESULT), recorder)
    text = recorder.export_text()

    assert "node01" in text and "✓" in text and "WRONG" not in text
    assert "EWR" in text and "120,835" in text and "Asked of node06" in text


def test_a_replica_with_other_rows_is_shown_as_wrong_and_the_demo_has_not_succeeded() -> None:
    wrong = {**CHECK, "passed": False, "replicas": [{**REPLICA, "rows": 2, "error": ""}]}
    result = DemoResult((), {}, (), 0.0, etl=replace(RESULT, check=wrong))
    recorder = Console(width=160, record=True, file=io.StringIO())
    show_result(result, recorder)

    assert "WRONG" in recorder.export_text()
    assert not result.succeeded


def test_the_document_has_the_report_and_the_answer_by_name() -> None:
    document = DemoResult((), {}, (), 0.0, etl=RESULT).as_json()["etl"]

    assert document["report"]["quarantined"] == 1
    assert document["answer"]["rows"][0] == {"origin": "EWR", "flights": 120_835}
