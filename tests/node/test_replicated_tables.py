"""Replicated tables through SQL, with a real ZooKeeper and two node processes."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.few import few_first
from tests.node.replicated_pair import HOSTS, OWN_PATH, SMALL, Pair, eventually, refused

pytestmark = pytest.mark.slow


def test_rows_inserted_on_one_replica_are_on_the_other_with_equal_checksums(pair: Pair) -> None:
    pair.on_cluster(
        f"CREATE TABLE d.t ON CLUSTER all (a UInt64, d Date) ENGINE = ReplicatedMergeTree({OWN_PATH}) "
        "PARTITION BY toYYYYMM(d) ORDER BY a"
    )
    pair.n1.query("INSERT INTO d.t VALUES (1, '2020-01-01'), (2, '2020-02-01')")
    pair.n2.query('INSERT INTO d.t FORMAT JSONEachRow {"a": 3, "d": "2020-01-05"}')
    pair.n1.query("INSERT INTO d.t (a, d) SELECT number, '2021-01-01' FROM numbers(10)")
    for node in (pair.n1, pair.n2):
        eventually(partial(node.query, "SELECT count(), sum(a) FROM d.t"), "13\t51\n")
    hashes = "SELECT partition_id, rows, hash_of_all_files FROM system.parts WHERE active AND table = 't'"
    assert sorted(pair.n1.query(hashes).splitlines()) == sorted(pair.n2.query(hashes).splitlines())
    assert pair.children("/t/01/d/t/replicas") == list(HOSTS)
    assert pair.children("/t/01/d/t/replicas/n1/parts") == pair.children("/t/01/d/t/replicas/n2/parts")


def test_tables_that_exchange_their_names_while_they_are_merged_keep_their_rows(pair: Pair) -> None:
    for own in "xy":
        pair.n1.query(
            f"CREATE TABLE d.swap_{own} (a String) "
            f"ENGINE = ReplicatedMergeTree('/swap/{own}', 'r') ORDER BY a"
        )
        pair.n1.query(f"INSERT INTO d.swap_{own} VALUES ('{own}')")
    is_over = threading.Event()

    def write_and_merge(table: str) -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            for sql in (f"INSERT INTO {table} VALUES ('{number}')", f"OPTIMIZE TABLE {table} FINAL"):
                pair.n1.query(sql)

    with ThreadPoolExecutor(2) as threads:
        writers = [threads.submit(write_and_merge, f"d.swap_{own}") for own in "xy"]
        try:
            for _ in range(15):
                pair.n1.query("EXCHANGE TABLES d.swap_x AND d.swap_y")
        finally:
            is_over.set()
        for writer in writers:
            writer.result()
    for own, other in (("x", "y"), ("y", "x")):
        assert pair.n1.query(f"SELECT a FROM d.swap_{own} WHERE a > 'a'") == f"{other}\n"


def test_the_same_block_and_the_same_token_are_stored_once(pair: Pair) -> None:
    pair.on_cluster(
        f"CREATE TABLE d.once ON CLUSTER all (a UInt64) ENGINE = ReplicatedMergeTree({OWN_PATH}) ORDER BY a"
    )
    for _ in range(2):
        pair.n1.query("INSERT INTO d.once VALUES (1)")
    pair.n2.query("INSERT INTO d.once VALUES (1)")
    pair.n1.query("INSERT INTO d.once VALUES (2)", insert_deduplication_token="x")
    pair.n1.query("INSERT INTO d.once VALUES (3)", insert_deduplication_token="x")
    assert pair.n1.query("SELECT arraySort(groupArray(a)) FROM d.once") == "[1,2]\n"
    pair.n1.query("INSERT INTO d.once SETTINGS insert_deduplicate = 0 VALUES (1)")
    assert pair.n1.query("SELECT count() FROM d.once") == "3\n"


@pytest.mark.parametrize(
    "window",
    ["replicated_deduplication_window = 1", "replicated_deduplication_window_seconds = 0"],
)
def test_blocks_are_known_within_the_window_that_the_table_says(pair: Pair, window: str) -> None:
    """By number, or by seconds before the newest one."""
    soon = "cleanup_delay_period = 0.1, cleanup_delay_period_random_add = 0, max_cleanup_delay_period = 1"
    late = "cleanup_delay_period = 3600, max_cleanup_delay_period = 3600"
    name = pair.table("k UInt64", rest=f"ORDER BY k SETTINGS {window}, {late}")
    insert = f"INSERT INTO {name} VALUES ({{}})"
    pair.n1.query(insert.format(1))
    pair.n1.query(insert.format(2), insert_deduplication_token="x")
    pair.n2.query(insert.format(1))
    pair.n2.query(insert.format(9), insert_deduplication_token="x")
    pair.synced(name)
    assert pair.same(f"SELECT groupArray(k) FROM (SELECT k FROM {name} ORDER BY k)") == "[1,2]\n"
    for node in pair.both:
        node.query(f"ALTER TABLE {name} MODIFY SETTING {soon}")
        node.query(f"SYSTEM RESTART REPLICA {name}")
    eventually(lambda: len(pair.children(f"/tables/{name}/blocks")), 1)
    pair.n1.query(insert.format(9), insert_deduplication_token="x")  # the newest stays
    pair.n2.query(insert.format(1))
    pair.synced(name)
    assert pair.same(f"SELECT groupArray(k) FROM (SELECT k FROM {name} ORDER BY k)") == "[1,1,2]\n"


def test_without_a_window_nothing_is_deduplicated(pair: Pair) -> None:
    name = pair.table("k UInt64", rest="ORDER BY k SETTINGS replicated_deduplication_window = 0")
    for node in pair.both:
        node.query(f"INSERT INTO {name} VALUES (1)")
        node.query(f"INSERT INTO {name} VALUES (1)", insert_deduplication_token="x")
    pair.synced(name)
    assert pair.same(f"SELECT count() FROM {name}") == "4\n"
    assert pair.children(f"/tables/{name}/blocks") == []


@pytest.mark.extended
def test_too_many_parts_are_refused_by_the_tables_limit_or_the_statements(pair: Pair) -> None:
    limits = "parts_to_delay_insert = 2, parts_to_throw_insert = 3, max_delay_to_insert = 1"
    name = pair.table("k UInt64", rest=f"PARTITION BY k % 2 ORDER BY k SETTINGS {limits}")
    for node in pair.both:
        node.query(f"SYSTEM STOP MERGES {name}")
    insert = f"INSERT INTO {name} {{}} VALUES ({{}})"
    for number in range(2):
        pair.n1.query(insert.format("", 2 * number))
    started_s = time.monotonic()
    pair.n1.query(insert.format("", 4))
    assert time.monotonic() - started_s >= 1, "it was delayed"
    refused(pair.n1.post(insert.format("", 6)), 252, "Too many parts (3")
    refused(pair.n1.post(insert.format("", 7)), 252)  # whatever its partition
    pair.synced(name)
    refused(pair.n2.post(f"INSERT INTO {name} FORMAT TSV\n8\n"), 252)

    more = {"parts_to_delay_insert": "100", "parts_to_throw_insert": "200"}
    pair.n1.query(insert.format("", 6), **more)
    pair.n1.query(insert.format("SETTINGS parts_to_throw_insert = 6, parts_to_delay_insert = 100", 8))
    refused(pair.n1.post(insert.format("SETTINGS parts_to_throw_insert = 5", 9)), 252, "Too many parts (5")
    one_block = {"max_block_size": "1", "min_insert_block_size_rows": "1", "min_insert_block_size_bytes": "1"}
    sql = f"INSERT INTO {name} SELECT 2 * number + 1 FROM numbers(100)"
    refused(pair.n1.post(sql, **one_block, parts_to_throw_insert="5"), 252)
    pair.n1.query("SET parts_to_throw_insert = 6, parts_to_delay_insert = 100", session_id="limits")
    pair.n1.query(sql, session_id="limits", **one_block)  # more parts than that, not in the table before
    refused(pair.n1.post(sql, session_id="limits"), 252)
    pair.n1.query(
        f"ALTER TABLE {name} MODIFY SETTING parts_to_throw_insert = 300, parts_to_delay_insert = 200"
    )
    pair.n1.query(insert.format("", 10))


def test_everybody_is_shown_the_table_as_it_was_made(pair: Pair) -> None:
    pair.on_cluster(
        "CREATE TABLE d.shown ON CLUSTER all (a UInt64, v UInt8) ENGINE = ReplicatedReplacingMergeTree(v) "
        "ORDER BY a SETTINGS index_granularity = 100, max_bytes_to_merge_at_max_space_in_pool = 1000000"
    )
    shown = pair.n1.query("SHOW CREATE TABLE d.shown FORMAT TSVRaw")
    assert shown == (
        "CREATE TABLE d.shown\n(\n    `a` UInt64,\n    `v` UInt8\n)\n"
        "ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}', v)\n"
        "ORDER BY a\n"
        "SETTINGS index_granularity = 100, max_bytes_to_merge_at_max_space_in_pool = 1000000\n"
    )
    quoted = pair.n1.query(
        "SHOW CREATE TABLE d.shown SETTINGS show_create_query_identifier_quoting_rule = 'always', "
        "show_create_query_identifier_quoting_style = 'DoubleQuotes' FORMAT TSVRaw"
    )
    assert quoted == shown.replace("d.shown", '"d"."shown"').replace("`", '"').replace(
        " v)", ' "v")'
    ).replace("ORDER BY a", 'ORDER BY "a"')
    found = pair.n1.query(
        "SELECT engine, engine_full, create_table_query FROM system.tables WHERE name = 'shown'",
        default_format="JSONCompact",
    )
    engine, engine_full, create = json.loads(found)["data"][0]
    assert engine == "ReplicatedReplacingMergeTree"
    assert engine_full.startswith("ReplicatedReplacingMergeTree('/clickhouse/tables/{uuid}/{shard}', ")
    assert "in_pool = 1," not in engine_full + create + shown
    pair.n1.query("SHOW CREATE TABLE d.shown FORMAT Native")
    assert pair.n1.query("SELECT count() FROM system.tables WHERE database = '_oncluster'") == "0\n"


def test_an_error_of_create_leaves_nothing(pair: Pair) -> None:
    before = pair.catalog("n1")
    pair.n1.query("CREATE TABLE d.first (a Int8) ENGINE = ReplicatedMergeTree('/f', 'r1') ORDER BY a")
    for sql, code in [
        ("(a Int16) ENGINE = ReplicatedMergeTree('/f', 'r2') ORDER BY a", 122),
        ("(a Int8) ENGINE = ReplicatedMergeTree('/f', 'r2') ORDER BY -a", 342),
        ("(a Int8) ENGINE = ReplicatedMergeTree('/f', 'r1') ORDER BY a", 253),
        ("(a Int8) ENGINE = ReplicatedMergeTree('/x/{nothing}', 'r') ORDER BY a", 139),
        ("(a Int8) ENGINE = ReplicatedMergeTree ORDER BY a", 36),
        ("(a Int8) ENGINE = ReplicatedMergeTree('/x', 'r') ORDER BY nothing", 47),
        ("(a Int8) ENGINE = ReplicatedMergeTree('/x', 'r/../r') ORDER BY a", 36),
        ("(a Int8) ENGINE = ReplicatedMergeTree('/x', '') ORDER BY a", 36),
        ("(a Int8) ENGINE = ReplicatedMergeTree('x/without/slash', 'r') ORDER BY a", 36),
        ("(a Int8) ENGINE = ReplicatedMergeTree('other_keeper:/x', 'r') ORDER BY a", 48),
        ("ENGINE = ReplicatedMergeTree('/x', 'r') ORDER BY a AS SELECT throwIf(1) AS a", 395),
    ]:
        refused(pair.n1.post(f"CREATE TABLE d.wrong {sql}"), code)
        assert pair.n1.query("EXISTS d.wrong") == "0\n"
    refused(pair.n1.post(f"CREATE TABLE nowhere.{SMALL.replace('(a', 't (a', 1)}"), 81)
    taken = pair.n1.query("SELECT uuid FROM system.tables WHERE database = 'd' AND name = 'first'").strip()
    refused(pair.n1.post(f"CREATE TABLE d.wrong UUID '{taken}' {SMALL}"), 57)
    assert pair.children("/f/replicas") == ["r1"]
    assert "x" not in pair.children("/")
    pair.n1.query("DROP TABLE d.first SYNC")
    assert "f" not in pair.children("/")
    assert pair.catalog("n1") <= before


def test_two_replicas_of_one_table_may_live_on_one_node(pair: Pair) -> None:
    for name in ("a", "b"):
        pair.n1.query(
            f"CREATE TABLE d.both_{name} (a Int8) ENGINE = ReplicatedMergeTree('/both', '{name}') ORDER BY a"
        )
    pair.n1.query("INSERT INTO d.both_a VALUES (1)", insert_quorum="2")
    assert pair.n1.query("SELECT * FROM d.both_b") == "1\n"
    pair.n1.query("DROP TABLE d.both_a, d.both_b SYNC")
    assert "both" not in pair.children("/")


def test_a_table_goes_on_under_its_new_name(pair: Pair) -> None:
    pair.on_cluster(
        f"CREATE TABLE d.old ON CLUSTER all (a Int8) ENGINE = ReplicatedMergeTree({OWN_PATH}) ORDER BY a"
    )
    pair.n1.query("INSERT INTO d.old VALUES (1)")
    pair.n1.query("RENAME TABLE d.old TO d.new")
    pair.n1.query("INSERT INTO d.new VALUES (2)")
    eventually(lambda: pair.n2.query("SELECT sum(a) FROM d.old"), "3\n")
    pair.n1.query("CREATE TABLE d.other (a Int8) ENGINE = Memory")
    pair.n1.query("EXCHANGE TABLES d.new AND d.other")
    pair.n1.query("INSERT INTO d.other VALUES (3)")
    eventually(lambda: pair.n2.query("SELECT sum(a) FROM d.old"), "6\n")
    host = pair.n1.query(
        "SELECT value FROM system.zookeeper WHERE path = '/t/01/d/old/replicas/n1' AND name = 'host'"
    )
    assert "table: other" in host


def test_a_detached_table_catches_up_when_it_is_attached(pair: Pair) -> None:
    pair.on_cluster(
        f"CREATE TABLE d.away ON CLUSTER all (a Int8) ENGINE = ReplicatedMergeTree({OWN_PATH}) ORDER BY a"
    )
    refused(pair.n2.post("ATTACH TABLE d.away"), 57)
    pair.n2.query("ATTACH TABLE IF NOT EXISTS d.away")
    pair.n2.query("DETACH TABLE d.away PERMANENTLY")
    pair.n1.query("INSERT INTO d.away VALUES (1)")
    pair.restart("n2")
    refused(pair.n2.post("SELECT * FROM d.away"), 60)
    refused(pair.n2.post(f"CREATE TABLE d.away {SMALL}"), 57)
    pair.n2.query("ATTACH TABLE d.away")
    eventually(lambda: pair.n2.query("SELECT * FROM d.away"), "1\n")


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("CREATE OR REPLACE VIEW d.stays AS SELECT 1 AS a", 48),
        (f"ATTACH TABLE d.no {SMALL}", 80),
        (f"CREATE TEMPORARY TABLE no {SMALL}", 36),
        ("CREATE TABLE d.no CLONE AS d.stays", 253),
        ("CREATE TABLE d.no (a Int8) ENGINE = ReplicatedMergeTree('aux:/p', 'r') ORDER BY a", 48),
        ("SYSTEM DROP REPLICA 'r' FROM ZKPATH 'aux:/p'", 48),
        ("CREATE TABLE d.no AS d.stays", 253),
    ],
)
def test_what_would_go_past_keeper_is_refused(pair: Pair, sql: str, code: int) -> None:
    pair.n1.query(
        f"CREATE TABLE IF NOT EXISTS d.stays (a Int8) ENGINE = ReplicatedMergeTree({OWN_PATH}) ORDER BY a"
    )
    refused(pair.n1.post(sql), code)
    assert "Replicated" in pair.n1.query("SHOW CREATE TABLE d.stays")
    assert pair.n1.query("EXISTS d.no") == "0\n"


def test_path_and_replica_name_may_be_expressions(pair: Pair) -> None:
    engine = "MergeTree(concat('/computed/', currentDatabase(), '/', {{t:String}}), '{{replica}}') ORDER BY a"
    create = "CREATE TABLE d.computed (a Int8) ENGINE = Replicated" + engine.format()
    refused(pair.n1.post(create.replace("concat", "length"), database="d", param_t="t"), 42)
    refused(pair.n1.post(create.replace("'{replica}'", "2 + 2"), database="d", param_t="t"), 36)
    pair.n1.query(create, database="d", param_t="t")
    assert "MergeTree(\\'/computed/d/t\\', \\'{replica}\\')" in pair.n1.query("SHOW CREATE TABLE d.computed")
    view = "CREATE MATERIALIZED VIEW d.computed_v ENGINE = ReplicatedSumming" + engine.format()
    pair.n1.query(f"{view} AS SELECT a FROM d.computed", database="d", param_t="v")
    pair.n1.query("INSERT INTO d.computed VALUES (1)")
    assert pair.n1.query("SELECT * FROM d.computed_v") == "1\n"
    for name in ("computed_v", "computed"):
        pair.n1.query(f"DROP TABLE d.{name} SYNC")


@pytest.mark.parametrize("setting", ["assign_part_uuids = 1", "min_bytes_for_full_part_storage = 1000000"])
def test_settings_that_parts_could_not_be_sent_with_are_shown_and_not_followed(
    pair: Pair, setting: str
) -> None:
    """A part's UUID is its replicated name, and its files are sent one by one."""
    pair.on_cluster(
        "CREATE OR REPLACE TABLE d.formed ON CLUSTER all (a Int8) ENGINE = ReplicatedMergeTree ORDER BY a "
        f"SETTINGS {setting}"
    )
    assert setting in pair.same("SHOW CREATE TABLE d.formed")
    for node in pair.both:
        node.query(f"INSERT INTO d.formed SELECT {node is pair.n1}")
    pair.n2.query("SYSTEM SYNC REPLICA d.formed")
    pair.n2.query("OPTIMIZE TABLE d.formed FINAL SETTINGS alter_sync = 2")
    assert pair.same("SELECT a FROM d.formed ORDER BY a") == "0\n1\n"
    assert pair.same("SELECT name FROM system.parts WHERE table = 'formed' AND active") == "all_0_1_1\n"


