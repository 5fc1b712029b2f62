"""The load task with a real spark-submit: on this machine, and on a Spark cluster that the connection names.

The application is a stand-in with the command line of the real one; it counts rows in tasks and says where
they ran.
"""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.etl.launch import SparkFailed, SparkSettings, run_load
from engine.etl.request import LoadRequest, parse_day
from tests.spark.standalone import standalone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
APPLICATION = """
import argparse, json, os, pathlib
from pyspark import TaskContext
from pyspark.sql import SparkSession
import engine.etl.report  # the project is importable in the driver

parser = argparse.ArgumentParser()
for name in ("config", "cluster", "from", "to", "mode", "job-id", "report", "source"):
    parser.add_argument("--" + name)
given = vars(parser.parse_args())
marks = pathlib.Path(given["config"]).parent
spark = SparkSession.builder.getOrCreate()


def count(rows):
    import engine.etl.report  # and in the executors
    if TaskContext.get().attemptNumber() == 0 and TaskContext.get().partitionId() == 0:
        raise RuntimeError("the first attempt fails")
    yield sum(1 for _ in rows)


rows = sum(spark.sparkContext.parallelize(range(1000), 2).mapPartitions(count).collect())
facts = {"master": spark.sparkContext.master, "user": os.environ["ONCLUSTER_USER"], "from": given["from"]}
facts["executors"] = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()
facts["timezone"] = spark.conf.get("spark.sql.session.timeZone")
(marks / "facts.json").write_text(json.dumps(facts))
report = {"version": 1, "job_id": given["job_id"], "mode": given["mode"], "from": given["from"],
    "to": given["to"], "repeated": False, "read": rows, "written": rows, "quarantined": 0,
    "tables": [{"table": "d.all", "local": "d.t", "rows": rows, "rows_per_shard": {"1": rows}}]}
pathlib.Path(given["report"]).write_text(json.dumps(report))
spark.stop()
"""


@pytest.fixture
def application(tmp_path: Path) -> Path:
    file = tmp_path / "stand_in.py"
    file.write_text(APPLICATION)
    return file


def facts(tmp_path: Path) -> dict[str, Any]:
    import json

    found: dict[str, Any] = json.loads((tmp_path / "facts.json").read_text())
    return found


def load(application: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Execute the DAG's load task."""
    from oncluster_airflow.operators.etl import LoadOperator

    config = tmp_path / "cluster.xml"
    config.write_text((ROOT / "config" / "cluster.xml").read_text())
    monkeypatch.setenv("ONCLUSTER_CONFIG", str(config))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    operator = LoadOperator(task_id="load", cluster="order_cluster", application=str(application))
    form = {"first_day": "2013-01-01", "last_day": "2013-01-31", "mode": "overwrite", "source": None}
    at = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC)
    run = SimpleNamespace(run_id="manual__1", run_type="manual", run_after=at)
    report: dict[str, Any] = operator.execute({"params": form, "dag_run": run})  # type: ignore[typeddict-item]
    return report


@pytest.fixture
def nodes_connection(connection: Any) -> None:
    connection(
        "clickhouse_default", conn_type="clickhouse", host="127.0.0.1", login="loader", password="secret"
    )


@pytest.mark.extended
@pytest.mark.usefixtures("nodes_connection")
def test_without_a_connection_spark_runs_on_this_machine_and_repeats_failed_tasks(
    application: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = load(application, tmp_path, monkeypatch)

    assert (report["job_id"], report["read"], report["from"]) == (
        "manual__1-20260301T120000",
        1000,
        "2013-01-01",
    )
    assert facts(tmp_path) == {
        "master": "local[*,4]",
        "user": "loader",
        "from": "2013-01-01",
        "executors": 1,
        "timezone": "UTC",
    }


@pytest.fixture
def spark_cluster(tmp_path: Path) -> Iterator[str]:
    """A standalone master and one worker; returns the master's address."""
    with standalone(tmp_path / "spark") as master:
        yield master


@pytest.mark.extended
@pytest.mark.usefixtures("nodes_connection")
def test_the_spark_connection_names_the_master(
    application: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    connection: Any,
    spark_cluster: str,
) -> None:
    host, _, port = spark_cluster.rpartition(":")
    connection("spark_default", conn_type="spark", host=host, port=int(port))
    report = load(application, tmp_path, monkeypatch)

    assert report["read"] == 1000
    found = facts(tmp_path)
    assert found["master"] == spark_cluster
    assert found["executors"] == 2  # the driver's own entry, and the worker's
    assert list((tmp_path / "spark" / "work").glob("app-*/*/stderr"))


async def test_an_application_that_fails_is_an_error_with_its_exit_code(
    application: Path, tmp_path: Path
) -> None:
    """As the command line starts it, which is how the task starts it, too."""
    request = LoadRequest(
        cluster="c", first=parse_day("2013-01-01", what="first"), last=parse_day("2013-01-02", what="last")
    )
    settings = SparkSettings(
        tmp_path / "etl", tmp_path / "cluster.xml", application=application, master="local[2]"
    )
    application.write_text("raise SystemExit('the table is gone')")
    with pytest.raises(SparkFailed, match="exit code 1") as failed:
        await run_load(settings, request)
    assert "the table is gone" in failed.value.hint


async def test_a_master_with_which_spark_does_not_start_is_named_by_the_last_line(tmp_path: Path) -> None:
    day = parse_day("2013-01-01", what="first")
    settings = SparkSettings(tmp_path / "etl", tmp_path / "cluster.xml", master="local[x]")
    with pytest.raises(SparkFailed) as failed:
        await run_load(settings, LoadRequest(cluster="c", first=day, last=day))
    last = failed.value.hint.splitlines()[-1]
    assert last.startswith("Spark did not start with local[x]: Could not parse Master URL")
