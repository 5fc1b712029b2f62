"""Materialized views with a replicated table of their own; on two real nodes and ZooKeeper."""

from __future__ import annotations

import json
import threading
from contextlib import suppress

import pytest

from tests.node.http_client import HttpAt
from tests.node.replicated_pair import OWN_PATH, Pair, eventually, refused, wait_for

pytestmark = pytest.mark.slow

DEFAULT_PATH = "'/clickhouse/tables/{uuid}/{shard}', '{replica}'"
SUMS = "AS SELECT k, sum(a) AS a FROM d.{} GROUP BY k"


def inner_of(node: HttpAt, view: str, database: str = "d") -> str:
    """The quoted name of the view's own table."""
    uuid = node.query(f"SELECT uuid FROM system.tables WHERE database = '{database}' AND name = '{view}'")
    return f"{database}.`.inner_id.{uuid.strip()}`"


def names(node: HttpAt, database: str = "d") -> list[str]:
    return node.query(f"SHOW TABLES FROM {database}").split()


def source(pair: Pair, name: str) -> None:
    pair.on_cluster(
        f"CREATE TABLE d.{name} ON CLUSTER all (k UInt64, a UInt64) "
        f"ENGINE = ReplicatedMergeTree({OWN_PATH}) ORDER BY k"
    )


def test_the_rows_of_a_view_come_to_all_replicas_and_stay(pair: Pair) -> None:
    source(pair, "s1")
    text = "ENGINE = ReplicatedSummingMergeTree ORDER BY k"
    create = f"CREATE MATERIALIZED VIEW {{}} d.v1 ON CLUSTER all {text} {SUMS.format('s1')}"
    pair.on_cluster(create.format(""))
    pair.on_cluster(create.format("IF NOT EXISTS"))
    refused(pair.n1.post(create.format("")), 57)
    pair.n1.query("INSERT INTO d.s1 VALUES (1, 1), (1, 2), (2, 5)")
    pair.n2.query("INSERT INTO d.s1 VALUES (1, 4)")
    sums = "SELECT k, sum(a) FROM d.v1 GROUP BY k ORDER BY k"
    for node in pair.both:
        eventually(lambda node=node: node.query(sums), "1\t7\n2\t5\n")
    shown = pair.same("SHOW CREATE TABLE d.v1 FORMAT TSVRaw")
    assert f"\nENGINE = ReplicatedSummingMergeTree({DEFAULT_PATH})\nORDER BY k\nSETTINGS" in shown
    pair.kill9("n1")
    pair.restart("n2")
    assert pair.same("SHOW CREATE TABLE d.v1 FORMAT TSVRaw") == shown
    pair.n1.query("INSERT INTO d.s1 VALUES (2, 1)")
    eventually(lambda: pair.n2.query(sums), "1\t7\n2\t6\n")
    inner = inner_of(pair.n1, "v1")
    path = pair.n1.query("SELECT zookeeper_path FROM system.replicas WHERE table LIKE '.inner%'").strip()
    assert pair.children(f"{path}/replicas") == ["n1", "n2"]
    assert inner == inner_of(pair.n2, "v1")
    pair.on_cluster("DROP VIEW d.v1 ON CLUSTER all")
    for node in pair.both:
        assert not [name for name in names(node) if "inner" in name or name == "v1"]
    assert pair.children(path.rpartition("/")[0].rpartition("/")[0]) == []
    pair.n1.query("INSERT INTO d.s1 VALUES (2, 1)")


def test_a_view_is_populated_once_though_each_replica_does_it(pair: Pair) -> None:
    source(pair, "s2")
    pair.n1.query("INSERT INTO d.s2 VALUES (1, 1), (2, 2)")
    pair.synced("d.s2")
    pair.on_cluster(
        f"CREATE MATERIALIZED VIEW d.v2 ON CLUSTER all ENGINE = ReplicatedMergeTree({OWN_PATH}) "
        "ORDER BY k POPULATE AS SELECT a AS y, k FROM d.s2 COMMENT 'both'"
    )
    pair.n1.query("INSERT INTO d.s2 VALUES (3, 3)")
    pair.synced(inner_of(pair.n1, "v2"))
    assert pair.same("SELECT k, y FROM d.v2 ORDER BY k") == "1\t1\n2\t2\n3\t3\n"


