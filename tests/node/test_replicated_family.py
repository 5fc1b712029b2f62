"""Every engine of the replicated family, TTL, and sequential reads: on two real nodes and ZooKeeper."""

from __future__ import annotations

import pytest

from tests.few import few_first
from tests.node.http_client import HttpAt, Reply
from tests.node.replicated_pair import Pair, error, wait_for

pytestmark = pytest.mark.slow


# -- the family ----------------------------------------------------------------------------------------------

STATES = "SELECT {k}, sumState(toUInt64({v})), uniqState('{v}'), {v}"

FAMILY = {
    "plain": ("MergeTree", "", "k UInt64, v UInt64", ["(1, 1), (2, 2)", "(1, 3)"], "1\t1\n1\t3\n2\t2\n"),
    "replacing": (
        "ReplacingMergeTree",
        "",
        "k UInt64, v UInt64",
        ["(1, 1), (2, 2)", "(1, 3)"],
        "1\t3\n2\t2\n",
    ),
    "replacing with version": (
        "ReplacingMergeTree",
        "n",
        "k UInt64, n UInt8, v String",
        ["(1, 9, 'kept')", "(1, 3, 'older'), (2, 1, 'b')"],
        "1\t9\tkept\n2\t1\tb\n",
    ),
    "replacing with deleted": (
        "ReplacingMergeTree",
        "n, d",
        "k UInt64, n UInt8, d UInt8, v String",
        ["(1, 1, 0, 'a'), (2, 1, 0, 'b')", "(1, 2, 1, 'a')"],
        "1\t2\t1\ta\n2\t1\t0\tb\n",
    ),
    "summing": (
        "SummingMergeTree",
        "",
        "k UInt64, a UInt32, b Float64",
        ["(1, 2, 0.5)", "(1, 3, 0.25)"],
        "1\t5\t0.75\n",
    ),
    "summing some": (
        "SummingMergeTree",
        "(a, b)",
        "k UInt64, a UInt32, b UInt32, c UInt32",
        ["(1, 2, 3, 7)", "(1, 3, 4, 8)"],
        "1\t5\t7\t7\n",
    ),
    "aggregating": (
        "AggregatingMergeTree",
        "",
        (
            "k UInt64, s AggregateFunction(sum, UInt64), u AggregateFunction(uniq, String),"
            " m SimpleAggregateFunction(max, UInt8)"
        ),
        [STATES.format(k=1, v=2), STATES.format(k=1, v=5), STATES.format(k=2, v=1)],
        "",
    ),
    "collapsing": (
        "CollapsingMergeTree",
        "sign",
        "k UInt64, v UInt64, sign Int8",
        ["(1, 1, 1), (2, 2, 1)", "(1, 1, -1), (1, 5, 1)"],
        "1\t5\t1\n2\t2\t1\n",
    ),
    "versioned collapsing": (
        "VersionedCollapsingMergeTree",
        "sign, version",
        "k UInt64, v UInt64, sign Int8, version UInt8",
        ["(1, 1, -1, 1), (1, 5, 1, 2)", "(1, 1, 1, 1), (2, 2, 1, 1)"],
        "1\t5\t1\t2\n2\t2\t1\t1\n",
    ),
    "coalescing": (
        "CoalescingMergeTree",
        "",
        "k UInt64, a Nullable(UInt8), b Nullable(String)",
        ["(1, 1, NULL)", "(1, NULL, 'x')"],
        "1\t1\tx\n",
    ),
}


@pytest.mark.parametrize("member", few_first(FAMILY, few=3))
def test_every_engine_merges_to_the_same_bytes_on_both_replicas(pair: Pair, member: str) -> None:
    engine, arguments, columns, inserts, merged = FAMILY[member]
    t = pair.table(columns, engine=f"Replicated{engine}", arguments=arguments, rest="ORDER BY k")
    for rows in inserts:
        values = rows if rows.startswith("SELECT") else f"VALUES {rows}"
        pair.n1.query(f"INSERT INTO {t} {values}")
    pair.synced(t)
    pair.n2.query(f"OPTIMIZE TABLE {t} FINAL SETTINGS alter_sync = 2")
    pair.synced(t)
    pair.same(f"SELECT name, rows, hash_of_all_files FROM system.parts WHERE table = '{t}'")
    if merged:
        assert pair.same(f"SELECT * FROM {t} ORDER BY ALL") == merged
    else:
        totals = f"SELECT k, sumMerge(s), uniqMerge(u), max(m) FROM {t} GROUP BY k ORDER BY k"
        assert pair.same(totals) == "1\t7\t2\t5\n2\t1\t1\t1\n"
    names = pair.same(f"SELECT name FROM system.parts WHERE table = '{t}'")
    level = 1 if engine == "MergeTree" else 2  # rows of equal key were merged in each insert
    assert names == f"all_0_{len(inserts) - 1}_{level}\n"
    shown = f"SELECT engine, engine_full FROM system.tables WHERE name = '{t}'"
    name, full = pair.n1.query(shown).rstrip("\n").split("\t")
    assert name == f"Replicated{engine}"
    more = f", {arguments}" if arguments else ""
    assert full.startswith(f"Replicated{engine}(\\'/tables/{t}\\', \\'r1\\'{more})")


