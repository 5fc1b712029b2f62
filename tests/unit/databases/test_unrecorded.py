"""What tells an effect that was not recorded: what was before new names, and what was noted of an ALTER."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.node.databases.begun import BegunEntry
from engine.node.databases.moments import renamed_back
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
