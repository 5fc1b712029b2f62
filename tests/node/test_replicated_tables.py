"""Replicated tables through SQL, with a real ZooKeeper and two node processes."""

import http.client
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import psutil
import pytest

from engine.testing.cluster_files import clusters_xml
from engine.testing.local_cluster import Call, LocalCluster, blocking_cluster
from tests.node.conftest import HttpAt, Reply

pytestmark = pytest.mark.slow

HOSTS = ("n1", "n2")
SMALL = "(a Int8) ENGINE = ReplicatedMergeTree('/small', 'r') ORDER BY a"
ANY_UUID = "00000000-0000-0000-0000-0000000000b1"
OWN_PATH = "'/t/{shard}/{database}/{table}', '{replica}'"


class Nodes:
    """Two replicas of one shard, and ways to look into Keeper through them."""

    def __init__(self, local: LocalCluster, call: Call[object]) -> None:
        self.local = local
        self.call = call
        self.n1, self.n2 = (HttpAt(local.node(host).url) for host in HOSTS)

    def on_cluster(self, sql: str) -> None:
        self.n1.query(sql)

    def children(self, path: str) -> list[str]:
        return self.n1.query(f"SELECT name FROM system.zookeeper WHERE path = '{path}' ORDER BY name").split()

    def catalog(self, host: str) -> list[Path]:
        return sorted((self.local.directory / "nodes" / host / "data/oncluster/replicated").iterdir())


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    directory = tmp_path_factory.mktemp("replicated")
    macros = "".join(
        f"<macros_{host}><shard>01</shard><replica>{host}</replica></macros_{host}>" for host in HOSTS
    )
    xml = clusters_xml({"all": [["n1", "n2"]], "apart": [["n1"], ["absent"]]})
    (directory / "given.xml").write_text(xml.replace("</clickhouse>", f"{macros}</clickhouse>"))
    options = {"cluster_file": directory / "given.xml", "hosts": HOSTS, "session_timeout_ms": 6000}
    with blocking_cluster(directory / "run", **options) as (local, call):
        nodes = Nodes(local, call)
        nodes.on_cluster("CREATE DATABASE d ON CLUSTER all")
        yield nodes


def eventually(look: Callable[[], object], expected: object, *, within_s: float = 120.0) -> None:
    deadline = time.monotonic() + within_s
    while (found := look()) != expected:
        assert time.monotonic() < deadline, f"{found!r} is not {expected!r}"
        time.sleep(0.05)


def _status(node: HttpAt, sql: str) -> int:
    return node.post(sql).status


def _has_child(nodes: Nodes, path: str, name: str) -> bool:
    return name in nodes.children(path)


def refused(reply: Reply, code: int, text: str = "") -> None:
    assert reply.code == code, reply.text
    assert text in reply.text


def test_rows_inserted_on_one_replica_are_on_the_other_with_equal_checksums(nodes: Nodes) -> None:
    nodes.on_cluster(
        f"CREATE TABLE d.t ON CLUSTER all (a UInt64, d Date) ENGINE = ReplicatedMergeTree({OWN_PATH}) "
        "PARTITION BY toYYYYMM(d) ORDER BY a"
    )
    nodes.n1.query("INSERT INTO d.t VALUES (1, '2020-01-01'), (2, '2020-02-01')")
    nodes.n2.query('INSERT INTO d.t FORMAT JSONEachRow {"a": 3, "d": "2020-01-05"}')
    nodes.n1.query("INSERT INTO d.t (a, d) SELECT number, '2021-01-01' FROM numbers(10)")
    for node in (nodes.n1, nodes.n2):
        eventually(partial(node.query, "SELECT count(), sum(a) FROM d.t"), "13\t51\n")
    hashes = "SELECT partition_id, rows, hash_of_all_files FROM system.parts WHERE active AND table = 't'"
    assert sorted(nodes.n1.query(hashes).splitlines()) == sorted(nodes.n2.query(hashes).splitlines())
    assert nodes.children("/t/01/d/t/replicas") == list(HOSTS)
    assert nodes.children("/t/01/d/t/replicas/n1/parts") == nodes.children("/t/01/d/t/replicas/n2/parts")


def test_the_same_block_and_the_same_token_are_stored_once(nodes: Nodes) -> None:
    nodes.on_cluster(
        f"CREATE TABLE d.once ON CLUSTER all (a UInt64) ENGINE = ReplicatedMergeTree({OWN_PATH}) ORDER BY a"
    )
    for _ in range(2):
        nodes.n1.query("INSERT INTO d.once VALUES (1)")
    nodes.n2.query("INSERT INTO d.once VALUES (1)")
    nodes.n1.query("INSERT INTO d.once VALUES (2)", insert_deduplication_token="x")
    nodes.n1.query("INSERT INTO d.once VALUES (3)", insert_deduplication_token="x")
    assert nodes.n1.query("SELECT arraySort(groupArray(a)) FROM d.once") == "[1,2]\n"
    nodes.n1.query("INSERT INTO d.once SETTINGS insert_deduplicate = 0 VALUES (1)")
    assert nodes.n1.query("SELECT count() FROM d.once") == "3\n"


