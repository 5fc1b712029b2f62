"""additional_table_filters over Distributed tables: as with one table that holds all rows."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from engine.errors import Code, SqlError
from engine.names import TableName
from engine.node.distributed.reading.table_filters import filter_of, filter_setting, table_filters
from tests.few import few_first
from tests.unit.distributed.test_select_property import Query
from tests.unit.distributed.test_select_remembered import World
from tests.unit.distributed.test_select_shapes import PEOPLE, SHARDS, Bench, bench

pytestmark = pytest.mark.slow

__all__ = ["bench"]

SEEDS = int(os.environ.get("DISTRIBUTED_SELECT_SEEDS", "40"))
FILTERS = "{'events': 'id % 7 != 2 AND city != \\'Oslo\\'', 'people': 'age > 20'}"


@pytest.fixture(scope="module")
def world(bench: Bench) -> Iterator[World]:
    world = World(bench)
    world.make()
    world.make("people", table="people", columns=PEOPLE)
    for database in ("one", "d"):
        bench.ask("CREATE VIEW rome AS SELECT id, price FROM events WHERE city = 'Rome'", database)
    yield world
    bench.ask("DROP VIEW one.rome")
    world.end()


@pytest.mark.parametrize("seed", few_first(range(SEEDS), few=13))
def test_a_random_query_of_filtered_tables_answers_as_one_table_does(world: World, seed: int) -> None:
    sql = Query(seed).text()
    if "twice" in sql or "label" in sql:
        return  # These belong to the tables of the shards.
    settings = {"additional_table_filters": FILTERS}
    sql = sql.replace("PREWHERE", "WHERE")  # ClickHouse does not take both in one read.
    expected = world.bench.ask(f"{sql} SETTINGS additional_table_filters = {FILTERS}")
    assert world.ask(sql, settings=settings) == expected, sql


def both(world: World, sql: str, filters: str) -> tuple[str, str]:
    """The answer over shards, and that of one table."""
    text = f"{sql} SETTINGS additional_table_filters = {filters}"
    return world.ask(text), world.bench.ask(text.replace("d.events", "one.events"))


@pytest.mark.parametrize(
    ("sql", "filters"),
    [
        ("SELECT count() FROM events", "{'d.events': 'id < 10'}"),
        ("SELECT count(), sum(e.id) FROM events AS e", "{'e': 'id < 10'}"),
        ("SELECT count(), sum(id) FROM events AS e", "{'x': 'id > 5', 'events': 'id < 10', 'e': '0'}"),
        ("SELECT a.id, b.id FROM events a JOIN events b USING (day) ORDER BY ALL", "{'b': 'id < 10'}"),
        ("SELECT count() FROM people FINAL", "{'people': 'age > 30'}"),
        ("SELECT count() FROM people FINAL PREWHERE age < 60", "{'people': 'age > 30'}"),
        ("SELECT count() FROM events SAMPLE 1", "{'events': 'id < 10'}"),
        ("SELECT count(), max(price) FROM rome", "{'rome': 'id > 50'}"),
        ("SELECT count(), max(price) FROM rome", "{'d.events': 'id > 50'}"),
        ("SELECT id FROM people WHERE id IN (SELECT id FROM events) ORDER BY id", "{'events': 'id < 20'}"),
        ("SELECT city, count() FROM events GROUP BY city ORDER BY city", "{'events': 'price > 50'}"),
        ("SELECT id FROM events ORDER BY id DESC LIMIT 3", "{'events': 'id < 20'}"),
        ("SELECT DISTINCT city FROM events ORDER BY city", "{'events': 'has(tags, \\'t1\\')'}"),
        ("SELECT * FROM (SELECT count() FROM events) WHERE 1", "{'events': 'id IN (1, 2, 3)'}"),
        ("SELECT count() FROM events FULL JOIN people USING (id)", "{'people': 'id < 20'}"),
    ],
)
def test_a_filter_is_found_by_name_and_holds_before_all_else(world: World, sql: str, filters: str) -> None:
    over_shards, of_one = both(world, sql.replace(" SAMPLE 1", ""), filters)
    assert over_shards == of_one
    assert of_one != world.bench.ask(sql.replace(" SAMPLE 1", ""))


def test_a_filter_may_use_hidden_columns_and_the_number_of_the_shard(world: World) -> None:
    world.ask(
        "CREATE TABLE hidden (id UInt64, twice UInt64 MATERIALIZED id * 2) "
        "ENGINE = Distributed(c, '', events)"
    )
    try:
        for condition, of_one in (("twice < 9", "id < 5"), ("_shard_num = 2", "cityHash64(id) % 3 = 1")):
            answer = world.ask(
                "SELECT count(), sum(id) FROM hidden",
                settings={"additional_table_filters": f"{{'hidden': '{condition}'}}"},
            )
            assert answer == world.bench.ask(f"SELECT count(), sum(id) FROM events WHERE {of_one}")
    finally:
        world.ask("DROP TABLE hidden SYNC")


def test_the_table_of_a_shard_may_have_a_filter_of_its_own(world: World) -> None:
    filters = ", ".join(f"'s{n}.events': 'id < 9'" for n in range(1, SHARDS + 1))
    answer = world.ask(f"SELECT count() FROM events SETTINGS additional_table_filters = {{{filters}}}")
    assert answer == world.bench.ask("SELECT count() FROM events WHERE id < 9")
    name = TableName("s1", "events")
    text = filter_setting({name: "s = 'a'"})["additional_table_filters"]
    assert filter_of({"additional_table_filters": text}, name, alias="", current="x") == "s = 'a'"


def test_a_value_that_cannot_be_followed_is_refused(world: World) -> None:
    assert table_filters({}) == table_filters({"additional_table_filters": "{}"}) == {}
    for text in ("x", "{'a'}", "{'a': b}", "{'a':", "{a: 'b'}"):
        with pytest.raises(SqlError) as refused:
            table_filters({"additional_table_filters": text})
        assert refused.value.code == Code.BAD_ARGUMENTS


READING = """
SELECT count(), sum(id) FROM events|{'events': 'id IN (SELECT id FROM people)'}
SELECT count(), sum(id) FROM events|{'events': 'id IN (SELECT id FROM people)', 'people': 'age > 20'}
SELECT id FROM events AS e ORDER BY id|{'e': 'price > (SELECT avg(price) FROM events)'}
SELECT count() FROM events|{'d.events': 'id NOT IN few AND EXISTS (SELECT 1 FROM people WHERE id > 9)'}
SELECT max(price) FROM rome|{'rome': 'id IN (SELECT id FROM people) AND id < (SELECT max(id) FROM few)'}
SELECT count() FROM rome|{'events': '(id, city) IN (SELECT id, \\'Rome\\' FROM people)'}
SELECT count() FROM people FINAL|{'people': 'age > (SELECT count() FROM few)'}
SELECT sum(id) FROM few|{'few': 'id IN (SELECT id FROM people)', 'people': 'id IN (SELECT id+9 FROM events)'}
SELECT count() FROM events AS x|{'other': 'a IN b', 'x': 'note IN (SELECT note FROM events AS y)'}
SELECT count() FROM events WHERE id IN (SELECT id FROM people)|{'people': 'id IN few', 'few': 'id > 6'}
"""


@pytest.mark.parametrize("is_in_text", [True, False])
@pytest.mark.parametrize("line", READING.strip().splitlines())
def test_a_filter_may_read_other_tables(world: World, line: str, is_in_text: bool) -> None:
    for database in ("one", "d"):
        create = "CREATE TABLE IF NOT EXISTS few ENGINE = Memory AS SELECT number * 3 AS id FROM numbers(20)"
        world.bench.ask(create, database)
    sql, filters = line.split("|")
    of_one = filters.replace("d.events", "one.events")
    expected = world.bench.ask(f"{sql} SETTINGS additional_table_filters = {of_one}")
    if is_in_text:
        assert world.ask(f"{sql} SETTINGS additional_table_filters = {filters}") == expected
    else:
        assert world.ask(sql, settings={"additional_table_filters": filters}) == expected
    assert expected != world.bench.ask(sql)


def test_a_filter_that_reads_its_own_table_is_an_error(world: World) -> None:
    filters = "{'events': 'id IN (SELECT id FROM events)'}"
    with pytest.raises(SqlError) as refused:
        world.ask("SELECT count() FROM events", settings={"additional_table_filters": filters})
    assert refused.value.code == Code.TOO_DEEP_RECURSION
