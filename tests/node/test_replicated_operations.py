"""OPTIMIZE, ON CLUSTER and system tables of replicated tables, on two real nodes and ZooKeeper."""

from __future__ import annotations

import pytest

from tests.node.replicated_pair import Pair, error, json_rows, refused, wait_for

pytestmark = pytest.mark.slow


# -- OPTIMIZE ------------------------------------------------------------------------------------------------


def test_optimize_final_merges_on_all_replicas(pair: Pair) -> None:
    t = pair.table()
    for number in range(4):
        pair.n1.query(f"INSERT INTO {t} VALUES ({number}, 'x')")
    pair.n2.query(f"OPTIMIZE TABLE {t} FINAL SETTINGS alter_sync = 2")
    assert pair.rows(t) == "0\tx\n1\tx\n2\tx\n3\tx\n"
    assert pair.same(f"SELECT name FROM system.parts WHERE table = '{t}' ORDER BY 1") == "0_0_1_1\n1_0_1_1\n"


def test_optimize_merges_what_would_not_be_worth_it_by_itself(pair: Pair) -> None:
    t = pair.table(rest="ORDER BY k SETTINGS min_parts_to_merge_at_once = 3")
    optimize = f"OPTIMIZE TABLE {t} SETTINGS optimize_throw_if_noop, alter_sync = 2"
    for number in range(3):
        assert error(pair.n1.post(optimize)) == 388
        pair.n1.query(f"INSERT INTO {t} VALUES ({number}, 'x')")
    pair.n1.query(optimize)
    assert pair.rows(t) == "0\tx\n1\tx\n2\tx\n"
    assert pair.same(f"SELECT name FROM system.parts WHERE table = '{t}'") == "all_0_2_1\n"


def test_a_partition_that_is_merged_is_left_alone_if_that_is_wanted(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"OPTIMIZE TABLE {t} FINAL SETTINGS optimize_throw_if_noop = 1")  # no partition at all
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    skipping = f"OPTIMIZE TABLE {t} FINAL SETTINGS optimize_skip_merged_partitions = 1"
    pair.n1.query(skipping)
    pair.n1.query(skipping)
    pair.n1.query(f"{skipping}, optimize_throw_if_noop = 1")
    assert pair.n1.query(f"SELECT name FROM system.parts WHERE table = '{t}'") == "1_0_0_1\n"
    assert pair.n1.query(f"SELECT parts, active_parts FROM system.tables WHERE name = '{t}'") == "1\t1\n"


def test_merged_parts_are_wide_from_the_level_on_that_the_table_says(pair: Pair) -> None:
    settings = "min_bytes_for_wide_part = 0, min_rows_for_wide_part = 0, min_level_for_wide_part = 2"
    t = pair.table(rest=f"ORDER BY k SETTINGS {settings}")
    for number in range(2):
        pair.n1.query(f"INSERT INTO {t} VALUES ({number}, 'x')")
    for level, kind in ((1, "Compact"), (2, "Wide"), (3, "Wide")):
        pair.n1.query(f"OPTIMIZE TABLE {t} FINAL SETTINGS alter_sync = 2")
        shown = pair.same(f"SELECT name, part_type FROM system.parts WHERE table = '{t}'")
        assert shown == f"all_0_1_{level}\t{kind}\n"
    assert pair.rows(t) == "0\tx\n1\tx\n"


def test_whether_rows_of_a_select_are_deduplicated_can_be_chosen(pair: Pair) -> None:
    t = pair.table()
    for choice, select, count in (
        ("", "SELECT 1, 'a'", 1),
        ("", "SELECT 1, 'a'", 1),
        ("SETTINGS deduplicate_insert_select = 'enable_when_possible'", "SELECT 1, 'a' ORDER BY ALL", 1),
        ("SETTINGS deduplicate_insert_select = 'enable_when_possible'", "SELECT 1, 'a'", 2),
        ("SETTINGS deduplicate_insert_select = 'disable'", "SELECT 1, 'a' ORDER BY ALL", 3),
    ):
        pair.n1.query(f"INSERT INTO {t} {choice} {select}")
        assert pair.n1.query(f"SELECT count() FROM {t}") == f"{count}\n"
    forced = f"INSERT INTO {t} SETTINGS deduplicate_insert_select = '{{}}' SELECT 1, 'a'"
    assert error(pair.n1.post(forced.format("force_enable"))) == 764
    assert error(pair.n1.post(forced.format("now and then"))) == 36
    pair.n1.query(f"{forced.format('force_enable')} ORDER BY ALL")
    assert pair.n1.query(f"SELECT count() FROM {t}") == "3\n"
    assert error(pair.n1.post(f"OPTIMIZE TABLE {t} FINAL DRY RUN PARTS 'x'")) == 62


