"""Statements about whole databases with replicated tables in them, on two real nodes and ZooKeeper."""

from __future__ import annotations

import pytest

from tests.node.replicated_pair import Pair, error, eventually, json_rows

pytestmark = pytest.mark.slow


def filled(pair: Pair, database: str) -> str:
    """A database on n1 with a replicated and a plain table; the other replica is on n2. Returns its path."""
    path = f"/dbs/{database}"
    pair.n1.query(f"CREATE DATABASE {database}")
    pair.n1.query(f"CREATE TABLE {database}.p (k UInt64) ENGINE = MergeTree ORDER BY k")
    for node, table in ((pair.n1, f"{database}.t"), (pair.n2, f"{database}_t")):
        engine = f"ReplicatedMergeTree('{path}', '{{replica}}')"
        node.query(f"CREATE TABLE {table} (k UInt64) ENGINE = {engine} ORDER BY k")
    for table in ("t", "p"):
        pair.n1.query(f"INSERT INTO {database}.{table} VALUES (1), (2)")
    pair.n2.query(f"SYSTEM SYNC REPLICA {database}_t")
    return path


@pytest.mark.extended
def test_replicas_go_with_their_database_to_its_new_name_and_away_and_back(pair: Pair) -> None:
    path = filled(pair, "before")
    pair.n1.query("RENAME DATABASE before TO after")
    pair.n1.query("INSERT INTO after.t VALUES (3)")
    pair.n2.query("SYSTEM SYNC REPLICA before_t")
    assert pair.n2.query("SELECT sum(k) FROM before_t") == "6\n"
    shown = "SELECT database, table, is_readonly FROM system.replicas WHERE zookeeper_path = '{}'"
    assert pair.n1.query(shown.format(path)) == "after\tt\t0\n"
    replica = f"SELECT value FROM system.zookeeper WHERE path = '{path}/replicas/n1' AND name = 'host'"
    assert "database: after\ntable: t\n" in pair.n1.query(f"{replica} FORMAT TSVRaw")

    pair.n1.query("DETACH DATABASE after")
    assert pair.n1.query(shown.format(path)) == ""
    assert "is_active" not in pair.children(f"{path}/replicas/n1")
    assert error(pair.n1.post("SELECT * FROM after.t")) == 81
    pair.n2.query("INSERT INTO before_t VALUES (4)")
    pair.n1.query("ATTACH DATABASE after")
    assert pair.n1.query(shown.format(path)) == "after\tt\t0\n"
    pair.n1.query("SYSTEM SYNC REPLICA after.t")
    pair.n1.query("INSERT INTO after.t VALUES (5)")
    assert pair.n1.query("SELECT (SELECT sum(k) FROM after.t), (SELECT sum(k) FROM after.p)") == "15\t3\n"


def test_tables_of_a_database_are_truncated_by_their_names_on_all_replicas(pair: Pair) -> None:
    filled(pair, "emptied")
    n1 = pair.n1
    n1.query("CREATE VIEW emptied.v AS SELECT * FROM emptied.t")
    n1.query("CREATE MATERIALIZED VIEW emptied.to_t TO emptied.t AS SELECT k FROM emptied.p")
    n1.query("CREATE TABLE emptied.a_null (k UInt64) ENGINE = Null")
    counts = "SELECT (SELECT count() FROM emptied.t), (SELECT count() FROM emptied.p)"
    n1.query("TRUNCATE ALL TABLES FROM emptied LIKE 'v'")
    n1.query("TRUNCATE TABLES FROM emptied LIKE 'to%' SETTINGS alter_sync = 0")
    assert n1.query(counts) == "2\t2\n", "a view has no rows of its own"
    n1.query("TRUNCATE TABLES FROM emptied ILIKE 'T'")
    assert n1.query(counts) == "0\t2\n"
    pair.n2.query("SYSTEM SYNC REPLICA emptied_t")
    assert pair.n2.query("SELECT count() FROM emptied_t") == "0\n"
    # One that cannot be truncated keeps no other from it.
    assert error(n1.post("TRUNCATE ALL TABLES FROM emptied")) == 48
    assert n1.query(counts) == "0\t0\n"
    n1.query("INSERT INTO emptied.t VALUES (1), (2)")
    assert n1.query("SELECT count() FROM emptied.t") == "2\n", "what is gone swallows no insert"


def test_truncate_database_drops_its_tables_and_keeps_the_database(pair: Pair) -> None:
    path = filled(pair, "cleared")
    n1 = pair.n1
    n1.query(
        "CREATE TABLE cleared.kept (k UInt64) ENGINE = ReplicatedMergeTree('/cleared_kept', 'r') ORDER BY k"
    )
    n1.query("INSERT INTO cleared.kept VALUES (7)")
    n1.query("DETACH TABLE cleared.kept PERMANENTLY")
    n1.query("TRUNCATE DATABASE cleared")
    assert n1.query("SHOW TABLES FROM cleared") == ""
    eventually(lambda: pair.children(f"{path}/replicas"), ["n2"])
    assert pair.n2.query("SELECT count() FROM cleared_t") == "2\n", "another replica's rows are its own"
    n1.query("ATTACH TABLE cleared.kept")
    assert n1.query("SELECT * FROM cleared.kept") == "7\n"
    n1.query("DROP DATABASE cleared SYNC")