def test_the_old_syntax_of_engines_is_refused_with_the_reason(pair: Pair) -> None:
    sql = (
        "CREATE TABLE old_style (k UInt64, d Date) "
        "ENGINE = ReplicatedMergeTree('/tables/old_style', 'r1', d, (k), 8192)"
    )
    reply = pair.n1.post(sql)
    assert error(reply) == 36
    assert "deprecated" in reply.text
    reply = pair.n1.post(sql, allow_deprecated_syntax_for_merge_tree="1")
    assert error(reply) == 48
    assert "ORDER BY" in reply.text
    assert pair.n1.query("EXISTS TABLE old_style") == "0\n"
    assert (
        pair.n1.query("SELECT count() FROM system.zookeeper WHERE path = '/tables' AND name = 'old_style'")
        == "0\n"
    )


GRAPHITE = (
    "(Path String, Time DateTime('UTC'), Value Float64, Version UInt32) ENGINE = "
    "ReplicatedGraphiteMergeTree('/tables/graphite', '{replica}', 'ROLLUP') ORDER BY (Path, Time)"
)


def test_graphite_rolls_up_on_all_replicas_by_the_rules_of_the_configuration(pair: Pair) -> None:
    for node, replica in ((pair.n1, "r1"), (pair.n2, "r2")):
        definition = GRAPHITE.replace("{replica}", replica).replace("ROLLUP", "graphite_rollup")
        node.query(f"CREATE TABLE graphite {definition}")
    # Rows that an insert has rolled up already would be two versions of one point for the merge.
    for values in ("('a', '2020-01-01 00:00:01', 1, 1), ('b', 1577836801, 5, 1)", "('a', 1577836982, 4, 1)"):
        pair.n1.query(f"INSERT INTO graphite VALUES {values}", optimize_on_insert="0")
    pair.n1.query("OPTIMIZE TABLE graphite FINAL")
    # `avg` over 300 seconds; the rules' alias for it is written as what it is.
    expected = "a\t2020-01-01 00:00:00\t2.5\nb\t2020-01-01 00:00:00\t5\n"
    for node in (pair.n1, pair.n2):
        node.query("SYSTEM SYNC REPLICA graphite")
        assert node.query("SELECT Path, Time, Value FROM graphite ORDER BY Path") == expected
    assert pair.n1.query("SELECT DISTINCT _part FROM graphite") == "all_0_1_1\n"
    hashes = "SELECT DISTINCT hash_of_all_files FROM system.parts WHERE table = 'graphite' AND active"
    assert pair.n1.query(hashes) == pair.n2.query(hashes)


def test_graphite_rules_that_nobody_configured_or_that_differ_are_refused(pair: Pair) -> None:
    missing = GRAPHITE.replace("'/tables/graphite'", "'/tables/graphite3'").replace("ROLLUP", "absent")
    reply = pair.n1.post(f"CREATE TABLE graphite3 {missing.replace('{replica}', 'r1')}")
    assert error(reply) == 139
    other = GRAPHITE.replace("ROLLUP", "other_rollup")
    reply = pair.n1.post(f"CREATE TABLE graphite4 {other.replace('{replica}', 'r9')}")
    assert error(reply) == 342
    assert "graphite" in reply.text
    assert pair.n1.query("EXISTS TABLE graphite3") == pair.n1.query("EXISTS TABLE graphite4") == "0\n"


# -- sequential reads ----------------------------------------------------------------------------------------

SEQUENTIAL = {"select_sequential_consistency": "1"}


def quorum_insert(node: HttpAt, table: str, values: str, timeout_ms: int = 60_000) -> Reply:
    return node.post(
        f"INSERT INTO {table} VALUES {values}",
        insert_quorum="2",
        insert_quorum_parallel="0",
        insert_quorum_timeout=str(timeout_ms),
    )