def test_statements_about_the_view_reach_its_table(pair: Pair) -> None:
    source(pair, "s3")
    pair.on_cluster(
        "CREATE MATERIALIZED VIEW d.v3 ON CLUSTER all (k UInt64, a UInt64) "
        f"ENGINE = ReplicatedSummingMergeTree({OWN_PATH}) PARTITION BY k % 2 ORDER BY k {SUMS.format('s3')}"
    )
    n1 = pair.n1
    n1.query("INSERT INTO d.s3 VALUES (1, 1), (2, 2)")
    n1.query("INSERT INTO d.v3 VALUES (1, 5)")
    n1.query("OPTIMIZE TABLE d.v3 FINAL")
    assert n1.query("SELECT * FROM d.v3 ORDER BY k") == "1\t6\n2\t2\n"
    # On each shard once, and not by each of its replicas.
    n1.query("ALTER TABLE d.v3 ON CLUSTER all UPDATE a = a + 1 WHERE 1 SETTINGS mutations_sync = 2")
    assert pair.same("SELECT * FROM d.v3 ORDER BY k") == "1\t7\n2\t3\n"
    n1.query("ALTER TABLE d.v3 DROP PARTITION 1 SETTINGS alter_sync = 2")
    assert pair.same("SELECT * FROM d.v3 ORDER BY k") == "2\t3\n"
    n1.query("TRUNCATE VIEW d.v3 SETTINGS alter_sync = 2")
    assert pair.same("SELECT count() FROM d.v3") == "0\n"
    refused(n1.post("ALTER TABLE d.v3 ADD COLUMN z Int8"), 48)
    refused(n1.post("CREATE TABLE d.like3 AS d.v3"), 253, "of this node")
    refused(
        n1.post("CREATE OR REPLACE TABLE d.v3 (a Int8) ENGINE = MergeTree ORDER BY a"), 48, "DROP the old"
    )
    n1.query("ALTER TABLE d.v3 MODIFY QUERY SELECT k, max(a) AS a FROM d.s3 GROUP BY k")
    n1.query("RENAME TABLE d.v3 TO d.w3")
    n1.query("DETACH TABLE d.w3")
    refused(
        n1.post(
            f"CREATE MATERIALIZED VIEW d.w3 ENGINE = ReplicatedMergeTree('/w3', 'r') {SUMS.format('s3')}"
        ),
        57,
    )
    n1.query("ATTACH TABLE d.w3")
    n1.query("INSERT INTO d.s3 VALUES (1, 1), (1, 2)")
    assert n1.query("SELECT * FROM d.w3") == "1\t2\n"
    assert pair.children("/w3") == []


@pytest.mark.parametrize(
    ("definition", "code"),
    [
        ("ENGINE = ReplicatedMergeTree('/v4', 'r') ORDER BY k AS SELECT k, nope FROM d.s4", 47),
        ("ENGINE = ReplicatedMergeTree('/v4', 'r') ORDER BY nope AS SELECT k FROM d.s4", 47),
        ("(k UInt8) ENGINE = ReplicatedMergeTree('/v4', 'r') ORDER BY k AS SELECT k, a FROM d.s4", 8),
        ("ENGINE = ReplicatedMergeTree('/v4', 'r') ORDER BY k FOO AS SELECT k FROM d.s4", 62),
        ("ENGINE = ReplicatedMergeTree('/v4', 'r') COMMENT 'a' AS SELECT k FROM d.s4 COMMENT 'b'", 62),
        ("ENGINE = ReplicatedMergeTree('/v4', 'r') POPULATE AS SELECT throwIf(k = 2) AS k FROM d.s4", 395),
        ("REFRESH EVERY 1 DAY ENGINE = ReplicatedMergeTree('/v4', 'r') ORDER BY k AS SELECT k FROM d.s4", 48),
        ("ENGINE = ReplicatedMergeTree('/v4', 'r') ORDER -> BY k . SELECT k FROM d.s4", 62),
    ],
)
def test_a_view_that_cannot_be_made_leaves_nothing(pair: Pair, definition: str, code: int) -> None:
    n1 = pair.n1
    n1.query("CREATE TABLE IF NOT EXISTS d.s4 (k UInt64, a UInt64) ENGINE = MergeTree ORDER BY k")
    n1.query("INSERT INTO d.s4 VALUES (1, 1), (2, 2)")
    before, records = names(n1), pair.catalog("n1")
    refused(n1.post(f"CREATE MATERIALIZED VIEW d.v4 {definition}"), code)
    assert names(n1) == before
    eventually(lambda: pair.catalog("n1") - records, set())
    assert pair.children("/v4") == []


