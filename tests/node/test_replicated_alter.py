"""ALTER of replicated tables, on two real nodes and ZooKeeper."""

from __future__ import annotations

import threading

import pytest

from tests.few import few_first
from tests.node.replicated_pair import Pair, error, wait_for

pytestmark = pytest.mark.slow


def test_columns_are_added_changed_and_dropped_on_all_replicas(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a'), (2, 'b')")
    pair.n1.query(f"ALTER TABLE {t} ADD COLUMN n UInt8 DEFAULT 7, MODIFY COLUMN v LowCardinality(String)")
    pair.synced(t)
    assert pair.rows(t) == "1\ta\t7\n2\tb\t7\n"
    pair.n2.query(f"ALTER TABLE {t} DROP COLUMN v SETTINGS alter_sync = 2")
    assert pair.rows(t) == "1\t7\n2\t7\n"


ALTERS = (
    "ADD COLUMN d Date DEFAULT '2020-01-01' AFTER k",
    "MODIFY COLUMN v Nullable(String) COMMENT 'text'",
    "RENAME COLUMN v TO w",
    "ADD COLUMN n UInt8 DEFAULT 5, ADD CONSTRAINT c CHECK n < 100",
    "MATERIALIZE COLUMN n",
    "MODIFY COLUMN n UInt32",
    "CLEAR COLUMN w IN PARTITION 1",
    "ADD COLUMN o UInt8, MODIFY ORDER BY (k, o)",
    "MODIFY TTL d + INTERVAL 100 YEAR",
    "MATERIALIZE TTL",
    "REMOVE TTL",
    "COMMENT COLUMN k 'key'",
    "ADD STATISTICS k TYPE minmax",
    "ADD STATISTICS n, o TYPE minmax",
    "MATERIALIZE STATISTICS n, o",
    "DROP STATISTICS n, o",
    "RENAME COLUMN d TO dd, ADD COLUMN d Date DEFAULT '2021-01-01'",
    "ADD COLUMN e String MATERIALIZED upper(assumeNotNull(w)), ADD COLUMN f String ALIAS lower(e)",
    "ADD INDEX i w TYPE set(10) GRANULARITY 2, MATERIALIZE INDEX i",
    "CLEAR COLUMN w",
    "DROP INDEX i, DROP COLUMN f, DROP COLUMN e, DROP COLUMN w",
    "DROP COLUMN d",
    "RENAME COLUMN dd TO d",
    "DROP CONSTRAINT c",
    "APPLY DELETED MASK",
)


@pytest.mark.extended
def test_alters_of_all_kinds_from_either_replica_leave_both_alike(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} SELECT number, 'x' FROM numbers(4)")
    structure = (
        f"SELECT replaceRegexpOne(create_table_query, 'r[12]', '') FROM system.tables WHERE name = '{t}'"
    )
    for number, alter in enumerate(ALTERS):
        node = pair.both[number % 2]
        reply = node.post(f"ALTER TABLE {t} {alter} SETTINGS alter_sync = 2, mutations_sync = 2")
        assert reply.status == 200, f"{alter}: {reply.text}"
        pair.rows(t)
        pair.same(structure)
    assert pair.rows(t).splitlines()[0] == "0\t2020-01-01\t5\t0"


def test_an_index_and_a_projection_are_cleared_in_one_partition_only(pair: Pair) -> None:
    t = pair.table(
        "k UInt64, v String, INDEX i v TYPE minmax, PROJECTION p (SELECT v, count() GROUP BY v)",
        rest="PARTITION BY k % 2 ORDER BY k SETTINGS min_bytes_for_wide_part = 0",
    )
    pair.n1.query(f"INSERT INTO {t} SELECT number, 'x' FROM numbers(4)")
    with_index = (
        "SELECT partition, secondary_indices_compressed_bytes > 0 FROM system.parts "
        f"WHERE active AND table = '{t}' ORDER BY ALL"
    )
    with_projection = (
        f"SELECT partition FROM system.projection_parts WHERE active AND table = '{t}' ORDER BY 1"
    )
    pair.synced(t)
    assert pair.same(with_index) == "0\t1\n1\t1\n"
    assert pair.same(with_projection) == "0\n1\n"
    for node, what in zip(pair.both, ("INDEX i", "PROJECTION p"), strict=True):
        node.query(f"ALTER TABLE {t} CLEAR {what} IN PARTITION 1 SETTINGS mutations_sync = 2, alter_sync = 2")
    assert pair.rows(t) == "".join(f"{k}\tx\n" for k in range(4))
    assert pair.same(with_index) == "0\t1\n1\t0\n"
    assert pair.same(with_projection) == "0\n"
    parts = pair.n1.query(f"SELECT name FROM system.parts WHERE active AND table = '{t}' ORDER BY name")
    assert parts == "0_0_0_0\n1_0_0_0_2\n", "a part of the other partition was written anew"


def test_sub_commands_are_carried_out_in_their_order_and_nothing_behind_one_that_fails(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'abc')")
    pair.n1.query(f"ALTER TABLE {t} UPDATE v = '5' WHERE 1, MODIFY COLUMN v UInt64, UPDATE v = v + 1 WHERE 1")
    assert pair.rows(t) == "1\t6\n"
    mixed = "ADD COLUMN a UInt8, UPDATE nosuch = 1 WHERE 1, ADD COLUMN b UInt8"
    assert error(pair.n1.post(f"ALTER TABLE {t} {mixed}")) == 16
    pair.synced(t)
    assert pair.same(f"SELECT groupArray(name) FROM system.columns WHERE table = '{t}'") == "['k','v','a']\n"
    no_text = "DROP PARTITION 1, MODIFY SETTING old_parts_lifetime = 1, DROP COLUMN a"  # a list of settings
    assert error(pair.n1.post(f"ALTER TABLE {t} {no_text}")) == 62
    assert pair.rows(t) == "1\t6\t0\n"


def test_a_comment_stays_when_the_table_is_altered(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"ALTER TABLE {t} ADD COLUMN a UInt8")
    pair.n1.query(f"ALTER TABLE {t} MODIFY COMMENT 'it''s'")
    pair.n1.query(f"ALTER TABLE {t} ADD COLUMN b UInt8")
    assert pair.n1.query(f"SELECT comment FROM system.tables WHERE name = '{t}'") == "it\\'s\n"


def test_an_ephemeral_column_without_a_value_is_added(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"ALTER TABLE {t} ADD COLUMN e Int32 EPHEMERAL")
    shown = pair.n1.query(f"SELECT default_expression FROM system.columns WHERE table = '{t}' AND name = 'e'")
    assert shown == "defaultValueOfTypeName(\\'Int32\\')\n"


def test_a_sign_gets_a_comment(pair: Pair) -> None:
    """chDB refuses to hear its type again."""
    columns = "k UInt64, s Int8 DEFAULT 1"
    t = pair.table(columns, engine="ReplicatedCollapsingMergeTree", arguments="s", rest="ORDER BY k")
    pair.n1.query(f"ALTER TABLE {t} COMMENT COLUMN s 'sign' SETTINGS alter_sync = 2")
    shown = f"SELECT comment FROM system.columns WHERE table = '{t}' AND name = 's'"
    assert pair.same(shown) == "sign\n"


def test_the_sorting_key_is_shortened(pair: Pair) -> None:
    t = pair.table(rest="PRIMARY KEY k ORDER BY (k, v)")
    pair.n1.query(f"ALTER TABLE {t} MODIFY ORDER BY k SETTINGS alter_sync = 2")
    assert pair.same(f"SELECT sorting_key, primary_key FROM system.tables WHERE name = '{t}'") == "k\tk\n"
    stored = pair.n1.query(
        f"SELECT value FROM system.zookeeper WHERE path = '/tables/{t}' AND name = 'metadata'"
    )
    assert "primary key: k\\n" in stored and "sorting key: k\\n" in stored


def test_a_table_that_could_not_be_created_as_it_is_now_goes_on(pair: Pair) -> None:
    """CREATE refuses columns outside the key of an AggregatingMergeTree; ALTER does not."""
    t = pair.table("k UInt64", engine="ReplicatedAggregatingMergeTree", rest="ORDER BY k")
    pair.n1.query(f"ALTER TABLE {t} ADD COLUMN v String")
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    pair.n1.query(f"ALTER TABLE {t} MODIFY COLUMN v LowCardinality(String), DROP COLUMN IF EXISTS w")
    pair.n1.query(f"OPTIMIZE TABLE {t} FINAL")
    assert pair.rows(t) == "1\ta\n"


def test_a_new_ttl_leaves_the_rows_alone_that_are_there_if_that_is_wanted(pair: Pair) -> None:
    t = pair.table("k UInt64, d DateTime", rest="ORDER BY k")
    pair.n1.query(f"INSERT INTO {t} VALUES (1, '2020-01-01')")
    pair.synced(t)
    for node in pair.both:
        node.query(f"SYSTEM STOP TTL MERGES {t}")
    ttl = f"ALTER TABLE {t} MODIFY TTL d + INTERVAL {{}} DAY"
    only_metadata = {"materialize_ttl_after_modify": "0", "allow_non_metadata_alters": "0"}
    pair.n1.query(ttl.format(1), alter_sync="2", **only_metadata)
    for node in pair.both:
        assert "TTL d + toIntervalDay(1)" in node.query(f"SHOW CREATE TABLE {t} FORMAT TSVRaw")
    assert pair.same(f"SELECT count() FROM system.mutations WHERE table = '{t}'") == "0\n"
    assert pair.rows(t) == "1\t2020-01-01 00:00:00\n"
    assert error(pair.n1.post(ttl.format(2), allow_non_metadata_alters="0")) == 524
    pair.n1.query(ttl.format(2), alter_sync="2")
    assert pair.same(f"SELECT command FROM system.mutations WHERE table = '{t}'") == "(MATERIALIZE TTL)\n"
    assert pair.rows(t) == ""


def test_an_alter_names_the_database_of_the_dictionaries_that_it_asks(pair: Pair) -> None:
    t = pair.table()
    for node in pair.both:
        node.query("CREATE DATABASE words")
        node.query("CREATE TABLE words.source (k UInt64, w String) ENGINE = Memory")
        node.query("INSERT INTO words.source VALUES (1, 'one'), (2, 'two')")
        source = "SOURCE(CLICKHOUSE(TABLE 'source' DATABASE 'words')) LAYOUT(FLAT()) LIFETIME(0)"
        node.query(f"CREATE DICTIONARY words.numbers (k UInt64, w String) PRIMARY KEY k {source}")
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a'), (2, 'b')")
    settings = {"database": "words", "alter_sync": "2", "mutations_sync": "2"}
    settings["allow_nondeterministic_mutations"] = "1"
    for command in (
        "ADD COLUMN w String DEFAULT dictGet('numbers', 'w', k)",
        "ADD CONSTRAINT c CHECK dictHas('numbers', k)",
        "UPDATE v = dictGetString('numbers', 'w', k) WHERE dictGet(numbers, 'w', k) != 'one'",
    ):
        pair.n1.query(f"ALTER TABLE default.{t} {command}", **settings)
    pair.n2.query(f"INSERT INTO {t} (k, v) VALUES (1, 'c')")
    pair.synced(t)
    assert pair.same(f"SELECT k, v, w FROM {t} ORDER BY k, v") == "1\ta\tone\n1\tc\tone\n2\ttwo\ttwo\n"
    assert error(pair.n2.post(f"INSERT INTO {t} (k) VALUES (3)")) == 469


def test_indexes_by_either_statement(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"CREATE INDEX i ON {t} (v) TYPE bloom_filter GRANULARITY 1")
    pair.n1.query(f"ALTER TABLE {t} ADD INDEX j k TYPE minmax")
    pair.synced(t)
    indexes = f"SELECT name, expr FROM system.data_skipping_indices WHERE table = '{t}' ORDER BY 1"
    assert pair.same(indexes) == "i\tv\nj\tk\n"
    pair.n2.query(f"DROP INDEX i ON {t}")
    pair.synced(t)
    assert pair.same(f"SELECT name FROM system.data_skipping_indices WHERE table = '{t}'") == "j\n"


@pytest.mark.parametrize("kept", ["old", "new"])
def test_a_column_takes_the_place_of_one_that_is_dropped(pair: Pair, kept: str) -> None:
    t = pair.table("k UInt64, old UInt8, new String DEFAULT 'x'", rest="ORDER BY k")
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 9, 'first'), (2, 8, 'second')")
    more = ", ADD COLUMN new UInt8 DEFAULT 5" if kept == "new" else ""
    alter = f"ALTER TABLE {t} DROP COLUMN old, RENAME COLUMN new TO old{more}, COMMENT COLUMN k 'key'"
    assert error(pair.n1.post(alter.replace(t, f"{t} ON CLUSTER all"))) == 48
    pair.n1.query(f"{alter} SETTINGS alter_sync = 2")
    beside = "\t5" if more else ""
    assert pair.rows(t) == f"1\tfirst{beside}\n2\tsecond{beside}\n"
    pair.n2.query(f"OPTIMIZE TABLE {t} FINAL SETTINGS alter_sync = 2")
    assert pair.rows(t) == f"1\tfirst{beside}\n2\tsecond{beside}\n"


