"""Texts in which a Distributed table is easily overlooked, on real nodes: chDB cannot read it."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator

import pytest

from tests.node.distributed_cluster import FOREGROUND, Cluster, refused, running_cluster

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Twenty rows in `t1_d`: k from 0 to 19, v says whether it is even."""
    with running_cluster(tmp_path_factory.mktemp("odd")) as cluster:
        assert cluster.tables() == "t1"
        cluster.n1.query(
            "INSERT INTO t1_d SELECT number, if(number % 2 = 0, 'even', 'odd') FROM numbers(20)", **FOREGROUND
        )
        cluster.sync("t1")
        cluster.n1.query("CREATE TABLE here (n UInt64) ENGINE = Memory")
        yield cluster


@pytest.mark.parametrize(
    "rows",
    [
        "VALUES ((SELECT max(k) FROM t1_d) + 1), (7), (length('(SELECT 1 FROM t1_d)'))",
        "VALUES ((SELECT count() FROM t1_d WHERE v = 'even') * 2), (7), ((SELECT 20))",
        "FORMAT Values ((WITH x AS (SELECT k FROM t1_d) SELECT toUInt64(7) FROM x LIMIT 1)), (20), (20)",
        "FROM (FROM t1_d SELECT arrayJoin([20, 20, 7]) AS n LIMIT 3) SELECT n",
        "FROM t1_d SELECT arrayJoin([count(), 7, max(k) + 1]) AS from",
        "WITH t1_d AS (SELECT arrayJoin([7, 20, 20]) AS n) SELECT n FROM t1_d",
    ],
)
def test_the_rows_of_an_insert_may_come_from_a_distributed_table(cluster: Cluster, rows: str) -> None:
    n1 = cluster.n1
    n1.query("TRUNCATE TABLE here")
    n1.query(f"INSERT INTO here {rows}")
    assert n1.query("SELECT groupArray(n) FROM (SELECT n FROM here ORDER BY n)") == "[7,20,20]\n"


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO here VALUES",
        "INSERT INTO here (n) FORMAT Values",
        "INSERT INTO here SELECT n FROM input('n UInt64') WHERE n IN (SELECT k * 10 FROM t1_d) FORMAT CSV",
        "INSERT INTO here SELECT i.n FROM input('n UInt64') AS i JOIN t1_d AS t ON i.n = t.k * 10 FORMAT CSV",
        "INSERT INTO here SELECT n + (SELECT min(k) FROM t1_d) FROM input('n UInt64') WHERE n > 7 FORMAT CSV",
    ],
)
def test_rows_that_come_behind_an_insert_may_meet_a_distributed_table(
    cluster: Cluster, statement: str
) -> None:
    n1, rows = cluster.n1, "(20), ((SELECT max(k) FROM t1_d) + 111)"
    if "input" in statement:
        rows = "7\n20\n130\n5\n"
    n1.query("TRUNCATE TABLE here")
    n1.query(rows, query=statement)
    assert n1.query("SELECT groupArray(n) FROM (SELECT n FROM here ORDER BY n)") == "[20,130]\n"


def test_a_value_of_a_row_keeps_its_type_and_its_bytes(cluster: Cluster) -> None:
    n1, name = cluster.n1, cluster.tables("k UInt64, v String")
    quoted = "(SELECT concat('x\\'\\t', max(v), '\\n') FROM t1_d WHERE k = {})"
    n1.query(f"INSERT INTO {name}_d VALUES (3, {quoted.format(3)}), (4, {quoted.format(4)})", **FOREGROUND)
    cluster.sync(name)
    assert n1.query(f"SELECT k, v FROM {name}_d ORDER BY k") == "3\tx\\'\\todd\\n\n4\tx\\'\\teven\\n\n"
    columns = "d Nullable(Decimal(18, 4)), a Array(String), t Tuple(UInt8, Date), e String"
    n1.query(f"CREATE TABLE of_types ({columns}) ENGINE = Memory")
    n1.query(
        "INSERT INTO of_types VALUES ((SELECT toDecimal64('12345678901234.5678', 4) FROM t1_d LIMIT 1), "
        "(SELECT groupUniqArray(v) FROM t1_d WHERE k = 1), "
        "(SELECT (3, toDate('2024-02-29')) FROM t1_d LIMIT 1), "
        "'(SELECT k FROM t1_d)'), ((SELECT k FROM t1_d WHERE k = 99), ['y'], (0, '2024-01-01'), '')"
    )
    assert n1.query("SELECT * FROM of_types ORDER BY d NULLS LAST") == (
        "12345678901234.5678\t['odd']\t(3,'2024-02-29')\t(SELECT k FROM t1_d)\n"
        "\\N\t['y']\t(0,'2024-01-01')\t\n"
    )


