"""Distributed tables on real nodes: definitions, and INSERT over two shards of two replicas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from engine.names import quote_string
from engine.testing.cluster_files import clusters_xml
from engine.testing.local_cluster import blocking_cluster
from tests.few import few_first
from tests.node.distributed_cluster import FOREGROUND, SHARDS, Cluster, refused
from tests.node.http_client import HttpAt
from tests.node.replicated_pair import eventually
from tests.warm import warm

pytestmark = pytest.mark.slow

WEIGHTED = """
<w>
  <shard><weight>1</weight><replica><host>n1</host><port>9000</port></replica></shard>
  <shard><weight>0</weight><replica><host>n2</host><port>9000</port></replica></shard>
  <shard><weight>2</weight><replica><host>n3</host><port>9000</port></replica>
    <replica><host>n4</host><port>9000</port></replica></shard>
</w>
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("distributed")
    file = directory / "clusters.xml"
    text = clusters_xml({"c": [list(shard) for shard in SHARDS]})
    file.write_text(text.replace("</remote_servers>", f"{WEIGHTED}</remote_servers>"))
    with blocking_cluster(directory / "cluster", cluster_file=file, launch=warm) as (local, call):
        yield Cluster(local, call)


def test_rows_go_to_the_shard_that_the_key_says(cluster: Cluster) -> None:
    name = cluster.tables()
    cluster.n1.query(f"INSERT INTO {name}_d SELECT number, toString(number) FROM numbers(100)", **FOREGROUND)
    assert cluster.rows(name) == [
        list(range(0, 100, 2)),
        list(range(1, 100, 2)),
    ]
    full = cluster.n1.query(f"SELECT engine, engine_full FROM system.tables WHERE name = '{name}_d'")
    assert full == f"Distributed\tDistributed(\\'c\\', \\'default\\', \\'{name}\\', k)\n"
    assert f"ENGINE = Distributed('c', 'default', '{name}', k)" in cluster.n1.query(
        f"SHOW CREATE TABLE {name}_d FORMAT TSVRaw"
    )


def test_rows_may_come_as_a_stream_and_as_values(cluster: Cluster) -> None:
    name = cluster.tables()
    node = cluster.nodes["n4"]
    node.query(f"INSERT INTO {name}_d VALUES (1, 'a'), (2, 'b')", **FOREGROUND)
    node.query("3\tc\n4\td\n", query=f"INSERT INTO {name}_d (k, v) FORMAT TSV", **FOREGROUND)
    assert cluster.rows(name) == [[2, 4], [1, 3]]


def test_values_of_materialized_columns_arrive_where_an_insert_may_give_them(cluster: Cluster) -> None:
    name = cluster.tables("k UInt64, m UInt64 MATERIALIZED k + 1")
    allowed = {"insert_allow_materialized_columns": "1"}
    n1 = cluster.n1
    n1.query(f"INSERT INTO {name}_d (k, m) VALUES (1, 51), (2, 52)", **allowed, **FOREGROUND)
    n1.query(f"INSERT INTO {name}_d (k, m) SELECT number + 3, number + 53 FROM numbers(2)", **allowed)
    n1.query(f"INSERT INTO {name}_d (k) VALUES (5), (6)", **allowed)
    n1.query(f"INSERT INTO FUNCTION cluster(c, default, {name}, k) (k, m) VALUES (7, 57), (8, 58)", **allowed)
    n1.query(f"SYSTEM FLUSH DISTRIBUTED {name}_d")
    assert cluster.rows(name, "groupArray(m)", of="k, m") == [[52, 54, 7, 58], [51, 53, 6, 57]]


def test_columns_that_a_setting_allowed_once_are_written_read_and_altered_without_it(
    cluster: Cluster,
) -> None:
    """And a Nested that was made as one column stays one."""
    n1 = cluster.n1
    columns = (
        "k UInt64, low LowCardinality(UInt8), fixed FixedString(300), other Variant(UInt32, Int64), "
        "packed UInt64 CODEC(DoubleDelta, Gorilla, NONE), nested Nested(a UInt8, b String)"
    )
    kinds = ("low_cardinality_types", "fixed_string_types", "variant_types", "codecs")
    allowed = {f"allow_suspicious_{kind}": "1" for kind in kinds}
    for name, engine in (
        ("allowed", "MergeTree ORDER BY k"),
        ("allowed_d", "Distributed(w, default, allowed, k)"),
    ):
        create = f"CREATE TABLE {name} ON CLUSTER w ({columns}) ENGINE = {engine}"
        n1.query(create, flatten_nested="0", **allowed)
    rows = (
        "SELECT number, number, toString(number), toUInt32(number), number, [(number, 'x')] FROM numbers(4)"
    )
    n1.query(f"INSERT INTO allowed_d {rows}")
    n1.query(f"INSERT INTO allowed_d {rows}", max_insert_block_size="1000", **FOREGROUND)
    n1.query("SYSTEM FLUSH DISTRIBUTED allowed_d")
    expected = "".join(f"{k}\t{k}\t{k}\t{k}\t{k}\t[({k},'x')]\n" for k in (0, 0, 1, 1, 2, 2, 3, 3))
    read = "SELECT k, low, toStringCutToZero(fixed), other, packed, nested FROM allowed_d ORDER BY k"
    assert [n1.query(read), n1.query(read)] == [expected, expected]
    assert n1.query("SELECT count(), max(low), uniq(fixed) FROM allowed_d") == "8\t3\t4\n"
    for alter in ("ADD COLUMN z UInt8", "RENAME COLUMN z TO y", "DROP COLUMN y"):
        n1.query(f"ALTER TABLE allowed_d {alter}")
    assert [n1.query(read), n1.query(read)] == [expected, expected]


