"""Rows per second from Spark into two shards, beside one server without sharding or staging.

    .venv/bin/python -m benchmarks.spark [rows]

Starts two nodes and a local Spark. `staged` is the data source as it is used: sharding, staging, commit,
check.
`one endpoint` posts the same Arrow batches to one node, unsharded, with no guarantee. Both run three times in
turn; the fastest counts.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from engine.testing.cluster_files import clusters_xml
from engine.testing.local_cluster import blocking_cluster
from spark_apps.clickhouse_cluster import register
from spark_apps.clickhouse_cluster.http import Server

ROUNDS = 3
COLUMNS = "a UInt64, b Int64, s String, t String, f Float64, d DateTime('UTC')"


def main(rows: int) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
    with tempfile.TemporaryDirectory(prefix="oncluster-bench-") as text:
        directory = Path(text)
        (directory / "given.xml").write_text(clusters_xml({"two": [["n1"], ["n2"]]}))
        options = {"cluster_file": directory / "given.xml", "hosts": ("n1", "n2")}
        with blocking_cluster(directory / "run", **options) as (cluster, _):
            servers = [Server("127.0.0.1", cluster.node(name).http_port) for name in ("n1", "n2")]
            for number, server in enumerate(servers, start=1):
                engine = f"ReplicatedMergeTree('/bench/{number}', 'r')"
                server.execute(f"CREATE TABLE sharded ({COLUMNS}) ENGINE = {engine} ORDER BY a")
                server.execute(f"CREATE TABLE alone ({COLUMNS}) ENGINE = MergeTree ORDER BY a")
            measure(session(), servers, rows)


def session() -> SparkSession:
    builder = SparkSession.builder.master("local[2,4]").config("spark.driver.memory", "1g")
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.host": "127.0.0.1",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    return spark


def measure(spark: SparkSession, servers: list[Server], rows: int) -> None:
    frame = spark.range(rows, numPartitions=4).selectExpr(
        "id AS a", "id * 7 AS b", "concat('user', id % 1000) AS s", "concat('page', id) AS t", "id / 3 AS f",
        "timestamp_seconds(id) AS d",
    )  # fmt: skip
    shards = ";".join(f"{server.host}:{server.port}" for server in servers)

    def staged() -> None:
        writer = frame.write.format("clickhouse_cluster").mode("append")
        writer.options(shards=shards, sharding_key="cityHash64(a)").save("default.sharded")

    work: dict[str, Callable[[], None]] = {
        "staged": staged,
        "one endpoint": lambda: one_endpoint(frame, servers[0]),
    }
    best = dict.fromkeys(work, float("inf"))
    for _ in range(ROUNDS):
        for name, run in work.items():
            started_s = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - started_s)
    for name, took_s in best.items():
        print(f"{name:>14}: {rows / took_s / 1e6:6.2f} million rows/s ({took_s:.2f} s for {rows:,})")
    spark.stop()


def one_endpoint(frame: DataFrame, server: Server) -> None:
    def post(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            out = pa.BufferOutputStream()
            with pa.ipc.new_stream(out, batch.schema) as stream:
                stream.write_batch(batch)
            server.execute("INSERT INTO alone FORMAT ArrowStream", body=out.getvalue().to_pybytes())
            yield pa.record_batch({"n": pa.array([batch.num_rows], pa.int64())})

    frame.mapInArrow(post, "n long").agg({"n": "sum"}).collect()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000)
