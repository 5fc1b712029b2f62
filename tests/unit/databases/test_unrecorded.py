"""What tells an effect that was not recorded: what was before new names, and what was noted of an ALTER."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.databases.digest import digest_of, hash_of, may_be_digest_of
from engine.node.databases.begun import BegunEntry
from engine.node.databases.moments import renamed_back
from engine.node.databases.other_hashes import OtherHashes
from engine.sql import parse_statement

BEFORE = {"a": "one", "b": "two"}


@pytest.mark.parametrize(
    ("sql", "after"),
    [
        ("RENAME TABLE a TO c", {"c": "one", "b": "two"}),
        ("RENAME TABLE a TO c, b TO a", {"c": "one", "a": "two"}),
        ("RENAME DICTIONARY a TO c", {"c": "one", "b": "two"}),
        ("EXCHANGE TABLES a AND b", {"a": "two", "b": "one"}),
    ],
)
def test_new_names_tell_the_old_ones(sql: str, after: dict[str, str]) -> None:
    assert renamed_back(parse_statement(sql), after) == BEFORE


@pytest.mark.parametrize(
    "sql", ["RENAME TABLE a TO c", "EXCHANGE TABLES a AND c", "ALTER TABLE a ADD COLUMN x Int8"]
)
def test_what_has_not_happened_is_not_taken_back(sql: str) -> None:
    assert renamed_back(parse_statement(sql), BEFORE) is None


def test_what_was_before_an_alter_outlives_the_process_and_its_later_tries(tmp_path: Path) -> None:
    begun = BegunEntry(tmp_path / "begun")
    begun.begins(7)
    assert begun.altered(7) is None
    begun.alters(7, before=30, others=10)
    begun.begins(7)
    begun.alters(7, before=40, others=10)
    again = BegunEntry(tmp_path / "begun")
    assert (again.number, again.altered(7), again.altered(8)) == (7, (30, 10), None)
    again.begins(8)
    assert again.altered(7) is None


def test_a_digest_of_what_replicated_tables_were_or_were_to_be_proves_all_others() -> None:
    before = {"p": "plain", "t": "one", "u": "two"}
    now = {**before, "t": "altered", "u": "altered"}
    others = {"t": {5, hash_of("t", "one")}, "u": {hash_of("u", "two")}, "gone": {7}}
    assert may_be_digest_of(digest_of(before), now, others)
    assert may_be_digest_of(digest_of({**now, "t": "one"}), now, others)
    assert may_be_digest_of(digest_of(now), now, {})
    assert not may_be_digest_of(digest_of(before), {**now, "p": "another"}, others)
    assert not may_be_digest_of(digest_of(before), now, {"t": others["t"]})


def test_hashes_of_other_definitions_outlive_the_process_and_the_oldest_go(tmp_path: Path) -> None:
    others = OtherHashes(tmp_path / "others")
    for number in range(8):
        others.add("t", number)
    others.add("t", 0)
    others.add("u", 100)
    assert OtherHashes(tmp_path / "others").all() == {"t": {0, 2, 3, 4, 5, 6, 7}, "u": {100}}
    others.forget()
    assert others.all() == {}
