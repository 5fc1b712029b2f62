"""INSERT into Distributed tables on real nodes, over two shards of two replicas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from engine.names import quote_string
from tests.few import few_first
from tests.node.distributed_cluster import FOREGROUND, SHARDS, WEIGHTED, Cluster, refused, running_cluster
from tests.node.http_client import HttpAt
from tests.node.replicated_pair import eventually

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("distributed"), other_clusters=WEIGHTED) as cluster:
        yield cluster


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
    for target in (f"FUNCTION cluster(c, default, {name}, k)", f"{name}_d"):  # what is passed on is one less
        last = refused(n1, f"INSERT INTO {target} (k) VALUES (1)", max_distributed_depth="1")
        assert last.code == 581


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
