"""Databases with the engine Replicated: statements and what all replicas have of them; three real nodes, real
ZooKeeper."""

from __future__ import annotations

from functools import partial

import pytest

from tests.few import each_in_turn, few_first
from tests.node.replicated_database import CREATE, DEFINITIONS, HOSTS, SHOWN, Three
from tests.node.replicated_pair import eventually, json_rows, refused

pytestmark = pytest.mark.slow


def test_what_one_node_creates_is_on_all(three: Three) -> None:
    d = three.database()
    answer = three.n2.query(
        f"CREATE TABLE {d}.p (k UInt64) ENGINE = MergeTree ORDER BY k FORMAT TSVWithNames"
    )
    assert answer.splitlines()[0] == "shard\treplica\tstatus\tnum_hosts_remaining\tnum_hosts_active"
    assert sorted(line.split("\t")[:3] for line in answer.splitlines()[1:]) == [
        ["s1", host, "OK"] for host in HOSTS
    ]
    three.n3.query(f"CREATE TABLE {d}.r (k UInt64) ENGINE = ReplicatedMergeTree ORDER BY k")
    three.n1.query(f"INSERT INTO {d}.r VALUES (1), (2)")
    three.n2.query(f"SYSTEM SYNC REPLICA {d}.r")
    assert three.n2.query(f"SELECT sum(k) FROM {d}.r") == "3\n"
    assert three.same(f"SHOW TABLES FROM {d}") == "p\nr\n"
    uuids = f"SELECT name, uuid, create_table_query FROM system.tables WHERE database = '{d}' ORDER BY name"
    three.same(uuids)
    assert three.value(f"/databases/{d}") == "DatabaseReplicated"
    assert three.value(f"/databases/{d}/metadata/r").startswith("ATTACH TABLE _ UUID '")
    assert "ReplicatedMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}')" in three.value(
        f"/databases/{d}/metadata/r"
    )
    eventually(lambda: len(three.digests(d)), 1)
    three.n1.query(f"DROP TABLE {d}.p SYNC")
    assert three.same(f"SHOW TABLES FROM {d}") == "r\n"
    assert three.children(f"/databases/{d}/metadata") == ["r"]


