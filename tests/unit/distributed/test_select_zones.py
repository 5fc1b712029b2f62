"""Columns without a time zone beside the setting session_timezone: as with one table that holds all rows."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from engine.node.distributed.reading.zones import has_session_zone
from tests.few import few_first
from tests.unit.distributed.test_select_remembered import World
from tests.unit.distributed.test_select_shapes import SHARDS, Bench, bench

pytestmark = pytest.mark.slow

__all__ = ["bench"]

SEEDS = int(os.environ.get("DISTRIBUTED_SELECT_SEEDS", "30"))
TIMES = {
    "id": "UInt64",
    "at": "DateTime",
    "fine": "DateTime64(3)",
    "perhaps": "Nullable(DateTime)",
    "listed": "Array(DateTime)",
    "fixed": "DateTime('Asia/Kathmandu')",
}
KEYS = [
    "toHour(at)",
    "toDate(fine)",
    "toStartOfDay(at)",
    "at",
    "perhaps",
    "toHour(perhaps)",
    "listed[1]",
    "toHour(listed[1])",
    "toHour(fixed)",
    "toString(at)",
    "toYYYYMM(fine)",
    "id % 3",
    "toDayOfWeek(at)",
    "fixed",
]
CONDITIONS = [
    "toHour(at) = 2",
    "toDate(at) = '2024-01-02'",
    "at > '2024-01-02 05:00:00'",
    "at IN ('2024-01-02 05:00:00', '2024-01-02 14:00:00')",
    "fine < '2024-01-03 05:00:00.500'",
    "toHour(perhaps) > 12",
    "perhaps >= '2024-01-02'",
    "has(listed, toDateTime('2024-01-02 05:00:00'))",
    "toStartOfDay(at) = toDateTime('2024-01-02 00:00:00')",
    "toHour(fixed) = 3",
    "id % 2 = 0",
]


@pytest.fixture(scope="module")
def world(bench: Bench) -> Iterator[World]:
    columns = ", ".join(f"{name} {type_}" for name, type_ in TIMES.items())
    for database in ("one", *(f"s{n}" for n in range(1, SHARDS + 1))):
        bench.ask(f"CREATE TABLE times ({columns}) ENGINE = MergeTree ORDER BY id", database)
    bench.ask(
        "INSERT INTO times SELECT number, toDateTime('2024-01-01 00:00:00', 'UTC') + number * 3000 AS t, "
        "t + 7, if(number % 4 = 0, NULL, t + 900), [t, t + 60], t FROM numbers(120)"
    )
    for n in range(1, SHARDS + 1):
        bench.ask(f"INSERT INTO s{n}.times SELECT * FROM one.times WHERE cityHash64(id) % {SHARDS} = {n - 1}")
    world = World(bench)
    world.make("times", table="times", columns=TIMES)
    yield world
    world.end()


def query(rng: random.Random) -> str:
    keys = rng.sample(KEYS, 2)
    where = f" WHERE {rng.choice(CONDITIONS)}" if rng.random() < 0.7 else ""
    over = rng.choice(["times", "(SELECT * FROM times)", "times"])
    both = ", ".join(keys)
    return rng.choice(
        [
            f"SELECT {both}, count(), toHour(max(at)) FROM {over}{where} GROUP BY ALL ORDER BY ALL",
            f"SELECT id, {keys[0]}, {keys[1]}, at, fine FROM {over}{where} ORDER BY id LIMIT 20",
            f"SELECT count(), min(at), toHour(max(fine)), toHour(argMin(perhaps, id)) FROM {over}{where}",
            f"SELECT DISTINCT {keys[0]} AS a, {keys[1]} AS b FROM {over}{where} ORDER BY ALL",
            f"SELECT n, toHour(at) FROM times JOIN (SELECT id n FROM {over}{where}) x ON id = n ORDER BY 1",
            f"SELECT id FROM times WHERE at IN (SELECT at FROM {over}{where}) ORDER BY id",
        ]
    )


@pytest.mark.parametrize("seed", few_first(range(SEEDS), few=10))
def test_a_random_query_in_another_zone_answers_as_one_table_does(world: World, seed: int) -> None:
    rng = random.Random(seed)
    sql = query(rng)
    zone = rng.choice(["Asia/Tokyo", "America/New_York"])
    expected = world.bench.ask(f"{sql} SETTINGS session_timezone = '{zone}'")
    assert world.ask(sql, settings={"session_timezone": zone}) == expected, sql
    assert world.ask(f"{sql} SETTINGS session_timezone = '{zone}'") == expected, sql


def test_rows_are_found_by_the_hour_that_their_table_knows(world: World) -> None:
    """The shard and the node that asked once meant different hours, and no row was left."""
    sql = "SELECT id, at FROM times WHERE toHour(at) = 2 ORDER BY id SETTINGS session_timezone = 'Asia/Tokyo'"
    answer = world.ask(sql)
    assert answer == world.bench.ask(sql)
    assert len(answer.splitlines()) > 2 + SHARDS


def test_merged_tables_may_lack_a_column_with_a_time(world: World) -> None:
    sql = "SELECT id, toHour(at), more FROM merge('^times') WHERE toYear(at) > 1970 ORDER BY id"
    sql += " SETTINGS session_timezone = 'Japan'"
    world.bench.ask("CREATE TABLE one.times_too (id UInt64, more DateTime) ENGINE = Memory")
    world.bench.ask("INSERT INTO one.times_too VALUES (7, 5)")
    world.ask("CREATE TABLE times_too AS one.times_too")
    world.ask("INSERT INTO times_too SELECT * FROM one.times_too")
    try:
        assert world.ask(sql) == world.bench.ask(sql)
    finally:
        world.ask("DROP TABLE times_too SYNC")
        world.bench.ask("DROP TABLE one.times_too SYNC")


@pytest.mark.parametrize(
    ("type_", "has"),
    [
        ("DateTime", True),
        ("DateTime64(3)", True),
        ("Array(Nullable(DateTime))", True),
        ("Tuple(a UInt8, b DateTime64(6))", True),
        ("DateTime('UTC')", False),
        ("DateTime64(3, 'UTC')", False),
        ("Tuple(DateTime UInt8)", False),
        ("Enum8('DateTime' = 1)", False),
        ("UInt8", False),
    ],
)
def test_types_without_a_zone(type_: str, has: bool) -> None:
    assert has_session_zone(type_) is has