def test_a_view_of_one_node_has_a_path_of_its_own(pair: Pair) -> None:
    """Its table's UUID is in the default path, and no other node knows it."""
    source(pair, "s8")
    pair.n1.query(
        f"CREATE MATERIALIZED VIEW d.v8 ENGINE = ReplicatedMergeTree ORDER BY k {SUMS.format('s8')}"
    )
    pair.n1.query("INSERT INTO d.s8 VALUES (1, 2)")
    assert pair.n1.query("SELECT * FROM d.v8") == "1\t2\n"
    name = inner_of(pair.n1, "v8").partition("`")[2].rstrip("`")
    uuid = pair.n1.query(f"SELECT uuid FROM system.tables WHERE name = '{name}'").strip()
    assert pair.children(f"/clickhouse/tables/{uuid}/01/replicas") == ["n1"]


def test_a_buffer_does_not_write_past_keeper_by_way_of_such_a_view(pair: Pair) -> None:
    n1 = pair.n1
    n1.query("CREATE TABLE d.s5 (k UInt64, a UInt64) ENGINE = MergeTree ORDER BY k")
    create = f"CREATE MATERIALIZED VIEW d.v5 ENGINE = ReplicatedMergeTree('/v5', 'r') {SUMS.format('s5')}"
    buffer = "CREATE TABLE d.b5 AS d.s5 ENGINE = Buffer(d, s5, 1, 1, 2, 1, 2, 1, 2)"
    n1.query(buffer)
    refused(n1.post(create), 48, "Buffer d.b5")
    n1.query("DROP TABLE d.b5")
    n1.query(create)
    refused(n1.post(buffer), 48)
    n1.query("DETACH TABLE d.v5")
    n1.query(buffer)
    refused(n1.post("ATTACH TABLE d.v5"), 48, "Buffer d.b5")
    n1.query("DROP TABLE d.b5")
    n1.query("ATTACH TABLE d.v5")
    n1.query("INSERT INTO d.s5 VALUES (1, 1)")
    assert pair.children("/v5/replicas/r/parts") == ["all_0_0_0"]


def test_a_view_that_was_being_populated_is_made_anew_after_a_kill(pair: Pair) -> None:
    """1. POPULATE takes its time. 2. The node is killed: there is the view's table, but no view. 3. It goes,
    or makes way for the same statement, whatever comes first."""
    n1 = pair.n1
    n1.query("CREATE TABLE d.s6 (k UInt64) ENGINE = MergeTree ORDER BY k")
    n1.query("INSERT INTO d.s6 SELECT number FROM numbers(1000)")
    create = (
        "CREATE MATERIALIZED VIEW d.v6 ENGINE = ReplicatedMergeTree('/v6', 'r') ORDER BY k POPULATE "
        "AS SELECT {} AS k FROM d.s6"
    )
    slow = create.format("k + sleepEachRow(3)")

    def ask() -> None:
        with suppress(OSError):  # the node is killed
            n1.post(slow, function_sleep_max_microseconds_per_block="0")

    caller = threading.Thread(target=ask, daemon=True)
    caller.start()
    wait_for(lambda: pair.children("/v6/replicas") == ["r"])
    pair.kill9("n1")
    assert "v6" not in names(n1)
    n1.query(create.format("k"))
    assert n1.query("SELECT count(), max(k) FROM d.v6") == "1000\t999\n"
    assert len([name for name in names(n1) if name == inner_of(n1, "v6")[3:-1]]) == 1
    n1.query("DROP TABLE d.v6 SYNC")
    assert pair.children("/v6") == []


def test_what_kills_between_the_steps_leave_is_finished_or_can_be_repeated(pair: Pair) -> None:
    n1 = pair.n1
    n1.query("CREATE TABLE d.s7 (k UInt64) ENGINE = MergeTree ORDER BY k")
    create = (
        "CREATE MATERIALIZED VIEW d.v7 ENGINE = ReplicatedMergeTree('/v7', 'r') ORDER BY k "
        "AS SELECT k FROM d.s7"
    )
    n1.query(create)
    n1.query("INSERT INTO d.s7 VALUES (7)")
    uuid = n1.query("SELECT uuid FROM system.tables WHERE name = 'v7'").strip()
    (file,) = (
        f
        for f in pair.catalog("n1")
        if f.is_file()
        and json.loads(f.read_text())["replica"] == "r"
        and json.loads(f.read_text())["zookeeper_path"] == "/v7"
    )
    node = pair.local.node("n1")
    # The view was there, and the record did not say so yet: the table has rows, and stays.
    pair.call(node.kill9())
    file.write_text(json.dumps({**json.loads(file.read_text()), "for_view": uuid}))
    pair.call(node.start())
    eventually(lambda: "for_view" in json.loads(file.read_text()), False)
    assert n1.query("SELECT * FROM d.v7") == "7\n"
    # The view's table is gone, the view is not.
    pair.call(node.kill9())
    file.write_text(json.dumps({**json.loads(file.read_text()), "state": "dropping"}))
    pair.call(node.start())
    eventually(lambda: pair.children("/v7"), [])
    n1.query("DROP VIEW d.v7")
    n1.query(create)
    n1.query("INSERT INTO d.s7 VALUES (8)")
    assert n1.query("SELECT * FROM d.v7") == "8\n"


