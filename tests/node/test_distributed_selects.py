"""SELECT over Distributed tables on real nodes: two shards of two replicas each, over HTTP."""

from __future__ import annotations

import http.client
import json
import time
import urllib.parse
from collections.abc import Iterator

import pytest

from engine.testing.cluster_files import clusters_xml
from engine.testing.local_cluster import blocking_cluster
from tests.few import each_in_turn, few_first
from tests.node.distributed_cluster import FOREGROUND, SHARDS, Cluster, refused
from tests.warm import warm

pytestmark = pytest.mark.slow

COLUMNS = (
    "id UInt64, city LowCardinality(String), price Decimal(12, 2), note Nullable(String), tags Array(String)"
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("selects")
    file = directory / "clusters.xml"
    file.write_text(clusters_xml({"c": [list(shard) for shard in SHARDS]}))
    with blocking_cluster(directory / "cluster", cluster_file=file, launch=warm) as (local, call):
        cluster = Cluster(local, call)
        cluster.n1.query(
            f"CREATE TABLE events ON CLUSTER c ({COLUMNS}) "
            "ENGINE = ReplicatedMergeTree('/t/events/{c_shard}', '{replica}') ORDER BY id"
        )
        cluster.n1.query(
            f"CREATE TABLE events_d ON CLUSTER c ({COLUMNS}) ENGINE = Distributed(c, default, events, id)"
        )
        cluster.n1.query(f"CREATE TABLE one ({COLUMNS}) ENGINE = MergeTree ORDER BY id")
        cluster.n1.query(
            "INSERT INTO one SELECT number, ['Rome', 'Oslo', 'Bonn'][number % 3 + 1], number / 4, "
            "if(number % 5 = 0, NULL, toString(number % 7)), [toString(number % 2), 'x'] FROM numbers(2000)"
        )
        cluster.n1.query("INSERT INTO events_d SELECT * FROM one", distributed_foreground_insert="1")
        for node in cluster.nodes.values():
            node.query("SYSTEM SYNC REPLICA events")
        yield cluster


QUERIES = """
SELECT count(), sum(price), uniqExact(city), quantileExact(0.9)(id) FROM events_d
SELECT city, count() AS c, max(note) FROM events_d WHERE id > 9 GROUP BY city WITH TOTALS ORDER BY c, city
SELECT * FROM events_d ORDER BY id LIMIT 10 OFFSET 90
SELECT DISTINCT note FROM events_d ORDER BY note
SELECT a.id, b.city FROM events_d AS a JOIN events_d AS b ON a.id = b.id WHERE a.id < 50 ORDER BY a.id
SELECT count() FROM events_d WHERE id GLOBAL IN (SELECT id * 2 FROM events_d WHERE city = 'Rome')
SELECT t, count() FROM events_d ARRAY JOIN tags AS t GROUP BY t ORDER BY t
SELECT id, row_number() OVER (PARTITION BY city ORDER BY id) FROM events_d ORDER BY id LIMIT 20
SELECT id FROM events_d WHERE price > (SELECT avg(price) FROM events_d) ORDER BY id LIMIT 5
WITH c AS (SELECT city, count() AS n FROM default.events_d GROUP BY city) SELECT sum(n) FROM c
SELECT id FROM events_d ORDER BY note, id LIMIT 2 BY note
SELECT toHour(toDateTime(id)) h, sum(id) FROM events_d WHERE h=9 GROUP BY 1 SETTINGS session_timezone='Japan'
SELECT count() FROM events_d WHERE note IN (NULL, '1') SETTINGS transform_null_in = 1
SELECT DISTINCT toTypeName(city), toTypeName(id) FROM events_d SETTINGS data_type_default_nullable = 1
SELECT tags, avg(price) FROM events_d GROUP BY 1 ORDER BY 1 SETTINGS data_type_default_nullable = 1
SELECT * FROM (SELECT count() FROM events_d WHERE note IN (NULL, '1') SETTINGS transform_null_in = 1)
SELECT count(), max(id) FROM view(SELECT * FROM events_d WHERE id < 10)
SELECT _partition_id, count(), min(_row_exists) FROM events_d WHERE _part != '' GROUP BY 1
SELECT max(_part_granule_offset), min(_part_starting_offset) FROM events_d WHERE id < 100
SELECT id FROM events_d ORDER BY id LIMIT 3 SETTINGS enable_parallel_replicas = 1, max_parallel_replicas = 2
SELECT count() FROM events_d AS a LEFT JOIN events_d AS b ON a.id = b.id + 1 PREWHERE b.note IS NOT NULL
SELECT count(), sum(price) FROM events_d WITH TOTALS
SELECT count() FROM events_d WHERE id > 9000 WITH TOTALS HAVING count() > 1
SELECT city, count() AS c, max(id) FROM events_d WHERE note < unhex('ff00') GROUP BY city ORDER BY c, city
SELECT id FROM events_d WHERE toLowCardinality(1) AND id < toLowCardinality(3) ORDER BY id
SELECT max(toFixedString('a', 300)), max(toLowCardinality(5)), any([toLowCardinality(1)]) FROM events_d
SELECT sum(id::LowCardinality(UInt64)) FROM events_d SETTINGS allow_suspicious_low_cardinality_types = 1
SELECT max([toDateTime64(id, 3, 'UTC')]::String) FROM events_d SETTINGS date_time_output_format = 'iso'
SELECT max('{"a":1}'::JSON::String || id) FROM events_d SETTINGS output_format_json_quote_64bit_integers = 1
SELECT count() FROM (SELECT * FROM events_d) SETTINGS input_format_skip_unknown_fields = 0
SELECT count() FROM (SELECT * FROM events_d) SETTINGS compatibility = '22.3', http_retry_max_backoff_ms = 0
SELECT max(('{"a.b":' || id || '}')::JSON::String) FROM events_d SETTINGS json_type_escape_dots_in_keys = 1
SELECT max(throwIf(id > 9000, 'x', 7::Int16)) FROM events_d SETTINGS allow_custom_error_code_in_throwif = 1
SELECT max(city), max(note) FROM events_d SETTINGS input_format_native_decode_types_in_binary_format = 1
"""


@pytest.mark.parametrize(("sql", "host"), each_in_turn(QUERIES.strip().splitlines(), ["n1", "n4"]))
def test_every_node_answers_as_one_table_does(cluster: Cluster, sql: str, host: str) -> None:
    expected = cluster.n1.query(sql.replace("events_d", "one"))
    assert cluster.nodes[host].query(sql) == expected


def test_settings_of_final_and_of_conversions_hold_on_every_shard(cluster: Cluster) -> None:
    n1 = cluster.n1
    n1.query(
        "CREATE TABLE final ON CLUSTER c (k UInt64, p UInt8) ENGINE = "
        "ReplicatedReplacingMergeTree('/t/final/{c_shard}', '{replica}', p) PARTITION BY p ORDER BY k"
    )
    n1.query("CREATE TABLE final_d AS final ENGINE = Distributed(c, default, final, k)")
    n1.query("INSERT INTO final_d SELECT number % 4, number < 4 FROM numbers(8)", **FOREGROUND)
    cluster.sync("final")
    for sql, settings, usual, expected in (
        ("SELECT count() FROM final_d FINAL", "do_not_merge_across_partitions_select_final", "4", "8"),
        ("SELECT count() FROM final_d FINAL PREWHERE p = 0", "apply_prewhere_after_final", "4", "0"),
        (
            "SELECT max(toInt8(CAST(k, 'Enum8(\\'a\\' = 0)'))) FROM final_d",
            "check_conversion_from_numbers_to_enum = 0, max_threads",
            "691",
            "3",
        ),
    ):
        reply = n1.post(sql)
        assert str(reply.code or reply.text.strip()) == usual
        assert n1.query(f"{sql} SETTINGS {settings} = 1") == f"{expected}\n"


@pytest.mark.extended
def test_how_long_a_statement_may_be_is_asked_of_the_client_s_text(cluster: Cluster) -> None:
    """The node's own text is several times as long, and may be longer than what chDB reads by default."""
    short = "SELECT city, max(note) AS s, count() FROM events_d GROUP BY city ORDER BY city"
    expected = cluster.n1.query(short.replace("events_d", "one"))
    cluster.n1.query("SET max_query_size = 400", session_id="of_few_bytes")
    for limited in ({"max_query_size": "400"}, {"session_id": "of_few_bytes"}):
        assert cluster.n1.query(short, **limited) == expected
        assert cluster.n1.post(short + " " * 400, **limited).code == 62
    sums = ", ".join(f"sum(id + {n}) AS s{n}" for n in range(900))
    long = f"SELECT {sums} FROM events_d"
    assert cluster.n1.query(long, max_query_size=str(len(long))) == cluster.n1.query(
        long.replace("events_d", "one")
    )


def test_rows_before_a_limit_and_before_groups_are_those_of_all_shards(cluster: Cluster) -> None:
    for sql, setting, count in (
        ("SELECT id FROM events_d WHERE id >= 100 ORDER BY id LIMIT 3", "exact_rows_before_limit", 1900),
        ("SELECT city, count() FROM events_d GROUP BY city", "rows_before_aggregation", 2000),
    ):
        text = cluster.n1.query(sql, default_format="JSONCompact", **{setting: "1"})
        answer = json.loads(text)
        assert count in (answer.get("rows_before_limit_at_least"), answer.get("rows_before_aggregation")), (
            text
        )


def test_a_select_that_asks_for_the_query_cache_is_answered_from_the_shards(cluster: Cluster) -> None:
    name = cluster.tables()
    sql = f"SELECT count() FROM {name}_d WHERE k >= 0"
    for rows in (4, 8, 12):
        cluster.n1.query(f"INSERT INTO {name}_d SELECT {rows} + number, 'x' FROM numbers(4)", **FOREGROUND)
        cluster.sync(name)
        for text, settings in ((sql, {"use_query_cache": "1"}), (f"{sql} SETTINGS use_query_cache = 1", {})):
            assert cluster.n1.query(text, **settings) == f"{rows}\n"


@pytest.mark.parametrize("is_external", [True, False])
def test_shards_send_what_a_statement_needs_also_beside_temporary_tables(
    cluster: Cluster, is_external: bool
) -> None:
    def ask(sql: str, **settings: str) -> str:
        if not is_external:
            return cluster.n1.query(sql, session_id="beside", **settings)
        parts = [('name="query"', sql), ('name="ext"; filename="ext"', "7\n9\n")]
        body = "".join(f"--b\r\nContent-Disposition: form-data; {a}\r\n\r\n{b}\r\n" for a, b in parts)
        head = {"Content-Type": "multipart/form-data; boundary=b"}
        return cluster.n1.post(f"{body}--b--\r\n", head, ext_structure="i UInt64", **settings).text

    if not is_external:
        ask("CREATE TEMPORARY TABLE ext (i UInt64) AS SELECT arrayJoin([7, 9])")
    sql = "SELECT id, city FROM events_d JOIN ext ON id = i WHERE id > 8"
    assert ask(sql) == "9\tRome\n"
    text = ask(f"EXPLAIN SYNTAX {sql}")
    assert ("note%60" in text, "WHERE%20%28__table1.%60id%60%20%3E%208" in text) == (False, True), text
    unmerged = {"distributed_group_by_no_merge": "1"}
    sql = "SELECT count() FROM events_d WHERE id GLOBAL IN ext AND id + 1 > (SELECT min(i) FROM ext)"
    assert sorted(ask(sql, **unmerged).split()) == ["0", "2"]  # the shards answer in any order
    assert ask("SELECT id FROM events_d WHERE id = (SELECT max(i) FROM ext)", **unmerged) == "9\n"


@pytest.mark.parametrize(
    ("sql", "how"),
    few_first(
        [
            ("SELECT s, count() FROM cluster('c', {}) GROUP BY s", "killed"),
            ("SELECT s, count() FROM cluster('c', {}) GROUP BY s", "replaced"),
            ("SELECT s, count() FROM cluster('c', {}) GROUP BY s", "left alone"),
            ("SELECT max(s) FROM cluster('c', {}) WHERE s = 0", "killed"),
            ("SELECT max(s) FROM cluster('c', {}) WHERE s = 0", "left alone"),
            ("INSERT INTO FUNCTION null('s UInt8') SELECT max(s) FROM cluster('c', {})", "killed"),
        ],
        few=2,
    ),
)
def test_what_other_nodes_do_for_a_statement_ends_with_it(cluster: Cluster, sql: str, how: str) -> None:
    """Each shard would be at it for ten minutes, and answer at its end only."""
    slow = "view(SELECT sleepEachRow(1) AS s FROM numbers(600) SETTINGS max_block_size = 1, max_threads = 1)"
    query_id = f"{how} {len(sql)}"
    others = [cluster.nodes[host] for host in ("n3", "n4")]
    running = "query LIKE '%distributed depth 1%numbers(600)%' AND query NOT LIKE '%system.processes%'"

    def wait_for(count: int) -> None:
        deadline_s = time.monotonic() + 20
        sql = f"SELECT count() FROM system.processes WHERE {running}"
        while sum(int(node.query(sql)) for node in others) != count:
            assert time.monotonic() < deadline_s, count
            time.sleep(0.02)

    url = urllib.parse.urlparse(cluster.n1.url)
    connection = http.client.HTTPConnection(str(url.hostname), url.port, timeout=20)
    connection.request("POST", f"/?query_id={urllib.parse.quote(query_id)}", sql.format(slow))
    wait_for(1)
    if how == "replaced":
        cluster.n1.query("SELECT 1", query_id=query_id, replace_running_query="1")
    elif how == "killed":
        assert "finished" in cluster.n1.query(f"KILL QUERY WHERE query_id = '{query_id}' SYNC")
    if how != "left alone":
        assert connection.getresponse().headers["X-ClickHouse-Exception-Code"] == "394"
    connection.close()
    wait_for(0)


def test_the_shard_of_a_row_is_a_column(cluster: Cluster) -> None:
    sql = "SELECT _shard_num, count(), min(id) FROM events_d GROUP BY _shard_num ORDER BY _shard_num"
    assert cluster.n1.query(sql) == "1\t1000\t0\n2\t1000\t1\n"


def test_each_shard_answers_by_itself_where_that_is_asked_for(cluster: Cluster) -> None:
    sql = "SELECT count() FROM {} WHERE id IN (SELECT id + 1 FROM {})"
    for host in ("n1", "n3"):
        for table in ("events_d", "cluster(c, default, events)"):
            text, ask = sql.format(table, table), cluster.nodes[host].query
            assert ask(text) == "1999\n"
            assert ask(text, distributed_product_mode="local") == "0\n"
            assert sorted(ask(text, distributed_group_by_no_merge="1").split()) == ["1000", "999"]
            settings = {"distributed_group_by_no_merge": "2", "distributed_product_mode": "local"}
            assert ask(text, **settings) == "0\n0\n"


@pytest.mark.parametrize(
    ("sql", "of_all", "of_each"),
    [
        ("WITH x AS (SELECT id FROM events_d) SELECT count() FROM events_d WHERE id IN x", "2000", "2000"),
        (
            "WITH x AS (SELECT id + 1 AS i FROM events_d) SELECT count() FROM events_d WHERE id IN (x)",
            "1999",
            "0",
        ),
        (
            "WITH x AS (SELECT id+1 FROM {t}), y AS (SELECT 1 FROM {t} WHERE id IN x) SELECT count() FROM y",
            "1999",
            "0",
        ),
        (
            "WITH 1 AS n, x AS (SELECT id + n AS id FROM {t}) SELECT count() FROM {t} e JOIN x USING id",
            "1999",
            "0",
        ),
    ],
)
def test_each_shard_reads_its_own_table_in_a_common_table_expression(
    cluster: Cluster, sql: str, of_all: str, of_each: str
) -> None:
    """Rows went to shards by their id: the next one's is on the other shard."""
    for host in ("n1", "n4"):
        ask, sql = cluster.nodes[host].query, sql.format(t="events_d")
        assert ask(sql) == f"{of_all}\n"
        assert ask(sql, distributed_product_mode="local") == f"{of_each}\n"
    groups = "WITH x AS (SELECT city, count() AS n FROM events_d GROUP BY city) SELECT count(), sum(n) FROM x"
    for merging, rows in (("0", 3), ("1", 6), ("2", 6)):
        assert cluster.n1.query(groups, distributed_group_by_no_merge=merging) == f"{rows}\t2000\n"


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


KEPT = "(id UInt64, s UInt8) ENGINE = {} ORDER BY id"
BLOCKS = " SETTINGS enable_block_number_column = 1, enable_block_offset_column = 1"
SOURCES = ["events_d", "seen", "default.events_d", "merge('^events_d$')"]


@pytest.mark.parametrize("engine", few_first(["ReplicatedMergeTree('/t/kept', 'r')", "MergeTree"], few=1))
@pytest.mark.parametrize("source", few_first(SOURCES, few=2))
def test_mutations_read_distributed_tables_in_their_subqueries(
    cluster: Cluster, engine: str, source: str
) -> None:
    ask = cluster.n1.query
    ask("CREATE VIEW IF NOT EXISTS seen AS SELECT id FROM events_d")
    ask(f"CREATE TABLE kept {KEPT.format(engine)}{BLOCKS}")
    ask("INSERT INTO kept SELECT 1995 + number, 0 FROM numbers(10)")
    ids = f"(SELECT id FROM {source})"
    ask(f"ALTER TABLE kept UPDATE s = 1 WHERE id IN {ids}", mutations_sync="2")
    assert ask("SELECT count(), sum(s), max(id * s) FROM kept") == "10\t5\t1999\n"
    ask(f"DELETE FROM kept WHERE id NOT IN {ids} AND (id, s) IN (SELECT id + 2000 - 1995, 0 FROM {source})")
    assert (
        ask("SELECT groupArray(id) FROM (SELECT id FROM kept ORDER BY id)") == "[1995,1996,1997,1998,1999]\n"
    )
    count, top = (f"(SELECT {what} FROM {source})" for what in ("count() % 256", "max(id) - 2"))
    ask(f"UPDATE kept SET s = {count} WHERE id > {top}")
    assert ask("SELECT groupArray(s) FROM (SELECT s FROM kept ORDER BY id)") == "[1,1,1,208,208]\n"
    ask("DROP TABLE kept SYNC")


@pytest.mark.parametrize("engine", few_first(["MergeTree", "ReplicatedMergeTree('/t/kept2', 'r')"], few=1))
def test_mutations_ask_whether_rows_exist_and_take_tables_behind_in(cluster: Cluster, engine: str) -> None:
    """`NOT IN` deleted every row of the table, and said nothing."""
    ask = cluster.n1.query
    ask("CREATE TABLE IF NOT EXISTS ids_d (id UInt64) ENGINE = Distributed(c, default, events)")
    ask("CREATE VIEW IF NOT EXISTS of_two AS SELECT id, toUInt8(0) AS s FROM events_d WHERE id < 2")
    ask(f"CREATE TABLE kept {KEPT.format(engine)}{BLOCKS}")
    ask("INSERT INTO kept SELECT 1995 + number, 0 FROM numbers(10)")
    for condition in (
        "NOT EXISTS (SELECT id FROM events_d)",
        "(id - 1995, s) NOT IN of_two AND id IN ((SELECT id FROM ids_d))",
    ):
        ask(f"UPDATE kept SET s = 1 WHERE {condition}")
    assert ask("SELECT groupArray((id, s)) FROM (SELECT * FROM kept ORDER BY id LIMIT 6)") == (
        "[(1995,0),(1996,0),(1997,1),(1998,1),(1999,1),(2000,0)]\n"
    )
    ask("DELETE FROM kept WHERE id NOT IN (default.ids_d) AND EXISTS (SELECT 1 FROM events_d WHERE id = 7)")
    assert ask("SELECT count(), max(id) FROM kept") == "5\t1999\n"
    ask("DELETE FROM kept WHERE EXISTS ((SELECT 1 FROM of_two) INTERSECT (SELECT 2)) OR id IN (5, 6)")
    assert ask("SELECT count(), max(id) FROM kept") == "5\t1999\n"
    no_utf8 = b"DELETE FROM kept WHERE id = 1999 AND 'x\xff' NOT IN (SELECT note FROM events_d)"
    assert cluster.n1.post(no_utf8).status == 200
    assert ask("SELECT count(), max(id) FROM kept") == "4\t1998\n"
    assert refused(cluster.n1, "DELETE FROM kept WHERE id IN events_d").code != 0  # five columns
    ask("DROP TABLE kept SYNC")


def test_null_is_among_the_values_of_a_subquery_where_it_equals_itself(cluster: Cluster) -> None:
    ask = cluster.n1.query
    ask(f"CREATE TABLE noted (id UInt8, note Nullable(String)) ENGINE = MergeTree ORDER BY id{BLOCKS}")
    ask("INSERT INTO noted VALUES (1, '1'), (2, NULL), (3, 'none')")
    for source in ("(SELECT note FROM one)", "(SELECT note FROM events_d)"):
        for settings in ({}, {"transform_null_in": "1"}):
            ask(f"UPDATE noted SET note = concat(ifNull(note, ''), '1') WHERE note IN {source}", **settings)
            of_null = "'1'" if settings else "NULL"
            assert ask("SELECT groupArray(tuple(note)) FROM (SELECT note FROM noted ORDER BY id)") == (
                f"[('11'),({of_null}),('none')]\n"
            )
            ask("UPDATE noted SET note = '1' WHERE id = 1")
            ask("UPDATE noted SET note = NULL WHERE id = 2")
    ask("DROP TABLE noted SYNC")


@pytest.mark.extended
def test_long_values_of_a_subquery_are_for_tables_of_this_node_alone(cluster: Cluster) -> None:
    """Keeper keeps what replicas have to do."""
    ask = cluster.n1.query
    condition = (
        "toString(id) NOT IN (SELECT toString(id) || repeat(substring(city, 1, id > 99), {}) FROM events_d)"
    )
    for engine in ("MergeTree", "ReplicatedMergeTree('/t/kept3', 'r')"):
        ask(f"CREATE TABLE kept {KEPT.format(engine)}")
        ask("INSERT INTO kept SELECT number, 0 FROM numbers(200)")
        statement = f"ALTER TABLE kept DELETE WHERE {condition.format(900)}"
        if engine == "MergeTree":
            ask(statement, mutations_sync="2")
            assert ask("SELECT count(), max(id) FROM kept") == "100\t99\n"
            ask("DETACH TABLE kept")
            ask("ATTACH TABLE kept")
            assert (
                ask("SELECT max(length(command) > 1000000), min(is_done) FROM system.mutations") == "1\t1\n"
            )
        else:
            assert "900000 characters" in refused(cluster.n1, statement).text
            assert ask("SELECT count() FROM kept") == "200\n"
            ask(f"ALTER TABLE kept DELETE WHERE {condition.format(400)}", mutations_sync="2")
            assert ask("SELECT count(), max(id) FROM kept") == "100\t99\n"
            assert ask("SELECT max(length(command) > 700000), min(is_done) FROM system.mutations") == "1\t1\n"
        ask("DROP TABLE kept SYNC")


@pytest.mark.parametrize("engine", few_first(["ReplicatedMergeTree('/t/kept4', 'r')", "MergeTree"], few=1))
def test_what_an_alter_keeps_beside_a_mutation_gets_no_values(cluster: Cluster, engine: str) -> None:
    """They stayed in the definition, as of the moment of the ALTER."""
    ask, top = cluster.n1.query, "(SELECT id FROM events_d WHERE id > 1997)"
    ask(f"CREATE TABLE kept (id UInt64, ts DateTime) ENGINE = {engine} ORDER BY id")
    ask("INSERT INTO kept SELECT 1995 + number, now() FROM numbers(10)")
    for kept in (
        f"ADD COLUMN x UInt64 DEFAULT (SELECT max(id) FROM events_d), DELETE WHERE id IN {top}",
        f"ADD CONSTRAINT c CHECK id NOT IN {top}, DELETE WHERE id IN {top}",
        f"UPDATE ts = now() WHERE id IN {top}, MODIFY TTL ts DELETE WHERE id IN {top}",
    ):
        assert refused(cluster.n1, f"ALTER TABLE kept {kept}").code == 48
    beside = f"ALTER TABLE kept DELETE WHERE id IN {top}, ADD CONSTRAINT c CHECK id > 0"
    ask(beside, mutations_sync="2")
    assert ask("SELECT count() FROM kept") == "8\n"
    assert "1998" not in ask("SHOW CREATE TABLE kept")
    ask("DROP TABLE kept SYNC")


def test_mutations_of_what_is_here_do_not_change(cluster: Cluster) -> None:
    ask = cluster.n1.query
    ask(f"CREATE TABLE kept {KEPT.format('MergeTree')}{BLOCKS}")
    ask("INSERT INTO kept SELECT number, 0 FROM numbers(10)")
    of_here = "DELETE FROM kept WHERE id IN (SELECT id FROM one WHERE id < 3)"
    ask(of_here, allow_nondeterministic_mutations="1", mutations_sync="2")
    assert ask("SELECT count(), sum(s) FROM kept") == "7\t0\n"
    ask("DROP TABLE kept SYNC")


def test_a_mutation_on_cluster_reads_distributed_tables_on_every_host(cluster: Cluster) -> None:
    ask = cluster.n1.query
    ask(f"CREATE TABLE each ON CLUSTER c {KEPT.format('MergeTree')}")
    for node in cluster.nodes.values():
        node.query("INSERT INTO each SELECT 1995 + number, 0 FROM numbers(10)")
    ask("ALTER TABLE each ON CLUSTER c DELETE WHERE id NOT IN (SELECT id FROM events_d)", mutations_sync="2")
    for node in cluster.nodes.values():
        node.query("ALTER TABLE each UPDATE s = 1 WHERE 1", mutations_sync="2")  # waits for those before
        assert node.query("SELECT count(), max(id) FROM each") == "5\t1999\n"
    ask("DROP TABLE each ON CLUSTER c SYNC")


def test_unused_shards_are_skipped_by_the_sharding_key(cluster: Cluster) -> None:
    skip = {"optimize_skip_unused_shards": "1", "force_optimize_skip_unused_shards": "1"}
    sql = "SELECT groupUniqArray(_shard_num), count() FROM events_d WHERE id IN (3, 5, 7)"
    assert cluster.n1.query(sql, **skip) == "[2]\t3\n"
    function = sql.replace("events_d", "cluster(c, default, events, id)")
    assert cluster.n1.query(function, **skip) == "[2]\t3\n"
    of_all = sql.replace("events_d", "clusterAllReplicas(c, default, events, id)")
    assert cluster.n1.query(of_all, optimize_skip_unused_shards="1").endswith("\t6\n")
    reply = refused(cluster.n1, "SELECT count() FROM events_d WHERE price > 3", **skip)
    assert reply.code == 507


def test_settings_that_ask_for_another_answer_get_it(cluster: Cluster) -> None:
    sql = "SELECT count() FROM events_d WHERE id IN (SELECT id FROM events_d)"
    only_one = {"additional_table_filters": "{'events_d': 'id = 1'}"}
    assert refused(cluster.n1, sql, distributed_product_mode="deny").code == 288
    assert cluster.n1.query(sql, distributed_product_mode="local", **only_one) == "1\n"
    assert sorted(cluster.n1.query(sql, distributed_group_by_no_merge="1", **only_one).split()) == ["0", "1"]
    assert cluster.n1.query(sql, **only_one) == "1\n"
    assert cluster.n1.query(sql, distributed_product_mode="global") == "2000\n"


def test_the_rows_of_all_shards_count_for_the_limit_of_rows_to_read(cluster: Cluster) -> None:
    """A thousand on each of two shards. Each shard compared its own only."""
    most = {"max_rows_to_read": "1999"}
    summed = "SELECT sum(id) FROM events_d"
    grouped = "SELECT id % 2 AS k, count() FROM events_d GROUP BY k ORDER BY k"
    for node in (cluster.n1, cluster.nodes["n3"]):
        for sql in (
            summed,
            grouped,
            f"{summed} SETTINGS max_rows_to_read = 1999",
            f"SELECT * FROM ({summed})",
        ):
            for _ in range(2):  # the second one is remembered
                assert refused(node, sql, **({} if "SETTINGS" in sql else most)).code == 158
    for sql in (summed, grouped):
        expected = cluster.n1.query(sql)
        assert cluster.n1.query(sql, max_rows_to_read="2000") == expected
        assert cluster.n1.query(sql, max_rows_to_read_leaf="1000") == expected
        assert refused(cluster.n1, sql, max_rows_to_read_leaf="999").code == 158
    assert cluster.n1.query("SELECT count() FROM events_d", **most) == "2000\n"
    assert cluster.n1.query("SELECT count() FROM (SELECT id FROM events_d LIMIT 3)", **most) == "3\n"
    assert "url(" in cluster.n1.query(f"EXPLAIN SYNTAX {summed}", **most)
    assert cluster.n1.query(summed, **most, read_overflow_mode="break") != ""


def test_a_limit_of_a_leaf_holds_for_each_shard_and_not_for_the_rows_of_all(cluster: Cluster) -> None:
    """A thousand on each of two shards, and two thousand come together."""
    sql = "SELECT id FROM events_d ORDER BY id"
    expected = cluster.n1.query(sql)
    assert len(expected.splitlines()) == 2000
    for node in (cluster.n1, cluster.nodes["n3"]):
        assert node.query(sql, max_rows_to_read_leaf="1000") == expected
        assert node.query(f"{sql} SETTINGS max_rows_to_read_leaf = 1000") == expected
        assert refused(node, sql, max_rows_to_read_leaf="999").code == 158
        assert refused(node, f"{sql} SETTINGS max_rows_to_read_leaf = 999").code == 158


def test_shards_that_take_too_long_are_the_error_of_the_time_limit(cluster: Cluster) -> None:
    sql = "SELECT count(), sum(sleepEachRow(0.003)) FROM events_d"
    assert refused(cluster.n1, sql, max_execution_time="1").code == 159


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


def test_explain_shows_the_syntax_tree_of_what_was_written(cluster: Cluster) -> None:
    sql = "EXPLAIN AST SELECT city, count() FROM {} GROUP BY city"
    assert cluster.n1.query(sql.format("events_d")).replace("events_d", "one") == cluster.n1.query(
        sql.format("one")
    )


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


def test_dead_replicas_are_passed_over_and_dead_shards_are_an_error(cluster: Cluster) -> None:
    first = {"load_balancing": "in_order"}
    sql = "SELECT count() FROM events_d"
    failures = "SELECT errors_count > 0 FROM system.clusters WHERE cluster = 'c' AND host_name = '{}'"
    assert cluster.n1.query(sql, **first) == "2000\n"
    # 1. n3 was seen a moment ago, so that it is not asked again; 2. it dies; 3. the statement meets it dead.
    cluster.call(cluster.local.node("n3").kill9())
    for _ in range(5):
        assert cluster.n1.query(sql, **first) == "2000\n"
    assert cluster.n1.query(failures.format("n3")) == "1\n"
    cluster.call(cluster.local.node("n4").kill9())
    assert refused(cluster.n1, sql).code == 279
    assert cluster.n1.query(sql, skip_unavailable_shards="1") == "1000\n"