def test_statements_side_by_side_run_as_if_each_stood_alone(pair: Pair) -> None:
    """chDB, which takes all of them at once, would change this node's rows only."""
    pair.on_cluster(
        f"CREATE TABLE d.par ON CLUSTER all (a Int8) ENGINE = ReplicatedMergeTree({OWN_PATH}) ORDER BY a "
        "PARALLEL WITH CREATE TABLE d.par_too ON CLUSTER all (a Int8) "
        f"ENGINE = ReplicatedMergeTree({OWN_PATH}) ORDER BY a"
    )
    n1 = pair.n1
    n1.query("CREATE TABLE d.par_p (a Int8) ENGINE = Memory")
    n1.query("INSERT INTO d.par_p SELECT 1 PARALLEL WITH INSERT INTO d.par SELECT number FROM numbers(3)")
    pair.synced("d.par")
    assert pair.same("SELECT sum(a) FROM d.par") == "3\n"
    n1.query("INSERT INTO d.par_p SELECT 1 PARALLEL WITH DELETE FROM d.par WHERE a = 1")
    pair.synced("d.par")
    assert pair.same("SELECT sum(a) FROM d.par") == "2\n"
    refused(n1.post("DROP TABLE d.nowhere PARALLEL WITH TRUNCATE TABLE d.par SETTINGS alter_sync = 2"), 60)
    assert pair.same("SELECT count() FROM d.par") == "0\n"
    refused(n1.post("DROP TABLE d.par PARALLEL WITH SELECT 1"), 80)
    assert pair.same("EXISTS d.par") == "1\n"
    n1.query("EXCHANGE TABLES d.par AND d.par_too PARALLEL WITH DROP TABLE d.par_p PARALLEL WITH USE system")
    assert n1.query("SELECT zookeeper_path FROM system.replicas WHERE table = 'par'").endswith("par_too\n")