def test_optimize_deduplicates_by_columns(pair: Pair) -> None:
    t = pair.table("k UInt64, v String, w UInt8", rest="ORDER BY k")
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a', 1), (1, 'a', 2), (2, 'b', 1)")
    pair.n1.query(f"OPTIMIZE TABLE {t} FINAL DEDUPLICATE BY * EXCEPT w SETTINGS alter_sync = 2")
    assert pair.rows(t) == "1\ta\t1\n2\tb\t1\n"


@pytest.mark.extended
def test_deduplication_that_no_replica_could_do_does_not_come_into_the_log(pair: Pair) -> None:
    t = pair.table("k UInt64, v String, m UInt8 MATERIALIZED 1, a UInt8 ALIAS 2", rest="ORDER BY k")
    for _ in range(2):
        pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')", insert_deduplicate="0")
    for columns, code in [("v", 8), ("* EXCEPT k", 8), ("k, a", 16), ("COLUMNS('none')", 51), ("k, k", 52)]:
        assert error(pair.n2.post(f"OPTIMIZE TABLE {t} FINAL DEDUPLICATE BY {columns}")) == code
    assert pair.rows(t) == "1\ta\n1\ta\n"
    assert pair.n1.query(f"SELECT count() FROM system.zookeeper WHERE path = '/tables/{t}/log'") == "2\n"
    pair.n1.query(f"ALTER TABLE {t} ADD PROJECTION p (SELECT v ORDER BY v) SETTINGS alter_sync = 2")
    assert error(pair.n2.post(f"OPTIMIZE TABLE {t} FINAL DEDUPLICATE")) == 344
    pair.n1.query(f"ALTER TABLE {t} DROP PROJECTION p")
    assert pair.n1.query(f"SELECT count() FROM system.replication_queue WHERE table = '{t}'") == "0\n"
    pair.n2.query(f"OPTIMIZE TABLE {t} FINAL DEDUPLICATE BY * SETTINGS alter_sync = 2")
    assert pair.rows(t) == "1\ta\n"


def test_cleanup_has_to_be_allowed_where_it_is_asked_for(pair: Pair) -> None:
    """And there only: the other replica, whose own setting it is, merges all the same."""
    t = pair.table(
        "k UInt64, del UInt8", engine="ReplicatedReplacingMergeTree", arguments="k, del", rest="ORDER BY k"
    )
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 0), (2, 1)")
    optimize = f"OPTIMIZE TABLE {t} FINAL CLEANUP SETTINGS alter_sync = 2"
    assert error(pair.n1.post(optimize)) == 344
    assert pair.n1.query(f"SELECT count() FROM system.zookeeper WHERE path = '/tables/{t}/log'") == "1\n"
    pair.n1.query(f"ALTER TABLE {t} MODIFY SETTING allow_experimental_replacing_merge_with_cleanup = 1")
    pair.n1.query(optimize)
    assert pair.rows(t) == "1\t0\n"
    rest = "ORDER BY k SETTINGS allow_experimental_replacing_merge_with_cleanup = 1"
    t = pair.table("k UInt64, v UInt8", engine="ReplicatedReplacingMergeTree", arguments="v", rest=rest)
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 0), (1, 1)")
    pair.n1.query(f"OPTIMIZE TABLE {t} FINAL CLEANUP SETTINGS alter_sync = 2")
    assert pair.rows(t) == "1\t1\n"  # no column says what is deleted


# -- ON CLUSTER ----------------------------------------------------------------------------------------------


@pytest.mark.extended
def test_on_cluster_one_replica_of_the_shard_does_it_for_all(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} SELECT number, 'x' FROM numbers(4)")
    pair.n2.query(f"ALTER TABLE {t} ON CLUSTER all ADD COLUMN n UInt8 DEFAULT 1")
    pair.n1.query(f"ALTER TABLE {t} ON CLUSTER all UPDATE n = n + 1 WHERE true SETTINGS mutations_sync = 2")
    assert pair.rows(t) == "0\tx\t2\n1\tx\t2\n2\tx\t2\n3\tx\t2\n"
    pair.n2.query(f"ALTER TABLE {t} ON CLUSTER all DROP PARTITION 1")
    pair.n1.query(f"OPTIMIZE TABLE {t} ON CLUSTER all FINAL")
    assert pair.rows(t) == "0\tx\t2\n2\tx\t2\n"
    pair.n1.query(f"DELETE FROM {t} ON CLUSTER all WHERE k = 0")
    assert pair.rows(t) == "2\tx\t2\n"
    pair.n1.query(f"TRUNCATE TABLE {t} ON CLUSTER all")
    assert pair.rows(t) == ""
    pair.n1.query(f"SYSTEM STOP MERGES ON CLUSTER all {t}")
    pair.n1.query(f"SYSTEM START MERGES ON CLUSTER all {t}")
    pair.n1.query(f"SYSTEM SYNC REPLICA ON CLUSTER all {t}")


