"""Definitions of Distributed tables on real nodes: CREATE, ALTER, REPLACE, and what they leave alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.node.distributed_cluster import FOREGROUND, WEIGHTED, Cluster, refused, running_cluster

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("definitions"), other_clusters=WEIGHTED) as cluster:
        yield cluster


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
