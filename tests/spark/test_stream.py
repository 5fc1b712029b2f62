"""Micro-batches are written once, also when a batch is repeated after the query ended in the middle of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_apps.clickhouse_cluster import staging
from spark_apps.clickhouse_cluster.stream import batch_writer
from tests.spark.conftest import Servers
from tests.spark.latched import Fault, LatchedSource, Latches

pytestmark = pytest.mark.slow


def files(directory: Path, *, number: int) -> Path:
    """So many files of ten rows each, all different."""
    source = directory / "in"
    source.mkdir()
    for at in range(number):
        (source / f"{at}.csv").write_text("".join(f"{at * 10 + row}\n" for row in range(10)))
    return source


def done_jobs(servers: Servers) -> set[str]:
    """The records of jobs that are done."""
    return set(staging.tables(servers.shards[0][0], "done_%"))


def test_a_batch_that_was_written_before_the_query_ended_is_not_written_again(
    spark: SparkSession, nodes: Servers, tmp_path: Path
) -> None:
    """1. Three files are three batches. 2. The query ends after the second was written, before its checkpoint
    says so. 3. Started again, it repeats that batch."""
    table = nodes.table("a UInt32", rest="ORDER BY a")
    source = files(tmp_path, number=3)
    write = batch_writer(table, shards=nodes.option, sharding_key="a")
    seen: list[int] = []

    def ends_once(batch: DataFrame, batch_id: int) -> None:
        write(batch, batch_id)
        seen.append(batch_id)
        if len(seen) == 2:
            raise RuntimeError("the query ends here")

    def run() -> None:
        stream = spark.readStream.schema("a long").option("maxFilesPerTrigger", 1).csv(str(source))
        query = stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).foreachBatch(ends_once).start().awaitTermination()

    before = done_jobs(nodes)
    with pytest.raises(StreamingQueryException):
        run()
    run()
    assert seen == [0, 1, 1, 2]
    assert nodes.ask(f"SELECT a FROM {table}") == sorted(map(str, range(30)))
    assert len(done_jobs(nodes) - before) == 2, "batches that will not be repeated are forgotten"


def test_a_stream_of_the_format_writes_a_batch_that_is_repeated_once(
    spark: SparkSession, nodes: Servers, tmp_path: Path
) -> None:
    """1. Three files are three batches. 2. The query ends after the last was written, before its checkpoint
    says so. 3. Started again, it repeats that batch."""
    table = nodes.table("a UInt32", rest="ORDER BY a")
    source = files(tmp_path, number=3)
    checkpoint = tmp_path / "checkpoint"

    def run() -> int:
        stream = spark.readStream.schema("a long").option("maxFilesPerTrigger", 1).csv(str(source))
        writer = stream.writeStream.format("clickhouse_cluster").trigger(availableNow=True)
        options = {"shards": nodes.option, "sharding_key": "a", "checkpointLocation": str(checkpoint)}
        query = writer.options(**options).start(table)
        query.awaitTermination()
        return len(query.recentProgress)

    before = done_jobs(nodes)
    run()
    for name in ("2", ".2.crc"):
        (checkpoint / "commits" / name).unlink()
    assert run() == 1
    assert nodes.ask(f"SELECT a FROM {table}") == sorted(map(str, range(30)))
    assert nodes.staging() == []
    assert len(done_jobs(nodes) - before) == 2, "batches that will not be repeated are forgotten"


@pytest.mark.extended
def test_a_query_whose_commits_are_killed_is_started_again_and_writes_each_batch_once(
    spark: SparkSession, nodes: Servers, tmp_path: Path
) -> None:
    """1. Three files are three batches. 2. Batch 0 is staged, SIGKILL before its commit. 3. Started again,
    SIGKILL when batch 1 is decided and nothing is moved. 4. Started again, the query gets to its end."""
    table = nodes.table("a UInt32", rest="ORDER BY a")
    source = files(tmp_path, number=3)
    latches = Latches(tmp_path / "latches")
    latches.directory.mkdir()
    spark.dataSource.register(LatchedSource)

    def run() -> None:
        stream = spark.readStream.schema("a long").option("maxFilesPerTrigger", 1).csv(str(source))
        writer = stream.writeStream.format("clickhouse_latched").trigger(availableNow=True)
        options = {"shards": nodes.option, "sharding_key": "a", "latches": str(latches.directory)}
        checkpoint = {"checkpointLocation": str(tmp_path / "checkpoint")}
        fault = {"fault": Fault.BATCHES_KILLED.name}
        writer.options(**options, **checkpoint, **fault).start(table).awaitTermination()

    for batch, rows_before in enumerate((0, 10)):
        with pytest.raises(StreamingQueryException):
            run()
        assert latches.reached(f"killed-{batch}")
        assert sum(nodes.counts(table)) == rows_before
        assert nodes.staging() != []
    run()
    assert nodes.ask(f"SELECT a FROM {table}") == sorted(map(str, range(30)))
    assert nodes.staging() == []