def test_what_is_wrong_with_a_subquery_among_the_rows_is_an_error(cluster: Cluster) -> None:
    cluster.n1.query("TRUNCATE TABLE here")
    for subquery, code in (("SELECT k FROM t1_d", 125), ("SELECT missing FROM t1_d", 47)):
        assert refused(cluster.n1, f"INSERT INTO here VALUES (1), (({subquery}))").code == code
    assert cluster.n1.query("SELECT count() FROM here") == "0\n"


@pytest.mark.parametrize(
    "what",
    [
        "CREATE TABLE made ENGINE = Memory AS FROM t1_d SELECT count() AS n",
        "CREATE TABLE made (n UInt64) ENGINE = Memory AS FROM t1_d SELECT count() AS from WHERE k >= 0",
        "CREATE OR REPLACE TABLE made ENGINE = Memory AS FROM t1_d SELECT count() AS n",
        "CREATE TABLE made ON CLUSTER c ENGINE = Memory AS FROM t1_d SELECT count() AS n",
        "CREATE VIEW made AS FROM t1_d SELECT count() AS n, 1 AS from",
    ],
)
def test_from_may_come_first(cluster: Cluster, what: str) -> None:
    cluster.n1.query(what)
    assert cluster.n1.query("SELECT n FROM made") == "20\n"
    cluster.n1.query(f"DROP TABLE made {'ON CLUSTER c' if 'ON CLUSTER' in what else ''} SYNC")


@pytest.mark.parametrize(
    "sql",
    [
        "WITH 5 AS t1_d SELECT count() FROM t1_d",
        "WITH (SELECT 1) AS t1_d SELECT count() FROM numbers(20) WHERE number IN (SELECT k FROM t1_d)",
        "SELECT count() AS from FROM t1_d",
        "SELECT count() AS in, 1 AS join FROM t1_d",
        "SELECT toUInt64(max(as) + 1) AS as FROM (SELECT k AS as FROM t1_d)",
    ],
)
def test_a_name_of_an_expression_hides_no_table(cluster: Cluster, sql: str) -> None:
    assert cluster.n1.query(sql).split()[0] == "20"


def test_views_are_read_through_where_nothing_else_is_merged(cluster: Cluster) -> None:
    cluster.n1.query("CREATE VIEW merged_view AS SELECT k, v FROM t1_d WHERE k < 6")
    cluster.n1.query("CREATE TABLE over_views (k UInt64) ENGINE = Merge(default, '^merged_view$')")
    for source in ("merge('^merged_view$')", "over_views"):
        assert (
            cluster.n1.query(f"SELECT count(), sum(k), any(_table) FROM {source}") == "6\t15\tmerged_view\n"
        )
        join = f"SELECT sum(t.k) FROM {source} AS m JOIN t1_d AS t ON m.k = t.k WHERE t.v = 'even'"
        assert cluster.n1.query(join) == "6\n"


def test_each_of_the_statements_in_parallel_reads_the_shards(cluster: Cluster) -> None:
    make = "CREATE TABLE para{} ENGINE = Memory AS SELECT k FROM t1_d"
    cluster.n1.query(f"{make.format(1)} PARALLEL WITH {make.format(2)}")
    for number in (1, 2):
        assert cluster.n1.query(f"SELECT count() FROM para{number}") == "20\n"
    cluster.n1.query("DROP TABLE para1 PARALLEL WITH DROP TABLE para2")
    assert cluster.n1.query("EXISTS TABLE para1") + cluster.n1.query("EXISTS TABLE para2") == "0\n0\n"