def test_drop_if_empty_asks_for_the_replicas_own_rows(pair: Pair) -> None:
    table = pair.table()
    n1 = pair.n1
    n1.query(f"INSERT INTO {table} VALUES (1, 'x')")
    n1.query("CREATE TABLE empty_too (k UInt64) ENGINE = MergeTree ORDER BY k")
    for sql in (
        "DROP TABLE IF EMPTY {}",
        "DETACH TABLE IF EMPTY {}",
        "DROP TABLE IF EXISTS IF EMPTY {} SYNC",
    ):
        assert error(n1.post(sql.format(table))) == 705
    assert error(n1.post(f"DROP TABLE IF EMPTY empty_too, {table}")) == 705
    n1.query(f"INSERT INTO {table} VALUES (2, 'y')")  # it was not stopped
    n1.query(f"TRUNCATE TABLE {table} SETTINGS alter_sync = 2")
    pair.on_cluster(f"DROP TABLE IF EMPTY {table} ON CLUSTER all SYNC")
    for node in pair.both:
        assert node.query(f"EXISTS TABLE {table}") == "0\n"
    n1.query(f"DROP TABLE IF EXISTS IF EMPTY {table}")
    n1.query("DROP TABLE IF EXISTS empty_too")


def test_drop_if_empty_in_a_replicated_database_is_decided_before_it_is_committed(pair: Pair) -> None:
    for node in pair.both:
        node.query("CREATE DATABASE em ENGINE = Replicated('/dbs/em', '{shard}', '{replica}')")
    for name, engine in (("p", "MergeTree"), ("r", "ReplicatedMergeTree")):
        pair.n1.query(f"CREATE TABLE em.{name} (k UInt64) ENGINE = {engine} ORDER BY k")
        pair.n1.query(f"INSERT INTO em.{name} VALUES (1)")
        assert error(pair.n1.post(f"DROP TABLE IF EMPTY em.{name}")) == 705
        assert pair.n1.query(f"SELECT * FROM em.{name}") == "1\n"
        pair.n1.query(f"TRUNCATE TABLE em.{name}")
        pair.n1.query(f"DROP TABLE IF EMPTY em.{name}")
    pair.n2.query("SYSTEM SYNC DATABASE REPLICA em")
    assert pair.same("SHOW TABLES FROM em") == ""


def test_rows_that_only_another_replica_has_are_moved_aside_by_drop_if_empty(pair: Pair) -> None:
    for node in pair.both:
        node.query("CREATE DATABASE ea ENGINE = Replicated('/dbs/ea', '{shard}', '{replica}')")
    pair.n1.query("CREATE TABLE ea.p (k UInt64) ENGINE = MergeTree ORDER BY k")
    pair.n2.query("INSERT INTO ea.p VALUES (1)")
    pair.n1.query("DROP TABLE IF EMPTY ea.p")
    pair.n2.query("SYSTEM SYNC DATABASE REPLICA ea")
    assert pair.same("SHOW TABLES FROM ea") == ""
    [aside] = pair.n2.query("SHOW TABLES FROM ea_broken_tables").split()
    assert pair.n2.query(f"SELECT * FROM ea_broken_tables.{aside}") == "1\n"
    log = (pair.local.directory / "logs/n2.log").read_text()
    assert log.count("databases.failed database=ea ") == 1
    pair.n1.query("CREATE TABLE ea.p (k UInt64) ENGINE = MergeTree ORDER BY k")
    assert pair.same("SHOW TABLES FROM ea") == "p\n"


def test_a_detached_tables_replica_goes_with_its_database(pair: Pair) -> None:
    path = filled(pair, "left")
    assert pair.n1.post("DROP DATABASE IF EMPTY left").status != 200
    pair.n1.query("DETACH TABLE left.t PERMANENTLY")
    pair.n1.query("DROP DATABASE left SYNC")
    eventually(lambda: pair.children(f"{path}/replicas"), ["n2"])
    pair.n2.query("DROP TABLE left_t SYNC")
    assert "left" not in pair.children("/dbs")


def test_replicated_tables_stay_in_databases_that_keep_their_uuids(pair: Pair) -> None:
    filled(pair, "kept")
    pair.n1.query("CREATE DATABASE in_memory ENGINE = Memory")
    assert error(pair.n1.post("RENAME TABLE kept.t TO in_memory.t")) == 48
    create = "CREATE TABLE in_memory.t (k UInt64) ENGINE = ReplicatedMergeTree('/dbs/memory', 'r') ORDER BY k"
    assert error(pair.n1.post(create)) == 48
    assert "memory" not in pair.children("/dbs")
    pair.n1.query("RENAME TABLE kept.t TO default.moved, kept.p TO kept.q")
    pair.n1.query("INSERT INTO moved VALUES (7)")
    [row] = json_rows(pair.n1, "SELECT database, table FROM system.replicas WHERE table = 'moved'")
    assert row == {"database": "default", "table": "moved"}
    pair.n2.query("SYSTEM SYNC REPLICA kept_t")
    assert pair.n2.query("SELECT sum(k) FROM kept_t") == "10\n"


def test_a_dictionary_of_the_session_is_one_of_its_own_database_also_for_a_replicated_one(pair: Pair) -> None:
    dictionary = "(k UInt64, v UInt64) PRIMARY KEY k SOURCE(NULL()) LAYOUT(FLAT()) LIFETIME(0)"
    for node in pair.both:
        node.query("CREATE DATABASE ad ENGINE = Replicated('/dbs/ad', '{shard}', '{replica}')")
        node.query(f"CREATE DICTIONARY both_have {dictionary}")
    pair.n1.query(f"CREATE DICTIONARY ad.both_have {dictionary}")
    for database in ("default", "ad"):
        columns = "(k UInt64, v UInt64 DEFAULT dictGet('both_have', 'v', k))"
        pair.n1.query(f"CREATE TABLE ad.of_{database} {columns} ENGINE = Memory", database=database)
        pair.n2.query("SYSTEM SYNC DATABASE REPLICA ad")
        shown = pair.same(f"SHOW CREATE TABLE ad.of_{database} FORMAT TSVRaw")
        assert f"dictGet('{database}.both_have', 'v', k)" in shown