@pytest.mark.extended
def test_every_kind_of_definition_is_the_same_on_all(three: Three) -> None:
    d = three.database()
    n1, n2, n3 = three.n1, three.n2, three.n3
    n1.query(f"CREATE TABLE {d}.r (k UInt64, v String) ENGINE = ReplicatedMergeTree ORDER BY k")
    n2.query(f"CREATE TABLE {d}.p (k UInt64) ENGINE = MergeTree ORDER BY k")
    n3.query(f"CREATE TABLE {d}.like_r AS {d}.r")
    n1.query(f"CREATE VIEW {d}.v AS SELECT k + 1 AS kk FROM {d}.r")
    n1.query("CREATE DATABASE IF NOT EXISTS only_here")
    n1.query("CREATE TABLE IF NOT EXISTS only_here.o (k UInt64) ENGINE = Memory")
    n1.query(f"CREATE VIEW {d}.of_n1 AS SELECT * FROM only_here.o COMMENT 'not everywhere'")
    n1.query(f"CREATE MATERIALIZED VIEW {d}.into_r TO {d}.r AS SELECT k, '' AS v FROM only_here.o")
    own = "ENGINE = ReplicatedMergeTree ORDER BY k"
    n1.query(f"CREATE MATERIALIZED VIEW {d}.own_r {own} AS SELECT k FROM only_here.o")
    n2.query(f"CREATE MATERIALIZED VIEW {d}.mv ENGINE = MergeTree ORDER BY k AS SELECT k FROM {d}.r")
    n3.query(f"CREATE TABLE {d}.dist (k UInt64, v String) ENGINE = Distributed({d}, {d}, r, k)")
    n1.query(
        f"CREATE DICTIONARY {d}.dict (k UInt64, v String) PRIMARY KEY k "
        f"SOURCE(CLICKHOUSE(TABLE 'r' DB '{d}')) LAYOUT(FLAT()) LIFETIME(0)"
    )
    n1.query(f"CREATE MATERIALIZED VIEW {d}.to_r TO {d}.r AS SELECT k, v FROM {d}.dict")
    looks_up = "WITH 'dict' AS name SELECT dictGet(name, 'v', k) FROM r"
    n1.query(f"ALTER TABLE to_r MODIFY QUERY {looks_up}", database=d)
    n2.query(f"ALTER TABLE {d}.r ADD COLUMN n Int8 DEFAULT 7", alter_sync="2")
    n3.query(f"ALTER TABLE {d}.p ADD COLUMN n Int8 DEFAULT 7, MODIFY COMMENT 'with n'")
    n1.query(f"ALTER TABLE {d}.r MODIFY SETTING merge_max_block_size = 100")
    n2.query(f"CREATE INDEX i ON {d}.p (n) TYPE minmax")
    n1.query(f"CREATE TABLE {d}.q (x Int8) ENGINE = MergeTree ORDER BY x")
    n2.query(f"RENAME TABLE {d}.q TO {d}.q2")
    n3.query(f"EXCHANGE TABLES {d}.q2 AND {d}.p")
    n1.query(f"CREATE OR REPLACE TABLE {d}.q2 (y Int8) ENGINE = MergeTree ORDER BY y")
    n3.query(f"ALTER TABLE {d}.p ADD COLUMN x2 Int8 DEFAULT 5")
    n1.query(f"DETACH TABLE {d}.p PERMANENTLY")
    n2.query(f"ATTACH TABLE {d}.p")
    n2.query(f"INSERT INTO {d}.p (x) VALUES (1)")
    n1.query(f"ALTER TABLE {d}.p UPDATE x2 = x2 + 1 WHERE x = 1", mutations_sync="2")
    n1.query(f"ALTER TABLE {d}.p ADD COLUMN x3 Int8")
    assert n2.query(f"SELECT * FROM {d}.p") == "1\t6\t0\n"
    shown = three.same(DEFINITIONS.format(d))
    names = [line.split("\t")[0] for line in shown.splitlines() if not line.startswith(".inner")]
    assert names == [
        *("dict", "dist", "into_r", "like_r", "mv", "of_n1", "own_r", "p", "q2", "r", "to_r", "v"),
    ]
    n1.query(f"DROP TABLE {d}.to_r, {d}.into_r, {d}.own_r SYNC")
    texts = three.same(f"SELECT engine_full FROM system.tables WHERE database = '{d}' AND name = 'r'")
    assert "merge_max_block_size = 100" in texts
    n2.query(f"INSERT INTO {d}.dist (k, v) VALUES (1, 'a')", distributed_foreground_insert="1")
    for node in three.nodes.values():
        node.query(f"SYSTEM SYNC REPLICA {d}.r")
    assert three.same(f"SELECT k, v, n FROM {d}.r") == "1\ta\t7\n"
    n1.query(f"ALTER TABLE {d}.r DELETE WHERE k = 1", mutations_sync="2")
    assert three.same(f"SELECT count() FROM {d}.r") == "0\n"
    three.n1.query(f"TRUNCATE TABLE {d}.r")
    eventually(lambda: len(three.digests(d)), 1)
    three.n3.query(f"DROP VIEW {d}.mv SYNC")
    refused(n1.post(f"ALTER TABLE {d}.dist RENAME COLUMN v TO w"), 48, "Distributed")
    n1.query(f"DROP TABLE {d}.p, {d}.q2 SYNC")
    assert not {"p", "q2"} & set(three.same(f"SHOW TABLES FROM {d}").split())
    assert not [n for n in three.same(f"SHOW TABLES FROM {d}").split() if n.startswith(".inner") or n == "mv"]


def test_what_a_table_takes_of_one_that_it_is_made_like_is_the_same_on_all(three: Three) -> None:
    """Each key that the statement does not name, and the comment; the other table is on one node only."""
    d = three.database()
    three.n1.query("CREATE DATABASE IF NOT EXISTS only_here")
    three.n1.query(
        "CREATE TABLE only_here.keyed (k UInt64, h UInt32, m UInt8, INDEX i k TYPE minmax) ENGINE = MergeTree"
        " PARTITION BY m PRIMARY KEY (k, intHash32(h)) ORDER BY (k, intHash32(h), m) SAMPLE BY intHash32(h)"
        " COMMENT 'keyed'"
    )
    for name, engine in (
        ("mt", "MergeTree"),
        (
            "own",
            "ReplacingMergeTree(m) ORDER BY (k, intHash32(h)) TTL toDate(h) SETTINGS index_granularity = 7",
        ),
        ("r", "ReplicatedMergeTree"),
        ("mem", "Memory"),
        ("said", "MergeTree PARTITION BY k COMMENT 'said'"),
    ):
        three.n1.query(f"CREATE TABLE {d}.{name} AS only_here.keyed ENGINE = {engine}")
    three.n1.query(f"CREATE TABLE {d}.again AS {d}.r COMMENT 'again'")
    shown = three.same(SHOWN.format(d))
    assert (shown.count("PARTITION BY m"), shown.count("SAMPLE BY"), shown.count("'keyed")) == (4, 5, 4)
    assert shown.count("PRIMARY KEY (k, intHash32(h))") == 5
    assert shown.count("'again") == 1
    eventually(lambda: len(three.digests(d)), 1)