@pytest.mark.parametrize(
    ("engine", "arguments"),
    few_first(
        [
            ("ReplicatedReplacingMergeTree", "ver, gone"),
            ("ReplicatedVersionedCollapsingMergeTree", "sign, ver"),
        ],
        few=1,
    ),
)
def test_a_column_of_versions_gets_a_wider_type(pair: Pair, engine: str, arguments: str) -> None:
    t = pair.table(
        "k UInt64, ver UInt8, sign Int8 DEFAULT 1, gone UInt8, PROJECTION p (SELECT k, ver ORDER BY ver)",
        engine=engine,
        arguments=arguments,
        rest="ORDER BY k SETTINGS deduplicate_merge_projection_mode = 'rebuild'",
    )
    pair.n1.query(f"INSERT INTO {t} (k, ver) VALUES (1, 200), (2, 3)")
    pair.n1.query(f"ALTER TABLE {t} MODIFY COLUMN ver UInt32 SETTINGS alter_sync = 2", receive_timeout="20")
    pair.n2.query(f"INSERT INTO {t} (k, ver, gone) VALUES (1, 100000, 0), (2, 2, 0)")
    pair.synced(t)
    pair.n1.query(f"OPTIMIZE TABLE {t} FINAL SETTINGS alter_sync = 2")
    select = f"SELECT k, ver FROM {t} ORDER BY k, ver"
    kept = "1\t100000\n2\t3\n" if "Replacing" in engine else "1\t200\n1\t100000\n2\t2\n2\t3\n"
    assert pair.same(select) == kept
    assert error(pair.n1.post(f"ALTER TABLE {t} MODIFY COLUMN ver UInt8")) == 524


