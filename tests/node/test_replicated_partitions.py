"""Partition commands of replicated tables, on two real nodes and ZooKeeper."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.node.replicated_pair import Pair, error, json_rows

pytestmark = pytest.mark.slow


@pytest.mark.extended
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


def test_what_chdb_covers_dropped_parts_with_is_no_part(pair: Pair) -> None:
    """When the table is attached again chDB has such empty parts, of which the node knows nothing."""
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a'), (2, 'b')")
    pair.n1.query(f"ALTER TABLE {t} DROP PARTITION 0")
    for again in ("DROP TABLE {}; UNDROP TABLE {}", "DETACH TABLE {} PERMANENTLY; ATTACH TABLE {}"):
        for sql in again.format(t, t).split("; "):
            pair.n1.query(sql)
        pair.n1.query(f"SYSTEM SYNC REPLICA {t}")
        assert pair.n1.query(f"SELECT name FROM system.parts WHERE table = '{t}'") == "1_0_0_0\n"


def test_truncate(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} SELECT number, 'x' FROM numbers(4)")
    pair.n2.query(f"TRUNCATE TABLE {t}")
    assert pair.rows(t) == ""


def _files(root: Path) -> dict[str, dict[str, bytes]]:
    """Part → file → content, of all parts somewhere below."""
    found: dict[str, dict[str, bytes]] = {}
    for file in root.rglob("*"):
        if file.is_file():
            found.setdefault(file.parent.name, {})[file.name] = file.read_bytes()
    return found


def test_frozen_parts_are_those_of_the_replica_and_can_be_attached_again(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} SELECT number, 'x' FROM numbers(4)")
    pair.n1.query(f"ALTER TABLE {t} UPDATE v = 'm' IN PARTITION 1 WHERE k = 3 SETTINGS mutations_sync = 2")
    [data] = json_rows(pair.n1, f"SELECT data_paths[1] AS path FROM system.tables WHERE name = '{t}'")
    root, _, below = str(data["path"]).partition("/store/")
    shadow = Path(root, "shadow")
    pair.n1.query(f"ALTER TABLE {t} FREEZE WITH NAME 'kept{t}'")
    kept = _files(shadow / f"kept{t}" / "store" / below)
    assert sorted(kept) == ["0_0_0_0", "1_0_0_0_1"]
    for line in json_rows(pair.n1, f"SELECT name, path FROM system.parts WHERE table = '{t}' AND active"):
        [here] = _files(Path(line["path"])).values()
        assert kept[line["name"]].items() <= here.items()
    before = set(shadow.iterdir())
    pair.n1.query(f"ALTER TABLE {t} FREEZE PARTITION 1")
    [one] = set(shadow.iterdir()) - before
    assert _files(one / "store" / below) == {"1_0_0_0_1": kept["1_0_0_0_1"]}

    pair.n1.query(f"TRUNCATE TABLE {t}")
    for part in kept:
        shutil.copytree(
            shadow / f"kept{t}" / "store" / below / part, Path(str(data["path"]), "detached", part)
        )
    pair.n1.query(f"ALTER TABLE {t} ATTACH PARTITION ALL")
    assert pair.rows(t) == "0\tx\n1\tx\n2\tx\n3\tm\n"

    pair.n1.query(f"ALTER TABLE {t} UNFREEZE PARTITION 0 WITH NAME 'kept{t}'")
    assert sorted(_files(shadow / f"kept{t}" / "store" / below)) == ["1_0_0_0_1"]
    pair.n1.query(f"ALTER TABLE {t} UNFREEZE WITH NAME 'kept{t}'")
    assert _files(shadow / f"kept{t}") == {}
    assert _files(one / "store" / below) != {}


def test_fetching_a_partition_is_tried_as_often_as_the_statement_says(pair: Pair) -> None:
    a, b = pair.table(), pair.table()
    pair.n2.query(f"INSERT INTO {a} VALUES (1, 'a')")
    pair.n1.query(f"DETACH TABLE {a}")
    pair.n2.query(f"SYSTEM STOP REPLICATED SENDS {a}")
    fetch = f"ALTER TABLE {b} FETCH PARTITION 1 FROM '/tables/{a}'"
    log = pair.local.node("n1").process.log_file
    for given in (1, 2):
        assert error(pair.n1.post(f"{fetch} SETTINGS max_fetch_partition_retries_count = {given}")) != 0
        tried = sum(f"replication.fetch_again table=default.{b} " in line for line in log.open())
        assert tried == {1: 1, 2: 3}[given]
    pair.n2.query(f"SYSTEM START REPLICATED SENDS {a}")
    pair.n1.query(f"{fetch} SETTINGS max_fetch_partition_retries_count = 1")
    assert pair.n1.query(f"SELECT name FROM system.detached_parts WHERE table = '{b}'") == "1_0_0_0\n"
    pair.n1.query(f"ATTACH TABLE {a}")


def test_detached_parts_are_dropped_only_if_that_is_allowed(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    pair.n1.query(f"ALTER TABLE {t} DETACH PARTITION 1")
    assert error(pair.n1.post(f"ALTER TABLE {t} DROP DETACHED PARTITION 1")) == 344
    pair.n1.query(f"ALTER TABLE {t} DROP DETACHED PARTITION 1 SETTINGS allow_drop_detached = 1")
    assert pair.n1.query(f"SELECT count() FROM system.detached_parts WHERE table = '{t}'") == "0\n"


def test_a_partition_is_not_replaced_by_nothing(pair: Pair) -> None:
    t, empty = pair.table(), pair.table()
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    replace = f"ALTER TABLE {t} REPLACE PARTITION 1 FROM {empty} SETTINGS alter_sync = 2"
    assert error(pair.n1.post(replace)) == 36
    assert pair.rows(t) == "1\ta\n"
    pair.n1.query(f"{replace}, allow_replace_partition_from_empty_source = 1")
    assert pair.rows(t) == ""


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


def test_a_part_is_fetched_checked_and_dropped_by_its_name(pair: Pair) -> None:
    a, b = pair.table(), pair.table()
    pair.n2.query(f"INSERT INTO {a} SELECT number, 'a' FROM numbers(4)")
    pair.n2.query(f"INSERT INTO {a} VALUES (5, 'b')")
    pair.synced(a)
    detached = f"SELECT name FROM system.detached_parts WHERE table = '{b}'"
    pair.n1.query(f"ALTER TABLE {b} FETCH PART '1_1_1_0' FROM '/tables/{a}'")
    assert error(pair.n1.post(f"ALTER TABLE {b} FETCH PART '1_1_1_0' FROM '/tables/{a}'")) == 256
    assert error(pair.n1.post(f"ALTER TABLE {b} FETCH PART '1_7_7_0' FROM '/tables/{a}'")) == 248
    assert pair.n1.query(detached) == "1_1_1_0\n"
    assert error(pair.n1.post(f"ALTER TABLE {b} DROP DETACHED PART '1_1_1_0'")) == 344
    pair.n1.query(f"ALTER TABLE {b} DROP DETACHED PART '1_1_1_0' SETTINGS allow_drop_detached = 1")
    assert pair.n1.query(detached) == ""
    for path, code in (("tables/x", 36), ("other_keeper:/tables/x", 48), (f"/{'x' * 2000}", 36)):
        assert error(pair.n1.post(f"ALTER TABLE {b} FETCH PARTITION 1 FROM '{path}'")) == code

    assert pair.n1.query(f"CHECK TABLE {a} PARTITION 1") == "1_0_0_0\t1\t\n1_1_1_0\t1\t\n"
    assert pair.n1.query(f"CHECK TABLE {a} PART '0_0_0_0' FORMAT TSV") == "0_0_0_0\t1\t\n"
    assert error(pair.n1.post(f"CHECK TABLE {a} PART '0_9_9_0'")) == 232
    pair.n1.query(f"CREATE TABLE plain{a} AS {a} ENGINE = MergeTree PARTITION BY k % 2 ORDER BY k")
    assert error(pair.n1.post(f"ALTER TABLE {a} MOVE PARTITION 1 TO TABLE plain{a}")) == 48
    pair.n2.query(f"ALTER TABLE {a} DROP PARTITION ALL")
    assert pair.rows(a) == ""


def test_a_partition_that_is_empty_is_forgotten(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} VALUES (0, 'a'), (1, 'a')")
    pair.synced(t)
    assert error(pair.n1.post(f"ALTER TABLE {t} FORGET PARTITION 1")) == 716
    pair.n1.query(f"ALTER TABLE {t} DROP PARTITION 1 SETTINGS alter_sync = 2")
    pair.n1.query(f"ALTER TABLE {t} FORGET PARTITION 1")
    assert pair.children(f"/tables/{t}/block_numbers") == ["0"]
    assert error(pair.n2.post(f"ALTER TABLE {t} FORGET PARTITION 1")) == 716
    assert pair.rows(t) == "0\ta\n"