def test_everybody_is_shown_the_table_as_it_was_made(nodes: Nodes) -> None:
    nodes.on_cluster(
        "CREATE TABLE d.shown ON CLUSTER all (a UInt64, v UInt8) ENGINE = ReplicatedReplacingMergeTree(v) "
        "ORDER BY a SETTINGS index_granularity = 100, max_bytes_to_merge_at_max_space_in_pool = 1000000"
    )
    shown = nodes.n1.query("SHOW CREATE TABLE d.shown FORMAT TSVRaw")
    assert shown == (
        "CREATE TABLE d.shown\n(\n    `a` UInt64,\n    `v` UInt8\n)\n"
        "ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}', v)\n"
        "ORDER BY a\n"
        "SETTINGS index_granularity = 100, max_bytes_to_merge_at_max_space_in_pool = 1000000\n"
    )
    found = nodes.n1.query(
        "SELECT engine, engine_full, create_table_query FROM system.tables WHERE name = 'shown'",
        default_format="JSONCompact",
    )
    engine, engine_full, create = json.loads(found)["data"][0]
    assert engine == "ReplicatedReplacingMergeTree"
    assert engine_full.startswith("ReplicatedReplacingMergeTree('/clickhouse/tables/{uuid}/{shard}', ")
    assert "in_pool = 1," not in engine_full + create + shown
    nodes.n1.query("SHOW CREATE TABLE d.shown FORMAT Native")
    assert nodes.n1.query("SELECT count() FROM system.tables WHERE database = '_oncluster'") == "0\n"


def test_an_error_of_create_leaves_nothing(nodes: Nodes) -> None:
    before = nodes.catalog("n1")
    nodes.n1.query("CREATE TABLE d.first (a Int8) ENGINE = ReplicatedMergeTree('/f', 'r1') ORDER BY a")
    for sql, code in [
        ("(a Int16) ENGINE = ReplicatedMergeTree('/f', 'r2') ORDER BY a", 122),
        ("(a Int8) ENGINE = ReplicatedMergeTree('/f', 'r2') ORDER BY -a", 342),
        ("(a Int8) ENGINE = ReplicatedMergeTree('/f', 'r1') ORDER BY a", 253),
        ("(a Int8) ENGINE = ReplicatedMergeTree('/x/{nothing}', 'r') ORDER BY a", 36),
        ("(a Int8) ENGINE = ReplicatedMergeTree ORDER BY a", 36),
        ("(a Int8) ENGINE = ReplicatedMergeTree('/x', 'r') ORDER BY nothing", 47),
        ("(a Int8) ENGINE = ReplicatedMergeTree('/x', 'r/../r') ORDER BY a", 36),
        ("ENGINE = ReplicatedMergeTree('/x', 'r') ORDER BY a AS SELECT throwIf(1) AS a", 395),
    ]:
        refused(nodes.n1.post(f"CREATE TABLE d.wrong {sql}"), code)
        assert nodes.n1.query("EXISTS d.wrong") == "0\n"
    assert nodes.children("/f/replicas") == ["r1"]
    assert "x" not in nodes.children("/")
    nodes.n1.query("DROP TABLE d.first SYNC")
    assert "f" not in nodes.children("/")
    assert nodes.catalog("n1") == before


def test_two_replicas_of_one_table_may_live_on_one_node(nodes: Nodes) -> None:
    for name in ("a", "b"):
        nodes.n1.query(
            f"CREATE TABLE d.both_{name} (a Int8) ENGINE = ReplicatedMergeTree('/both', '{name}') ORDER BY a"
        )
    nodes.n1.query("INSERT INTO d.both_a VALUES (1)", insert_quorum="2")
    assert nodes.n1.query("SELECT * FROM d.both_b") == "1\n"
    nodes.n1.query("DROP TABLE d.both_a, d.both_b SYNC")
    assert "both" not in nodes.children("/")


def test_a_table_goes_on_under_its_new_name(nodes: Nodes) -> None:
    nodes.on_cluster(
        f"CREATE TABLE d.old ON CLUSTER all (a Int8) ENGINE = ReplicatedMergeTree({OWN_PATH}) ORDER BY a"
    )
    nodes.n1.query("INSERT INTO d.old VALUES (1)")
    nodes.n1.query("RENAME TABLE d.old TO d.new")
    nodes.n1.query("INSERT INTO d.new VALUES (2)")
    eventually(lambda: nodes.n2.query("SELECT sum(a) FROM d.old"), "3\n")
    nodes.n1.query("CREATE TABLE d.other (a Int8) ENGINE = Memory")
    nodes.n1.query("EXCHANGE TABLES d.new AND d.other")
    nodes.n1.query("INSERT INTO d.other VALUES (3)")
    eventually(lambda: nodes.n2.query("SELECT sum(a) FROM d.old"), "6\n")
    host = nodes.n1.query(
        "SELECT value FROM system.zookeeper WHERE path = '/t/01/d/old/replicas/n1' AND name = 'host'"
    )
    assert "table: other" in host


def test_a_detached_table_catches_up_when_it_is_attached(nodes: Nodes) -> None:
    nodes.on_cluster(
        f"CREATE TABLE d.away ON CLUSTER all (a Int8) ENGINE = ReplicatedMergeTree({OWN_PATH}) ORDER BY a"
    )
    nodes.n2.query("DETACH TABLE d.away PERMANENTLY")
    nodes.n1.query("INSERT INTO d.away VALUES (1)")
    nodes.call(nodes.local.node("n2").restart())
    refused(nodes.n2.post("SELECT * FROM d.away"), 60)
    refused(nodes.n2.post(f"CREATE TABLE d.away {SMALL}"), 57)
    nodes.n2.query("ATTACH TABLE d.away")
    eventually(lambda: nodes.n2.query("SELECT * FROM d.away"), "1\n")


