"""What chDB does with single parts of a replicated table, under the names that users know; on real nodes."""

from __future__ import annotations

import pytest

from tests.node.replicated_pair import Pair, refused

pytestmark = pytest.mark.slow

PARTS = "SELECT name, hash_of_all_files FROM system.parts WHERE table = '{}' AND active ORDER BY name"


@pytest.fixture(scope="module")
def table(pair: Pair) -> str:
    """Three parts of partition 1, which stay: nothing here changes them, and they are too large for merges.
    chDB has other names for them."""
    t = pair.table(rest="PARTITION BY k % 2 ORDER BY k SETTINGS max_bytes_to_merge_at_max_space_in_pool = 1")
    for row in ("(1, 'a')", "(3, 'b')", "(3, 'b'), (1, 'c')"):
        pair.n1.query(f"INSERT INTO {t} VALUES {row}")
    pair.synced(t)
    return t


def test_a_dry_run_merges_the_parts_and_leaves_everything_as_it_was(pair: Pair, table: str) -> None:
    before = pair.same(PARTS.format(table))
    log = pair.children(f"/tables/{table}/log")
    for text in ("'1_0_0_0', '1_2_2_0'", "'1_1_1_0'", "'1_0_0_0', '1_1_1_0', '1_2_2_0' DEDUPLICATE BY k, v"):
        pair.n1.query(f"OPTIMIZE TABLE {table} DRY RUN PARTS {text} SETTINGS max_threads = 1")
    assert pair.same(PARTS.format(table)) == before
    assert pair.children(f"/tables/{table}/log") == log


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        ("DRY RUN", 62, "PARTS"),
        ("FINAL DRY RUN PARTS '1_0_0_0'", 62, "DRY"),
        ("DRY RUN PARTS '1_0_0_0' FINAL", 36, "FINAL"),
        ("PARTITION 1 DRY RUN PARTS '1_0_0_0'", 36, "PARTITION"),
        ("DRY RUN PARTS '1_0_0_0', '1_7_7_0'", 232, "1_7_7_0"),
        ("DRY RUN PARTS 'x'", 233, "x"),
        ("DRY RUN PARTS '1_0_0_0', '1_1_1_0' CLEANUP", 344, "CLEANUP"),
        ("DRY RUN PARTS '1_0_0_0', '1_1_1_0' DEDUPLICATE BY nope", 16, "nope"),
    ],
)
def test_a_dry_run_that_cannot_be_says_what_chdb_says(
    pair: Pair, table: str, text: str, code: int, told: str
) -> None:
    refused(pair.n1.post(f"OPTIMIZE TABLE {table} {text}"), code, told)


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        ("PARTITION 1 TO DISK 'default'", 479, "already on disk"),
        ("PARTITION 1 TO DISK 'nope'", 479, "No such disk"),
        ("PARTITION ID '1' TO VOLUME 'default'", 479, "already on volume"),
        ("PARTITION 1 TO VOLUME 'nope'", 548, "No such volume"),
        ("PART '1_2_2_0' TO DISK 'default'", 479, "1_2_2_0"),
        ("PART '1_9_9_0' TO DISK 'default'", 232, "1_9_9_0"),
        ("PART '1_0_0_0' TO SHARD '/tables/other'", 48, "TO SHARD"),
    ],
)
def test_move_to_a_disk_or_volume_is_chdbs(pair: Pair, table: str, text: str, code: int, told: str) -> None:
    refused(pair.n1.post(f"ALTER TABLE {table} MOVE {text}"), code, told)
