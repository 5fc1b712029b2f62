"""Airflow for tests: a home of its own, set before anything imports Airflow, because Airflow reads its configuration
when it is imported."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

_home = tempfile.TemporaryDirectory(prefix="oncluster-airflow-", ignore_cleanup_errors=True)
for _name in [name for name in os.environ if name.startswith(("AIRFLOW", "ONCLUSTER_"))]:
    del os.environ[_name]
os.environ |= {
    "AIRFLOW_HOME": _home.name,
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
    "AIRFLOW__CORE__DAGS_FOLDER": str(Path(_home.name) / "dags"),
    "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
    "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
    "AIRFLOW__DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
}


@pytest.fixture(scope="session")
def airflow_db() -> Path:
    """Airflow's metadata database; returns the DAGs folder, which `dag.test()` needs its files to be in."""
    from airflow.utils import db

    db.initdb()
    folder = Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Define an Airflow connection for the length of a test: `connection("id", conn_type=…, host=…)`."""
    import json

    def define(conn_id: str, **fields: object) -> str:
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(fields))
        return conn_id

    return define


@pytest.fixture(autouse=True)
def _no_project_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nothing of a stack that runs on this machine is used by accident."""
    monkeypatch.setenv("ONCLUSTER_HOME", str(tmp_path / "run"))
    yield
