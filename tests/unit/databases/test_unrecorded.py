"""What tells an effect that was not recorded: what was before new names, and what was noted of an ALTER."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from engine.databases.digest import digest_of, hash_of, may_be_digest_of
from engine.names import TableName
from engine.node.databases.begun import BegunEntry
from engine.node.databases.local_database import LocalDatabase
from engine.node.databases.logged import LoggedStatements
from engine.node.databases.moments import renamed_back
from engine.node.databases.other_hashes import OtherHashes
from engine.node.databases.replacement import Replacement
from engine.sql import parse_statement

BEFORE = {"a": "one", "b": "two"}


@pytest.mark.parametrize(
    ("sql", "after"),
    [
        ("RENAME TABLE a TO c", {"c": "one", "b": "two"}),
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


def logged(tmp_path: Path, texts: dict[str, str], kept: dict[str, str]) -> LoggedStatements:
    """With these definitions here, and these that a CREATE OR REPLACE has put away."""
    database = SimpleNamespace(name="d", texts=lambda: texts, shell=None)
    replacement = SimpleNamespace(kept=lambda: {TableName("away", name): text for name, text in kept.items()})
    return LoggedStatements(
        cast(LocalDatabase, database), BegunEntry(tmp_path / "begun"), cast(Replacement, replacement)
    )


U1, U2 = (f"0000000{number}-0000-4000-8000-000000000000" for number in (1, 2))
OLD, NEW = f"ATTACH TABLE _ UUID '{U1}'\n", f"ATTACH TABLE _ UUID '{U2}'\n"
VIEW = NEW.replace("TABLE", "MATERIALIZED VIEW")


@pytest.mark.parametrize(
    ("query", "before", "after"),
    [
        (f"CREATE TABLE t UUID '{U2}' (k Int8) ENGINE = Memory", {}, {"t": NEW}),
        (f"CREATE TABLE t UUID '{U2}' (k Int8) ENGINE = Memory", {"p": OLD}, {"p": OLD, "t": NEW}),
        (
            f"CREATE MATERIALIZED VIEW t UUID '{U2}' ENGINE = Memory AS SELECT 1",
            {"p": OLD},
            {"p": OLD, "t": VIEW, f".inner_id.{U2}": "inner"},
        ),
        (f"CREATE OR REPLACE TABLE t UUID '{U2}' (k Int8) ENGINE = Memory", {"t": OLD}, {"t": NEW}),
    ],
)
def test_what_was_made_tells_what_was_before(
    tmp_path: Path, query: str, before: dict[str, str], after: dict[str, str]
) -> None:
    statements = logged(
        tmp_path, after, {name: before[name] for name in before if before[name] != after[name]}
    )
    assert statements.before_create(query) == before
    assert statements.is_effect_of(7, query, digest_of(before))
    assert not statements.is_effect_of(7, query, digest_of({**before, "other": "x"}))
    assert not statements.is_effect_of(7, query, digest_of(after)), "there is nothing to record"
    assert logged(tmp_path, before, {}).before_create(query) is None


def test_what_was_attached_tells_what_was_before(tmp_path: Path) -> None:
    before, after = {"p": OLD}, {"p": OLD, "t": NEW}
    for query in ("ATTACH TABLE t", "ATTACH VIEW t", "ATTACH DICTIONARY t"):
        assert logged(tmp_path, after, {}).is_effect_of(7, query, digest_of(before))
        assert not logged(tmp_path, after, {}).is_effect_of(7, query, digest_of({}))
        assert not logged(tmp_path, before, {}).is_effect_of(7, query, digest_of(before))


def test_of_what_was_dropped_it_was_written_down_what_else_there_was(tmp_path: Path) -> None:
    before, after = {"p": OLD, "t": NEW}, {"p": OLD}
    BegunEntry(tmp_path / "begun").alters(7, digest_of(before), digest_of(after))
    assert logged(tmp_path, after, {}).is_effect_of(7, "DROP TABLE t", digest_of(before))
    assert not logged(tmp_path, after, {}).is_effect_of(8, "DROP TABLE t", digest_of(before))
    assert not logged(tmp_path, {}, {}).is_effect_of(7, "DROP TABLE t", digest_of(before))
    assert not logged(tmp_path, after, {}).is_effect_of(
        7, "ALTER TABLE t ADD COLUMN x Int8", digest_of(before)
    )
