"""Random queries of random depth: subqueries in every clause, each of them a query as random as the whole.

Beside the lines of `queries/wide_*.sql`, which say shapes, this is a grammar: joins of subqueries with set
operations in them, groups over windows over common table expressions. A failure prints its seed;
`DISTRIBUTED_SELECT_FIRST=40 DISTRIBUTED_SELECT_SEEDS=3000 pytest -k nested_property` looks further.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence

import pytest

from engine.errors import SqlError
from tests.few import few_first
from tests.unit.distributed.test_select_shapes import Bench, bench

pytestmark = pytest.mark.slow

__all__ = ["bench"]

SEEDS = range(
    int(os.environ.get("DISTRIBUTED_SELECT_FIRST", "0")),
    int(os.environ.get("DISTRIBUTED_SELECT_SEEDS", "40")),
)
NUMBER, TEXT, LIST = "number", "text", "list"
Columns = Mapping[str, str]
"""By what an expression calls them, of which kind they are."""
TABLES: Mapping[str, Columns] = {
    "events": {
        "id": NUMBER,
        "price": NUMBER,
        "pair.a": NUMBER,
        "props['b']": NUMBER,
        "name": TEXT,
        "city": TEXT,
        "note": TEXT,
        "tags": LIST,
    },
    "people": {"id": NUMBER, "age": NUMBER, "name": TEXT},
    "extra": {"id": NUMBER},
}
"""The last one is this node's own."""
OTHER_NAMES = ("id", "name", "price", "events", "limit_")
"""That columns of subqueries have, beside names that nothing else has."""
SET_OPERATIONS = (
    "UNION ALL",
    "UNION DISTINCT",
    "INTERSECT",
    "EXCEPT",
    "INTERSECT DISTINCT",
    "EXCEPT DISTINCT",
)
JOINS = (
    "JOIN",
    "LEFT JOIN",
    "RIGHT JOIN",
    "FULL JOIN",
    "GLOBAL LEFT JOIN",
    "LEFT SEMI JOIN",
    "LEFT ANTI JOIN",
)
SETTINGS = (
    *[""] * 6,
    " SETTINGS join_use_nulls = 1",
    " SETTINGS group_by_use_nulls = 1",
    " SETTINGS transform_null_in = 1",
    " SETTINGS prefer_column_name_to_alias = 1",
    " SETTINGS query_plan_enable_optimizations = 0",
)


