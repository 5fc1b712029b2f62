"""Settings of replicated tables: who follows them, and what a setting of one replica allows to all."""

from __future__ import annotations

import pytest

from tests.node.replicated_pair import Pair, error, refused, wait_for

pytestmark = pytest.mark.slow


def test_what_a_setting_has_allowed_is_done_on_all_replicas(pair: Pair) -> None:
    t = pair.table()
    add = f"ALTER TABLE {t} ADD COLUMN l LowCardinality(UInt8)"
    assert error(pair.n1.post(add)) == 455
    pair.n1.query(add, allow_suspicious_low_cardinality_types="1")
    pair.synced(t)
    pair.n2.query(f"INSERT INTO {t} VALUES (1, 'a', 2)")
    pair.n1.query(f"ALTER TABLE {t} ADD COLUMN m UInt8")
    assert pair.rows(t) == "1\ta\t2\t0\n"


def test_an_alter_that_the_settings_of_one_replica_allow_is_done_on_all(pair: Pair) -> None:
    t = pair.table("k UInt64, v UInt8, INDEX i v TYPE minmax", engine="ReplicatedReplacingMergeTree")
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 2)")
    pair.n1.query(f"ALTER TABLE {t} MODIFY SETTING deduplicate_merge_projection_mode = 'rebuild'")
    pair.n2.query(f"ALTER TABLE {t} MODIFY SETTING alter_column_secondary_index_mode = 'throw'")
    change = f"ALTER TABLE {t} ADD PROJECTION p (SELECT k ORDER BY k), MODIFY COLUMN v UInt16"
    assert error(pair.n2.post(change)) in (344, 524)
    pair.n1.query(change, alter_sync="2")
    pair.n2.query(f"OPTIMIZE TABLE {t} FINAL", alter_sync="2")
    assert pair.rows(t) == "1\t2\n"
    key = f"ALTER TABLE {t} ADD COLUMN x Nullable(Int8), MODIFY ORDER BY (k, x)"
    assert error(pair.n1.post(key)) == 44
    pair.n1.query(f"ALTER TABLE {t} MODIFY SETTING allow_nullable_key = 1")
    assert error(pair.n1.post(key)) == 44, "chDB reads that setting once"


def test_settings_that_the_node_follows_itself_take_what_chdb_takes(pair: Pair) -> None:
    create = "CREATE TABLE wrong (k UInt8) ENGINE = ReplicatedMergeTree('/wrong', 'r') ORDER BY k SETTINGS"
    assert error(pair.n1.post(f"{create} max_suspicious_broken_parts = -1")) == 70
    assert pair.n1.query("EXISTS wrong") == "0\n"
    t = pair.table(rest="ORDER BY k SETTINGS max_suspicious_broken_parts = 0x10")
    change = f"ALTER TABLE {t} MODIFY SETTING parts_to_throw_insert = 0x20"
    assert error(pair.n1.post(f"{change}, assign_part_uuids = 'yes'")) == 467
    pair.n1.query(f"{change}, remove_empty_parts = false")
    shown = pair.n1.query(f"SHOW CREATE TABLE {t} FORMAT TSVRaw").partition("SETTINGS ")[2].strip()
    assert set(shown.split(", ")) == {
        "index_granularity = 8192",
        "parts_to_throw_insert = 32",
        "max_suspicious_broken_parts = 16",
        "remove_empty_parts = false",
    }


def test_projections_and_samples_that_the_settings_of_one_replica_allow_are_on_all(pair: Pair) -> None:
    columns = "k UInt64, v UInt8, PROJECTION one (SELECT v ORDER BY v)"
    t = pair.table(columns, rest="ORDER BY k")
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 2)")
    sampling = "compatibility_allow_sampling_expression_not_in_primary_key = 1"
    blocks = "allow_commit_order_projection = 1, enable_block_number_column = 1"
    pair.n1.query(f"ALTER TABLE {t} MODIFY SETTING {blocks}, {sampling}")
    refusing = "max_projections = 1, allow_part_offset_column_in_projections = 0"
    pair.n2.query(f"ALTER TABLE {t} MODIFY SETTING {refusing}")
    offset = f"ALTER TABLE {t} ADD PROJECTION two (SELECT k, _part_offset ORDER BY v)"
    block = f"ALTER TABLE {t} ADD PROJECTION three (SELECT k, _block_number ORDER BY _block_number)"
    sample = f"ALTER TABLE {t} MODIFY SAMPLE BY v"
    assert [error(pair.n2.post(sql)) for sql in (offset, block, sample)] == [290, 290, 36]
    for sql in (offset, block, sample, f"ALTER TABLE {t} ADD COLUMN w UInt8"):
        pair.n1.query(sql, alter_sync="2")
    pair.n2.query(f"INSERT INTO {t} VALUES (3, 4, 0)")
    pair.n2.query(f"ALTER TABLE {t} UPDATE w = 5 WHERE k = 3", mutations_sync="2")
    pair.n2.query(f"OPTIMIZE TABLE {t} FINAL", alter_sync="2")
    assert pair.rows(t) == "1\t2\t0\n3\t4\t5\n"
    assert error(pair.n2.post(f"ALTER TABLE {t} MODIFY SETTING max_projections = 2")) == 290
    pair.restart("n2")
    changes = "DROP PROJECTION one, DROP PROJECTION two, ADD COLUMN x UInt8"
    pair.n1.query(f"ALTER TABLE {t} {changes}")
    wait_for(lambda: pair.n2.post(f"SYSTEM SYNC REPLICA {t}").status == 200)
    assert error(pair.n1.post(f"ALTER TABLE {t} RESET SETTING allow_commit_order_projection")) == 36
    pair.n2.query(f"ALTER TABLE {t} MODIFY SETTING max_projections = 1")
    assert pair.rows(t) == "1\t2\t0\t0\n3\t4\t5\t0\n"