def test_materialized_views_see_each_row_once(nodes: Nodes) -> None:
    nodes.on_cluster(
        f"CREATE TABLE d.src ON CLUSTER all (a UInt64) ENGINE = ReplicatedMergeTree({OWN_PATH}) ORDER BY a"
    )
    nodes.on_cluster(
        "CREATE TABLE d.sums ON CLUSTER all (k UInt64, s UInt64) "
        f"ENGINE = ReplicatedSummingMergeTree({OWN_PATH}, s) ORDER BY k"
    )
    nodes.on_cluster("CREATE TABLE d.plain ON CLUSTER all (k UInt64) ENGINE = MergeTree ORDER BY k")
    nodes.on_cluster(
        "CREATE MATERIALIZED VIEW d.v1 ON CLUSTER all TO d.sums AS "
        "SELECT a % 10 AS k, sum(src.a) AS s FROM d.src GROUP BY k"
    )
    nodes.on_cluster("CREATE MATERIALIZED VIEW d.v2 ON CLUSTER all TO d.plain AS SELECT k FROM d.sums")
    for _ in range(2):
        nodes.n1.query("INSERT INTO d.src SELECT number + 1 FROM numbers(100)")
    nodes.n1.query("INSERT INTO d.src SELECT number + 1 FROM numbers(10)")
    assert nodes.n1.query("SELECT sum(s) FROM d.sums") == "5105\n"
    assert nodes.n1.query("SELECT count() FROM d.plain") == "20\n"
    eventually(lambda: nodes.n2.query("SELECT sum(s) FROM d.sums"), "5105\n")
    assert nodes.n2.query("SELECT count() FROM d.plain") == "0\n"


def test_a_plain_tables_views_write_into_a_replicated_one_through_keeper(nodes: Nodes) -> None:
    nodes.on_cluster(
        f"CREATE TABLE d.sink ON CLUSTER all (a UInt64) ENGINE = ReplicatedMergeTree({OWN_PATH}) ORDER BY a"
    )
    nodes.n1.query("CREATE TABLE d.pipe (a UInt64) ENGINE = Null")
    nodes.n1.query("CREATE TABLE d.kept (a UInt64) ENGINE = MergeTree ORDER BY a")
    nodes.n1.query("CREATE MATERIALIZED VIEW d.pipe_v TO d.sink AS SELECT a FROM d.pipe")
    nodes.n1.query("CREATE MATERIALIZED VIEW d.kept_v TO d.sink AS SELECT a + 100 AS a FROM d.kept")
    nodes.n1.query("INSERT INTO d.pipe VALUES (1), (2)")
    nodes.n1.query("INSERT INTO d.kept VALUES (3)")
    assert nodes.n1.query("SELECT * FROM d.kept") == "3\n"
    for node in (nodes.n1, nodes.n2):
        eventually(partial(node.query, "SELECT arraySort(groupArray(a)) FROM d.sink"), "[1,2,103]\n")


def test_a_failing_view_is_reported_and_the_rows_stay(nodes: Nodes) -> None:
    nodes.n1.query("CREATE TABLE d.vs (a UInt64) ENGINE = ReplicatedMergeTree('/vs', 'r') ORDER BY a")
    nodes.n1.query("CREATE TABLE d.vt (a UInt64) ENGINE = ReplicatedMergeTree('/vt', 'r') ORDER BY a")
    nodes.n1.query("CREATE TABLE d.fail (x UInt8) ENGINE = Memory")
    nodes.n1.query(
        "CREATE MATERIALIZED VIEW d.vv TO d.vt AS "
        "SELECT a + throwIf((SELECT count() FROM d.fail) = 0) AS a FROM d.vs"
    )
    refused(nodes.n1.post("INSERT INTO d.vs VALUES (7)"), 395, "d.vv")
    assert nodes.n1.query("SELECT (SELECT count() FROM d.vs), (SELECT count() FROM d.vt)") == "1\t0\n"
    nodes.n1.query("INSERT INTO d.fail VALUES (1)")
    for _ in range(2):
        nodes.n1.query("INSERT INTO d.vs VALUES (7)")
    assert nodes.n1.query("SELECT (SELECT count() FROM d.vs), (SELECT count() FROM d.vt)") == "1\t1\n"


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("CREATE OR REPLACE TABLE d.stays (a Int8) ENGINE = MergeTree ORDER BY a", 48),
        (f"CREATE MATERIALIZED VIEW d.no ENGINE = {SMALL.partition('= ')[2]} AS SELECT 1 AS a", 48),
        (f"ATTACH TABLE d.no {SMALL}", 80),
        (f"CREATE TEMPORARY TABLE no {SMALL}", 36),
        ("CREATE TABLE d.no CLONE AS d.stays", 48),
        ("CREATE TABLE d.no AS d.stays", 253),
        ("DROP TABLE d.stays PARALLEL WITH DROP TABLE d.once", 48),
    ],
)
def test_what_would_go_past_keeper_is_refused(nodes: Nodes, sql: str, code: int) -> None:
    nodes.n1.query(
        f"CREATE TABLE IF NOT EXISTS d.stays (a Int8) ENGINE = ReplicatedMergeTree({OWN_PATH}) ORDER BY a"
    )
    refused(nodes.n1.post(sql), code)
    assert "Replicated" in nodes.n1.query("SHOW CREATE TABLE d.stays")
    assert nodes.n1.query("EXISTS d.no") == "0\n"


