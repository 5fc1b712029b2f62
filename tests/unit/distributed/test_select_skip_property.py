"""optimize_skip_unused_shards: random conditions on sharding keys answer as one table does.

A failure prints its seed and the query.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from engine.errors import SqlError
from tests.few import few_first
from tests.unit.distributed.test_select_remembered import World
from tests.unit.distributed.test_select_shapes import SHARDS, Bench, bench

pytestmark = pytest.mark.slow

__all__ = ["bench"]

SEEDS = int(os.environ.get("DISTRIBUTED_SKIP_SEEDS", "12"))
SKIP = {"optimize_skip_unused_shards": "1"}
FORCE = {**SKIP, "force_optimize_skip_unused_shards": "1"}
UNABLE_TO_SKIP = 507
COLUMNS = {
    "id": "UInt64",
    "small": "UInt8",
    "signed": "Int32",
    "city": "LowCardinality(String)",
    "price": "Decimal(12, 2)",
    "ratio": "Float64",
    "day": "Date",
    "at": "DateTime('UTC')",
}
ROWS = (
    "SELECT number, number % 7, toInt32(number % 11) - 5, ['Rome', 'Oslo', 'Bonn', 'Kyiv'][number % 4 + 1], "
    "toDecimal64(number % 9, 2) * toDecimal64('1.15', 2), if(number % 10 = 0, -0., (number % 10 - 5) / 4), "
    "toDate('2024-01-01') + number % 90, toDateTime('2024-01-01 00:00:00', 'UTC') + number % 13 * 3600 "
    "FROM numbers(200)"
)
CONSTANTS = {
    "id": ["0", "3", "7", "64", "199", "500", "'12'", "1.5", "NULL"],
    "small": ["0", "3", "6", "258", "-1"],
    "signed": ["0", "-5", "5", "3", "'-2'", "4294967291"],
    "city": ["'Rome'", "'Oslo'", "'Bonn'", "'x'"],
    "price": ["0", "1.15", "2.3", "'1.15'", "9.2", "toDecimal64('3.45', 2)"],
    "ratio": ["0", "-0.", "0.5", "-1.25", "1", "-0.75"],
    "day": ["'2024-01-01'", "'2024-02-10'", "toDate('2024-03-03')", "'2025-01-01'"],
    "at": ["'2024-01-01 00:00:00'", "'2024-01-01 05:00:00'", "toDateTime('2024-01-01 03:00:00', 'UTC')"],
}
KEYS = {
    "cityHash64(id)": "UInt64",
    "cityHash64(small, signed)": "UInt64",
    "toInt64(signed) * 2": "Int64",
    "cityHash64(city)": "UInt64",
    "id % 3": "UInt8",
    "intDiv(id, 10)": "UInt64",
    "signed": "Int32",
    "small + id": "UInt64",
    "sipHash64(price)": "UInt64",
    "xxHash64(ratio)": "UInt64",
    "toYYYYMM(day)": "UInt32",
    "toUInt32(at) DIV 3600 + small": "UInt32",
}


@pytest.fixture(scope="module")
def world(bench: Bench) -> Iterator[World]:
    world = World(bench)
    columns = ", ".join(f"{name} {type_}" for name, type_ in COLUMNS.items())
    for database in ("one", *world.shards):
        bench.ask(f"CREATE TABLE keyed (key UInt8, {columns}) ENGINE = MergeTree ORDER BY id", database)
    for number, (key, type_) in enumerate(KEYS.items()):
        bench.ask(f"INSERT INTO keyed SELECT {number}, * FROM ({ROWS})")
        unsigned = {"Int32": "toUInt32", "Int64": "toUInt64"}.get(type_, "")
        for shard in range(SHARDS):
            bench.ask(
                f"INSERT INTO s{shard + 1}.keyed SELECT * FROM one.keyed "
                f"WHERE key = {number} AND {unsigned}({key}) % {SHARDS} = {shard}"
            )
            bench.ask(
                f"CREATE VIEW keyed{number} AS SELECT * EXCEPT key FROM keyed WHERE key = {number}",
                f"s{shard + 1}",
            )
        bench.ask(f"CREATE VIEW keyed{number} AS SELECT * EXCEPT key FROM keyed WHERE key = {number}", "one")
        world.ask(f"CREATE TABLE keyed{number} ({columns}) ENGINE = Distributed(c, '', keyed{number}, {key})")
    yield world
    world.end()


def comparison(rng: random.Random, columns: list[str]) -> str:
    column = rng.choice(columns)
    values = [value for value in CONSTANTS[column] if value != "NULL"]
    several = ", ".join(rng.sample(values, rng.randrange(1, 4)))
    low, high = rng.choice(values), rng.choice(values)
    return rng.choice(
        [
            f"{column} = {low}",
            f"{column} = {low}",
            f"{low} = {column}",
            f"{column} IN ({several})",
            f"{column} IN ({several})",
            f"{column} IN tuple({several})",
            f"{column} IN [{low}, {low}]",
            f"{column} GLOBAL IN ({several}, {low})",
            f"{column} NOT IN ({several})",
            f"{column} != {low}",
            f"NOT {column} = {low}",
            f"NOT ({column} IN ({several}))",
            f"{column} >= {low}",
            f"{column} BETWEEN {low} AND {high}",
            f"{column} = {rng.choice(CONSTANTS[column])}",
        ]
    )


def condition(rng: random.Random, columns: list[str], depth: int = 2) -> str:
    if depth == 0 or rng.random() < 0.3:
        return comparison(rng, columns)
    parts = [condition(rng, columns, depth - 1) for _ in range(rng.choice([1, 2, 2, 3]))]
    text = rng.choice([" AND ", " AND ", " OR "]).join(f"({part})" for part in parts)
    return f"NOT ({text})" if rng.random() < 0.1 else text


@pytest.mark.parametrize("key", few_first(KEYS, few=2))
def test_random_conditions_on_a_key_answer_as_one_table_does(world: World, key: str) -> None:
    number = list(KEYS).index(key)
    of_key = [name for name in COLUMNS if name in key]
    skipped = 0
    for seed in range(SEEDS):
        rng = random.Random(seed)
        columns = rng.choice([of_key, of_key, [*of_key, "id", "city"]])
        text = condition(rng, columns)
        if len(of_key) > 1 and rng.random() < 0.5:
            both = " AND ".join(
                f"{name} IN ({', '.join(CONSTANTS[name][:2] if name == 'at' else rng.sample('0135', 3))})"
                for name in of_key
            )
            text = f"{both} AND ({text})" if rng.random() < 0.5 else both
        items = rng.choice(["*", "count(), sum(id)", "DISTINCT city", "small, count()"])
        tail = " GROUP BY small" if items.startswith("small") else ""
        sql = f"SELECT {items} FROM keyed{number} WHERE {text}{tail} ORDER BY ALL"
        try:
            expected = world.bench.ask(sql)
        except SqlError:
            continue  # a constant that the column cannot be compared with
        try:
            found = world.ask(sql, settings=FORCE)
            skipped += 1
        except SqlError as refused:
            assert refused.code == UNABLE_TO_SKIP, f"seed {seed}, key {key}: {sql}"
            found = world.ask(sql, settings=SKIP)
        assert found == expected, f"seed {seed}, key {key}: {sql}"
    assert 0 < skipped < SEEDS


@pytest.mark.parametrize(
    "where",
    [
        "id IN tuple(3, 7)",
        "id IN [3, 7]",
        "id IN range(3)",
        "id IN (3, NULL, 7)",
        "id IN [3, NULL]",
        "id IN (toUInt64(3), null)",
        "id GLOBAL IN (3, 7)",
        "id IN (toUInt64(3), 7 + 0)",
        "id IN toUInt64(3)",
        "7 = id",
        "id = 3 OR 7 = id OR (small > 1 AND id IN [64, 65])",
        "(id = 3 OR id = 7) AND small < 6",
    ],
)
def test_constants_of_every_form_leave_shards_out(world: World, where: str) -> None:
    """With `force` a condition that leaves none out is error 507."""
    sql = f"SELECT id FROM keyed{list(KEYS).index('id % 3')} WHERE {where} ORDER BY id"
    assert world.ask(sql, settings=FORCE) == world.bench.ask(sql)


@pytest.mark.parametrize(
    ("key", "where"),
    [
        ("cityHash64(small, signed)", "small IN (1, 2, 3) AND signed IN (1, 2, 3)"),
        ("sipHash64(price)", "price = 1.15"),
        ("sipHash64(price)", "price IN (2.3, 1.15)"),
        ("xxHash64(ratio)", "ratio = 0"),
        ("xxHash64(ratio)", "ratio IN (0, 0.5)"),
        ("toUInt32(at) DIV 3600 + small", "at = toDateTime('2024-01-01 03:00:00') AND small = 3"),
    ],
)
@pytest.mark.parametrize("zone", ["", "Asia/Tokyo"])
def test_a_constant_may_stand_for_more_than_one_value(world: World, key: str, where: str, zone: str) -> None:
    sql = f"SELECT id FROM keyed{list(KEYS).index(key)} WHERE {where} ORDER BY id"
    settings = {"session_timezone": zone} if zone else {}
    whole = world.call(
        world.bench.pool.query(sql, format="TSVWithNamesAndTypes", database="one", settings=settings)
    ).text
    assert world.ask(sql, settings={**SKIP, **settings}) == whole


@pytest.mark.parametrize(
    "key",
    [
        "rand()",
        "toUInt64(now64(3)) + id",
        "generateSnowflakeID() + id",
        "cityHash64(generateUUIDv7(), id)",
        "toUInt64(randUniform(0, 9)) + id",
        "id + toUInt32(yesterday())",
        "id + ident(1)",
        "id + rowNumberInAllBlocks()",
    ],
)
def test_a_key_that_is_not_deterministic_skips_no_shard(world: World, key: str) -> None:
    world.ask("CREATE FUNCTION IF NOT EXISTS ident AS x -> x + 0 * rand()")
    world.ask(f"CREATE TABLE drawn (id UInt64) ENGINE = Distributed(c, '', events, {key})")
    try:
        sql = "SELECT count() FROM drawn WHERE id IN (1, 2, 3, 4, 5, 6)"
        assert world.ask(sql, settings=SKIP) == "count()\nUInt64\n6\n"
        with pytest.raises(SqlError, match="Sharding key is not deterministic") as refused:
            world.ask(sql, settings=FORCE)
        assert refused.value.code == UNABLE_TO_SKIP
        anyway = {**FORCE, "allow_nondeterministic_optimize_skip_unused_shards": "1"}
        if key == "rand()":
            with pytest.raises(SqlError, match="is not used"):
                world.ask(sql, settings=anyway)
        else:
            world.ask(sql, settings=anyway)
    finally:
        world.ask("DROP TABLE drawn SYNC")
        world.ask("DROP FUNCTION ident")