def test_of_a_backup_only_plain_tables_are_restored_and_by_name(pair: Pair) -> None:
    """Rows of replicated ones would come to this node only."""
    pair.table()
    n1 = pair.n1
    n1.query("CREATE TABLE d.backed (a Int8) ENGINE = MergeTree ORDER BY a")
    n1.query("INSERT INTO d.backed VALUES (1)")
    n1.query("BACKUP TABLE d.backed TO Memory('backed')", session_id="backup")
    n1.query("DROP TABLE d.backed SYNC")
    for what in ("DATABASE d", "DATABASE d AS e", "ALL"):
        refused(n1.post(f"RESTORE {what} FROM Memory('backed')", session_id="backup"), 48)
    assert n1.query("EXISTS d.backed") == "0\n"
    n1.query("RESTORE TABLE d.backed FROM Memory('backed')", session_id="backup")
    assert n1.query("SELECT a FROM d.backed") == "1\n"
    n1.query("DROP TABLE d.backed SYNC")


def test_policies_on_a_replicated_table_are_chdbs(pair: Pair) -> None:
    """It has no place for them, so there are none to drop."""
    t = pair.table()
    for name in (t, "system.one"):
        pair.n1.query(f"DROP ROW POLICY IF EXISTS p ON {name}")
        refused(pair.n1.post(f"DROP ROW POLICY p ON {name}"), 523)
        refused(pair.n1.post(f"CREATE ROW POLICY p ON {name} USING 1"), 514)