def test_create_or_replace_puts_a_new_replica_in_the_old_tables_place(nodes: Nodes) -> None:
    def replacing(columns: str, path: str, rest: str = "") -> str:
        return (
            f"CREATE OR REPLACE TABLE d.replaced {columns} "
            f"ENGINE = ReplicatedMergeTree('{path}', 'r1') ORDER BY a {rest}"
        )

    before = nodes.catalog("n1")
    refused(nodes.n1.post(replacing("(a Int8)", "/r1").removeprefix("CREATE OR ")), 60)
    nodes.n1.query(replacing("(a Int8)", "/r1"))
    nodes.n1.query("INSERT INTO d.replaced VALUES (1), (2)")
    refused(nodes.n1.post(replacing("(b Int8, a Int8)", "/r1")), 253, "{uuid}")
    refused(nodes.n1.post(replacing("", "/r2", "AS SELECT throwIf(1) AS a")), 395)
    assert nodes.n1.query("SELECT * FROM d.replaced ORDER BY a") == "1\n2\n"
    nodes.n1.query(replacing("(a Int8, b String)", "/r2", "AS SELECT a, 'new' AS b FROM d.replaced"))
    assert nodes.n1.query("SELECT * FROM d.replaced ORDER BY a") == "1\tnew\n2\tnew\n"
    assert nodes.n1.query("SHOW TABLES FROM d LIKE '%replace%'") == "replaced\n"
    assert "/r2" in nodes.n1.query("SHOW CREATE TABLE d.replaced")
    assert "r1" not in nodes.children("/")
    host = nodes.n1.query(
        "SELECT value FROM system.zookeeper WHERE path = '/r2/replicas/r1' AND name = 'host'"
    )
    assert "table: replaced\\n" in host
    nodes.n1.query("INSERT INTO d.replaced VALUES (3, 'c')")
    nodes.n1.query(replacing("(a Int8)", "/r3").removeprefix("CREATE OR "))
    assert nodes.n1.query("SELECT count() FROM d.replaced") == "0\n"
    nodes.n1.query("DROP TABLE d.replaced SYNC")
    assert nodes.catalog("n1") == before


def test_what_a_crash_left_of_a_replacement_goes_at_the_next_start(nodes: Nodes) -> None:
    before = nodes.catalog("n1")
    left = f"_tmp_replace_{uuid4().hex}"
    nodes.n1.query(f"CREATE TABLE d.{left} (a Int8) ENGINE = ReplicatedMergeTree('/left', 'r') ORDER BY a")
    nodes.call(nodes.local.node("n1").restart())
    eventually(lambda: nodes.catalog("n1"), before)
    assert nodes.n1.query(f"EXISTS d.{left}") == "0\n"
    assert "left" not in nodes.children("/")


def test_create_or_replace_of_a_plain_table_and_on_cluster(nodes: Nodes) -> None:
    for node in (nodes.n1, nodes.n2):
        node.query("CREATE TABLE d.plain_before (a Int8) ENGINE = MergeTree ORDER BY a")
    for _ in range(2):
        nodes.on_cluster(
            "CREATE OR REPLACE TABLE d.plain_before ON CLUSTER all (a Int8) "
            "ENGINE = ReplicatedMergeTree('/t/{uuid}', '{replica}') ORDER BY a"
        )
        assert nodes.n2.query("SELECT count() FROM d.plain_before") == "0\n"
        nodes.n1.query("INSERT INTO d.plain_before VALUES (1)")
        nodes.n2.query("SYSTEM SYNC REPLICA d.plain_before")
        assert nodes.n2.query("SELECT count() FROM d.plain_before") == "1\n"
    nodes.on_cluster("DROP TABLE d.plain_before ON CLUSTER all SYNC")


@pytest.mark.parametrize(
    "sql",
    [
        "OPTIMIZE TABLE d.past_v",
        "TRUNCATE TABLE d.past_v",
        "ALTER TABLE d.past_v DELETE WHERE 1",
        "CREATE TABLE d.past_b AS d.past ENGINE = Buffer(d, past, 1, 1, 2, 1, 2, 1, 2)",
        "CREATE TABLE d.past_b AS d.past ENGINE = Buffer(d, concat('pa', 'st'), 1, 1, 2, 1, 2, 1, 2)",
        f"ATTACH TABLE d.past_b UUID '{ANY_UUID}' (a UInt64) ENGINE = Buffer(d, past, 1, 1, 2, 1, 2, 1, 2)",
        "CREATE TABLE d.past_b AS d.past_s ENGINE = Buffer(d, past_s, 1, 1, 2, 1, 2, 1, 2)",
        "CREATE TABLE d.past_a ENGINE = Alias('d', 'past')",
        "CREATE MATERIALIZED VIEW d.past_r REFRESH EVERY 1 DAY TO d.past AS SELECT 1 AS a",
        "CREATE MATERIALIZED VIEW d.past_r REFRESH EVERY 1 DAY APPEND TO d.past_s AS SELECT 1 AS a",
        "ALTER TABLE d.past_s MOVE PARTITION ID 'all' TO TABLE d.past",
    ],
)
def test_nothing_reaches_a_replicated_table_through_another_object(nodes: Nodes, sql: str) -> None:
    nodes.n1.query(
        "CREATE TABLE IF NOT EXISTS d.past (a UInt64) ENGINE = ReplicatedMergeTree('/past', 'r') ORDER BY a"
    )
    nodes.n1.query("CREATE TABLE IF NOT EXISTS d.past_s (a UInt64) ENGINE = MergeTree ORDER BY a")
    nodes.n1.query("CREATE MATERIALIZED VIEW IF NOT EXISTS d.past_v TO d.past AS SELECT a FROM d.past_s")
    refused(nodes.n1.post(sql), 48)


def test_what_a_buffer_writes_into_does_not_become_a_replicated_table(nodes: Nodes) -> None:
    n1 = nodes.n1
    n1.query("CREATE TABLE d.fed (a UInt64) ENGINE = MergeTree ORDER BY a")
    n1.query("CREATE TABLE d.fed_b AS d.fed ENGINE = Buffer(d, fed, 1, 1, 2, 1, 2, 1, 2)")
    n1.query("CREATE TABLE d.fed_r (a UInt64) ENGINE = ReplicatedMergeTree('/fed', 'r') ORDER BY a")
    refused(n1.post("EXCHANGE TABLES d.fed AND d.fed_r"), 48, "Buffer d.fed_b")
    refused(
        n1.post("CREATE MATERIALIZED VIEW d.fed_v TO d.fed_r AS SELECT a FROM d.fed"), 48, "Buffer d.fed_b"
    )
    n1.query("DROP TABLE d.fed SYNC")
    refused(n1.post(f"CREATE TABLE d.fed {SMALL}"), 48, "Buffer d.fed_b")
    n1.query("DROP TABLE d.fed_b")
    n1.query("RENAME TABLE d.fed_r TO d.fed")