@pytest.mark.parametrize(
    ("statement", "answer"),
    [
        ("SHOW TABLES WHERE name IN (SELECT concat('t1', if(v = 'odd', '', '_d')) FROM t1_d)", "t1\nt1_d\n"),
        ("SHOW TABLES FROM default LIKE 't1%' LIMIT (SELECT min(k) + 1 FROM t1_d)", "t1\n"),
        ("SHOW COLUMNS IN t1_d WHERE field NOT IN (SELECT 'v' FROM t1_d)", "k\tUInt64\tNO\t\t\\N\t\n"),
        ("SHOW COLUMNS FROM here WHERE 1 IN ks_d", "n\tUInt64\tNO\t\t\\N\t\n"),
        ("SHOW COLUMNS FROM here WHERE NOT EXISTS (SELECT 1 FROM t1_d WHERE k = 100) AND 30 IN ks_d", ""),
        ("KILL QUERY WHERE query_id = 'none' AND user NOT IN (SELECT v FROM t1_d) SYNC", ""),
    ],
)
def test_conditions_of_other_statements_read_the_shards(
    cluster: Cluster, statement: str, answer: str
) -> None:
    cluster.n1.query("CREATE TABLE IF NOT EXISTS ks_d (k UInt64) ENGINE = Distributed(c, default, t1)")
    assert cluster.n1.query(statement) == answer


def test_what_chdb_reads_by_itself_is_an_error_and_never_empty(cluster: Cluster) -> None:
    n1 = cluster.n1
    n1.query("CREATE TABLE source (k UInt64) ENGINE = Null")
    n1.query("CREATE TABLE there (k UInt64) ENGINE = Memory")
    view = "CREATE MATERIALIZED VIEW joined ENGINE = Memory AS"
    n1.query(f"{view} SELECT * FROM source WHERE k IN (SELECT k FROM there)")
    n1.query("RENAME TABLE there TO not_there, t1_d TO there")
    try:
        for is_restarted in (False, True):
            if is_restarted:
                cluster.call(cluster.local.node("n1").restart())
            for statement in (
                "SELECT * FROM loop(there)",
                "SELECT * FROM loop('default', 'there') LIMIT 1",
                "INSERT INTO source VALUES (1)",
            ):
                assert "A Distributed table cannot be read in this place" in refused(n1, statement).text
        assert n1.query("SELECT count() FROM joined") == "0\n"
        assert n1.query("SELECT count() FROM there") == "20\n"
        assert n1.query("SELECT count() FROM system.tables WHERE name LIKE 'a D%'") == "0\n"
    finally:
        n1.query("DROP TABLE joined")
        n1.query("RENAME TABLE there TO t1_d")


@pytest.mark.parametrize("table", ["t1_d", "t1", "here"])
@pytest.mark.parametrize(
    ("rest", "place"),
    [
        ("{} SELECT 1 FORM", "failed at position 8 ({}): {} SELECT 1 FORM. Expected INTO"),
        ("INTO {} SELECT 1, FROM WHERE )", "failed at position"),
        ("INTO {} VALUES (1", "after the value of column"),
    ],
)
def test_a_syntax_error_of_an_insert_is_about_the_text_of_the_user(
    cluster: Cluster, table: str, rest: str, place: str
) -> None:
    error = refused(cluster.n1, f"INSERT {rest.format(table)}")
    assert error.code == 62
    assert place.format(table, table) in error.text
    assert "_oncluster" not in error.text
    assert "formatQuery" not in error.text


def test_the_pipeline_of_an_insert_is_explained(cluster: Cluster) -> None:
    for insert in ("INTO t1_d SELECT k, v FROM t1_d", "INTO TABLE default.t1_d (v, k) SELECT v, k FROM t1_d"):
        assert "URL" in cluster.n1.query(f"EXPLAIN PIPELINE INSERT {insert}")
    assert "CountingTransform" in cluster.n1.query("EXPLAIN PIPELINE INSERT INTO t1_d VALUES (1, 'a')")
    assert refused(cluster.n1, "EXPLAIN PIPELINE INSERT INTO t1_d (nosuch) SELECT 1").code == 16
    assert cluster.n1.query("SELECT count() FROM t1_d") == "20\n"


@pytest.mark.parametrize("table", ["here", "t1_d", "t1"])
def test_rows_that_are_no_text_of_a_statement_any_more_have_no_such_subquery(
    cluster: Cluster, table: str
) -> None:
    """Rows that are longer than a statement may be are a stream, which nobody looks into."""
    n1 = cluster.n1
    before = n1.query(f"SELECT count() FROM {table}")
    rest = "" if table == "here" else ", 'x'"
    rows = ", ".join(f"({number}{rest})" for number in range(40_000))
    assert refused(n1, f"INSERT INTO {table} VALUES {rows}, ((SELECT max(k) FROM t1_d){rest})").code == 48
    assert n1.query(f"SELECT count() FROM {table}") == before