def test_a_replicated_table_is_filled_once(three: Three) -> None:
    d = three.database()
    select = "SELECT rand64() AS k FROM numbers(10)"
    heavy = {"database_replicated_allow_heavy_create": "1"}
    three.n1.query(f"CREATE TABLE {d}.r ENGINE = ReplicatedMergeTree ORDER BY k AS {select}", **heavy)
    view = f"CREATE MATERIALIZED VIEW {d}.v ENGINE = ReplicatedMergeTree ORDER BY k POPULATE AS SELECT"
    three.n1.query(f"{view} rand64(k) AS k FROM {d}.r", **heavy)
    inner = three.n1.query(f"SELECT name FROM system.tables WHERE database = '{d}' AND name LIKE '.inner%'")
    for table in ("r", inner.strip()):
        three.synced(f"{d}.`{table}`")
        assert three.same(f"SELECT count() FROM {d}.`{table}`") == "10\n"


def test_what_only_the_initiator_has_fills_a_table_there_and_holds_up_nobody(three: Three) -> None:
    d = three.database()
    n1 = three.n1
    n1.query("CREATE TABLE fills (k UInt8, s Nullable(String)) ENGINE = MergeTree ORDER BY k")
    n1.query("INSERT INTO fills VALUES (1, 'x')")
    engine = "ENGINE = MergeTree ORDER BY k"
    for create in (
        f"TABLE {d}.a {engine} AS SELECT k, s FROM default.fills COMMENT 'filled'",
        f"TABLE {d}.b (k UInt64, s String) {engine} AS SELECT k, s FROM default.fills",
        f"MATERIALIZED VIEW {d}.v {engine} POPULATE AS SELECT k FROM default.fills",
    ):
        n1.query(f"CREATE {create}", distributed_ddl_task_timeout="40")
    for table in ("a", "b", "v"):
        counts = [node.query(f"SELECT count() FROM {d}.{table}") for node in three.nodes.values()]
        assert counts == ["1\n", "0\n", "0\n"]
    three.same(SHOWN.format(d))
    assert len(three.digests(d)) == 1
    log = (three.local.directory / "logs/n2.log").read_text()
    assert f"databases.failed database={d} " not in log


def test_what_is_too_large_is_not_dropped_as_session_and_statement_say(three: Three) -> None:
    d = three.database()
    n1 = three.n1
    n1.query(f"CREATE TABLE {d}.p (k UInt64) ENGINE = MergeTree ORDER BY k AS SELECT 1 AS k")
    n1.query(f"CREATE MATERIALIZED VIEW {d}.v ENGINE = MergeTree ORDER BY k POPULATE AS SELECT * FROM {d}.p")
    session = {"session_id": d}
    n1.query("SET max_table_size_to_drop = 1", **session)
    for engine in ("MergeTree", "ReplicatedMergeTree"):
        replace = f"CREATE OR REPLACE TABLE {d}.p (k UInt8) ENGINE = {engine} ORDER BY k"
        refused(n1.post(replace, **session), 359)
    assert n1.query(f"SELECT k FROM {d}.p") == "1\n"
    for table in ("p", "v"):
        refused(n1.post(f"DROP TABLE {d}.{table}", **session), 359)
        refused(n1.post(f"DROP TABLE {d}.{table} SETTINGS max_table_size_to_drop = 1"), 359)
        n1.query(f"DROP TABLE {d}.{table} SETTINGS max_table_size_to_drop = 0", **session)
    assert three.same(f"SHOW TABLES FROM {d}") == ""


