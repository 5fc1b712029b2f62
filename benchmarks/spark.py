"""Rows per second from Spark into two shards, beside what one would write without the data source.

    .venv/bin/python -m benchmarks.spark [million rows ...]        # default: 1 5

Starts two nodes, a local Spark with two cores, and a real ClickHouse server where one is installed.

    staged         the data source as it is used: sharding, staging, commit, check
    direct         the same with delivery=direct: tokens instead of staging
    one endpoint   the same Arrow batches posted to one node, unsharded, with no guarantee
    rows, HTTP     foreachPartition, JSON lines of 10,000 rows to one node
    rows, driver   foreachPartition, tuples of 10,000 rows by clickhouse-driver to a real server (where both
                   are installed; the driver speaks the native protocol, which nodes do not)

Row by row is measured with 200,000 rows. Everything runs in turn, `ROUNDS` times, into new tables; the
fastest counts. Seconds are also given of processors, of Spark's processes and the servers together: they tell
more on a machine that does other work, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession

from engine.env import SystemEnv
from engine.testing.clickhouse_server import RealCluster, find_server, make_cluster, plan_servers
from engine.testing.cluster_files import clusters_xml
from engine.testing.local_cluster import LocalCluster, blocking_cluster
from spark_apps.clickhouse_cluster import register
from spark_apps.clickhouse_cluster.http import Server

ROUNDS = 3
ROWS_ONE_BY_ONE = 200_000
ROWS_AT_ONCE = 10_000
COLUMNS = "a UInt64, b Int64, s String, t String, f Float64, d DateTime('UTC')"
# The server that is installed knows no DateTime in Arrow or JSON other than its own zone's.
COLUMNS_OLD = COLUMNS.replace("DateTime('UTC')", "DateTime")


@dataclass
class Stand:
    """What is measured against. `native_port` is a real server's; 0: there is none."""

    spark: SparkSession
    servers: list[Server]
    native_port: int
    made: int = 0

    def table(self, *, replicated: bool) -> str:
        """A new table on both nodes."""
        self.made += 1
        name = f"t{self.made}"
        for number, server in enumerate(self.servers, start=1):
            engine = f"ReplicatedMergeTree('/bench/{number}/{name}', 'r')" if replicated else "MergeTree"
            server.execute(f"CREATE TABLE {name} ({COLUMNS}) ENGINE = {engine} ORDER BY a")
        return name

    def drop(self, name: str) -> None:
        for server in self.servers:
            server.execute(f"DROP TABLE IF EXISTS {name}")

    def frame(self, rows: int) -> DataFrame:
        return self.spark.range(rows, numPartitions=max(2, rows // 1_000_000)).selectExpr(
            "id AS a", "id * 7 AS b", "concat('user', id % 1000) AS s", "concat('page', id) AS t",
            "id / 3 AS f", "timestamp_seconds(id) AS d",
        )  # fmt: skip

    def processor_time_s(self) -> float:
        """Of this process, its children and theirs: Spark, its workers, nodes, servers."""
        used_s = 0.0
        for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                used_s += times.user + times.system + times.children_user + times.children_system
        return used_s


def staged(stand: Stand, rows: int, *, delivery: str = "staged") -> None:
    name = stand.table(replicated=True)
    shards = ";".join(f"{server.host}:{server.port}" for server in stand.servers)
    writer = stand.frame(rows).write.format("clickhouse_cluster").mode("append")
    writer.options(shards=shards, sharding_key="cityHash64(a)", delivery=delivery).save(name)
    written = sum(int(server.text(f"SELECT count() FROM {name}")) for server in stand.servers)
    assert written == rows, written
    stand.drop(name)


def one_endpoint(stand: Stand, rows: int) -> None:
    name, server = stand.table(replicated=False), stand.servers[0]

    def post(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            out = pa.BufferOutputStream()
            with pa.ipc.new_stream(out, batch.schema) as stream:
                stream.write_batch(batch)
            server.execute(f"INSERT INTO {name} FORMAT ArrowStream", body=out.getvalue().to_pybytes())
            yield pa.record_batch({"n": pa.array([batch.num_rows], pa.int64())})

    stand.frame(rows).mapInArrow(post, "n long").agg({"n": "sum"}).collect()
    stand.drop(name)


def rows_over_http(stand: Stand, rows: int) -> None:
    name, server = stand.table(replicated=False), stand.servers[0]

    def post(partition: Iterable[Row]) -> None:
        for some in _batches(partition):
            lines = [json.dumps({**row.asDict(), "d": int(row.d.timestamp())}) for row in some]
            server.execute(f"INSERT INTO {name} FORMAT JSONEachRow", body="\n".join(lines).encode())

    stand.frame(rows).foreachPartition(post)
    stand.drop(name)


def rows_by_driver(stand: Stand, rows: int) -> None:
    port = stand.native_port

    def post(partition: Iterable[Row]) -> None:
        from clickhouse_driver import Client

        client = Client("127.0.0.1", port)
        for some in _batches(partition):
            client.execute("INSERT INTO by_driver (a, b, s, t, f, d) VALUES", [tuple(row) for row in some])

    stand.frame(rows).foreachPartition(post)


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    some: list[Row] = []
    for row in rows:
        some.append(row)
        if len(some) == ROWS_AT_ONCE:
            yield some
            some = []
    if some:
        yield some


def main(millions: list[float]) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    inherited = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).resolve().parents[1]), inherited])
    with tempfile.TemporaryDirectory(prefix="oncluster-bench-") as text:
        directory = Path(text)
        given = directory / "given.xml"
        given.write_text(clusters_xml({"two": [["n1"], ["n2"]]}))
        with (
            blocking_cluster(directory / "run", cluster_file=given, hosts=("n1", "n2")) as (cluster, _),
            real_server(cluster, directory / "real") as native_port,
        ):
            servers = [Server("127.0.0.1", cluster.node(name).http_port) for name in ("n1", "n2")]
            stand = Stand(session(), servers, native_port)
            measure(stand, [int(number * 1_000_000) for number in millions])
            stand.spark.stop()


