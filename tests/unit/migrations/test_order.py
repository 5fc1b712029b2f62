"""Which statements of a run make the tables that a later one changes."""

from __future__ import annotations

import pytest

from engine.migrations.files import Direction, ScriptStatement
from engine.migrations.model import RunRequest
from engine.migrations.options import Options
from engine.migrations.order import creations_before

REQUEST = RunRequest(run_id="r", direction=Direction.UP, requested_by="me", holder="me", database="d")
MADE = "CREATE TABLE d.t (a Int8) ENGINE = ReplicatedMergeTree ORDER BY a"
ADD = "ALTER TABLE d.t ADD COLUMN b Int8"


def statement(sql: str, database: str | None = None) -> ScriptStatement:
    return ScriptStatement(1, 1, sql, Options(database=database), "checksum")


def found(sql: str, *earlier: str) -> list[int]:
    return creations_before(statement(sql), lambda: [statement(each) for each in earlier], REQUEST)


@pytest.mark.parametrize(
    "sql",
    [
        ADD,
        "ALTER TABLE t MODIFY TTL a + 1",
        "ALTER TABLE d.t DELETE WHERE a, DROP COLUMN a",
        "ALTER TABLE d.t COMMENT COLUMN a 'x'",
        "CREATE INDEX i ON d.t (a) TYPE minmax",
        "DROP INDEX i ON t",
    ],
)
def test_what_changes_a_definition_needs_the_table(sql: str) -> None:
    assert found(sql, "CREATE DATABASE d", MADE, "DROP TABLE d.other") == [1]


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE d.t DELETE WHERE a",
        "ALTER TABLE d.t UPDATE a = 1 WHERE 1, MATERIALIZE COLUMN a",
        "ALTER TABLE d.t DROP PARTITION 1",
        "ALTER TABLE d.t MODIFY SETTING merge_with_ttl_timeout = 1",
        "ALTER TABLE d.t FREEZE",
        "ALTER TABLE d.other ADD COLUMN b Int8",
        "OPTIMIZE TABLE d.t",
        "TRUNCATE TABLE d.t",
        "DROP TABLE d.t",
    ],
)
def test_what_changes_none_needs_nothing(sql: str) -> None:
    assert found(sql, MADE) == []


@pytest.mark.parametrize(
    ("earlier", "expected"),
    [
        (["CREATE TABLE d.t (a Int8) ENGINE = MergeTree ORDER BY a"], []),
        (["CREATE TABLE e.t (a Int8) ENGINE = ReplicatedMergeTree ORDER BY a"], []),
        (["CREATE TABLE t (a Int8) ENGINE = ReplicatedMergeTree ORDER BY a"], [0]),
        ([MADE.replace("d.t", "d.q"), "RENAME TABLE d.q TO d.t"], [0]),
        ([MADE.replace("d.t", "q"), "RENAME TABLE q TO r, r TO t"], [0]),
        ([MADE, "RENAME TABLE d.t TO d.old", MADE.replace("d.t", "d.q"), "RENAME TABLE d.q TO d.t"], [2]),
        ([MADE, MADE.replace("d.t", "d.q"), "EXCHANGE TABLES d.t AND d.q"], [1]),
        ([MADE, "DROP TABLE d.t", MADE], [2, 0]),
        ([], []),
    ],
)
def test_a_table_is_found_by_its_name_at_the_time(earlier: list[str], expected: list[int]) -> None:
    assert found(ADD, *earlier) == expected


def test_names_without_a_database_mean_that_of_their_own_file() -> None:
    made = statement("CREATE TABLE t (a Int8) ENGINE = ReplicatedMergeTree ORDER BY a", "e")
    for database, expected in (("e", [0]), (None, [])):
        changed = statement("ALTER TABLE t ADD COLUMN b Int8", database)
        assert creations_before(changed, lambda: [made], REQUEST) == expected
