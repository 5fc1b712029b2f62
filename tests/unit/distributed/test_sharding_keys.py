"""Which sharding keys there can be, and which can skip shards: those that always say the same for a row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.distributed.select.deterministic import FUNCTIONS, FUNCTIONS_OF_ANY_CASE, is_deterministic
from engine.errors import SqlError
from engine.names import quote_string
from tests.unit.distributed.test_select_remembered import World, world
from tests.unit.distributed.test_select_shapes import Bench, bench

pytestmark = pytest.mark.slow

__all__ = ["bench", "world"]

HERE = {"distributed_foreground_insert": "1"}
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


COLUMNS_OF_KEYS = (
    "id UInt64, small Int8, maybe Nullable(Int32), yes Bool, most SimpleAggregateFunction(max, Int8), "
    "low LowCardinality(String), day Date, list Array(UInt8)"
)
REFUSED = {
    "sum(id)": 184,
    "count()": 184,
    "finalizeAggregation(sumState(id))": 184,
    "row_number() OVER ()": 47,
    "sum(id) OVER (PARTITION BY small)": 47,
    "cityHash64(*)": 47,
    "COLUMNS('id')": 47,
    "nobody": 47,
    "arrayJoin(list)": 36,
    "toUInt8(arrayJoin(list)) + 1": 36,
    "id IN (SELECT 1)": 36,
    "id IN (SELECT 1 UNION ALL SELECT 2)": 36,
    "id IN one.extra": 36,
    "ifNull((SELECT 1), 0) + id": 36,
    "arrayExists(x -> x IN (SELECT 1), list)": 36,
    "maybe": 53,
    "toFloat64(id)": 53,
    "day": 53,
    "low": 53,
    "NULL": 53,
}
ALLOWED = """
id
yes
most
rand()
cityHash64(generateUUIDv4())
arraySum(arrayMap(x -> x * 2, list))
arrayReduce('sum', list)
ifNull(maybe, 0)
42
""".strip().splitlines()


def test_a_key_that_cannot_give_one_integer_for_a_row_is_refused_when_the_table_is_made(world: World) -> None:
    codes = {}
    for key in REFUSED:
        with pytest.raises(SqlError) as refused:
            world.ask(f"CREATE TABLE keyed ({COLUMNS_OF_KEYS}) ENGINE = Distributed(c, '', t, {key})")
        codes[key] = refused.value.code
        assert "keyed" not in world.ask("SHOW TABLES")
    assert codes == REFUSED


def test_rows_are_divided_by_every_other_key(world: World) -> None:
    """They are, when the shards are asked, which nobody is here."""
    for key in ALLOWED:
        world.ask(f"CREATE TABLE keyed ({COLUMNS_OF_KEYS}) ENGINE = Distributed(c, '', keyed, {key})")
        with pytest.raises(SqlError, match=r"shard \d replica 1, host\d:9000") as nobody:
            world.ask("INSERT INTO keyed (id, small) SELECT number, -number FROM numbers(9)", settings=HERE)
        assert nobody.value.code == 279, key
        world.ask("DROP TABLE keyed SYNC")


def test_a_key_is_shown_as_chdb_writes_it(world: World) -> None:
    """So do servers, and a Replicated database counts it in its digest."""
    for key in ("cityHash64( id,small )", '"small" + id%3', "id :: UInt8", "if (yes ,1, 2)"):
        engine = f"Distributed('c', '', 'keyed', {key})"
        world.ask(f"CREATE TABLE keyed ({COLUMNS_OF_KEYS}) ENGINE = {engine}")
        shown = world.ask("SHOW CREATE TABLE keyed FORMAT TSVRaw").splitlines()
        query = quote_string(f"CREATE TABLE keyed (id UInt64) ENGINE = {engine}")
        written = world.bench.ask(f"SELECT formatQuery({query}) FORMAT TSVRaw").splitlines()
        assert shown[-1].startswith("ENGINE = ") and shown[-1] == written[-1], key
        world.ask("DROP TABLE keyed SYNC")


def test_a_table_that_was_made_with_such_a_key_is_still_there(world: World) -> None:
    """It can be read and altered; INSERT says what is wrong, as ever."""
    [record] = [one for one in world.node.tables.catalog.all() if one.name.table == "events"]
    definition = replace(record.definition, sharding_key="sum(id)")
    world.node.tables.catalog.put(replace(record, definition=definition))
    world.call(world.node.stop())
    again = World(world.bench)
    assert "sum(id)" in again.ask("SHOW CREATE TABLE events")
    assert again.ask("SELECT count(), sum(id) FROM events") == world.bench.ask(
        "SELECT count(), sum(id) FROM events"
    )
    again.ask("ALTER TABLE events COMMENT COLUMN name 'who'")
    with pytest.raises(SqlError) as refused:
        again.ask("INSERT INTO events (id) SELECT 1")
    assert refused.value.code == 184
    world.call(again.node.stop())