def test_a_function_that_would_read_an_empty_table_is_refused(cluster: Cluster) -> None:
    assert refused(cluster.n1, "CREATE FUNCTION of_all AS x -> x + (SELECT count() FROM t1_d)").code == 48
    cluster.n1.query("CREATE FUNCTION of_here AS x -> x + (SELECT count() FROM numbers(3))")
    assert cluster.n1.query("SELECT max(of_here(k)) FROM t1_d") == "22\n"


def test_a_constraint_that_would_read_an_empty_table_is_refused(cluster: Cluster) -> None:
    n1 = cluster.n1
    n1.query("CREATE TABLE held (k UInt64) ENGINE = MergeTree ORDER BY k")
    add = "ALTER TABLE held ADD CONSTRAINT known CHECK k IN (SELECT k FROM {})"
    assert refused(n1, add.format("t1_d")).code == 48
    n1.query("ALTER TABLE held ADD CONSTRAINT small CHECK k < 100")
    n1.query("INSERT INTO held VALUES (1)")
    n1.query("DROP TABLE held")


@pytest.mark.parametrize("read", ["t1_d", "seen_everywhere"])
@pytest.mark.parametrize("rest", ["", " AS SELECT k FROM t1_d"])
def test_a_new_table_with_such_a_constraint_is_refused(cluster: Cluster, read: str, rest: str) -> None:
    n1 = cluster.n1
    n1.query("CREATE VIEW seen_everywhere ON CLUSTER c AS SELECT k FROM t1_d")
    create = (
        "CREATE TABLE {} (k UInt64, CONSTRAINT known CHECK k IN (SELECT k FROM {}), INDEX i k TYPE minmax) "
    )
    engine = "ENGINE = MergeTree ORDER BY k" + rest
    try:
        assert refused(n1, create.format("held", read) + engine).code == 48
        assert refused(n1, create.format("held ON CLUSTER c", read) + engine).code == 48
        n1.query(create.format("held", "numbers(30)").replace("SELECT k", "SELECT number") + engine)
        assert "127.0.0" not in n1.query("SHOW CREATE TABLE held")
        n1.query("DROP TABLE held")
    finally:
        n1.query("DROP VIEW seen_everywhere ON CLUSTER c SYNC")


@pytest.mark.parametrize("engine", ["MergeTree", "ReplicatedMergeTree('/held_long/{c_shard}', '{replica}')"])
def test_what_merges_and_inserts_would_read_of_an_empty_table_is_refused(
    cluster: Cluster, engine: str
) -> None:
    """It was taken, and no INSERT into the table succeeded any more."""
    n1 = cluster.n1
    ttl = "TTL at + INTERVAL 1 DAY DELETE WHERE k IN (SELECT k FROM {})"
    projection = "PROJECTION p (SELECT k WHERE k IN (SELECT k FROM {}) ORDER BY k)"
    try:
        for where in ("held_long", "held_long ON CLUSTER c"):
            create = f"CREATE TABLE {where} (k UInt64, at DateTime%s) ENGINE = {engine} ORDER BY k %s"
            assert refused(n1, create % ("", ttl.replace("{}", "t1_d"))).code == 48
            assert refused(n1, create % (", " + projection.replace("{}", "t1_d"), "")).code == 48
        n1.query(
            create.replace(" ON CLUSTER c", "")
            % ("", "TTL at + INTERVAL 1 DAY SETTINGS index_granularity = 8")
        )
        for where in ("held_long", "held_long ON CLUSTER c"):
            for change in (f"MODIFY {ttl}", f"ADD {projection}"):
                assert refused(n1, f"ALTER TABLE {where} {change}".replace("{}", "t1_d")).code == 48
        n1.query("INSERT INTO held_long SELECT k, now() FROM t1_d")
        assert n1.query("SELECT count() FROM held_long") == "20\n"
    finally:
        n1.query("DROP TABLE IF EXISTS held_long ON CLUSTER c SYNC")