@pytest.mark.parametrize("engine", few_first(["ReplicatedMergeTree", "MergeTree"], few=1))
def test_what_others_refer_to_is_not_dropped_where_that_is_asked_for(three: Three, engine: str) -> None:
    d = three.database()
    n1 = three.n1
    n1.query(f"CREATE TABLE {d}.t (k UInt64) ENGINE = {engine} ORDER BY k")
    n1.query(f"INSERT INTO {d}.t VALUES (1)")
    n1.query(f"CREATE VIEW {d}.v AS SELECT k FROM {d}.t")
    checks = {"check_referential_table_dependencies": "1"}
    for sql in (f"DROP TABLE {d}.t", f"DETACH TABLE {d}.t PERMANENTLY", f"DROP TABLE {d}.t SYNC"):
        refused(n1.post(sql, **checks), 630, f"depend on it: {d}.v")
    refused(n1.post(f"DROP TABLE {d}.t SETTINGS check_referential_table_dependencies = 1"), 630)
    assert three.same(f"SHOW TABLES FROM {d}") == "t\nv\n"
    assert n1.query(f"SELECT k FROM {d}.v") == "1\n"
    n1.query(f"CREATE VIEW outside AS SELECT k FROM {d}.t")
    refused(n1.post(f"DROP DATABASE {d}", **checks), 630, "depend on it: ")
    n1.query("DROP VIEW outside")
    n1.query(
        "CREATE DICTIONARY outside (k UInt64, v UInt8 DEFAULT 1) PRIMARY KEY k "
        f"SOURCE(CLICKHOUSE(DB '{d}' TABLE 't')) LAYOUT(FLAT()) LIFETIME(0)"
    )
    for sql in (f"DROP DATABASE {d}", f"DROP TABLE {d}.t", f"DETACH TABLE {d}.t PERMANENTLY"):
        refused(n1.post(sql), 630, "depend on it: default.outside")
    n1.query("DROP DICTIONARY outside")
    assert n1.query(f"SELECT k FROM {d}.v") == "1\n"
    n1.query(f"DROP DATABASE {d} SYNC", **checks)
    assert d not in n1.query("SHOW DATABASES").split()
    three.n2.query(f"DROP VIEW {d}.v", **checks)
    three.n2.query(f"DROP TABLE {d}.t", **checks)
    assert three.n3.query(f"SHOW TABLES FROM {d}") == ""


def test_what_cannot_be_is_refused_with_clickhouses_code(three: Three) -> None:
    d = three.database()
    n1 = three.n1
    n1.query(f"CREATE TABLE {d}.t (k UInt64) ENGINE = MergeTree ORDER BY k")
    n1.query("CREATE DATABASE IF NOT EXISTS elsewhere")
    n1.query("CREATE TABLE IF NOT EXISTS elsewhere.o (k UInt64) ENGINE = MergeTree ORDER BY k")
    n1.query(f"CREATE TABLE {d}.read (k UInt64, a UInt8) ENGINE = MergeTree ORDER BY k")
    n1.query(f"CREATE MATERIALIZED VIEW {d}.reads TO {d}.t AS SELECT k + a AS k FROM {d}.read")
    for sql, code, text in (
        (CREATE.format(d, d), 82, "already exists"),
        ("CREATE DATABASE x ENGINE = Replicated('/p', 's', 'r', 'x')", 36, "3 arguments"),
        ("CREATE DATABASE x ENGINE = Replicated('/p', 's|t', 'r')", 36, "'|'"),
        ("CREATE DATABASE x ENGINE = Replicated('/p/{uuid}', 's', 'r')", 36, "uuid"),
        ("CREATE DATABASE x ENGINE = Replicated('/p', 's', 'r') SETTINGS nonsense = 1", 115, "nonsense"),
        (
            "CREATE DATABASE x ENGINE = Replicated('/p', 's', 'r') SETTINGS logs_to_keep = 0",
            36,
            "logs_to_keep",
        ),
        ("CREATE DATABASE x ENGINE = Replicated('/clickhouse', 's', 'r')", 36, "does not look like"),
        (f"CREATE DATABASE x ENGINE = Replicated('/databases/{d}', 's1', 'n2')", 253, "already exists"),
        (f"CREATE TABLE {d}.t (k UInt64) ENGINE = MergeTree ORDER BY k", 57, ""),
        (
            f"CREATE TABLE {d}.s ENGINE = ReplicatedMergeTree ORDER BY k AS SELECT 1 AS k",
            344,
            "CREATE AS SELECT",
        ),
        (f"CREATE TABLE {d}.s (k Int8) ENGINE = ReplicatedMergeTree('/x', 'y') ORDER BY k", 36, "explicit"),
        (f"CREATE TABLE {d}.s (k Int8) ENGINE = Nonsense", 56, ""),
        (f"DETACH TABLE {d}.t", 80, "PERMANENTLY"),
        (f"DROP TABLE {d}.absent", 60, ""),
        (f"ALTER TABLE {d}.t ADD COLUMN k Int8", 15, ""),
        (f"ALTER TABLE {d}.absent ADD COLUMN k Int8", 60, ""),
        (f"ALTER TABLE {d}.read DROP COLUMN a", 524, "['reads']"),
        (f"RENAME TABLE {d}.absent TO {d}.there", 60, ""),
        (f"RENAME TABLE {d}.t TO elsewhere.t", 48, "between databases"),
        (f"RENAME TABLE elsewhere.o TO {d}.o", 48, "between databases"),
        (f"DROP TABLE {d}.t ON CLUSTER all", 80, "ON CLUSTER is not allowed"),
        (f"SYSTEM DROP DATABASE REPLICA 's1|n1' FROM DATABASE {d}", 305, "DROP DATABASE"),
        (f"SYSTEM DROP DATABASE REPLICA 's1|n2' FROM DATABASE {d}", 36, "is active"),
        (f"SYSTEM DROP DATABASE REPLICA 's1|n9' FROM DATABASE {d}", 36, "does not exist"),
        ("SYSTEM DROP DATABASE REPLICA 's1|n9' FROM ZKPATH '/clickhouse'", 36, "does not look like"),
        ("SYSTEM SYNC DATABASE REPLICA elsewhere", 36, "Replicated"),
    ):
        refused(n1.post(sql), code, text)
    assert three.same(f"SHOW TABLES FROM {d}") == "read\nreads\nt\n"
    assert "x" not in n1.query("SHOW DATABASES").split()
    for node in three.nodes.values():
        assert node.query(f"SYSTEM SYNC DATABASE REPLICA {d}") == ""
    n1.query(f"CREATE TABLE {d}.fine (k Int8) ENGINE = Memory")
    assert len(three.digests(d)) == 1


