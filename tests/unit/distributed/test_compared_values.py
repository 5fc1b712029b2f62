"""What WHERE compares with, a subquery over a Distributed table, is asked for first, and shards have it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.errors import SqlError
from tests.unit.distributed.test_select_remembered import World
from tests.unit.distributed.test_select_shapes import PEOPLE, SHARDS, Bench, bench

pytestmark = pytest.mark.slow

__all__ = ["bench"]


@pytest.fixture(scope="module")
def world(bench: Bench) -> Iterator[World]:
    world = World(bench)
    world.make()
    world.make("people", table="people", columns=PEOPLE)
    yield world
    world.end()


COMPARED = """
SELECT city, count() AS c FROM events WHERE day = (SELECT max(day) FROM events) GROUP BY city ORDER BY city
SELECT id FROM events WHERE (id % 2 = 0) AND price > (SELECT avg(price) FROM events) ORDER BY id LIMIT 4
SELECT id FROM events PREWHERE at >= (SELECT max(at) - INTERVAL 3 HOUR FROM events) WHERE id > 3 ORDER BY id
SELECT count() AS c FROM events WHERE (id, name) = (SELECT id, name FROM events WHERE id = 7)
SELECT count() AS c FROM events WHERE has((SELECT groupArray(id) FROM people WHERE age < 9), id)
SELECT sum(id) s FROM events WHERE note = (SELECT max(note) FROM events) GROUP BY city WITH TOTALS ORDER BY s
SELECT count() c FROM events WHERE id < (SELECT max(id) FROM people WHERE id < (SELECT avg(id) FROM people))
SELECT * FROM (SELECT city FROM events WHERE id = (SELECT max(id) FROM events)) AS s
SELECT count() AS c FROM events AS e WHERE e.ratio >= (SELECT quantileExact(0.9)(ratio) FROM events)
"""
NOT_COMPARED = """
SELECT (SELECT max(id) FROM people) AS m, count() AS c FROM events
SELECT city, max(id) AS m FROM events GROUP BY city HAVING m > (SELECT avg(id) FROM events) ORDER BY city
WITH people AS (SELECT 5 AS id) SELECT count() AS c FROM events WHERE id < (SELECT max(id) FROM people)
WITH x AS (SELECT max(id) AS m FROM people) SELECT count() AS c FROM events WHERE id < (SELECT m FROM x)
WITH 5 AS five SELECT count() AS c FROM events WHERE id < (SELECT max(id) - five FROM people)
WITH x -> x % 7 AS f SELECT count() AS c FROM events WHERE id < (SELECT max(f(id)) FROM people)
SELECT count() AS c FROM events WHERE EXISTS (SELECT 1 FROM people WHERE people.id = events.id)
SELECT count() AS c FROM numbers(9) WHERE number < (SELECT max(id) FROM people)
"""


@pytest.mark.parametrize("sql", COMPARED.strip().splitlines())
def test_its_value_stands_in_what_the_shards_are_asked(world: World, sql: str) -> None:
    assert world.ask(sql) == world.bench.ask(sql)
    text = world.ask(f"EXPLAIN SYNTAX {sql}")
    assert text.count("WHERE") >= SHARDS, text
    assert "people" not in text, text


@pytest.mark.parametrize("sql", NOT_COMPARED.strip().splitlines())
def test_what_stands_elsewhere_or_not_alone_is_what_it_was(world: World, sql: str) -> None:
    assert world.ask(sql) == world.bench.ask(sql)


def test_no_row_is_null_and_two_are_an_error(world: World) -> None:
    sql = "SELECT count() AS c FROM events WHERE id != (SELECT id FROM people WHERE id {})"
    assert world.ask(sql.format("= 100000")) == "c\nUInt64\n0\n"
    with pytest.raises(SqlError) as refused:
        world.ask(sql.format("< 9"))
    assert refused.value.code == 125


def test_a_user_who_may_only_read_gets_the_same(world: World) -> None:
    for sql in COMPARED.strip().splitlines():
        assert (
            world.ask(sql, profile={"readonly": "1", "extremes": "1"})
            == world.call(
                world.bench.pool.query(
                    sql, format="TSVWithNamesAndTypes", database="one", settings={"extremes": "1"}
                )
            ).text
        )