def test_create_or_replace_puts_a_new_replica_in_the_old_tables_place(pair: Pair) -> None:
    def replacing(columns: str, path: str, rest: str = "") -> str:
        return (
            f"CREATE OR REPLACE TABLE d.replaced {columns} "
            f"ENGINE = ReplicatedMergeTree('{path}', 'r1') ORDER BY a {rest}"
        )

    before = pair.catalog("n1")
    refused(pair.n1.post(replacing("(a Int8)", "/r1").removeprefix("CREATE OR ")), 60)
    pair.n1.query(replacing("(a Int8)", "/r1"))
    pair.n1.query("INSERT INTO d.replaced VALUES (1), (2)")
    refused(pair.n1.post(replacing("(b Int8, a Int8)", "/r1")), 253, "{uuid}")
    refused(pair.n1.post(replacing("", "/r2", "AS SELECT throwIf(1) AS a")), 395)
    for new in (replacing("(a Int8)", "/r2"), "CREATE OR REPLACE TABLE d.replaced (a Int8) ENGINE = Memory"):
        refused(pair.n1.post(new, max_table_size_to_drop="1"), 359, "d.replaced was not dropped")
    assert pair.n1.query("SELECT * FROM d.replaced ORDER BY a") == "1\n2\n"
    pair.n1.query(replacing("(a Int8, b String)", "/r2", "AS SELECT a, 'new' AS b FROM d.replaced"))
    assert pair.n1.query("SELECT * FROM d.replaced ORDER BY a") == "1\tnew\n2\tnew\n"
    assert pair.n1.query("SHOW TABLES FROM d LIKE '%replace%'") == "replaced\n"
    assert "/r2" in pair.n1.query("SHOW CREATE TABLE d.replaced")
    assert "r1" not in pair.children("/")
    host = pair.n1.query(
        "SELECT value FROM system.zookeeper WHERE path = '/r2/replicas/r1' AND name = 'host'"
    )
    assert "table: replaced\\n" in host
    pair.n1.query("INSERT INTO d.replaced VALUES (3, 'c')")
    pair.n1.query(replacing("(a Int8)", "/r3").removeprefix("CREATE OR "))
    assert pair.n1.query("SELECT count() FROM d.replaced") == "0\n"
    pair.n1.query("DROP TABLE d.replaced SYNC")
    assert pair.catalog("n1") <= before


