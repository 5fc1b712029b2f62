"""Rows per second from Spark into two shards, beside what one would write without the data source.

    .venv/bin/python -m benchmarks.spark [million rows ...] [--json FILE]    # default: 1 5
    .venv/bin/python -m benchmarks.spark 1 50 --rounds 1 --only staged       # is a row's cost constant?

Starts two nodes, a local Spark with two cores, and a real ClickHouse server where one is installed.

    staged         the data source as it is used: sharding, staging, commit, check
    direct         the same with delivery=direct: tokens instead of staging
    one endpoint   blocks of as many rows posted as Arrow to one node, unsharded, with no guarantee
    rows, HTTP     foreachPartition, JSON lines of 10,000 rows to one node
    rows, driver   foreachPartition, tuples of 10,000 rows by clickhouse-driver to a real server (Debian's
                   package clickhouse-server; the driver, which `make venv` installs, speaks the native
                   protocol, which nodes do not)

The peers write as many rows as the smallest load, a million at most: their rows cost the same however many
there are. Everything runs in turn, `--rounds` times, into new tables, which are made and dropped while nobody
measures; the fastest counts. Processor time (CPU) is that of Spark's processes and the servers
together: it tells more on a machine that does other work, too. MiB are those of the largest process but Java.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import psutil
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import Row as SparkRow

from benchmarks._table import Better, Report, Row, json_option
from engine.env import SystemEnv
from engine.testing.clickhouse_server import RealCluster, find_server, make_cluster, plan_servers
from engine.testing.cluster_files import clusters_xml
from engine.testing.local_cluster import LocalCluster, blocking_cluster
from spark_apps.clickhouse_cluster import register
from spark_apps.clickhouse_cluster.http import Server

ROWS_AT_ONCE = 10_000
BLOCK_ROWS = 262_144
"""The data source's own."""
MOST_ROWS_OF_PEERS = 1_000_000
TIMES_THE_DRIVER = 5
DRIVER = "rows, driver"
COLUMNS = "a UInt64, b Int64, s String, t String, f Float64, d DateTime('UTC')"
# The server that is installed knows no DateTime in Arrow or JSON other than its own zone's.
COLUMNS_OLD = COLUMNS.replace("DateTime('UTC')", "DateTime")


class Place(enum.Enum):
    """Where a table is made."""

    REPLICATED = "on both nodes, replicated"
    NODES = "on both nodes"
    REAL_SERVER = "on the real server"