def test_functions_of_the_initiator_are_written_out_in_what_all_replicas_have(three: Three) -> None:
    """n2 has another function of that name, n3 has none."""
    d = three.database()
    three.n1.query("CREATE FUNCTION in_cents AS (euros, more) -> euros * 100 + more")
    three.n2.query("CREATE FUNCTION in_cents AS (euros, more) -> 0")
    within = {"distributed_ddl_task_timeout": "20"}
    three.n1.query(
        f"CREATE TABLE {d}.prices (e UInt64, c UInt64 DEFAULT in_cents(e, 1)) ENGINE = ReplicatedMergeTree "
        "ORDER BY e",
        **within,
    )
    three.n1.query(f"CREATE VIEW {d}.v AS SELECT in_cents(e + 1, 2) * 2 AS twice FROM {d}.prices", **within)
    three.n1.query(f"CREATE TABLE {d}.plain (e UInt64) ENGINE = MergeTree ORDER BY e", **within)
    three.n1.query(f"ALTER TABLE {d}.plain ADD COLUMN c UInt64 MATERIALIZED in_cents(e, 3)", **within)
    three.n3.query(f"INSERT INTO {d}.prices (e) VALUES (5)")
    three.synced(f"{d}.prices")
    assert three.same(f"SELECT c, (SELECT twice FROM {d}.v) FROM {d}.prices") == "501\t1204\n"
    assert "in_cents" not in three.same(SHOWN.format(d))
    eventually(lambda: len(three.digests(d)), 1)
    for node in (three.n1, three.n2):
        node.query("DROP FUNCTION in_cents")


