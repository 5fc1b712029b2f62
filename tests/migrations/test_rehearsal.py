"""Rehearsals on a real scratch chDB: what they accept, what they find, what they leave out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from engine.config.model import DistributedDdl, Topology
from engine.env import SystemEnv
from engine.errors import SqlError
from engine.migrations.files import load_folder, read_folder
from engine.migrations.lint import lint
from engine.migrations.model import RunRequest
from engine.migrations.rehearsal import Phase, Rehearsal, RehearsalState
from engine.migrations.rehearse import rehearse
from engine.migrations.statements import Surroundings
from engine.storage.scratch import ScratchChdb
from tests.migrations.support import topology, write

ROOT = Path(__file__).parents[2]
MAKE_TWO = (
    "CREATE TABLE IF NOT EXISTS d.a (x Int8) ENGINE = Memory;"
    "CREATE TABLE IF NOT EXISTS d.b (y Int8) ENGINE = Memory"
)
SWAP = "EXCHANGE TABLES d.a AND d.b"


def surroundings(name: str) -> Surroundings:
    cluster = topology(shards=2, replicas=2).clusters["shop"]
    return Surroundings(name, Topology({name: dataclasses.replace(cluster, name=name)}), DistributedDdl())


async def rehearsed(
    folder: Path,
    *,
    ground: Sequence[int] = (),
    versions: Sequence[int] | None = None,
    database: str = "default",
) -> Rehearsal:
    async with ScratchChdb() as scratch:
        return await rehearse(
            load_folder(folder),
            surroundings(folder.name),
            RunRequest("r", database=database),
            scratch,
            env=SystemEnv(),
            ground=ground,
            versions=versions,
        )


async def of(tmp_path: Path, files: dict[str, str]) -> Rehearsal:
    return await rehearsed(
        write(tmp_path / "shop", {"0_d.up.sql": "CREATE DATABASE IF NOT EXISTS d", **files})
    )


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["order_cluster", "log_cluster"])
async def test_the_demo_s_migrations_pass_their_rehearsal_and_the_real_parser(cluster: str) -> None:
    folder = ROOT / "migrations" / cluster
    result = await rehearsed(folder)
    assert result.is_ok, (result.failures, result.differences)
    assert result.not_rehearsed == ()
    assert {statement.phase for statement in result.statements} == set(Phase) - {Phase.GROUND}
    async with ScratchChdb() as scratch:
        migrations, problems = read_folder(folder)
        report = await lint(migrations, problems, surroundings(cluster), validator=scratch.validate)
    assert report.errors == ()


@pytest.mark.slow
async def test_functions_count_that_come_go_and_are_left_over(tmp_path: Path) -> None:
    result = await of(
        tmp_path,
        {
            "0_d.down.sql": "DROP DATABASE IF EXISTS d",
            "1_a.up.sql": "CREATE FUNCTION IF NOT EXISTS plus_one AS (x) -> x + 1",
            "1_a.down.sql": "DROP FUNCTION IF EXISTS plus_one",
            "2_b.up.sql": "CREATE FUNCTION IF NOT EXISTS plus_two AS (x) -> x + 2",
            "2_b.down.sql": "CREATE TABLE IF NOT EXISTS d.b (x Int8) ENGINE = Log; DROP TABLE IF EXISTS d.b",
        },
    )
    assert result.failures == ()
    assert [(each.version, each.phase, each.name, each.expected) for each in result.differences] == [
        (2, Phase.DOWN, "function plus_two", None),
        (0, Phase.DOWN_AT_THE_END, "function plus_two", None),
    ]


@pytest.mark.slow
async def test_a_mistake_is_found_at_its_statement_and_later_migrations_are_not_tried(tmp_path: Path) -> None:
    result = await of(
        tmp_path,
        {
            "1_a.up.sql": "CREATE TABLE IF NOT EXISTS d.a (x Int8) ENGINE = Log;\n\nALTER TABLE d.a AD y;",
            "2_b.up.sql": "CREATE TABLE IF NOT EXISTS d.b (x Int8) ENGINE = Memory",
        },
    )
    (failure,) = result.failures
    assert (failure.version, failure.line, failure.phase, failure.code) == (1, 3, Phase.UP, 62)
    assert result.advice == "Correct the files."
    assert {statement.version for statement in result.statements} == {0, 1}


@pytest.mark.slow
async def test_what_older_servers_take_is_refused_with_a_word_about_them(tmp_path: Path) -> None:
    table = (
        "CREATE TABLE d.a (k Int8, name String, n SimpleAggregateFunction(max, Int8)) "
        "ENGINE = AggregatingMergeTree ORDER BY k"
    )
    result = await of(tmp_path, {"1_a.up.sql": table})
    assert [failure.code for failure in result.failures] == [36]
    assert "servers of an older ClickHouse" in result.advice
    allowed = f'-- oncluster-next: allow=not-rehearsed reason="all are 24.8"\n{table}'
    allowed += (
        ';\n-- oncluster-next: allow=not-rehearsed reason="new in 26"\nCREATE TABLE d.c (x Int8) ENGINE = Log'
    )
    files = {"1_a.up.sql": allowed, "1_a.down.sql": "DROP TABLE d.a; DROP TABLE d.c", "2_b.up.sql": T}
    result = await of(tmp_path / "allowed", files)
    assert result.is_ok, (result.failures, result.differences)
    assert {(s.version, s.code, s.note) for s in result.not_rehearsed if s.phase is Phase.UP} == {
        (1, 36, "all are 24.8")
    }
    assert [(s.statement, s.code) for s in result.not_repeatable] == [(2, 57)]
    assert (2, RehearsalState.OK) in {(s.version, s.state) for s in result.statements}


@pytest.mark.slow
async def test_an_up_that_cannot_be_repeated_is_told_and_is_no_failure(tmp_path: Path) -> None:
    result = await of(
        tmp_path,
        {
            "1_a.up.sql": "CREATE TABLE d.a (x Int8) ENGINE = MergeTree ORDER BY x",
            "1_a.down.sql": "DROP TABLE d.a",
            "2_b.up.sql": "ALTER TABLE d.a ADD COLUMN y Int8; RENAME TABLE d.a TO d.b",
            "2_b.down.sql": "RENAME TABLE d.b TO d.a; ALTER TABLE d.a DROP COLUMN y",
        },
    )
    assert [(s.version, s.phase, s.code) for s in result.not_repeatable] == [
        (1, Phase.UP_AGAIN, 57),
        (2, Phase.UP_AGAIN, 60),
    ]
    assert result.is_ok, (result.failures, result.differences)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rest", "not_repeatable"),
    [
        pytest.param("", [], id="all of it runs again"),
        pytest.param("; CREATE TABLE d.c (x Int8) ENGINE = Memory", [(4, 57)], id="half of it runs again"),
    ],
)
async def test_what_a_second_up_changes_is_found(
    tmp_path: Path, rest: str, not_repeatable: list[tuple[int, int]]
) -> None:
    result = await of(tmp_path, {"1_a.up.sql": f"{MAKE_TWO}; {SWAP}{rest}"})
    assert [(s.statement, s.code) for s in result.not_repeatable] == not_repeatable
    assert {(d.phase, d.name) for d in result.differences} == {
        (Phase.UP_AGAIN, "table d.a"),
        (Phase.UP_AGAIN, "table d.b"),
    }


@pytest.mark.slow
async def test_what_a_second_up_has_changed_is_not_held_against_the_way_down(tmp_path: Path) -> None:
    files = {"1_a.up.sql": MAKE_TWO, "2_b.up.sql": SWAP, "2_b.down.sql": SWAP}
    result = await of(tmp_path, files)
    assert {(d.version, d.phase) for d in result.differences} == {(2, Phase.UP_AGAIN)}


@pytest.mark.slow
async def test_a_way_down_that_fails_halfway_is_told_once_and_later_files_are_rehearsed(
    tmp_path: Path,
) -> None:
    view = "CREATE MATERIALIZED VIEW IF NOT EXISTS d.a_view TO d.t AS SELECT x, y FROM d.source"
    files = {
        "1_t.up.sql": f"{T}; CREATE TABLE IF NOT EXISTS d.source AS d.t; {view}",
        "2_x.up.sql": "ALTER TABLE d.t ADD COLUMN z Int8; DROP VIEW d.a_view",
        "2_x.down.sql": "ALTER TABLE d.t DROP COLUMN z; DROP MATERIALIZED VIEW d.a_view",
        "3_y.up.sql": "ALTER TABLE d.t ADD COLUMN zz Int8 AFTER z",
        "3_y.down.sql": "ALTER TABLE d.t DROP COLUMN zz",
    }
    result = await of(tmp_path, files)
    assert [(s.version, s.phase, s.statement) for s in result.failures] == [(2, Phase.DOWN, 2)]
    assert result.differences == ()
    assert {s.phase for s in result.statements if s.version == 3} == {
        Phase.UP,
        Phase.UP_AGAIN,
        Phase.DOWN,
        Phase.UP_FOR_THE_NEXT,
    }


@pytest.mark.slow
async def test_up_is_not_repeated_where_the_file_says_why_it_need_not_be(tmp_path: Path) -> None:
    allowed = '-- oncluster-next: allow=not-repeatable reason="swapped once"'
    result = await of(tmp_path, {"1_a.up.sql": f"{MAKE_TWO};\n{allowed}\n{SWAP}"})
    assert result.is_ok, (result.failures, result.differences)
    assert Phase.UP_AGAIN not in {s.phase for s in result.statements if s.version == 1}


T = "CREATE TABLE IF NOT EXISTS d.t (x Int8, y Int8) ENGINE = MergeTree ORDER BY x"
DICTIONARY = (
    "CREATE DICTIONARY d.dict (x UInt64, y UInt8) PRIMARY KEY x SOURCE(CLICKHOUSE(TABLE 't' DB 'd')) "
    "LAYOUT(FLAT()) LIFETIME(9)"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("up", "down"),
    [
        pytest.param(
            "CREATE TABLE d.new AS d.t; RENAME TABLE d.t TO d.old, d.new TO d.t",
            "DROP TABLE d.t; RENAME TABLE d.old TO d.t",
            id="what it has made",
        ),
        pytest.param(
            "CREATE VIEW d.v AS SELECT x FROM d.t; ALTER TABLE d.t ADD COLUMN z Int8; DROP VIEW d.v",
            "ALTER TABLE d.t DROP COLUMN z",
            id="a view that it has made",
        ),
        pytest.param(
            f"{DICTIONARY}; ALTER TABLE d.t ADD COLUMN z Int8; DROP DICTIONARY d.dict",
            "ALTER TABLE d.t DROP COLUMN z",
            id="a dictionary that it has made",
        ),
        pytest.param(
            "DROP VIEW IF EXISTS d.v; ALTER TABLE d.t ADD COLUMN z Int8;CREATE VIEW d.v AS SELECT z FROM d.t",
            "DROP VIEW d.v; ALTER TABLE d.t DROP COLUMN z",
            id="what it has removed",
        ),
        pytest.param(
            "DROP VIEW IF EXISTS d.v;"
            "CREATE MATERIALIZED VIEW d.v ENGINE = MergeTree ORDER BY x AS SELECT x FROM d.t",
            "DROP VIEW d.v",
            id="a view with a table of its own",
        ),
    ],
)
async def test_an_up_that_stops_halfway_the_second_time_is_no_failure_and_is_put_back(
    tmp_path: Path, up: str, down: str
) -> None:
    files = {"1_t.up.sql": T, "2_x.up.sql": up, "2_x.down.sql": down, "3_y.up.sql": T}
    result = await of(tmp_path, files)
    assert result.is_ok, (result.failures, result.differences)
    assert {s.version for s in result.statements} == {0, 1, 2, 3}


@pytest.mark.slow
async def test_a_key_that_was_longer_for_a_while_is_as_it_was(tmp_path: Path) -> None:
    files = {
        "1_t.up.sql": T,
        "2_k.up.sql": "ALTER TABLE d.t ADD COLUMN k Int8, MODIFY ORDER BY (x, k)",
        "2_k.down.sql": "ALTER TABLE d.t MODIFY ORDER BY x; ALTER TABLE d.t DROP COLUMN k",
    }
    result = await of(tmp_path, files)
    assert result.is_ok, (result.failures, result.differences)


@pytest.mark.slow
async def test_what_only_servers_have_in_a_select_or_as_rows_does_not_fail(tmp_path: Path) -> None:
    files = {
        "1_t.up.sql": f"{T}; CREATE TABLE IF NOT EXISTS d.u AS d.t",
        "2_log.up.sql": "CREATE VIEW IF NOT EXISTS d.log AS SELECT query FROM system.query_log",
        "3_user.up.sql": "CREATE VIEW IF NOT EXISTS d.v DEFINER = ada SQL SECURITY DEFINER AS SELECT 1",
        "4_rows.up.sql": "ALTER TABLE d.t REPLACE PARTITION tuple() FROM d.u;"
        "ALTER TABLE d.t DROP PART 'all_1_1_0'",
    }
    result = await of(tmp_path, files)
    assert result.is_ok, (result.failures, result.differences)
    assert {(s.version, s.code) for s in result.not_rehearsed} == {(2, 60), (3, 192), (4, 232)}


@pytest.mark.slow
async def test_settings_that_travel_with_a_statement_hold_for_it_alone(tmp_path: Path) -> None:
    makes = "CREATE TABLE IF NOT EXISTS d.{} (x LowCardinality(UInt8){}) ENGINE = Memory;\n"
    travels = "-- oncluster-next: setting.max_query_size=0 setting.allow_suspicious_low_cardinality_types=1\n"
    long = f" COMMENT '{'its long ' * 30000}'"
    files = {"1_a.up.sql": f"{travels}{makes.format('a', long)}{makes.format('b', '')}"}
    result = await of(tmp_path, files)
    assert [(s.version, s.statement, s.code) for s in result.failures] == [(1, 2, 455)]
    migrations, problems = read_folder(tmp_path / "shop")
    async with ScratchChdb() as scratch:
        report = await lint(migrations, problems, surroundings("shop"), validator=scratch.validate)
    assert report.errors == ()


@pytest.mark.slow
async def test_an_empty_down_file_is_as_good_as_none(tmp_path: Path) -> None:
    result = await of(
        tmp_path,
        {
            "1_a.up.sql": "CREATE TABLE IF NOT EXISTS d.a (x Int8) ENGINE = Memory",
            "1_a.down.sql": "-- there is no way back\n",
        },
    )
    assert result.is_ok, (result.failures, result.differences)


@pytest.mark.slow
async def test_a_down_that_does_not_bring_back_what_was_there_is_found(tmp_path: Path) -> None:
    result = await of(
        tmp_path,
        {
            "1_a.up.sql": "CREATE TABLE IF NOT EXISTS d.a (x Int8) ENGINE = MergeTree ORDER BY x",
            "1_a.down.sql": "DROP TABLE IF EXISTS d.a",
            "2_b.up.sql": "ALTER TABLE d.a ADD COLUMN IF NOT EXISTS y Int8, ADD COLUMN IF NOT EXISTS z Int8",
            "2_b.down.sql": "ALTER TABLE d.a DROP COLUMN IF EXISTS y",
        },
    )
    (difference,) = result.differences
    assert (difference.version, difference.phase, difference.name) == (2, Phase.DOWN, "table d.a")
    assert str(difference).splitlines()[1:] == ["  + `z` Int8"]
    assert "allow=down-incomplete" in result.advice


@pytest.mark.slow
async def test_what_a_down_has_left_over_is_told_once_and_later_files_are_rehearsed(tmp_path: Path) -> None:
    make, remove = "CREATE TABLE d.{} (x Int8) ENGINE = Memory", "DROP TABLE IF EXISTS d.{}"
    files = {
        "1_a.up.sql": f"{make.format('a')}; {make.format('b')}; CREATE VIEW d.v AS SELECT x FROM d.b",
        "1_a.down.sql": f"DROP VIEW d.v; {remove.format('a')}; {remove.format('B')}",
        "2_c.up.sql": f"{make.format('c')}; ALTER TABLE d.b ADD COLUMN y Int8",
        "2_c.down.sql": remove.format("c"),
        "3_d.up.sql": make.format("d"),
        "3_d.down.sql": remove.format("d"),
    }
    result = await of(tmp_path, files)
    assert result.failures == ()
    assert [(d.version, d.name) for d in result.differences if d.phase is Phase.DOWN] == [
        (1, "table d.b"),
        (2, "table d.b"),
    ]
    assert Phase.UP_FOR_THE_NEXT in {s.phase for s in result.statements if s.version == 3}


@pytest.mark.slow
async def test_a_down_may_make_an_index_anew_behind_the_others_and_a_column_not(tmp_path: Path) -> None:
    """Of indices, projections and constraints nobody notices the order; SELECT * shows that of columns."""
    table = (
        "CREATE TABLE IF NOT EXISTS d.t (a Int8, b Int8, INDEX i a TYPE minmax GRANULARITY 1, "
        "INDEX j b TYPE set(5) GRANULARITY 1) ENGINE = MergeTree ORDER BY a"
    )
    files = {
        "1_t.up.sql": table,
        "1_t.down.sql": "DROP TABLE d.t",
        "2_i.up.sql": "ALTER TABLE d.t DROP INDEX IF EXISTS i",
        "2_i.down.sql": "ALTER TABLE d.t ADD INDEX i a TYPE minmax GRANULARITY 1",
    }
    assert (await of(tmp_path / "index", files)).differences == ()
    files["2_i.down.sql"] = "ALTER TABLE d.t ADD INDEX i a TYPE minmax GRANULARITY 2"
    assert [d.phase for d in (await of(tmp_path / "other", files)).differences] == [Phase.DOWN]
    files |= {
        "1_t.up.sql": "CREATE TABLE IF NOT EXISTS d.t (a Int8, b Int8, c Int8) ENGINE = Memory",
        "2_i.up.sql": "ALTER TABLE d.t DROP COLUMN IF EXISTS b",
        "2_i.down.sql": "ALTER TABLE d.t ADD COLUMN b Int8",
    }
    assert Phase.DOWN in {d.phase for d in (await of(tmp_path / "column", files)).differences}


async def test_a_down_need_not_bring_back_all_where_its_file_says_why(tmp_path: Path) -> None:
    result = await of(
        tmp_path,
        {
            "1_a.up.sql": "CREATE TABLE IF NOT EXISTS d.a (x Int8, y Int8) ENGINE = MergeTree ORDER BY x",
            "1_a.down.sql": '-- oncluster: allow=down-incomplete reason="kept"\nDROP TABLE IF EXISTS d.other',
            "2_b.up.sql": "ALTER TABLE d.a DROP COLUMN IF EXISTS y",
            "2_b.down.sql": '-- oncluster: allow=down-incomplete reason="y is gone"\n'
            "ALTER TABLE d.a MODIFY COLUMN x Int8",
        },
    )
    assert result.is_ok, (result.failures, result.differences)


@pytest.mark.slow
async def test_what_one_process_cannot_carry_out_is_listed_and_does_not_fail(tmp_path: Path) -> None:
    result = await of(
        tmp_path,
        {
            "1_a.up.sql": "CREATE TABLE IF NOT EXISTS d.r ON CLUSTER '{cluster}' (x Int8) ENGINE = "
            "ReplicatedReplacingMergeTree('/t/{shard}', '{replica}', x) ORDER BY x;"
            "CREATE TABLE IF NOT EXISTS d.all AS d.r ENGINE = Distributed('{cluster}', d, r, x);"
            "CREATE TABLE IF NOT EXISTS d.far ENGINE = Distributed(shop, d, r);"
            "SYSTEM RELOAD CONFIG;"
            "CREATE USER IF NOT EXISTS u IDENTIFIED BY 'hunter2';"
            "ALTER TABLE d.far MODIFY COMMENT 'x'",
            "1_a.down.sql": "DROP TABLE IF EXISTS d.far; DROP TABLE IF EXISTS d.all;DROP TABLE IF EXISTS d.r",
        },
    )
    assert result.is_ok, (result.failures, result.differences)
    assert sorted({s.statement for s in result.not_rehearsed}) == [3, 4, 5, 6]
    notes = {s.statement: s.note for s in result.statements if s.version == 1 and s.phase is Phase.UP}
    assert notes[1] == "ReplicatedReplacingMergeTree as ReplacingMergeTree"
    assert notes[2] == "Distributed over a cluster without hosts"
    assert "hunter2" not in str(result.to_json())


@pytest.mark.slow
async def test_what_only_servers_have_does_not_fail_and_what_rests_on_it_neither(tmp_path: Path) -> None:
    result = await of(
        tmp_path,
        {
            "1_a.up.sql": "CREATE TABLE IF NOT EXISTS d.t (x Int8, day Date) ENGINE = MergeTree ORDER BY x "
            "TTL day + INTERVAL 1 DAY TO VOLUME 'cold' SETTINGS storage_policy = 'tiered';"
            "ALTER TABLE d.t MODIFY TTL day + INTERVAL 2 DAY TO DISK 'slow';"
            "CREATE TABLE IF NOT EXISTS d.map (k String) ENGINE = KeeperMap('/map') PRIMARY KEY k;"
            "CREATE DATABASE IF NOT EXISTS shop ENGINE = MySQL('db:3306', 'shop', 'u', 'p');"
            "CREATE TABLE IF NOT EXISTS d.far ENGINE = PostgreSQL('db:5432', 'd', 't', 'u', 'p');"
            "CREATE VIEW IF NOT EXISTS d.v AS SELECT * FROM d.far",
            "1_a.down.sql": "DROP VIEW IF EXISTS d.v; DROP TABLE d.far; DROP DATABASE shop;"
            "DROP TABLE IF EXISTS d.map; DROP TABLE IF EXISTS d.t",
        },
    )
    assert result.is_ok, (result.failures, result.differences)
    assert {s.statement for s in result.not_rehearsed if s.phase is Phase.UP} == {4, 5, 6}


@pytest.mark.slow
async def test_a_statement_that_cannot_be_sent_fails(tmp_path: Path) -> None:
    result = await of(tmp_path, {"1_a.up.sql": "INSERT INTO d.t VALUES (1)"})
    (failed,) = result.failures
    assert (failed.version, failed.code) == (1, 48)
    assert "run it once between two runs" in failed.error


@pytest.mark.slow
async def test_what_is_applied_is_the_ground_and_proven_by_the_cluster(tmp_path: Path) -> None:
    """It is run up once, whatever its down file is worth, and what chDB cannot do of it is no failure."""
    folder = write(
        tmp_path / "shop",
        {
            "1_a.up.sql": "CREATE DATABASE d; CREATE TABLE d.a (x Int8) ENGINE = Memory",
            "1_a.down.sql": "DROP TABLE d.no_such",
            "2_b.up.sql": "CREATE TABLE d.b (x NoSuchType) ENGINE = Memory",
            "4_d.up.sql": "CREATE TABLE d.d (x Int8) ENGINE = Memory",
            "3_c.up.sql": "ALTER TABLE d.a ADD COLUMN IF NOT EXISTS y Int8; ALTER TABLE d.b ADD COLUMN z Int",
            "3_c.down.sql": "ALTER TABLE d.a DROP COLUMN IF EXISTS y",
            "5_e.up.sql": "CREATE TABLE d.e (x NoSuchType) ENGINE = Memory",
        },
    )
    result = await rehearsed(folder, ground=(1, 2, 4), versions=(3,))
    assert result.is_ok, (result.failures, result.differences)
    phases = [(s.version, s.phase) for s in result.statements]
    assert phases[:4] == [(1, Phase.GROUND), (1, Phase.GROUND), (2, Phase.GROUND), (4, Phase.GROUND)]
    assert {version for version, _ in phases[4:]} == {3}
    assert {(s.version, s.statement) for s in result.not_rehearsed} == {(2, 1), (3, 2)}


@pytest.mark.slow
async def test_the_database_of_names_that_have_none_is_there_if_the_folder_does_not_make_it(
    tmp_path: Path,
) -> None:
    files = {
        "1_a.up.sql": "CREATE TABLE a (x Int8) ENGINE = Memory",
        "1_a.down.sql": "DROP TABLE a",
        "2_b.up.sql": "-- oncluster: database=other\nCREATE TABLE b (x Int8) ENGINE = Memory",
        "2_b.down.sql": "-- oncluster: database=other\nDROP TABLE b",
    }
    result = await rehearsed(write(tmp_path / "shop", files), database="sales")
    assert result.is_ok, (result.failures, result.differences)

    too_late = {**files, "3_c.up.sql": "CREATE DATABASE sales", "3_c.down.sql": "DROP DATABASE sales"}
    result = await rehearsed(write(tmp_path / "late" / "shop", too_late), database="sales")
    assert [(s.version, s.phase, s.code) for s in result.failures] == [(1, Phase.UP, 81)]


@pytest.mark.slow
async def test_whoever_waits_is_told_which_migration_of_how_many_it_is(tmp_path: Path) -> None:
    files = {
        f"{v}_t.up.sql": f"CREATE TABLE IF NOT EXISTS t{v} (x Int8) ENGINE = Memory" for v in range(1, 4)
    }
    folder = write(tmp_path / "shop", files)
    told: list[tuple[int, int]] = []
    async with ScratchChdb() as scratch:
        await rehearse(
            load_folder(folder),
            surroundings("shop"),
            RunRequest("r"),
            scratch,
            env=SystemEnv(),
            ground=[1],
            on_migration=lambda number, of: told.append((number, of)),
        )
    assert told == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.slow
async def test_a_misspelt_word_is_a_syntax_error_with_its_place(tmp_path: Path) -> None:
    result = await of(tmp_path, {"1_a.up.sql": "CREATE USERR u IDENTIFIED BY 'hunter2'"})
    (failed,) = result.failures
    assert failed.code == 62
    assert "failed at position 8 (USERR)" in failed.error
    assert "hunter2" not in failed.error


@pytest.mark.slow
async def test_a_misspelt_engine_does_not_pass_for_a_far_one(tmp_path: Path) -> None:
    codes, said = {}, []
    async with ScratchChdb() as scratch:
        for engine in ("Replicatedmergetree('/t', 'r')", "Kafkaa", "FooMergeTree", "RabbitMQ", "Kafka"):
            files = {"1_a.up.sql": f"CREATE TABLE IF NOT EXISTS default.t (x Int8) ENGINE = {engine}"}
            folder = write(tmp_path / engine[:8] / "shop", files)
            result = await rehearse(
                load_folder(folder), surroundings("shop"), RunRequest("r"), scratch, env=SystemEnv()
            )
            codes[engine.partition("(")[0]] = [failure.code for failure in result.failures]
            said += [failure.error for failure in result.failures]
    assert codes == {
        "Replicatedmergetree": [56],
        "Kafkaa": [56],
        "FooMergeTree": [56],
        "RabbitMQ": [],
        "Kafka": [],
    }
    assert said[:2] == [
        "Unknown table engine Replicatedmergetree. Maybe ReplicatedMergeTree is meant.",
        "Unknown table engine Kafkaa. Maybe Kafka is meant.",
    ]


@pytest.mark.slow
async def test_a_distributed_table_that_every_host_would_refuse_fails(tmp_path: Path) -> None:
    """Also later, by ALTER. A scratch cannot know whether there is such a cluster or policy."""
    base = (
        "CREATE DATABASE IF NOT EXISTS d;"
        "CREATE TABLE IF NOT EXISTS d.l (x Int8, s String) ENGINE = MergeTree ORDER BY x;"
    )
    codes = {}
    cases = {
        "nope": "d, l, nope)",
        "text": "d, l, s)",
        "setting": "d, l, x) SETTINGS nope = 1",
        "many": "d, l, x, 'default', 1)",
        "modified": "d, l, x); ALTER TABLE d.a MODIFY COLUMN x String",
        "dropped": "d, l, x); ALTER TABLE d.a DROP COLUMN x",
        "fine": "currentDatabase(), 'l', cityHash64(s), 'cold') SETTINGS fsync_directories = 1;"
        "ALTER TABLE d.a ADD COLUMN IF NOT EXISTS y Int8; TRUNCATE TABLE d.a;"
        "CREATE VIEW IF NOT EXISTS d.v AS SELECT * FROM d.a WHERE x IN (SELECT max(x) FROM d.a);"
        "CREATE TABLE IF NOT EXISTS d.m ENGINE = Memory AS SELECT (SELECT max(x) FROM d.a) AS x;"
        "ALTER TABLE d.l DELETE WHERE x IN (SELECT x FROM d.a);",
    }
    async with ScratchChdb() as scratch:
        for case, rest in cases.items():
            up = f"{base}CREATE TABLE IF NOT EXISTS d.a AS d.l ENGINE = Distributed('{{elsewhere}}', {rest}"
            folder = write(tmp_path / case / "shop", {"1_a.up.sql": up})
            result = await rehearse(
                load_folder(folder), surroundings("shop"), RunRequest("r"), scratch, env=SystemEnv()
            )
            assert result.not_rehearsed == ()
            codes[case] = [failure.code for failure in result.failures]
    refused = {"nope": [47], "text": [53], "setting": [115], "many": [42], "modified": [53], "dropped": [47]}
    assert codes == {**refused, "fine": []}


@pytest.mark.slow
async def test_a_statement_that_brings_the_scratch_down_is_named(tmp_path: Path) -> None:
    class Dying(ScratchChdb):
        async def execute(self, sql: str, *, settings: Mapping[str, str] | None = None) -> None:
            if "fatal" in sql:
                await self.close()
            await super().execute(sql, settings=settings)

    files = {"2_b.up.sql": "CREATE TABLE IF NOT EXISTS d.fatal (x Int8) ENGINE = Memory"}
    folder = write(tmp_path / "shop", {"1_d.up.sql": "CREATE DATABASE IF NOT EXISTS d", **files})
    async with Dying() as scratch:
        result = await rehearse(
            load_folder(folder), surroundings("shop"), RunRequest("r"), scratch, env=SystemEnv()
        )
    assert [(f.version, f.phase) for f in result.failures] == [(2, Phase.UP)]


@pytest.mark.slow
async def test_the_real_parser_judges_text_with_on_cluster() -> None:
    async with ScratchChdb() as scratch:
        assert "ON CLUSTER c" in await scratch.validate(
            "create table d.t  on cluster c (a Int8) engine=Memory"
        )
        with pytest.raises(SqlError) as caught:
            await scratch.validate("CREATE USER u ON CLUSTER c IDENTIFIED BY 'hunter2' FOO")
        assert caught.value.code == 62
        assert "FOO" in caught.value.message
        assert "hunter2" not in caught.value.message