def test_an_insert_repeated_with_its_token_writes_nothing_twice(cluster: Cluster) -> None:
    name = cluster.tables()
    for _ in range(2):
        cluster.n1.query(
            f"INSERT INTO {name}_d SELECT number, '' FROM numbers(10)",
            insert_deduplication_token="once",
            **FOREGROUND,
        )
    # Also where the rows come in another way, and are staged in memory and not on disk.
    cluster.n1.query(
        "".join(f"{k}\t\n" for k in range(10)),
        query=f"INSERT INTO {name}_d FORMAT TSV",
        insert_deduplication_token="once",
        **FOREGROUND,
    )
    assert cluster.rows(name, "count()") == [5, 5]


@pytest.mark.parametrize("token", few_first(["mine", ""], few=1))
@pytest.mark.parametrize("foreground", few_first(["1", "0"], few=1))
def test_what_two_shards_write_on_to_one_table_is_there_once(
    cluster: Cluster, foreground: str, token: str
) -> None:
    """By a Distributed table on each shard, and by a view there. With one token for both shards the table
    took the second one's rows for those of the first."""
    below, above = cluster.tables(), cluster.tables(key="intDiv(k, 2)")
    cluster.n1.query(
        f"CREATE TABLE {above}_on ON CLUSTER c (k UInt64, v String) "
        f"ENGINE = Distributed(c, default, {below}_d, intDiv(k, 2))"
    )
    cluster.n1.query(
        f"CREATE MATERIALIZED VIEW {above}_v ON CLUSTER c TO {below}_d "
        f"AS SELECT k + 1000 AS k, v FROM {above}"
    )
    mine = {"distributed_foreground_insert": foreground}
    mine |= {"insert_deduplication_token": token} if token else {}
    for _ in range(2 if token else 1):
        for target in ("on", "d"):
            cluster.n1.query(
                f"INSERT INTO {above}_{target} SELECT number, toString(number) FROM numbers(40)", **mine
            )
            for table in (f"{above}_{target}", f"{below}_d"):
                for node in cluster.nodes.values():
                    node.query(f"SYSTEM FLUSH DISTRIBUTED {table}")
    found = [k for of_shard in cluster.rows(below) for k in of_shard]
    assert sorted(found) == sorted(k + more for k in range(40) for more in (0, 1000))


def test_an_insert_repeated_with_its_token_is_written_once_whatever_is_sent_with_it(cluster: Cluster) -> None:
    """A batch's token is another one than those of its files."""
    name = cluster.tables(settings="SETTINGS background_insert_batch = 1")

    def insert(key: int, **settings: str) -> None:
        cluster.n1.query(f"INSERT INTO {name}_d VALUES ({key}, '')", **settings)

    for before in ((), (5, 7)):
        cluster.n1.query(f"SYSTEM STOP DISTRIBUTED SENDS {name}_d")
        for key in before:
            insert(key)
        for _ in range(2):
            insert(1, insert_deduplication_token="once")
        cluster.n1.query(f"SYSTEM START DISTRIBUTED SENDS {name}_d")
        cluster.n1.query(f"SYSTEM FLUSH DISTRIBUTED {name}_d")
    assert cluster.rows(name) == [[], [1, 5, 7]]


def test_rows_that_go_to_one_random_shard_go_to_all_of_them_in_the_end(cluster: Cluster) -> None:
    name = cluster.tables()
    cluster.n1.query(f"CREATE TABLE {name}_any AS {name} ENGINE = Distributed(c, default, {name})")
    one = {"insert_distributed_one_random_shard": "1", **FOREGROUND}
    by_shard: list[list[int]] = [[], []]
    for key in range(0, 400, 2):  # by chance one shard got all of the two hundred: once in 2 ** 199 runs
        cluster.n1.query(f"INSERT INTO {name}_any VALUES ({key}, ''), ({key + 1}, '')", **one)
        by_shard = cluster.rows(name)
        if all(by_shard):
            break
    assert all(by_shard), "each shard got some"
    assert all(key ^ 1 in keys for keys in by_shard for key in keys), "the rows of an INSERT stay together"


def test_rows_that_do_not_fit_the_shards_table_are_told_and_wait_until_they_do(cluster: Cluster) -> None:
    """In the foreground the error names the shard; in the background they wait, visibly."""
    name = cluster.tables()
    n1 = cluster.n1
    n1.query(f"CREATE TABLE {name}_text (k UInt64, v String) ENGINE = Distributed(c, default, {name}_int, k)")
    n1.query(f"CREATE TABLE {name}_int ON CLUSTER c (k UInt64, v UInt8) ENGINE = MergeTree ORDER BY k")
    told = refused(n1, f"INSERT INTO {name}_text VALUES (1, 'one')", **FOREGROUND)
    assert "shard 2" in told.text
    n1.query(f"INSERT INTO {name}_text VALUES (1, 'one')")
    refused(n1, f"SYSTEM FLUSH DISTRIBUTED {name}_text")
    waiting = queue(n1, f"{name}_text")
    assert (waiting["data_files"], waiting["broken_data_files"]) == (1, 0)
    assert "one" in waiting["last_exception"]
    for host in SHARDS[1]:
        cluster.nodes[host].query(f"ALTER TABLE {name}_int MODIFY COLUMN v String")
    n1.query(f"SYSTEM FLUSH DISTRIBUTED {name}_text")
    found = [cluster.nodes[host].query(f"SELECT * FROM {name}_int") for host in SHARDS[1]]
    assert sorted(found) == ["", "1\tone\n"]


