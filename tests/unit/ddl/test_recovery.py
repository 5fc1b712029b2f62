"""After a crash: what the fingerprints before and now say about each family of statements."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.ddl.executor import Blocks, Fingerprint
from engine.ddl.recovery import (
    Effect,
    Family,
    NextStep,
    effect_since,
    family_of,
    next_step,
    unknown_outcome,
)
from engine.sql import parse_statement

ABSENT = Fingerprint(objects=(("d.t", ""),))
PRESENT = Fingerprint(objects=(("d.t", "v1"),))
ALTERED = Fingerprint(objects=(("d.t", "v2"),))


def step(sql: str, before: Fingerprint | None, now: Fingerprint | None) -> NextStep:
    return next_step(parse_statement(sql), sql, before, now)


@pytest.mark.parametrize(
    ("sql", "family"),
    [
        ("CREATE TABLE d.t (a Int8) ENGINE = Memory", Family.DEFINITION),
        ("CREATE TABLE d.t ENGINE = Memory AS SELECT 1 AS a", Family.FILLING),
        ("CREATE TABLE d.t ENGINE = Memory EMPTY AS SELECT 1 AS a", Family.DEFINITION),
        ("CREATE TABLE IF NOT EXISTS d.t CLONE AS d.s", Family.FILLING),
        ("CREATE TABLE clone AS d.s", Family.DEFINITION),
        ("CREATE TABLE d.clone AS d.s", Family.DEFINITION),
        ("CREATE OR REPLACE TABLE d.t ENGINE = Memory AS SELECT 1 AS a", Family.DEFINITION),
        ("CREATE TABLE d.t AS d.s", Family.DEFINITION),
        ("CREATE TABLE d.t (a String DEFAULT 'AS SELECT') ENGINE = Memory", Family.DEFINITION),
        ("CREATE VIEW d.v AS SELECT 1", Family.DEFINITION),
        ("CREATE MATERIALIZED VIEW d.v ENGINE = Memory POPULATE AS SELECT 1", Family.FILLING),
        ("CREATE MATERIALIZED VIEW d.v TO d.t AS SELECT 1", Family.DEFINITION),
        ("DROP TABLE d.t", Family.DEFINITION),
        ("RENAME TABLE d.a TO d.b", Family.DEFINITION),
        ("EXCHANGE TABLES d.a AND d.b", Family.DEFINITION),
        ("ALTER TABLE d.t ADD COLUMN b Int8, DROP COLUMN c", Family.DEFINITION),
        ("ALTER TABLE d.t UPDATE a = a + 1 WHERE 1", Family.MUTATION),
        ("ALTER TABLE d.t ADD COLUMN b Int8, MATERIALIZE INDEX i", Family.DEFINITION_AND_MUTATION),
        ("ALTER TABLE d.t DROP PARTITION 1", Family.REMOVAL),
        ("ALTER TABLE d.t REPLACE PARTITION 1 FROM d.s", Family.REPLACEMENT),
        ("ALTER TABLE d.t ATTACH PARTITION 1 FROM d.s", Family.REPLACEMENT),
        ("ALTER TABLE d.t DROP PARTITION 1, ADD COLUMN b Int8", Family.OPAQUE),
        ("ALTER TABLE d.t ATTACH PARTITION 1", Family.OPAQUE),
        ("ALTER TABLE d.t ATTACH PARTITION 1, ADD COLUMN b Int8", Family.OPAQUE),
        ("ALTER TABLE d.t FETCH PARTITION 1 FROM '/t'", Family.OPAQUE),
        ("ALTER TABLE d.t CLEAR COLUMN a IN PARTITION 1", Family.MUTATION),
        ("ALTER TABLE d.t FREEZE", Family.REPEATABLE),
        ("ALTER TABLE d.t MODIFY SETTING max_parts_to_merge_at_once = 1", Family.REPEATABLE),
        ("TRUNCATE TABLE d.t", Family.REMOVAL),
        ("DELETE FROM d.t WHERE a = 1", Family.MUTATION),
        ("OPTIMIZE TABLE d.t FINAL", Family.REPEATABLE),
        ("SYSTEM FLUSH LOGS", Family.REPEATABLE),
        ("SYSTEM SHUTDOWN", Family.ENDS_PROCESS),
        ("KILL QUERY WHERE 1", Family.ENDS_PROCESS),
        ("KILL MUTATION WHERE 1", Family.KILL_MUTATION),
        ("GRANT SELECT ON *.* TO alice", Family.REPEATABLE),
        ("BACKUP TABLE d.t TO Disk('b', 'x')", Family.OPAQUE),
        ("RESTORE TABLE d.t FROM Disk('b', 'x')", Family.FILLING),
    ],
)
def test_each_statement_belongs_to_a_family(sql: str, family: Family) -> None:
    assert family_of(parse_statement(sql), sql) is family


@pytest.mark.parametrize(
    ("sql", "before", "now", "expected"),
    [
        ("CREATE TABLE d.t (a Int8)", ABSENT, PRESENT, NextStep.REPORT_DONE),
        ("CREATE TABLE d.t (a Int8)", ABSENT, ABSENT, NextStep.EXECUTE),
        ("DROP TABLE d.t", PRESENT, ABSENT, NextStep.REPORT_DONE),
        ("DROP TABLE d.t", PRESENT, PRESENT, NextStep.EXECUTE),
        ("ALTER TABLE d.t ADD COLUMN b Int8", PRESENT, ALTERED, NextStep.REPORT_DONE),
        ("ALTER TABLE d.t ADD COLUMN b Int8", PRESENT, PRESENT, NextStep.EXECUTE),
    ],
)
def test_a_changed_definition_says_that_it_happened(
    sql: str, before: Fingerprint, now: Fingerprint, expected: NextStep
) -> None:
    assert step(sql, before, now) is expected


def test_exchange_is_seen_by_uuids_that_changed_places_and_not_undone() -> None:
    before = Fingerprint(objects=(("d.a", "1"), ("d.b", "2")))
    after = Fingerprint(objects=(("d.a", "2"), ("d.b", "1")))
    sql = "EXCHANGE TABLES d.a AND d.b"
    assert step(sql, before, after) is NextStep.REPORT_DONE
    assert step(sql, before, before) is NextStep.EXECUTE


def test_a_statement_of_two_objects_that_was_cut_in_the_middle_is_unknown() -> None:
    before = Fingerprint(objects=(("d.a", "1"), ("d.b", "2")))
    half = Fingerprint(objects=(("d.a", ""), ("d.b", "2")))
    assert step("DROP TABLE d.a, d.b", before, half) is NextStep.REPORT_UNKNOWN


def test_a_table_that_was_there_before_was_not_made_whoever_changed_it_since() -> None:
    sql = "CREATE TABLE d.t (a Int8)"
    assert step(sql, PRESENT, ALTERED) is NextStep.EXECUTE
    assert step("CREATE OR REPLACE TABLE d.t (a Int8)", PRESENT, ALTERED) is NextStep.REPORT_DONE


def test_what_a_view_writes_to_does_not_have_to_change_when_the_view_is_made() -> None:
    before = Fingerprint(objects=(("table d.target", "1"), ("table d.v", "")))
    after = Fingerprint(objects=(("table d.target", "1"), ("table d.v", "2")))
    assert step("CREATE MATERIALIZED VIEW d.v TO d.target AS SELECT 1", before, after) is NextStep.REPORT_DONE


def test_a_table_that_is_there_in_another_form_was_perhaps_dropped_and_made_again() -> None:
    assert step("DROP TABLE d.t", PRESENT, ALTERED) is NextStep.REPORT_UNKNOWN


def test_dropping_what_was_not_there_needs_no_effect() -> None:
    before = Fingerprint(objects=(("d.a", "1"), ("d.b", "")))
    after = Fingerprint(objects=(("d.a", ""), ("d.b", "")))
    assert step("DROP TABLE IF EXISTS d.a, d.b", before, after) is NextStep.REPORT_DONE
    assert step("DROP TABLE IF EXISTS d.t", ABSENT, ABSENT) is NextStep.EXECUTE


def test_detaching_is_seen_by_what_is_attached() -> None:
    before = Fingerprint(objects=(("attached d.t", "1"), ("table d.t", "x")))
    after = Fingerprint(objects=(("attached d.t", "0"), ("table d.t", "x")))
    assert step("DETACH TABLE d.t", before, after) is NextStep.REPORT_DONE
    assert step("DETACH TABLE d.t", before, before) is NextStep.EXECUTE


def test_an_index_is_seen_by_its_tables_definition() -> None:
    for sql in ("CREATE INDEX i ON d.t (a) TYPE minmax", "DROP INDEX i ON d.t"):
        assert step(sql, PRESENT, ALTERED) is NextStep.REPORT_DONE
        assert step(sql, PRESENT, PRESENT) is NextStep.EXECUTE


def test_fingerprints_of_other_objects_tell_nothing() -> None:
    other = Fingerprint(objects=(("d.other", ""),))
    for now in (other, Fingerprint()):
        assert step("DROP TABLE d.t", PRESENT, now) is NextStep.REPORT_UNKNOWN
        assert step("DROP TABLE d.t", now, ABSENT) is NextStep.REPORT_UNKNOWN


def test_a_table_that_was_being_filled_may_lack_rows() -> None:
    sql = "CREATE TABLE d.t ENGINE = Memory AS SELECT 1 AS a"
    assert step(sql, ABSENT, PRESENT) is NextStep.REPORT_UNKNOWN
    assert step(sql, ABSENT, ABSENT) is NextStep.EXECUTE


def mutations(*ids: str) -> Fingerprint:
    return Fingerprint(objects=(("d.t", "v1"),), mutations=ids)


def test_an_update_happened_when_a_mutation_appeared() -> None:
    sql = "ALTER TABLE d.t UPDATE a = a + 1 WHERE 1"
    assert step(sql, mutations("1"), mutations("1", "2")) is NextStep.REPORT_DONE
    assert step(sql, mutations("1"), mutations("1")) is NextStep.EXECUTE
    assert step(sql, PRESENT, PRESENT) is NextStep.REPORT_UNKNOWN


def test_a_statement_of_both_kinds_happened_only_if_both_are_seen() -> None:
    sql = "ALTER TABLE d.t ADD COLUMN b Int8, MATERIALIZE INDEX i"
    altered = Fingerprint(objects=(("d.t", "v2"),), mutations=("1",))
    both = Fingerprint(objects=(("d.t", "v2"),), mutations=("1", "2"))
    assert step(sql, mutations("1"), both) is NextStep.REPORT_DONE
    assert step(sql, mutations("1"), altered) is NextStep.REPORT_UNKNOWN
    assert step(sql, mutations("1"), mutations("1")) is NextStep.EXECUTE


def test_a_killed_mutation_is_gone() -> None:
    assert step("KILL MUTATION WHERE 1", mutations("1", "2"), mutations("1")) is NextStep.REPORT_DONE
    assert step("KILL MUTATION WHERE 1", mutations("1"), mutations("1")) is NextStep.EXECUTE


def blocks(*ranges: tuple[int, int], partition: str = "p") -> Fingerprint:
    return Fingerprint(
        objects=(("d.t", "v1"),), blocks=tuple(Blocks(partition, first, last) for first, last in ranges)
    )


TRUNCATE = "TRUNCATE TABLE d.t"


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (blocks((1, 1), (2, 2)), blocks(), NextStep.REPORT_DONE),
        (blocks((1, 1), (2, 2)), blocks((1, 1), (2, 2)), NextStep.EXECUTE),
        (blocks((1, 1), (2, 2)), blocks((1, 2)), NextStep.EXECUTE),
        (blocks((1, 1), (2, 2)), blocks((3, 3)), NextStep.REPORT_DONE),
        (blocks((1, 1), (2, 2)), blocks((1, 2), (3, 3)), NextStep.EXECUTE),
        (blocks((1, 1), (2, 2)), blocks((2, 2)), NextStep.REPORT_UNKNOWN),
        (blocks(), blocks(), NextStep.EXECUTE),
        (blocks(), blocks((1, 1)), NextStep.EXECUTE),
        (PRESENT, PRESENT, NextStep.REPORT_UNKNOWN),
    ],
    ids=[
        "all gone",
        "nothing changed",
        "merged",
        "gone, and rows came in since",
        "merged, and rows came in since",
        "half gone",
        "was empty",
        "was empty, and rows came in since",
        "not looked at",
    ],
)
def test_a_truncation_is_seen_by_the_blocks_that_are_covered(
    before: Fingerprint, now: Fingerprint, expected: NextStep
) -> None:
    assert step(TRUNCATE, before, now) is expected


def test_what_is_left_in_other_partitions_and_in_older_blocks_was_not_to_go() -> None:
    elsewhere = blocks((1, 1), partition="q")
    assert step("ALTER TABLE d.t DROP PARTITION 'p'", blocks((1, 1)), elsewhere) is NextStep.REPORT_DONE
    assert step("ALTER TABLE d.t DROP PART 'p_5_5_0'", blocks((5, 5)), blocks((1, 2))) is NextStep.REPORT_DONE


def test_a_replaced_partition_with_unexplained_rows_is_unknown() -> None:
    sql = "ALTER TABLE d.t REPLACE PARTITION 1 FROM d.s"
    assert step(sql, blocks((1, 1)), blocks((5, 5))) is NextStep.REPORT_DONE
    assert step(sql, blocks((1, 1)), blocks((1, 1))) is NextStep.EXECUTE
    assert step(sql, blocks((1, 1)), blocks((1, 1), (5, 5))) is NextStep.REPORT_UNKNOWN


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("OPTIMIZE TABLE d.t", NextStep.EXECUTE),
        ("SYSTEM RELOAD DICTIONARIES", NextStep.EXECUTE),
        ("GRANT SELECT ON *.* TO alice", NextStep.EXECUTE),
        ("CREATE TABLE IF NOT EXISTS d.t (a Int8) ENGINE = Memory", NextStep.EXECUTE),
        ("CREATE OR REPLACE VIEW d.v AS SELECT 1", NextStep.EXECUTE),
        ("DROP FUNCTION IF EXISTS f", NextStep.EXECUTE),
        ("CREATE TABLE d.t (a Int8) ENGINE = Memory", NextStep.REPORT_UNKNOWN),
        ("DROP TABLE IF EXISTS d.t", NextStep.REPORT_UNKNOWN),
        ("CREATE OR REPLACE TABLE d.t (a Int8) ENGINE = Memory", NextStep.REPORT_UNKNOWN),
        ("TRUNCATE TABLE d.t", NextStep.REPORT_UNKNOWN),
        ("ALTER TABLE d.t UPDATE a = 1 WHERE 1", NextStep.REPORT_UNKNOWN),
        ("BACKUP TABLE d.t TO Disk('b', 'x')", NextStep.REPORT_UNKNOWN),
        ("CREATE VIEW IF NOT EXISTS d.v AS SELECT 1", NextStep.EXECUTE),
        ("CREATE TABLE IF NOT EXISTS d.t ENGINE = Memory AS SELECT 1 AS a", NextStep.REPORT_UNKNOWN),
        ("CREATE MATERIALIZED VIEW IF NOT EXISTS d.v ENGINE = Memory AS SELECT 1", NextStep.REPORT_UNKNOWN),
        ("TRUNCATE TABLE IF EXISTS d.t", NextStep.REPORT_UNKNOWN),
        ("KILL MUTATION WHERE 1", NextStep.REPORT_UNKNOWN),
        ("SYSTEM SHUTDOWN", NextStep.REPORT_DONE),
        ("KILL QUERY WHERE 1", NextStep.REPORT_DONE),
    ],
)
def test_without_fingerprints_only_what_is_harmless_runs_again(sql: str, expected: NextStep) -> None:
    assert step(sql, None, None) is expected
    looked_at = Fingerprint(objects=(("d.t", "v1"),), mutations=("1",), blocks=(Blocks("p", 1, 1),))
    assert step(sql, looked_at, None) is expected, "the host cannot look now"
    assert step(sql, None, looked_at) is expected, "it could not look then"


@pytest.mark.parametrize(
    ("sql", "looked_at"),
    [
        ("ALTER TABLE d.t UPDATE a = 1 WHERE 1", mutations("1")),
        ("KILL MUTATION WHERE 1", mutations("1")),
        (TRUNCATE, blocks((1, 1))),
    ],
)
def test_what_was_not_looked_at_both_times_tells_nothing(sql: str, looked_at: Fingerprint) -> None:
    assert step(sql, PRESENT, looked_at) is NextStep.REPORT_UNKNOWN
    assert step(sql, looked_at, PRESENT) is NextStep.REPORT_UNKNOWN


def test_of_a_statement_that_nobody_knows_nothing_can_be_seen() -> None:
    backup = "BACKUP TABLE d.t TO Disk('b', 'x')"
    assert step(backup, PRESENT, PRESENT) is NextStep.REPORT_UNKNOWN
    assert step("ALTER TABLE d.t ATTACH PARTITION 1", PRESENT, PRESENT) is NextStep.REPORT_UNKNOWN
    assert step("OPTIMIZE TABLE d.t", PRESENT, PRESENT) is NextStep.EXECUTE


def test_the_honest_status_names_what_to_check() -> None:
    status = unknown_outcome(parse_statement("TRUNCATE TABLE d.t"), begun_by="an earlier process")
    assert status.code == 341
    assert "Outcome unknown" in status.message and "d.t" in status.message


def test_a_digest_of_no_known_form_stands_for_the_definition() -> None:
    old, new = Fingerprint.from_text("abc"), Fingerprint.from_text("abd")
    assert effect_since(Family.DEFINITION, old, new) is Effect.HAPPENED
    for sql in ("CREATE TABLE d.t (a Int8)", "DROP TABLE d.t"):
        assert step(sql, old, new) is NextStep.REPORT_DONE
        assert step(sql, old, old) is NextStep.EXECUTE
    assert effect_since(Family.MUTATION, old, new) is Effect.HAPPENED
    assert effect_since(Family.REMOVAL, old, new) is Effect.UNKNOWN
    assert effect_since(Family.REMOVAL, old, old) is Effect.NOT_YET
    assert Fingerprint.from_text("") is None


TEXTS = st.text(max_size=8)
FINGERPRINTS = st.builds(
    Fingerprint,
    objects=st.lists(st.tuples(TEXTS, TEXTS), max_size=3).map(lambda items: tuple(sorted(items))),
    mutations=st.none() | st.lists(TEXTS, max_size=3).map(lambda items: tuple(sorted(items))),
    blocks=st.none()
    | st.lists(
        st.builds(
            lambda p, first, more: Blocks(p, first, first + more), TEXTS, st.integers(0, 9), st.integers(0, 3)
        ),
        max_size=3,
    ).map(lambda items: tuple(sorted(items))),
    is_shared=st.booleans(),
)


@given(FINGERPRINTS)
def test_a_fingerprint_comes_back_from_its_text(fingerprint: Fingerprint) -> None:
    assert Fingerprint.from_text(fingerprint.to_text()) == fingerprint


@given(FINGERPRINTS, st.sampled_from(list(Family)))
def test_what_did_not_change_never_counts_as_happened(fingerprint: Fingerprint, family: Family) -> None:
    if family is not Family.ENDS_PROCESS:
        assert effect_since(family, fingerprint, fingerprint) is not Effect.HAPPENED
