"""What is read beside or by way of Distributed tables: views, dictionaries, functions, temporary tables."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.node.distributed_cluster import COLUMNS, FOREGROUND, Cluster, fill_events, refused, running_cluster

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("sources")) as cluster:
        fill_events(cluster)
        yield cluster


def test_views_over_distributed_tables_are_read_through(cluster: Cluster) -> None:
    cluster.n1.query("CREATE VIEW by_city AS SELECT city, count() AS n FROM events_d GROUP BY city")
    cluster.n1.query("CREATE VIEW over_view AS SELECT sum(n) AS total FROM by_city")
    assert cluster.n1.query("SELECT total FROM over_view") == "2000\n"
    for alias in ("AS v", "v", "AS `v`"):
        assert cluster.n1.query(f"SELECT v.n FROM by_city {alias} WHERE v.city = 'Rome'") == "667\n"
    for name in ("default.by_city", "by_city"):
        assert cluster.n1.query(f"SELECT {name}.n FROM default.by_city WHERE {name}.city = 'Rome'") == "667\n"
    assert cluster.n1.query("SELECT default.by_city.n FROM by_city AS v WHERE v.city = 'Rome'") == "667\n"
    cluster.n1.query("CREATE VIEW from_id AS SELECT count() AS n FROM events_d WHERE id >= {lo:UInt64}")
    assert cluster.n1.query("SELECT n FROM from_id(lo = 1990)") == "10\n"
    assert cluster.n1.query("SELECT default.from_id.n FROM default.from_id(lo = 1990)") == "10\n"
    assert cluster.n1.query("SELECT count() FROM merge(default, '^events_d$')") == "2000\n"
    cluster.n1.query("CREATE TABLE merged (id UInt64) ENGINE = Merge(default, '^events_d$')")
    assert cluster.n1.query("SELECT max(id), any(_table) FROM merged") == "1999\tevents_d\n"


def test_materialized_views_read_from_and_write_to_distributed_tables(cluster: Cluster) -> None:
    name, other = cluster.tables(), cluster.tables("k UInt64, n UInt64")
    n1 = cluster.n1
    view = "CREATE MATERIALIZED VIEW"
    n1.query(f"CREATE TABLE plain_{name} (k UInt64, v String) ENGINE = MergeTree ORDER BY k")
    # From plain, replicated and Distributed tables into a Distributed one.
    n1.query(f"{view} p_{name} TO {name}_d AS SELECT k, v FROM plain_{name}")
    own = f"(SELECT count() < 9 FROM {name}_d)"
    n1.query(f"{view} d_{name} TO {other}_d AS SELECT k, count() * {own} AS n FROM {name}_d GROUP BY k")
    n1.query(f"{view} r_{name} TO {other}_d AS SELECT k + 100 AS k, 7 AS n FROM {name}")
    more = f"(SELECT 99 + count() FROM {other}_d)"
    n1.query(f"{view} own_{name} ENGINE = MergeTree ORDER BY k AS SELECT k FROM {name}_d WHERE k < {more}")
    n1.query(f"INSERT INTO plain_{name} SELECT number, 'x' FROM numbers(4)", **FOREGROUND)
    assert cluster.rows(name) == [[0, 2], [1, 3]]
    cluster.sync(other)
    assert n1.query(f"SELECT k, sum(n) FROM {other}_d WHERE k < 100 GROUP BY k ORDER BY k FORMAT CSV") == (
        "0,1\n1,1\n2,1\n3,1\n"
    )
    # Rows for this shard went to either replica; the view is on n1 only.
    assert n1.query(f"SELECT count() FROM own_{name}") == "4\n"
    # A token is passed on, in a form of each view's own.
    for _ in range(2):
        n1.query(f"INSERT INTO {name}_d VALUES (9, 'y')", insert_deduplication_token="t", **FOREGROUND)
    cluster.sync(other)
    assert n1.query(f"SELECT sum(n) FROM {other}_d WHERE k = 9") == "1\n"
    n1.query(f"INSERT INTO p_{name} VALUES (11, 'z')", **FOREGROUND)
    assert cluster.rows(name) == [[0, 2], [1, 3, 9, 11]]
    assert n1.query(f"SELECT count(), max(v) FROM p_{name}") == "6\tz\n"
    # A renamed column makes another table in chDB; its views stay.
    n1.query(f"ALTER TABLE {name} ON CLUSTER c RENAME COLUMN v TO w")
    n1.query(f"ALTER TABLE {name}_d RENAME COLUMN v TO w")
    before = int(n1.query(f"SELECT count() FROM own_{name}"))
    n1.query(f"INSERT INTO {name}_d VALUES (13, 'z')", **FOREGROUND)
    assert int(n1.query(f"SELECT count() FROM own_{name}")) == before + 1
    for change in (
        f"TO {name} AS SELECT k, v FROM plain_{name} WHERE k IN (SELECT k FROM {other}_d)",
        f"TO {name} AS SELECT k, (SELECT max(k) FROM {name}_d) AS v FROM plain_{name}",
    ):
        assert refused(n1, f"{view} no_{name} {change}").code == 48


@pytest.mark.extended
def test_a_materialized_view_is_filled_and_joins_other_distributed_tables(cluster: Cluster) -> None:
    name, other = cluster.tables(), cluster.tables("k UInt64, n UInt64")
    n1 = cluster.n1
    n1.query(f"INSERT INTO {name}_d SELECT number, 'x' FROM numbers(6)", **FOREGROUND)
    n1.query(f"INSERT INTO {other}_d SELECT number, number * 10 FROM numbers(4)", **FOREGROUND)
    cluster.sync(name, other)
    body = f"SELECT k, n FROM {name}_d JOIN {other}_d USING (k)"
    n1.query(
        f"CREATE MATERIALIZED VIEW IF NOT EXISTS m_{name} ENGINE = MergeTree ORDER BY k POPULATE AS {body}"
    )
    assert n1.query(f"SELECT count(), sum(n) FROM m_{name}") == "4\t60\n"
    n1.query(f"CREATE MATERIALIZED VIEW IF NOT EXISTS m_{name} ENGINE = Log POPULATE AS {body}")
    n1.query(f"INSERT INTO {name}_d VALUES (2, 'again'), (9, 'nowhere')", **FOREGROUND)
    n1.query(f"INSERT INTO {other}_d VALUES (5, 7)", **FOREGROUND)
    cluster.sync(name, other)
    assert n1.query(f"SELECT count(), sum(n) FROM m_{name}") == "5\t80\n"
    each = f"CREATE MATERIALIZED VIEW e_{name} ON CLUSTER c ENGINE = MergeTree ORDER BY k POPULATE AS {body}"
    n1.query(each)
    for host in ("n1", "n4"):
        assert cluster.nodes[host].query(f"SELECT count(), sum(n) FROM e_{name}") == "6\t87\n"
    failing = f"ENGINE = Memory POPULATE AS SELECT throwIf(k = 5) AS t FROM {name}_d"
    assert refused(n1, f"CREATE MATERIALIZED VIEW no_{name} {failing}").code == 395
    assert n1.query(f"EXISTS TABLE no_{name}") == "0\n"


def test_a_name_that_was_read_before_may_come_to_mean_something_else(cluster: Cluster) -> None:
    for make, total in (
        ("CREATE TABLE meant ENGINE = Memory AS SELECT 1 AS n", "1\n"),
        ("CREATE VIEW meant AS SELECT count() AS n FROM events_d", "2000\n"),
        ("CREATE OR REPLACE VIEW meant AS SELECT max(id) AS n FROM events_d", "1999\n"),
        (
            "CREATE OR REPLACE VIEW meant ON CLUSTER c AS SELECT count() AS n FROM events_d WHERE id < 5",
            "5\n",
        ),
        ("CREATE OR REPLACE VIEW meant ON CLUSTER c AS SELECT 7 AS n", "7\n"),
    ):
        if make.startswith("CREATE VIEW"):
            cluster.n1.query("DROP TABLE meant SYNC")
        cluster.n1.query(make)
        assert cluster.n1.query("SELECT sum(n) FROM meant") == total


def test_insert_and_create_from_a_distributed_table(cluster: Cluster) -> None:
    cluster.n1.query("CREATE TABLE copy ENGINE = MergeTree ORDER BY id AS SELECT * FROM events_d")
    assert cluster.n1.query("SELECT count() FROM copy") == "2000\n"
    cluster.n1.query("INSERT INTO copy SELECT * FROM events_d WHERE id < 10")
    assert cluster.n1.query("SELECT count() FROM copy") == "2010\n"
    cluster.n1.query(
        "CREATE TABLE copies ON CLUSTER c ENGINE = MergeTree ORDER BY id AS SELECT id FROM events_d"
    )
    for node in cluster.nodes.values():
        assert node.query("SELECT count() FROM copies") == "2000\n"
    cluster.n1.query(
        f"CREATE TABLE again ON CLUSTER c ({COLUMNS}) "
        "ENGINE = ReplicatedMergeTree('/t/again/{c_shard}', '{replica}') ORDER BY id"
    )
    cluster.n1.query(
        f"CREATE TABLE again_d ON CLUSTER c ({COLUMNS}) ENGINE = Distributed(c, default, again, id)"
    )
    cluster.n1.query(
        "INSERT INTO again_d SELECT * FROM events_d WHERE id < 100", distributed_foreground_insert="1"
    )
    for node in cluster.nodes.values():
        node.query("SYSTEM SYNC REPLICA again")
    assert cluster.n1.query("SELECT count(), uniqExact(id) FROM again_d") == "100\t100\n"
    params = {"param_least": "1990"}
    assert cluster.n1.query("SELECT count() FROM events_d WHERE id >= {least:UInt64}", **params) == "10\n"
    assert "url" in cluster.n1.query("EXPLAIN SYNTAX SELECT count() FROM events_d").lower()


def test_table_functions_read_clusters(cluster: Cluster) -> None:
    ask = cluster.n1.query
    assert ask("SELECT count() FROM cluster('c', default, events)") == "2000\n"
    assert ask("SELECT count() FROM clusterAllReplicas(c, default.events)") == "4000\n"
    assert ask("SELECT uniqExact(_shard_num) FROM clusterAllReplicas('c', system.one)") == "4\n"
    port = cluster.nodes["n3"].url.rpartition(":")[2]
    assert (
        ask(f"SELECT count(), min(id) FROM remote('127.0.0.1:{port}', default, events) AS r") == "1000\t1\n"
    )
    reply = refused(cluster.n1, "SELECT * FROM cluster('nowhere', default, events)")
    assert reply.code == 701


TABLE_FUNCTIONS = {
    "SELECT count(), sum(number), uniqExact(_shard_num) FROM cluster('c', numbers(10))": "20\t90\t2",
    "SELECT number, count() FROM clusterAllReplicas('c', numbers(2)) GROUP BY 1 ORDER BY 1": "0\t4\n1\t4",
    "SELECT number FROM cluster('c', numbers(5)) ORDER BY number LIMIT 2 OFFSET 1": "0\n1",
    # its names are the shards' own
    "SELECT sum(c) FROM cluster('c', view(SELECT count() AS c FROM events))": "2000",
    "SELECT count() FROM cluster('c', merge('default', '^events$')) WHERE id < 3": "3",
    # each shard reads the whole of a Distributed table, and of a cluster
    "SELECT count() FROM cluster('c', view(SELECT id FROM events_d WHERE id < 3))": "6",
    "SELECT count() FROM cluster('c', cluster('c', numbers(3)))": "12",
    "SELECT count() FROM cluster('c', numbers(3)) AS a JOIN events_d AS b ON a.number = b.id": "6",
    "SELECT count() FROM cluster('c', numbers(3)) AS a JOIN cluster('c', numbers(2)) AS b USING number": "8",
    "SELECT count() FROM events_d WHERE id IN (SELECT number FROM cluster('c', numbers(3)))": "3",
    "SELECT count() FROM cluster('c', numbers({n:UInt8}))": "8",
    "SELECT count(), uniqExact(_shard_num) FROM clusterAllReplicas('c')": "4\t4",
    # what a server says of itself
    "SELECT shardNum(), shardCount(), min(id) FROM events_d GROUP BY ALL ORDER BY ALL": "1\t2\t0\n2\t2\t1",
    "SELECT shardNum(), number FROM cluster('c', numbers(1)) ORDER BY ALL": "1\t0\n2\t0",
    "SELECT shardNum() = 0 FROM (SELECT * FROM events_d) LIMIT 1": "1",
    "SELECT version() = version(), count() FROM events_d": "1\t2000",
    "DESCRIBE TABLE cluster('c', numbers(3)) FORMAT TSVRaw": "number\tUInt64\t\t\t\t\t",
    "DESCRIBE (SELECT number + 1 AS n FROM cluster('c', numbers(3))) FORMAT TSVRaw": "n\tUInt64\t\t\t\t\t",
}


@pytest.mark.parametrize("sql", TABLE_FUNCTIONS)
def test_table_functions_are_executed_on_the_shards(cluster: Cluster, sql: str) -> None:
    assert cluster.n1.query(sql, param_n="4") == TABLE_FUNCTIONS[sql] + "\n"


def test_a_table_function_in_a_subquery_is_executed_on_the_shards(cluster: Cluster) -> None:
    sql = "SELECT id FROM events_d WHERE id = (SELECT sum(number) FROM cluster('c', numbers(3)))"
    assert cluster.n1.query(sql) == "6\n"
    assert refused(cluster.n1, sql, distributed_group_by_no_merge="1").code == 125  # a sum of each shard


def test_what_a_node_refuses_it_refuses_to_other_nodes_too(cluster: Cluster) -> None:
    function = "url('file:///etc/passwd', 'LineAsString', 's String')"
    assert refused(cluster.n1, f"SELECT * FROM {function}").code == 497
    assert refused(cluster.n1, f"SELECT * FROM cluster('c', {function})").code == 497
    assert refused(cluster.n1, "SELECT * FROM cluster('c', view(SELECT file('/etc/passwd')))").code == 497
    assert "Received from n1:9000" in refused(cluster.n1, "SELECT * FROM cluster('c', nosuch(1))").text


def test_a_dictionary_reads_a_distributed_table_by_way_of_the_node(cluster: Cluster) -> None:
    url = f"{cluster.local.node('n1').url}/?query=SELECT+id,note+FROM+default.events_d"
    cluster.n1.query(
        "CREATE DICTIONARY notes (id UInt64, note Nullable(String)) PRIMARY KEY id "
        f"SOURCE(HTTP(url '{url}' format 'TSV')) LAYOUT(HASHED()) LIFETIME(0)"
    )
    sql = "SELECT count() FROM {} WHERE note IS NOT DISTINCT FROM dictGet('notes', 'note', id)"
    assert cluster.n1.query(sql.format("events_d")) == cluster.n1.query("SELECT count() FROM one")
    refusal = refused(
        cluster.n1,
        "CREATE DICTIONARY direct (id UInt64) PRIMARY KEY id SOURCE(CLICKHOUSE(TABLE 'events_d')) "
        "LAYOUT(HASHED()) LIFETIME(0)",
    )
    assert "Code: 48" in refusal.text


def test_a_temporary_table_comes_before_a_distributed_one_of_its_name(cluster: Cluster) -> None:
    def ask(sql: str, **more: str) -> str:
        return cluster.n1.query(sql, session_id="temporary", **more)

    count = "SELECT count() FROM events_d"
    assert ask(count) == "2000\n"
    ask("CREATE TEMPORARY TABLE events_d (id UInt64)")
    ask("INSERT INTO events_d SELECT 7")
    ask("INSERT INTO events_d VALUES (8), (9000)")
    assert ask(count) == "3\n"
    assert ask("SELECT count() FROM default.events_d") == "2000\n"
    assert ask("SELECT count() FROM default.events_d AS e JOIN events_d USING id") == "2\n"
    assert ask("SELECT count() FROM default.events_d WHERE id IN (SELECT id FROM events_d)") == "2\n"
    assert cluster.n1.query(count) == "2000\n"
    ask("INSERT INTO events_d SELECT id FROM default.events_d WHERE id < 5")
    assert ask(count) == "8\n"
    ask("DROP TABLE events_d")
    assert ask(count) == "2000\n"


def test_a_temporary_table_comes_before_a_replicated_one_of_its_name(cluster: Cluster) -> None:
    def ask(sql: str) -> str:
        return cluster.n1.query(sql, session_id="temporary replicated")

    ask("CREATE TABLE kept (id UInt64) ENGINE = ReplicatedMergeTree('/kept', 'r') ORDER BY id")
    ask("INSERT INTO kept VALUES (1)")
    ask("CREATE TEMPORARY TABLE kept (id UInt64) ENGINE = MergeTree ORDER BY id")
    ask("INSERT INTO kept SELECT 2")
    ask("INSERT INTO kept VALUES (3)")
    ask("INSERT INTO kept SELECT id FROM default.kept")
    assert ask("SELECT groupArray(id) FROM (SELECT id FROM kept ORDER BY id)") == "[1,2,3]\n"
    refused = cluster.n1.post(
        "ALTER TABLE kept REPLACE PARTITION tuple() FROM default.kept", session_id="temporary replicated"
    )
    assert refused.code == 48
    for command in ("REPLACE PARTITION tuple() FROM kept", "MOVE PARTITION tuple() TO TABLE kept"):
        between = cluster.n1.post(f"ALTER TABLE default.kept {command}", session_id="temporary replicated")
        assert between.code == 48 and "kept is a temporary table" in between.text
    ask("ALTER TABLE kept ADD COLUMN more UInt8")
    ask("OPTIMIZE TABLE kept FINAL")
    ask("TRUNCATE TABLE kept")
    assert ask("SELECT id, more FROM kept") == ""
    assert ask("DESCRIBE TABLE kept FORMAT CSV").count("\n") == 2
    assert "TEMPORARY" in ask("SHOW CREATE TABLE kept")
    ask("DROP TABLE kept")
    assert ask("SELECT * FROM kept") == "1\n"
    ask("INSERT INTO kept VALUES (2)")
    assert cluster.n1.query("SELECT count() FROM kept") == "2\n"
    ask("DROP TABLE kept SYNC")
    assert ask("EXISTS TABLE kept") == "0\n"


def test_a_temporary_table_like_a_replicated_or_distributed_one_has_its_columns_only(
    cluster: Cluster,
) -> None:
    def ask(sql: str) -> str:
        return cluster.n1.query(sql, session_id="temporary like another")

    ask("CREATE TABLE model (id UInt64 DEFAULT 5) ENGINE = ReplicatedMergeTree('/model', 'r') ORDER BY id")
    ask("CREATE TABLE model_d AS model ENGINE = Distributed(c, default, model)")
    for model in ("model", "model_d"):
        ask(f"CREATE OR REPLACE TEMPORARY TABLE {model} AS default.{model}")
        ask(f"INSERT INTO {model} VALUES (DEFAULT)")
        assert ask(f"SELECT * FROM {model}") == "5\n"
        assert "ENGINE = Memory" in ask(f"SHOW CREATE TEMPORARY TABLE {model}")
        ask(f"DROP TEMPORARY TABLE {model}")
    assert cluster.n1.query("SELECT count() FROM model") == "0\n"
    ask("DROP TABLE model_d SYNC")
    ask("DROP TABLE model SYNC")


def test_a_table_that_reads_itself_is_refused(cluster: Cluster) -> None:
    cluster.n1.query("CREATE TABLE loop ON CLUSTER c (k UInt64) ENGINE = Distributed(c, default, loop)")
    reply = refused(cluster.n1, "SELECT count() FROM loop")
    assert "depth" in reply.text
