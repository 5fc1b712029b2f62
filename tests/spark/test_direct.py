"""Straight into the table, with tokens: once for frames that give the same rows again, refused for others."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from engine.errors import ConfigError, UnknownOutcome
from spark_apps.clickhouse_cluster import direct, records
from spark_apps.clickhouse_cluster.decisions import Progress
from spark_apps.clickhouse_cluster.direct import DirectAttempt, NotReproducible, TaskPosted, begin_direct
from spark_apps.clickhouse_cluster.moves import RowsMissing
from spark_apps.clickhouse_cluster.options import Options
from spark_apps.clickhouse_cluster.records import Mode
from spark_apps.clickhouse_cluster.writer import Job
from tests.spark.conftest import Servers
from tests.spark.test_faults import ROWS, Crash, end_before_done, failing_once, is_once, make_table

pytestmark = pytest.mark.slow

SCHEMA = StructType([StructField("a", LongType()), StructField("s", StringType())])


def begin(servers: Servers, table: str, mode: Mode = Mode.APPEND) -> Job:
    """What the planner does."""
    given = {"table": table, "shards": servers.option, "sharding_key": "a", "job_id": "job"}
    options = Options.parse({**given, "delivery": "direct", "block_rows": "10"})
    return begin_direct(Job.begin(options, SCHEMA, mode))


def post(job: Job, *, task: int = 0, rows: Sequence[int] = range(ROWS)) -> TaskPosted:
    """One attempt of a task."""
    with DirectAttempt(job, ("a", "s"), task) as posting:
        for at in range(0, len(rows), 10):
            some = list(rows[at : at + 10])
            posting.add(pa.record_batch({"a": pa.array(some, pa.int64()), "s": [f"x{row}" for row in some]}))
        posting.flush()
    return TaskPosted(tuple(posting.blocks))


def test_an_attempt_that_posted_and_then_failed_is_repeated_and_its_rows_are_there_once(
    spark: SparkSession, nodes: Servers, tmp_path: Path
) -> None:
    table = make_table(nodes)
    frame = spark.range(ROWS, numPartitions=2).selectExpr("id AS a", "concat('x', id) AS s")
    marker = tmp_path / "failed"
    options = {"block_rows": "5", "job_id": "direct", "delivery": "direct"}
    for _ in range(2):
        nodes.writer(failing_once(frame, marker, "raise"), **options).save(table)
        assert marker.exists()
        assert is_once(nodes, table)
    assert nodes.staging() == []


def test_a_driver_that_ended_before_its_commit_posts_everything_again(nodes: Servers) -> None:
    table = make_table(nodes)
    post(begin(nodes, table))
    again = begin(nodes, table)
    assert again.before is Progress.NOTHING
    direct.finish(again, [post(again)])
    assert is_once(nodes, table)
    assert begin(nodes, table).before is Progress.DONE


@pytest.mark.extended
def test_a_driver_that_ended_between_decision_and_end_is_done_with_the_next_run(
    nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(nodes)
    job = begin(nodes, table)
    with monkeypatch.context() as patch:
        end_before_done(patch)
        with pytest.raises(Crash):
            direct.finish(job, [post(job)])
    again = begin(nodes, table)
    assert again.before is Progress.DECIDED
    direct.finish(again, [])
    assert is_once(nodes, table)
    assert begin(nodes, table).before is Progress.DONE


def _crash(*_: object) -> None:
    raise KeyboardInterrupt


def test_an_attempt_with_other_rows_than_an_earlier_one_ends_before_it_posts(nodes: Servers) -> None:
    table = make_table(nodes)
    job = begin(nodes, table)
    first = post(job)
    with pytest.raises(NotReproducible, match="block 0 of task 0"):
        post(job, rows=range(ROWS, 2 * ROWS))
    assert is_once(nodes, table)
    with pytest.raises(NotReproducible, match="other blocks"):
        direct.finish(job, [first])
    assert begin(nodes, table).before is Progress.NOTHING


@pytest.mark.extended
def test_an_attempt_with_more_rows_than_the_winner_is_found_by_the_commit(nodes: Servers) -> None:
    job = begin(nodes, make_table(nodes))
    post(job, rows=range(2 * ROWS))
    with pytest.raises(NotReproducible, match="other blocks"):
        direct.finish(job, [post(job)])


@pytest.mark.extended
def test_other_rows_than_those_that_a_replica_took_which_is_away_now_are_found(nodes: Servers) -> None:
    """1. A driver has posted, and ends. 2. The replica of the second shard that took its rows goes away.
    3. The driver is started again, and its frame has other rows for that shard, which the other replica would
    drop for their tokens."""
    (first, other), (alone,) = nodes.shards
    before, after = (replace(nodes, shards=[[alone], left]) for left in ([first, other], [other]))
    table = make_table(nodes)
    post(begin(before, table))
    other.execute(f"SYSTEM SYNC REPLICA {table}")
    with pytest.raises(NotReproducible, match="for shard 2 is another"):
        again = begin(after, table)
        direct.finish(again, [post(again, rows=[a + ROWS * (a % 2) for a in range(ROWS)])])
    assert is_once(nodes, table)


def test_rows_that_vanished_are_noticed(nodes: Servers) -> None:
    table = make_table(nodes)
    job = begin(nodes, table)
    posted = post(job)
    nodes.shards[0][0].execute(f"ALTER TABLE {table} DROP PARTITION ID '0'")
    with pytest.raises(RowsMissing, match="Shard 1"):
        direct.finish(job, [posted])


@pytest.mark.extended
def test_a_run_after_the_tokens_may_be_forgotten_is_refused(
    nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(nodes)
    begin(nodes, table)
    monkeypatch.setattr(direct, "REMEMBERED_S", -1)
    with pytest.raises(UnknownOutcome, match="tokens"):
        begin(nodes, table)
    monkeypatch.setattr(records, "_KEPT_S", -3600)
    begin(nodes, table)  # the id may be used again


@pytest.mark.parametrize("replicated", [True, False], ids=["replicated", "plain"])
@pytest.mark.extended
def test_a_block_whose_token_the_table_may_have_forgotten_is_not_posted_again(
    nodes: Servers, replicated: bool
) -> None:
    """1. A task posts, and its driver ends. 2. Others write more than the table remembers, and all is merged.
    3. The driver is started again: the table would store its rows twice, and no part would show it."""
    place = nodes if replicated else nodes.one_each
    prefix = "" if replicated else "non_"
    settings = f"{prefix}replicated_deduplication_window = 3, old_parts_lifetime = 1"
    if replicated:
        settings += (
            ", cleanup_delay_period = 1, cleanup_delay_period_random_add = 0, max_cleanup_delay_period = 1"
        )
    rest = f"ORDER BY a SETTINGS {settings}"
    table = place.table("a UInt32, s String", rest=rest, replicated=replicated)
    written = [shard[0] for shard in place.shards]
    for server in written:
        server.execute(f"INSERT INTO {table} VALUES (1000, 'before')")
    post(begin(place, table))
    for server, path in zip(written, begin(place, table).target.keeper_paths, strict=True):
        for number in range(4):
            server.execute(f"INSERT INTO {table} VALUES ({2000 + number}, 'other')")
        known = f"SELECT count() FROM system.zookeeper WHERE path = '{path}/blocks'"
        while replicated and int(server.text(known)) > 3:
            time.sleep(0.1)
    with pytest.raises(UnknownOutcome, match="may have forgotten its token"):
        post(begin(place, table))
    assert sum(place.counts(table)) == ROWS + 2 * 5


def test_tables_that_do_not_deduplicate_and_overwriting_are_refused(nodes: Servers) -> None:
    with pytest.raises(ConfigError, match="does not deduplicate"):
        begin(nodes.one_each, make_table(nodes.one_each, replicated=False))
    with pytest.raises(ConfigError, match="staging only"):
        begin(nodes, make_table(nodes), Mode.OVERWRITE_PARTITIONS)