def queue(node: HttpAt, table: str) -> dict[str, Any]:
    sql = f"SELECT * FROM system.distribution_queue WHERE table = '{table}' FORMAT JSONEachRow"
    [row] = [json.loads(line) for line in node.query(sql).splitlines()]
    assert isinstance(row, dict)
    return row


def test_in_the_background_rows_wait_for_a_shard_that_is_down(cluster: Cluster) -> None:
    name = cluster.tables()
    for host in SHARDS[1]:
        cluster.call(cluster.local.node(host).kill9())
    try:
        cluster.n1.query(f"INSERT INTO {name}_d SELECT number, '' FROM numbers(10)")
        assert refused(cluster.n1, f"SYSTEM FLUSH DISTRIBUTED {name}_d").code == 279
        row = queue(cluster.n1, f"{name}_d")
        assert (row["data_files"], row["broken_data_files"]) == (1, 0)
        assert row["data_path"].endswith("/shard2_all_replicas/")
        assert int(row["error_count"]) > 0
        assert "All connection tries failed" in row["last_exception"]
        reply = refused(
            cluster.n1, f"INSERT INTO {name}_d SELECT number + 100, '' FROM numbers(10)", **FOREGROUND
        )
        assert reply.code == 279
        assert "Wrote 1 blocks and 5 rows on shard 1 replica" in reply.text
        failures = "SELECT host_name, errors_count, estimated_recovery_time FROM system.clusters"
        shown = cluster.n1.query(f"{failures} WHERE shard_num = 2 AND errors_count > 0 FORMAT TSV")
        assert {line.split("\t")[0] for line in shown.splitlines()} == set(SHARDS[1])
        # Nothing that is pending is lost to a statement that takes the table, or its columns' names, away.
        for change in (
            f"ALTER TABLE {name}_d RENAME COLUMN v TO w",
            f"CREATE OR REPLACE TABLE {name}_d (k UInt64) ENGINE = Distributed(c, default, other, k)",
            f"CREATE OR REPLACE TABLE {name}_d (k UInt64) ENGINE = MergeTree ORDER BY k",
        ):
            reply = refused(cluster.n1, change)
            assert (reply.code, "could not be sent" in reply.text) == (279, True)
        # The node is killed with rows pending, and sends them when it is there again. What a replacement that
        # was under way had made by then goes.
        unfinished = f"_tmp_replace_{'0' * 32}"
        cluster.n1.query(f"CREATE TABLE {unfinished} (k UInt64) ENGINE = Distributed(c, default, {name})")
        cluster.call(cluster.local.node("n1").kill9())
        cluster.call(cluster.local.node("n1").start())
    finally:
        for host in SHARDS[1]:
            if not cluster.local.node(host).is_running:
                cluster.call(cluster.local.node(host).start())
    assert cluster.n1.query(f"EXISTS TABLE {unfinished}") == "0\n"
    cluster.n1.query(f"SYSTEM FLUSH DISTRIBUTED {name}_d")
    assert cluster.rows(name) == [[0, 2, 4, 6, 8, 100, 102, 104, 106, 108], [1, 3, 5, 7, 9]]
    assert queue(cluster.n1, f"{name}_d")["data_files"] == 0


def test_sends_are_stopped_and_started_and_pending_bytes_are_limited(cluster: Cluster) -> None:
    name = cluster.tables(settings="SETTINGS bytes_to_throw_insert = 100, background_insert_batch = 1")
    cluster.n1.query(f"SYSTEM STOP DISTRIBUTED SENDS {name}_d")
    cluster.n1.query(f"INSERT INTO {name}_d VALUES (1, 'a'), (2, 'b')")
    assert cluster.rows(name) == [[2], []]
    assert queue(cluster.n1, f"{name}_d")["is_blocked"] == 1
    assert refused(cluster.n1, f"INSERT INTO {name}_d VALUES (3, 'c')").code == 574
    cluster.n1.query(f"SYSTEM START DISTRIBUTED SENDS {name}_d")
    cluster.n1.query(f"SYSTEM FLUSH DISTRIBUTED {name}_d")
    assert cluster.rows(name) == [[2], [1]]
    cluster.n1.query(f"INSERT INTO {name}_d VALUES (3, 'c')")
    cluster.n1.query(f"DETACH TABLE {name}_d")  # sends first
    assert cluster.rows(name) == [[2], [1, 3]]
    cluster.n1.query(f"ATTACH TABLE {name}_d")
    cluster.n1.query(f"INSERT INTO {name}_d VALUES (4, 'd')")
    assert cluster.rows(name) == [[2, 4], [1, 3]]


def test_an_insert_waits_for_what_is_pending_as_long_as_the_table_says(cluster: Cluster) -> None:
    name = cluster.tables(settings="SETTINGS bytes_to_delay_insert = 10, max_delay_to_insert = 1")
    cluster.n1.query(f"SYSTEM STOP DISTRIBUTED SENDS {name}_d")
    cluster.n1.query(f"INSERT INTO {name}_d VALUES (1, 'a')")
    assert refused(cluster.n1, f"INSERT INTO {name}_d VALUES (3, 'b')").code == 574
    cluster.n1.query(f"SYSTEM FLUSH DISTRIBUTED {name}_d")
    cluster.n1.query(f"INSERT INTO {name}_d VALUES (5, 'c')")
    cluster.n1.query(f"SYSTEM FLUSH DISTRIBUTED {name}_d")
    assert cluster.rows(name) == [[], [1, 5]]