def test_what_writes_into_a_replicated_table_meanwhile_is_not_attached(nodes: Nodes) -> None:
    """1. Feeders of a plain table are detached. 2. A replicated one takes its name. 3. They stay detached."""
    n1 = nodes.n1
    n1.query("CREATE TABLE d.end (a Int64) ENGINE = MergeTree ORDER BY a")
    n1.query("CREATE TABLE d.from_null (a Int64) ENGINE = Null")
    feeders = {
        "at_buffer": "TABLE d.at_buffer (a Int64) ENGINE = Buffer(d, end, 1, 1, 1, 1, 1, 1, 1)",
        "at_alias": "TABLE d.at_alias ENGINE = Alias(d, end)",
        "at_refresh": "MATERIALIZED VIEW d.at_refresh REFRESH EVERY 1 YEAR TO d.end AS SELECT 1::Int64 AS a",
        "at_view": "MATERIALIZED VIEW d.at_view TO d.end AS SELECT a FROM d.from_null",
    }
    for name, text in feeders.items():
        n1.query(f"CREATE {text}")
        n1.query(f"DETACH TABLE d.{name}")
    n1.query("DROP TABLE d.end SYNC")
    n1.query("CREATE TABLE d.from_buffer (a Int64) ENGINE = Buffer(d, from_null, 1, 1, 1, 1, 1, 1, 1)")
    n1.query("CREATE TABLE d.end (a Int64) ENGINE = ReplicatedMergeTree('/at_end', 'n1') ORDER BY a")
    for name in feeders:
        refused(n1.post(f"ATTACH TABLE d.{name}"), 48, "d.end")
    assert n1.query("SELECT engine FROM system.tables WHERE name = 'end'") == "ReplicatedMergeTree\n"
    n1.query("DROP TABLE d.from_buffer SYNC")
    n1.query("ATTACH TABLE d.at_view")
    n1.query("DROP TABLE d.end SYNC")
    for name in feeders:
        if name != "at_view":
            n1.query(f"ATTACH TABLE d.{name}")
        n1.query(f"DROP TABLE d.{name}")


def test_rows_for_a_view_go_to_its_replicated_target(nodes: Nodes) -> None:
    nodes.n1.query("CREATE TABLE d.seen (a UInt64) ENGINE = ReplicatedMergeTree('/seen', 'r') ORDER BY a")
    nodes.n1.query("CREATE TABLE d.seen_s (a UInt64) ENGINE = Null")
    nodes.n1.query("CREATE MATERIALIZED VIEW d.seen_v TO d.seen AS SELECT a FROM d.seen_s")
    nodes.n1.query("INSERT INTO d.seen_v VALUES (5)")
    assert nodes.children("/seen/replicas/r/parts") == ["all_0_0_0"]


def test_views_in_a_circle_end_with_an_error(nodes: Nodes) -> None:
    nodes.n1.query("CREATE TABLE d.circle (a UInt64) ENGINE = ReplicatedMergeTree('/circle', 'r') ORDER BY a")
    nodes.n1.query("CREATE MATERIALIZED VIEW d.circle_v TO d.circle AS SELECT a + 1 AS a FROM d.circle")
    refused(nodes.n1.post("INSERT INTO d.circle VALUES (1)"), 306, "circle")
    assert nodes.n1.query("SELECT count() FROM d.circle") == "2\n"


def test_the_nodes_own_database_is_shown_to_nobody(nodes: Nodes) -> None:
    databases = nodes.n1.query("SELECT name FROM system.databases ORDER BY name").split()
    assert "_oncluster" not in databases
    assert nodes.n1.query("SHOW DATABASES").split() == databases
    assert nodes.n1.query("SHOW DATABASES LIKE 'sys%' FORMAT TSV") == "system\n"
    assert nodes.n1.query("SHOW DATABASES NOT LIKE 'd%' LIMIT 1") == "INFORMATION_SCHEMA\n"


def test_who_may_only_read_changes_nothing(nodes: Nodes) -> None:
    nodes.n1.query("CREATE TABLE d.still (a UInt64) ENGINE = ReplicatedMergeTree('/still', 'r') ORDER BY a")
    nodes.n1.query("INSERT INTO d.still VALUES (1)")
    nodes.n1.query("SET readonly = 1", session_id="reader")
    for sql in [
        "TRUNCATE TABLE d.still",
        "ALTER TABLE d.still DELETE WHERE 1",
        "DROP TABLE d.still",
        "OPTIMIZE TABLE d.still FINAL",
        "INSERT INTO d.still VALUES (2)",
        "SYSTEM STOP MERGES d.still",
        f"CREATE TABLE d.no {SMALL}",
    ]:
        refused(nodes.n1.post(sql, session_id="reader"), 164)
    assert nodes.n1.query("SELECT a FROM d.still") == "1\n"