def test_an_alter_that_would_rewrite_data_can_be_forbidden(pair: Pair) -> None:
    t, forbidden = pair.table(), {"allow_non_metadata_alters": "0"}
    for command in ("DROP COLUMN v", "MODIFY COLUMN v LowCardinality(String)", "RENAME COLUMN v TO w"):
        assert error(pair.n1.post(f"ALTER TABLE {t} {command}", **forbidden)) == 524
    pair.n1.query(f"ALTER TABLE {t} ADD COLUMN w UInt8, COMMENT COLUMN v 'stays'", **forbidden)
    pair.n1.query(f"ALTER TABLE {t} UPDATE v = 'x' WHERE true", **forbidden)
    assert pair.n1.query(f"SELECT name FROM system.columns WHERE table = '{t}'") == "k\nv\nw\n"


def test_indexes_as_other_databases_write_them(pair: Pair) -> None:
    t = pair.table()
    assert error(pair.n1.post(f"CREATE INDEX i ON {t} (v)")) == 80
    assert error(pair.n1.post(f"CREATE UNIQUE INDEX i ON {t} (v) TYPE minmax")) == 48
    pair.n1.query(f"CREATE INDEX i ON {t} (v)", allow_create_index_without_type="1")
    assert error(pair.n1.post(f"CREATE INDEX i ON {t} (v", allow_create_index_without_type="1")) == 62
    assert pair.n1.query(f"SHOW INDEXES FROM {t} WHERE key_name = 'i'") == ""
    pair.n1.query(f"CREATE UNIQUE INDEX i ON {t} (v DESC) TYPE minmax", create_index_ignore_unique="1")
    pair.n1.query(f"CREATE INDEX j ON {t} (k ASC, greatest(k, length(v)) desc) TYPE set(2)")
    indexes = f"SELECT name, expr FROM system.data_skipping_indices WHERE table = '{t}' ORDER BY 1"
    assert pair.n1.query(indexes) == "i\tv\nj\tk, greatest(k, length(v))\n"


