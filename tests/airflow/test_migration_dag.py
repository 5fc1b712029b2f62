"""A migration DAG from end to end under `dag.test()`: tasks and trigger in one process, a real ZooKeeper."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from engine.env import SystemEnv
from engine.migrations.ledger import Ledger
from engine.migrations.states import MigrationState

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def migrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "migrations" / "order_cluster"
    folder.mkdir(parents=True)
    (folder / "0001_create_database.up.sql").write_text("CREATE DATABASE IF NOT EXISTS shop;")
    (folder / "0002_create_orders.up.sql").write_text(
        "CREATE TABLE IF NOT EXISTS shop.orders (id UInt64) ENGINE = MergeTree ORDER BY id;\n"
        "ALTER TABLE shop.orders ADD COLUMN IF NOT EXISTS note String;"
    )
    monkeypatch.setenv("ONCLUSTER_MIGRATIONS", str(tmp_path / "migrations"))
    monkeypatch.setenv("ONCLUSTER_LEDGER_URL", f"sqlite:///{tmp_path / 'ledger.db'}")
    # `dag.test()` of Airflow 3.3 fails at the end of a run that has a deadline; the scheduler does not.
    monkeypatch.setenv("ONCLUSTER_DEADLINE_S", "0")
    return folder


def run_dag(dags_folder: Path, **params: object) -> Any:
    from airflow.dag_processing.dagbag import DagBag

    shutil.copy(ROOT / "dags" / "migrate.py", dags_folder / "migrate.py")
    bag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
    assert bag.import_errors == {}
    return bag.dags["migrate_order_cluster"].test(run_conf={"rehearse": False, **params})


@pytest.mark.extended
def test_a_run_sends_every_statement_once_in_order_and_records_every_host(
    airflow_db: Path, migrations: Path, hosts: Any, tmp_path: Path
) -> None:
    # A host that answers only once the sensor has deferred and its trigger waits.
    hosts.away.add("node03")
    thread = threading.Thread(target=_come_back_when_a_trigger_waits, args=(hosts,), daemon=True)
    thread.start()
    run = run_dag(airflow_db)
    thread.join()

    assert run.state == "success"
    assert [query.split("(")[0].strip() for query in hosts.queries()] == [
        "CREATE DATABASE IF NOT EXISTS shop ON CLUSTER order_cluster",
        "CREATE TABLE IF NOT EXISTS shop.orders ON CLUSTER order_cluster",
        "ALTER TABLE shop.orders ON CLUSTER order_cluster ADD COLUMN IF NOT EXISTS note String",
    ]
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", env=SystemEnv())
    assert {v: r.state for v, r in ledger.records("order_cluster").items()} == {
        1: MigrationState.APPLIED,
        2: MigrationState.APPLIED,
    }
    assert len(ledger.rows("order_cluster")) == 18


def _come_back_when_a_trigger_waits(hosts: Any) -> None:
    tick = threading.Event()
    while not any(thread.name.startswith("oncluster-wait") for thread in threading.enumerate()):
        tick.wait(0.02)
    hosts.away.clear()
