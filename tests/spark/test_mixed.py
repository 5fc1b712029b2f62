"""A cluster of both: one shard is a node, the other one a real server, which may be much older."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from spark_apps.clickhouse_cluster.decisions import Progress
from spark_apps.clickhouse_cluster.records import Mode
from spark_apps.clickhouse_cluster.writer import finish
from tests.spark.conftest import Servers
from tests.spark.test_faults import ROWS, attempt, begin, is_once, make_table

pytestmark = pytest.mark.extended


@pytest.mark.parametrize("replicated", [True, False], ids=["replicated", "plain"])
def test_a_node_and_a_real_server_are_written_and_read_together(
    spark: SparkSession, nodes: Servers, real: Servers, replicated: bool
) -> None:
    mixed = Servers(f"mixed{int(replicated)}", [nodes.shards[1], real.shards[0]])
    table = make_table(mixed, replicated=replicated)
    for _ in range(2):
        job = begin(mixed, table)
        finish(job, [attempt(job, task=0, number=1, last=30), attempt(job, task=1, number=2, first=30)])
    assert begin(mixed, table).before is Progress.DONE
    assert all(mixed.counts(table))
    assert is_once(mixed, table)
    new = begin(mixed, table, job_id="new", mode=Mode.OVERWRITE_PARTITIONS)
    finish(new, [attempt(new, task=0, number=1, s="new")])
    assert is_once(mixed, table)
    frame = spark.read.format("clickhouse_cluster").options(shards=mixed.option).load(table)
    assert sorted((row.a, row.s) for row in frame.collect()) == [(a, f"new{a}") for a in range(ROWS)]
    assert mixed.staging() == []
