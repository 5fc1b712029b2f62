"""Runs of a migration DAG by hand, over the fixture `folder`, and what the ledger says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.env import SystemEnv
from engine.migrations.ledger import Ledger
from tests.airflow.dag_run import DagRun

PATIENT_S = 600.0
"""How long tasks wait themselves: however slow the hosts are here, none is handed to the triggerer but by a
test that wants it."""
FIRST = "up.v0001_create_database"
SECOND = "up.v0002_create_orders"


class Run(DagRun):
    """One run of a folder's DAG, by hand."""

    def __init__(self, folder: Path, run_id: str = "manual__1", **params: object) -> None:
        from oncluster_airflow.migration_dag import migration_dag

        dag = migration_dag(folder)
        for task in dag.tasks:
            if hasattr(task, "grace_s"):
                task.grace_s = PATIENT_S
        super().__init__(dag, dag.params.dump() | params, run_id=run_id)

    def begin(self) -> Run:
        self.execute("plan")
        self.execute("begin")
        return self

    def statement(self, group: str, number: int = 1) -> Any:
        self.execute(f"{group}.submit_{number}")
        return self.execute(f"{group}.wait_{number}")


def ledger(tmp_path: Path) -> Ledger:
    return Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", env=SystemEnv())


def recorded(tmp_path: Path) -> dict[tuple[int, str], set[str]]:
    """(version, state) to the hosts of which the ledger says so."""
    found: dict[tuple[int, str], set[str]] = {}
    for row in ledger(tmp_path).rows("order_cluster"):
        found.setdefault((row.version, str(row.state)), set()).add(row.host.host)
    return found


SIX = {f"node0{n}" for n in range(1, 7)}