# -- system tables -------------------------------------------------------------------------------------------


def test_system_replicas_shows_both_replicas(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    pair.synced(t)
    for number, node in enumerate(pair.both, start=1):
        [row] = json_rows(node, f"SELECT * FROM system.replicas WHERE table = '{t}'")
        assert row["engine"] == "ReplicatedMergeTree"
        assert (row["zookeeper_path"], row["replica_name"]) == (f"/tables/{t}", f"r{number}")
        assert (row["total_replicas"], row["active_replicas"]) == (2, 2)
        assert row["replica_is_active"] == {"r1": 1, "r2": 1}
        assert (row["is_readonly"], row["is_session_expired"], row["queue_size"]) == (0, 0, 0)
        assert (int(row["log_max_index"]), int(row["log_pointer"])) == (0, 1)
        assert row["zookeeper_exception"] == ""


def test_columns_that_keeper_knows_are_left_out_when_nobody_asks(pair: Pair) -> None:
    t = pair.table()
    assert pair.n1.query(f"SELECT count(*) FROM system.replicas WHERE table = '{t}'") == "1\n"
    assert pair.n1.query(f"SELECT replica_name FROM system.replicas WHERE table = '{t}'") == "r1\n"


def test_while_keeper_hangs_rows_are_read_and_the_system_tables_answer(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    pair.synced(t)
    pair.zookeeper.pause()
    try:
        assert pair.n1.query(f"SELECT * FROM {t}") == "1\ta\n"
        assert pair.n1.query(f"SELECT queue_size FROM system.replicas WHERE table = '{t}'") == "0\n"
        assert pair.n1.query(f"SELECT count() FROM system.replication_queue WHERE table = '{t}'") == "0\n"
        [row] = json_rows(pair.n1, f"SELECT * FROM system.replicas WHERE table = '{t}'")
        assert row["zookeeper_exception"] != ""
        assert pair.n1.get("/replicas_status").status == 200
    finally:
        pair.zookeeper.resume()
    wait_for(lambda: pair.n1.post(f"INSERT INTO {t} VALUES (2, 'b')").status == 200)
    wait_for(lambda: pair.n2.post(f"SYSTEM SYNC REPLICA {t}").status == 200)
    assert pair.rows(t) == "1\ta\n2\tb\n"


def test_system_parts_shows_replicated_names_and_aliases(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query("CREATE TABLE IF NOT EXISTS plain (a UInt8) ENGINE = MergeTree ORDER BY a")
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    pair.n1.query("INSERT INTO plain VALUES (1)")
    sql = (
        "SELECT name, part_name, min_block_number, level, data_version, engine, uuid FROM system.parts "
        "WHERE table = '{}' AND active"
    )
    nil = "00000000-0000-0000-0000-000000000000"
    assert pair.n1.query(sql.format(t)) == f"1_0_0_0\t1_0_0_0\t0\t0\t0\tReplicatedMergeTree\t{nil}\n"
    assert pair.n1.query(sql.format("plain")).startswith("all_1_1_0\tall_1_1_0\t1\t0\t1\tMergeTree\t")
    assert int(pair.n1.query(f"SELECT sum(bytes) FROM system.parts WHERE table = '{t}'")) > 0
    assert int(pair.n1.query("SELECT count() FROM system.parts")) >= 2
    nested = f"SELECT p.move_ttl_info.expression, `level` FROM system.parts AS p WHERE p.table = '{t}'"
    assert pair.n1.query(nested) == "[]\t0\n"
    [row] = json_rows(pair.n1, f"SELECT * FROM system.parts WHERE table = '{t}' AND active")
    assert (row["name"], "part_name" in row) == ("1_0_0_0", False)
    assert "part_type" in pair.n1.query("DESCRIBE TABLE system.parts")
    assert int(pair.n1.query("SELECT count() FROM (SELECT COLUMNS('disk') FROM system.parts)")) >= 2
    columns = f"SELECT name, column FROM system.parts_columns WHERE table = '{t}' ORDER BY column"
    assert pair.n1.query(columns) == "1_0_0_0\tk\n1_0_0_0\tv\n"


def test_killed_mutations_are_told(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    pair.synced(t)
    for node in pair.both:
        node.query(f"SYSTEM STOP MERGES {t}")
    pair.n1.query(f"ALTER TABLE {t} UPDATE v = 'z' WHERE true SETTINGS mutations_sync = 0")
    [row] = json_rows(pair.n1, f"SELECT * FROM system.mutations WHERE table = '{t}'")
    assert (row["is_done"], row["parts_to_do_names"], row["command"]) == (
        0,
        ["1_0_0_0"],
        "(UPDATE v = 'z' WHERE true)",
    )
    where = f"WHERE table = '{t}'"
    tested = pair.n1.query(f"KILL MUTATION {where} TEST")
    assert tested == f"unknown_status\tdefault\t{t}\t0000000000\t(UPDATE v = \\'z\\' WHERE true)\n"
    for shown in ("UPDATE v = ''z'' WHERE true", "(DELETE WHERE true)"):
        assert pair.n1.query(f"KILL MUTATION {where} AND command = '{shown}'") == ""
    shown = "(UPDATE v = ''z'' WHERE true)"
    killed = pair.n1.query(f"KILL MUTATION {where} AND command = '{shown}' FORMAT JSONEachRow")
    assert killed.startswith('{"kill_status":"waiting"')
    assert pair.n1.query(f"SELECT count() FROM system.mutations {where}") == "0\n"
    for node in pair.both:
        node.query(f"SYSTEM START MERGES {t}")
    assert pair.rows(t) == "1\ta\n"


def test_mutations_are_killed_on_all_hosts_and_those_of_plain_tables_too(pair: Pair) -> None:
    t, plain = pair.table(), "plain_mutated"
    pair.n1.query(f"CREATE TABLE {plain} (k UInt64, v String) ENGINE = MergeTree ORDER BY k")
    for table in (t, plain):
        pair.n1.query(f"INSERT INTO {table} VALUES (1, 'a')")
    pair.synced(t)
    for node, table in ((pair.n1, t), (pair.n2, t), (pair.n1, plain)):
        node.query(f"SYSTEM STOP MERGES {table}")
    for table in (t, plain):
        pair.n1.query(f"ALTER TABLE {table} UPDATE v = 'z' WHERE true SETTINGS mutations_sync = 0")
    left = "SELECT table FROM system.mutations WHERE NOT is_done ORDER BY table"
    assert pair.n1.query(left) == f"{plain}\n{t}\n"
    told = pair.n1.query(f"KILL MUTATION WHERE table = '{plain}' TEST").split("\t")
    assert told[:3] == ["unknown_status", "default", plain]
    killed = pair.n1.query(f"KILL MUTATION WHERE table = '{plain}'").split("\t")
    assert killed[1:3] == ["default", plain]
    assert pair.n1.query(left) == f"{t}\n"
    pair.n2.query(f"KILL MUTATION ON CLUSTER all WHERE table = '{t}'")
    for node in pair.both:
        assert node.query(left) == ""
        node.query(f"SYSTEM START MERGES {t}")
    pair.n1.query(f"SYSTEM START MERGES {plain}")
    assert pair.rows(t) == pair.n1.query(f"SELECT * FROM {plain}") == "1\ta\n"


def test_replicas_status_names_a_table_that_is_behind(pair: Pair) -> None:
    """And waits for nobody: the load balancer asks again."""
    t = pair.table(rest="ORDER BY k SETTINGS min_absolute_delay_to_close = 1")
    pair.n2.query(f"SYSTEM STOP FETCHES {t}")
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    wait_for(lambda: pair.n2.get("/replicas_status").status == 503)
    assert pair.n2.get("/replicas_status").text.startswith(f"default.{t}:\tAbsolute delay: ")
    assert pair.n1.get("/replicas_status").status == 200
    pair.n2.query(f"SYSTEM START FETCHES {t}")
    pair.synced(t)
    assert pair.n2.get("/replicas_status").status == 200


def test_replicas_status_is_fine(pair: Pair) -> None:
    for node in pair.both:
        reply = node.get("/replicas_status")
        assert (reply.status, reply.text) == (200, "Ok.\n")


def test_what_only_the_nodes_own_tables_depend_on_is_renamed_and_dropped(pair: Pair) -> None:
    n1 = pair.n1
    n1.query(
        "CREATE DICTIONARY names (k UInt64, v UInt64) PRIMARY KEY k SOURCE(NULL()) LAYOUT(FLAT()) LIFETIME(0)"
    )
    n1.query(
        "CREATE TABLE asks (k UInt64, v UInt64 DEFAULT dictGet('names', 'v', k)) "
        "ENGINE = ReplicatedMergeTree('/asks_names', '{replica}') ORDER BY k"
    )
    for number in range(2):
        n1.query(f"INSERT INTO asks (k) VALUES ({number})")
    n1.query("OPTIMIZE TABLE asks FINAL")
    refused(n1.post("DROP DICTIONARY names"), 630, "depend on it: default.asks.")
    # Tables that a merge was done on, and that rows are staged in, stand for a while.
    n1.query("ALTER TABLE asks MODIFY COLUMN v REMOVE DEFAULT")
    n1.query("RENAME DICTIONARY names TO other_names")
    n1.query("DROP DICTIONARY other_names")
    n1.query("INSERT INTO asks (k) VALUES (5)")
    assert n1.query("SELECT sum(k), sum(v) FROM asks") == "6\t0\n"
    n1.query("DROP TABLE asks SYNC")