class NestedQuery:
    """One text from a seed. Every answer is determined by the rows, not by their order: what is limited is
    ordered by all of its columns."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.one = self.rng.choice
        self._ctes: list[tuple[str, Columns]] = []
        self._names = 0

    def text(self) -> str:
        ctes = []
        for _ in range(self.one([0, 0, 1, 2])):
            select, columns = self.select(1)
            name = self.new_name("q")
            ctes.append(f"{name} AS ({select})")
            self._ctes.append((name, columns))
        select, _ = self.select(self.one([1, 2, 2, 3]))
        begin = f"WITH {', '.join(ctes)} " if ctes else ""
        return f"{begin}SELECT * FROM ({select}) ORDER BY ALL{self.one(SETTINGS)}"

    def new_name(self, letter: str) -> str:
        self._names += 1
        return f"{letter}{self._names}"

    def chance(self, of_one: float) -> bool:
        return self.rng.random() < of_one

    # -- expressions ---------------------------------------------------------------------------------------

    def column(self, columns: Columns, kind: str) -> str:
        found = [name for name, one in columns.items() if one == kind]
        literals = {NUMBER: str(self.rng.randrange(60)), TEXT: "'x1'", LIST: "['t1']"}
        return self.one(found) if found else literals[kind]

    def expression(self, columns: Columns, kind: str, depth: int) -> str:
        if depth <= 0 or self.chance(0.3):
            return self.column(columns, kind)

        def some(kind: str) -> str:
            return self.expression(columns, kind, depth - 1)

        def condition() -> str:
            return self.condition(columns, depth - 1)

        made: Mapping[str, Sequence[Callable[[], str]]] = {
            NUMBER: (
                lambda: f"{some(NUMBER)} + {some(NUMBER)}",
                lambda: f"toInt64({some(NUMBER)}) % {self.rng.randrange(2, 7)}",
                lambda: f"length({some(TEXT)})",
                lambda: f"length({some(LIST)})",
                lambda: f"if({condition()}, {some(NUMBER)}, {some(NUMBER)})",
                lambda: f"nullIf({some(NUMBER)}, {self.rng.randrange(5)})",
                lambda: f"arraySum(z -> length(z) + {self.column(columns, NUMBER)}, {some(LIST)})",
                lambda: self.value(depth - 1),
            ),
            TEXT: (
                lambda: f"concat({some(TEXT)}, '-', {some(TEXT)})",
                lambda: f"toString({some(NUMBER)})",
                lambda: f"if({condition()}, {some(TEXT)}, {some(TEXT)})",
                lambda: f"ifNull({some(TEXT)}, 'none')",
            ),
            LIST: (
                lambda: f"arrayMap(z -> concat(z, 'y'), {some(LIST)})",
                lambda: f"arrayFilter(z -> z != {self.column(columns, TEXT)}, {some(LIST)})",
            ),
        }
        return self.one(made[kind])()

    def condition(self, columns: Columns, depth: int) -> str:
        def some(kind: str) -> str:
            return self.expression(columns, kind, depth - 1)

        shapes: list[Callable[[], str]] = [
            lambda: f"{some(NUMBER)} {self.one(['>', '<', '!=', '>='])} {some(NUMBER)}",
            lambda: f"{some(TEXT)} LIKE '%1%'",
            lambda: f"{some(TEXT)} NOT IN ('x1', 'Rome', 'n3')",
            lambda: f"{some(NUMBER)} IS {self.one(['NULL', 'NOT NULL'])}",
            lambda: f"has({some(LIST)}, 't1')",
        ]
        if depth > 0:
            shapes += [
                lambda: f"({self.condition(columns, depth - 1)} AND {self.condition(columns, depth - 1)})",
                lambda: f"({self.condition(columns, depth - 1)} OR {self.condition(columns, depth - 1)})",
                lambda: f"NOT ({self.condition(columns, depth - 1)})",
                lambda: self.membership(columns, depth - 1),
                lambda: self.membership(columns, depth - 1),
                lambda: self.existence(columns),
                lambda: f"{some(NUMBER)} > {self.value(depth - 1)}",
            ]
        return self.one(shapes)()

    def membership(self, columns: Columns, depth: int) -> str:
        kinds = self.one([[NUMBER], [NUMBER], [TEXT], [NUMBER, TEXT]])
        left = ", ".join(self.column(columns, kind) for kind in kinds)
        operator = self.one(["IN", "IN", "NOT IN", "GLOBAL IN"])
        return f"({left}) {operator} ({self.select(depth, kinds)[0]})"

    def existence(self, columns: Columns) -> str:
        alias, table = self.new_name("e"), self.one(["events", "people"])
        outer = f"{alias}.id = {self.column(columns, NUMBER)} AND " if self.chance(0.6) else ""
        inner = f"{alias}.name LIKE '%{self.rng.randrange(9)}%'"
        return f"{self.one(['', 'NOT '])}EXISTS (SELECT 1 FROM {table} AS {alias} WHERE {outer}{inner})"

    def value(self, depth: int) -> str:
        table = self.one(["events", "people", "extra"])
        where = f" WHERE {self.condition(TABLES[table], depth)}" if self.chance(0.5) else ""
        return f"(SELECT {self.one(['max', 'min', 'count', 'uniqExact'])}(id) FROM {table}{where})"

    # -- queries -------------------------------------------------------------------------------------------

    def select(self, depth: int, kinds: Sequence[str] = ()) -> tuple[str, Columns]:
        """A SELECT of columns of such kinds, and what they are called."""
        kinds = kinds or [self.one([NUMBER, NUMBER, TEXT]) for _ in range(self.one([1, 2, 3]))]
        if depth > 0 and self.chance(0.12):
            parts = [self.simple(depth - 1, kinds) for _ in range(self.one([2, 2, 3]))]
            return f" {self.one(SET_OPERATIONS)} ".join(text for text, _ in parts), parts[0][1]
        return self.simple(depth, kinds)

    def simple(self, depth: int, kinds: Sequence[str]) -> tuple[str, Columns]:
        source, columns = self.source(depth)
        if self.chance(0.15) and LIST in columns.values():
            name = self.new_name("z")
            source += f" {self.one(['', 'LEFT '])}ARRAY JOIN {self.column(columns, LIST)} AS {name}"
            columns = {**columns, name: TEXT}
        source += f" WHERE {self.condition(columns, depth)}" if self.chance(0.4) else ""
        of = self.one([self.rows, self.rows, self.groups, self.groups, self.windows])
        names = [self.new_name("c") for _ in kinds]
        if self.chance(0.3):
            names[0] = self.one(OTHER_NAMES)
        text = of(source, columns, dict(zip(names, kinds, strict=True)), depth)
        if self.chance(0.25):
            text += f" ORDER BY ALL LIMIT {self.limit()}"
        return text, dict(zip(names, kinds, strict=True))

    def limit(self) -> str:
        number = str(self.rng.randrange(1, 12))
        subquery = f"(SELECT count() FROM people WHERE id < {number})"
        return self.one([number, f"{number} OFFSET 2", f"{number} + 1", subquery, f"3 OFFSET {subquery}"])

    def source(self, depth: int) -> tuple[str, Columns]:
        choice = self.rng.random()
        if depth > 0 and choice < 0.2:
            return self.joined(depth)
        if depth > 0 and choice < 0.35:
            return self.aliased(depth)
        table = self.one(["events", "events", "people", "extra"])
        alias = self.one(["", "", f" AS {self.new_name('t')}"])
        return f"{table}{alias}", TABLES[table]

    def aliased(self, depth: int) -> tuple[str, Columns]:
        """One side of a join; its columns have its name before theirs."""
        alias = self.new_name("j")
        if self._ctes and self.chance(0.3):
            name, columns = self.one(self._ctes)
            text = name
        elif depth > 0 and self.chance(0.5):
            select, columns = self.select(depth - 1)
            text = f"({select})"
        else:
            text = self.one(["events", "people", "extra"])
            columns = TABLES[text]
        return f"{text} AS {alias}", {f"{alias}.{name}": kind for name, kind in columns.items()}

    def joined(self, depth: int) -> tuple[str, Columns]:
        (left, of_left), (right, of_right) = self.aliased(depth - 1), self.aliased(depth - 1)
        both = {**of_left, **of_right}
        if NUMBER not in of_left.values() or NUMBER not in of_right.values():
            return f"{left}, {right}", both
        kind = self.one(JOINS)
        on = f"{self.column(of_left, NUMBER)} = {self.column(of_right, NUMBER)}"
        return f"{left} {kind} {right} ON {on}", of_left if kind.endswith(
            ("SEMI JOIN", "ANTI JOIN")
        ) else both

    def rows(self, source: str, columns: Columns, wanted: Columns, depth: int) -> str:
        depths = [0, 0, 1, 2]
        items = [
            f"{self.expression(columns, kind, self.one(depths))} AS {name}" for name, kind in wanted.items()
        ]
        return f"SELECT {self.one(['', '', 'DISTINCT '])}{', '.join(items)} FROM {source}"

    def windows(self, source: str, columns: Columns, wanted: Columns, depth: int) -> str:
        items = []
        for name, kind in wanted.items():
            call = f"max({self.column(columns, kind)})"
            order = f" ORDER BY {self.column(columns, NUMBER)}" if self.chance(0.5) else ""
            items.append(f"{call} OVER (PARTITION BY {self.column(columns, TEXT)}{order}) AS {name}")
        qualify = self.one(["", "", f" QUALIFY count() OVER (PARTITION BY {self.column(columns, TEXT)}) > 2"])
        return f"SELECT {', '.join(items)} FROM {source}{qualify}"

    def groups(self, source: str, columns: Columns, wanted: Columns, depth: int) -> str:
        items = [f"{self.aggregate(columns, kind, depth)} AS {name}" for name, kind in wanted.items()]
        text = f"SELECT {', '.join(items)} FROM {source}"
        keys = {self.column(columns, self.one([NUMBER, TEXT])) for _ in range(self.one([0, 1, 2]))}
        keys = {key for key in keys if key in columns}
        if keys:
            text += f" GROUP BY {', '.join(sorted(keys))}{self.one(['', '', ' WITH ROLLUP', ' WITH CUBE'])}"
        having = [f"count() > {self.rng.randrange(4)}", f"{self.aggregate(columns, NUMBER, 0)} IS NOT NULL"]
        if depth > 0:
            having.append(f"max({self.column(columns, NUMBER)}) IN ({self.select(depth - 1, [NUMBER])[0]})")
        return text + self.one(["", "", f" HAVING {self.one(having)}"])

    def aggregate(self, columns: Columns, kind: str, depth: int) -> str:
        inner = self.expression(columns, kind, min(depth, 1))
        if kind == TEXT:
            return self.one([f"max({inner})", f"arrayStringConcat(arraySort(groupUniqArray({inner})), ',')"])
        condition = self.condition(columns, min(depth, 1))
        return self.one(
            [
                "count()",
                f"sum({inner})",
                f"min({inner})",
                f"uniqExact({inner})",
                f"countIf({condition})",
                f"sumIf({inner}, {condition})",
                f"quantileExact(0.5)({inner})",
                f"maxOrNullIf({inner}, {condition})",
                f"max({inner}) - min({inner})",
            ]
        )


@pytest.mark.parametrize("seed", few_first(SEEDS, few=12))
def test_a_random_query_of_any_depth_answers_as_one_table_does(bench: Bench, seed: int) -> None:
    sql = NestedQuery(seed).text()
    try:
        expected = bench.ask(sql)
    except SqlError:
        return  # ClickHouse refuses it
    text, _ = bench.distributed(sql)
    assert bench.ask(text) == expected, f"seed {seed}: {sql}\n{text}"