def test_a_plain_table_is_converted_at_the_next_start(nodes: Nodes) -> None:
    nodes.n1.query("CREATE TABLE d.conv (a UInt64, p UInt8) ENGINE = MergeTree PARTITION BY p ORDER BY p")
    for number in range(3):
        nodes.n1.query(f"INSERT INTO d.conv SELECT number, number % 2 FROM numbers({number}, 10)")
    nodes.n1.query("OPTIMIZE TABLE d.conv PARTITION 1 FINAL")
    nodes.n1.query("ALTER TABLE d.conv UPDATE a = a + 1 WHERE p = 1 SETTINGS mutations_sync = 1")
    before = nodes.n1.query("SELECT count(), sum(a) FROM d.conv")
    [uuid] = nodes.n1.query("SELECT uuid FROM system.tables WHERE database = 'd' AND name = 'conv'").split()
    [path] = nodes.n1.query(
        "SELECT data_paths[1] FROM system.tables WHERE database = 'd' AND name = 'conv'"
    ).split()
    (Path(path) / "convert_to_replicated").touch()
    nodes.call(nodes.local.node("n1").restart())
    eventually(lambda: nodes.n1.query("SELECT count(), sum(a) FROM d.conv"), before)
    # Rows are seen before the table is in Keeper: whoever made a replica there now would be the first one.
    eventually(lambda: nodes.n1.query("SELECT is_readonly FROM system.replicas WHERE table = 'conv'"), "0\n")
    eventually(lambda: nodes.n1.query("SELECT count(), sum(a) FROM d.conv"), before)
    shown = nodes.n1.query("SHOW CREATE TABLE d.conv FORMAT TSVRaw")
    assert "ReplicatedMergeTree('/clickhouse/tables/{uuid}/{shard}'" in shown
    assert not (Path(path) / "convert_to_replicated").exists()
    nodes.n2.query(
        f"CREATE TABLE d.conv UUID '{uuid}' (a UInt64, p UInt8) "
        "ENGINE = ReplicatedMergeTree PARTITION BY p ORDER BY p"
    )
    eventually(lambda: nodes.n2.query("SELECT count(), sum(a) FROM d.conv"), before)
    eventually(partial(_status, nodes.n1, "INSERT INTO d.conv VALUES (1, 1)"), 200)
    nodes.call(nodes.local.node("n1").kill9())
    nodes.call(nodes.local.node("n1").start())
    eventually(lambda: nodes.n2.query("SELECT count() FROM d.conv"), "31\n")
    assert nodes.n1.query("SELECT count() FROM d.conv") == "31\n"


def test_a_detached_plain_table_is_attached_as_a_replicated_one(nodes: Nodes) -> None:
    nodes.n1.query("CREATE TABLE d.was_plain (a UInt64) ENGINE = ReplacingMergeTree ORDER BY a")
    nodes.n1.query("INSERT INTO d.was_plain VALUES (1), (2)")
    nodes.n1.query("INSERT INTO d.was_plain VALUES (3)")
    refused(nodes.n1.post("ATTACH TABLE d.was_plain AS REPLICATED"), 57)
    nodes.n1.query("DETACH TABLE d.was_plain")
    refused(nodes.n1.post("ATTACH TABLE d.was_plain AS NOT REPLICATED"), 36, "not replicated")
    refused(nodes.n1.post("ATTACH TABLE d.never_was AS REPLICATED"), 60)
    nodes.n1.query("ATTACH TABLE d.was_plain AS REPLICATED")
    assert nodes.n1.query("SELECT sum(a) FROM d.was_plain") == "6\n"
    refused(nodes.n1.post("INSERT INTO d.was_plain VALUES (4)"), 242)
    nodes.n1.query("SYSTEM RESTORE REPLICA d.was_plain")
    nodes.n1.query("INSERT INTO d.was_plain VALUES (4)")
    shown = nodes.n1.query("SHOW CREATE TABLE d.was_plain FORMAT TSVRaw")
    assert "ReplicatedReplacingMergeTree('/clickhouse/tables/{uuid}/{shard}'" in shown
    [uuid] = nodes.n1.query("SELECT uuid FROM system.tables WHERE name = 'was_plain'").split()
    nodes.n2.query(
        f"CREATE TABLE d.was_plain UUID '{uuid}' (a UInt64) ENGINE = ReplicatedReplacingMergeTree ORDER BY a"
    )
    eventually(lambda: nodes.n2.query("SELECT sum(a) FROM d.was_plain"), "10\n")
    nodes.n1.query("DETACH TABLE d.was_plain")
    refused(nodes.n1.post("ATTACH TABLE d.was_plain AS REPLICATED"), 36)
    nodes.n1.query("ATTACH TABLE d.was_plain")
    assert nodes.n1.query("SELECT sum(a) FROM d.was_plain") == "10\n"


def _leaving(nodes: Nodes, name: str) -> None:
    """A replicated table with parts of all sorts, of which some are dead and still on the disk."""
    for node in (nodes.n1, nodes.n2):
        node.query(
            f"CREATE TABLE d.{name} (a UInt64, v String, p UInt8) "
            f"ENGINE = ReplicatedMergeTree('/{name}', '{{replica}}') PARTITION BY p ORDER BY a "
            "SETTINGS max_bytes_to_merge_at_min_space_in_pool = 7, old_parts_lifetime = 3600"
        )
    for number in range(3):
        nodes.n2.query(f"INSERT INTO d.{name} SELECT number, 'x', number % 3 FROM numbers({number}, 10)")
    nodes.n1.query(f"OPTIMIZE TABLE d.{name} PARTITION 0 FINAL SETTINGS alter_sync = 2")
    nodes.n1.query(f"ALTER TABLE d.{name} UPDATE v = 'y' WHERE a = 3 SETTINGS mutations_sync = 2")
    nodes.n1.query(f"ALTER TABLE d.{name} RENAME COLUMN v TO w SETTINGS alter_sync = 2")
    nodes.n1.query(f"ALTER TABLE d.{name} DROP PARTITION 2 SETTINGS alter_sync = 2")
    nodes.n1.query(f"SYSTEM SYNC REPLICA d.{name}")


