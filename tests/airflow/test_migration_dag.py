"""A migration DAG from beginning to end, in one process: real ZooKeeper, a real ledger, hosts that play
along."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def migrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small folder of migrations for order_cluster; nothing in it destroys anything on the way up."""
    folder = tmp_path / "migrations" / "order_cluster"
    folder.mkdir(parents=True)
    (folder / "0001_create_database.up.sql").write_text("CREATE DATABASE IF NOT EXISTS shop;")
    (folder / "0001_create_database.down.sql").write_text("DROP DATABASE IF EXISTS shop;")
    (folder / "0002_create_orders.up.sql").write_text(
        "CREATE TABLE IF NOT EXISTS shop.orders (id UInt64) ENGINE = MergeTree ORDER BY id;\n"
        "ALTER TABLE shop.orders ADD COLUMN IF NOT EXISTS note String;"
    )
    (folder / "0002_create_orders.down.sql").write_text("DROP TABLE IF EXISTS shop.orders;")
    monkeypatch.setenv("ONCLUSTER_MIGRATIONS", str(tmp_path / "migrations"))
    monkeypatch.setenv("ONCLUSTER_LEDGER_URL", f"sqlite:///{tmp_path / 'ledger.db'}")
    return folder


@pytest.fixture
def run_dag(airflow_db: Path, migrations: Path) -> Any:
    """Run the migration DAG as `dag.test()` does: `run_dag(**params)` returns the DAG run."""
    shutil.copy(ROOT / "dags" / "migrate.py", airflow_db / "migrate.py")

    def run(**params: object) -> Any:
        from airflow.dag_processing.dagbag import DagBag

        bag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
        assert bag.import_errors == {}
        return bag.dags["migrate_order_cluster"].test(run_conf={"rehearse": False, **params})

    return run


def states(run: Any) -> dict[str, str]:
    return {ti.task_id: str(ti.state) for ti in run.get_task_instances()}


def test_a_run_sends_every_statement_once_in_order_and_records_every_host(run_dag: Any, hosts: Any) -> None:
    run = run_dag()

    assert run.state == "success"
    assert [query.split("(")[0].strip() for query in hosts.queries()] == [
        "CREATE DATABASE IF NOT EXISTS shop ON CLUSTER order_cluster",
        "CREATE TABLE IF NOT EXISTS shop.orders ON CLUSTER order_cluster",
        "ALTER TABLE shop.orders ON CLUSTER order_cluster ADD COLUMN IF NOT EXISTS note String",
    ]