def test_a_table_made_like_one_that_only_the_initiator_has_is_on_all(three: Three) -> None:
    d = three.database()
    n1 = three.n1
    n1.query("CREATE DATABASE likes")
    n1.query(
        "CREATE TABLE likes.t (k UInt8, s String DEFAULT 'a', n Nested(x UInt8), INDEX i s TYPE minmax, "
        "CONSTRAINT c CHECK k < 100, PROJECTION p (SELECT k ORDER BY s)) ENGINE = MergeTree ORDER BY k",
        flatten_nested="0",
    )
    n1.query("CREATE VIEW likes.v AS SELECT 1 AS a, 'x' AS b")
    engine = "MergeTree ORDER BY k AS SELECT k, s FROM likes.t"
    n1.query(f"CREATE MATERIALIZED VIEW likes.plain_view ENGINE = {engine}")
    alone = three.database(n1)
    n1.query(f"CREATE MATERIALIZED VIEW {alone}.view ENGINE = Replicated{engine}")
    n1.query("INSERT INTO likes.t (k) VALUES (1)")
    for number, made in enumerate(
        (
            "AS likes.t",
            "AS likes.t ENGINE = MergeTree ORDER BY k",
            "AS likes.t ENGINE = ReplicatedMergeTree ORDER BY k",
            "ENGINE = Log AS likes.t COMMENT 'AS likes.t'",
            "ENGINE = Memory AS likes.v",
            "AS likes.v ENGINE = Memory",
            "ENGINE = Memory COMMENT 'none' EMPTY AS SELECT k, n FROM likes.t JOIN likes.v ON k = a",
            "AS merge('likes', '^t')",
            "AS likes.plain_view",
            f"AS {alone}.view",
        ),
        start=1,
    ):
        n1.query(f"CREATE TABLE {d}.t{number} {made}")
    shown = dict(line.split("\t") for line in three.same(SHOWN.format(d)).splitlines())
    assert [name for name, create in shown.items() if "PROJECTION p" in create] == ["t1", "t2", "t3"]
    assert [name for name, create in shown.items() if "CONSTRAINT c" in create] == ["t1", "t2", "t3", "t4"]
    nested = [name for name, create in shown.items() if "`n` Nested(x UInt8)" in create]
    assert nested == ["t1", "t2", "t3", "t4", "t7", "t8"]
    assert "ENGINE = MergeTree ORDER BY k" in shown["t9"]
    assert "ENGINE = ReplicatedMergeTree(\\'/clickhouse/tables/{uuid}/{shard}\\'" in shown["t10"]
    eventually(lambda: len(three.digests(d)), 1)
    assert len(three.children(f"/databases/{d}/metadata")) == len(shown) == 10
    n1.query("DROP DATABASE likes")


def test_an_alter_whose_mutation_fails_on_one_replica_is_done_there_too(three: Three) -> None:
    """Repeated for the failed mutation it would fail for its definition, and the table be moved aside."""
    d = three.database()
    n1, n3 = three.n1, three.n3
    n1.query(f"CREATE TABLE {d}.t (k UInt64, v String, INDEX i k TYPE minmax) ENGINE = MergeTree ORDER BY k")
    n1.query(f"INSERT INTO {d}.t VALUES (1, '1')")
    n3.query(f"INSERT INTO {d}.t VALUES (3, 'three')")
    n1.query(f"ALTER TABLE {d}.t MODIFY COLUMN v UInt64, ADD COLUMN w Int8")
    three.same(DEFINITIONS.format(d))
    eventually(lambda: len(three.digests(d)), 1)
    unfinished = f"SELECT mutation_id FROM system.mutations WHERE database = '{d}' AND NOT is_done"
    assert n1.query(unfinished) == ""
    [mutation] = n3.query(unfinished).split()

    for change in ("RENAME COLUMN v TO new", "DROP COLUMN IF EXISTS `v`"):
        refused(n3.post(f"ALTER TABLE {d}.t {change}"), 36, f"mutation with ID '{mutation}'")
    refused(n3.post(f"ALTER TABLE {d}.t MATERIALIZE INDEX i", mutations_sync="2"), 341)
    refused(n3.post(f"DROP INDEX i ON {d}.t"), 36, "Cannot drop index i")
    assert three.same(f"SELECT name FROM system.columns WHERE database = '{d}'") == "k\nv\nw\n"
    n3.query(f"ALTER TABLE {d}.t ADD COLUMN x Int8")
    n3.query(f"KILL MUTATION WHERE database = '{d}' AND mutation_id = '{mutation}'")
    n3.query(f"ALTER TABLE {d}.t DROP COLUMN v")
    three.same(DEFINITIONS.format(d))
    assert n3.query(f"SELECT k FROM {d}.t") == "3\n"
    assert f"{d}_broken_tables" not in n3.query("SHOW DATABASES").split()


