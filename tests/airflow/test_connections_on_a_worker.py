"""Connections as a worker gets them: from the API server, by way of Airflow's supervisor."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.airflow.conftest import ROOT
from tests.airflow.sinks import serving
from tests.airflow.worker import ExecutionApi

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TASKS = (
    "nobody",
    "nobody_async",
    "unreadable",
    "trouble",
    "trouble_async",
    "silent",
    "vault",
    "nodes",
    "spark",
    "wait",
)
DAG = f"""
import asyncio
from airflow.sdk import DAG, BaseOperator
from engine.errors import OnclusterError
from engine.migrations.files import Direction
from engine.migrations.lock import Binding
from engine.migrations.model import Run, RunRequest, StatementRef
from oncluster_airflow.errors import as_airflow_error
from oncluster_airflow.hooks.keeper import KeeperHook
from oncluster_airflow.operation_site import named_nodes
from oncluster_airflow.operators.etl import LoadOperator
from oncluster_airflow.triggers.migration import MigrationStatementTrigger
from tests.airflow.dag_run import events


class Ask(BaseOperator):
    def execute(self, context):
        try:
            match self.task_id.split("_"):
                case [name, "async"]:
                    asyncio.run(KeeperHook(name).aconfig())
                case ["nodes"]:
                    asyncio.run(named_nodes("trouble", set()))
                case ["spark"]:
                    LoadOperator(task_id="load", cluster="c", conn_id="trouble")._find_master()
                case ["wait"]:
                    run = Run(RunRequest("r1", binding=Binding.TTL), "order_cluster", ())
                    ref = StatementRef(1, Direction.UP, 1)
                    trigger = MigrationStatementTrigger(
                        keeper_conn_id="trouble",
                        cluster="order_cluster",
                        run=run.to_json(),
                        ref=ref.to_json(),
                        deadline_s=0.0,
                    )
                    (event,) = asyncio.run(events(trigger))
                    return event.payload
                case [name]:
                    KeeperHook(name).config()
        except OnclusterError as error:
            raise as_airflow_error(error) from error


with DAG("d", schedule=None):
    for name in {TASKS}:
        Ask(task_id=name, retries=1)
"""


VAULT = '''
from airflow.sdk.bases.secrets_backend import BaseSecretsBackend


class Vault(BaseSecretsBackend):
    """A secrets backend that is out of reach for one connection, and has no other."""

    def get_connection(self, conn_id, team_name=None):
        if conn_id == "vault":
            raise ConnectionError("connection refused")
'''


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExecutionApi]:
    """Where the tasks have told how they ended."""
    home = tmp_path_factory.mktemp("worker")
    (home / "dags").mkdir()
    (home / "dags" / "d.py").write_text(DAG)
    (home / "vault_out_of_reach.py").write_text(VAULT)
    environment = os.environ | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__WORKERS__EXECUTION_API_RETRIES": "1",
        "AIRFLOW__WORKERS__SECRETS_BACKEND": "vault_out_of_reach.Vault",
        "AIRFLOW_CONN_UNREADABLE": "{",
        "ONCLUSTER_HOME": str(home),
        "ONCLUSTER_CONFIG": str(ROOT / "config" / "cluster.xml"),
        "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}:{home}",
    }
    with serving(ExecutionApi()) as api:
        api.connections = {"trouble": 503, "silent": None}
        url = f"http://127.0.0.1:{api.server_address[1]}/"
        worker = [sys.executable, "-m", "tests.airflow.worker", url, "d.py", *TASKS]
        done = subprocess.run(
            worker, cwd=Path(ROOT), env=environment, capture_output=True, text=True, check=False
        )
        assert len(api.states) == len(TASKS), done.stdout + done.stderr
        yield api


@pytest.mark.parametrize("task_id", ["nobody", "nobody_async", "unreadable"])
def test_a_task_whose_connection_airflow_does_not_have_or_cannot_read_is_not_tried_again(
    api: ExecutionApi, task_id: str
) -> None:
    assert api.state(task_id) == "failed"


@pytest.mark.parametrize("task_id", ["trouble", "trouble_async", "silent", "vault"])
def test_a_task_that_asks_while_nobody_can_answer_is_tried_again(api: ExecutionApi, task_id: str) -> None:
    assert api.state(task_id) == "up_for_retry"


@pytest.mark.parametrize("task_id", ["nodes", "spark"])
def test_nothing_else_is_taken_for_a_connection_that_airflow_cannot_tell_now(
    api: ExecutionApi, task_id: str
) -> None:
    """Not the nodes as the configuration's user, nor this machine in place of a Spark cluster."""
    assert api.state(task_id) == "up_for_retry"


def test_a_wait_that_begins_while_airflow_cannot_tell_its_connection_goes_on_to_its_limit(
    api: ExecutionApi,
) -> None:
    assert api.xcoms["wait"]["state"] == "timeout"