@pytest.mark.extended
def test_parts_with_and_without_a_projection_are_merged_when_it_is_materialized(pair: Pair) -> None:
    t = pair.table(rest="ORDER BY k SETTINGS merge_selecting_sleep_ms = 100")
    for number in range(2):
        pair.n1.query(f"INSERT INTO {t} VALUES ({number}, 'old')")
    pair.n1.query(f"ALTER TABLE {t} ADD PROJECTION p (SELECT v, count() GROUP BY v) SETTINGS alter_sync = 2")
    for number in range(2, 14):
        pair.n1.query(f"INSERT INTO {t} VALUES ({number}, 'new')")
    pair.synced(t)
    optimize = f"OPTIMIZE TABLE {t} PARTITION tuple() FINAL SETTINGS optimize_throw_if_noop = 1"
    refused = pair.n2.post(optimize)
    assert error(refused) == 388 and "projections of parts all_" in refused.text
    pair.n1.query(f"OPTIMIZE TABLE {t} FINAL")  # nothing is left in a queue that nobody could do
    pair.synced(t)
    pair.n1.query(f"ALTER TABLE {t} MATERIALIZE PROJECTION p SETTINGS mutations_sync = 2")
    pair.n2.query(f"{optimize}, alter_sync = 2")
    assert pair.same(
        f"SELECT count(), any(projections), any(rows) FROM system.parts WHERE table = '{t}'"
    ) == ("1\t['p']\t14\n")
    assert pair.rows(t).count("\n") == 14


