"""What stops a load before it writes: tables that are absent, rows that do not fit, servers that are away."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from engine.errors import Code, ConfigError, NodeUnavailable, OnclusterError, SqlError
from engine.testing.local_cluster import LocalCluster
from spark_apps.clickhouse_cluster.addresses import shards_of
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.options import Options
from spark_apps.clickhouse_cluster.reader import ClusterReader
from spark_apps.clickhouse_cluster.records import Mode
from spark_apps.clickhouse_cluster.source import ClickHouseClusterSource
from spark_apps.clickhouse_cluster.target import Target
from spark_apps.clickhouse_cluster.types import spark_schema
from spark_apps.clickhouse_cluster.writer import Attempt, Job, give_up
from tests.few import few_first
from tests.spark.conftest import MADE, Servers
from tests.spark.test_faults import SCHEMA, attempt, begin, finish, is_once, make_table

pytestmark = pytest.mark.slow

NOBODY = Server("127.0.0.1", 1)


def find(servers: Servers, table: str, **options: str) -> Target:
    return Target.find(Options.parse({"table": table, "url": str(servers.shards[0][0]), **options}))


def test_what_is_not_there_is_named_with_what_is(servers: Servers) -> None:
    table = make_table(servers)
    with pytest.raises(SqlError) as no_database:
        find(servers, "nothing.t")
    assert (no_database.value.code, "default" in no_database.value.hint) == (Code.UNKNOWN_DATABASE, True)
    with pytest.raises(SqlError, match=r"There is no table d\.nothing on"):
        find(servers, "d.nothing")
    with pytest.raises(SqlError, match=r"There is no table d\.nothing on"):
        begin(servers, "d.nothing")
    with pytest.raises(ConfigError, match="MergeTree table, not a Distributed one"):
        find(servers, table)


def test_a_cluster_that_is_not_there_is_named_with_those_that_are(
    nodes: Servers, local: LocalCluster, tmp_path: Path
) -> None:
    table = make_table(nodes)
    server = nodes.shards[0][0]
    server.execute(f"CREATE TABLE {table}_all AS {table} ENGINE = Distributed(two, d, {table[2:]}, a)")
    (tmp_path / "other.xml").write_text(
        local.config_file.read_text().replace("<two>", "<other>").replace("</two>", "</other>")
    )
    with pytest.raises(OnclusterError, match="two") as refused:
        find(nodes, f"{table}_all", cluster_file=str(tmp_path / "other.xml"))
    assert "other" in str(refused.value)
    with pytest.raises(SqlError) as unknown:
        shards_of(server, "nothing", Options.parse({"table": "t", "url": str(server)}))
    assert (unknown.value.code, "two" in unknown.value.hint) == (Code.CLUSTER_DOESNT_EXIST, True)


def test_a_key_that_is_no_integer_ends_the_attempt_and_nothing_is_written(servers: Servers) -> None:
    table = make_table(servers)
    job = begin(servers, table, sharding_key="concat(s, 'x')")
    with pytest.raises(SqlError, match="String") as refused:
        attempt(job, task=0, number=1)
    assert refused.value.code == Code.TYPE_MISMATCH
    give_up(job)
    assert (sum(servers.counts(table)), servers.staging()) == (0, [])


@pytest.mark.parametrize("key", few_first(["arrayJoin([a, a + 1])", "sum(a)"], few=1))
def test_a_key_that_gives_fewer_or_more_numbers_than_rows_loses_and_doubles_none(
    nodes: Servers, key: str
) -> None:
    table = make_table(nodes)
    job = begin(nodes, table, sharding_key=key)
    with pytest.raises(SqlError, match=r"gives \d+ numbers for \d+ rows") as refused:
        attempt(job, task=0, number=1)
    assert refused.value.code == Code.BAD_ARGUMENTS
    give_up(job)
    assert (sum(nodes.counts(table)), nodes.staging()) == (0, [])


@pytest.mark.parametrize(
    "key",
    few_first(
        ["dictGet('d.x', 'shard', a)", "d_made_by_somebody(a)", "toUInt64(a IN (SELECT a FROM d.x))"], few=1
    ),
)
def test_a_key_that_only_servers_can_evaluate_is_refused_as_what_it_is(nodes: Servers, key: str) -> None:
    table = make_table(nodes)
    job = begin(nodes, table, sharding_key=key)
    with pytest.raises(SqlError, match=re.escape(f"The sharding key {key} cannot be evaluated")):
        attempt(job, task=0, number=1)
    give_up(job)
    assert (sum(nodes.counts(table)), nodes.staging()) == (0, [])


@pytest.mark.parametrize("mode", few_first([Mode.OVERWRITE_PARTITIONS, Mode.APPEND], few=1))
def test_replicas_of_one_table_that_are_listed_as_shards_are_refused(nodes: Servers, mode: Mode) -> None:
    """To replace a partition on one of them would remove what was written by way of the other."""
    table = make_table(nodes)
    [[n1, n2], _] = nodes.shards
    with pytest.raises(ConfigError, match=rf"one table {table}: their replicas have one path in Keeper"):
        begin(replace(nodes, shards=[[n1], [n2]]), table, mode=mode)
    with pytest.raises(ConfigError, match=f"both have {n1}"):
        begin(replace(nodes, shards=[[n1], [n1]]), table, mode=mode)


def test_a_key_over_another_type_than_the_local_tables_is_refused_as_its_hash_is_another_one(
    nodes: Servers, local: LocalCluster
) -> None:
    table = make_table(nodes)  # a UInt32, s String
    server = nodes.shards[0][0]
    given = {"url": str(server), "cluster_file": str(local.config_file)}
    columns = {"alike": "a UInt32, s LowCardinality(String)", "other": "a UInt64, s String"}
    for name, key in (("alike", "sipHash64(a, s)"), ("other", "sipHash64(a, s)"), ("other", "cityHash64(s)")):
        server.execute(f"DROP TABLE IF EXISTS {table}_all")
        engine = f"Distributed(two, d, {table[2:]}, {key})"
        server.execute(f"CREATE TABLE {table}_all ({columns[name]}) ENGINE = {engine}")
        asked = Options.parse({**given, "table": f"{table}_all"})
        if (name, key) == ("other", "sipHash64(a, s)"):
            with pytest.raises(ConfigError, match=r"a of the sharding key .* is UInt64 in .* and UInt32 in "):
                Job.begin(asked, SCHEMA, Mode.APPEND)
        else:
            Job.begin(asked, SCHEMA, Mode.APPEND)


@pytest.mark.extended
@pytest.mark.parametrize("mode", [Mode.APPEND, Mode.OVERWRITE_PARTITIONS])
def test_rows_that_nobody_would_bring_to_the_other_replicas_are_refused(servers: Servers, mode: Mode) -> None:
    together = replace(servers, shards=[servers.all[:2]])
    plain, replicated = make_table(together, replicated=False), make_table(together)
    with pytest.raises(ConfigError, match=r"is a MergeTree table.* shard 1 has 2 replicas") as refused:
        begin(together, plain, mode=mode)
    assert "name one replica of each shard" in refused.value.hint
    for allowed, table in ((together, replicated), (together.one_each, plain)):
        job = begin(allowed, table, mode=mode)
        finish(job, [attempt(job, task=0, number=1)])
        assert is_once(allowed, table)


def test_a_distributed_table_over_plain_ones_on_two_replicas_is_read_and_not_written(
    nodes: Servers, local: LocalCluster
) -> None:
    table = make_table(nodes, replicated=False)
    server = nodes.shards[0][0]
    server.execute(f"CREATE TABLE {table}_all AS {table} ENGINE = Distributed(two, d, {table[2:]}, a)")
    given = {"url": str(server), "cluster_file": str(local.config_file)}
    with pytest.raises(ConfigError, match=rf"{table} on .* is a MergeTree table.* shard 1 has 2 replicas"):
        Job.begin(Options.parse({**given, "table": f"{table}_all"}), SCHEMA, Mode.APPEND)
    assert str(find(nodes, f"{table}_all", **given).table) == table


def test_an_empty_database_is_that_of_the_addresses_which_must_have_one(
    nodes: Servers, local: LocalCluster, tmp_path: Path
) -> None:
    table = make_table(nodes)
    engine = f"Distributed(weighted, '', {table[2:]}, a)"
    nodes.shards[0][0].execute(f"CREATE TABLE {table}_all (a UInt32, s String) ENGINE = {engine}")
    assert str(find(nodes, f"{table}_all", cluster_file=str(local.config_file)).table) == table
    asked = Options.parse({"table": f"{table}_all", "url": str(nodes.shards[0][0])})
    assert shards_of(asked.servers[0], "weighted", asked)[1] == {"d"}  # as system.clusters has it
    text = local.config_file.read_text()
    home = "<default_database>d</default_database>"
    (tmp_path / "other.xml").write_text(text.replace(home, "", 1))
    with pytest.raises(ConfigError, match="several: d, default"):
        find(nodes, f"{table}_all", cluster_file=str(tmp_path / "other.xml"))


def test_a_table_that_differs_between_the_shards_is_refused(nodes: Servers) -> None:
    nodes = nodes.one_each
    table = make_table(nodes, replicated=False)
    nodes.shards[1][0].execute(f"ALTER TABLE {table} ADD COLUMN extra UInt8")
    with pytest.raises(SqlError, match="extra UInt8") as refused:
        begin(nodes, table)
    assert refused.value.code == Code.INCOMPATIBLE_COLUMNS


@pytest.mark.parametrize(
    ("rest", "replicated", "says"),
    few_first(
        [
            ("PARTITION BY a % 3 ORDER BY a", False, "partition_key is a % 3, not a % 2"),
            ("PARTITION BY a % 2 ORDER BY (a, s)", False, "sorting_key is a, s, not a"),
            ("PARTITION BY a % 2 ORDER BY a", True, "engine is ReplicatedMergeTree, not MergeTree"),
        ],
        few=1,
    ),
)
def test_a_table_that_would_take_no_parts_on_one_shard_is_refused_before_another_gets_any(
    nodes: Servers, rest: str, replicated: bool, says: str
) -> None:
    nodes = nodes.one_each
    table = make_table(nodes, replicated=False)
    engine = f"ReplicatedMergeTree('/other/{table}', 'r')" if replicated else "MergeTree"
    other = nodes.shards[1][0]
    other.execute(f"DROP TABLE {table} SYNC")
    other.execute(f"CREATE TABLE {table} (a UInt32, s String) ENGINE = {engine} {rest}")
    with pytest.raises(SqlError, match=re.escape(says)) as refused:
        begin(nodes, table)
    assert refused.value.code == Code.INCOMPATIBLE_COLUMNS


def test_states_of_aggregations_are_refused_and_the_columns_beside_them_read(nodes: Servers) -> None:
    """Raw bytes came in their place, and as text not even those."""
    table = nodes.table("a UInt32, n SimpleAggregateFunction(sum, UInt64), u AggregateFunction(uniq, String)")
    nodes.shards[0][0].execute(f"INSERT INTO {table} SELECT 1, 2, uniqState('x')")
    given = {"table": table, "shards": nodes.option}
    with pytest.raises(SqlError, match=r"u: states of an AggregateFunction cannot be read") as refused:
        ClickHouseClusterSource(given).schema()
    assert "schema" in refused.value.hint
    columns = Target.find(Options.parse(given)).columns
    with pytest.raises(SqlError, match="cannot be read"):
        ClusterReader(Options.parse(given), spark_schema(columns))
    reader = ClusterReader(Options.parse(given), spark_schema(columns[:2]))
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert rows == [{"a": 1, "n": 2}]


@pytest.mark.parametrize(
    ("values", "code"),
    few_first([([2**32], 70), ([None], 349), ([-1], 70)], few=2),
    ids=["too large", "NULL", "negative"],
)
def test_values_that_do_not_fit_end_the_attempt_and_nothing_is_written(
    servers: Servers, values: list[Any], code: int
) -> None:
    table = make_table(servers)
    job = begin(servers, table)
    with pytest.raises(SqlError) as refused, Attempt(job, ("a", "s"), 0, 1) as posting:
        posting.add(pa.record_batch({"a": pa.array([1, *values], pa.int64()), "s": ["x", "y"]}))
        posting.flush()
    assert refused.value.code == code
    give_up(job)
    assert (sum(servers.counts(table)), servers.staging()) == (0, [])
    finish(job, [attempt(job, task=0, number=2)])  # Spark gives the next attempt to the same process
    assert is_once(servers, table)


def test_a_replica_that_is_away_is_passed_over_where_nobody_needs_its_memory(nodes: Servers) -> None:
    """A load without a job id asks one replica of each shard."""
    table = make_table(nodes)
    away = replace(nodes, shards=[[NOBODY, nodes.shards[0][0]], nodes.shards[1]])
    job = begin(away, table, job_id="")
    finish(job, [attempt(job, task=0, number=1)])
    assert is_once(nodes, table)


def test_a_shard_without_any_replica_that_answers_stops_the_load(nodes: Servers) -> None:
    away = replace(nodes, shards=[nodes.shards[0], [NOBODY, NOBODY]])
    with pytest.raises(NodeUnavailable, match=r"No replica answers: .*127\.0\.0\.1:1"):
        begin(away, make_table(nodes))


def test_addresses_that_are_only_the_clusters_are_said_to_be_when_nobody_answers_there(
    nodes: Servers,
) -> None:
    table, server = make_table(nodes), nodes.shards[0][0]
    server.execute(f"CREATE TABLE {table}_all AS {table} ENGINE = Distributed(two, d, {table[2:]}, a)")
    MADE.append((server, f"DROP TABLE {table}_all"))
    with pytest.raises(NodeUnavailable, match="http://n1:1: ") as away:
        Target.find(Options.parse({"table": f"{table}_all", "url": str(server), "http_port": "1"}))
    assert "cluster_file" in away.value.hint


def test_a_table_that_has_no_parts_is_refused_before_anything_is_decided(servers: Servers) -> None:
    server = servers.shards[0][0]
    server.execute("CREATE TABLE d.lines (a UInt32, s String) ENGINE = Log")
    MADE.append((server, "DROP TABLE d.lines"))
    alone = replace(servers, shards=[[server]])
    with pytest.raises(ConfigError, match=r"d\.lines on .* is a Log table, which has no parts"):
        begin(alone, "d.lines")


def test_rows_that_a_materialized_view_would_miss_are_refused_unless_they_may_be_missed(
    servers: Servers,
) -> None:
    table = make_table(servers)
    server = servers.shards[-1][0]
    server.execute(
        f"CREATE MATERIALIZED VIEW {table}_seen ENGINE = MergeTree ORDER BY a AS SELECT a FROM {table}"
    )
    MADE.insert(len(MADE) - len(servers.all), (server, f"DROP TABLE {table}_seen"))
    with pytest.raises(ConfigError, match=rf"would miss the rows.*: {table}_seen\.") as refused:
        begin(servers, table)
    assert "delivery=direct" in refused.value.hint
    begin(servers, table, delivery="direct")
    job = begin(servers, table, materialized_views="left out")
    finish(job, [attempt(job, task=0, number=1)])
    assert is_once(servers, table)
    assert server.text(f"SELECT count() FROM {table}_seen") == "0"


def test_a_view_over_the_distributed_table_misses_every_load(nodes: Servers, local: LocalCluster) -> None:
    table = make_table(nodes)
    server = nodes.shards[0][0]
    for sql in (
        f"CREATE TABLE {table}_all AS {table} ENGINE = Distributed(two, d, {table[2:]}, a)",
        f"CREATE MATERIALIZED VIEW {table}_seen ENGINE = MergeTree ORDER BY a AS SELECT a FROM {table}_all",
    ):
        server.execute(sql)
    MADE.extend((server, f"DROP TABLE {table}_{name}") for name in ("seen", "all"))
    given = {"url": str(server), "cluster_file": str(local.config_file), "table": f"{table}_all"}
    with pytest.raises(ConfigError, match=f"{table}_seen"):
        Job.begin(Options.parse({**given, "delivery": "direct"}), SCHEMA, Mode.APPEND)


def test_an_id_that_no_partition_has_is_refused_before_anything_is_staged(servers: Servers) -> None:
    """It would replace nothing, and nobody would notice."""
    table = make_table(servers)
    for ids in ("2013-01", "0,x"):
        with pytest.raises(
            ConfigError, match=r"\(PARTITION BY a % 2\) can have the id (2013-01|x): ids are like 7"
        ):
            begin(servers, table, mode=Mode.OVERWRITE_PARTITIONS, partitions=ids)
    with pytest.raises(ConfigError, match="partitions names what a load replaces, and this one adds rows"):
        begin(servers, table, partitions="0")
    begin(servers, table, mode=Mode.OVERWRITE_PARTITIONS, partitions="0,1,201301")


def test_an_id_of_a_column_that_is_a_tuple_is_a_hash(nodes: Servers) -> None:
    table = nodes.table("a UInt32, s String, t Tuple(UInt8, Date)", rest="PARTITION BY t ORDER BY a")
    server = nodes.shards[0][0]
    server.execute(f"INSERT INTO {table} VALUES (1, 'x', (1, '2013-01-31'))")
    partition = server.text(f"SELECT DISTINCT _partition_id FROM {table}")
    begin(nodes, table, mode=Mode.OVERWRITE_PARTITIONS, partitions=partition)


def test_staged_parts_that_the_table_would_not_take_end_the_job_before_it_is_decided(nodes: Servers) -> None:
    """1. The table's key is another one than the job takes it for. 2. Rows are staged. 3. The job commits."""
    table = make_table(nodes)
    job = begin(nodes, table)
    job = replace(job, target=replace(job.target, sorting_key="a, s"))
    with pytest.raises(SqlError, match="different") as refused:
        finish(job, [attempt(job, task=0, number=1)])
    assert "Nothing was written" in refused.value.hint
    assert "job_id" not in refused.value.hint
    assert job.decisions.progress(job.key)[1] is None
    give_up(job)
    assert sum(nodes.counts(table)) == 0


@pytest.mark.extended
@pytest.mark.parametrize("altered", [0, 1], ids=["the first was staged later", "the second was staged later"])
def test_a_table_that_is_altered_while_tasks_run_ends_the_load_before_it_is_decided(
    nodes: Servers, altered: int
) -> None:
    """1. One task has staged. 2. The table gets a column. 3. The other task stages, and the job commits."""
    table = make_table(nodes)
    job = begin(nodes, table)
    messages = [attempt(job, task=1 - altered, number=1, first=0, last=30)]
    for shard in nodes.shards:
        shard[0].execute(f"ALTER TABLE {table} ADD COLUMN x UInt8")
    messages.append(attempt(job, task=altered, number=2, first=30))
    with pytest.raises(SqlError, match=r"other columns|different structure") as refused:
        finish(job, messages)
    assert refused.value.code == Code.INCOMPATIBLE_COLUMNS
    assert "run it again" in refused.value.hint
    give_up(job)
    again = begin(nodes, table)
    finish(again, [attempt(again, task=0, number=3)])
    assert is_once(nodes, table)
