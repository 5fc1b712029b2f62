"""Frames into tables over two shards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

from engine.testing.local_cluster import LocalCluster
from tests.spark.conftest import Servers

pytestmark = pytest.mark.slow

COLUMNS = "a UInt32, s String, d DateTime('UTC')"
BY_TEN = "PARTITION BY a % 3 ORDER BY a"


def test_appends_rows_to_the_shards_that_the_servers_would_choose(
    spark: SparkSession, servers: Servers
) -> None:
    table = servers.table(COLUMNS, rest=BY_TEN)
    frame = spark.range(1000).selectExpr("id AS a", "concat('x', id) AS s", "timestamp_seconds(id) AS d")
    servers.writer(frame.repartition(3)).save(table)
    for number, shard in enumerate(servers.shards):
        assert shard[0].text(f"SELECT countIf(cityHash64(a) % 2 != {number}) FROM {table}") == "0"
    assert servers.ask(f"SELECT a, s, toUInt32(d) FROM {table}") == sorted(
        f"{i}\tx{i}\t{i}" for i in range(1000)
    )
    assert servers.staging() == []


def test_weights_and_the_key_are_the_distributed_table_s(
    spark: SparkSession, nodes: Servers, local: LocalCluster
) -> None:
    """The rows that Spark writes stand where a node's own INSERT puts them."""
    first = nodes.shards[0][0]
    ours, theirs = (nodes.table("a UInt32, s String", rest="ORDER BY a") for _ in range(2))
    for table in (ours, theirs):
        engine = f"Distributed(weighted, d, {table[2:]}, cityHash64(a, s))"
        first.execute(f"CREATE TABLE {table}_all AS {table} ENGINE = {engine}")
    frame = spark.range(300).selectExpr("id AS a", "concat('x', id) AS s")
    writer = frame.write.format("clickhouse_cluster").mode("append")
    writer.options(url=str(first), cluster_file=str(local.config_file)).save(f"{ours}_all")
    rows = "SELECT number, concat('x', toString(number)) FROM numbers(300)"
    first.execute(f"INSERT INTO {theirs}_all {rows}", settings={"insert_distributed_sync": "1"})
    placed = [
        [shard[0].text(f"SELECT a FROM {t} ORDER BY a") for shard in nodes.shards] for t in (ours, theirs)
    ]
    assert placed[0] == placed[1]
    assert sum(nodes.counts(ours)) == 300
    assert nodes.counts(ours)[1] > nodes.counts(ours)[0] > 0


def test_a_job_that_was_done_does_nothing_when_it_is_run_again(spark: SparkSession, servers: Servers) -> None:
    servers = servers.one_each
    table = servers.table(COLUMNS, rest=BY_TEN, replicated=False)
    frame = spark.range(100).selectExpr("id AS a", "'x' AS s", "timestamp_seconds(id) AS d")
    for _ in range(2):
        servers.writer(frame, job_id="once").save(table)
    assert sum(servers.counts(table)) == 100


@pytest.mark.extended
def test_equal_frames_of_two_jobs_are_both_there(spark: SparkSession, nodes: Servers) -> None:
    table = nodes.table(COLUMNS, rest=BY_TEN)
    frame = spark.range(50).selectExpr("id AS a", "'x' AS s", "timestamp_seconds(id) AS d")
    for job in ("one", "two"):
        nodes.writer(frame, job_id=job).save(table)
    assert sum(nodes.counts(table)) == 100


def test_equal_rows_in_two_tasks_are_both_there(spark: SparkSession, servers: Servers) -> None:
    table = servers.table(COLUMNS, rest=BY_TEN)
    frame = spark.range(4, numPartitions=4).selectExpr("7 AS a", "'x' AS s", "timestamp_seconds(0) AS d")
    servers.writer(frame).save(table)
    assert sum(servers.counts(table)) == 4


def test_overwrite_replaces_the_partitions_that_the_frame_has_and_no_others(
    spark: SparkSession, servers: Servers
) -> None:
    table = servers.table(COLUMNS, rest=BY_TEN)
    rows = "id AS a", "'{}' AS s", "timestamp_seconds(id) AS d"
    old = spark.range(90).selectExpr(rows[0], rows[1].format("old"), rows[2])
    new = spark.range(1).selectExpr("1 AS a", rows[1].format("new"), rows[2])
    servers.writer(old).save(table)
    servers.writer(new).mode("overwrite").save(table)
    expected = [f"{i}\told" for i in range(90) if i % 3 != 1] + ["1\tnew"]
    assert servers.ask(f"SELECT a, s FROM {table}") == sorted(expected)


def test_python_s_processes_import_the_installed_pyspark(spark: SparkSession) -> None:
    """Spark's zip of it would be compiled anew in each."""

    def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyspark as imported

        for batch in batches:
            yield pa.record_batch({"file": [imported.__file__] * batch.num_rows})

    [row] = spark.range(1, numPartitions=1).mapInArrow(where, "file string").collect()
    assert Path(row.file).samefile(pyspark.__file__)