def measure(stand: Stand, sizes: list[int]) -> None:
    work: list[tuple[str, Callable[[], None], int]] = []
    for rows in sizes:
        work.append(("staged", lambda rows=rows: staged(stand, rows), rows))  # type: ignore[misc]
        work.append(("direct", lambda rows=rows: staged(stand, rows, delivery="direct"), rows))  # type: ignore[misc]
    least = min(sizes)
    work.append(("one endpoint", lambda: one_endpoint(stand, least), least))
    work.append(("rows, HTTP", lambda: rows_over_http(stand, ROWS_ONE_BY_ONE), ROWS_ONE_BY_ONE))
    if stand.native_port:
        work.append(("rows, driver", lambda: rows_by_driver(stand, ROWS_ONE_BY_ONE), ROWS_ONE_BY_ONE))
    staged(stand, 100_000)  # Java compiles what it runs often, and Python's workers start
    best = [(float("inf"), float("inf")) for _ in work]
    for turn in range(ROUNDS):
        for at, (name, run, rows) in enumerate(work):
            sys.stderr.write(f"round {turn + 1} of {ROUNDS}: {name} {rows:,}\n")
            started_s, used_s = time.perf_counter(), stand.processor_time_s()
            run()
            took = time.perf_counter() - started_s, stand.processor_time_s() - used_s
            best[at] = (min(best[at][0], took[0]), min(best[at][1], took[1]))
    print(f"{'':14} {'rows':>11} {'s':>7} {'rows/s':>10} {'processor s':>12} {'µs/row of processor':>20}")
    for (name, _, rows), (took_s, used_s) in zip(work, best, strict=True):
        per_row = used_s / rows * 1e6
        print(f"{name:14} {rows:11,} {took_s:7.2f} {rows / took_s:10,.0f} {used_s:12.2f} {per_row:20.2f}")


def session() -> SparkSession:
    builder = SparkSession.builder.master("local[2,4]").config("spark.driver.memory", "1g")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    return spark


@contextlib.contextmanager
def real_server(cluster: LocalCluster, directory: Path) -> Iterator[int]:
    """A real server with an empty table for the driver; gives its native port, 0 when it cannot be had."""
    if find_server() is None or importlib.util.find_spec("clickhouse_driver") is None:
        yield 0
        return
    env = SystemEnv()
    (spec,) = plan_servers(1, env=env)
    server = RealCluster(
        [spec],
        clusters=[make_cluster("one", [[spec.host_id]])],
        zookeeper=cluster.zookeeper_config,
        directory=directory,
        env=env,
    )
    with asyncio.Runner() as runner:
        runner.run(server.start())
        try:
            Server("127.0.0.1", spec.http_port).execute(
                f"CREATE TABLE by_driver ({COLUMNS_OLD}) ENGINE = MergeTree ORDER BY a"
            )
            yield spec.tcp_port
        finally:
            runner.run(server.stop())


if __name__ == "__main__":
    main([float(number) for number in sys.argv[1:]] or [1, 5])