@pytest.mark.parametrize(
    "setting",
    [
        "extremes = 1",
        "limit = 1",
        "offset = 1",
        "additional_result_filter = '0'",
        "output_format_tsv_crlf_end_of_line = 1",
    ],
)
def test_what_a_session_wants_of_answers_is_not_made_of_the_nodes_own_questions(
    cluster: Cluster, setting: str
) -> None:
    n1, session = cluster.n1, {"session_id": setting}
    n1.query("TRUNCATE TABLE here")
    n1.query(f"SET {setting}", **session)
    n1.query("INSERT INTO here VALUES ((SELECT max(k) FROM t1_d)), (1)", **session)
    n1.query("ALTER TABLE here DELETE WHERE n IN (SELECT k FROM t1_d WHERE k < 5)", **session)
    assert n1.query("SELECT groupArray(n) FROM here") == "[19]\n"
    if "limit" in setting or "extremes" in setting or "crlf" in setting:
        assert n1.query("SELECT sum(number) FROM cluster('' || 'c', numbers(3))", **session)[0] == "6"


ALIASES = (
    ("SELECT k, next, label FROM t1_a WHERE next > 19 ORDER BY k", "19\t20\todd 20\n"),
    ("SELECT label, sum(next) FROM t1_a GROUP BY label HAVING sum(next) = 7", "even 7\t7\n"),
    ("SELECT max(COLUMNS('^next')), any(t1_a.more) FROM t1_a PREWHERE k = 3 WHERE next = 4", "4\t[5,3]\n"),
    ("SELECT a.next, b.k FROM t1_a AS a JOIN t1_a AS b ON a.k = b.next WHERE b.next = 6", "7\t5\n"),
    ("SELECT count() FROM t1_a WHERE next IN (SELECT next + 18 FROM t1_a)", "2\n"),
    (
        "SELECT next FROM t1_a WHERE k IN (4, 5) ORDER BY 1 SETTINGS distributed_group_by_no_merge = 2",
        "5\n6\n",
    ),
    ("SELECT sum(next) FROM t1_a SETTINGS additional_table_filters = {'t1_a': 'next < 4'}", "6\n"),
    ("SELECT n.x, n.y, `n.z` FROM t1_a WHERE k = 7", "[7]\t[8]\t[9]\n"),
    ("SELECT *, n.z FROM t1_a ARRAY JOIN n WHERE k = 7", "7\todd\t9\n"),
)


def test_an_alias_column_is_the_distributed_tables_own(cluster: Cluster) -> None:
    """Shards were asked for columns that they had not."""
    cluster.n1.query(
        "CREATE TABLE t1_a (k UInt64, v String, next UInt32 ALIAS k + 1, "
        "label String ALIAS concat(v, ' ', next), "
        "more Array(UInt64) ALIAS arrayMap(next -> next + k, [2, 0]), `n.x` Array(UInt64) ALIAS [k], "
        "`n.y` Array(UInt64) ALIAS [n.x[1] + 1], `n.z` Array(UInt64) ALIAS [n.y[1] + 1]) "
        "ENGINE = Distributed(c, default, t1, k)"
    )
    try:
        for sql, answer in ALIASES:
            assert cluster.n1.query(sql) == answer, sql
        cluster.n1.query("ALTER TABLE t1_a MODIFY COLUMN next UInt32 ALIAS k + 100")
        assert cluster.n1.query("SELECT max(label) FROM t1_a") == "odd 119\n"
    finally:
        cluster.n1.query("DROP TABLE t1_a")


def test_a_dictionary_over_a_distributed_table_asks_the_node(cluster: Cluster) -> None:
    n1 = cluster.n1
    create = "CREATE DICTIONARY by_k (k UInt64, v String) PRIMARY KEY k SOURCE({}) LAYOUT(FLAT()) LIFETIME(0)"
    for read in ("SELECT k, v FROM t1_d", "SELECT k, v FROM cluster(c, default, t1)"):
        assert refused(n1, create.format(f"CLICKHOUSE(QUERY '{read}')")).code == 48
    query = urllib.parse.quote("SELECT k, v FROM t1_d FORMAT Native")
    n1.query(create.format(f"HTTP(url '{n1.url}/?query={query}' format 'Native')"))
    assert (
        n1.query("SELECT groupArray(dictGet('by_k', 'v', toUInt64(arrayJoin([3, 8]))))") == "['odd','even']\n"
    )
    n1.query("DROP DICTIONARY by_k")


