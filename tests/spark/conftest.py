"""A Spark session, engine nodes, and real servers where they are installed: one of each for all tests."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrameWriter, SparkSession

from engine.config.model import Cluster
from engine.env import SystemEnv
from engine.etl.spark_home import home_without_zip
from engine.names import HostId, TableName
from engine.testing.clickhouse_server import RealCluster, find_server, make_cluster, plan_servers
from engine.testing.cluster_files import clusters_xml
from engine.testing.local_cluster import Call, LocalCluster, blocking_cluster
from spark_apps.clickhouse_cluster import register, staging
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.split import close_chdb
from tests.quick_java import QUICK_SPARK
from tests.spark.classes import make_archive
from tests.warm import warm

ROOT = Path(__file__).resolve().parents[2]


NUMBERS = itertools.count(1)
"""Of the tables of all tests."""

WEIGHTED = """
<weighted>
  <shard><weight>1</weight><replica>
    <host>n1</host><port>9000</port><default_database>d</default_database>
  </replica></shard>
  <shard><weight>2</weight><replica>
    <host>n3</host><port>9000</port><default_database>d</default_database>
  </replica></shard>
</weighted>
"""
"""A cluster whose second shard gets twice the rows, and whose addresses say a database."""

STARTED: list[Server] = []
"""Those of all tests."""

MADE: list[tuple[Server, str]] = []
"""Statements that drop the tables which are there."""


def staging_of(server: Server) -> list[str]:
    return [name for name in staging.tables(server, "%") if name.startswith(("s_", "c_"))]


def with_http_ports(cluster: Cluster, ports: Mapping[HostId, int]) -> str:
    """A cluster file that also says where HTTP is, which servers do not."""
    shards = [
        f"<shard><weight>{shard.weight}</weight>"
        + "".join(
            f"<replica><host>{one.host}</host><port>{one.port}</port>"
            f"<http_port>{ports[one.host_id]}</http_port></replica>"
            for one in shard.replicas
        )
        + "</shard>"
        for shard in cluster.shards
    ]
    name = cluster.name
    return f"<yandex><remote_servers><{name}>{''.join(shards)}</{name}></remote_servers></yandex>"


@dataclass
class Servers:
    """Two shards. `shards` are the replicas of each; `kind` is nodes or real. `cluster_file` says where the
    HTTP interfaces of the cluster `weighted` are."""

    kind: str
    shards: list[list[Server]]
    cluster_file: str = ""

    @property
    def all(self) -> list[Server]:
        return [server for shard in self.shards for server in shard]

    @property
    def one_each(self) -> Servers:
        """One replica of each shard, as tables that are not replicated are written."""
        return replace(self, shards=[shard[:1] for shard in self.shards])

    @property
    def option(self) -> str:
        return ";".join(",".join(f"{one.host}:{one.port}" for one in shard) for shard in self.shards)

    def everywhere(self, sql: str) -> list[str]:
        return [server.text(sql) for server in self.all]

    def table(
        self,
        columns: str,
        *,
        rest: str = "ORDER BY tuple()",
        replicated: bool = True,
        settings: Mapping[str, str] | None = None,
    ) -> str:
        """A local table on every replica."""
        name = f"d.{self.kind}_{next(NUMBERS)}"
        for number, shard in enumerate(self.shards, start=1):
            for replica, server in enumerate(shard, start=1):
                path = f"'/{self.kind}/{number}/{name}', 'r{replica}'"
                engine = f"ReplicatedMergeTree({path})" if replicated else "MergeTree"
                server.execute(f"CREATE TABLE {name} ({columns}) ENGINE = {engine} {rest}", settings=settings)
                MADE.append((server, f"DROP TABLE IF EXISTS {name}{' SYNC' if self.kind == 'nodes' else ''}"))
        return name

    def counts(self, table: str) -> list[int]:
        """Rows of each shard, on its first replica."""
        return [int(shard[0].text(f"SELECT count() FROM {table}")) for shard in self.shards]

    def ask(self, sql: str) -> list[str]:
        """The lines of all shards' answers, sorted."""
        return sorted(line for shard in self.shards for line in shard[0].text(sql).splitlines())

    def staging(self) -> list[str]:
        """Staging tables that are left."""
        return sorted(name for server in self.all for name in staging_of(server))

    def writer(self, frame: object, *, key: str = "cityHash64(a)", **options: str) -> DataFrameWriter:
        writer = frame.write.format("clickhouse_cluster").mode("append")  # type: ignore[attr-defined]
        return writer.options(shards=self.option, sharding_key=key, **options)


