"""Random queries over shards against the same queries over one table. A failure prints its seed."""

from __future__ import annotations

import os
import random

import pytest

from tests.few import few_first
from tests.unit.distributed.test_select_shapes import Bench, bench

pytestmark = pytest.mark.slow

__all__ = ["bench"]

SEEDS = int(os.environ.get("DISTRIBUTED_SELECT_SEEDS", "60"))
COLUMNS = [
    "id",
    "name",
    "city",
    "price",
    "note",
    "day",
    "twice",
    "label",
    "pair.a",
    "props['b']",
    "length(tags)",
]
NUMBERS = ["id", "price", "pair.a", "twice", "props['a']"]
AGGREGATES = [
    "count()",
    "sum({n})",
    "min({c})",
    "max({c})",
    "uniqExact({c})",
    "countIf({w})",
    "sumIf({n}, {w})",
    "arraySort(groupUniqArray(city))",
    "quantileExact(0.3)({n})",
    "argMax(id, id)",
    "count(DISTINCT {c})",
    "sum(DISTINCT id)",
]
CONDITIONS = [
    "{t}id > {i}",
    "{t}id BETWEEN {i} AND {i} + 100",
    "{t}city = 'Rome'",
    "{t}city IN ('Oslo', 'Bonn')",
    "{t}note IS NULL",
    "NOT ({t}note = 'x1')",
    "{t}name LIKE 'n1%'",
    "{t}price * 2 < {i}.5",
    "{t}day >= '2024-01-07'",
    "has({t}tags, 't1')",
    "{t}id % 3 = 1",
    "{t}label != 'n3!'",
    "{t}id IN (SELECT id FROM people WHERE age > 40)",
    "{t}id NOT IN (SELECT id FROM events WHERE id < {i})",
    "{t}price > (SELECT avg(price) FROM events)",
]


class Query:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def text(self) -> str:
        return self.rng.choice([self.aggregation, self.rows, self.join, self.nested, self.distinct])()

    def condition(self, prefix: str = "") -> str:
        parts = [
            self.rng.choice(CONDITIONS).replace("{t}", prefix).replace("{i}", str(self.rng.randrange(300)))
            for _ in range(self.rng.choice([1, 1, 2, 3]))
        ]
        return self.rng.choice([" AND ", " AND ", " OR "]).join(f"({part})" for part in parts)

    def where(self, prefix: str = "") -> str:
        keyword = "WHERE" if prefix or self.rng.random() < 0.8 else "PREWHERE"
        return f" {keyword} {self.condition(prefix)}" if self.rng.random() < 0.7 else ""

    def aggregates(self) -> str:
        chosen = self.rng.sample(AGGREGATES, self.rng.randrange(1, 5))
        return ", ".join(
            one.format(
                n=self.rng.choice(NUMBERS),
                c=self.rng.choice(["id", "name", "note"]),
                w=f"id > {self.rng.randrange(300)}",
            )
            + f" AS a{number}"
            for number, one in enumerate(chosen)
        )

    def aggregation(self) -> str:
        keys = self.rng.sample(COLUMNS, self.rng.randrange(0, 3))
        items = ", ".join([*(f"{key} AS k{n}" for n, key in enumerate(keys)), self.aggregates()])
        text = f"SELECT {items} FROM events{self.where()}"
        if not keys:
            return text
        text += " GROUP BY " + ", ".join(f"k{n}" for n in range(len(keys)))
        modifier = self.rng.choice(["", "", " WITH TOTALS", " WITH ROLLUP", " WITH CUBE"])
        having = self.rng.choice(["", "", " HAVING a0 IS NOT NULL"])
        return f"{text}{modifier}{having} ORDER BY ALL{self.rng.choice(['', ' LIMIT 7', ' LIMIT 3, 9'])}"

    def rows(self) -> str:
        items = self.rng.choice(["*", "*, label", "id, " + ", ".join(self.rng.sample(COLUMNS, 3))])
        order = self.rng.choice(["id", "id DESC", "city, id", "note NULLS FIRST, id", "price DESC, id"])
        limit = self.rng.choice(
            ["", " LIMIT 5", " LIMIT 5 OFFSET 3", " LIMIT 2 BY city", " LIMIT 1 BY name LIMIT 4"]
        )
        return f"SELECT {items} FROM events{self.where()} ORDER BY {order}{limit}"

    def distinct(self) -> str:
        return (
            f"SELECT DISTINCT {', '.join(self.rng.sample(COLUMNS, 2))} FROM events{self.where()} ORDER BY ALL"
        )

    def join(self) -> str:
        kind = self.rng.choice(
            ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT ANTI JOIN", "LEFT SEMI JOIN"]
        )
        items = "e.id AS i, e.city AS c" + (", p.name AS n, p.age AS g" if "LEFT A" not in kind else "")
        tables = f"events AS e {kind} people AS p ON e.id = p.id"
        return f"SELECT {items} FROM {tables}{self.where('e.')} ORDER BY ALL"

    def nested(self) -> str:
        inner = f"SELECT city, id, price FROM events{self.where()}"
        return self.rng.choice(
            [
                f"SELECT city, count() AS c, sum(price) FROM ({inner}) AS s GROUP BY city ORDER BY city",
                f"WITH q AS ({inner}) SELECT count() FROM q AS a JOIN q AS b ON a.id = b.id",
                f"SELECT * FROM ({inner} UNION ALL {inner}) ORDER BY ALL LIMIT 20",
                f"SELECT id, row_number() OVER (PARTITION BY city ORDER BY id) FROM ({inner}) ORDER BY id",
            ]
        )


@pytest.mark.parametrize("seed", few_first(range(SEEDS), few=20))
def test_a_random_query_answers_as_one_table_does(bench: Bench, seed: int) -> None:
    sql = Query(seed).text()
    expected = bench.ask(sql)
    text, _ = bench.distributed(sql)
    assert bench.ask(text) == expected, f"seed {seed}: {sql}\n{text}"
