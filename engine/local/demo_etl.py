"""The demo's load: the ETL DAG runs because the migrations have changed the schema; what it read, what each
replica has now, and an answer over the Distributed table.

Airflow starts the run when the migration DAG updates its asset; where there was nothing left to migrate, as
in a stack that ran the demo before, the demo asks for one. It waits for it, reads what its tasks left, and
asks one node a question whose answer is on all shards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from engine.client import NodeClient
from engine.config.load import load_topology
from engine.env import Env
from engine.errors import OnclusterError, OperationTimeout
from engine.etl.check import HttpCounts
from engine.etl.report import LoadReport
from engine.etl.targets import CLUSTER, TargetsMissing, require_targets
from engine.local.airflow_api import AirflowApi, AirflowRefused, TaskInstance, in_words
from engine.local.progress import Steps
from engine.local.state import StackState

ETL_DAG = "etl_flights"
QUESTION = """
SELECT origin, count() AS flights, round(avg(dep_delay), 1) AS minutes_late, max(distance) AS longest_miles
FROM flights.flights_all GROUP BY origin ORDER BY origin
"""
_STEP = "loading with Spark"
_START_TIMEOUT_S, _RUN_TIMEOUT_S = 180.0, 900.0
_POLL_S = 0.3


class LoadRunFailed(OnclusterError):
    """The run of the ETL DAG failed; the hint has what its failed tasks said last."""


@dataclass(frozen=True, slots=True)
class EtlResult:
    """`check` is the check task's answer; `columns` and `rows` are the question's, from `asked`."""

    run_id: str
    report: LoadReport
    check: dict[str, Any]
    asked: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    @property
    def succeeded(self) -> bool:
        return bool(self.check["passed"])

    def as_json(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "report": self.report.to_json(),
            "check": self.check,
            "answer": {
                "query": " ".join(QUESTION.split()),
                "asked": self.asked,
                "rows": [dict(zip(self.columns, row, strict=True)) for row in self.rows],
            },
        }


async def has_targets(state: StackState) -> bool:
    """Whether the migrations have made the tables that the load writes to."""
    cluster = load_topology(Path(state.config_file)).clusters.get(CLUSTER)
    if cluster is None:
        return False
    async with HttpCounts(state.nodes) as counts:
        try:
            await require_targets(counts, cluster.shards[0].replicas[0].host)
        except TargetsMissing:
            return False
    return True


async def earlier_runs(api: AirflowApi) -> frozenset[str]:
    """The runs there are; none while Airflow has not read the DAG's file yet."""
    try:
        return frozenset(await api.run_ids(ETL_DAG))
    except AirflowRefused as error:
        if error.status != 404:
            raise
        return frozenset()


async def run_that_follows(api: AirflowApi, earlier: Collection[str], *, env: Env) -> str:
    """The first run that is none of the earlier ones. Raises OperationTimeout."""
    deadline_s = env.monotonic_s() + _START_TIMEOUT_S
    while not (new := [run for run in await api.run_ids(ETL_DAG) if run not in earlier]):
        if env.monotonic_s() > deadline_s:
            raise OperationTimeout(f"No run of {ETL_DAG} has followed the migrations.")
        await env.sleep(_POLL_S)
    return new[0]


async def run_that_is_asked_for(api: AirflowApi, *, env: Env) -> str:
    """A run of our own. Raises AirflowRefused."""
    await api.wait_for_dag(ETL_DAG)
    return await api.trigger(ETL_DAG, run_id=f"demo__{env.new_uuid()}")


async def load_with_spark(
    api: AirflowApi, state: StackState, steps: Steps, *, run: Awaitable[str]
) -> EtlResult:
    """Watch `run`. Raises LoadRunFailed, OperationTimeout, and what finding the run raises."""
    steps.running(_STEP, "waiting for the run that follows the migrations")
    run_id = await run

    def on_change(instances: Sequence[TaskInstance]) -> None:
        steps.running(_STEP, in_words(instances))

    outcome = await api.wait(ETL_DAG, run_id, timeout_s=_RUN_TIMEOUT_S, on_change=on_change, interval_s=1.0)
    instances = await api.task_instances(ETL_DAG, run_id)
    if outcome != "success" or any(item.state != "success" for item in instances):
        steps.failed(_STEP, f"the run {run_id} ended as {outcome}")
        raise LoadRunFailed(
            f"Loading failed: the run {run_id} of {ETL_DAG} ended as {outcome}.",
            hint=await _last_words(api, run_id, instances),
        )
    report = LoadReport.from_json(await api.xcom(ETL_DAG, run_id, "load"))
    check = await api.xcom(ETL_DAG, run_id, "check")
    steps.done(
        _STEP,
        f"{report.read:,} rows read, {report.written:,} written, {report.quarantined:,} put aside; "
        f"{len(check['replicas'])} counts checked",
    )
    return await _with_answer(state, run_id, report, check)


async def _with_answer(
    state: StackState, run_id: str, report: LoadReport, check: dict[str, Any]
) -> EtlResult:
    cluster = load_topology(Path(state.config_file)).clusters[CLUSTER]
    host = cluster.shards[-1].replicas[-1].host
    async with NodeClient(state.nodes[host]) as client:
        answer = await client.query_rows(QUESTION)
    columns = tuple(name for name, _ in answer.columns)
    return EtlResult(run_id, report, check, host, columns, answer.rows)


async def _last_words(api: AirflowApi, run_id: str, instances: Sequence[TaskInstance]) -> str:
    """The end of the log of each failed task."""
    failed = [item for item in instances if item.state == "failed"]
    texts = await asyncio.gather(
        *(api.task_log(ETL_DAG, run_id, item.task_id, try_number=item.try_number) for item in failed)
    )
    return "\n".join(
        f"{item.task_id}:\n" + "\n".join(text.splitlines()[-15:])
        for item, text in zip(failed, texts, strict=True)
    )


# --- showing ----------------------------------------------------------------------------------------------


def rows_table(result: EtlResult) -> Table:
    """Rows per table, shard and replica, beside what Spark has counted."""
    table = Table(
        title=f"{ETL_DAG}: rows by shard and replica, and what Spark counted",
        box=SIMPLE_HEAD,
        title_justify="left",
    )
    for column in ("table", "shard", "replica", "Spark", "rows", ""):
        table.add_column(column, justify="right" if column in ("Spark", "rows") else "left")
    for item in result.check["replicas"]:
        is_right = item["rows"] is not None and (
            item["rows"] == item["expected"] if item["exact"] else item["rows"] >= item["expected"]
        )
        table.add_row(
            item["table"],
            str(item["shard"] or "all"),
            item["host"],
            f"{item['expected']:,}",
            f"{item['rows']:,}" if item["rows"] is not None else item["error"],
            "✓" if is_right else "WRONG",
        )
    return table


def answer_table(result: EtlResult) -> Table:
    """The question's answer, which is computed from the rows of all shards."""
    table = Table(
        title=f"Asked of {result.asked}, over flights.flights_all",
        box=SIMPLE_HEAD,
        title_justify="left",
    )
    for column in result.columns:
        table.add_column(column, justify="left" if column == "origin" else "right")
    for row in result.rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int | float) else str(value) for value in row))
    return table