def test_the_database_goes_through_its_life(three: Three) -> None:
    d = three.database()
    n1, n2, n3 = three.n1, three.n2, three.n3
    n1.query(f"CREATE TABLE {d}.r (k UInt64) ENGINE = ReplicatedMergeTree ORDER BY k")
    assert n1.query(f"SHOW CREATE DATABASE {d} FORMAT TSVRaw") == (
        f"CREATE DATABASE `{d}`\nENGINE = Replicated('/databases/{d}', '{{shard}}', '{{replica}}')\n"
    )
    n2.query(f"ALTER DATABASE {d} MODIFY COMMENT 'it''s new'")
    assert n2.query(f"SHOW CREATE DATABASE {d} FORMAT TSVRaw").endswith("\nCOMMENT 'it\\'s new'\n")
    assert n2.query(f"SELECT comment FROM system.databases WHERE name = '{d}'") == "it\\'s new\n"
    [shown] = json_rows(n2, f"SELECT engine, engine_full FROM system.databases WHERE name = '{d}'")
    assert shown["engine"] == "Replicated" and shown["engine_full"].startswith("Replicated('/databases/")
    [row] = json_rows(n3, f"SELECT * FROM system.database_replicas WHERE database = '{d}'")
    assert row["replica_name"] == "n3" and row["total_replicas"] == 3 and row["is_readonly"] == 0
    cluster = f"SELECT database_replica_name, is_active, host_name FROM system.clusters WHERE cluster = '{d}'"
    assert three.same(cluster) == "".join(f"{host}\t1\t{host}\n" for host in HOSTS)
    assert three.same(f"SELECT count() FROM clusterAllReplicas('{d}', system.one)") == "3\n"

    n3.query(f"RENAME DATABASE {d} TO other_{d}")
    n1.query(f"CREATE TABLE {d}.s (k UInt64) ENGINE = Memory")
    assert n3.query(f"SHOW TABLES FROM other_{d}") == "r\ns\n"
    n3.query(f"RENAME DATABASE other_{d} TO {d}")
    n3.query(f"DETACH DATABASE {d}")
    n1.query(f"DROP TABLE {d}.s SYNC", distributed_ddl_output_mode="none_only_active")
    n3.query(f"ATTACH DATABASE {d}")
    n3.query(f"SYSTEM SYNC DATABASE REPLICA {d}")
    assert three.same(f"SHOW TABLES FROM {d}") == "r\n"

    three.call(three.local.node("n3").kill9())
    eventually(lambda: "active" in three.children(f"/databases/{d}/replicas/s1|n3"), False)
    n1.query(f"SYSTEM DROP DATABASE REPLICA 'n3' FROM SHARD 's1' FROM DATABASE {d}")
    assert three.children(f"/databases/{d}/replicas") == ["s1|n1", "s1|n2"]
    three.call(three.local.node("n3").start())
    refused(n3.post(f"CREATE TABLE {d}.x (k Int8) ENGINE = Memory"), 225, "readonly")
    n3.query(f"DROP DATABASE {d}")
    n2.query(f"DROP DATABASE {d} SYNC")
    assert three.children(f"/databases/{d}/replicas") == ["s1|n1"]
    n1.query(f"DROP DATABASE {d}")
    assert d not in three.children("/databases")
    assert d not in n1.query("SHOW DATABASES").split()


@pytest.mark.parametrize("engine", ["ReplicatedMergeTree", "MergeTree"])
def test_a_detached_table_is_not_altered_by_anybody(three: Three, engine: str) -> None:
    d = three.database()
    three.n1.query(f"CREATE TABLE {d}.t (k UInt64) ENGINE = {engine} ORDER BY k")
    three.n1.query(f"DETACH TABLE {d}.t PERMANENTLY")
    newest = three.value(f"/databases/{d}/max_log_ptr")
    refused(three.n1.post(f"ALTER TABLE {d}.t ADD COLUMN c UInt8"), 60)
    refused(three.n1.post(f"CREATE TABLE {d}.u AS {d}.t"), 60)
    assert three.children(f"/databases/{d}/metadata") == []
    assert three.children(f"/databases/{d}/log/query-{int(newest) + 1:010}") != ["committed"]
    three.n2.query(f"ATTACH TABLE {d}.t")
    three.n2.query(f"ALTER TABLE {d}.t ADD COLUMN c UInt8", alter_sync="2")
    assert three.same(f"SELECT name FROM system.columns WHERE database = '{d}'") == "k\nc\n"


