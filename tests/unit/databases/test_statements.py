"""Statements of Replicated databases as text: CREATE DATABASE, what goes into the log and out of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from uuid import UUID

import pytest

from engine.errors import SqlError
from engine.node.databases.create_text import engine_full, parse_create, place_of, shown_create
from engine.node.databases.moments import Moment, moment_of, opposite_of
from engine.node.databases.rewriting import (
    check_create,
    for_log,
    for_others,
    from_log,
    left_empty,
    one_by_one,
    with_whole_names,
)
from engine.node.databases.routing import Way, check_statement, concerns_objects, way_of
from engine.sql import parse_statement

DEFAULTS = ("/clickhouse/databases/{uuid}", "{shard}", "{replica}")
MACROS = {"shard": "s1", "replica": "r1"}
SOME = UUID(int=0xABC)
MERGE_TREE = "(k UInt64) ENGINE = MergeTree ORDER BY k"


def numbers() -> Callable[[], UUID]:
    counter = itertools.count(1)
    return lambda: UUID(int=next(counter))


def uuid(number: int) -> str:
    return f"UUID '{UUID(int=number)}'"


# -- CREATE DATABASE ----------------------------------------------------------------


def test_arguments_settings_and_comment_are_read_and_shown_as_they_were_written() -> None:
    text = parse_create(
        "CREATE DATABASE IF NOT EXISTS d ENGINE = Replicated('/db/d', '{shard}', '{replica}') "
        "SETTINGS max_broken_tables_ratio = 0.5, collection_name = 'c', x COMMENT 'it''s'",
        DEFAULTS,
    )
    assert (text.name, text.if_not_exists, text.comment) == ("d", True, "it's")
    assert text.settings == {"max_broken_tables_ratio": "0.5", "collection_name": "c", "x": "1"}
    assert engine_full(text) == (
        "Replicated('/db/d', '{shard}', '{replica}') SETTINGS max_broken_tables_ratio = 0.5, "
        "collection_name = 'c', x = 1"
    )
    assert shown_create("e", text).startswith("CREATE DATABASE `e`\nENGINE = Replicated('/db/d', ")


def test_arguments_that_are_missing_have_their_defaults() -> None:
    assert parse_create("CREATE DATABASE d ENGINE = Replicated", DEFAULTS).arguments == DEFAULTS
    assert parse_create("CREATE DATABASE d ENGINE = Replicated()", DEFAULTS).arguments == DEFAULTS
    one = parse_create("CREATE DATABASE d ENGINE = Replicated('/p')", DEFAULTS)
    assert one.arguments == ("/p", "{shard}", "{replica}")


@pytest.mark.parametrize(
    ("engine", "code"),
    [
        ("Replicated('/p', 's', 'r', 'more')", 36),
        ("Replicated(1, 's', 'r')", 36),
        ("Replicated('/p', 's', 'r') NONSENSE", 62),
        ("Replicated('/p', 's', 'r') SETTINGS 'x'", 62),
    ],
)
def test_an_engine_that_cannot_be_read_is_refused(engine: str, code: int) -> None:
    with pytest.raises(SqlError) as raised:
        parse_create(f"CREATE DATABASE d ENGINE = {engine}", DEFAULTS)
    assert raised.value.code == code


def test_macros_are_expanded_and_the_path_gets_its_slashes() -> None:
    place = place_of(("db/{shard}/x/", "{shard}", "{replica}"), macros=MACROS, uuid=SOME, takes_uuid=False)
    assert (place.path, place.shard, place.replica) == ("/db/s1/x", "s1", "r1")
    assert place.full_name == "s1|r1"
    assert place_of(("default:/p", "s", "r"), macros={}, uuid=SOME, takes_uuid=False).path == "/p"
    assert place_of(DEFAULTS, macros=MACROS, uuid=SOME, takes_uuid=True).path.endswith(f"/{SOME}")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("/db/{uuid}", "s", "r"), 36),
        (("", "s", "r"), 36),
        (("/", "s", "r"), 36),
        (("/p", "", "r"), 36),
        (("/p", "s", ""), 36),
        (("/p", "a|b", "r"), 36),
        (("/p", "s", "a/b"), 36),
        (("other:/p", "s", "r"), 48),
        (("/p", "{nobody}", "r"), 139),
    ],
)
def test_a_place_that_cannot_be_is_refused(arguments: tuple[str, str, str], code: int) -> None:
    with pytest.raises(SqlError) as raised:
        place_of(arguments, macros=MACROS, uuid=SOME, takes_uuid=False)
    assert raised.value.code == code


# -- which statements ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "replicated", "many", "way"),
    [
        (f"CREATE TABLE t {MERGE_TREE}", False, False, Way.QUEUE),
        ("DROP TABLE t", True, False, Way.QUEUE),
        ("RENAME TABLE t TO u", True, False, Way.QUEUE),
        ("TRUNCATE TABLE t", True, False, Way.QUEUE),
        ("ALTER TABLE t ADD COLUMN x Int8", True, False, Way.QUEUE),
        ("ALTER TABLE t ADD COLUMN x Int8, DELETE WHERE 1", True, False, Way.QUEUE),
        ("ALTER TABLE t CLEAR COLUMN x IN PARTITION 1", True, False, Way.QUEUE),
        ("ALTER TABLE t MODIFY SETTING x = 1", True, False, Way.QUEUE),
        ("CREATE INDEX i ON t (k) TYPE minmax", True, False, Way.QUEUE),
        ("ALTER TABLE t DELETE WHERE 1", True, False, Way.LOCAL),
        ("ALTER TABLE t DELETE WHERE 1", True, True, Way.QUEUE),
        ("ALTER TABLE t DELETE WHERE 1", False, False, Way.QUEUE),
        ("ALTER TABLE t REPLACE PARTITION 1 FROM u", True, False, Way.LOCAL),
        ("ALTER TABLE t DROP PARTITION 1", False, True, Way.LOCAL),
        ("ALTER TABLE t DETACH PART 'all_1_1_0'", True, True, Way.LOCAL),
        ("ALTER TABLE t ATTACH PARTITION 1", False, False, Way.LOCAL),
        ("ALTER TABLE t FREEZE", False, True, Way.LOCAL),
        ("ALTER TABLE t FREEZE, ADD COLUMN x Int8", False, False, Way.QUEUE),
        ("DELETE FROM t WHERE 1", True, False, Way.LOCAL),
        ("DELETE FROM t WHERE 1", True, True, Way.QUEUE),
        ("UPDATE t SET x = 1 WHERE 1", False, False, Way.QUEUE),
    ],
)
def test_the_way_of_a_statement(sql: str, replicated: bool, many: bool, way: Way) -> None:
    statement = parse_statement(sql)
    assert concerns_objects(statement)
    assert way_of(statement, table_replicates=replicated, has_many_shards=many) is way


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "INSERT INTO t VALUES (1)",
        "OPTIMIZE TABLE t",
        "SYSTEM SYNC REPLICA t",
        "DROP DATABASE d",
        "CREATE TEMPORARY TABLE t (k Int8)",
        "TRUNCATE DATABASE d",
    ],
)
def test_what_is_not_about_objects(sql: str) -> None:
    assert not concerns_objects(parse_statement(sql))


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("DETACH TABLE d.t", 80),
        ("DETACH VIEW d.t", 80),
        ("RENAME TABLE d.t TO e.t", 48),
        ("EXCHANGE TABLES d.t AND e.t", 48),
        ("DROP TABLE d.t, e.u", 48),
        ("RENAME TABLE d.t TO d.u, d.v TO d.w", 48),
        ("EXCHANGE TABLES d.t AND d.u, d.v AND d.w", 48),
        ("EXCHANGE TABLES d.t AND d.t", 80),
        ("RENAME TABLE d.t TO d.t", 80),
        ("UNDROP TABLE d.t", 344),
    ],
)
def test_what_no_replica_could_do_is_refused(sql: str, code: int) -> None:
    with pytest.raises(SqlError) as raised:
        check_statement(sql, parse_statement(sql), detaches_permanently=False)
    assert raised.value.code == code


def test_detach_permanently_and_renames_within_the_database_pass() -> None:
    for sql in ("DETACH TABLE d.t PERMANENTLY", "RENAME TABLE d.t TO d.u", "EXCHANGE TABLES d.t AND d.u"):
        check_statement(sql, parse_statement(sql), detaches_permanently=False)
    check_statement("DETACH TABLE d.t", parse_statement("DETACH TABLE d.t"), detaches_permanently=True)


def test_several_tables_are_dropped_one_by_one() -> None:
    assert one_by_one("DROP TABLE IF EXISTS d.a, d.`b c` SYNC") == [
        "DROP TABLE IF EXISTS d.a SYNC",
        "DROP TABLE IF EXISTS d.`b c` SYNC",
    ]
    for sql in ("DROP TABLE d.a", "DROP TABLE d.a, e.b", "RENAME TABLE d.a TO d.b"):
        assert one_by_one(sql) == [sql]


# -- texts --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "log"),
    [
        (
            f"CREATE TABLE t {MERGE_TREE} -- comment",
            f"CREATE TABLE `t` {uuid(1)} {MERGE_TREE}",
        ),
        (
            "CREATE MATERIALIZED VIEW d.mv ENGINE = MergeTree ORDER BY k AS SELECT k FROM t",
            (
                f"CREATE MATERIALIZED VIEW `mv` {uuid(1)} TO INNER {uuid(2)} ENGINE = MergeTree ORDER BY k "
                "AS SELECT k FROM d.t"
            ),
        ),
        (
            "CREATE MATERIALIZED VIEW mv TO u AS SELECT k FROM t",
            f"CREATE MATERIALIZED VIEW `mv` {uuid(1)} TO d.u AS SELECT k FROM d.t",
        ),
        (
            "CREATE MATERIALIZED VIEW v REFRESH EVERY 1 DAY APPEND ENGINE = Memory AS SELECT 1 AS k",
            (
                f"CREATE MATERIALIZED VIEW `v` {uuid(1)} REFRESH EVERY 1 DAY APPEND TO INNER {uuid(2)} "
                "ENGINE = Memory AS SELECT 1 AS k"
            ),
        ),
        ("RENAME TABLE t TO d.u", "RENAME TABLE `t` TO `u`"),
        ("EXCHANGE TABLES t AND u", "EXCHANGE TABLES `t` AND `u`"),
        ("DROP TABLE IF EXISTS d.t SYNC FORMAT JSON", "DROP TABLE IF EXISTS `t` SYNC"),
        (
            "ALTER TABLE t DELETE WHERE k IN (SELECT k FROM u)",
            "ALTER TABLE `t` DELETE WHERE k IN (SELECT k FROM d.u)",
        ),
        ("CREATE TABLE t AS u", f"CREATE TABLE `t` {uuid(1)} AS d.u"),
        ("CREATE INDEX i ON t (k) TYPE minmax", "CREATE INDEX i ON `t` (k) TYPE minmax"),
        ("DROP TABLE t ON CLUSTER d", "DROP TABLE `t`"),
    ],
)
def test_the_log_names_no_database_and_carries_uuids(sql: str, log: str) -> None:
    written = for_log(with_whole_names(sql, "d"), numbers())
    assert written == log
    back = parse_statement(from_log(written, "my db"))
    assert {table.database for table in back.tables} == {"my db"}
    assert [table.table for table in back.tables] == [table.table for table in parse_statement(sql).tables]


@pytest.mark.parametrize(
    ("sql", "others"),
    [
        (
            "CREATE TABLE `t` ENGINE = ReplicatedMergeTree ORDER BY k AS SELECT 1 AS k",
            "CREATE TABLE `t` ENGINE = ReplicatedMergeTree ORDER BY k EMPTY AS SELECT 1 AS k",
        ),
        (
            "CREATE MATERIALIZED VIEW `v` ENGINE = ReplicatedMergeTree ORDER BY k POPULATE AS SELECT 1 AS k",
            "CREATE MATERIALIZED VIEW `v` ENGINE = ReplicatedMergeTree ORDER BY k  AS SELECT 1 AS k",
        ),
        (f"CREATE TABLE `t` {MERGE_TREE} AS SELECT 1 AS k", None),
        ("CREATE TABLE `t` ENGINE = ReplicatedMergeTree ORDER BY k EMPTY AS SELECT 1 AS k", None),
        ("CREATE TABLE `t` (populate Int8) ENGINE = ReplicatedMergeTree ORDER BY populate", None),
        ("ALTER TABLE `t` ADD COLUMN k Int8", None),
    ],
)
def test_the_other_replicas_do_not_fill_a_replicated_table(sql: str, others: str | None) -> None:
    assert for_others(sql) == (others or sql)


def test_what_fills_a_table_of_any_engine_can_be_left_out() -> None:
    assert left_empty(f"CREATE TABLE `t` {MERGE_TREE} AS SELECT 1 AS k") == (
        f"CREATE TABLE `t` {MERGE_TREE} EMPTY AS SELECT 1 AS k"
    )
    view = "CREATE MATERIALIZED VIEW `v` ENGINE = MergeTree ORDER BY k {} AS SELECT populate AS k FROM t"
    assert left_empty(view.format("POPULATE")) == view.format("")
    to_table = "CREATE MATERIALIZED VIEW `v` TO d.t AS SELECT 1 AS k"
    for other in (to_table, f"CREATE TABLE `t` {MERGE_TREE}", "CREATE VIEW `v` AS SELECT 1 AS k"):
        assert left_empty(other) == other


@pytest.mark.parametrize(
    ("sql", "settings", "code"),
    [
        (f"CREATE TABLE d.t {uuid(7)} {MERGE_TREE}", {}, 36),
        ("CREATE TABLE d.t ENGINE = ReplicatedMergeTree ORDER BY k AS SELECT 1 AS k", {}, 344),
        (
            "CREATE MATERIALIZED VIEW d.v ENGINE = ReplicatedMergeTree ORDER BY k POPULATE AS SELECT 1 AS k",
            {},
            344,
        ),
        ("CREATE MATERIALIZED VIEW d.v REFRESH EVERY 1 DAY ENGINE = Memory AS SELECT 1", {}, 48),
        ("CREATE TABLE d.t (k Int8) ENGINE = ReplicatedMergeTree('/p', 'r') ORDER BY k", {}, 36),
        (
            "CREATE TABLE d.t (k Int8) ENGINE = ReplicatedMergeTree('/p', 'r') ORDER BY k",
            {"database_replicated_allow_replicated_engine_arguments": "1"},
            80,
        ),
        (
            f"CREATE TABLE d.t {MERGE_TREE}",
            {"database_replicated_allow_only_replicated_engine": "1"},
            80,
        ),
    ],
)
def test_a_create_that_is_not_allowed(sql: str, settings: dict[str, str], code: int) -> None:
    with pytest.raises(SqlError) as raised:
        check_create(sql, settings)
    assert raised.value.code == code


def test_a_create_that_is_allowed() -> None:
    name = "database_replicated_allow_replicated_engine_arguments"
    given = "CREATE TABLE d.t (k Int8) ENGINE = ReplicatedMergeTree('/{shard}/p', '{replica}', k) ORDER BY k"
    assert check_create(given, {name: "1"}) == given
    assert "ReplicatedMergeTree(k) ORDER" in check_create(given, {name: "2"})
    for sql in (
        f"CREATE TABLE d.t {MERGE_TREE} AS SELECT 1 AS k",
        "CREATE MATERIALIZED VIEW d.v ENGINE = Memory POPULATE AS SELECT 1 AS k",
    ):
        assert check_create(sql, {}) == sql
    only = {"database_replicated_allow_only_replicated_engine": "1"}
    for sql in (
        "CREATE TABLE d.t (k Int8) ENGINE = ReplicatedMergeTree ORDER BY k",
        "CREATE TABLE d.t (k Int8) ENGINE = Memory",
        "CREATE TABLE d.t EMPTY AS SELECT 1 AS k",
        "CREATE VIEW d.v AS SELECT 1",
    ):
        assert check_create(sql, only) == sql


# -- when ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "moment", "opposite"),
    [
        (f"CREATE TABLE d.t {MERGE_TREE}", Moment.BEHIND, ["DROP TABLE IF EXISTS `d`.`t` SYNC"]),
        ("RENAME TABLE d.t TO d.u", Moment.BEHIND, ["RENAME TABLE `d`.`u` TO `d`.`t`"]),
        ("EXCHANGE TABLES d.t AND d.u", Moment.BEHIND, ["EXCHANGE TABLES d.t AND d.u"]),
        ("ATTACH TABLE d.t", Moment.BEHIND, ["DETACH TABLE `d`.`t` PERMANENTLY"]),
        ("DROP TABLE d.t", Moment.BEFORE, []),
        ("DETACH TABLE d.t PERMANENTLY", Moment.BEFORE, []),
        ("ALTER TABLE d.t ADD COLUMN x Int8", Moment.PLANNED, []),
        ("DROP INDEX i ON d.t", Moment.PLANNED, []),
        ("TRUNCATE TABLE d.t", Moment.DATA, []),
        ("ALTER TABLE d.t UPDATE x = 1 WHERE 1", Moment.DATA, []),
    ],
)
def test_a_statement_is_committed_when_it_can_still_be_undone(
    sql: str, moment: Moment, opposite: list[str]
) -> None:
    statement = parse_statement(sql)
    assert moment_of(statement) is moment
    new = list(statement.tables) if sql.startswith("CREATE") else []
    if moment is Moment.BEHIND:
        assert opposite_of(sql, statement, new) == opposite
