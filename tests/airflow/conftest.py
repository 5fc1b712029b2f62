"""Airflow for tests: a home of its own, set before anything imports Airflow, because Airflow reads its
configuration when it is imported."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import (
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
)

from engine.config.model import ZooKeeper
from engine.ddl.entry import DDLLogEntry
from engine.ddl.status import ExecutionStatus
from engine.keeper.embedded import EmbeddedZooKeeper
from engine.names import QueuePaths
from tests.airflow.sinks import HttpSink, SmtpSink, serving

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


@pytest.fixture(scope="session")
def airflow_logs() -> None:
    """For `caplog`: Airflow takes over logging when it is first imported, and with it the handler of a test
    that has begun already."""
    import airflow.settings  # noqa: F401  importing it is what counts


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Define an Airflow connection for the length of a test: `connection("id", conn_type=…, host=…)`."""

    def define(conn_id: str, **fields: object) -> str:
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(fields))
        return conn_id

    return define


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two migrations of `order_cluster`, and an empty ledger."""
    path = tmp_path / "migrations" / "order_cluster"
    path.mkdir(parents=True)
    (path / "0001_create_database.up.sql").write_text("CREATE DATABASE IF NOT EXISTS shop;")
    (path / "0001_create_database.down.sql").write_text("DROP DATABASE IF EXISTS shop;")
    (path / "0002_create_orders.up.sql").write_text(
        "CREATE TABLE IF NOT EXISTS shop.orders (id UInt64) ENGINE = Memory;"
    )
    (path / "0002_create_orders.down.sql").write_text("DROP TABLE IF EXISTS shop.orders;")
    monkeypatch.setenv("ONCLUSTER_MIGRATIONS", str(tmp_path / "migrations"))
    monkeypatch.setenv("ONCLUSTER_LEDGER_URL", f"sqlite:///{tmp_path / 'ledger.db'}")
    return path


@pytest.fixture(autouse=True)
def _no_project_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of a stack that runs on this machine is used by accident."""
    monkeypatch.setenv("ONCLUSTER_HOME", str(tmp_path / "run"))
    monkeypatch.setenv("ONCLUSTER_CONFIG", str(ROOT / "config" / "cluster.xml"))


# --- a real ZooKeeper ---------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    server = EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper"), ends_with_parent=True)
    server.start_blocking()
    yield server
    server.stop_blocking()


@pytest.fixture
def zookeeper(zookeeper_server: EmbeddedZooKeeper, connection: Any) -> ZooKeeper:
    """ZooKeeper, empty, as the Airflow connection `zookeeper_default`."""
    config = zookeeper_server.config
    host, port = config.hosts[0]
    client = KazooClient(f"{host}:{port}")
    client.start()
    for name in client.get_children("/"):
        if name != "zookeeper":
            client.delete(f"/{name}", recursive=True)
    client.stop()
    client.close()
    connection("zookeeper_default", conn_type="zookeeper", host=host, port=port)
    return config


class Hosts:
    """The hosts of a cluster, as the queue sees them: they take every entry and say how it went.

    Independent of the project's worker: it writes what ClickHouse writes. `away` hosts do nothing,
    `failing` ones report an error, `stuck` ones begin and do not end.
    """

    def __init__(self, config: ZooKeeper, paths: QueuePaths) -> None:
        host, port = config.hosts[0]
        self.away: set[str] = set()
        self.failing: dict[str, tuple[int, str]] = {}
        self.stuck: set[str] = set()
        self._client = KazooClient(f"{host}:{port}")
        self._paths = paths
        self._stop = threading.Event()
        self._began: set[tuple[str, str]] = set()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Hosts:
        self._client.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._client.stop()
        self._client.close()

    def entries(self) -> list[str]:
        """The queue's entries, oldest first."""
        return sorted(name for name in self._children(self._paths.root) if name.startswith("query-"))

    def queries(self) -> list[str]:
        """The statements in the queue, oldest first, without the token."""
        return [self._entry(name).query.partition("*/ ")[2] for name in self.entries()]

    def settings(self) -> list[Mapping[str, str]]:
        """What travels with the statements in the queue, oldest first."""
        return [self._entry(name).setting_values for name in self.entries()]

    def listed(self, name: str) -> list[str]:
        """The hosts of an entry."""
        return [host.host for host in self._entry(name).hosts]

    def wait_until(self, *, done: int, running: int = 0) -> None:
        """Until so many hosts have finished the latest entry, and so many are at it: what a timeout shows is
        what there is, however slow this machine may be."""
        name = self.entries()[-1]
        for path, count in ((self._paths.finished(name), done), (self._paths.active(name), running)):
            deadline_s = time.monotonic() + 120
            while len(self._children(path)) < count:
                assert time.monotonic() < deadline_s, path
                time.sleep(0.01)

    def _children(self, path: str) -> list[str]:
        """Those of a node that may not be there yet, as an entry's `finished` before its first host."""
        try:
            return list(self._client.get_children(path))
        except NoNodeError:
            return []

    def _entry(self, name: str) -> DDLLogEntry:
        return DDLLogEntry.from_bytes(self._client.get(self._paths.entry(name))[0], where=name)

    def _work(self) -> None:
        while not self._stop.wait(0.02):
            # Keeper may be away in a test; the next round looks again.
            with contextlib.suppress(NoNodeError, ConnectionLoss, SessionExpiredError, OperationTimeoutError):
                for name in self.entries():
                    for host in self._entry(name).hosts:
                        self._execute(name, host)

    def _execute(self, name: str, host: Any) -> None:
        if host.host in self.away or ((name, host.host) in self._began and host.host in self.stuck):
            return
        finished = self._paths.finished(name, host)
        if self._client.exists(finished):
            return
        if host.host in self.stuck:
            with contextlib.suppress(NodeExistsError):
                self._client.create(self._paths.active(name, host), b"", ephemeral=True, makepath=True)
            self._began.add((name, host.host))
            return
        if (name, host.host) in self._began:
            self._client.delete(self._paths.active(name, host))
        code, message = self.failing.get(host.host, (0, ""))
        self._client.create(finished, ExecutionStatus(code, message).to_bytes(), makepath=True)


@pytest.fixture
def hosts(zookeeper: ZooKeeper) -> Iterator[Hosts]:
    with Hosts(zookeeper, QueuePaths()) as hosts:
        yield hosts


# --- where messages arrive ----------------------------------------------------------------------------------


@pytest.fixture
def http_sink() -> Iterator[HttpSink]:
    with serving(HttpSink()) as sink:
        yield sink


@pytest.fixture
def smtp_sink() -> Iterator[SmtpSink]:
    with serving(SmtpSink()) as sink:
        yield sink
