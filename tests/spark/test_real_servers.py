"""Distributed tables of real servers: written and read with weights, streamed into; and what 18.16 itself
does where nodes have to do the same."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from engine.errors import Code, ConfigError, SqlError
from spark_apps.clickhouse_cluster import staging
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.records import Mode
from spark_apps.clickhouse_cluster.writer import finish
from tests.spark.conftest import Servers
from tests.spark.test_direct import begin as begin_direct
from tests.spark.test_faults import attempt, begin, make_table
from tests.spark.test_stream import files

pytestmark = pytest.mark.extended

KEY = "cityHash64(a, s)"
FOREGROUND = {"insert_distributed_sync": "1"}


@pytest.fixture
def place(real: Servers) -> Servers:
    return real


def distributed(place: Servers) -> tuple[Server, str]:
    """A replicated table on both shards with a Distributed one over it, of which the second shard has two
    thirds of the rows; and the server that has that."""
    table = place.table("a UInt32, s String, d Date", rest="PARTITION BY toYYYYMM(d) ORDER BY a")
    first = place.shards[0][0]
    first.execute(
        f"CREATE TABLE {table}_all AS {table} ENGINE = Distributed(weighted, d, {table[2:]}, {KEY})"
    )
    return first, table


def rows_of(spark: SparkSession, *, first: int = 0, last: int = 300, s: str = "x") -> DataFrame:
    days = F.expr("date_add(DATE '2013-01-01', cast(a % 59 AS int))")
    return spark.range(first, last).selectExpr("id AS a", f"concat('{s}', id) AS s").withColumn("d", days)


def write(frame: DataFrame, place: Servers, table: str, *, mode: str = "append", **options: str) -> None:
    writer = frame.write.format("clickhouse_cluster").mode(mode)
    writer.options(url=str(place.shards[0][0]), cluster_file=place.cluster_file, **options).save(
        f"{table}_all"
    )


def test_rows_go_where_the_server_s_own_insert_puts_them_and_are_read_again(
    spark: SparkSession, place: Servers
) -> None:
    first, ours = distributed(place)
    _, theirs = distributed(place)
    for _ in range(2):
        write(rows_of(spark).repartition(3), place, ours, job_id="once")
    select = "SELECT toUInt32(number), concat('x', toString(number)), toDate('2013-01-01') + number % 59"
    first.execute(f"INSERT INTO {theirs}_all {select} FROM numbers(300)", settings=FOREGROUND)
    placed = [
        [shard[0].text(f"SELECT * FROM {t} ORDER BY a") for shard in place.shards] for t in (ours, theirs)
    ]
    assert placed[0] == placed[1]
    assert place.counts(ours)[1] > place.counts(ours)[0] > 0
    assert first.text(f"SELECT count(), uniqExact(a) FROM {ours}_all") == "300\t300"

    reader = spark.read.format("clickhouse_cluster").option("url", str(first))
    frame = reader.options(cluster_file=place.cluster_file, pushdown="on").load(f"{ours}_all")
    assert frame.rdd.getNumPartitions() == 2
    assert sorted(row.a for row in frame.where("a >= 290 AND s != 'x295'").collect()) == [
        a for a in range(290, 300) if a != 295
    ]


def test_months_are_replaced_on_all_shards(spark: SparkSession, place: Servers) -> None:
    first, table = distributed(place)
    write(rows_of(spark), place, table)
    february = rows_of(spark, last=40, s="new").where("d >= DATE '2013-02-01'")
    for job in ("one", "two"):
        write(february, place, table, mode="overwrite", job_id=job)
    found = first.text(
        f"SELECT toYYYYMM(d) AS m, count(), countIf(s LIKE 'new%') FROM {table}_all GROUP BY m ORDER BY m"
    )
    assert found.splitlines() == ["201301\t160\t0", "201302\t9\t9"]


def test_partitions_that_are_to_be_empty_are_so_on_all_replicas(real: Servers) -> None:
    """18.16 keeps the rows on another replica now and then, where they came by a REPLACE and an ATTACH."""
    place = Servers("pair", [real.all])
    for turn in range(12):
        table = place.table("a UInt32, s String", rest="PARTITION BY a % 5 ORDER BY a")
        for name, mode, last in (
            ("old", Mode.OVERWRITE_PARTITIONS, 20),
            ("more", Mode.APPEND, 20),
            ("new", Mode.OVERWRITE_PARTITIONS, 4),
        ):
            named = {"partitions": "4"} if name == "new" else {}
            job = begin(place, table, job_id=name, mode=mode, **named)
            finish(job, [attempt(job, task=0, number=1, last=last, s=name)])
        assert [server.text(f"SELECT count() FROM {table}") for server in place.all] == ["4", "4"], turn


def test_a_batch_of_a_stream_that_is_repeated_is_written_once(
    spark: SparkSession, place: Servers, tmp_path: Path
) -> None:
    first, table = distributed(place)
    source, checkpoint = files(tmp_path, number=2), tmp_path / "checkpoint"

    def run() -> int:
        stream = spark.readStream.schema("a long").option("maxFilesPerTrigger", 1).csv(str(source))
        rows = stream.selectExpr("a", "concat('x', a) AS s", "DATE '2013-01-01' AS d")
        writer = rows.writeStream.format("clickhouse_cluster").trigger(availableNow=True)
        options = {"url": str(first), "cluster_file": place.cluster_file}
        query = writer.options(**options, checkpointLocation=str(checkpoint)).start(f"{table}_all")
        query.awaitTermination()
        return len(query.recentProgress)

    assert run() == 2
    for name in ("1", ".1.crc"):
        (checkpoint / "commits" / name).unlink()
    assert run() == 1
    assert first.text(f"SELECT count(), uniqExact(a) FROM {table}_all") == "20\t20"
    assert staging.tables(first, "s_%") == []


def test_posting_without_staging_is_refused_where_the_server_knows_no_tokens(place: Servers) -> None:
    if place.shards[0][0].text("SELECT version()") >= "22":
        pytest.skip("this server knows tokens")
    with pytest.raises(ConfigError, match="does not deduplicate by tokens"):
        begin_direct(place, make_table(place))


def test_a_schema_that_does_not_fit_and_a_key_of_a_wrong_type_are_refused(
    spark: SparkSession, place: Servers
) -> None:
    first, table = distributed(place)
    with pytest.raises(Exception, match="has no column nothing"):
        write(rows_of(spark).withColumn("nothing", F.lit(1)), place, table)
    with pytest.raises(PythonException, match="should be one of integer type"):
        write(rows_of(spark), place, table, sharding_key="s")
    assert first.text(f"SELECT count() FROM {table}_all") == "0"


def test_a_shard_of_stale_replicas_is_an_error_or_left_out_as_on_a_node(place: Servers) -> None:
    """As `engine.node.distributed.reading.shard_reader` does with 369 and `skip_unavailable_shards`."""
    first, second = place.shards[0][0], place.shards[1][0]
    name = "d.stale"
    for number, server in enumerate((first, second)):
        server.execute("CREATE DATABASE IF NOT EXISTS d")
        server.execute(
            f"CREATE TABLE {name} (a UInt8) ENGINE = ReplicatedMergeTree('/stale', 'r{number}') ORDER BY a"
        )
    second.execute("SYSTEM STOP REPLICATION QUEUES")
    first.execute(f"INSERT INTO {name} VALUES (1)")
    while int(second.text("SELECT max(absolute_delay) FROM system.replicas WHERE table = 'stale'")) < 2:
        time.sleep(0.2)  # its delay is counted in seconds of the clock
    first.execute(f"CREATE TABLE {name}_all AS {name} ENGINE = Distributed(second, d, stale)")
    count = f"SELECT count() FROM {name}_all"
    limit = {"max_replica_delay_for_distributed_queries": "1"}
    none = limit | {"fallback_to_stale_replicas_for_distributed_queries": "0"}
    skip = {"skip_unavailable_shards": "1"}
    with pytest.raises(SqlError) as stale:
        first.text(count, settings=none)
    assert stale.value.code == Code.ALL_REPLICAS_ARE_STALE
    # 18.16 leaves the shard out although a fallback is allowed; newer servers, and nodes, read it then.
    assert first.text(count, settings=none | skip) == ""
    assert first.text(count, settings=limit) == "0"
    second.execute("SYSTEM START REPLICATION QUEUES")