def test_what_keeps_overlooked_tables_from_being_empty_is_not_listed_and_cannot_be_dropped(
    cluster: Cluster,
) -> None:
    for show in (
        "SHOW TABLES FROM system",
        "SHOW FULL TABLES FROM `system`",
        "SELECT name FROM system.tables",
    ):
        assert "a Distributed" not in cluster.n1.query(show)
        assert "distributed_ddl_queue" in cluster.n1.query(show)
    assert "a Distributed" not in cluster.n1.query("SHOW TABLES LIKE '%istributed%'", database="system")
    for change in ("DROP VIEW", "DROP TABLE", "DETACH VIEW", "TRUNCATE TABLE"):
        assert refused(cluster.n1, f'{change} system."a Distributed table"').code == 497
    assert refused(cluster.n1, 'RENAME TABLE system."a Distributed table" TO default.away').code == 497
    assert refused(cluster.n1, "SELECT count() FROM loop(t1_d) LIMIT 1").code == 48


@pytest.mark.parametrize(
    ("sql", "quoted"),
    [
        ("SELECT nope FROM t1_d", "In scope SELECT nope FROM t1_d. "),
        ("SELECT sum(k), v FROM t1_d", "In query SELECT sum(k), v FROM t1_d. "),
        (
            "INSERT INTO here SELECT a.nope FROM t1_d AS a JOIN t1_d AS b USING k",
            "FROM a INNER JOIN b USING (k)",
        ),
    ],
)
def test_an_error_quotes_what_the_user_wrote(cluster: Cluster, sql: str, quoted: str) -> None:
    text = refused(cluster.n1, sql).text
    assert quoted in text
    assert "http" not in text


def test_a_temporary_view_is_read_in_its_session(cluster: Cluster) -> None:
    n1, session = cluster.n1, {"session_id": "with a view"}
    n1.query("CREATE TEMPORARY VIEW mine AS SELECT k, v FROM t1_d WHERE k < 7", **session)
    n1.query("CREATE TEMPORARY VIEW evens AS SELECT x.k AS n FROM mine AS x WHERE x.v = 'even'", **session)
    joined = "SELECT count(), sum(mine.k) FROM mine JOIN evens ON mine.k = evens.n JOIN t1_d USING k"
    for sql in (joined, joined.replace("mine", "m").replace("m JOIN", "mine AS m JOIN")):
        assert n1.query(sql, **session) == "4\t12\n"
    n1.query("INSERT INTO here SELECT n * 100 FROM evens", **session)
    assert n1.query("SELECT count() FROM here WHERE n > 100") == "3\n"
    n1.query("TRUNCATE TABLE here")
    assert refused(n1, "SELECT * FROM mine").code == 60


def test_a_session_that_was_set_to_readonly_reads_distributed_tables(cluster: Cluster) -> None:
    n1, session = cluster.n1, {"session_id": "reads on"}
    n1.query("SET readonly = 1", **session)
    for sql in ("SELECT v, count() FROM t1_d GROUP BY v ORDER BY v", "SELECT sum(k) FROM t1_d WHERE k > 3"):
        assert n1.query(sql, **session) == n1.query(sql)
    assert refused(n1, "INSERT INTO t1_d VALUES (1, 'no')", **session).code == 164


def test_a_view_with_prewhere_and_virtual_columns_is_made_on_every_host(cluster: Cluster) -> None:
    select = "SELECT k, _shard_num AS s FROM default.t1_d PREWHERE k < 7 WHERE v = 'even'"
    n1, create = cluster.n1, f"VIEW {{}} AS {select}"
    n1.query(f"CREATE {create.format('early ON CLUSTER c')}")
    n1.query("CREATE DATABASE rep ON CLUSTER c ENGINE = Replicated('/rep', 's', '{replica}')")
    n1.query(f"CREATE {create.format('rep.early')}")
    for view in ("early", "rep.early"):
        assert cluster.nodes["n3"].query(f"SELECT sum(k), max(s) < 3, min(s) > 0 FROM {view}") == "12\t1\t1\n"
    n1.query("DROP DATABASE rep ON CLUSTER c SYNC")
