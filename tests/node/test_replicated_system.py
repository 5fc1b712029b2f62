"""SYSTEM commands about replicated tables, on two real nodes and ZooKeeper."""

from __future__ import annotations

import shutil
from dataclasses import fields

import pytest

from engine.replication.idle_settings import IDLE_SETTINGS
from engine.replication.settings import ReplicatedSettings
from tests.node.replicated_pair import Pair, error, eventually, json_rows, refused, wait_for

pytestmark = pytest.mark.slow


def test_stopped_fetches_wait_until_they_are_started(pair: Pair) -> None:
    t = pair.table()
    pair.n2.query(f"SYSTEM STOP FETCHES {t}")
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    assert error(pair.n2.post(f"SYSTEM SYNC REPLICA {t}", receive_timeout="1")) == 159
    assert pair.n2.query(f"SELECT count() FROM {t}") == "0\n"
    [entry] = json_rows(pair.n2, f"SELECT * FROM system.replication_queue WHERE table = '{t}'")
    assert (entry["type"], entry["new_part_name"], entry["source_replica"]) == ("GET_PART", "1_0_0_0", "r1")
    pair.n2.query(f"SYSTEM START FETCHES {t}")
    assert pair.rows(t) == "1\ta\n"


def test_merges_are_stopped_for_all_tables(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query("CREATE TABLE not_replicated (a UInt8) ENGINE = MergeTree ORDER BY a")
    pair.n1.query("INSERT INTO not_replicated VALUES (1)")
    pair.n1.query("SYSTEM STOP MERGES")
    try:
        assert error(pair.n1.post("OPTIMIZE TABLE not_replicated FINAL")) == 236
        pair.n1.query(f"ALTER TABLE {t} ADD COLUMN n UInt8, RENAME COLUMN v TO w")
        pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a', 2)")
    finally:
        pair.n1.query("SYSTEM START MERGES")
    pair.n1.query("OPTIMIZE TABLE not_replicated FINAL")
    assert pair.rows(t) == "1\ta\t2\n"


def test_a_part_keeps_its_name_while_a_renamed_column_waits_to_be_rewritten(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    pair.synced(t)
    for node in pair.both:
        node.query(f"SYSTEM STOP MERGES {t}")
    pair.n1.query(f"ALTER TABLE {t} RENAME COLUMN v TO w SETTINGS alter_sync = 0")
    for node in pair.both:
        wait_for(lambda at=node: at.post(f"SELECT w FROM {t}").text == "a\n")  # type: ignore[misc]
    names = f"SELECT name FROM system.parts WHERE table = '{t}'"
    assert pair.same(names) == "1_0_0_0\n"
    assert pair.same(f"SELECT name, _state FROM system.parts WHERE table = '{t}'") == "1_0_0_0\tActive\n"
    for node in pair.both:
        node.query(f"SYSTEM START MERGES {t}")
        wait_for(lambda at=node: at.query(names) == "1_0_0_0_1\n")  # type: ignore[misc]
    assert pair.rows(t) == "1\ta\n"


def test_system_tables_have_the_columns_that_they_have_without_replicated_tables(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    pair.n1.query(f"ALTER TABLE {t} ADD COLUMN n Int8", alter_sync="2")
    for table in ("parts", "parts_columns", "tables"):
        own = f"SELECT name FROM system.columns WHERE database = 'system' AND table = '{table}'"
        columns = pair.n1.query(f"{own} AND default_kind = '' ORDER BY position").split()
        [row, *_] = json_rows(pair.n1, f"SELECT * FROM system.{table} WHERE database = 'default' LIMIT 1")
        assert list(row) == columns
    assert pair.n1.query(f"SELECT bytes = bytes_on_disk FROM system.parts WHERE table = '{t}'") == "1\n"
    assert pair.n1.query(f"SELECT *, part_name FROM system.parts WHERE table = '{t}'").endswith("\t1_0_0_0\n")
    assert pair.same(f"SELECT metadata_version FROM system.tables WHERE name = '{t}'") == "1\n"


def test_system_tables_shows_the_same_whatever_columns_are_named(pair: Pair) -> None:
    """What a statement does not name is not found out: each column alone, and all at once."""
    t = pair.table()
    pair.n1.query(f"CREATE TABLE {t}_all AS {t} ENGINE = Distributed(pair, currentDatabase(), {t}, k)")
    pair.n1.query(f"CREATE TABLE {t}_plain (k UInt64) ENGINE = MergeTree ORDER BY k")
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    pair.n1.query(f"ALTER TABLE {t} DROP PARTITION 1")
    pair.n1.query(f"INSERT INTO {t} VALUES (2, 'b')")
    where = f"WHERE name LIKE '{t}%' AND database = currentDatabase() ORDER BY name"
    whole = json_rows(pair.n1, f"SELECT * FROM system.tables {where}")
    assert [row["engine"] for row in whole] == ["ReplicatedMergeTree", "Distributed", "MergeTree"]
    assert [str(row["engine_full"]).partition("(")[0] for row in whole[:2]] == [
        "ReplicatedMergeTree",
        "Distributed",
    ]
    assert (whole[0]["parts"], whole[0]["active_parts"]) == (1, 1)
    assert f"ReplicatedMergeTree('/tables/{t}', 'r1')" in str(whole[0]["create_table_query"])
    for column in whole[0]:
        alone = json_rows(pair.n1, f"SELECT {column} FROM system.tables {where}")
        assert alone == [{column: row[column]} for row in whole], column
    counted = f"SELECT count() AS n FROM system.tables WHERE engine = 'ReplicatedMergeTree' AND name = '{t}'"
    assert json_rows(pair.n1, counted) == [{"n": 1}]


def test_a_replica_is_restarted(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    pair.n1.query(f"SYSTEM RESTART REPLICA {t}")
    pair.n1.query("SYSTEM RESTART REPLICAS")
    pair.n1.query(f"INSERT INTO {t} VALUES (2, 'b')")
    assert pair.rows(t) == "1\ta\n2\tb\n"


def test_commands_about_memory_are_chdbs(pair: Pair) -> None:
    t = pair.table()
    for command in ("UNLOAD PRIMARY KEY", "LOAD PRIMARY KEY", "WAIT LOADING PARTS"):
        pair.n1.query(f"SYSTEM {command} {t}")


def test_only_the_replica_of_a_dead_server_is_dropped(pair: Pair) -> None:
    t, other = pair.table(), pair.table()
    pair.on_cluster("CREATE DATABASE elsewhere ON CLUSTER all")
    for number, node in enumerate(pair.both, start=1):
        node.query(
            "CREATE TABLE elsewhere.e (k UInt64) "
            f"ENGINE = ReplicatedMergeTree('/tables/elsewhere', 'r{number}') ORDER BY k"
        )
    drop = "SYSTEM DROP REPLICA"
    scopes = (f"FROM TABLE {t}", "FROM DATABASE elsewhere", f"FROM ZKPATH '/tables/{t}'", "")
    for replica in ("r1", "r2"):  # this node's own, and one whose server is alive
        for scope in scopes:
            assert error(pair.n1.post(f"{drop} '{replica}' {scope}")) == 305, (replica, scope)
    assert error(pair.n1.post(f"{drop} 'r2' FROM ZKPATH '/tables'")) == 305
    assert error(pair.n1.post(f"{drop} 'r2' FROM TABLE nosuch")) == 36
    for table in (t, other, "elsewhere.e"):
        pair.n2.query(f"DETACH TABLE {table}")

    def replicas(table: str) -> list[str]:
        return pair.children(f"/tables/{table}/replicas")

    pair.n1.query(f"{drop} 'r2' FROM TABLE {t}")
    assert (replicas(t), replicas(other), replicas("elsewhere")) == (["r1"], ["r1", "r2"], ["r1", "r2"])
    pair.n1.query(f"{drop} 'r2' FROM DATABASE elsewhere")
    assert (replicas(other), replicas("elsewhere")) == (["r1", "r2"], ["r1"])
    pair.n1.query(f"{drop} 'r2' FROM ZKPATH '/tables/{other}'")
    assert replicas(other) == ["r1"]
    pair.n1.query(f"DETACH TABLE {t}")
    pair.n2.query(f"{drop} 'r1' FROM ZKPATH '/tables/{t}/'")  # the last one takes the table with it
    assert t not in pair.children("/tables")
    pair.n1.query("DROP DATABASE elsewhere SYNC")


def test_the_replica_of_a_dead_server_is_dropped_from_all_tables_of_a_node(pair: Pair) -> None:
    """Another node had a replica of each. That node's tables are away, and it is not alive."""
    tables = [pair.table(), pair.table()]
    for number in range(2):
        place = f"'/tables/{tables[number]}', 'r3'"
        pair.n2.query(
            f"CREATE TABLE third{number} (k UInt64, v String) ENGINE = ReplicatedMergeTree({place}) "
            "PARTITION BY k % 2 ORDER BY k"
        )
        pair.n2.query(f"DETACH TABLE third{number}")
    pair.n1.query("SYSTEM DROP REPLICA 'r3'")
    for table in tables:
        assert pair.children(f"/tables/{table}/replicas") == ["r1", "r2"]


def test_a_stopped_queue_is_filled_and_each_sync_waits_for_what_it_says(pair: Pair) -> None:
    t = pair.table()
    soon = {"receive_timeout": "0.3"}
    sync = f"SYSTEM SYNC REPLICA {t}"
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    pair.n1.query(f"INSERT INTO {t} VALUES (3, 'b')")
    pair.synced(t)
    queue = f"SELECT type FROM system.replication_queue WHERE table = '{t}'"

    pair.n2.query(f"SYSTEM STOP REPLICATION QUEUES {t}")
    pair.n1.query(f"OPTIMIZE TABLE {t} FINAL SETTINGS alter_sync = 1")
    pair.n2.query(f"{sync} PULL")
    assert pair.n2.query(queue) == "MERGE_PARTS\n"
    pair.n2.query(f"{sync} LIGHTWEIGHT")
    assert error(pair.n2.post(sync, **soon)) == error(pair.n2.post(f"{sync} STRICT", **soon)) == 159

    pair.n1.query(f"INSERT INTO {t} VALUES (5, 'c')")
    pair.n2.query(f"{sync} PULL")
    assert pair.n2.query(queue) == "MERGE_PARTS\nGET_PART\n"
    assert error(pair.n2.post(f"{sync} LIGHTWEIGHT", **soon)) == 159
    assert error(pair.n2.post(f"{sync} LIGHTWEIGHT FROM 'r9', 'r1'", **soon)) == 159
    pair.n2.query(f"{sync} LIGHTWEIGHT FROM 'r2', 'r9'")
    assert error(pair.n2.post(f"{sync} STRICT FROM 'r1'")) == 62
    assert pair.n2.query(f"SELECT count() FROM {t}") == "2\n"
    assert pair.n2.query(f"SELECT name FROM system.parts WHERE table = '{t}' AND level > 0") == ""

    pair.n2.query(f"SYSTEM START REPLICATION QUEUES {t}")
    pair.n2.query(f"{sync} STRICT")
    assert pair.n2.query(queue) == ""
    assert pair.rows(t) == "1\ta\n3\tb\n5\tc\n"


def test_a_replica_that_keeper_has_lost_is_restored(pair: Pair) -> None:
    """1. Its server is away and somebody drops the replica. 2. It comes back, reads and does not write.
    3. It is restored, and takes what it has instead of fetching it."""
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a'), (2, 'b')")
    pair.synced(t)
    assert error(pair.n2.post(f"SYSTEM RESTORE REPLICA {t}")) == 36
    pair.n2.query(f"DETACH TABLE {t}")
    pair.n1.query(f"SYSTEM DROP REPLICA 'r2' FROM ZKPATH '/tables/{t}'")
    pair.n2.query(f"ATTACH TABLE {t}")
    assert pair.n2.query(f"SELECT count() FROM {t}") == "2\n"
    assert error(pair.n2.post(f"INSERT INTO {t} VALUES (3, 'c')")) == 242
    assert pair.n2.query(f"SELECT is_readonly FROM system.replicas WHERE table = '{t}'") == "1\n"
    readonly = "SELECT value FROM system.metrics WHERE metric = 'ReadonlyReplica'"
    assert pair.n2.query(readonly) == "1\n"
    pair.n2.query(f"SYSTEM RESTORE REPLICA {t}")
    assert pair.n2.query(readonly) == "0\n"
    pair.n1.query(f"INSERT INTO {t} VALUES (3, 'c')")
    assert pair.rows(t) == "1\ta\n2\tb\n3\tc\n"


@pytest.mark.extended
def test_a_dropped_table_is_undropped_with_what_the_others_did_meanwhile(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} SELECT number, 'a' FROM numbers(6)")
    pair.n2.query(f"ALTER TABLE {t} DROP PARTITION 1")
    pair.n2.query(f"INSERT INTO {t} VALUES (7, 'b')")
    pair.synced(t)
    pair.n2.query(f"DROP TABLE {t}")
    pair.n1.query(f"ALTER TABLE {t} ADD COLUMN n UInt8 DEFAULT 1")
    pair.n1.query(f"INSERT INTO {t} VALUES (9, 'c', 2)")
    pair.n2.query(f"UNDROP TABLE {t}")
    rows = "0\ta\t1\n2\ta\t1\n4\ta\t1\n7\tb\t1\n9\tc\t2\n"
    assert pair.rows(t) == rows
    assert pair.n1.query(f"SELECT total_replicas FROM system.replicas WHERE table = '{t}'") == "2\n"
    # The last replica takes the table in Keeper with it, and makes it again.
    pair.n1.query(f"DROP TABLE {t} SYNC")
    pair.n2.query(f"DROP TABLE {t}")
    pair.n2.query(f"UNDROP TABLE {t}")
    pair.n2.query(f"INSERT INTO {t} VALUES (11, 'd', 3)")
    assert pair.n2.query(f"SELECT * FROM {t} ORDER BY ALL") == rows + "11\td\t3\n"
    # In the meantime somebody has taken its place.
    pair.n2.query(f"DROP TABLE {t}")
    pair.n2.query(
        f"CREATE TABLE {t}_2 (k UInt64) ENGINE = ReplicatedMergeTree('/tables/{t}', 'r2') ORDER BY k"
    )
    assert error(pair.n2.post(f"UNDROP TABLE {t}")) == 253
    pair.n2.query(f"DROP TABLE {t}_2 SYNC")
    pair.n2.query(f"UNDROP TABLE {t}")
    pair.n2.query(f"DROP TABLE {t} SYNC")
    assert error(pair.n2.post(f"UNDROP TABLE {t}")) == 60


def test_a_table_of_a_backup_is_attached_with_its_whole_definition_and_restored(pair: Pair) -> None:
    """1. Data directory and definition come from a backup. 2. Keeper knows nothing of the table. 3. RESTORE
    makes the replica of the parts that are there; after that ATTACH finds it in Keeper."""
    t, uuid = pair.table(), "0a1b2c3d-0000-4000-8000-000000000077"
    pair.n1.query(f"INSERT INTO {t} SELECT number, 'a' FROM numbers(4)")
    pair.n1.query(f"ALTER TABLE {t} UPDATE v = 'm' WHERE k = 1 SETTINGS mutations_sync = 2")
    pair.n1.query(f"ALTER TABLE {t} FREEZE WITH NAME 'b{t}'")
    [data] = json_rows(pair.n1, f"SELECT data_paths FROM system.tables WHERE name = '{t}'")
    root, _, below = str(data["data_paths"][0]).partition("/store/")
    shutil.copytree(f"{root}/shadow/b{t}/store/{below}", f"{root}/store/{uuid[:3]}/{uuid}")
    place = "'/tables/restored', '{replica}'"
    definition = f"(k UInt64, v String) ENGINE = ReplicatedMergeTree({place}) PARTITION BY k % 2 ORDER BY k"
    assert error(pair.n1.post(f"ATTACH TABLE a{t} {definition}")) == 80
    attach = f"ATTACH TABLE a{t} UUID '{uuid}' {definition}"
    assert error(pair.n1.post(attach.replace("k UInt64", "k NoSuchType"))) == 50
    assert pair.n1.query(f"EXISTS a{t}") == "0\n"
    pair.n1.query(attach)
    assert pair.n1.query(f"SELECT * FROM a{t} ORDER BY k") == "0\ta\n1\tm\n2\ta\n3\ta\n"
    assert error(pair.n1.post(f"INSERT INTO a{t} VALUES (9, 'c')")) == 242
    pair.n1.query(f"SYSTEM RESTORE REPLICA a{t}")
    pair.n1.query(f"INSERT INTO a{t} VALUES (9, 'c')")
    pair.n1.query(attach)  # once more: nothing is left to do
    pair.n1.query(attach.replace("TABLE", "TABLE IF NOT EXISTS"))
    same_place = attach.replace(f"a{t}", f"c{t}").replace(uuid, uuid.replace("0a1b", "0a1c"))
    assert error(pair.n1.post(same_place)) == 253
    other = pair.n1.post(attach.replace(f"a{t}", f"c{t}"))
    assert error(other) == 57 and f"is default.a{t}" in other.text
    assert (
        error(pair.n2.post(f"ATTACH TABLE b{t} UUID '{uuid}' {definition.replace('{replica}', 'n1')}")) == 253
    )
    pair.n1.query(f"DETACH TABLE a{t}")
    pair.n1.query(f"ATTACH TABLE a{t}")
    assert pair.n1.query(f"SELECT count() FROM a{t}") == "5\n"
    pair.n1.query(f"DROP TABLE a{t} SYNC")


def test_stops_that_name_no_table_hold_for_all_replicated_ones(pair: Pair) -> None:
    tables = pair.table(), pair.table()
    entries = f"SELECT count() FROM system.replication_queue WHERE table IN {tables}"
    for number, what in enumerate(("FETCHES", "REPLICATION QUEUES")):
        pair.n2.query(f"SYSTEM STOP {what}")
        for table in tables:
            pair.n1.query(f"INSERT INTO {table} VALUES ({number}, 'a')")
        wait_for(lambda: pair.n2.query(entries) == "2\n")
        for table in tables:
            assert pair.n2.query(f"SELECT count() FROM {table}") == f"{number}\n"
        pair.n2.query(f"SYSTEM START {what}")
        for table in tables:
            pair.synced(table)
            assert pair.same(f"SELECT count() FROM {table}") == f"{number + 1}\n"


def test_a_log_that_is_not_pulled_is_not_waited_for(pair: Pair) -> None:
    t = pair.table()
    pair.n2.query(f"SYSTEM STOP PULLING REPLICATION LOG {t}")
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    refused = pair.n2.post(f"SYSTEM SYNC REPLICA {t} PULL")
    assert error(refused) == 236 and "START PULLING REPLICATION LOG" in refused.text
    assert pair.n2.query(f"SELECT count() FROM {t}") == "0\n"
    pair.n2.query("SYSTEM START PULLING REPLICATION LOG")
    assert pair.rows(t) == "1\ta\n"


def test_a_fetch_that_fails_is_tried_again_and_shown_with_its_reason(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query("SYSTEM STOP REPLICATED SENDS")
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    queue = f"SELECT * FROM system.replication_queue WHERE table = '{t}'"
    wait_for(lambda: any(int(row["num_tries"]) > 1 for row in json_rows(pair.n2, queue)))
    [row] = json_rows(pair.n2, queue)
    assert (row["type"], row["replica_name"], row["source_replica"]) == ("GET_PART", "r2", "r1")
    assert "1_0_0_0" in row["last_exception"]
    # The exception is the last attempt's, or of the one before while that goes on.
    assert row["create_time"] <= min(row["last_exception_time"], row["last_attempt_time"])
    pair.n1.query("SYSTEM START REPLICATED SENDS")
    assert pair.rows(t) == "1\ta\n"


def test_a_replica_that_executes_no_mutation_does_not_wait_for_one(pair: Pair) -> None:
    t = pair.table(rest="ORDER BY k")
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a'), (2, 'b')")
    pair.n1.query(f"ALTER TABLE {t} MODIFY SETTING always_fetch_mutated_part = 1")
    for sql in (
        f"ALTER TABLE {t} UPDATE v = 'c' WHERE k = 1 SETTINGS mutations_sync = 1",
        f"DELETE FROM {t} WHERE k = 1",
        f"ALTER TABLE {t} MODIFY COLUMN v LowCardinality(String) SETTINGS alter_sync = 2",
    ):
        refused(pair.n1.post(sql), 344, "always_fetch_mutated_part")
    pair.n1.query(f"ALTER TABLE {t} ADD COLUMN w UInt8 SETTINGS alter_sync = 2")
    pair.n1.query(f"ALTER TABLE {t} UPDATE v = 'c' WHERE k = 1 SETTINGS mutations_sync = 0")
    eventually(lambda: pair.n1.query(f"SELECT v FROM {t} ORDER BY k"), "c\nb\n")
    pair.n2.query(f"ALTER TABLE {t} DELETE WHERE k = 1 SETTINGS mutations_sync = 2")
    assert pair.rows(t) == "2\tb\t0\n"


def test_settings_of_a_table_may_be_words_and_have_units(pair: Pair) -> None:
    settings = ("ttl_only_drop_parts = true", "max_bytes_to_merge_at_max_space_in_pool = '10Gi'")
    t = pair.table(rest=f"ORDER BY k SETTINGS {', '.join(settings)}")
    pair.n1.query(f"SYSTEM RESTART REPLICA {t}")
    pair.n1.query(f"ALTER TABLE {t} MODIFY SETTING always_fetch_merged_part = true")
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    assert pair.rows(t) == "1\ta\n"
    shown = pair.n1.query(f"SHOW CREATE TABLE {t} FORMAT TSVRaw")
    assert all(each in shown for each in settings)


def test_metrics_count_what_the_node_does_and_chdb_does_not_know_of(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"CREATE TABLE {t}_all AS {t} ENGINE = Distributed(apart, currentDatabase(), {t}, k)")
    pair.n1.query(f"SYSTEM STOP DISTRIBUTED SENDS {t}_all")
    pair.n1.query(f"INSERT INTO {t}_all SETTINGS distributed_foreground_insert = 0 VALUES (1, 'a'), (2, 'b')")
    pair.n2.query(f"SYSTEM STOP FETCHES {t}")
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'c')")
    waiting = f"SELECT sum(data_files) FROM system.distribution_queue WHERE table = '{t}_all'"
    files = "SELECT value FROM system.metrics WHERE metric = 'DistributedFilesToInsert'"
    assert int(pair.n1.query(files)) >= int(pair.n1.query(waiting)) > 0
    metrics = {row["metric"]: row["value"] for row in json_rows(pair.n2, "SELECT * FROM system.metrics")}
    tables = int(pair.n2.query("SELECT count() FROM system.replicas"))
    assert int(metrics["AttachedReplicatedTable"]) == tables > 0
    assert int(metrics["ZooKeeperSession"]) > 0 and int(metrics["Query"]) > 0
    queued = f"SELECT count() FROM system.replication_queue WHERE table = '{t}'"
    wait_for(lambda: pair.n2.query(queued) != "0\n")
    measured = {
        row["metric"]: float(row["value"])
        for row in json_rows(pair.n2, "SELECT * FROM system.asynchronous_metrics")
    }
    assert measured["ReplicasSumInsertsInQueue"] >= 1
    lasting = "SELECT count() FROM system.tables WHERE NOT is_temporary"
    assert measured["NumberOfTables"] == int(pair.n2.query(lasting))
    assert measured["MemoryResident"] > 1 << 20
    assert pair.n2.query("SELECT name FROM system.metrics WHERE name = 'Query'") == "Query\n"


def test_every_setting_about_replication_is_followed_or_known_to_change_nothing(pair: Pair) -> None:
    about = "replicat|merge_selec|force_merge|postpone|mutations|zookeeper|in_pool|fsync|part_storage"
    others = "^shared_merge_tree|zero_copy|_fs_zookeeper|non_replicated"
    found = pair.n1.query(
        f"SELECT name FROM system.merge_tree_settings WHERE match(name, '{about}') "
        f"AND NOT match(name, '{others}') AND NOT match(description, '(?i)obsolete|for test')"
    ).split()
    followed = {field.name for field in fields(ReplicatedSettings)}
    assert set(found) - followed - IDLE_SETTINGS == set()
    every = pair.n1.query("SELECT name FROM system.merge_tree_settings").split()
    assert set(every) >= IDLE_SETTINGS


def test_a_setting_without_effect_is_logged(pair: Pair) -> None:
    t = pair.table(rest="ORDER BY k SETTINGS merge_selector_algorithm = 'Trivial'")
    pair.n1.query(f"ALTER TABLE {t} MODIFY SETTING number_of_mutations_to_delay = 5")
    log = (pair.local.directory / "logs/n1.log").read_text()
    for name in ("merge_selector_algorithm", "number_of_mutations_to_delay"):
        assert f"replication.settings_without_effect table=default.{t} settings={name}\n" in log


def test_the_session_with_keeper_is_shown(pair: Pair) -> None:
    t = pair.table()
    for number, node in enumerate(pair.both, start=1):
        [row] = json_rows(node, "SELECT * FROM system.zookeeper_connection")
        assert (row["name"], row["host"], row["port"]) == ("default", "127.0.0.1", pair.zookeeper.client_port)
        assert (row["index"], row["is_expired"], row["session_timeout_ms"]) == (0, 0, 6000)
        assert int(row["xid"]) > 0 and int(row["last_zxid_seen"]) > 0
        owner = f"SELECT ephemeralOwner FROM system.zookeeper WHERE path = '/tables/{t}/replicas/r{number}'"
        assert node.query(f"{owner} AND name = 'is_active'") == f"{row['client_id']}\n"
