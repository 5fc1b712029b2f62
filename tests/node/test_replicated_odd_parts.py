"""Parts of plain tables that are other than most: with UUIDs of their own, or packed; on two real nodes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.node.replicated_pair import Pair, eventually, refused

pytestmark = pytest.mark.slow

PACKED = "min_bytes_for_full_part_storage = '1Gi'"
UUIDS = "assign_part_uuids = 1"


def plain(pair: Pair, name: str, settings: str) -> str:
    pair.n1.query(
        f"CREATE TABLE d.{name} (k UInt64) ENGINE = MergeTree PARTITION BY k % 2 ORDER BY k "
        f"SETTINGS {settings}"
    )
    pair.n1.query(f"INSERT INTO d.{name} SELECT number FROM numbers(10)")
    return f"d.{name}"


def write_anew(pair: Pair, t: str, hint: str) -> None:
    """What the error's hint says."""
    alter, _, optimize = hint.replace("`", "").rpartition("ALTER TABLE")[2].partition("; then ")
    pair.n1.query(f"ALTER TABLE {alter}")
    pair.n1.query(optimize.partition(" writes")[0])


def restored(pair: Pair, t: str) -> str:
    """Rows and their sum, with one of 100 more."""
    pair.n1.query(f"SYSTEM RESTORE REPLICA {t}")
    pair.n1.query(f"INSERT INTO {t} VALUES (100)")
    return pair.n1.query(f"SELECT count(), sum(k) FROM {t}")


def test_parts_that_carry_names_of_another_table_keep_their_rows(pair: Pair) -> None:
    """1. Parts of a replicated table are copied to a plain one, whose own parts are called as those were.
    2. That becomes replicated."""
    source = pair.table(rest="ORDER BY k")
    for row in ("(1, 'a')", "(2, 'a')", "(3, 'a')"):
        pair.n1.query(f"INSERT INTO {source} VALUES {row}")
    pair.n1.query("CREATE TABLE d.mixed (k UInt64, v String) ENGINE = MergeTree ORDER BY k")
    pair.n1.query("SYSTEM STOP MERGES d.mixed")
    for row in ("(10, 'b')", "(20, 'b')", "(30, 'b')"):
        pair.n1.query(f"INSERT INTO d.mixed VALUES {row}")
    [path] = pair.n1.query("SELECT data_paths[1] FROM system.tables WHERE name = 'mixed'").split()
    [copied] = pair.n1.query(f"SELECT data_paths[1] FROM system.tables WHERE name = '{source}'").split()
    for part in Path(copied).glob("all_*"):
        assert (part / "uuid.txt").exists()
        shutil.copytree(part, Path(path) / "detached" / part.name)
    pair.n1.query("ALTER TABLE d.mixed ATTACH PARTITION tuple()")
    pair.n1.query("DETACH TABLE d.mixed")
    pair.n1.query("ATTACH TABLE d.mixed AS REPLICATED")
    assert pair.n1.query("SELECT count(), sum(k) FROM d.mixed") == "6\t66\n"
    pair.n1.query("SYSTEM RESTORE REPLICA d.mixed")
    pair.n1.query("INSERT INTO d.mixed VALUES (100, 'c')")
    assert pair.n1.query("SELECT count(), sum(k) FROM d.mixed") == "7\t166\n"


@pytest.mark.parametrize(
    ("name", "settings", "told"), [("packed", PACKED, "packed into one"), ("with_uuids", UUIDS, "UUID")]
)
def test_a_table_becomes_no_replicated_one_before_its_parts_can_be_parts_of_one(
    pair: Pair, name: str, settings: str, told: str
) -> None:
    t = plain(pair, name, settings)
    pair.n1.query(f"DETACH TABLE {t}")
    reply = pair.n1.post(f"ATTACH TABLE {t} AS REPLICATED")
    refused(reply, 48, told)
    pair.n1.query(f"ATTACH TABLE {t}")
    write_anew(pair, t, reply.text)
    pair.n1.query(f"DETACH TABLE {t}")
    pair.n1.query(f"ATTACH TABLE {t} AS REPLICATED")
    assert restored(pair, t) == "11\t145\n"


def test_the_flag_of_a_table_with_packed_parts_leaves_it_as_it_is(pair: Pair) -> None:
    t = plain(pair, "packed_flag", PACKED)
    [path] = pair.n1.query("SELECT data_paths[1] FROM system.tables WHERE name = 'packed_flag'").split()
    (Path(path) / "convert_to_replicated").touch()
    pair.restart("n1")
    pair.n1.query(f"INSERT INTO {t} VALUES (100)")
    assert pair.n1.query(f"SELECT count(), sum(k) FROM {t}") == "11\t145\n"
    assert pair.n1.query("SELECT engine FROM system.tables WHERE name = 'packed_flag'") == "MergeTree\n"


@pytest.mark.parametrize(
    ("name", "settings", "told"), [("packed_too", PACKED, "packed into one"), ("uuids_too", UUIDS, "UUID")]
)
def test_such_parts_of_a_plain_table_come_into_a_replicated_one_when_they_are_written_anew(
    pair: Pair, name: str, settings: str, told: str
) -> None:
    t = plain(pair, name, settings)
    target = pair.table("k UInt64")
    commands = [f"ALTER TABLE {target} {what} PARTITION 1 FROM {t}" for what in ("ATTACH", "REPLACE")]
    for command in commands:
        reply = pair.n1.post(command)
        refused(reply, 48, told)
    write_anew(pair, t, reply.text)
    for command in commands:
        pair.n1.query(command)
    eventually(lambda: pair.n2.query(f"SELECT count(), sum(k) FROM {target}"), "5\t25\n")


def test_parts_with_marks_of_the_other_kind_are_refused_before_the_log_has_them(pair: Pair) -> None:
    """Each replica tried to show them for ever, and the statement never ended."""
    rest = "PARTITION BY k % 2 ORDER BY k"
    usual, fixed = pair.table(), pair.table(rest=f"{rest} SETTINGS index_granularity_bytes = 0")
    unmixed = pair.table(rest=f"{rest} SETTINGS enable_mixed_granularity_parts = 0")
    for t in (usual, fixed):
        pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a'), (2, '{t}')")
    for source, target in ((usual, fixed), (fixed, unmixed)):
        for command in (
            f"ALTER TABLE {target} REPLACE PARTITION 0 FROM {source}",
            f"ALTER TABLE {target} ATTACH PARTITION 0 FROM {source}",
            f"ALTER TABLE {source} MOVE PARTITION 0 TO TABLE {target}",
        ):
            refused(pair.n1.post(command), 36, "inconsistent granularity")
        pair.n1.query(f"ALTER TABLE {target} FETCH PARTITION 1 FROM '/tables/{source}'")
        refused(pair.n1.post(f"ALTER TABLE {target} ATTACH PARTITION 1"), 36, "inconsistent granularity")
    assert pair.rows(fixed) == f"1\ta\n2\t{fixed}\n"
    assert pair.rows(unmixed) == ""
    pair.n1.query(f"ALTER TABLE {usual} REPLACE PARTITION 0 FROM {fixed}")
    pair.n1.query(f"OPTIMIZE TABLE {usual} FINAL")
    assert pair.rows(usual) == f"1\ta\n2\t{fixed}\n"