@dataclass
class Stand:
    """What is measured against. `real` is a real server, by its HTTP interface and its native port."""

    spark: SparkSession
    servers: list[Server]
    real: tuple[Server, int] | None
    made: int = 0

    @contextlib.contextmanager
    def table(self, place: Place) -> Iterator[str]:
        """A new table there."""
        self.made += 1
        name = f"t{self.made}"
        columns, servers = COLUMNS, self.servers
        if place is Place.REAL_SERVER and self.real is not None:
            columns, servers = COLUMNS_OLD, [self.real[0]]
        for number, server in enumerate(servers, start=1):
            engine = f"ReplicatedMergeTree('/bench/{number}/{name}', 'r')"
            engine = engine if place is Place.REPLICATED else "MergeTree"
            server.execute(f"CREATE TABLE {name} ({columns}) ENGINE = {engine} ORDER BY a")
        yield name
        for server in servers:
            server.execute(f"DROP TABLE {name}")

    def frame(self, rows: int) -> DataFrame:
        return self.spark.range(rows, numPartitions=max(2, rows // 1_000_000)).selectExpr(
            "id AS a", "id * 7 AS b", "concat('user', id % 1000) AS s", "concat('page', id) AS t",
            "id / 3 AS f", "timestamp_seconds(id) AS d",
        )  # fmt: skip


def staged(stand: Stand, name: str, rows: int, *, delivery: str = "staged") -> None:
    shards = ";".join(f"{server.host}:{server.port}" for server in stand.servers)
    writer = stand.frame(rows).write.format("clickhouse_cluster").mode("append")
    writer.options(shards=shards, sharding_key="cityHash64(a)", delivery=delivery).save(name)
    written = sum(int(server.text(f"SELECT count() FROM {name}")) for server in stand.servers)
    assert written == rows, written


def one_endpoint(stand: Stand, name: str, rows: int) -> None:
    server = stand.servers[0]

    def send(batches: Sequence[pa.RecordBatch]) -> None:
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, batches[0].schema) as stream:
            for batch in batches:
                stream.write_batch(batch)
        server.execute(f"INSERT INTO {name} FORMAT ArrowStream", body=out.getvalue().to_pybytes())

    def post(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting: list[pa.RecordBatch] = []
        sent = 0
        for batch in batches:
            waiting.append(batch)
            sent += batch.num_rows
            if sum(one.num_rows for one in waiting) >= BLOCK_ROWS:
                send(waiting)
                waiting = []
        if waiting:
            send(waiting)
        yield pa.record_batch({"n": pa.array([sent], pa.int64())})

    stand.frame(rows).mapInArrow(post, "n long").agg({"n": "sum"}).collect()


def rows_over_http(stand: Stand, name: str, rows: int) -> None:
    server = stand.servers[0]

    def post(partition: Iterable[SparkRow]) -> None:
        for some in _batches(partition):
            lines = [json.dumps({**row.asDict(), "d": int(row.d.timestamp())}) for row in some]
            server.execute(f"INSERT INTO {name} FORMAT JSONEachRow", body="\n".join(lines).encode())

    stand.frame(rows).foreachPartition(post)


def rows_by_driver(stand: Stand, name: str, rows: int) -> None:
    assert stand.real is not None
    port = stand.real[1]

    def post(partition: Iterable[SparkRow]) -> None:
        from clickhouse_driver import Client

        client = Client("127.0.0.1", port)
        for some in _batches(partition):
            client.execute(f"INSERT INTO {name} (a, b, s, t, f, d) VALUES", [tuple(row) for row in some])

    stand.frame(rows).foreachPartition(post)


def _batches(rows: Iterable[SparkRow]) -> Iterator[list[SparkRow]]:
    some: list[SparkRow] = []
    for row in rows:
        some.append(row)
        if len(some) == ROWS_AT_ONCE:
            yield some
            some = []
    if some:
        yield some


@dataclass
class Work:
    """One thing that is measured, and its best figures."""

    name: str
    run: Callable[[Stand, str, int], None]
    place: Place
    rows: int
    took_s: float = float("inf")
    used_s: float = float("inf")
    largest_mib: float = 0.0

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.took_s

    def measure(self, stand: Stand) -> None:
        with stand.table(self.place) as table:
            usage = Usage()
            with usage.watched():
                started_s = time.perf_counter()
                self.run(stand, table, self.rows)
                self.took_s = min(self.took_s, time.perf_counter() - started_s)
        self.used_s = min(self.used_s, usage.processor_time_s)
        self.largest_mib = max(self.largest_mib, usage.largest_mib)


class Usage:
    """What this process, its children and theirs use: Spark, its workers, nodes, servers.

    Looked at once a second, since workers end on the way and nobody counts what they used.
    """

    def __init__(self) -> None:
        self.largest_mib = 0.0
        self._used_s: dict[psutil.Process, tuple[float, float]] = {}

    @property
    def processor_time_s(self) -> float:
        return sum(last_s - first_s for first_s, last_s in self._used_s.values())

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        is_over = threading.Event()
        self._look(is_first=True)

        def look() -> None:
            while not is_over.wait(1.0):
                self._look(is_first=False)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
            self._look(is_first=False)

    def _look(self, *, is_first: bool) -> None:
        for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                now_s = times.user + times.system
                first_s, _ = self._used_s.get(process, (now_s if is_first else 0.0, 0.0))
                self._used_s[process] = (first_s, now_s)
                if process.name() != "java":
                    self.largest_mib = max(self.largest_mib, process.memory_info().rss / 2**20)


@click.command()
@click.argument("millions", type=float, nargs=-1)
@click.option("--rounds", type=click.IntRange(1), default=3, help="How often everything is measured.")
@click.option("--only", multiple=True, help="Such as staged; several times.")
@json_option
def main(millions: tuple[float, ...], rounds: int, only: tuple[str, ...], json_file: Path | None) -> None:
    """Rows per second from Spark into two shards."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    inherited = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).resolve().parents[1]), inherited])
    with tempfile.TemporaryDirectory(prefix="oncluster-bench-") as text:
        directory = Path(text)
        given = directory / "given.xml"
        given.write_text(clusters_xml({"two": [["n1"], ["n2"]]}))
        with (
            blocking_cluster(directory / "run", cluster_file=given, hosts=("n1", "n2")) as (cluster, _),
            real_server(cluster, directory / "real") as real,
        ):
            servers = [Server("127.0.0.1", cluster.node(name).http_port) for name in ("n1", "n2")]
            stand = Stand(session(), servers, real)
            sizes = [int(number * 1_000_000) for number in millions or (1, 5)]
            report = measure(stand, sizes, rounds=rounds, only=only)
            stand.spark.stop()
    report.finish(json_file)


def measure(stand: Stand, sizes: Sequence[int], *, rounds: int, only: Sequence[str]) -> Report:
    few = min(*sizes, MOST_ROWS_OF_PEERS)
    everything = [
        *(Work("staged", staged, Place.REPLICATED, rows) for rows in sizes),
        *(Work("direct", partial(staged, delivery="direct"), Place.REPLICATED, rows) for rows in sizes),
        Work("one endpoint", one_endpoint, Place.NODES, few),
        Work("rows, HTTP", rows_over_http, Place.NODES, few),
        *([Work(DRIVER, rows_by_driver, Place.REAL_SERVER, few)] if stand.real else []),
    ]
    report = Report("spark")
    works = [work for work in everything if not only or work.name in only]
    Work("", staged, Place.REPLICATED, 100_000).measure(
        stand
    )  # Java compiles what it runs often, and Python's workers start
    for turn in range(rounds):
        for one in works:
            sys.stderr.write(f"round {turn + 1} of {rounds}: {one.name} {one.rows:,}\n")
            one.measure(stand)
    driver = next((work for work in works if work.name == DRIVER), None)
    for work in works:
        what = f"{work.name}, {work.rows:,} rows"
        peer = (driver.rows_per_s, DRIVER) if driver is not None and work is not driver else (None, None)
        report.add(Row(what, "rows/s", work.rows_per_s, Better.HIGHER, *peer))
        report.add(Row(what, "CPU µs/row", work.used_s / work.rows * 1e6))
        if work.name in ("staged", "direct"):
            report.add(Row(what, "MiB", work.largest_mib))
        if work.name == "staged":
            met = None if driver is None else work.rows_per_s >= TIMES_THE_DRIVER * driver.rows_per_s
            report.aim(f"{what}: {TIMES_THE_DRIVER} times the driver's rows/s", met=met)
    if not stand.real:
        report.note("no clickhouse-server is installed (Debian: the package clickhouse-server)")
    return report


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
def real_server(cluster: LocalCluster, directory: Path) -> Iterator[tuple[Server, int] | None]:
    """A real server for the driver, by its HTTP interface and its native port, where one is installed."""
    if find_server() is None:
        yield None
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
            yield Server("127.0.0.1", spec.http_port), spec.tcp_port
        finally:
            runner.run(server.stop())


if __name__ == "__main__":
    main()