def test_how_a_shards_table_takes_rows_is_said_by_the_settings_of_the_insert(cluster: Cluster) -> None:
    n1 = cluster.n1
    n1.query(
        "CREATE TABLE doubled ON CLUSTER c (k UInt64, v String) "
        "ENGINE = ReplicatedReplacingMergeTree('/t/doubled/{c_shard}', '{replica}') PARTITION BY k ORDER BY k"
    )
    n1.query("CREATE TABLE doubled_d ENGINE = Distributed(c, default, doubled, k)")
    rows = "VALUES (2, 'a'), (2, 'b'), (4, 'c')"
    partitions = {"max_partitions_per_insert_block": "1", **FOREGROUND}
    assert refused(n1, f"INSERT INTO doubled_d {rows}", **partitions).code == 252
    of_both = "max_partitions_per_insert_block = 1 SELECT number, 'd' FROM numbers(2, 2)"
    n1.query(f"INSERT INTO doubled_d SETTINGS {of_both}")  # one of each shard
    n1.query("SYSTEM FLUSH DISTRIBUTED doubled_d")
    n1.query("ALTER TABLE doubled ON CLUSTER c DELETE WHERE v = 'd' SETTINGS mutations_sync = 2")
    n1.query(f"INSERT INTO doubled_d SETTINGS optimize_on_insert = 0 {rows}")
    n1.query("SYSTEM FLUSH DISTRIBUTED doubled_d")
    assert cluster.rows("doubled") == [[2, 2, 4], []]
    n1.query("ALTER TABLE doubled ON CLUSTER c MODIFY SETTING max_partitions_to_read = 1")
    for local in ("0", "1"):  # to learn that the table is there reads no partition
        asked = {"prefer_localhost_replica": local}
        assert n1.query("SELECT count() FROM doubled_d WHERE k = 2", **asked) == "2\n"
        assert refused(n1, "SELECT count() FROM doubled_d WHERE v != ''", **asked).code == 565
        unlimited = "SELECT count() FROM doubled_d WHERE v != '' SETTINGS max_partitions_to_read = 0"
        assert n1.query(unlimited, **asked) == "3\n"


def test_states_of_a_function_in_preview_are_written_and_read(cluster: Cluster) -> None:
    session = {"session_id": "preview", "load_balancing": "in_order"}
    cluster.n1.query("SET allow_experimental_ts_to_grid_aggregate_function = 1", **session)
    columns = "k UInt64, s AggregateFunction(timeSeriesLastTwoSamples, DateTime64(3, 'UTC'), Float64)"
    create = f"CREATE TABLE states ({columns}) ENGINE = MergeTree ORDER BY k"
    for node in cluster.nodes.values():
        node.query(create, enable_time_series_aggregate_functions="1")
    engine = "ENGINE = Distributed(c, default, states, k)"
    cluster.n1.query(f"CREATE TABLE states_d ({columns}) {engine}", **session)
    made = "'timeSeriesLastTwoSamplesState', toDateTime64(number, 3, 'UTC'), toFloat64(number)"
    insert = f"INSERT INTO states_d SELECT number, initializeAggregation({made}) FROM numbers(4)"
    cluster.n1.query(insert, **session, **FOREGROUND)
    read = "SELECT k, finalizeAggregation(s).2 FROM states_d ORDER BY k"
    for _ in range(2):  # the session has its setting after a statement, too
        assert cluster.n1.query(read, **session) == "0\t[0]\n1\t[1]\n2\t[2]\n3\t[3]\n"


def test_a_node_of_distributed_tables_alone_does_not_show_its_own_database(cluster: Cluster) -> None:
    cluster.n1.query("CREATE TABLE alone (k UInt64) ENGINE = Distributed(c, default, nowhere)")
    cluster.n1.query("ALTER TABLE alone ADD COLUMN v UInt64")
    for sql in ("SHOW DATABASES", "SELECT name FROM system.databases"):
        assert "_oncluster" not in cluster.n1.query(sql)


def test_columns_that_a_create_does_not_list_are_those_of_the_shards(cluster: Cluster) -> None:
    create = "CREATE TABLE {} ENGINE = Distributed(c, default, listed)"
    assert refused(cluster.n1, create.format("listed_d")).code == 279
    for node in cluster.nodes.values():
        node.query(
            "CREATE TABLE listed (k UInt64, low LowCardinality(UInt8) DEFAULT 5, m UInt8 MATERIALIZED k + 1, "
            "`a b` String ALIAS upper('x')) ENGINE = MergeTree ORDER BY k",
            allow_suspicious_low_cardinality_types="1",
        )
    cluster.n1.query(create.format("listed_d"))
    cluster.n1.query(create.format("listed_d ON CLUSTER c").replace("CREATE", "CREATE OR REPLACE"))
    cluster.n1.query("INSERT INTO listed_d (k) VALUES (1)", insert_shard_id="1", **FOREGROUND)
    for node in cluster.nodes.values():
        described = "SELECT name, type, default_kind, default_expression FROM system.columns WHERE table = "
        assert node.query(f"{described}'listed_d'") == node.query(f"{described}'listed'")
    assert cluster.n1.query("SELECT *, m, `a b` FROM listed_d") == "1\t5\t2\tX\n"


