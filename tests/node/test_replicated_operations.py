"""ALTER, partitions, OPTIMIZE, SYSTEM and system tables of replicated tables, on real nodes and ZooKeeper."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engine.testing.cluster_files import clusters_xml
from engine.testing.local_cluster import LocalCluster, blocking_cluster
from tests.node.conftest import HttpAt, Reply

pytestmark = pytest.mark.slow

HOSTS = ("n1", "n2")


class Pair:
    """Two nodes, each with a replica of every table that `table` makes."""

    def __init__(self, local: LocalCluster) -> None:
        self.n1, self.n2 = (HttpAt(local.node(host).url) for host in HOSTS)
        self.zookeeper = local.zookeeper
        self._made = 0

    @property
    def both(self) -> tuple[HttpAt, HttpAt]:
        return self.n1, self.n2

    def table(
        self,
        columns: str = "k UInt64, v String",
        *,
        engine: str = "ReplicatedMergeTree",
        arguments: str = "",
        rest: str = "PARTITION BY k % 2 ORDER BY k",
    ) -> str:
        self._made += 1
        name = f"t{self._made}"
        more = f", {arguments}" if arguments else ""
        for number, node in enumerate(self.both, start=1):
            place = f"'/tables/{name}', 'r{number}'{more}"
            node.query(f"CREATE TABLE {name} ({columns}) ENGINE = {engine}({place}) {rest}")
        return name

    def synced(self, table: str) -> None:
        for node in self.both:
            node.query(f"SYSTEM SYNC REPLICA {table}")

    def same(self, sql: str) -> str:
        """The answer of both nodes, which has to be the same."""
        first, second = (node.query(sql) for node in self.both)
        assert first == second
        return first

    def rows(self, table: str) -> str:
        """All rows, after both replicas have caught up; also the parts have to be the same."""
        self.synced(table)
        self.same(f"SELECT name, hash_of_all_files FROM system.parts WHERE table = '{table}' ORDER BY name")
        return self.same(f"SELECT * FROM {table} ORDER BY ALL")


def error(reply: Reply) -> int:
    assert reply.status != 200, reply.text
    return reply.code


def json_rows(node: HttpAt, sql: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in node.query(f"{sql} FORMAT JSONEachRow").splitlines()]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp("pair")
    file = directory / "given.xml"
    file.write_text(clusters_xml({"all": [list(HOSTS)]}))
    with blocking_cluster(directory / "run", cluster_file=file, hosts=HOSTS) as (local, _):
        yield Pair(local)


# -- ALTER ---------------------------------------------------------------------------------------------------


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


def test_sub_commands_are_carried_out_in_their_order_and_nothing_behind_one_that_fails(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'abc')")
    pair.n1.query(f"ALTER TABLE {t} UPDATE v = '5' WHERE 1, MODIFY COLUMN v UInt64, UPDATE v = v + 1 WHERE 1")
    assert pair.rows(t) == "1\t6\n"
    mixed = "ADD COLUMN a UInt8, UPDATE nosuch = 1 WHERE 1, ADD COLUMN b UInt8"
    assert error(pair.n1.post(f"ALTER TABLE {t} {mixed}")) == 16
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


def test_what_a_setting_has_allowed_is_done_on_all_replicas(pair: Pair) -> None:
    t = pair.table()
    add = f"ALTER TABLE {t} ADD COLUMN l LowCardinality(UInt8)"
    assert error(pair.n1.post(add)) == 455
    pair.n1.query(add, allow_suspicious_low_cardinality_types="1")
    pair.synced(t)
    pair.n2.query(f"INSERT INTO {t} VALUES (1, 'a', 2)")
    pair.n1.query(f"ALTER TABLE {t} ADD COLUMN m UInt8")
    assert pair.rows(t) == "1\ta\t2\t0\n"


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


def test_update_and_delete_reach_all_replicas(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} SELECT number, 'x' FROM numbers(10)")
    pair.n1.query(
        f"ALTER TABLE {t} UPDATE v = {{new:String}} WHERE k < 3, DELETE WHERE k > 5 "
        "SETTINGS mutations_sync = 2",
        param_new="it's",
    )
    assert pair.rows(t) == "0\tit\\'s\n1\tit\\'s\n2\tit\\'s\n3\tx\n4\tx\n5\tx\n"
    assert pair.same(f"SELECT command, is_done, parts_to_do FROM system.mutations WHERE table = '{t}'") == (
        "UPDATE v = \\'it\\\\\\'s\\' WHERE k < 3, DELETE WHERE k > 5\t1\t0\n"
    )


def test_a_mutation_in_a_partition_leaves_the_others_alone(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} SELECT number, 'x' FROM numbers(4)")
    pair.n2.query(f"SYSTEM SYNC REPLICA {t}")
    pair.n2.query(f"ALTER TABLE {t} UPDATE v = 'y' IN PARTITION 1 WHERE true SETTINGS mutations_sync = 2")
    assert pair.rows(t) == "0\tx\n1\ty\n2\tx\n3\ty\n"
    names = pair.same(f"SELECT name FROM system.parts WHERE table = '{t}' ORDER BY name").split()
    assert names == ["0_0_0_0", "1_0_0_0_1"]


def test_lightweight_delete_and_update(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} SELECT number, 'x' FROM numbers(4)")
    pair.n1.query(f"DELETE FROM {t} WHERE k = 2")
    assert pair.rows(t) == "0\tx\n1\tx\n3\tx\n"
    pair.n2.query(f"UPDATE {t} SET v = 'z' WHERE k = 3")
    assert pair.rows(t) == "0\tx\n1\tx\n3\tz\n"


def test_lightweight_delete_and_projections(pair: Pair) -> None:
    """What becomes of them the table says, and no statement."""
    columns = "k UInt64, v UInt64, PROJECTION p (SELECT v, count() GROUP BY v)"
    t = pair.table(columns, rest="ORDER BY k")
    pair.n1.query(f"INSERT INTO {t} SELECT number, 1 FROM numbers(4)")
    delete = "DELETE FROM {} WHERE k = 2 SETTINGS lightweight_mutation_projection_mode = 'drop'"
    assert error(pair.n1.post(delete.format(t))) == 344
    for mode in ("drop", "rebuild"):
        settings = f"SETTINGS lightweight_mutation_projection_mode = '{mode}'"
        t = pair.table(columns, rest=f"ORDER BY k {settings}")
        pair.n1.query(f"INSERT INTO {t} SELECT number, 1 FROM numbers(4)")
        pair.n1.query(f"DELETE FROM {t} WHERE k = 2")
        pair.synced(t)
        assert pair.same(f"SELECT v, count() FROM {t} GROUP BY v") == "1\t3\n"
        there = f"SELECT count() FROM system.projection_parts WHERE table = '{t}' AND active"
        assert pair.same(there) == ("1\n" if mode == "rebuild" else "0\n")


def test_a_mutation_that_would_differ_between_replicas_is_refused(pair: Pair) -> None:
    t = pair.table()
    assert error(pair.n1.post(f"ALTER TABLE {t} UPDATE v = toString(rand()) WHERE true")) == 36
    assert error(pair.n1.post(f"ALTER TABLE {t} DELETE WHERE nosuch = 1")) == 47
    subquery = f"ALTER TABLE {t} DELETE WHERE k IN (SELECT k FROM {t})"
    assert error(pair.n1.post(subquery)) == 36
    assert pair.n1.query(f"SELECT count() FROM system.mutations WHERE table = '{t}'") == "0\n"


def test_a_mutation_with_a_subquery_names_the_database_that_it_reads(pair: Pair) -> None:
    t = pair.table()
    for node in pair.both:
        node.query("CREATE TABLE IF NOT EXISTS chosen (k UInt64) ENGINE = Memory")
        node.query("INSERT INTO chosen VALUES (1)")
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a'), (2, 'b')")
    pair.n1.query(
        f"ALTER TABLE {t} DELETE WHERE k IN (SELECT k FROM chosen) SETTINGS mutations_sync = 2",
        allow_nondeterministic_mutations="1",
    )
    assert pair.rows(t) == "2\tb\n"
    command = pair.n1.query(f"SELECT command FROM system.mutations WHERE table = '{t}'")
    assert command == "DELETE WHERE k IN (SELECT k FROM default.chosen)\n"


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


def test_settings_are_local_and_those_of_merges_never_reach_chdb(pair: Pair) -> None:
    t = pair.table()
    shown = f"SELECT create_table_query FROM system.tables WHERE name = '{t}'"
    pair.n1.query(
        f"ALTER TABLE {t} MODIFY SETTING max_bytes_to_merge_at_max_space_in_pool = 1000000, "
        "replicated_deduplication_window = 7"
    )
    text = pair.n1.query(shown)
    assert "max_bytes_to_merge_at_max_space_in_pool = 1000000" in text
    assert "replicated_deduplication_window = 7" in text
    assert "window" not in pair.n2.query(shown)
    for number in range(3):
        pair.n1.query(f"INSERT INTO {t} VALUES ({2 * number}, 'x')")
    pair.n1.query(f"ALTER TABLE {t} RESET SETTING max_bytes_to_merge_at_max_space_in_pool")
    assert "max_bytes" not in pair.n1.query(shown)
    pair.n1.query(f"ALTER TABLE {t} MODIFY COMMENT 'for tests'")
    assert pair.n1.query(f"SELECT comment FROM system.tables WHERE name = '{t}'") == "for tests\n"
    assert error(pair.n1.post(f"ALTER TABLE {t} MODIFY SETTING nosuch_setting = 1")) == 115
    assert pair.rows(t) == "0\tx\n2\tx\n4\tx\n"


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


# -- partitions ----------------------------------------------------------------------------------------------


def test_partitions_are_dropped_detached_and_attached(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} SELECT number, 'x' FROM numbers(6)")
    pair.n1.query(f"ALTER TABLE {t} DROP PARTITION 0")
    assert pair.rows(t) == "1\tx\n3\tx\n5\tx\n"
    pair.n2.query(f"ALTER TABLE {t} DETACH PARTITION ID '1'")
    assert pair.rows(t) == ""
    assert pair.n2.query(f"SELECT name FROM system.detached_parts WHERE table = '{t}'") == "1_0_0_0\n"
    pair.n2.query(f"ALTER TABLE {t} ATTACH PART '1_0_0_0'")
    assert pair.rows(t) == "1\tx\n3\tx\n5\tx\n"
    pair.n1.query(f"ALTER TABLE {t} DROP PART '1_2_2_0'")
    assert pair.rows(t) == ""


def test_what_is_larger_than_may_be_dropped_stays(pair: Pair) -> None:
    t, other = pair.table(), pair.table()
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a'), (2, 'b')")
    pair.n1.query(f"INSERT INTO {other} VALUES (1, 'c')")
    part = pair.n1.query(f"SELECT min(name) FROM system.parts WHERE table = '{t}'").strip()
    partition = "max_partition_size_to_drop"
    statements = [
        (f"ALTER TABLE {t} DROP PARTITION 1", partition),
        (f"ALTER TABLE {t} DETACH PARTITION ALL", partition),
        (f"ALTER TABLE {t} DROP PART '{part}'", partition),
        (f"ALTER TABLE {t} REPLACE PARTITION 1 FROM {other}", partition),
        (f"ALTER TABLE {t} MOVE PARTITION 1 TO TABLE {other}", partition),
        (f"ALTER TABLE {t} DROP PARTITION ALL", "max_table_size_to_drop"),
        (f"TRUNCATE TABLE {t}", "max_table_size_to_drop"),
        (f"DROP TABLE {t}", "max_table_size_to_drop"),
    ]
    for sql, setting in statements:
        assert error(pair.n1.post(f"{sql} SETTINGS {setting} = 1")) == 359, sql
    assert pair.rows(t) == "1\ta\n2\tb\n"
    pair.n1.query(f"TRUNCATE TABLE {t}", max_table_size_to_drop="0")


def test_partitions_are_replaced_and_moved_between_replicated_tables(pair: Pair) -> None:
    a, b = pair.table(), pair.table()
    pair.n1.query(f"INSERT INTO {a} VALUES (1, 'a')")
    pair.n1.query(f"INSERT INTO {b} VALUES (1, 'b'), (2, 'b')")
    pair.n1.query(f"ALTER TABLE {a} REPLACE PARTITION 1 FROM {b}")
    assert pair.rows(a) == "1\tb\n"
    pair.n1.query(f"ALTER TABLE {a} ATTACH PARTITION 0 FROM {b}")
    assert pair.rows(a) == "1\tb\n2\tb\n"
    pair.n1.query(f"ALTER TABLE {a} MOVE PARTITION 1 TO TABLE {b}")
    assert pair.rows(a) == "2\tb\n"
    assert pair.rows(b) == "1\tb\n1\tb\n2\tb\n"


def test_a_plain_table_is_converted_by_attaching_its_partitions(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(
        "CREATE TABLE plain_source (k UInt64, v String) ENGINE = MergeTree PARTITION BY k % 2 ORDER BY k"
    )
    pair.n1.query("INSERT INTO plain_source SELECT number, 'p' FROM numbers(4)")
    pair.n1.query(f"ALTER TABLE {t} ATTACH PARTITION ALL FROM plain_source")
    assert pair.rows(t) == "0\tp\n1\tp\n2\tp\n3\tp\n"
    assert pair.n1.query("SELECT count() FROM plain_source") == "4\n"
    assert error(pair.n1.post(f"ALTER TABLE {t} ATTACH PARTITION 1 FROM nosuch")) == 60
    assert error(pair.n1.post(f"ALTER TABLE plain_source MOVE PARTITION 1 TO TABLE {t}")) == 48


def test_a_partition_is_fetched_from_another_tables_path(pair: Pair) -> None:
    a, b = pair.table(), pair.table()
    pair.n2.query(f"INSERT INTO {a} VALUES (1, 'a')")
    pair.synced(a)
    pair.n1.query(f"ALTER TABLE {b} FETCH PARTITION 1 FROM '/tables/{a}'")
    assert pair.n1.query(f"SELECT name FROM system.detached_parts WHERE table = '{b}'") == "1_0_0_0\n"
    assert error(pair.n1.post(f"ALTER TABLE {a} FETCH PARTITION 1 FROM '/nowhere/{{table}}'")) != 0
    assert error(pair.n1.post(f"ALTER TABLE {a} FETCH PARTITION 1 FROM '/{{nosuch}}'")) != 0
    pair.n1.query(f"ALTER TABLE {b} ATTACH PARTITION 1")
    assert pair.rows(b) == "1\ta\n"


def test_truncate_and_freeze(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} SELECT number, 'x' FROM numbers(4)")
    pair.n1.query(f"ALTER TABLE {t} FREEZE WITH NAME 'kept'")
    pair.n1.query(f"ALTER TABLE {t} FREEZE PARTITION 1")
    pair.n1.query(f"ALTER TABLE {t} UNFREEZE WITH NAME 'kept'")
    pair.n1.query(f"TRUNCATE TABLE {t}")
    assert pair.rows(t) == ""


def test_detached_parts_are_dropped_only_if_that_is_allowed(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    pair.n1.query(f"ALTER TABLE {t} DETACH PARTITION 1")
    assert error(pair.n1.post(f"ALTER TABLE {t} DROP DETACHED PARTITION 1")) == 344
    pair.n1.query(f"ALTER TABLE {t} DROP DETACHED PARTITION 1 SETTINGS allow_drop_detached = 1")
    assert pair.n1.query(f"SELECT count() FROM system.detached_parts WHERE table = '{t}'") == "0\n"


# -- OPTIMIZE ------------------------------------------------------------------------------------------------


def test_optimize_final_merges_on_all_replicas(pair: Pair) -> None:
    t = pair.table()
    for number in range(4):
        pair.n1.query(f"INSERT INTO {t} VALUES ({number}, 'x')")
    pair.n2.query(f"OPTIMIZE TABLE {t} FINAL SETTINGS alter_sync = 2")
    assert pair.rows(t) == "0\tx\n1\tx\n2\tx\n3\tx\n"
    assert pair.same(f"SELECT name FROM system.parts WHERE table = '{t}' ORDER BY 1") == "0_0_1_1\n1_0_1_1\n"


def test_a_partition_is_not_replaced_by_nothing(pair: Pair) -> None:
    t, empty = pair.table(), pair.table()
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    replace = f"ALTER TABLE {t} REPLACE PARTITION 1 FROM {empty} SETTINGS alter_sync = 2"
    assert error(pair.n1.post(replace)) == 36
    assert pair.rows(t) == "1\ta\n"
    pair.n1.query(f"{replace}, allow_replace_partition_from_empty_source = 1")
    assert pair.rows(t) == ""


def test_a_partition_that_is_merged_is_left_alone_if_that_is_wanted(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"OPTIMIZE TABLE {t} FINAL SETTINGS optimize_throw_if_noop = 1")  # no partition at all
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    skipping = f"OPTIMIZE TABLE {t} FINAL SETTINGS optimize_skip_merged_partitions = 1"
    pair.n1.query(skipping)
    pair.n1.query(skipping)
    assert error(pair.n1.post(f"{skipping}, optimize_throw_if_noop = 1")) == 388
    assert pair.n1.query(f"SELECT name FROM system.parts WHERE table = '{t}'") == "1_0_0_1\n"
    assert pair.n1.query(f"SELECT parts, active_parts FROM system.tables WHERE name = '{t}'") == "1\t1\n"


def test_parts_come_only_from_tables_whose_indexes_and_projections_are_known(pair: Pair) -> None:
    there = pair.table()
    for more, code in ((", INDEX i v TYPE minmax", 36), (", PROJECTION p (SELECT v ORDER BY v)", 36)):
        source = pair.table(f"k UInt64, v String{more}")
        pair.n1.query(f"INSERT INTO {source} VALUES (1, 'a')")
        assert error(pair.n1.post(f"ALTER TABLE {there} ATTACH PARTITION 1 FROM {source}")) == code
        pair.n1.query(f"ALTER TABLE {source} ATTACH PARTITION 1 FROM {there}")
    source = pair.table("v String, k UInt64, a UInt64 ALIAS k")
    pair.n1.query(f"INSERT INTO {source} VALUES ('b', 1)")
    pair.n1.query(f"ALTER TABLE {there} ATTACH PARTITION 1 FROM {source}")
    assert pair.rows(there) == "1\tb\n"


def test_whether_rows_of_a_select_are_deduplicated_can_be_chosen(pair: Pair) -> None:
    t = pair.table()
    for choice, select, count in (
        ("", "SELECT 1, 'a'", 1),
        ("", "SELECT 1, 'a'", 1),
        ("SETTINGS deduplicate_insert_select = 'enable_when_possible'", "SELECT 1, 'a' ORDER BY ALL", 1),
        ("SETTINGS deduplicate_insert_select = 'enable_when_possible'", "SELECT 1, 'a'", 2),
        ("SETTINGS deduplicate_insert_select = 'disable'", "SELECT 1, 'a' ORDER BY ALL", 3),
    ):
        pair.n1.query(f"INSERT INTO {t} {choice} {select}")
        assert pair.n1.query(f"SELECT count() FROM {t}") == f"{count}\n"
    unstable = f"INSERT INTO {t} SETTINGS deduplicate_insert_select = 'force_enable' SELECT 1, 'a'"
    assert error(pair.n1.post(unstable)) == 764


def test_optimize_deduplicates_by_columns(pair: Pair) -> None:
    t = pair.table("k UInt64, v String, w UInt8", rest="ORDER BY k")
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a', 1), (1, 'a', 2), (2, 'b', 1)")
    pair.n1.query(f"OPTIMIZE TABLE {t} FINAL DEDUPLICATE BY * EXCEPT w SETTINGS alter_sync = 2")
    assert pair.rows(t) == "1\ta\t1\n2\tb\t1\n"


def test_deduplication_that_no_replica_could_do_does_not_come_into_the_log(pair: Pair) -> None:
    t = pair.table("k UInt64, v String, m UInt8 MATERIALIZED 1, a UInt8 ALIAS 2", rest="ORDER BY k")
    for _ in range(2):
        pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')", insert_deduplicate="0")
    for columns, code in [("v", 8), ("* EXCEPT k", 8), ("k, a", 16), ("COLUMNS('none')", 51), ("k, k", 52)]:
        assert error(pair.n2.post(f"OPTIMIZE TABLE {t} FINAL DEDUPLICATE BY {columns}")) == code
    assert pair.rows(t) == "1\ta\n1\ta\n"
    assert pair.n1.query(f"SELECT count() FROM system.zookeeper WHERE path = '/tables/{t}/log'") == "2\n"
    pair.n1.query(f"ALTER TABLE {t} ADD PROJECTION p (SELECT v ORDER BY v) SETTINGS alter_sync = 2")
    assert error(pair.n2.post(f"OPTIMIZE TABLE {t} FINAL DEDUPLICATE")) == 344
    pair.n1.query(f"ALTER TABLE {t} DROP PROJECTION p")
    assert pair.n1.query(f"SELECT count() FROM system.replication_queue WHERE table = '{t}'") == "0\n"
    pair.n2.query(f"OPTIMIZE TABLE {t} FINAL DEDUPLICATE BY * SETTINGS alter_sync = 2")
    assert pair.rows(t) == "1\ta\n"


# -- SYSTEM --------------------------------------------------------------------------------------------------


def test_stopped_fetches_wait_until_they_are_started(pair: Pair) -> None:
    t = pair.table()
    pair.n2.query(f"SYSTEM STOP FETCHES {t}")
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    assert error(pair.n2.post(f"SYSTEM SYNC REPLICA {t}", receive_timeout="1")) == 159
    assert pair.n2.query(f"SELECT count() FROM {t}") == "0\n"
    [entry] = json_rows(pair.n2, f"SELECT * FROM system.replication_queue WHERE table = '{t}'")
    assert (entry["type"], entry["new_part_name"], entry["source_replica"]) == ("GET_PART", "1_0_0_0", "r1")
    pair.n2.query(f"SYSTEM START FETCHES {t}")
    assert pair.rows(t) == "1\ta\n"


def test_merges_are_stopped_for_all_tables(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query("CREATE TABLE not_replicated (a UInt8) ENGINE = MergeTree ORDER BY a")
    pair.n1.query("INSERT INTO not_replicated VALUES (1)")
    pair.n1.query("SYSTEM STOP MERGES")
    try:
        assert error(pair.n1.post("OPTIMIZE TABLE not_replicated FINAL")) == 236
        pair.n1.query(f"ALTER TABLE {t} ADD COLUMN n UInt8, RENAME COLUMN v TO w")
        pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a', 2)")
    finally:
        pair.n1.query("SYSTEM START MERGES")
    pair.n1.query("OPTIMIZE TABLE not_replicated FINAL")
    assert pair.rows(t) == "1\ta\t2\n"


def test_a_part_keeps_its_name_while_a_renamed_column_waits_to_be_rewritten(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    pair.synced(t)
    for node in pair.both:
        node.query(f"SYSTEM STOP MERGES {t}")
    pair.n1.query(f"ALTER TABLE {t} RENAME COLUMN v TO w SETTINGS alter_sync = 0")
    for node in pair.both:
        wait_for(lambda at=node: at.post(f"SELECT w FROM {t}").text == "a\n")  # type: ignore[misc]
    names = f"SELECT name FROM system.parts WHERE table = '{t}'"
    assert pair.same(names) == "1_0_0_0\n"
    for node in pair.both:
        node.query(f"SYSTEM START MERGES {t}")
        wait_for(lambda at=node: at.query(names) == "1_0_0_0_1\n")  # type: ignore[misc]
    assert pair.rows(t) == "1\ta\n"


def test_a_replica_is_restarted(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    pair.n1.query(f"SYSTEM RESTART REPLICA {t}")
    pair.n1.query("SYSTEM RESTART REPLICAS")
    pair.n1.query(f"INSERT INTO {t} VALUES (2, 'b')")
    assert pair.rows(t) == "1\ta\n2\tb\n"


def test_commands_about_memory_are_chdbs(pair: Pair) -> None:
    t = pair.table()
    for command in ("UNLOAD PRIMARY KEY", "LOAD PRIMARY KEY", "WAIT LOADING PARTS"):
        pair.n1.query(f"SYSTEM {command} {t}")


def test_only_the_replica_of_a_dead_server_is_dropped(pair: Pair) -> None:
    t = pair.table()
    assert error(pair.n1.post(f"SYSTEM DROP REPLICA 'r1' FROM TABLE {t}")) == 305
    assert error(pair.n1.post(f"SYSTEM DROP REPLICA 'r2' FROM TABLE {t}")) == 305
    pair.n2.query(f"DETACH TABLE {t}")
    pair.n1.query(f"SYSTEM DROP REPLICA 'r2' FROM TABLE {t}")
    assert pair.n1.query(f"SELECT total_replicas FROM system.replicas WHERE table = '{t}'") == "1\n"


def test_a_replica_that_keeper_has_lost_is_restored(pair: Pair) -> None:
    """1. Its server is away and somebody drops the replica. 2. It comes back, reads and does not write.
    3. It is restored, and takes what it has instead of fetching it."""
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a'), (2, 'b')")
    pair.synced(t)
    assert error(pair.n2.post(f"SYSTEM RESTORE REPLICA {t}")) == 36
    pair.n2.query(f"DETACH TABLE {t}")
    pair.n1.query(f"SYSTEM DROP REPLICA 'r2' FROM ZKPATH '/tables/{t}'")
    pair.n2.query(f"ATTACH TABLE {t}")
    assert pair.n2.query(f"SELECT count() FROM {t}") == "2\n"
    assert error(pair.n2.post(f"INSERT INTO {t} VALUES (3, 'c')")) == 242
    assert pair.n2.query(f"SELECT is_readonly FROM system.replicas WHERE table = '{t}'") == "1\n"
    pair.n2.query(f"SYSTEM RESTORE REPLICA {t}")
    pair.n1.query(f"INSERT INTO {t} VALUES (3, 'c')")
    assert pair.rows(t) == "1\ta\n2\tb\n3\tc\n"


def test_a_dropped_table_is_undropped_with_what_the_others_did_meanwhile(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} SELECT number, 'a' FROM numbers(6)")
    pair.n2.query(f"ALTER TABLE {t} DROP PARTITION 1")
    pair.n2.query(f"INSERT INTO {t} VALUES (7, 'b')")
    pair.synced(t)
    pair.n2.query(f"DROP TABLE {t}")
    pair.n1.query(f"ALTER TABLE {t} ADD COLUMN n UInt8 DEFAULT 1")
    pair.n1.query(f"INSERT INTO {t} VALUES (9, 'c', 2)")
    pair.n2.query(f"UNDROP TABLE {t}")
    rows = "0\ta\t1\n2\ta\t1\n4\ta\t1\n7\tb\t1\n9\tc\t2\n"
    assert pair.rows(t) == rows
    assert pair.n1.query(f"SELECT total_replicas FROM system.replicas WHERE table = '{t}'") == "2\n"
    # The last replica takes the table in Keeper with it, and makes it again.
    pair.n1.query(f"DROP TABLE {t} SYNC")
    pair.n2.query(f"DROP TABLE {t}")
    pair.n2.query(f"UNDROP TABLE {t}")
    pair.n2.query(f"INSERT INTO {t} VALUES (11, 'd', 3)")
    assert pair.n2.query(f"SELECT * FROM {t} ORDER BY ALL") == rows + "11\td\t3\n"
    # In the meantime somebody has taken its place.
    pair.n2.query(f"DROP TABLE {t}")
    pair.n2.query(
        f"CREATE TABLE {t}_2 (k UInt64) ENGINE = ReplicatedMergeTree('/tables/{t}', 'r2') ORDER BY k"
    )
    assert error(pair.n2.post(f"UNDROP TABLE {t}")) == 253
    pair.n2.query(f"DROP TABLE {t}_2 SYNC")
    pair.n2.query(f"UNDROP TABLE {t}")
    pair.n2.query(f"DROP TABLE {t} SYNC")
    assert error(pair.n2.post(f"UNDROP TABLE {t}")) == 60


def test_a_table_of_a_backup_is_attached_with_its_whole_definition_and_restored(pair: Pair) -> None:
    """1. Data directory and definition come from a backup. 2. Keeper knows nothing of the table. 3. RESTORE
    makes the replica of the parts that are there; after that ATTACH finds it in Keeper."""
    t, uuid = pair.table(), "0a1b2c3d-0000-4000-8000-000000000077"
    pair.n1.query(f"INSERT INTO {t} SELECT number, 'a' FROM numbers(4)")
    pair.n1.query(f"ALTER TABLE {t} UPDATE v = 'm' WHERE k = 1 SETTINGS mutations_sync = 2")
    pair.n1.query(f"ALTER TABLE {t} FREEZE WITH NAME 'b{t}'")
    [data] = json_rows(pair.n1, f"SELECT data_paths FROM system.tables WHERE name = '{t}'")
    root, _, below = str(data["data_paths"][0]).partition("/store/")
    shutil.copytree(f"{root}/shadow/b{t}/store/{below}", f"{root}/store/{uuid[:3]}/{uuid}")
    place = "'/tables/restored', '{replica}'"
    definition = f"(k UInt64, v String) ENGINE = ReplicatedMergeTree({place}) PARTITION BY k % 2 ORDER BY k"
    assert error(pair.n1.post(f"ATTACH TABLE a{t} {definition}")) == 80
    attach = f"ATTACH TABLE a{t} UUID '{uuid}' {definition}"
    pair.n1.query(attach)
    assert pair.n1.query(f"SELECT * FROM a{t} ORDER BY k") == "0\ta\n1\tm\n2\ta\n3\ta\n"
    assert error(pair.n1.post(f"INSERT INTO a{t} VALUES (9, 'c')")) == 242
    pair.n1.query(f"SYSTEM RESTORE REPLICA a{t}")
    pair.n1.query(f"INSERT INTO a{t} VALUES (9, 'c')")
    assert (
        error(pair.n2.post(f"ATTACH TABLE b{t} UUID '{uuid}' {definition.replace('{replica}', 'n1')}")) == 253
    )
    pair.n1.query(f"DETACH TABLE a{t}")
    pair.n1.query(f"ATTACH TABLE a{t}")
    assert pair.n1.query(f"SELECT count() FROM a{t}") == "5\n"
    pair.n1.query(f"DROP TABLE a{t} SYNC")


# -- ON CLUSTER ----------------------------------------------------------------------------------------------


def test_on_cluster_one_replica_of_the_shard_does_it_for_all(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} SELECT number, 'x' FROM numbers(4)")
    pair.n2.query(f"ALTER TABLE {t} ON CLUSTER all ADD COLUMN n UInt8 DEFAULT 1")
    pair.n1.query(f"ALTER TABLE {t} ON CLUSTER all UPDATE n = n + 1 WHERE true SETTINGS mutations_sync = 2")
    assert pair.rows(t) == "0\tx\t2\n1\tx\t2\n2\tx\t2\n3\tx\t2\n"
    pair.n2.query(f"ALTER TABLE {t} ON CLUSTER all DROP PARTITION 1")
    pair.n1.query(f"OPTIMIZE TABLE {t} ON CLUSTER all FINAL")
    assert pair.rows(t) == "0\tx\t2\n2\tx\t2\n"
    pair.n1.query(f"DELETE FROM {t} ON CLUSTER all WHERE k = 0")
    assert pair.rows(t) == "2\tx\t2\n"
    pair.n1.query(f"TRUNCATE TABLE {t} ON CLUSTER all")
    assert pair.rows(t) == ""
    pair.n1.query(f"SYSTEM STOP MERGES ON CLUSTER all {t}")
    pair.n1.query(f"SYSTEM START MERGES ON CLUSTER all {t}")
    pair.n1.query(f"SYSTEM SYNC REPLICA ON CLUSTER all {t}")


def wait_for(is_so: Callable[[], bool]) -> None:
    """Until it is so; the test's own time limit ends it otherwise."""
    while not is_so():
        time.sleep(0.05)