@pytest.mark.parametrize("engine", ["MergeTree ORDER BY a", "Memory", "Distributed(all, d, elsewhere, a)"])
def test_a_table_that_is_not_replicated_takes_the_place_of_one_that_is(pair: Pair, engine: str) -> None:
    before = pair.catalog("n1")
    name = f"d.no_more_{engine[:3].lower()}"
    pair.on_cluster(
        f"CREATE TABLE {name} ON CLUSTER all (a Int8) ENGINE = ReplicatedMergeTree({OWN_PATH}) ORDER BY a"
    )
    pair.n1.query(f"INSERT INTO {name} VALUES (1), (2)")
    pair.synced(name)
    create = f"TABLE {name} (a Int8) ENGINE = {engine}"
    if not engine.startswith("Distributed"):
        refused(pair.n1.post(f"CREATE OR REPLACE {create} AS SELECT throwIf(1) AS a"), 395)
        assert pair.same(f"SELECT a FROM {name} ORDER BY a") == "1\n2\n"
        pair.n1.query(f"REPLACE {create} AS SELECT a + 1 AS a FROM {name}")
        assert pair.n1.query(f"SELECT a FROM {name} ORDER BY a") == "2\n3\n"
        assert pair.n2.query(f"SELECT a FROM {name} ORDER BY a") == "1\n2\n"
    for _ in range(2):
        pair.on_cluster(f"CREATE OR REPLACE {create}".replace(" (", " ON CLUSTER all (", 1))
        assert f"ENGINE = {engine[:3]}" in pair.same(f"SHOW CREATE TABLE {name}")
    assert pair.same("SHOW TABLES FROM d LIKE '%replace%'") == ""
    assert pair.catalog("n1") <= before
    pair.on_cluster(f"DROP TABLE {name} ON CLUSTER all SYNC")