def test_definitions_are_checked_and_ddl_touches_the_distributed_table_only(cluster: Cluster) -> None:
    node = cluster.n1
    assert refused(node, "CREATE TABLE e (k UInt8) ENGINE = Distributed(c, default)").code == 42
    assert refused(node, "CREATE TABLE e (k String) ENGINE = Distributed(c, default, t, k)").code == 53
    assert refused(node, "CREATE TABLE e (k UInt8) ENGINE = Distributed(c, default, t, no)").code == 47
    assert refused(node, "CREATE TABLE e (k UInt8) ENGINE = Distributed(c, '', t) SETTINGS x = 1").code == 115
    policy = "CREATE TABLE e (k UInt8) ENGINE = Distributed(c, default, t, k, '{}')"
    assert refused(node, policy.format("no such")).code == 478
    node.query(policy.format("default").replace("CREATE", "ATTACH"))
    assert "Distributed('c'" in node.query("SHOW CREATE TABLE e FORMAT TSVRaw")
    always = "SETTINGS show_create_query_identifier_quoting_rule = 'always' FORMAT TSVRaw"
    assert "Distributed('c'" in (quoted := node.query(f"SHOW CREATE TABLE e {always}"))
    assert "`.`e`" in quoted
    assert refused(node, "CREATE TABLE b AS e ENGINE = Buffer(default, e, 1, 1, 1, 1, 1, 1, 1)").code == 48
    refresh = "CREATE MATERIALIZED VIEW v REFRESH EVERY 1 HOUR ENGINE = Memory AS SELECT k FROM e"
    assert refused(node, refresh).code == 48
    node.query("CREATE TABLE early (k UInt8) ENGINE = Distributed(nowhere, default, later)")
    assert refused(node, "INSERT INTO early VALUES (1)").code == 701
    node.query("CREATE TABLE keyless (k UInt8) ENGINE = Distributed(c, default, later)")
    assert refused(node, "INSERT INTO keyless VALUES (1)").code == 55
    assert refused(node, "INSERT INTO keyless VALUES (1)", insert_shard_id="3").code == 577
    assert refused(node, "INSERT INTO keyless VALUES (1)", insert_shard_id="2").code == 60
    node.query("CREATE TABLE later ON CLUSTER c (k UInt8) ENGINE = MergeTree ORDER BY k")
    node.query("INSERT INTO keyless VALUES (1)", insert_shard_id="1", prefer_localhost_replica="0")
    node.query("INSERT INTO keyless VALUES (2)", insert_distributed_one_random_shard="1", **FOREGROUND)
    found = {host: each.query("SELECT k FROM later").split() for host, each in cluster.nodes.items()}
    assert sorted(key for keys in found.values() for key in keys) == ["1", "2"]
    assert "1" in found["n1"] + found["n2"], "the shard that was chosen"
    node.query("RENAME TABLE keyless TO renamed")
    node.query("ALTER TABLE renamed ADD COLUMN more String DEFAULT 'x'")
    assert "more" in node.query("SHOW CREATE TABLE renamed")
    assert refused(node, "ALTER TABLE renamed DELETE WHERE 1").code == 48
    assert refused(node, "CHECK TABLE renamed").code == 48
    assert refused(node, "INSERT INTO renamed VALUES (1, 'x')", insert_shard_id="1").code in (10, 16)
    node.query("CREATE DATABASE gone")
    node.query("CREATE TABLE gone.t (k UInt8) ENGINE = Distributed(c, default, later)")
    node.query("CREATE TABLE gone.p (k UInt8) ENGINE = MergeTree ORDER BY k")
    node.query("INSERT INTO gone.p VALUES (1)")
    node.query("TRUNCATE ALL TABLES FROM gone LIKE 't'")
    assert node.query("SELECT count() FROM gone.p") == "1\n"
    node.query("TRUNCATE ALL TABLES FROM gone")
    assert node.query("SELECT count() FROM gone.p") == "0\n"
    node.query("TRUNCATE DATABASE gone")  # drops all its tables
    node.query("CREATE TABLE gone.t (k UInt8) ENGINE = Distributed(c, default, later)")
    node.query("DROP DATABASE gone")
    node.query("TRUNCATE TABLE renamed")
    node.query("DROP TABLE renamed")
    node.query("DROP TABLE early")
    assert sum(int(each.query("SELECT count() FROM later")) for each in cluster.nodes.values()) == 2
    assert node.query(
        "SELECT count() FROM system.tables WHERE engine = 'Distributed' AND name = 'renamed'"
    ) == ("0\n")


def test_all_tables_of_a_database_are_truncated_and_those_of_the_shards_are_not(cluster: Cluster) -> None:
    n1 = cluster.n1
    name = cluster.tables("k UInt64")
    n1.query("CREATE DATABASE emptied")
    n1.query(f"CREATE TABLE emptied.d (k UInt64) ENGINE = Distributed(c, default, {name}, k)")
    n1.query("CREATE TABLE emptied.plain (k UInt64) ENGINE = MergeTree ORDER BY k")
    n1.query("CREATE TABLE emptied.`pl ain` (k UInt64) ENGINE = MergeTree ORDER BY k")
    replicated = "ReplicatedMergeTree('/t/emptied', '{replica}')"
    n1.query(f"CREATE TABLE emptied.replicated (k UInt64) ENGINE = {replicated} ORDER BY k")
    n1.query("CREATE VIEW emptied.seen AS SELECT k FROM emptied.d")
    n1.query("INSERT INTO emptied.d VALUES (1), (2)", **FOREGROUND)
    n1.query("SYSTEM STOP DISTRIBUTED SENDS emptied.d")
    n1.query("INSERT INTO emptied.d VALUES (3), (4)", prefer_localhost_replica="0")
    tables = ("plain", "pl ain", "replicated")
    for table in tables:
        n1.query(f"INSERT INTO emptied.`{table}` VALUES (1), (2), (3)")
    pending = "SELECT sum(data_files) FROM system.distribution_queue WHERE database = 'emptied'"
    for like, empty, files in (
        (" LIKE 'pl%'", {"plain", "pl ain"}, "2"),
        (" NOT ILIKE 'D'", {"plain", "pl ain", "replicated"}, "2"),
        ("", {"plain", "pl ain", "replicated"}, "0"),
    ):
        n1.query(f"TRUNCATE ALL TABLES FROM emptied{like}")
        rows = {table: n1.query(f"SELECT count() FROM emptied.`{table}`") for table in tables}
        assert {table for table in tables if rows[table] == "0\n"} == empty
        assert n1.query(pending) == f"{files}\n"
    n1.query("SYSTEM START DISTRIBUTED SENDS emptied.d")
    n1.query("SYSTEM FLUSH DISTRIBUTED emptied.d")
    assert n1.query("SELECT count() FROM emptied.seen") == "2\n"
    n1.query("DROP DATABASE emptied SYNC")