def test_a_replicated_table_is_attached_as_a_plain_one(nodes: Nodes) -> None:
    n1 = nodes.n1
    _leaving(nodes, "left")
    for name in ("interrupted", "not_left"):
        n1.query(f"CREATE TABLE d.{name} (a UInt64) ENGINE = ReplicatedMergeTree('/{name}', 'r') ORDER BY a")
        n1.query(f"INSERT INTO d.{name} VALUES (1)")
    reading = "SELECT count(), sum(a), countIf(w = 'y') FROM d.left"
    before = n1.query(reading)
    refused(n1.post("ATTACH TABLE d.left AS NOT REPLICATED"), 57)
    n1.query("DETACH TABLE d.left")
    refused(n1.post("ATTACH TABLE d.never_was AS NOT REPLICATED"), 60)
    n1.query("ATTACH TABLE d.left AS NOT REPLICATED")
    assert n1.query(reading) == before
    shown = n1.query("SHOW CREATE TABLE d.left FORMAT TSVRaw")
    assert "ENGINE = MergeTree\n" in shown
    assert "SETTINGS max_bytes_to_merge_at_min_space_in_pool = 7, old_parts_lifetime = 3600" in shown
    for hidden in ("remove_empty_parts", "fsync", "max_number_of_merges"):
        assert hidden not in shown
    assert {line.split("\t")[1] for line in n1.query("CHECK TABLE d.left").splitlines()} == {"1"}
    n1.query("INSERT INTO d.left VALUES (100, 'z', 0)")
    assert nodes.n2.query(reading) == before

    # A crash when only names and settings are left to do.
    nodes.call(nodes.local.node("n1").kill9())
    catalog = nodes.local.files.node_directory("n1") / "data" / "oncluster" / "replicated"
    [record] = [file for file in catalog.glob("*.json") if '"interrupted"' in file.read_text()]
    record.write_text(record.read_text().replace('"attached"', '"leaving"'))
    nodes.call(nodes.local.node("n1").start())
    assert not record.exists()
    assert n1.query("SELECT count() FROM d.left") == f"{int(before.split()[0]) + 1}\n"
    assert n1.query("SELECT a FROM d.interrupted") == "1\n"
    assert "ENGINE = MergeTree" in n1.query("SHOW CREATE TABLE d.interrupted FORMAT TSVRaw")
    assert n1.query(
        "SELECT table FROM system.replicas WHERE table IN ('left', 'interrupted', 'not_left')"
    ) == ("not_left\n")
    named = f"SELECT count() FROM system.parts WHERE table = 'left' AND uuid != '{UUID(int=0)}'"
    assert n1.query(named) == "0\n"

    # It goes on as any plain table, and comes back as a replicated one.
    n1.query("OPTIMIZE TABLE d.left FINAL")
    n1.query("DETACH TABLE d.left")
    n1.query("ATTACH TABLE d.left AS REPLICATED")
    n1.query("SYSTEM RESTORE REPLICA d.left")
    n1.query("INSERT INTO d.left VALUES (101, 'z', 1)")
    assert n1.query("SELECT count() FROM d.left") == f"{int(before.split()[0]) + 2}\n"


def test_a_table_that_cannot_be_replicated_stays_detached(nodes: Nodes) -> None:
    nodes.n1.query("CREATE TABLE d.a_log (a UInt64) ENGINE = Log")
    nodes.n1.query("DETACH TABLE d.a_log")
    refused(nodes.n1.post("ATTACH TABLE d.a_log AS REPLICATED"), 36)
    nodes.n1.query("ATTACH TABLE d.a_log")
    nodes.n1.query("DROP TABLE d.a_log SYNC")


def test_on_cluster_one_replica_of_a_shard_changes_the_table_for_all(nodes: Nodes) -> None:
    nodes.on_cluster(
        "CREATE TABLE d.once_per_shard ON CLUSTER all (a UInt64, p UInt8) "
        f"ENGINE = ReplicatedMergeTree({OWN_PATH}) PARTITION BY p ORDER BY a"
    )
    nodes.n1.query("INSERT INTO d.once_per_shard SELECT number, number % 3 FROM numbers(30)")
    nodes.on_cluster("ALTER TABLE d.once_per_shard ON CLUSTER all ADD COLUMN z UInt8 DEFAULT 5")
    nodes.on_cluster("ALTER TABLE d.once_per_shard ON CLUSTER all UPDATE z = 6 WHERE 1")
    nodes.on_cluster("ALTER TABLE d.once_per_shard ON CLUSTER all DROP PARTITION 1")
    assert nodes.children("/t/01/d/once_per_shard/mutations") == ["0000000000"]
    for node in (nodes.n1, nodes.n2):
        eventually(partial(node.query, "SELECT count(), sum(z) FROM d.once_per_shard"), "20\t120\n")
    nodes.on_cluster("TRUNCATE TABLE d.once_per_shard ON CLUSTER all")
    for node in (nodes.n1, nodes.n2):
        eventually(partial(node.query, "SELECT count() FROM d.once_per_shard"), "0\n")


def test_on_cluster_takes_effect_once_though_a_replica_is_killed_meanwhile(nodes: Nodes) -> None:
    for number, after_s in enumerate((0.03, 0.1)):
        name = f"d.killed{number}"
        engine = f"ENGINE = ReplicatedMergeTree({OWN_PATH}) PARTITION BY p ORDER BY a"
        for sql in (
            f"CREATE TABLE {name} ON CLUSTER all (a UInt64, p UInt8) {engine}",
            f"INSERT INTO {name} SELECT number, number % 3 FROM numbers(30)",
            f"ALTER TABLE {name} ON CLUSTER all ADD COLUMN z UInt8 DEFAULT 5",
            f"ALTER TABLE {name} ON CLUSTER all UPDATE z = z + 1 WHERE 1",
            f"ALTER TABLE {name} ON CLUSTER all DROP PARTITION 1",
        ):
            if "ON CLUSTER" in sql:
                _kill_while(nodes, sql, after_s=after_s, ask=nodes.n2)
            else:
                nodes.n2.query(sql)
        assert nodes.children(f"/t/01/d/killed{number}/mutations") == ["0000000000"]
        for node in (nodes.n1, nodes.n2):
            eventually(partial(node.query, f"SELECT count(), sum(z) FROM {name}"), "20\t120\n")
    failed = "SELECT entry, exception_text FROM system.distributed_ddl_queue WHERE query LIKE '%d.killed%' "
    assert nodes.n1.query(failed + "AND exception_code != 0") == ""