def test_create_or_replace_of_a_plain_table_and_on_cluster(pair: Pair) -> None:
    for node in (pair.n1, pair.n2):
        node.query("CREATE TABLE d.plain_before (a Int8) ENGINE = MergeTree ORDER BY a")
    for _ in range(2):
        pair.on_cluster(
            "CREATE OR REPLACE TABLE d.plain_before ON CLUSTER all (a Int8) "
            "ENGINE = ReplicatedMergeTree('/t/{uuid}', '{replica}') ORDER BY a"
        )
        assert pair.n2.query("SELECT count() FROM d.plain_before") == "0\n"
        pair.n1.query("INSERT INTO d.plain_before VALUES (1)")
        pair.n2.query("SYSTEM SYNC REPLICA d.plain_before")
        assert pair.n2.query("SELECT count() FROM d.plain_before") == "1\n"
    pair.on_cluster("DROP TABLE d.plain_before ON CLUSTER all SYNC")


def test_the_nodes_own_database_is_shown_to_nobody(pair: Pair) -> None:
    pair.table()
    databases = pair.n1.query("SELECT name FROM system.databases ORDER BY name").split()
    assert "_oncluster" not in databases
    assert pair.n1.query("SHOW DATABASES").split() == databases
    assert pair.n1.query("SHOW DATABASES LIKE 'sys%' FORMAT TSV") == "system\n"
    assert pair.n1.query("SHOW DATABASES NOT LIKE 'd%' LIMIT 1") == "INFORMATION_SCHEMA\n"
    for sql in ("CREATE DATABASE left", "USE left", "DROP DATABASE left"):
        pair.n1.query(sql, session_id="left")
    assert pair.n1.query("SHOW DATABASES", session_id="left").split() == databases