def test_weights_and_copies_made_by_the_distributed_table(cluster: Cluster) -> None:
    n1 = cluster.n1
    n1.query("CREATE TABLE plain ON CLUSTER c (k Int64) ENGINE = MergeTree ORDER BY k")
    n1.query("CREATE TABLE plain_d (k Int64) ENGINE = Distributed(w, default, plain, k)")
    for settings in (FOREGROUND, {}):
        n1.query("INSERT INTO plain_d SELECT number FROM numbers(30)", **settings)
        n1.query("SYSTEM FLUSH DISTRIBUTED plain_d")
    n1.query("INSERT INTO plain_d VALUES (-1)", **FOREGROUND)  # 2^64 - 1 is a multiple of 3
    found = {
        host: node.query("SELECT count(), sum(k % 3 = 0) FROM plain") for host, node in cluster.nodes.items()
    }
    assert found == {"n1": "21\t20\n", "n2": "0\t0\n", "n3": "40\t0\n", "n4": "40\t0\n"}


HASHES = (
    15279939326958687716,
    15458318771369903492,
    15252398272164712357,
    3397354176248411641,
    5738714200752914129,
    4200167888133657719,
    14015045182238828181,
    5650261921585181169,
    7743458259446521642,
    11010841782303903726,
)
"""cityHash64('order_0') and so on, as a ClickHouse 18.16 server has them; it sends rows to `hash % 2`."""


def test_shards_are_those_that_a_server_chooses(cluster: Cluster) -> None:
    name = cluster.tables(key="cityHash64(v)")
    cluster.n1.query(
        f"INSERT INTO {name}_d SELECT number, concat('order_', toString(number)) FROM numbers(10)",
        **FOREGROUND,
    )
    expected = [[k for k, value in enumerate(HASHES) if value % 2 == shard] for shard in (0, 1)]
    assert cluster.rows(name) == expected


def test_a_random_key_is_drawn_for_each_row(cluster: Cluster) -> None:
    name = cluster.tables(key="rand()")
    cluster.n1.query(f"INSERT INTO {name}_d SELECT number, '' FROM numbers(10000)", **FOREGROUND)
    one, two = cluster.rows(name, "count()")
    assert one + two == 10000
    assert 4500 < one < 5500


def test_a_broken_file_is_put_aside_and_the_others_are_sent(cluster: Cluster) -> None:
    name = cluster.tables()
    n1 = cluster.n1
    n1.query(f"SYSTEM STOP DISTRIBUTED SENDS {name}_d")
    n1.query(f"INSERT INTO {name}_d VALUES (1, 'a')")
    n1.query(f"INSERT INTO {name}_d VALUES (3, 'b')")
    first = sorted(Path(queue(n1, f"{name}_d")["data_path"]).glob("*.bin"))[0]
    data = bytearray(first.read_bytes())
    data[-40] ^= 1
    first.write_bytes(data)
    n1.query(f"SYSTEM FLUSH DISTRIBUTED {name}_d")
    row = queue(n1, f"{name}_d")
    assert (row["data_files"], row["broken_data_files"]) == (0, 1)
    assert "is broken" in row["last_exception"]
    assert cluster.rows(name) == [[], [3]]


@pytest.mark.parametrize(
    "settings",
    few_first([{"deduplicate_insert": "disable"}, {"insert_deduplicate": "0"}], few=1),
    ids=["newer", "older"],
)
def test_rows_that_are_sent_again_are_there_once_though_equal_ones_are_stored_as_often_as_they_come(
    cluster: Cluster, settings: dict[str, str]
) -> None:
    """1. Two INSERTs of equal rows, with one token even, say that repetitions are to be stored. 2. Both are
    delivered. 3. Their files are there again, as after a crash between the receiver's answer and the
    removal."""
    name = cluster.tables()
    n1 = cluster.n1
    n1.query(f"SYSTEM STOP DISTRIBUTED SENDS {name}_d")
    for _ in range(2):
        n1.query(f"INSERT INTO {name}_d VALUES (1, 'a')", insert_deduplication_token="mine", **settings)
    files = sorted(Path(queue(n1, f"{name}_d")["data_path"]).glob("*.bin"))
    kept = {file: file.read_bytes() for file in files}
    assert len(kept) == 2
    n1.query(f"SYSTEM FLUSH DISTRIBUTED {name}_d")
    assert cluster.rows(name) == [[], [1, 1]]
    n1.query(f"DETACH TABLE {name}_d")
    for file, data in kept.items():
        assert not file.exists()
        file.write_bytes(data)
    n1.query(f"ATTACH TABLE {name}_d")
    n1.query(f"SYSTEM FLUSH DISTRIBUTED {name}_d")
    assert queue(n1, f"{name}_d")["data_files"] == 0
    assert cluster.rows(name) == [[], [1, 1]]