def test_check_table_reads_every_part(nodes: Nodes) -> None:
    nodes.n1.query("CREATE TABLE d.sound (a UInt64) ENGINE = ReplicatedMergeTree('/sound', 'r') ORDER BY a")
    nodes.n1.query("INSERT INTO d.sound SELECT number FROM numbers(1000)")
    assert nodes.n1.query("CHECK TABLE d.sound") == "all_0_0_0\t1\t\n"
    assert nodes.n1.query("CHECK TABLE d.sound SETTINGS check_query_single_value_result = 1") == "1\n"
    [path] = nodes.n1.query("SELECT path FROM system.parts WHERE table = 'sound' AND active").split()
    file = Path(path) / "data.bin"
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.chmod(0o644)
    file.write_bytes(damaged)
    name, passed, *message = nodes.n1.query("CHECK TABLE d.sound").rstrip("\n").split("\t")
    assert (name, passed) == ("all_0_0_0", "0")
    assert message != [""]


def test_a_stream_of_a_gibibyte_adds_less_than_half_of_that_to_the_node(nodes: Nodes) -> None:
    """Rows that do not compress, sent in pieces: what is in memory is the pieces and chDB's blocks."""
    nodes.n1.query("CREATE TABLE d.big (s String) ENGINE = ReplicatedMergeTree('/big', 'r') ORDER BY tuple()")
    process = psutil.Process(int(str(_announced(nodes, "n1")["pid"])))
    before = process.memory_info().rss
    peak = before
    piece = b"".join(b"%s\n" % os.urandom(512).hex().encode() for _ in range(16 * 1024))
    connection = http.client.HTTPConnection("127.0.0.1", nodes.local.node("n1").http_port, timeout=300)
    connection.putrequest("POST", "/?query=INSERT+INTO+d.big+FORMAT+TSV")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    for _ in range(64):
        connection.send(b"%x\r\n%s\r\n" % (len(piece), piece))
        peak = max(peak, process.memory_info().rss)
    connection.send(b"0\r\n\r\n")
    response = connection.getresponse()
    peak = max(peak, process.memory_info().rss)
    assert response.status == 200, response.read()
    summary = json.loads(response.headers["X-ClickHouse-Summary"])
    assert summary["written_rows"] == str(64 * 16 * 1024)
    added = (peak - before) / (1 << 20)
    print(f"{added:.0f} MiB were added")
    assert added < 500
    assert nodes.n1.query("SELECT count() FROM d.big") == f"{64 * 16 * 1024}\n"
    nodes.n1.query("DROP TABLE d.big SYNC")


def _announced(nodes: Nodes, host: str) -> dict[str, object]:
    file = nodes.local.directory / "nodes" / host / "data" / "node.json"
    facts: dict[str, object] = json.loads(file.read_text())
    return facts


def test_a_node_that_was_killed_has_its_tables_again_or_not_at_all(nodes: Nodes) -> None:
    """kill -9 among CREATE and DROP, again and again; whatever was begun is finished or gone afterwards."""
    for number in (0, 2):
        name = f"d.k{number}_{uuid4().hex[:6]}"
        create = (
            f"CREATE TABLE IF NOT EXISTS {name} (a Int8) ENGINE = ReplicatedMergeTree({OWN_PATH}) ORDER BY a"
        )
        _kill_while(nodes, create, after_s=0.01 + 0.02 * number)
        nodes.n1.query(create)
        eventually(partial(_status, nodes.n1, f"INSERT INTO {name} VALUES (1)"), 200)
        assert nodes.children(f"/t/01/{name.replace('.', '/')}/replicas") == ["n1"]
        _kill_while(nodes, f"DROP TABLE {name} SYNC", after_s=0.005 + 0.01 * number)
        nodes.n1.query(f"DROP TABLE IF EXISTS {name} SYNC")
        table = name.removeprefix("d.")
        eventually(partial(_has_child, nodes, "/t/01/d", table), False)
        assert nodes.n1.query(f"EXISTS {name}") == "0\n"


def _kill_while(nodes: Nodes, sql: str, *, after_s: float, ask: HttpAt | None = None) -> None:
    """Send a statement, to n1 or to whom is given, and kill n1 under it; n1 runs again afterwards."""

    def send() -> None:
        try:
            (ask or nodes.n1).post(sql)
        except OSError:
            pass

    thread = threading.Thread(target=send)
    thread.start()
    time.sleep(after_s)
    nodes.call(nodes.local.node("n1").kill9())
    nodes.call(nodes.local.node("n1").start())
    thread.join()


def test_dropping_a_database_drops_the_replicas_of_its_tables(nodes: Nodes) -> None:
    nodes.on_cluster("CREATE DATABASE gone ON CLUSTER all")
    nodes.on_cluster(
        f"CREATE TABLE gone.t ON CLUSTER all (a Int8) ENGINE = ReplicatedMergeTree({OWN_PATH}) ORDER BY a"
    )
    nodes.n1.query("INSERT INTO gone.t VALUES (1)")
    nodes.on_cluster("DROP DATABASE gone ON CLUSTER all SYNC")
    assert "gone" not in nodes.children("/t/01") or nodes.children("/t/01/gone") == []