def test_rows_above_the_last_quorum_are_not_read(pair: Pair) -> None:
    t = pair.table("k UInt64, v String", rest="ORDER BY k")
    assert quorum_insert(pair.n1, t, "(1, 'confirmed')").status == 200
    pair.n2.query(f"SYSTEM STOP FETCHES {t}")
    assert error(quorum_insert(pair.n1, t, "(2, 'not yet')", timeout_ms=500)) == 319
    reading = f"SELECT * FROM {t} ORDER BY k"
    assert pair.n1.query(reading) == "1\tconfirmed\n2\tnot yet\n"
    for node in pair.both:
        assert node.query(reading, **SEQUENTIAL) == "1\tconfirmed\n"
        assert node.query(f"{reading} SETTINGS select_sequential_consistency = 1") == "1\tconfirmed\n"
        assert node.query(f"SELECT count() FROM {t}", **SEQUENTIAL) == "1\n"
        joined = f"SELECT count() FROM {t} AS a JOIN default.{t} AS b USING k"
        assert node.query(joined, **SEQUENTIAL) == "1\n"
        assert node.query(f"WITH x AS (SELECT * FROM {t}) SELECT max(k) FROM x", **SEQUENTIAL) == "1\n"
    pair.n1.query(f"CREATE VIEW {t}_v AS SELECT * FROM {t}")
    pair.n1.query(f"CREATE VIEW {t}_vv AS SELECT * FROM {t}_v WHERE k < 9")
    pair.n1.query(f"CREATE TABLE {t}_src (k UInt64, v String) ENGINE = Null")
    pair.n1.query(f"CREATE MATERIALIZED VIEW {t}_mv TO {t} AS SELECT k, v FROM {t}_src")
    pair.n1.query(f"CREATE VIEW {t}_of_mv AS SELECT * FROM {t}_mv")
    pair.n1.query(f"CREATE TABLE {t}_m ENGINE = Merge(default, '^{t}$')")
    pair.n1.query(f"CREATE TABLE {t}_mm ENGINE = Merge(default, '^{t}_m$')")
    pair.n1.query(f"CREATE VIEW {t}_of_m AS SELECT * FROM {t}_m")
    pair.n1.query(f"CREATE VIEW {t}_of_merge AS SELECT * FROM merge('default', '^{t}$')")
    pair.n1.query(f"CREATE VIEW {t}_param AS SELECT * FROM {t} WHERE k < {{n:UInt64}}")
    views = [
        f"{t}_{name}" for name in ("v", "vv", "mv", "of_mv", "m", "mm", "of_m", "of_merge", "param(n = 9)")
    ]
    merges = [f"merge('^{t}{end}$')" for end in ("", "_v", "_mv", "_m", "_of_m")]
    for view in (*views, *merges, f"merge(REGEXP('default'), '^{t}$')"):
        through = f"SELECT * FROM {view} ORDER BY k"
        assert pair.n1.query(through, **SEQUENTIAL) == "1\tconfirmed\n", view
        assert len(pair.n1.query(through).splitlines()) == 2, view
    assert error(pair.n1.post(f"SELECT * FROM merge('^{t}_of_merge$')", **SEQUENTIAL)) == 48
    copies = {"plain": "MergeTree", "copy": f"ReplicatedMergeTree('/tables/{t}_copy', 'r1')"}
    for name, engine in copies.items():
        copy = f"CREATE TABLE {t}_{name} ENGINE = {engine} ORDER BY k AS SELECT * FROM {t}"
        pair.n1.query(copy, **SEQUENTIAL)
        assert pair.n1.query(f"SELECT * FROM {t}_{name}") == "1\tconfirmed\n", name
    filtered = pair.n1.post(reading, additional_table_filters=f"{{'{t}': 'k = 1'}}", **SEQUENTIAL)
    assert error(filtered) == 48, "a filter of the user's would take the place of ours"
    pair.n2.query(f"SYSTEM START FETCHES {t}")
    pair.synced(t)
    wait_for(lambda: pair.n1.query(f"SELECT count() FROM {t}", **SEQUENTIAL) == "2\n")
    assert pair.same(f"SELECT count() FROM {t} SETTINGS select_sequential_consistency = 1") == "2\n"