def test_a_table_that_leads_to_itself_is_refused(cluster: Cluster) -> None:
    n1 = cluster.n1
    n1.query("CREATE TABLE ring (k UInt8) ENGINE = Distributed(w, default, ring, 0)")
    assert refused(n1, "INSERT INTO ring VALUES (1)", **FOREGROUND).code == 581
    n1.query("DROP TABLE ring")
    # Round two nodes: n1 sends to shard 2 of c, and n3, whose key says so, back to shard 1.
    for host, key in (("n1", 1), ("n2", 1), ("n3", 0), ("n4", 0)):
        cluster.nodes[host].query(
            f"CREATE TABLE ring (k UInt8) ENGINE = Distributed(c, default, ring, {key})"
        )
    assert refused(n1, "INSERT INTO ring VALUES (1)", **FOREGROUND).code == 581


def test_table_functions_are_written_to(cluster: Cluster) -> None:
    name = cluster.tables("k UInt64, v String DEFAULT 'd'")
    n1 = cluster.n1
    n1.query(f"INSERT INTO FUNCTION cluster('c', default, {name}, k) (k) SELECT number FROM numbers(4)")
    n1.query("4\tx\n5\ty\n", query=f"INSERT INTO TABLE FUNCTION cluster(c, default.{name}, k) FORMAT TSV")
    n1.query(
        f"INSERT INTO FUNCTION remote('n1,n3', default, {name}, 'default', '', k) VALUES (6, 'z'), (7, 'z')"
    )
    n1.query(
        f"INSERT INTO FUNCTION remote('n3:9000', default, {name}) SETTINGS async_insert = 1 VALUES (9, 'z')"
    )
    assert cluster.rows(name) == [[0, 2, 4, 6], [1, 3, 5, 7, 9]]
    assert cluster.rows(name, "uniqExact(v)") == [3, 3]
    assert refused(n1, f"INSERT INTO FUNCTION cluster(c, default, {name}) VALUES (1, '')").code == 55
    assert refused(n1, f"INSERT INTO FUNCTION cluster(nowhere, default, {name}) VALUES (1, '')").code == 701
    assert refused(n1, "INSERT INTO FUNCTION cluster(c, default, away, k) VALUES (1, '')").code == 279


def test_on_cluster_ddl_and_like_another_distributed_table(cluster: Cluster) -> None:
    name = cluster.tables()
    n1, n3 = cluster.n1, cluster.nodes["n3"]
    n1.query(f"CREATE TABLE like_{name} AS {name}_d")
    assert f"Distributed('c', 'default', '{name}', k)" in n1.query(
        f"SHOW CREATE TABLE like_{name} FORMAT TSVRaw"
    )
    n1.query(f"CREATE TABLE as_{name} AS {name} ENGINE = Distributed('c', currentDatabase(), {name}, k)")
    n1.query(f"INSERT INTO as_{name} VALUES (5, 'x')", **FOREGROUND)
    assert cluster.rows(name) == [[], [5]]
    n1.query(f"RENAME TABLE {name}_d TO {name}_e ON CLUSTER c")
    n3.query(f"INSERT INTO {name}_e VALUES (6, 'x')", **FOREGROUND)
    assert cluster.rows(name) == [[6], [5]]
    n1.query(f"DROP TABLE {name}_e ON CLUSTER c")
    sql = f"SELECT count() FROM system.tables WHERE name = '{name}_e'"
    assert [node.query(sql) for node in cluster.nodes.values()] == ["0\n"] * 4
    assert n3.query(f"SELECT count() FROM {name}") == "1\n"


def test_a_table_is_made_and_filled_by_one_statement(cluster: Cluster) -> None:
    name = cluster.tables()
    n1 = cluster.n1
    made = f"ENGINE = Distributed(c, default, {name}, k) AS SELECT number AS k, 'x' AS v FROM numbers(4)"
    n1.query(f"CREATE TABLE made_{name} {made} COMMENT 'why'", **FOREGROUND)
    assert cluster.rows(name) == [[0, 2], [1, 3]]
    assert "COMMENT 'why'" in n1.query(f"SHOW CREATE TABLE made_{name} FORMAT TSVRaw")
    assert refused(n1, f"CREATE TABLE made_{name} {made}").code == 57
    n1.query(f"CREATE TABLE IF NOT EXISTS made_{name} {made}")
    # One that cannot be filled is not there.
    failing = f"ENGINE = Distributed(c, default, {name}, k) AS SELECT throwIf(1) AS k, '' AS v"
    assert refused(n1, f"CREATE TABLE no_{name} {failing}").code == 395
    away = "ENGINE = Distributed(c, default, away, k) AS SELECT 1 AS k, '' AS v"
    assert refused(n1, f"CREATE TABLE no_{name} {away}", **FOREGROUND).code == 60
    tables = "SELECT name FROM system.tables WHERE name LIKE '\\_tmp%' OR name LIKE 'no\\_%'"
    assert n1.query(tables) == ""
    # On a cluster every host inserts what it selects.
    n1.query(
        f"CREATE TABLE all_{name} ON CLUSTER c ENGINE = Distributed(c, default, {name}, k) "
        f"AS SELECT k + 10 AS k, 'y' AS v FROM {name} LIMIT 1",
        **FOREGROUND,
    )
    assert cluster.rows(name, "count()") == [4, 4]