# -- system tables -------------------------------------------------------------------------------------------


def test_system_replicas_shows_both_replicas(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    pair.synced(t)
    for number, node in enumerate(pair.both, start=1):
        [row] = json_rows(node, f"SELECT * FROM system.replicas WHERE table = '{t}'")
        assert row["engine"] == "ReplicatedMergeTree"
        assert (row["zookeeper_path"], row["replica_name"]) == (f"/tables/{t}", f"r{number}")
        assert (row["total_replicas"], row["active_replicas"]) == (2, 2)
        assert row["replica_is_active"] == {"r1": 1, "r2": 1}
        assert (row["is_readonly"], row["is_session_expired"], row["queue_size"]) == (0, 0, 0)
        assert (int(row["log_max_index"]), int(row["log_pointer"])) == (0, 1)
        assert row["zookeeper_exception"] == ""


def test_columns_that_keeper_knows_are_left_out_when_nobody_asks(pair: Pair) -> None:
    t = pair.table()
    assert pair.n1.query(f"SELECT count(*) FROM system.replicas WHERE table = '{t}'") == "1\n"
    assert pair.n1.query(f"SELECT replica_name FROM system.replicas WHERE table = '{t}'") == "r1\n"


def test_while_keeper_hangs_rows_are_read_and_the_system_tables_answer(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    pair.synced(t)
    pair.zookeeper.pause()
    try:
        assert pair.n1.query(f"SELECT * FROM {t}") == "1\ta\n"
        assert pair.n1.query(f"SELECT queue_size FROM system.replicas WHERE table = '{t}'") == "0\n"
        assert pair.n1.query(f"SELECT count() FROM system.replication_queue WHERE table = '{t}'") == "0\n"
        [row] = json_rows(pair.n1, f"SELECT * FROM system.replicas WHERE table = '{t}'")
        assert row["zookeeper_exception"] != ""
        assert pair.n1.get("/replicas_status").status == 200
    finally:
        pair.zookeeper.resume()
    wait_for(lambda: pair.n1.post(f"INSERT INTO {t} VALUES (2, 'b')").status == 200)
    wait_for(lambda: pair.n2.post(f"SYSTEM SYNC REPLICA {t}").status == 200)
    assert pair.rows(t) == "1\ta\n2\tb\n"


def test_system_parts_shows_replicated_names_and_aliases(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query("CREATE TABLE IF NOT EXISTS plain (a UInt8) ENGINE = MergeTree ORDER BY a")
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    pair.n1.query("INSERT INTO plain VALUES (1)")
    sql = (
        "SELECT name, part_name, min_block_number, level, data_version, engine, uuid FROM system.parts "
        "WHERE table = '{}' AND active"
    )
    nil = "00000000-0000-0000-0000-000000000000"
    assert pair.n1.query(sql.format(t)) == f"1_0_0_0\t1_0_0_0\t0\t0\t0\tReplicatedMergeTree\t{nil}\n"
    assert pair.n1.query(sql.format("plain")).startswith("all_1_1_0\tall_1_1_0\t1\t0\t1\tMergeTree\t")
    assert int(pair.n1.query(f"SELECT sum(bytes) FROM system.parts WHERE table = '{t}'")) > 0
    assert int(pair.n1.query("SELECT count() FROM system.parts")) >= 2
    nested = f"SELECT p.move_ttl_info.expression, `level` FROM system.parts AS p WHERE p.table = '{t}'"
    assert pair.n1.query(nested) == "[]\t0\n"
    [row] = json_rows(pair.n1, f"SELECT * FROM system.parts WHERE table = '{t}' AND active")
    assert (row["name"], row["part_name"]) == ("1_0_0_0", "1_0_0_0")
    assert "part_type" in pair.n1.query("DESCRIBE TABLE system.parts")
    assert int(pair.n1.query("SELECT count() FROM (SELECT COLUMNS('disk') FROM system.parts)")) >= 2
    columns = f"SELECT name, column FROM system.parts_columns WHERE table = '{t}' ORDER BY column"
    assert pair.n1.query(columns) == "1_0_0_0\tk\n1_0_0_0\tv\n"


def test_killed_mutations_are_told(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    pair.synced(t)
    for node in pair.both:
        node.query(f"SYSTEM STOP MERGES {t}")
    pair.n1.query(f"ALTER TABLE {t} UPDATE v = 'z' WHERE true SETTINGS mutations_sync = 0")
    [row] = json_rows(pair.n1, f"SELECT * FROM system.mutations WHERE table = '{t}'")
    assert (row["is_done"], row["parts_to_do_names"], row["command"]) == (
        0,
        ["1_0_0_0"],
        "UPDATE v = 'z' WHERE true",
    )
    where = f"WHERE table = '{t}'"
    tested = pair.n1.query(f"KILL MUTATION {where} TEST")
    assert tested == f"waiting\tdefault\t{t}\t0000000000\tUPDATE v = \\'z\\' WHERE true\n"
    assert pair.n1.query(f"KILL MUTATION {where} FORMAT JSONEachRow").startswith('{"kill_status":"waiting"')
    assert pair.n1.query(f"SELECT count() FROM system.mutations {where}") == "0\n"
    for node in pair.both:
        node.query(f"SYSTEM START MERGES {t}")
    assert pair.rows(t) == "1\ta\n"


def test_replicas_status_names_a_table_that_is_behind(pair: Pair) -> None:
    """And waits for nobody: the load balancer asks again."""
    t = pair.table(rest="ORDER BY k SETTINGS min_absolute_delay_to_close = 1")
    pair.n2.query(f"SYSTEM STOP FETCHES {t}")
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    wait_for(lambda: pair.n2.get("/replicas_status").status == 503)
    assert pair.n2.get("/replicas_status").text.startswith(f"default.{t}:\tAbsolute delay: ")
    assert pair.n1.get("/replicas_status").status == 200
    pair.n2.query(f"SYSTEM START FETCHES {t}")
    pair.synced(t)
    assert pair.n2.get("/replicas_status").status == 200


def test_replicas_status_is_fine(pair: Pair) -> None:
    for node in pair.both:
        reply = node.get("/replicas_status")
        assert (reply.status, reply.text) == (200, "Ok.\n")
