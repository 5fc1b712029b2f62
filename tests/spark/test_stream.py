"""Micro-batches are written once, also when a batch is repeated after the query ended in the middle of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.connect.session import SparkSession as ConnectSession
from pyspark.sql.types import LongType, StructField, StructType

from engine.errors import ConfigError
from engine.names import TableName
from spark_apps.clickhouse_cluster import records, staging
from spark_apps.clickhouse_cluster.content import Content
from spark_apps.clickhouse_cluster.options import Options
from spark_apps.clickhouse_cluster.outcome import new_decisions
from spark_apps.clickhouse_cluster.set_back import SetBack, is_written_again, record_written
from spark_apps.clickhouse_cluster.stream import batch_writer
from spark_apps.clickhouse_cluster.stream_writer import StreamWriter
from spark_apps.clickhouse_cluster.target import Target
from tests.few import few_first
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
    """Jobs of which is recorded that they are done."""
    server = servers.shards[0][0]
    done = "SELECT DISTINCT job FROM {} WHERE event = 'done'"
    tables = [TableName(staging.DATABASE, name) for name in staging.tables(server, "jobs_%")]
    return {job for table in tables for job in server.text(done.format(table.quoted)).split()}


@pytest.mark.extended
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
    assert len(done_jobs(nodes) - before) == 1, "batches that will not be repeated are forgotten"


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
    assert len(done_jobs(nodes) - before) == 1, "batches that will not be repeated are forgotten"


def test_a_batch_of_spark_connect_that_is_not_named_is_refused_with_what_names_it(nodes: Servers) -> None:
    """Its session says nothing of the query that a batch belongs to."""
    frame = SimpleNamespace(sparkSession=object.__new__(ConnectSession))
    with pytest.raises(ConfigError, match="does not say to which query") as refused:
        batch_writer("d.t", shards=nodes.option)(cast(DataFrame, frame), 0)
    assert "job_id" in refused.value.hint


def test_an_epoch_of_continuous_processing_is_not_committed(nodes: Servers) -> None:
    """Spark asks no task to write then, passes no rows on, and commits epochs with a message of none."""
    table = nodes.table("a UInt64", rest="ORDER BY a")
    options = Options.parse({"table": table, "shards": nodes.option, "sharding_key": "a"})
    writer = StreamWriter(options, StructType([StructField("a", LongType())]), overwrite=False)
    with pytest.raises(ConfigError, match="no rows in continuous processing"):
        writer.commit([None], 0)


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


def written_by(how: str, stream: DataFrame, table: str, checkpoint: Path, **options: str) -> None:
    """All that is there to read, in one of both ways. Raises StreamingQueryException."""
    if how == "format":
        writer = stream.writeStream.format("clickhouse_cluster").options(path=table, **options)
    else:
        writer = stream.writeStream.foreachBatch(batch_writer(table, **options))
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writer.start().awaitTermination()


@pytest.fixture(params=few_first(["format", "foreachBatch"], few=1))
def how(request: pytest.FixtureRequest) -> str:
    return request.param  # type: ignore[no-any-return]


@pytest.mark.extended
def test_a_query_with_an_older_checkpoint_than_it_wrote_with_neither_doubles_nor_leaves_out_rows(
    spark: SparkSession, nodes: Servers, tmp_path: Path, how: str
) -> None:
    """1. Batches 0, 1 and 2 are written, and the checkpoint is copied after 0 and after 1. 2. The query is
    started with each copy: its batch 1, or 2, has the rows of what came since and more."""
    table = nodes.table("a UInt32", rest="ORDER BY a")
    checkpoint, copy, late = tmp_path / "checkpoint", tmp_path / "copy", tmp_path / "late"
    source = files(tmp_path, number=1)
    stream = spark.readStream.schema("a long").csv(str(source))
    options = {"shards": nodes.option, "sharding_key": "a"}
    for at in (1, 2, 3):
        written_by(how, stream, table, checkpoint, **options)
        if at < 3:
            shutil.copytree(checkpoint, copy if at == 1 else late)
        (source / f"{at}.csv").write_text(f"{1000 * at}\n")
    with pytest.raises(StreamingQueryException, match=r"Batch 1 of the query .* comes after batch 2"):
        written_by(how, stream, table, copy, **options)
    with pytest.raises(StreamingQueryException, match=r"Batch 2 of the query .* 1 rows, and has 2 now"):
        written_by(how, stream, table, late, **options)
    assert nodes.ask(f"SELECT a FROM {table}") == sorted(map(str, (*range(10), 1000, 2000)))
    written_by(how, stream, table, checkpoint, **options)
    assert nodes.ask(f"SELECT a FROM {table}") == sorted(map(str, (*range(10), 1000, 2000, 3000)))
    assert nodes.staging() == []


def test_a_batch_that_comes_again_with_other_rows_that_are_as_many_is_not_taken_for_the_same(
    spark: SparkSession, nodes: Servers, tmp_path: Path, how: str
) -> None:
    """1. Batch 1 is written, and its file of the checkpoint is lost. 2. What it read is in one file more, in
    another order: the batch is left out. 3. It has another row."""
    table = nodes.table("a UInt32", rest="ORDER BY a")
    source, checkpoint = files(tmp_path, number=1), tmp_path / "checkpoint"
    stream = spark.readStream.schema("a long").csv(str(source))
    options = {"shards": nodes.option, "sharding_key": "a"}
    written_by(how, stream, table, checkpoint, **options)
    shutil.copytree(checkpoint, tmp_path / "again")
    shutil.copytree(checkpoint, tmp_path / "other")
    (source / "1.csv").write_text("1000\n2000\n3000\n")
    written_by(how, stream, table, checkpoint, **options)
    (source / "1.csv").write_text("3000\n")
    (source / "2.csv").write_text("2000\n1000\n")
    written_by(how, stream, table, tmp_path / "again", **options)
    (source / "2.csv").write_text("2000\n1001\n")
    with pytest.raises(StreamingQueryException, match="with 3 rows, and has 3 others now"):
        written_by(how, stream, table, tmp_path / "other", **options)
    options |= {"repeated_batch": "counted"}
    written_by(how, stream, table, tmp_path / "other", **options)
    assert nodes.ask(f"SELECT a FROM {table}") == sorted(map(str, (*range(10), 1000, 2000, 3000)))


@pytest.mark.extended
def test_a_named_query_whose_checkpoint_is_made_anew_writes_no_batch_again_and_none_in_place_of_another(
    spark: SparkSession, nodes: Servers, tmp_path: Path, how: str
) -> None:
    """1. Three batches are written. 2. The checkpoint is lost: the same batches are left out, and the next is
    written. 3. It is lost once more, and batch 0 is another."""
    table = nodes.table("a UInt32", rest="ORDER BY a")
    source = files(tmp_path, number=3)
    options = {"shards": nodes.option, "sharding_key": "a", "job_id": f"named, {how}"}

    def run(checkpoint: str) -> None:
        stream = spark.readStream.schema("a long").option("maxFilesPerTrigger", 1).csv(str(source))
        written_by(how, stream, table, tmp_path / checkpoint, **options)

    run("first")
    (source / "3.csv").write_text("1000\n")
    run("second")
    expected = sorted(map(str, (*range(30), 1000)))
    assert nodes.ask(f"SELECT a FROM {table}") == expected
    (source / "0.csv").write_text("2000\n")
    with pytest.raises(StreamingQueryException, match="it had 10 rows then, and has 10 others now"):
        run("third")
    assert nodes.ask(f"SELECT a FROM {table}") == expected
    assert nodes.staging() == []


def test_what_a_query_wrote_is_known_whichever_shard_is_the_first_now(servers: Servers) -> None:
    table = servers.table("a UInt32", rest="ORDER BY a")

    def target_of(shards: str) -> Target:
        return Target.find(Options.parse({"table": table, "shards": shards, "sharding_key": "a"}))

    target = target_of(servers.option)
    turned = target_of(";".join(reversed(servers.option.split(";"))))

    def is_left_out(batch: int, rows: int) -> bool:
        return is_written_again(turned, "q", batch, is_named=True, look=lambda: Content(rows, digest=rows))

    records.prepare(target.shards[0].replica)
    assert not is_left_out(0, rows=7)
    decisions = new_decisions(target, alone=target.shards[0].replica)
    for batch in (0, 9, 10):
        record_written(decisions, target, "q", batch, Content(batch + 7, digest=batch + 7))
    assert (is_left_out(0, rows=7), is_left_out(9, rows=16)) == (True, True)
    assert (is_left_out(10, rows=17), is_left_out(11, rows=1)) == (True, False), "its plan has expired"
    assert is_written_again(turned, "q", 10, is_named=False, look=lambda: Content(17, digest=17))
    for batch, rows in ((9, 15), (5, 12), (10, 16)):
        with pytest.raises(SetBack, match=f"has {rows} now"):
            is_left_out(batch, rows=rows)
    with pytest.raises(SetBack, match="it had 16 rows then, and has 16 others now"):
        is_written_again(turned, "q", 9, is_named=True, look=lambda: Content(16, digest=17))
    assert is_written_again(turned, "q", 9, is_named=True, look=lambda: Content(16, digest=None)), "counted"
    with pytest.raises(SetBack, match="older than what it has written"):
        is_written_again(turned, "q", 9, is_named=False, look=lambda: Content(16, digest=16))
    assert not is_written_again(turned, "other", 0, is_named=False, look=Content)


@pytest.mark.extended
@pytest.mark.parametrize("tasks", [1, 2])
def test_a_batch_that_fails_leaves_no_staging_however_often_it_is_tried(
    spark: SparkSession, nodes: Servers, tmp_path: Path, tasks: int
) -> None:
    """One task has staged rows when it meets a value that does not fit; another one, if there is one, has
    staged by then or not."""
    table = nodes.table("a UInt8", rest="ORDER BY a")
    source = tmp_path / "in"
    source.mkdir()
    (source / "0.csv").write_text("".join(f"{row % 200}\n" for row in range(50_000)) + "1000\n")
    stream = spark.readStream.schema("a long").csv(str(source)).repartition(tasks)
    where = {"shards": nodes.option, "sharding_key": "a", "block_rows": "1000"}
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="UInt8"):
            written_by("format", stream, table, tmp_path / "c", **where)
        assert nodes.staging() == []
    assert nodes.counts(table) == [0, 0]