def test_what_a_node_makes_for_a_statement_stands_in_no_list_of_tables(pair: Pair) -> None:
    """For who may only read, and beside other tables of `system`, `system.tables` is a temporary view."""
    pair.n1.query("CREATE TABLE d.listed (a Int8) ENGINE = ReplicatedMergeTree('/listed', 'r') ORDER BY a")
    listed = "SELECT name FROM system.tables WHERE database IN ('', 'nosuch') OR name = 'listed'"
    pair.n1.query("SET readonly = 1", session_id="lister")
    assert pair.n1.query(listed, session_id="lister") == "listed\n"
    assert pair.n1.query(f"{listed} AND (SELECT count() FROM system.clusters) > 0") == "listed\n"
    pair.n1.query("CREATE TEMPORARY TABLE mine (a Int8)", session_id="mine")
    assert pair.n1.query(f"{listed} ORDER BY name", session_id="mine") == "listed\nmine\n"


def test_who_may_only_read_changes_nothing(pair: Pair) -> None:
    pair.n1.query("CREATE TABLE d.still (a UInt64) ENGINE = ReplicatedMergeTree('/still', 'r') ORDER BY a")
    pair.n1.query("INSERT INTO d.still VALUES (1)")
    pair.n1.query("SET readonly = 1", session_id="reader")
    for sql in [
        "TRUNCATE TABLE d.still",
        "ALTER TABLE d.still DELETE WHERE 1",
        "DROP TABLE d.still",
        "OPTIMIZE TABLE d.still FINAL",
        "INSERT INTO d.still VALUES (2)",
        "SYSTEM STOP MERGES d.still",
        f"CREATE TABLE d.no {SMALL}",
    ]:
        refused(pair.n1.post(sql, session_id="reader"), 164)
    assert pair.n1.query("SELECT a FROM d.still") == "1\n"


def test_on_cluster_one_replica_of_a_shard_changes_the_table_for_all(pair: Pair) -> None:
    pair.on_cluster(
        "CREATE TABLE d.once_per_shard ON CLUSTER all (a UInt64, p UInt8) "
        f"ENGINE = ReplicatedMergeTree({OWN_PATH}) PARTITION BY p ORDER BY a"
    )
    pair.n1.query("INSERT INTO d.once_per_shard SELECT number, number % 3 FROM numbers(30)")
    pair.on_cluster("ALTER TABLE d.once_per_shard ON CLUSTER all ADD COLUMN z UInt8 DEFAULT 5")
    pair.on_cluster("ALTER TABLE d.once_per_shard ON CLUSTER all UPDATE z = 6 WHERE 1")
    pair.on_cluster("ALTER TABLE d.once_per_shard ON CLUSTER all DROP PARTITION 1")
    assert pair.children("/t/01/d/once_per_shard/mutations") == ["0000000000"]
    for node in (pair.n1, pair.n2):
        eventually(partial(node.query, "SELECT count(), sum(z) FROM d.once_per_shard"), "20\t120\n")
    pair.on_cluster("TRUNCATE TABLE d.once_per_shard ON CLUSTER all")
    for node in (pair.n1, pair.n2):
        eventually(partial(node.query, "SELECT count() FROM d.once_per_shard"), "0\n")


def test_check_table_reads_every_part(pair: Pair) -> None:
    pair.n1.query("CREATE TABLE d.sound (a UInt64) ENGINE = ReplicatedMergeTree('/sound', 'r') ORDER BY a")
    pair.n1.query("INSERT INTO d.sound SELECT number FROM numbers(1000)")
    assert pair.n1.query("CHECK TABLE d.sound") == "all_0_0_0\t1\t\n"
    assert pair.n1.query("CHECK TABLE d.sound SETTINGS check_query_single_value_result = 1") == "1\n"
    [path] = pair.n1.query("SELECT path FROM system.parts WHERE table = 'sound' AND active").split()
    file = Path(path) / "data.bin"
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.chmod(0o644)
    file.write_bytes(damaged)
    name, passed, *message = pair.n1.query("CHECK TABLE d.sound").rstrip("\n").split("\t")
    assert (name, passed) == ("all_0_0_0", "0")
    assert message != [""]


@pytest.mark.extended
def test_a_stream_of_a_gibibyte_adds_less_than_half_of_that_to_the_node(pair: Pair) -> None:
    """Rows that do not compress, sent in pieces: what is in memory is the pieces and chDB's blocks."""
    pair.n1.query("CREATE TABLE d.big (s String) ENGINE = ReplicatedMergeTree('/big', 'r') ORDER BY tuple()")
    process = psutil.Process(int(str(_announced(pair, "n1")["pid"])))
    before = process.memory_info().rss
    peak = before
    piece = b"".join(b"%s\n" % os.urandom(512).hex().encode() for _ in range(16 * 1024))
    connection = http.client.HTTPConnection("127.0.0.1", pair.local.node("n1").http_port, timeout=300)
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
    assert pair.n1.query("SELECT count() FROM d.big") == f"{64 * 16 * 1024}\n"
    pair.n1.query("DROP TABLE d.big SYNC")


