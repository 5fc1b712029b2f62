"""Micro-batches are written once, also when a batch is repeated after the query ended in the middle of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_apps.clickhouse_cluster.stream import batch_writer
from tests.spark.conftest import Servers

pytestmark = pytest.mark.slow


def test_a_batch_that_was_written_before_the_query_ended_is_not_written_again(
    spark: SparkSession, nodes: Servers, tmp_path: Path
) -> None:
    """1. Two files are two batches. 2. The query ends after the second was written, before its checkpoint
    says so. 3. Started again, it repeats that batch."""
    table = nodes.table("a UInt32", rest="ORDER BY a")
    source = tmp_path / "in"
    source.mkdir()
    for number in range(2):
        (source / f"{number}.csv").write_text("".join(f"{number * 10 + row}\n" for row in range(10)))
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

    with pytest.raises(StreamingQueryException):
        run()
    run()
    assert seen == [0, 1, 1]
    assert nodes.ask(f"SELECT a FROM {table}") == sorted(map(str, range(20)))