def test_a_distributed_table_takes_any_tables_place_and_gives_it_back(cluster: Cluster) -> None:
    name = cluster.tables()
    n1 = cluster.n1
    engine = f"ENGINE = Distributed(c, default, {name}, k)"
    kind = f"SELECT engine FROM system.tables WHERE name = '{name}_d'"
    n1.query(f"SYSTEM STOP DISTRIBUTED SENDS {name}_d")
    n1.query(f"INSERT INTO {name}_d VALUES (1, 'sent before')")
    n1.query(
        f"CREATE OR REPLACE TABLE {name}_d (v String, k UInt64) {engine} AS SELECT 'new', 2", **FOREGROUND
    )
    assert cluster.rows(name) == [[2], [1]]
    n1.query(f"REPLACE TABLE {name}_d (k UInt64) ENGINE = MergeTree ORDER BY k AS SELECT 7")
    assert n1.query(kind) + n1.query(f"SELECT k FROM {name}_d") == "MergeTree\n7\n"
    n1.query(f"CREATE OR REPLACE TABLE {name}_d (k UInt64, v String) {engine}")
    n1.query(f"EXCHANGE TABLES {name} AND {name}_d")
    assert n1.query(kind) == "ReplicatedMergeTree\n"
    n1.query(f"EXCHANGE TABLES {name} AND {name}_d")
    n1.query(
        f"CREATE OR REPLACE TABLE {name}_d (k UInt64) "
        f"ENGINE = ReplicatedMergeTree('/t/{name}_in_its_place', 'r') ORDER BY k"
    )
    n1.query(f"CREATE OR REPLACE TABLE {name}_d (k UInt64, v String) {engine}")
    n1.query(f"INSERT INTO {name}_d VALUES (3, 'x')", **FOREGROUND)
    assert cluster.rows(name) == [[2], [1, 3]]
    assert refused(n1, f"REPLACE TABLE no_{name} (k UInt64) {engine}").code == 60
    assert n1.query("SELECT name FROM system.tables WHERE name LIKE '\\_tmp%'") == ""


def test_columns_are_renamed_when_nothing_waits_under_the_old_names(cluster: Cluster) -> None:
    name = cluster.tables("k UInt64, v String DEFAULT 'v', w String DEFAULT concat(v, '!')")
    n1 = cluster.n1
    n1.query(f"SYSTEM STOP DISTRIBUTED SENDS {name}_d")
    n1.query(f"INSERT INTO {name}_d (k) VALUES (1)")
    n1.query(f"ALTER TABLE {name}_d RENAME COLUMN v TO u, COMMENT COLUMN w 'why'")
    assert cluster.rows(name) == [[], [1]]
    shown = n1.query(f"SHOW CREATE TABLE {name}_d FORMAT TSVRaw")
    assert "`u` String DEFAULT 'v'" in shown
    assert "`w` String DEFAULT concat(u, '!') COMMENT 'why'" in shown
    n1.query(f"ALTER TABLE {name} ON CLUSTER c RENAME COLUMN v TO u")
    n1.query(f"INSERT INTO {name}_d (k, u) VALUES (3, 'x')", **FOREGROUND)
    assert cluster.rows(name, "groupArray(w)") == [[], ["v!", "x!"]]
    for change, code in (
        ("DROP COLUMN k", 47),
        ("RENAME COLUMN k TO l", 47),
        ("MODIFY COLUMN k String", 53),
        ("MODIFY SETTING fsync_after_insert = 1", 48),
        ("RENAME COLUMN away TO here", 10),
    ):
        assert refused(n1, f"ALTER TABLE {name}_d {change}").code == code
    n1.query(f"ALTER TABLE {name}_d CLEAR COLUMN w")  # nothing to clear here
    assert cluster.rows(name, "groupArray(w)") == [[], ["v!", "x!"]]


@pytest.mark.parametrize(("stopped", "other"), few_first([SHARDS[::-1], SHARDS], few=1))
def test_who_waits_for_a_shard_is_killed_and_told_what_was_written(
    cluster: Cluster, stopped: tuple[str, str], other: tuple[str, str]
) -> None:
    """The quorum of one shard, this node's own or the other, is not reached before its fetches go on."""
    name = cluster.tables()

    def count(host: str) -> int:
        return int(cluster.nodes[host].query(f"SELECT count() FROM {name}"))

    for host in stopped:
        cluster.nodes[host].query(f"SYSTEM STOP FETCHES {name}")
    query_id = f"stuck for {stopped}"
    mine = f"WHERE query_id = {quote_string(query_id)}"
    settings = {**FOREGROUND, "insert_quorum": "2", "insert_quorum_timeout": "600000", "query_id": query_id}
    sql = f"INSERT INTO {name}_d SELECT number, '' FROM numbers(10)"
    with ThreadPoolExecutor(1) as thread:
        reply = thread.submit(lambda: cluster.n1.post(sql, **settings))
        eventually(lambda: cluster.n1.query(f"SELECT count() FROM system.processes {mine}"), "1\n")
        for hosts, total in ((other, 10), (stopped, 5)):
            eventually(lambda hosts=hosts: sum(count(host) for host in hosts), total)
        cluster.n1.query(f"KILL QUERY {mine} SYNC")
        answer = reply.result()
    assert answer.code == 394
    assert "Insertion status: Wrote " in answer.text
    for host in stopped:
        cluster.nodes[host].query(f"SYSTEM START FETCHES {name}")
    eventually(lambda: cluster.rows(name, "count()"), [5, 5])