def test_a_replicated_table_cannot_be_made_readonly_by_a_setting(pair: Pair) -> None:
    t = pair.table(rest="ORDER BY k")
    error_text = "table_readonly is not supported"
    for value in ("1", "true"):
        refused(pair.n1.post(f"ALTER TABLE {t} MODIFY SETTING table_readonly = {value}"), 48, error_text)
    pair.n1.query(f"ALTER TABLE {t} MODIFY SETTING table_readonly = 0")
    pair.n1.query(f"ALTER TABLE {t} RESET SETTING table_readonly")
    new = (
        "(k UInt8) ENGINE = ReplicatedMergeTree('/tables/readonly', 'r1') ORDER BY k "
        "SETTINGS table_readonly = 1"
    )
    refused(pair.n1.post(f"CREATE TABLE made_readonly {new}"), 48, error_text)
    uuid = "aaaaaaaa-1111-2222-3333-aaaaaaaaaaaa"
    refused(pair.n1.post(f"ATTACH TABLE made_readonly UUID '{uuid}' {new}"), 48, error_text)
    pair.n1.query(
        "CREATE TABLE plain_readonly (k UInt8) ENGINE = MergeTree ORDER BY k SETTINGS table_readonly = 1"
    )
    pair.n1.query("DETACH TABLE plain_readonly")
    refused(pair.n1.post("ATTACH TABLE plain_readonly AS REPLICATED"), 48, error_text)
    pair.n1.query("ATTACH TABLE plain_readonly")
    pair.n1.query("DROP TABLE plain_readonly SYNC")


def test_a_table_above_its_largest_size_takes_what_others_have_and_nothing_that_it_is_asked(
    pair: Pair,
) -> None:
    t, other = pair.table(rest="ORDER BY k"), pair.table(rest="ORDER BY k")
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a'), (2, 'b')")
    pair.n1.query(f"INSERT INTO {other} VALUES (5, 'e')")
    for limit in ("rows", "bytes_compressed", "bytes_uncompressed"):
        name = f"max_table_size_{limit}"
        pair.n1.query(f"ALTER TABLE {t} MODIFY SETTING {name} = 1")
        assert f"{name} = 1" in pair.n1.query(f"SHOW CREATE TABLE {t}")
        refused(pair.n1.post(f"INSERT INTO {t} VALUES (3, 'c')"), 1016, f"{name} = 1")
        pair.n2.query(f"INSERT INTO {t} VALUES (3, '{limit}')")
        for command in (
            f"ALTER TABLE {t} ATTACH PARTITION tuple()",
            f"ALTER TABLE {t} ATTACH PARTITION tuple() FROM {other}",
            f"ALTER TABLE {other} MOVE PARTITION tuple() TO TABLE {t}",
        ):
            refused(pair.n1.post(command), 1016)
        pair.n1.query(f"OPTIMIZE TABLE {t} FINAL", alter_sync="2")
        pair.n1.query(f"ALTER TABLE {t} UPDATE v = 'x' WHERE k < 3", mutations_sync="2")
        pair.n2.query(f"DELETE FROM {t} WHERE k = 3")
        assert pair.rows(t) == "1\tx\n2\tx\n"
        pair.n1.query(f"ALTER TABLE {t} RESET SETTING {name}")
    pair.n1.query(f"ALTER TABLE {t} MODIFY SETTING max_table_size_rows = 3")
    pair.n1.query(f"INSERT INTO {t} VALUES (4, 'd')")
    refused(pair.n1.post(f"INSERT INTO {t} VALUES (5, 'e')"), 1016)


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