@pytest.fixture(scope="module", autouse=True)
def chdb_of_its_own() -> Iterator[None]:
    """What runs after these tests in the same process opens chDB on a directory."""
    yield
    close_chdb()


@pytest.fixture(autouse=True)
def staging_is_left_to_no_other_test() -> Iterator[None]:
    """What a test leaves fails that test, and no later one finds it."""
    yield
    left = [(server, name) for server in STARTED for name in staging_of(server)]
    for server, name in left:
        staging.drop(server, TableName(staging.DATABASE, name))
    assert left == []


@pytest.fixture(autouse=True)
def tables_go_with_their_test() -> Iterator[None]:
    """Each takes a little of every node's time, and of every answer about all tables."""
    before = len(MADE)
    yield
    for server, drop in MADE[before:]:
        server.execute(drop)
    del MADE[before:]
    for server in STARTED:
        for name in staging.tables(server, "jobs_%"):
            server.execute(f"DROP TABLE {TableName(staging.DATABASE, name).quoted} SYNC")


@pytest.fixture(scope="session", autouse=True)
def classes_are_archived() -> None:
    """For all Javas with Spark. Those that other workers start before it is there do without."""
    make_archive()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    builder = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.extraJavaOptions", QUICK_SPARK)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(home_without_zip(tmp_path_factory.mktemp("spark_home"))))
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    register(session)
    yield session
    gateway = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # which is how the JVM is told to end
    gateway.proc.wait()


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, Call[Any]]]:
    directory = tmp_path_factory.mktemp("spark")
    clusters = clusters_xml({"two": [["n1", "n2"], ["n3"]]})
    end = "</remote_servers>"
    (directory / "given.xml").write_text(clusters.replace(end, WEIGHTED + end))
    with blocking_cluster(
        directory / "run", cluster_file=directory / "given.xml", hosts=("n1", "n2", "n3"), launch=warm
    ) as run_and_call:
        yield run_and_call


@pytest.fixture(scope="session")
def local(running: tuple[LocalCluster, Call[Any]]) -> LocalCluster:
    return running[0]


@pytest.fixture(scope="session")
def nodes(local: LocalCluster) -> Servers:
    n1, n2, n3 = (Server("127.0.0.1", local.node(name).http_port) for name in ("n1", "n2", "n3"))
    STARTED.extend((n1, n2, n3))
    for server in (n1, n2, n3):
        server.execute("CREATE DATABASE IF NOT EXISTS d")
    return Servers("nodes", [[n1, n2], [n3]], cluster_file=str(local.config_file))


@pytest.fixture(scope="session")
def real(local: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    if find_server() is None:
        pytest.skip("no clickhouse-server is installed (Debian: the package clickhouse-server)")
    env = SystemEnv()
    specs = plan_servers(2, env=env)
    cluster = make_cluster("two", [[spec.host_id] for spec in specs])
    first, second = cluster.shards
    weighted = Cluster("weighted", (first, replace(second, weight=2)))
    behind = make_cluster("second", [[specs[1].host_id]])
    # A server ends with the thread that started it: the loop lives as long as the tests.
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    run = RealCluster(
        specs,
        clusters=[cluster, weighted, behind],
        zookeeper=local.zookeeper_config,
        directory=tmp_path_factory.mktemp("real"),
        env=env,
    )
    asyncio.run_coroutine_threadsafe(run.start(), loop).result()
    servers = [Server("127.0.0.1", spec.http_port) for spec in specs]
    STARTED.extend(servers)
    for server in servers:
        server.execute("CREATE DATABASE IF NOT EXISTS d")
    file = tmp_path_factory.mktemp("real_clusters") / "clusters.xml"
    file.write_text(with_http_ports(weighted, {spec.host_id: spec.http_port for spec in specs}))
    yield Servers("real", [[server] for server in servers], cluster_file=str(file))
    asyncio.run_coroutine_threadsafe(run.stop(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


@pytest.fixture(scope="session", params=["nodes", pytest.param("real", marks=pytest.mark.extended)])
def servers(request: pytest.FixtureRequest) -> Servers:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]