def test_one_replica_of_each_shard_changes_rows_of_a_replicated_table(three: Three) -> None:
    d = "shards"
    for host, shard in zip(HOSTS, ("s1", "s1", "s2"), strict=True):
        three.nodes[host].query(
            f"CREATE DATABASE {d} ENGINE = Replicated('/databases/{d}', '{shard}', '{host}')"
        )
    place = "'/tables/shards/{shard}/{half}', '{replica}'"
    three.n1.query(
        f"CREATE TABLE {d}.t (k UInt64, v UInt64) ENGINE = ReplicatedMergeTree({place}) ORDER BY k",
        database_replicated_allow_replicated_engine_arguments="3",
    )
    three.n1.query(f"INSERT INTO {d}.t VALUES (1, 10)")
    three.n3.query(f"INSERT INTO {d}.t VALUES (2, 20)")
    for node, sql in (
        (three.n2, f"ALTER TABLE {d}.t UPDATE v = v + 1 WHERE 1"),
        (three.n3, f"ALTER TABLE {d}.t UPDATE v = v + 1 WHERE 1"),
        (three.n1, f"DELETE FROM {d}.t WHERE v = 0"),
    ):
        node.query(sql, mutations_sync="2", lightweight_deletes_sync="2")
        refused(node.post(f"ALTER TABLE {d}.t ADD COLUMN w Int8, UPDATE v = 0 WHERE 1"), 392)
    three.n2.query(f"SYSTEM SYNC REPLICA {d}.t")
    assert three.same(f"SELECT * FROM {d}.t", three.n1, three.n2) == "1\t12\n"
    assert three.n3.query(f"SELECT * FROM {d}.t") == "2\t22\n"
    attempts = [
        three.value(f"/databases/{d}/log/{entry}/shards/{shard}/attempt")
        for entry in three.children(f"/databases/{d}/log")
        for shard in three.children(f"/databases/{d}/log/{entry}/shards")
    ]
    assert sum('"effect": "whole"' in attempt for attempt in attempts) == 2, attempts

    # A partition of which another shard has no rows is replaced there, too, and moved from there.
    place = place.replace("shards", "of_u")
    three.n1.query(
        f"CREATE TABLE {d}.u AS {d}.t ENGINE = ReplicatedMergeTree({place}) ORDER BY k",
        database_replicated_allow_replicated_engine_arguments="3",
    )
    three.n1.query(f"INSERT INTO {d}.u VALUES (3, 30)")
    refused(three.n3.post(f"ALTER TABLE {d}.t REPLACE PARTITION tuple() FROM {d}.u"), 36)
    three.n1.query(f"ALTER TABLE {d}.t REPLACE PARTITION tuple() FROM {d}.u")
    three.n1.query(f"ALTER TABLE {d}.u MOVE PARTITION tuple() TO TABLE {d}.t")
    for node, rows in ((three.n1, "3\t30\n3\t30\n"), (three.n2, "3\t30\n3\t30\n"), (three.n3, "")):
        eventually(partial(node.query, f"SELECT * FROM {d}.t"), rows)
    assert three.same(f"SELECT count() FROM {d}.u") == "0\n"


@pytest.mark.parametrize(
    ("change", "engine"),
    each_in_turn(
        ["ALTER TABLE {d}.{t} DELETE WHERE k IN ({s})", "DELETE FROM {d}.{t} WHERE k IN ({s})"],
        ["ReplicatedMergeTree", "MergeTree"],
    ),
)
def test_rows_are_chosen_by_what_a_distributed_table_says(three: Three, engine: str, change: str) -> None:
    d = three.database()
    three.n1.query(f"CREATE TABLE {d}.r (k UInt64) ENGINE = ReplicatedMergeTree ORDER BY k")
    three.n1.query(f"CREATE TABLE {d}.all (k UInt64) ENGINE = Distributed({d}, {d}, r)")
    three.n1.query(f"CREATE TABLE {d}.t (k UInt64) ENGINE = {engine} ORDER BY k")
    three.n1.query(f"INSERT INTO {d}.r VALUES (1), (2)")
    three.synced(f"{d}.r")
    for node in three.nodes.values() if engine == "MergeTree" else [three.n2]:
        node.query(f"INSERT INTO {d}.t VALUES (1), (2), (3)")
    text = change.format(d=d, t="t", s=f"SELECT k FROM {d}.all")
    three.n2.query(text, mutations_sync="2", lightweight_deletes_sync="2")
    for node in three.nodes.values():
        eventually(partial(node.query, f"SELECT groupArray(k) FROM {d}.t"), "[3]\n")
