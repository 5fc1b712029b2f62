"""The ETL DAG: reading it, its form, and what its tasks do where there is nothing to load into."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = "order_cluster"
FORM = {"first_day": "2013-01-01", "last_day": "2013-01-31", "mode": "overwrite", "source": None}


class Node(BaseHTTPRequestHandler):
    """Answers every query with the number that `answers` has for a word in it."""

    answers: dict[str, int]

    def do_POST(self) -> None:
        sql = self.rfile.read(int(self.headers["Content-Length"])).decode()
        sql = parse_qs(urlparse(self.path).query).get("query", [""])[0] + sql
        number = next((rows for word, rows in self.answers.items() if word in sql), 0)
        answer = {"meta": [{"name": "n", "type": "UInt64"}], "data": [[number]]}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("X-ClickHouse-Server-Display-Name", "stand-in")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def nodes(connection: Any) -> Iterator[dict[str, int]]:
    """All hosts of the cluster as one server, and the Airflow connection to it; returns its answers."""
    from engine.config.load import load_topology

    answers: dict[str, int] = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Answering", (Node,), {"answers": answers}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    hosts = [r.host for r in load_topology(ROOT / "config" / "cluster.xml").clusters[CLUSTER].replicas]
    connection(
        "clickhouse_default",
        conn_type="clickhouse",
        host="127.0.0.1",
        port=server.server_port,
        login="loader",
        password="secret",
        extra={"nodes": dict.fromkeys(hosts, url)},
    )
    yield answers
    server.shutdown()
    thread.join()
    server.server_close()


class Ti:
    """XCom of one task."""

    def __init__(self, value: object = None) -> None:
        self.value = value
        self.pushed: dict[str, Any] = {}

    def xcom_pull(self, **_: object) -> object:
        return self.value

    def xcom_push(self, key: str, value: object) -> None:
        self.pushed[key] = value


TRIGGERED = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC)


def context(run_type: str = "manual", *, ti: Ti | None = None, **form: object) -> Any:
    run = SimpleNamespace(run_id="manual__1", run_type=run_type, conf=form, run_after=TRIGGERED)
    return {"params": FORM | form, "dag": SimpleNamespace(params=FORM), "dag_run": run, "ti": ti or Ti()}


def targets() -> Any:
    from oncluster_airflow.operators.etl import TargetsOperator

    return TargetsOperator(task_id="targets", cluster=CLUSTER)


def test_the_dag_imports_without_connections_or_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("reading the DAG file opened a connection")

    for name in [name for name in os.environ if name.startswith("AIRFLOW_CONN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(str(ROOT / "dags"))
    assert bag.import_errors == {}
    dag = bag.dags["etl_flights"]
    assert [task.task_id for task in dag.topological_sort()] == ["targets", "load", "check"]


def test_the_dag_runs_on_the_asset_that_the_migration_dag_updates() -> None:
    from oncluster_airflow.etl_dag import etl_dag
    from oncluster_airflow.migration_dag import migration_dag

    emitted = [
        outlet.uri for outlet in migration_dag(ROOT / "migrations" / CLUSTER).get_task("applied").outlets
    ]
    asked: Any = etl_dag().timetable
    wanted = [asset.uri for asset in asked.asset_condition.objects]
    assert wanted == emitted


def test_the_form_gives_the_request() -> None:
    from engine.etl.request import LoadMode
    from oncluster_airflow.operators.etl import request_of

    request = request_of(context(), CLUSTER)
    assert (str(request.first), str(request.last), request.mode) == ("2013-01-01", "2013-01-31", "overwrite")
    assert request.job_id == "manual__1-20260301T120000"
    appended = [
        request_of({**context(mode="append"), "dag_run": SimpleNamespace(run_id=name)}, CLUSTER)
        for name in "ab"
    ]
    assert appended[0] == appended[1] and appended[0].mode is LoadMode.APPEND


def test_a_run_that_was_deleted_and_triggered_with_its_id_again_is_another_load() -> None:
    from oncluster_airflow.operators.etl import request_of

    first, again = context(), context(first_day="2013-01-02")
    again["dag_run"].run_after += datetime.timedelta(minutes=1)
    assert request_of(again, CLUSTER).job_id != request_of(first, CLUSTER).job_id


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"first_day": "soon"}, "first day is no date"),
        ({"last_day": "2012-01-01"}, "before the first"),
        ({"mode": "replace"}, "no mode"),
        ({"source": "/nowhere"}, "no folder"),
        ({"mod": "append"}, "no parameter mod; there are .* mode"),
    ],
)
def test_a_form_that_cannot_be_meant_is_refused_before_spark(form: dict[str, Any], message: str) -> None:
    from oncluster_airflow.errors import TaskRefused

    with pytest.raises(TaskRefused, match=message):
        targets().execute(context(**form))


def test_tables_that_are_missing_skip_the_run_after_a_migration_and_fail_the_one_asked_for(
    nodes: dict[str, int],
) -> None:
    from airflow.sdk.exceptions import AirflowSkipException

    from oncluster_airflow.errors import TaskRefused

    with pytest.raises(AirflowSkipException, match=r"no table flights\.flights_all"):
        targets().execute(context("asset_triggered"))
    with pytest.raises(TaskRefused, match=r"no table flights\.flights_all"):
        targets().execute(context())
    nodes["system.tables"] = 1
    with pytest.raises(AirflowSkipException, match=r"no column flights\.flights_all\.airline"):
        targets().execute(context("asset_triggered"))
    nodes["system.columns"] = 1
    targets().execute(context())


def report(rows: int) -> dict[str, Any]:
    from engine.etl.report import LoadReport, TableReport

    table = TableReport("flights.flights_all", "flights.flights", 2 * rows, {1: rows, 2: rows, 3: 0})
    return LoadReport("j", "overwrite", "", "", False, 2 * rows, 2 * rows, 0, (table,)).to_json()


def test_the_check_fails_loudly_with_every_replica_that_differs(
    nodes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.etl import check
    from oncluster_airflow.errors import TaskRefused
    from oncluster_airflow.operators import etl

    async def at_once(*arguments: Any, env: Any) -> Any:
        return await check.check_load(*arguments, env=env, patience_s=0)

    monkeypatch.setattr(etl, "check_load", at_once)
    nodes |= {"`flights_all`": 8, "`flights`.`flights`": 3}
    operator = etl.CheckOperator(task_id="check", cluster=CLUSTER)
    ti = Ti(report(4))
    with pytest.raises(TaskRefused) as failed:
        operator.execute(context(ti=ti))

    assert "flights.flights shard 1, node01: 3 rows, 4 expected" in str(failed.value)
    assert not ti.pushed["check"]["passed"]
    assert {row["rows"] for row in ti.pushed["check"]["replicas"]} == {3, 8}


def test_a_load_that_left_no_report_is_refused() -> None:
    from oncluster_airflow.errors import TaskRefused
    from oncluster_airflow.operators.etl import CheckOperator

    with pytest.raises(TaskRefused, match="cannot be read"):
        CheckOperator(task_id="check", cluster=CLUSTER).execute(context(ti=Ti(None)))


def test_the_tasks_ask_each_replica_where_the_connection_says_it_is(nodes: dict[str, int]) -> None:
    from oncluster_airflow.hooks.nodes import ClickHouseNodesHook
    from oncluster_airflow.operators.etl import cluster_of, counts_of

    nodes["SELECT"] = 7

    async def ask() -> int:
        async with counts_of(cluster_of(CLUSTER), ClickHouseNodesHook().addresses()) as counts:
            return await counts.count("node02", "SELECT 7")

    assert asyncio.run(ask()) == 7
