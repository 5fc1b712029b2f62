"""Columns with parts, Nested and Tuple, over shards: the answer is that of one table that holds all rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.distributed.test_select_remembered import World, world
from tests.unit.distributed.test_select_shapes import SHARDS, Bench, bench

pytestmark = pytest.mark.slow

__all__ = ["bench", "world"]

COLUMNS = {
    "id": "UInt64",
    "arr": "Array(UInt8)",
    "tup": "Tuple(x Int64, y String)",
    "js": "JSON",
    "any": "Variant(String, UInt64)",
    "n.x": "Array(UInt8)",
    "n.y": "Array(String)",
}


@pytest.fixture(scope="module")
def nested(bench: Bench) -> Iterator[Bench]:
    bench.tables["parts"] = COLUMNS
    listed = ", ".join(f"`{name}` {type_}" for name, type_ in COLUMNS.items())
    for database in ("one", "s1", "s2", "s3"):
        bench.ask(f"CREATE TABLE parts ({listed}) ENGINE = ReplacingMergeTree ORDER BY id", database)
    bench.ask(
        "INSERT INTO parts SELECT number, range(number % 4), (number + 100, toString(number)), "
        "CAST(concat('{\"p\": ', toString(number), '}'), 'JSON'), number, "
        "range(number % 3), arrayMap(i -> concat('y', toString(i)), range(number % 3)) FROM numbers(30)"
    )
    for n in range(1, SHARDS + 1):
        bench.ask(f"INSERT INTO s{n}.parts SELECT * FROM one.parts WHERE id % {SHARDS} = {n - 1}")
    yield bench
    del bench.tables["parts"]


ARRAY_JOINS = """
SELECT id, n.x, tup.x FROM parts ARRAY JOIN n ORDER BY id, n.x
SELECT id, arr, js.p, any.UInt64 FROM parts ARRAY JOIN arr WHERE tup.x > 110 ORDER BY id, arr
SELECT arr, count(), sum(tup.x) FROM parts LEFT ARRAY JOIN arr GROUP BY arr ORDER BY arr
SELECT *, parts.tup.x FROM parts ARRAY JOIN n.x WHERE id < 9 ORDER BY id, n.x
SELECT a.id, b.tup.x FROM parts AS a JOIN parts AS b ON a.id = b.id + 1 ARRAY JOIN a.arr ORDER BY ALL
SELECT id FROM parts ARRAY JOIN arr WHERE tup.y IN (SELECT tup.y FROM parts WHERE id < 9) ORDER BY id
"""


@pytest.mark.parametrize("sql", ARRAY_JOINS.strip().splitlines())
def test_parts_of_columns_are_read_beside_array_join(nested: Bench, sql: str) -> None:
    """Of a subquery ClickHouse gives n.x for tup.x, or error 44."""
    text, _ = nested.distributed(sql)
    assert nested.ask(text) == nested.ask(sql)


OF_VIEWS = """
SELECT n.x, tup.x FROM some ARRAY JOIN n ORDER BY ALL
SELECT arr, n.x, `tup.x` FROM more AS m ARRAY JOIN arr ORDER BY ALL
SELECT s.arr, s.tup.y, e.pair.a FROM some AS s JOIN events AS e USING id ARRAY JOIN s.arr ORDER BY ALL
SELECT max(tup.x), arr FROM few(most = 12) LEFT ARRAY JOIN arr WHERE id IN ids GROUP BY arr ORDER BY ALL
SELECT * FROM inner ORDER BY ALL
SELECT * FROM view(SELECT n.x, tup.x FROM some ARRAY JOIN n) ORDER BY ALL
SELECT id FROM parts WHERE id IN (SELECT tup.x - 100 FROM some ARRAY JOIN arr) ORDER BY ALL
"""


def test_parts_of_columns_of_views_are_read_beside_array_join(nested: Bench, world: World) -> None:
    """In the SELECT that a view is, too. Of a subquery it is n.x for tup.x again, or error 44."""
    world.make("parts", table="parts", columns={f"`{name}`": type_ for name, type_ in COLUMNS.items()})
    for view in (
        "some AS SELECT id, arr, tup, `n.x`, `n.y` FROM parts",
        "more AS SELECT * FROM some WHERE id > 2",
        "few AS SELECT * FROM some WHERE id < {most:UInt64}",
        "ids AS SELECT id FROM events",
        "inner AS SELECT arr, tup.x AS x, n.x FROM more ARRAY JOIN arr",
    ):
        world.ask(f"CREATE VIEW {view}")
        nested.ask(f"CREATE OR REPLACE VIEW {view}")
    for sql in OF_VIEWS.strip().splitlines():
        assert world.ask(sql) == nested.ask(sql), sql


PREWHERES = """
SELECT id FROM parts JOIN (SELECT id FROM people) AS p USING id PREWHERE length(n.x) = 2 ORDER BY id
SELECT p.id FROM parts AS a JOIN parts AS p ON a.id = p.id + 1 PREWHERE p.n.y = ['y0'] ORDER BY p.id
SELECT id FROM parts FINAL JOIN (SELECT id FROM people) AS p USING id PREWHERE n.x = [0, 1] ORDER BY id
SELECT id, arr, tup.x FROM parts ARRAY JOIN arr PREWHERE tup.x > 110 ORDER BY ALL
SELECT id, arr, tup.x FROM parts FINAL ARRAY JOIN arr PREWHERE tup.x > 110 WHERE arr > 0 ORDER BY ALL
SELECT id, arr, p.tup.y FROM parts AS p FINAL ARRAY JOIN arr PREWHERE p.id > 9 AND p.n.x = [0] ORDER BY 1, 2
SELECT q.id, p.n.x, p.tup.x FROM parts AS p JOIN events AS q USING id ARRAY JOIN p.n PREWHERE p.tup.x = 105
"""


@pytest.mark.parametrize("sql", PREWHERES.strip().splitlines())
def test_prewhere_of_a_join_holds_before_it_for_the_table_that_has_the_column(
    nested: Bench, sql: str
) -> None:
    text, _ = nested.distributed(sql)
    assert nested.ask(text) == nested.ask(sql)