def test_views_of_a_replicated_database_have_one_table_on_all_its_replicas(pair: Pair) -> None:
    for node in pair.both:
        node.query("CREATE DATABASE r ENGINE = Replicated('/dbs/r', '{shard}', '{replica}')")
    n1, n2 = pair.both
    n1.query("CREATE TABLE r.s (k UInt64, a UInt64) ENGINE = ReplicatedMergeTree ORDER BY k")
    view = "CREATE MATERIALIZED VIEW r.v ENGINE = ReplicatedSummingMergeTree ORDER BY k "
    n1.query(f"{view} AS SELECT k, sum(a) AS a FROM r.s GROUP BY k")
    n1.query("INSERT INTO r.s VALUES (1, 4)")
    n2.query("SYSTEM SYNC DATABASE REPLICA r")
    n2.query("INSERT INTO r.s VALUES (1, 5)")
    n1.query("ALTER TABLE r.v UPDATE a = a + 1 WHERE 1 SETTINGS mutations_sync = 2")
    pair.synced(inner_of(n1, "v", "r"))
    assert pair.same("SELECT sum(a) FROM r.v") == "11\n"
    assert pair.same("SELECT name, uuid, create_table_query FROM system.tables WHERE database = 'r'")
    n2.query("DROP DATABASE r SYNC")
    n2.query("CREATE DATABASE r ENGINE = Replicated('/dbs/r', '{shard}', '{replica}')")
    n2.query("SYSTEM SYNC DATABASE REPLICA r")
    pair.synced(inner_of(n1, "v", "r"))
    assert pair.same("SELECT sum(a) FROM r.v") == "11\n"
    n1.query("DROP TABLE r.v")
    n2.query("SYSTEM SYNC DATABASE REPLICA r")
    assert pair.same("SHOW TABLES FROM r") == "s\n"


def test_recovery_of_a_database_puts_a_view_right_and_keeps_its_tables_rows(pair: Pair) -> None:
    """1. A view differs on one replica, another is dropped while that is away. 2. It recovers: the first view
    is made anew, over the same rows; the second goes, and its table's rows are put aside."""
    for node in pair.both:
        node.query("CREATE DATABASE q ENGINE = Replicated('/dbs/q', '{shard}', '{replica}')")
    n1, n2 = pair.both
    n1.query("CREATE TABLE q.s (k UInt64) ENGINE = ReplicatedMergeTree ORDER BY k")
    for view in ("v", "gone"):
        n1.query(
            f"CREATE MATERIALIZED VIEW q.{view} ENGINE = ReplicatedMergeTree ORDER BY k AS SELECT k FROM q.s"
        )
    n2.query("SYSTEM SYNC DATABASE REPLICA q")
    n2.query("INSERT INTO q.s VALUES (7)")
    pair.call(pair.local.node("n2").stop())
    file = pair.local.directory / "nodes/n2/data/metadata/q/v.sql"
    assert "FROM q.s" in file.read_text()
    file.write_text(file.read_text().replace("FROM q.s", "FROM q.s\nWHERE k = 0"))
    n1.query("DROP TABLE q.gone", distributed_ddl_output_mode="none_only_active")
    pair.call(pair.local.node("n2").start())
    n2.query("SYSTEM SYNC DATABASE REPLICA q")
    assert pair.same("SELECT name, uuid, create_table_query FROM system.tables WHERE database = 'q'")
    n2.query("INSERT INTO q.s VALUES (8)")
    for node in pair.both:
        eventually(lambda node=node: node.query("SELECT * FROM q.v ORDER BY k"), "7\n8\n")
    [aside] = names(n2, "q_broken_replicated_tables")
    assert n2.query(f"SELECT * FROM q_broken_replicated_tables.`{aside}`") == "7\n"
    assert "q_broken_tables" not in n2.query("SHOW DATABASES")
