"""SELECT over Distributed tables on real nodes: two shards of two replicas each, over HTTP."""

from __future__ import annotations

import http.client
import json
import time
import urllib.parse
from collections.abc import Iterator

import pytest

from tests.few import each_in_turn, few_first
from tests.node.distributed_cluster import FOREGROUND, Cluster, fill_events, refused, running_cluster

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("selects")) as cluster:
        fill_events(cluster)
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


def test_explain_shows_the_syntax_tree_of_what_was_written(cluster: Cluster) -> None:
    sql = "EXPLAIN AST SELECT city, count() FROM {} GROUP BY city"
    assert cluster.n1.query(sql.format("events_d")).replace("events_d", "one") == cluster.n1.query(
        sql.format("one")
    )


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