def _announced(pair: Pair, host: str) -> dict[str, object]:
    file = pair.local.directory / "nodes" / host / "data" / "node.json"
    facts: dict[str, object] = json.loads(file.read_text())
    return facts


def test_what_depends_on_tables_goes_with_their_database_or_keeps_all_of_them(pair: Pair) -> None:
    n1 = pair.n1
    n1.query("CREATE DATABASE used")
    n1.query("CREATE TABLE used.t (k UInt64, v String) ENGINE = ReplicatedMergeTree('/used', 'r') ORDER BY k")
    source = "SOURCE(CLICKHOUSE(TABLE 't' DATABASE 'used')) LAYOUT(FLAT()) LIFETIME(0)"
    n1.query(f"CREATE DICTIONARY used.dict (k UInt64, v String) PRIMARY KEY k {source}")
    n1.query("CREATE TABLE d.user (k UInt64, v String DEFAULT dictGet('used.dict', 'v', k)) ENGINE = Memory")
    for statement in ("TRUNCATE DATABASE used", "DROP DATABASE used"):
        refused(n1.post(statement), 630)
        assert n1.query("SHOW TABLES FROM used") == "dict\nt\n"
    n1.query("DROP TABLE d.user SYNC")
    n1.query("CREATE TABLE used.last (k UInt64) ENGINE = ReplicatedMergeTree('/last', 'r') ORDER BY k")
    n1.query("CREATE VIEW used.own AS SELECT * FROM used.t")
    n1.query("CREATE VIEW d.reader AS SELECT * FROM used.last")
    refused(n1.post("DROP DATABASE used", check_referential_table_dependencies="1"), 630, "d.reader")
    assert n1.query("SHOW TABLES FROM used") == "dict\nlast\nown\nt\n"
    n1.query("DROP VIEW d.reader")
    n1.query("DROP DATABASE used SYNC", check_referential_table_dependencies="1")
    assert n1.query("SELECT count() FROM system.databases WHERE name = 'used'") == "0\n"


def test_dropping_a_database_drops_the_replicas_of_its_tables(pair: Pair) -> None:
    pair.on_cluster("CREATE DATABASE gone ON CLUSTER all")
    pair.on_cluster(
        f"CREATE TABLE gone.t ON CLUSTER all (a Int8) ENGINE = ReplicatedMergeTree({OWN_PATH}) ORDER BY a"
    )
    pair.n1.query("INSERT INTO gone.t VALUES (1)")
    pair.on_cluster("DROP DATABASE gone ON CLUSTER all SYNC")
    assert "gone" not in pair.children("/t/01") or pair.children("/t/01/gone") == []


def test_a_session_may_mean_if_not_exists_with_every_create(pair: Pair) -> None:
    t = pair.table()
    create = f"CREATE TABLE {t} (k UInt64) ENGINE = ReplicatedMergeTree('/other/{t}', '1') ORDER BY k"
    refused(pair.n1.post(create), 57)
    pair.n1.query(create, create_if_not_exists="1")
    pair.n1.query(f"CREATE TABLE {t} AS {t} ENGINE = Distributed(all, d, {t})", create_if_not_exists="1")
    assert pair.n1.query(f"SELECT engine FROM system.tables WHERE name = '{t}'") == "ReplicatedMergeTree\n"


@pytest.mark.parametrize("name", few_first(["\\xff", "a (b, c) = 'd'", "back\\\\slash", "nach größe"], few=2))
def test_parts_with_files_of_any_name_reach_the_other_replica(pair: Pair, name: str) -> None:
    """chDB names the directory of a projection as the projection, and files as the types of a Variant."""
    t = pair.table(
        "k UInt64, v Variant(Tuple(x Int8, y String), Array(String)),"
        f" PROJECTION `{name}` (SELECT k % 2, count() GROUP BY k % 2)",
        rest="ORDER BY k SETTINGS min_bytes_for_wide_part = 0, escape_variant_subcolumn_filenames = 0",
    )
    pair.n1.query(f"INSERT INTO {t} VALUES (1, ['a']), (2, (1, 'b'))")
    pair.n2.query(f"SYSTEM SYNC REPLICA {t}", receive_timeout="20")
    pair.n2.query(f"ALTER TABLE {t} MATERIALIZE PROJECTION `{name}` SETTINGS mutations_sync = 2")
    assert pair.same(f"SELECT * FROM {t} ORDER BY k") == "1\t['a']\n2\t(1,'b')\n"
    assert pair.same(f"SELECT count() FROM system.projection_parts WHERE active AND table = '{t}'") == "1\n"