def test_a_replica_without_a_part_of_the_quorum_refuses_to_read(pair: Pair) -> None:
    t = pair.table("k UInt64, v String", rest="ORDER BY k")
    pair.n1.query(
        f"CREATE TABLE {t}_third (k UInt64, v String) "
        f"ENGINE = ReplicatedMergeTree('/tables/{t}', 'r3') ORDER BY k"
    )
    pair.n2.query(f"SYSTEM STOP FETCHES {t}")
    assert quorum_insert(pair.n1, t, "(1, 'a')").status == 200
    reading = f"SELECT count() FROM {t}"
    assert pair.n1.query(reading, **SEQUENTIAL) == "1\n"
    assert error(pair.n2.post(reading, **SEQUENTIAL)) == 289
    assert pair.n2.query(reading) == "0\n"
    pair.n2.query(f"SYSTEM START FETCHES {t}")
    pair.synced(t)
    assert pair.n2.query(reading, **SEQUENTIAL) == "1\n"
    pair.n1.query(f"DROP TABLE {t}_third SYNC")


def test_a_quorum_that_cannot_be_had_is_refused_before_anything_is_written(pair: Pair) -> None:
    t = pair.table("k UInt64", rest="ORDER BY k")
    insert = f"INSERT INTO {t} VALUES ({{}})"
    reply = pair.n1.post(insert.format(1), insert_quorum="3")
    assert error(reply) == 285
    assert "(2) is less than requested quorum (3/2)" in reply.text
    pair.n2.query(f"DETACH TABLE {t}")
    for quorum in ("2", "auto"):
        assert error(pair.n1.post(insert.format(1), insert_quorum=quorum)) == 285
    assert error(pair.n1.post(insert.format(1), insert_quorum="two")) == 36
    pair.n1.query(insert.format(1), insert_quorum="1")
    pair.n2.query(f"ATTACH TABLE {t}")
    pair.n1.query(insert.format(2), insert_quorum="auto")
    assert pair.n2.query(f"SELECT count() FROM {t}") == "2\n"

    pair.n2.query(f"SYSTEM STOP FETCHES {t}")
    serial = {"insert_quorum": "2", "insert_quorum_parallel": "0"}
    assert error(pair.n1.post(insert.format(3), insert_quorum_timeout="100", **serial)) == 319
    assert error(pair.n1.post(insert.format(4), **serial)) == 286, "one after another"
    assert error(pair.n1.post(insert.format(5), insert_quorum="2", insert_quorum_timeout="100")) == 319
    pair.n2.query(f"SYSTEM START FETCHES {t}")
    assert pair.rows(t) == "1\n2\n3\n5\n"


# -- TTL -----------------------------------------------------------------------------------------------------

SOON = "merge_selecting_sleep_ms = 50, max_merge_selecting_sleep_ms = 100, merge_with_ttl_timeout = 0"


def test_expired_rows_go_by_merges_of_their_own(pair: Pair) -> None:
    t = pair.table(
        "k UInt64, d DateTime, v String TTL d + INTERVAL 2 DAY",
        rest=f"ORDER BY k TTL d + INTERVAL 5 DAY SETTINGS {SOON}",
    )
    for node in pair.both:
        node.query(f"SYSTEM STOP TTL MERGES {t}")
    pair.n1.query(
        f"INSERT INTO {t} SELECT number, now() - INTERVAL number DAY, 'x' FROM numbers(1, 9) "
        "SETTINGS optimize_on_insert = 0"
    )
    pair.synced(t)
    pair.n2.query(f"OPTIMIZE TABLE {t} FINAL SETTINGS alter_sync = 2")
    assert pair.same(f"SELECT count() FROM {t}") == "9\n"
    for node in pair.both:
        node.query(f"SYSTEM START TTL MERGES {t}")
    reading = f"SELECT groupArray(k), groupArray(v) FROM (SELECT * FROM {t} ORDER BY k)"
    wait_for(lambda: pair.n1.query(reading) == "[1,2,3,4]\t['x','','','']\n")
    pair.synced(t)
    pair.same(f"SELECT name, hash_of_all_files FROM system.parts WHERE table = '{t}'")
    assert pair.same(reading) == "[1,2,3,4]\t['x','','','']\n"
    names = pair.n1.query(f"SELECT name FROM system.parts WHERE table = '{t}'")
    assert pair.n1.query(f"SELECT sleep(1), name FROM system.parts WHERE table = '{t}'") == f"0\t{names}"


