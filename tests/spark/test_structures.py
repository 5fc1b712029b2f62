"""Tables whose names, keys and settings are unusual: rows get into them by way of staging all the same."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from engine.names import TableName, quote_string
from spark_apps.clickhouse_cluster.options import Options
from spark_apps.clickhouse_cluster.records import Mode
from spark_apps.clickhouse_cluster.writer import Job, stage
from tests.few import few_first
from tests.spark.conftest import MADE, Servers
from tests.spark.test_faults import attempt, begin, finish, is_once
from tests.spark.test_values import load

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", few_first(["ba`ck\\slash/ä", "o'brien"], few=1))
def test_quotes_in_names_and_in_keeper_paths_are_theirs(servers: Servers, name: str) -> None:
    """Of a Replicated table, whose path in Keeper has the name: what was moved is looked for there."""
    table = TableName("d", name)
    for number, shard in enumerate(servers.shards, start=1):
        for replica, server in enumerate(shard, start=1):
            path = quote_string(f"/names/{servers.kind}/{name.replace('/', '')}/{number}")
            engine = f"ReplicatedMergeTree({path}, 'r{replica}')"
            rest = "PARTITION BY a % 2 ORDER BY a"
            server.execute(f"CREATE TABLE {table.quoted} (a UInt32, s String) ENGINE = {engine} {rest}")
            MADE.append((server, f"DROP TABLE {table.quoted}{' SYNC' if servers.kind == 'nodes' else ''}"))
    job = begin(servers, str(table))
    finish(job, [attempt(job, task=0, number=1)])
    assert is_once(servers, table.quoted)
    assert servers.staging() == []


@pytest.mark.parametrize(
    "rest",
    few_first(
        [
            "PARTITION BY a % 2 ORDER BY a SETTINGS index_granularity_bytes = 0",
            "PARTITION BY (a % 2, concat(s, 'it''s, (x')) ORDER BY (a, s) PRIMARY KEY a",
            "PARTITION BY nullIf(s, 'x1') ORDER BY a SETTINGS allow_nullable_key = 1",
            "PARTITION BY a / 7 ORDER BY a SETTINGS allow_floating_point_partition_key = 1",
        ],
        few=1,
    ),
)
def test_parts_of_staging_are_parts_of_the_table(nodes: Servers, rest: str) -> None:
    table = nodes.table("a UInt32, s String", rest=rest)
    job = begin(nodes, table)
    finish(job, [attempt(job, task=0, number=1, last=6)])
    assert is_once(nodes, table, rows=6)


def test_only_its_like_gives_parts_to_a_table_that_collapses_by_version(servers: Servers) -> None:
    """Its sorting key has the version in it, which its definition does not say."""
    alone = replace(servers, shards=[[servers.shards[0][0]]])
    server, table = alone.shards[0][0], "d.versions"
    server.execute(
        f"CREATE TABLE {table} (a UInt32, s String, sign Int8 DEFAULT 1, v UInt8 DEFAULT 1) "
        "ENGINE = VersionedCollapsingMergeTree(sign, v) PARTITION BY a % 2 ORDER BY s"
    )
    MADE.append((server, f"DROP TABLE {table}"))
    job = begin(alone, table)
    finish(job, [attempt(job, task=0, number=1)])
    assert is_once(alone, table)


def test_columns_that_others_are_made_of_are_written_and_one_may_have_any_name(nodes: Servers) -> None:
    alone = replace(nodes, shards=[nodes.shards[1]])
    table = alone.table("`rows` UInt32, e String EPHEMERAL, s String DEFAULT upper(e)", replicated=False)
    given = {"table": table, "shards": alone.option}
    schema = StructType([StructField("rows", LongType()), StructField("e", StringType())])
    job = Job.begin(Options.parse(given), schema, Mode.APPEND)
    rows = pa.record_batch({"rows": pa.array([7], pa.int64()), "e": ["x"]})
    finish(job, [stage(job, ("rows", "e"), iter([rows]), task=0, attempt=1)])
    assert alone.ask(f"SELECT rows, s FROM {table}") == ["7\tX"]


def test_columns_that_a_setting_allowed_once_are_staged_without_it(nodes: Servers) -> None:
    """And a Nested that was made as one column is one in staging, too."""
    kinds = ("low_cardinality_types", "fixed_string_types", "variant_types", "codecs")
    table = nodes.table(
        "a UInt32, f FixedString(300), l LowCardinality(UInt8), v Variant(UInt32, Int64), "
        "c UInt64 CODEC(DoubleDelta, Gorilla, NONE), n Nested(x UInt8, y String)",
        rest="PARTITION BY a % 2 ORDER BY a",
        settings={"flatten_nested": "0", **{f"allow_suspicious_{kind}": "1" for kind in kinds}},
    )
    rows = {"a": pa.array(range(4), pa.int64()), "f": pa.array(["x"] * 4), "l": pa.array([7] * 4, pa.int32())}
    load(nodes, table, rows)
    asked = f"SELECT a, toStringCutToZero(f), l, v, c, n FROM {table}"
    assert nodes.ask(asked) == [f"{a}\tx\t7\t\\N\t0\t[]" for a in range(4)]
