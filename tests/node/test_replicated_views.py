"""What writes into replicated tables beside INSERT: views, Buffer, Alias; on two real nodes and ZooKeeper."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tests.few import each_in_turn
from tests.node.latch import Latch
from tests.node.replicated_pair import OWN_PATH, SMALL, Pair, eventually, refused

pytestmark = pytest.mark.slow

ANY_UUID = "00000000-0000-0000-0000-0000000000b1"


def test_materialized_views_see_each_row_once(pair: Pair) -> None:
    pair.on_cluster(
        f"CREATE TABLE d.src ON CLUSTER all (a UInt64) ENGINE = ReplicatedMergeTree({OWN_PATH}) ORDER BY a"
    )
    pair.on_cluster(
        "CREATE TABLE d.sums ON CLUSTER all (k UInt64, s UInt64) "
        f"ENGINE = ReplicatedSummingMergeTree({OWN_PATH}, s) ORDER BY k"
    )
    pair.on_cluster("CREATE TABLE d.plain ON CLUSTER all (k UInt64) ENGINE = MergeTree ORDER BY k")
    pair.on_cluster(
        "CREATE MATERIALIZED VIEW d.v1 ON CLUSTER all TO d.sums AS "
        "SELECT a % 10 AS k, sum(src.a) AS s FROM d.src GROUP BY k"
    )
    pair.on_cluster("CREATE MATERIALIZED VIEW d.v2 ON CLUSTER all TO d.plain AS SELECT k FROM d.sums")
    for _ in range(2):
        pair.n1.query("INSERT INTO d.src SELECT number + 1 FROM numbers(100)")
    pair.n1.query("INSERT INTO d.src SELECT number + 1 FROM numbers(10)")
    assert pair.n1.query("SELECT sum(s) FROM d.sums") == "5105\n"
    assert pair.n1.query("SELECT count() FROM d.plain") == "20\n"
    eventually(lambda: pair.n2.query("SELECT sum(s) FROM d.sums"), "5105\n")
    assert pair.n2.query("SELECT count() FROM d.plain") == "0\n"


def test_a_plain_tables_views_write_into_a_replicated_one_through_keeper(pair: Pair) -> None:
    pair.on_cluster(
        f"CREATE TABLE d.sink ON CLUSTER all (a UInt64) ENGINE = ReplicatedMergeTree({OWN_PATH}) ORDER BY a"
    )
    pair.n1.query("CREATE TABLE d.pipe (a UInt64) ENGINE = Null")
    pair.n1.query("CREATE TABLE d.kept (a UInt64) ENGINE = MergeTree ORDER BY a")
    pair.n1.query("CREATE MATERIALIZED VIEW d.pipe_v TO d.sink AS SELECT a FROM d.pipe")
    pair.n1.query("CREATE MATERIALIZED VIEW d.kept_v TO d.sink AS SELECT a + 100 AS a FROM d.kept")
    pair.n1.query("INSERT INTO d.pipe VALUES (1), (2)")
    pair.n1.query("INSERT INTO d.kept VALUES (3)")
    assert pair.n1.query("SELECT * FROM d.kept") == "3\n"
    for node in (pair.n1, pair.n2):
        eventually(partial(node.query, "SELECT arraySort(groupArray(a)) FROM d.sink"), "[1,2,103]\n")


def test_views_over_columns_that_a_setting_allowed_once_see_rows_without_it(pair: Pair) -> None:
    n1 = pair.n1
    n1.query(
        "CREATE TABLE d.wide (f FixedString(300), n Nested(a UInt8, b String)) ENGINE = MergeTree ORDER BY f",
        allow_suspicious_fixed_string_types="1",
        flatten_nested="0",
    )
    n1.query("CREATE TABLE d.wide_to (a UInt8) ENGINE = ReplicatedMergeTree('/wide', 'r') ORDER BY a")
    n1.query("CREATE MATERIALIZED VIEW d.wide_v TO d.wide_to AS SELECT n[1].1 AS a FROM d.wide")
    n1.query("INSERT INTO d.wide VALUES ('x', [(7, 'y')])")
    assert n1.query("SELECT a FROM d.wide_to") == "7\n"


def test_states_of_a_function_in_preview_are_written_merged_and_seen_by_views(pair: Pair) -> None:
    columns = "k UInt64, s AggregateFunction(timeSeriesLastTwoSamples, DateTime64(3, 'UTC'), Float64)"
    preview = {"allow_experimental_ts_to_grid_aggregate_function": "1"}
    states, kept, last = "d.preview", "d.preview_kept", "finalizeAggregation(s).2"
    for number, node in enumerate(pair.both):
        engine = f"ReplicatedAggregatingMergeTree('/tables/preview', '{number}')"
        node.query(f"CREATE TABLE {states} ({columns}) ENGINE = {engine} ORDER BY k", **preview)
    pair.n1.query(f"CREATE TABLE {kept} ({columns}) ENGINE = MergeTree ORDER BY k", **preview)
    pair.n1.query(f"CREATE MATERIALIZED VIEW d.preview_v TO {kept} AS SELECT * FROM {states}", **preview)
    made = "'timeSeriesLastTwoSamplesState', toDateTime64(number, 3, 'UTC'), toFloat64(number)"
    for first in (0, 2):
        select = f"SELECT number, initializeAggregation({made}) FROM numbers({first}, 2)"
        pair.n1.query(f"INSERT INTO {states} {select}", **preview)
    pair.n1.query(f"OPTIMIZE TABLE {states} FINAL")
    pair.n1.query(f"ALTER TABLE {states} ADD COLUMN x UInt8, DELETE WHERE k = 3", mutations_sync="2")
    for node in (pair.n1, pair.n2):
        read = f"SELECT groupArray({last}) FROM (SELECT s FROM {states} ORDER BY k)"
        eventually(partial(node.query, read, **preview), "[[0],[1],[2]]\n")
    assert pair.n1.query(f"SELECT {last} FROM {kept} ORDER BY k", **preview) == "[0]\n[1]\n[2]\n[3]\n"


def test_with_in_front_of_an_insert_takes_no_way_past_keeper(pair: Pair) -> None:
    table = pair.table()
    pair.n1.query(f"WITH 42 AS a INSERT INTO {table} SELECT a, 'x'")
    pair.n1.query(f"WITH 1 AS a INSERT INTO {table} VALUES (1, 'y')")
    pair.n1.query(f"WITH 2 AS a INSERT INTO {table} FORMAT TSV\n2\tit's\n")
    pair.n2.query(f"SYSTEM SYNC REPLICA {table}")
    found = [node.query(f"SELECT * FROM {table} ORDER BY ALL FORMAT CSV") for node in pair.both]
    assert found == ['1,"y"\n2,"it\'s"\n42,"x"\n'] * 2


def test_views_see_rows_before_they_are_merged(pair: Pair) -> None:
    """Also what is made of an EPHEMERAL column, and of an INSERT that comes twice only what is new."""
    n1 = pair.n1
    columns = "k UInt64, e UInt64 EPHEMERAL, m UInt64 MATERIALIZED e"
    key = "PARTITION BY k % 2 ORDER BY k"
    n1.query(f"CREATE TABLE d.sm ({columns}) ENGINE = ReplicatedSummingMergeTree('/sm', 'r') {key}")
    n1.query(f"CREATE TABLE d.pm ({columns}) ENGINE = SummingMergeTree {key}")
    n1.query("CREATE TABLE d.tm (c UInt64, s UInt64) ENGINE = ReplicatedMergeTree('/tm', 'r') ORDER BY s")
    for table in ("sm", "pm"):
        n1.query(
            f"CREATE MATERIALIZED VIEW d.v{table} TO d.tm AS SELECT count() AS c, sum(m) AS s FROM d.{table}"
        )
        n1.query(f"INSERT INTO d.{table} (k, e) VALUES (1, 10), (1, 20), (3, 5)")
        assert n1.query(f"SELECT k, m FROM d.{table} ORDER BY k") == "1\t30\n3\t5\n"
        assert n1.query("SELECT * FROM d.tm") == "3\t35\n"
        n1.query("TRUNCATE TABLE d.tm")
    n1.query(
        "INSERT INTO d.sm (k, e) SETTINGS optimize_on_insert = 1 "
        "VALUES (1, 10), (1, 20), (3, 5), (2, 7), (2, 8)"
    )
    assert n1.query("SELECT k, m FROM d.sm ORDER BY k") == "1\t30\n2\t15\n3\t5\n"
    assert n1.query("SELECT * FROM d.tm") == "2\t15\n"


def test_views_of_a_table_whose_parts_cannot_be_told_apart_refuse_the_rows(pair: Pair) -> None:
    n1 = pair.n1
    n1.query(
        "CREATE TABLE d.un (k UInt64, _part String) "
        "ENGINE = ReplicatedReplacingMergeTree('/un', 'r') ORDER BY k"
    )
    n1.query("CREATE TABLE d.tun (k UInt64) ENGINE = MergeTree ORDER BY k")
    n1.query("INSERT INTO d.un VALUES (1, 'x')")
    n1.query("CREATE MATERIALIZED VIEW d.vun TO d.tun AS SELECT k FROM d.un")
    refused(n1.post("INSERT INTO d.un VALUES (2, 'y')"), 48, "has a column _part")
    assert n1.query("SELECT * FROM d.un") == "1\tx\n"


def test_a_view_writes_by_the_names_of_its_select_and_not_by_those_that_it_declares(pair: Pair) -> None:
    n1 = pair.n1
    target = "ENGINE = ReplicatedMergeTree('/named', 'r') ORDER BY k"
    n1.query(f"CREATE TABLE d.named (k UInt64, v UInt64) {target}")
    n1.query("CREATE TABLE d.names (k UInt64, w UInt64) ENGINE = MergeTree ORDER BY k")
    declared = "(k UInt64, w UInt64)"
    n1.query(f"CREATE MATERIALIZED VIEW d.named_v TO d.named {declared} AS SELECT k, w AS v FROM d.names")
    n1.query("INSERT INTO d.names VALUES (1, 2)")
    n1.query("ALTER TABLE d.named ADD COLUMN w UInt64")
    n1.query("INSERT INTO d.names VALUES (3, 4)")
    n1.query("ALTER TABLE d.named_v MODIFY QUERY SELECT k + 1 AS v, w, 1 AS nowhere FROM d.names")
    n1.query("INSERT INTO d.names VALUES (5, 6)")
    assert n1.query("SELECT k, v, w FROM d.named ORDER BY v") == "1\t2\t0\n3\t4\t0\n0\t6\t6\n"


def test_views_read_columns_that_an_asterisk_leaves_out(pair: Pair) -> None:
    n1 = pair.n1
    columns = "k UInt64, m UInt64 MATERIALIZED k + 1, l UInt64 ALIAS m + 1"
    n1.query(f"CREATE TABLE d.co ({columns}) ENGINE = ReplicatedMergeTree('/co', 'r') ORDER BY k")
    n1.query("CREATE TABLE d.tco (k UInt64, m UInt64, l UInt64) ENGINE = MergeTree ORDER BY k")
    n1.query("CREATE MATERIALIZED VIEW d.vco TO d.tco AS SELECT *, m, co.l AS l FROM d.co")
    n1.query("INSERT INTO d.co VALUES (1)")
    assert n1.query("SELECT * FROM d.tco") == "1\t2\t3\n"


def test_a_view_follows_its_target_that_another_replica_alters(pair: Pair) -> None:
    target = "CREATE TABLE d.alt (k UInt64, v UInt64) ENGINE = ReplicatedMergeTree('/alt', '{}') ORDER BY k"
    pair.n1.query(target.format("r1"))
    n2 = pair.n2
    n2.query(target.format("r2"))
    n2.query("CREATE TABLE d.als (k UInt64) ENGINE = ReplicatedMergeTree('/als', 'r2') ORDER BY k")
    n2.query("CREATE MATERIALIZED VIEW d.alv TO d.alt AS SELECT k, k + 1 AS v FROM d.als")
    n2.query("INSERT INTO d.als VALUES (1)")
    # No statement on the second node tells it of what the log brings.
    pair.n1.query("ALTER TABLE d.alt DROP COLUMN v SETTINGS alter_sync = 2")
    n2.query("INSERT INTO d.als VALUES (2)")
    assert n2.query("SELECT * FROM d.alt ORDER BY k") == "1\n2\n"
    pair.n1.query("ALTER TABLE d.alt ADD COLUMN v UInt64 SETTINGS alter_sync = 2")
    n2.query("INSERT INTO d.als VALUES (3)")
    assert n2.query("SELECT * FROM d.alt ORDER BY k") == "1\t0\n2\t0\n3\t4\n"


def test_a_column_that_a_view_reads_is_not_dropped(pair: Pair) -> None:
    t = pair.table("k UInt64, a UInt64, b UInt64", rest="ORDER BY k")
    pair.n1.query(f"CREATE MATERIALIZED VIEW d.reads ENGINE = Memory AS SELECT * FROM {t} WHERE {t}.a > 0")
    refused(pair.n1.post(f"ALTER TABLE {t} ADD COLUMN c UInt8, DROP COLUMN a"), 524, "['reads']")
    pair.n1.query(f"ALTER TABLE {t} CLEAR COLUMN a")
    pair.n1.query("ALTER TABLE d.reads MODIFY QUERY SELECT k, a FROM default." + t)
    pair.n1.query(f"ALTER TABLE {t} DROP COLUMN b")
    pair.n1.query("DROP VIEW d.reads SYNC")


def test_a_view_on_one_node_does_not_hold_up_what_another_replica_drops(pair: Pair) -> None:
    t = pair.table("k UInt64, a UInt64", rest="ORDER BY k")
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 2)")
    pair.n1.query(f"CREATE MATERIALIZED VIEW d.only_n1 ENGINE = Memory AS SELECT k, a FROM {t}")
    pair.n2.query(f"ALTER TABLE {t} DROP COLUMN a SETTINGS alter_sync = 2")
    assert pair.rows(t) == "1\n"
    assert pair.n1.query("SELECT count() FROM d.only_n1") == "0\n"
    pair.n1.query("ALTER TABLE d.only_n1 MODIFY QUERY SELECT k, 7 AS a FROM default." + t)
    pair.n1.query(f"INSERT INTO {t} VALUES (3)")
    assert pair.n1.query("SELECT * FROM d.only_n1") == "3\t7\n"
    pair.n1.query("DROP VIEW d.only_n1 SYNC")


def test_a_primary_key_shorter_than_the_sorting_key_and_a_sample_key_are_no_matter_to_views(
    pair: Pair,
) -> None:
    """chDB copies these clauses into a table that is made like another one."""
    n1 = pair.n1
    for name in ("pk_source", "pk_target"):
        n1.query(
            f"CREATE TABLE d.{name} (k UInt64, h UInt32, t DateTime, v UInt64, w UInt64)"
            f" ENGINE = ReplicatedReplacingMergeTree('/{name}', 'r') PARTITION BY toYYYYMM(t)"
            " PRIMARY KEY (k, intHash32(h)) ORDER BY (k, intHash32(h), t) SAMPLE BY intHash32(h)"
        )
    n1.query("CREATE MATERIALIZED VIEW d.pk_seen ENGINE = Memory AS SELECT k, v FROM d.pk_target")
    n1.query(
        "CREATE MATERIALIZED VIEW d.pk_view TO d.pk_target AS SELECT * EXCEPT w, 0 AS w FROM d.pk_source"
    )
    n1.query("INSERT INTO d.pk_source VALUES (1, 2, 3, 4, 0), (1, 2, 3, 5, 0)")
    assert n1.query("SELECT k, v FROM d.pk_target") == "1\t5\n"
    assert n1.query("SELECT * FROM d.pk_seen ORDER BY v") == "1\t4\n1\t5\n"
    n1.query("ALTER TABLE d.pk_target DROP COLUMN w")
    refused(n1.post("ALTER TABLE d.pk_target DROP COLUMN v"), 524, "['pk_seen']")


def test_a_view_does_not_read_what_has_taken_its_tables_name(pair: Pair) -> None:
    """1. A view's source and another table change names. 2. Whichever of them rows are inserted into, the
    view gets none: the one is not what it reads, the other not its source. So it is with tables of chDB."""
    n1 = pair.n1
    for name, engine in (("r", "ReplicatedMergeTree('/{table}', 'r')"), ("p", "MergeTree")):
        for table in "abt":
            n1.query(f"CREATE TABLE d.{table}_{name} (a UInt64) ENGINE = {engine} ORDER BY a")
        n1.query(f"CREATE MATERIALIZED VIEW d.v_{name} TO d.t_{name} AS SELECT a FROM d.a_{name}")
        n1.query(f"INSERT INTO d.b_{name} VALUES (100)")
        n1.query(f"RENAME TABLE d.a_{name} TO d.w, d.b_{name} TO d.a_{name}, d.w TO d.b_{name}")
        n1.query(f"INSERT INTO d.b_{name} VALUES (1)")
        n1.query(f"INSERT INTO d.a_{name} VALUES (2)")
        assert n1.query(f"SELECT * FROM d.t_{name}") == ""


def test_a_failing_view_is_reported_and_the_rows_stay(pair: Pair) -> None:
    pair.n1.query("CREATE TABLE d.vs (a UInt64) ENGINE = ReplicatedMergeTree('/vs', 'r') ORDER BY a")
    pair.n1.query("CREATE TABLE d.vt (a UInt64) ENGINE = ReplicatedMergeTree('/vt', 'r') ORDER BY a")
    pair.n1.query("CREATE TABLE d.fail (x UInt8) ENGINE = Memory")
    pair.n1.query(
        "CREATE MATERIALIZED VIEW d.vv TO d.vt AS "
        "SELECT a + throwIf((SELECT count() FROM d.fail) = 0) AS a FROM d.vs"
    )
    refused(pair.n1.post("INSERT INTO d.vs VALUES (7)"), 395, "d.vv")
    assert pair.n1.query("SELECT (SELECT count() FROM d.vs), (SELECT count() FROM d.vt)") == "1\t0\n"
    pair.n1.query("INSERT INTO d.fail VALUES (1)")
    for _ in range(2):
        pair.n1.query("INSERT INTO d.vs VALUES (7)")
    assert pair.n1.query("SELECT (SELECT count() FROM d.vs), (SELECT count() FROM d.vt)") == "1\t1\n"
    pair.n1.query("TRUNCATE TABLE d.fail")
    pair.n1.query("INSERT INTO d.vs VALUES (8)", materialized_views_ignore_errors="1")
    assert pair.n1.query("SELECT (SELECT count() FROM d.vs), (SELECT count() FROM d.vt)") == "2\t1\n"


def test_a_view_whose_target_is_gone_fails_or_is_passed_over(pair: Pair) -> None:
    t = pair.table("k UInt64", rest="ORDER BY k")
    pair.n1.query("CREATE TABLE d.goes (k UInt64) ENGINE = Memory")
    pair.n1.query(f"CREATE MATERIALIZED VIEW d.to_goes TO d.goes AS SELECT k FROM {t}")
    pair.n1.query("DROP TABLE d.goes SYNC")
    refused(pair.n1.post(f"INSERT INTO {t} VALUES (1)"), 60, "Target table 'd.goes'")
    pair.n1.query(f"INSERT INTO {t} VALUES (2)", ignore_materialized_views_with_dropped_target_table="1")
    assert pair.n1.query(f"SELECT * FROM {t} ORDER BY k") == "1\n2\n"
    pair.n1.query("DROP VIEW d.to_goes SYNC")


BEFORE_THE_TURN = {
    "DROP VIEW d.second_v SYNC": "",
    "DETACH TABLE d.second_v": "",
    "ALTER TABLE d.second DROP COLUMN v": "1\n",
    "ALTER TABLE d.second RENAME COLUMN v TO w": "1\t0\n",
}
"""What changes a view, or its target, and what is then in the target."""


@pytest.mark.parametrize(
    ("change", "engine"), each_in_turn(BEFORE_THE_TURN, ["ReplicatedMergeTree('/turn/{}', 'r')", "MergeTree"])
)
def test_what_changes_before_a_views_turn_fails_no_insert(
    pair: Pair, latch: Latch, change: str, engine: str
) -> None:
    n1, t = pair.n1, pair.table("k UInt64, v UInt8", rest="ORDER BY k")
    for turn, rest in (("first", f"CROSS JOIN {latch.rows} AS waits"), ("second", "")):
        made = engine.format(f"{t}/{turn}")
        n1.query(f"CREATE TABLE d.{turn} (k UInt64, v UInt8) ENGINE = {made} ORDER BY k")
        select = f"SELECT {t}.k AS k, {t}.v AS v FROM {t} {rest}"
        n1.query(f"CREATE MATERIALIZED VIEW d.{turn}_v TO d.{turn} AS {select}")
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(n1.post, f"INSERT INTO {t} VALUES (1, 2)")
        # 1. The rows are committed, and the first view runs.
        assert latch.is_asked.wait(120)
        # 2. The second one is another by now, or is gone, and perhaps its target, too.
        n1.query(change)
        expected = BEFORE_THE_TURN[change]
        if not expected:
            n1.query("DROP TABLE d.second SYNC")
        latch.go.set()
        # 3. It has its turn.
        assert reply.result().text == ""
    assert n1.query(f"SELECT (SELECT count() FROM {t}), (SELECT count() FROM d.first)") == "1\t1\n"
    if expected:
        assert n1.query("SELECT * FROM d.second") == expected
    else:
        n1.post("ATTACH TABLE d.second_v")
    for name in ("first_v", "second_v", "first", "second"):
        n1.query(f"DROP TABLE IF EXISTS d.{name} SYNC")


@pytest.mark.parametrize(
    "sql",
    [
        "OPTIMIZE TABLE d.past_v",
        "ALTER TABLE d.past_v DELETE WHERE 1",
        "CREATE TABLE d.past_b AS d.past ENGINE = Buffer(d, past, 1, 1, 2, 1, 2, 1, 2)",
        "CREATE TABLE d.past_b AS d.past ENGINE = Buffer(d, concat('pa', 'st'), 1, 1, 2, 1, 2, 1, 2)",
        f"ATTACH TABLE d.past_b UUID '{ANY_UUID}' (a UInt64) ENGINE = Buffer(d, past, 1, 1, 2, 1, 2, 1, 2)",
        "CREATE TABLE d.past_b AS d.past_s ENGINE = Buffer(d, past_s, 1, 1, 2, 1, 2, 1, 2)",
        "CREATE TABLE d.past_a ENGINE = Alias('d', 'past')",
        "CREATE MATERIALIZED VIEW d.past_r REFRESH EVERY 1 DAY TO d.past AS SELECT 1 AS a",
        "CREATE MATERIALIZED VIEW d.past_r REFRESH EVERY 1 DAY APPEND TO d.past_s AS SELECT 1 AS a",
        "ALTER TABLE d.past_s MOVE PARTITION ID 'all' TO TABLE d.past",
    ],
)
def test_nothing_reaches_a_replicated_table_through_another_object(pair: Pair, sql: str) -> None:
    pair.n1.query(
        "CREATE TABLE IF NOT EXISTS d.past (a UInt64) ENGINE = ReplicatedMergeTree('/past', 'r') ORDER BY a"
    )
    pair.n1.query("CREATE TABLE IF NOT EXISTS d.past_s (a UInt64) ENGINE = MergeTree ORDER BY a")
    pair.n1.query("CREATE MATERIALIZED VIEW IF NOT EXISTS d.past_v TO d.past AS SELECT a FROM d.past_s")
    refused(pair.n1.post(sql), 48)


def test_a_refreshable_view_may_send_its_rows_to_this_node_as_any_client(pair: Pair) -> None:
    n1 = pair.n1
    n1.query("CREATE TABLE d.sent (a UInt64) ENGINE = ReplicatedMergeTree('/sent', 'r') ORDER BY a")
    address = f"{n1.url}/?query=INSERT%20INTO%20d.sent%20FORMAT%20Native"
    n1.query(f"CREATE TABLE d.sending (a UInt64) ENGINE = URL('{address}', 'Native')")
    n1.query(
        "CREATE MATERIALIZED VIEW d.sends REFRESH EVERY 1 YEAR APPEND TO d.sending EMPTY AS SELECT 5 AS a"
    )
    n1.query("SYSTEM REFRESH VIEW d.sends")
    n1.query("SYSTEM WAIT VIEW d.sends")
    assert n1.query("SELECT * FROM d.sent") == "5\n"
    assert pair.children("/sent/replicas/r/parts") == ["all_0_0_0"]
    n1.query("DROP TABLE d.sends")


def test_what_a_buffer_writes_into_does_not_become_a_replicated_table(pair: Pair) -> None:
    n1 = pair.n1
    n1.query("CREATE TABLE d.fed (a UInt64) ENGINE = MergeTree ORDER BY a")
    n1.query("CREATE TABLE d.fed_b AS d.fed ENGINE = Buffer(d, fed, 1, 1, 2, 1, 2, 1, 2)")
    n1.query("CREATE TABLE d.fed_r (a UInt64) ENGINE = ReplicatedMergeTree('/fed', 'r') ORDER BY a")
    refused(n1.post("EXCHANGE TABLES d.fed AND d.fed_r"), 48, "Buffer d.fed_b")
    refused(
        n1.post("CREATE MATERIALIZED VIEW d.fed_v TO d.fed_r AS SELECT a FROM d.fed"), 48, "Buffer d.fed_b"
    )
    n1.query("DROP TABLE d.fed SYNC")
    refused(n1.post(f"CREATE TABLE d.fed {SMALL}"), 48, "Buffer d.fed_b")
    n1.query("DROP TABLE d.fed_b")
    n1.query("RENAME TABLE d.fed_r TO d.fed")


def test_what_writes_into_a_replicated_table_meanwhile_is_not_attached(pair: Pair) -> None:
    """1. Feeders of a plain table are detached. 2. A replicated one takes its name. 3. They stay detached."""
    n1 = pair.n1
    n1.query("CREATE TABLE d.end (a Int64) ENGINE = MergeTree ORDER BY a")
    n1.query("CREATE TABLE d.from_null (a Int64) ENGINE = Null")
    feeders = {
        "at_buffer": "TABLE d.at_buffer (a Int64) ENGINE = Buffer(d, end, 1, 1, 1, 1, 1, 1, 1)",
        "at_alias": "TABLE d.at_alias ENGINE = Alias(d, end)",
        "at_refresh": "MATERIALIZED VIEW d.at_refresh REFRESH EVERY 1 YEAR TO d.end AS SELECT 1::Int64 AS a",
        "at_view": "MATERIALIZED VIEW d.at_view TO d.end AS SELECT a FROM d.from_null",
    }
    for name, text in feeders.items():
        n1.query(f"CREATE {text}")
        n1.query(f"DETACH TABLE d.{name}")
    n1.query("DROP TABLE d.end SYNC")
    n1.query("CREATE TABLE d.from_buffer (a Int64) ENGINE = Buffer(d, from_null, 1, 1, 1, 1, 1, 1, 1)")
    n1.query("CREATE TABLE d.end (a Int64) ENGINE = ReplicatedMergeTree('/at_end', 'n1') ORDER BY a")
    for name in feeders:
        refused(n1.post(f"ATTACH TABLE d.{name}"), 48, "d.end")
    assert n1.query("SELECT engine FROM system.tables WHERE name = 'end'") == "ReplicatedMergeTree\n"
    n1.query("DROP TABLE d.from_buffer SYNC")
    n1.query("ATTACH TABLE d.at_view")
    n1.query("DROP TABLE d.end SYNC")
    for name in feeders:
        if name != "at_view":
            n1.query(f"ATTACH TABLE d.{name}")
        n1.query(f"DROP TABLE d.{name}")


def test_an_insert_whose_rows_go_on_to_a_replicated_table_is_refused_where_that_cannot_be(pair: Pair) -> None:
    pair.n1.query("CREATE TABLE d.mem_t (a UInt64) ENGINE = ReplicatedMergeTree('/mem_t', 'r') ORDER BY a")
    pair.n1.query("CREATE TABLE d.mem (a UInt64) ENGINE = Memory")
    pair.n1.query("CREATE MATERIALIZED VIEW d.mem_v TO d.mem_t AS SELECT a FROM d.mem")
    refused(pair.n1.post("INSERT INTO d.mem VALUES (1)"), 48, "engine Memory")
    for table in ("mem", "mem_t"):
        assert pair.n1.query(f"SELECT count() FROM d.{table}") == "0\n"


def test_rows_for_a_view_go_to_its_replicated_target(pair: Pair) -> None:
    pair.n1.query("CREATE TABLE d.seen (a UInt64) ENGINE = ReplicatedMergeTree('/seen', 'r') ORDER BY a")
    pair.n1.query("CREATE TABLE d.seen_s (a UInt64) ENGINE = Null")
    pair.n1.query("CREATE MATERIALIZED VIEW d.seen_v TO d.seen AS SELECT a FROM d.seen_s")
    pair.n1.query("INSERT INTO d.seen_v VALUES (5)")
    pair.n1.query("TRUNCATE TABLE d.seen_v")  # as in ClickHouse: what it writes into is not its own
    assert pair.n1.query("SELECT * FROM d.seen") == "5\n"
    assert pair.children("/seen/replicas/r/parts") == ["all_0_0_0"]


def test_views_in_a_circle_end_with_an_error(pair: Pair) -> None:
    pair.n1.query("CREATE TABLE d.circle (a UInt64) ENGINE = ReplicatedMergeTree('/circle', 'r') ORDER BY a")
    pair.n1.query("CREATE MATERIALIZED VIEW d.circle_v TO d.circle AS SELECT a + 1 AS a FROM d.circle")
    refused(pair.n1.post("INSERT INTO d.circle VALUES (1)"), 306, "circle")
    assert pair.n1.query("SELECT count() FROM d.circle") == "2\n"