def test_parts_that_expired_as_a_whole_go_and_no_others_where_only_they_may(pair: Pair) -> None:
    t = pair.table(
        "k UInt64, d DateTime",
        rest="PARTITION BY k % 2 ORDER BY k TTL d + INTERVAL 5 DAY "
        f"SETTINGS ttl_only_drop_parts = 1, remove_empty_parts = 0, {SOON}",
    )
    pair.n1.query(
        f"INSERT INTO {t} SELECT number, now() - INTERVAL number * 6 DAY FROM numbers(3) "
        "SETTINGS optimize_on_insert = 0"
    )
    parts = f"SELECT name, rows FROM system.parts WHERE table = '{t}' ORDER BY name"
    wait_for(lambda: pair.n2.query(parts) == "0_0_0_0\t2\n1_0_0_1\t0\n")
    pair.synced(t)
    assert pair.same(parts) == "0_0_0_0\t2\n1_0_0_1\t0\n"
    assert pair.same(f"SELECT k FROM {t} ORDER BY k") == "0\n2\n"


@pytest.mark.extended
@pytest.mark.parametrize(
    ("column", "ttl", "merge_type", "reading", "expected"),
    [
        ("v String", "d + INTERVAL 1 DAY", 4, "count()", "50"),
        ("v String", "d + INTERVAL 1 DAY DELETE WHERE v > '25'", 2, "count()", "69"),
        ("v String TTL d + INTERVAL 1 DAY", "", 2, "uniq(v)", "51"),
        ("v UInt64", "d + INTERVAL 1 DAY GROUP BY k SET v = sum(v)", 2, "count()", "51"),
        ("v String", "d + INTERVAL 1 DAY RECOMPRESS CODEC(ZSTD), d + INTERVAL 1 YEAR", 3, "count()", "100"),
    ],
)
def test_every_kind_of_ttl_is_a_merge_of_its_kind_for_all_replicas(
    pair: Pair, column: str, ttl: str, merge_type: int, reading: str, expected: str
) -> None:
    t = pair.table(
        f"k UInt64, d DateTime, {column}",
        rest=f"PARTITION BY d > '2050-01-01' ORDER BY k {f'TTL {ttl}' if ttl else ''} "
        f"SETTINGS {SOON}, merge_with_recompression_ttl_timeout = 0",
    )
    pair.n1.query(
        f"INSERT INTO {t} SELECT if(number < 50, 0, number), now() + if(number < 50, -2, 20000) * 86400, "
        "number FROM numbers(100) SETTINGS optimize_on_insert = 0"
    )
    log = f"SELECT value FROM system.zookeeper WHERE path = '/tables/{t}/log' AND value LIKE '%merge_type%'"
    wait_for(lambda: pair.n2.query(log) != "")
    assert f"merge_type: {merge_type}\n" in pair.n2.query(f"{log} FORMAT TSVRaw")
    pair.synced(t)
    assert pair.same(f"SELECT {reading} FROM {t}") == f"{expected}\n"
    parts = "name, hash_of_all_files, default_compression_codec"
    shown = pair.same(f"SELECT {parts} FROM system.parts WHERE table = '{t}' AND active ORDER BY name")
    assert ("ZSTD" in shown) == (merge_type == 3)
    assert pair.n1.query(f"SELECT count() FROM system.zookeeper WHERE path = '/tables/{t}/log'") == "3\n"


# -- KILL MUTATION -------------------------------------------------------------------------------------------


def test_kill_interrupts_a_mutation_that_runs(pair: Pair) -> None:
    """It would take a quarter of an hour."""
    t = pair.table("k UInt64, v String", rest="ORDER BY k SETTINGS index_granularity = 1000")
    pair.n1.query(f"INSERT INTO {t} SELECT number, 'x' FROM numbers(1000000)")
    pair.synced(t)
    pair.n1.query(
        f"ALTER TABLE {t} UPDATE v = toString(sleepEachRow(0.001)) WHERE true SETTINGS mutations_sync = 0",
        allow_nondeterministic_mutations="1",
    )
    executing = f"SELECT count() FROM system.replication_queue WHERE table = '{t}' AND is_currently_executing"
    for node in pair.both:
        wait_for(lambda node=node: node.query(executing) == "1\n")  # type: ignore[misc]
        wait_for(lambda node=node: "mutate" in node.query("SELECT query FROM system.processes"))  # type: ignore[misc]
    pair.n2.query(f"KILL MUTATION WHERE table = '{t}'")
    pair.synced(t)
    assert pair.same(f"SELECT DISTINCT v FROM {t}") == "x\n"
    wait_for(lambda: all(node.query("SELECT count() FROM system.merges") == "0\n" for node in pair.both))
    assert pair.same(f"SELECT count() FROM system.mutations WHERE table = '{t}'") == "0\n"
    pair.n1.query(f"ALTER TABLE {t} UPDATE v = 'y' WHERE true SETTINGS mutations_sync = 2")
    assert pair.same(f"SELECT DISTINCT v FROM {t}") == "y\n"
