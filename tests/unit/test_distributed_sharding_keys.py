"""Which sharding keys can skip shards: those that say the same for the same row every time."""

from __future__ import annotations

import pytest

from engine.distributed.select.deterministic import FUNCTIONS, FUNCTIONS_OF_ANY_CASE, is_deterministic
from tests.unit.test_distributed_select_shapes import Bench, bench

__all__ = ["bench"]

COLUMNS = ("id", "city", "at", "now", "pair", "a b")


@pytest.mark.parametrize(
    "key",
    [
        "id",
        "id % 3",
        "-id + 4 * 2",
        "id DIV 2 MOD 5",
        "cityHash64(id)",
        "xxHash64(city, id)",
        "jumpConsistentHash(cityHash64(id), 8)",
        "intDiv(toUInt32(at), 3600)",
        "toYYYYMM(at)",
        "CAST(id AS UInt32)",
        "id::UInt8",
        "ABS(id)",
        "If(id > 3 AND NOT (city IN ('a', 'b')), 1, 0)",
        "CASE WHEN id IS NULL THEN 1 ELSE 2 END",
        "now % 4",
        "pair.b",
        "`a b` + 1",
        "`id`",
        "cityHash64('rand()', id)",
        "cityHash64(lower(city) || 'x', [id], (id, 2))",
    ],
)
def test_a_key_of_columns_and_known_functions_is_deterministic(key: str) -> None:
    assert is_deterministic(key, COLUMNS)


NOT_DETERMINISTIC = [
    "rand()",
    "rand32()",
    "rand64(id)",
    "randConstant()",
    "randUniform(0, 9)",
    "canonicalRand()",
    "now()",
    "now ()",
    "`now`()",
    "now64()",
    "nowInBlock()",
    "toUInt32(now64(3)) + id",
    "today()",
    "yesterday()",
    "toUnixTimestamp(now()) % 7 + id",
    "generateUUIDv4()",
    "cityHash64(generateUUIDv7(), id)",
    "generateSnowflakeID()",
    "generateSerialID('x')",
    "dictGet('d', 'a', id)",
    "dictGetUInt64('d', 'a', id)",
    "joinGet(j, 'a', id)",
    "my_function(id)",
    "cityhash64(id)",
    "rowNumberInAllBlocks()",
    "cityHash64(currentUser(), id)",
    "hostName() = 'x'",
    "getMacro('shard')::UInt8",
    "CURRENT_DATE",
    "current_timestamp",
    "id IN other_table",
    "(SELECT max(id) FROM t)",
    "(now() AS id) + 1",
    "RAND()",
]


@pytest.mark.parametrize("key", NOT_DETERMINISTIC)
def test_what_is_not_known_is_not_deterministic(key: str) -> None:
    assert not is_deterministic(key, COLUMNS)


def test_clickhouse_calls_the_known_functions_deterministic(bench: Bench) -> None:
    names = ", ".join(f"'{name}'" for name in sorted(FUNCTIONS))
    found = bench.ask(f"SELECT name FROM system.functions WHERE deterministic = 1 AND name IN ({names})")
    assert set(found.splitlines()[2:]) == FUNCTIONS
    names = ", ".join(f"'{name}'" for name in sorted(FUNCTIONS_OF_ANY_CASE))
    found = bench.ask(
        "SELECT DISTINCT lower(name) FROM system.functions "
        f"WHERE deterministic = 1 AND case_insensitive AND lower(name) IN ({names})"
    )
    assert set(found.splitlines()[2:]) == FUNCTIONS_OF_ANY_CASE