def test_projections_travel_with_their_parts(pair: Pair) -> None:
    t = pair.table(
        "k UInt64, v String, PROJECTION by_v (SELECT k, v ORDER BY v)",
        rest="ORDER BY k SETTINGS min_bytes_for_wide_part = 0",
    )
    pair.n1.query(f"INSERT INTO {t} SELECT number, toString(number % 10) FROM numbers(1000)")
    pair.n2.query(f"INSERT INTO {t} SELECT number + 1000, toString(number % 10) FROM numbers(1000)")
    pair.synced(t)
    reading = f"SELECT count(), sum(k) FROM {t} WHERE v = '3' SETTINGS force_optimize_projection = 1"
    assert pair.same(reading) == "200\t199600\n"
    pair.n1.query(f"OPTIMIZE TABLE {t} FINAL SETTINGS alter_sync = 2")
    pair.n1.query(f"ALTER TABLE {t} DROP PROJECTION by_v, ADD PROJECTION p2 (SELECT v, sum(k) GROUP BY v)")
    pair.n2.query(f"SYSTEM SYNC REPLICA {t}")
    pair.n2.query(f"ALTER TABLE {t} MATERIALIZE PROJECTION p2 SETTINGS mutations_sync = 2")
    grouped = f"SELECT sum(k) FROM {t} GROUP BY v ORDER BY v LIMIT 1 SETTINGS force_optimize_projection = 1"
    assert pair.same(grouped) == "199000\n"
    pair.rows(t)


