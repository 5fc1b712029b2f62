"""A SELECT of very many expressions or tables is looked at once, and not once for each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.distributed.select.clauses import replaced
from engine.distributed.select.query_tree import Node
from tests.unit.distributed.test_select_shapes import Bench, bench

__all__ = ["bench"]


@pytest.mark.slow
def test_how_often_the_analysis_is_gone_through_does_not_grow_with_the_tables(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    visited = 0
    walk = Node.walk

    def counted(node: Node) -> Iterator[Node]:
        nonlocal visited
        for one in walk(node):
            visited += 1
            yield one

    monkeypatch.setattr(Node, "walk", counted)
    by_tables = {}
    for tables in (10, 40):
        each = " UNION ALL ".join(f"SELECT max(id) AS m FROM events WHERE id < {n}" for n in range(tables))
        sql = f"SELECT sum(m) FROM ({each})"
        visited = 0
        text, _ = bench.distributed(sql)
        by_tables[tables] = visited
        assert bench.ask(text) == bench.ask(sql)
    assert by_tables[40] < 5 * by_tables[10]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("SELECT id, price FROM events WHERE city = 'Rome' ORDER BY id", False),
        (
            "SELECT * FROM (SELECT id AS name FROM events UNION ALL SELECT max(id) FROM people) ORDER BY 1",
            False,
        ),
        (
            "SELECT id FROM people AS p WHERE id > (SELECT avg(id) FROM events WHERE id < p.id) ORDER BY 1",
            False,
        ),
        ("SELECT * EXCEPT STRICT (tags, props) FROM events ORDER BY id LIMIT 3", True),
        ("SELECT e.id, p.name FROM events AS e JOIN people AS p ON e.id = p.id ORDER BY ALL", True),
    ],
)
def test_columns_that_a_query_does_not_read_are_named_where_names_depend_on_them(
    bench: Bench, sql: str, named: bool
) -> None:
    text, _ = bench.distributed(sql)
    assert ("defaultValueOfTypeName" in text) is named, text
    assert bench.ask(text) == bench.ask(sql)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b.c + a.b", "2 + 1"),
        ("a.b", "1"),
        ("x.a.b + f(a)", "x.a.b + f(3)"),
        ("f(a.b", "f(1"),
        ("", ""),
    ],
)
def test_of_runs_that_begin_alike_the_longest_is_replaced(text: str, expected: str) -> None:
    runs = [(("a", ".", "b"), "1"), (("a", ".", "b", ".", "c"), "2"), (("a",), "3")]
    assert replaced(text, runs) == replaced(text, runs[::-1]) == expected