def _columns(pair: Pair, t: str) -> list[str]:
    sql = f"SELECT groupArray(name) FROM system.columns WHERE table = '{t}'"
    return [node.query(sql).strip() for node in pair.both]


@pytest.mark.extended
@pytest.mark.parametrize("name", few_first(["alter_sync", "replication_alter_partitions_sync"], few=1))
def test_who_is_waited_for_says_a_setting_with_two_names(pair: Pair, name: str) -> None:
    """Nobody, this node's own replica (also without the setting), or all of them."""
    t = pair.table("k UInt64")
    add = f"ALTER TABLE {t} ADD COLUMN {{}} UInt8 SETTINGS {name} = {{}}"
    for node in pair.both:
        node.query(f"SYSTEM STOP REPLICATION QUEUES {t}")
    pair.n1.query(add.format("a", 0))
    assert _columns(pair, t) == ["['k']", "['k']"]
    pair.n1.query(f"SYSTEM START REPLICATION QUEUES {t}")
    pair.n1.query(f"SYSTEM SYNC REPLICA {t}")
    pair.n1.query(add.format("b", 1))
    assert _columns(pair, t) == ["['k','a','b']", "['k']"]
    pair.n1.query(f"ALTER TABLE {t} ADD COLUMN c UInt8")
    assert _columns(pair, t) == ["['k','a','b','c']", "['k']"]

    waiting = threading.Thread(target=pair.n1.query, args=(add.format("d", 2),))
    waiting.start()
    wait_for(lambda: "'d'" in _columns(pair, t)[0])
    assert waiting.is_alive(), "the other replica has not done it"
    pair.n2.query(f"SYSTEM START REPLICATION QUEUES {t}")
    waiting.join()
    assert _columns(pair, t) == ["['k','a','b','c','d']"] * 2

    pair.n2.query(f"DETACH TABLE {t}")
    pair.n1.query(add.format("e", 1))
    reply = pair.n1.post(f"{add.format('f', 2)}, replication_wait_for_inactive_replica_timeout = 0")
    assert error(reply) == 341
    assert "r2" in reply.text
    pair.n2.query(f"ATTACH TABLE {t}")
    pair.synced(t)
    assert _columns(pair, t) == ["['k','a','b','c','d','e','f']"] * 2


def test_partition_commands_wait_for_those_that_alter_sync_says(pair: Pair) -> None:
    t = pair.table("k UInt64", rest="PARTITION BY k ORDER BY k")
    pair.n1.query(f"INSERT INTO {t} SELECT number FROM numbers(4)")
    pair.synced(t)
    for node in pair.both:
        node.query(f"SYSTEM STOP REPLICATION QUEUES {t}")
    counts = f"SELECT count() FROM {t}"
    pair.n1.query(f"ALTER TABLE {t} DROP PARTITION 0 SETTINGS alter_sync = 0")
    assert [node.query(counts) for node in pair.both] == ["4\n", "4\n"]
    pair.n1.query(f"SYSTEM START REPLICATION QUEUES {t}")
    pair.n1.query(f"ALTER TABLE {t} DROP PARTITION 1")
    assert [node.query(counts) for node in pair.both] == ["2\n", "4\n"]
    pair.n2.query(f"DETACH TABLE {t}")
    inactive = (
        "SETTINGS replication_alter_partitions_sync = 2, replication_wait_for_inactive_replica_timeout = 0"
    )
    assert error(pair.n1.post(f"ALTER TABLE {t} DROP PARTITION 2 {inactive}")) == 341
    pair.n2.query(f"ATTACH TABLE {t}")
    pair.n2.query(f"SYSTEM START REPLICATION QUEUES {t}")
    assert pair.rows(t) == "3\n"
