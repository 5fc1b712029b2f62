"""Random queries of many shapes, over columns of many types: shards against one table. A failure prints its
seed. The shapes are lines of `queries/wide_*.sql` with places; `DISTRIBUTED_SELECT_FIRST=50
DISTRIBUTED_SELECT_SEEDS=3000 pytest -k wide` looks further than a run of the suite does."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import SqlError
from tests.few import few_first
from tests.unit.distributed.test_select_shapes import SHARDS, Bench, bench

pytestmark = pytest.mark.slow

__all__ = ["bench"]

SEEDS = range(
    int(os.environ.get("DISTRIBUTED_SELECT_FIRST", "0")),
    int(os.environ.get("DISTRIBUTED_SELECT_SEEDS", "50")),
)
WIDE = {
    "id": "UInt64",
    "v": "UInt32",
    "small": "UInt8",
    "maybe": "Nullable(Int32)",
    "low": "LowCardinality(String)",
    "lown": "LowCardinality(Nullable(String))",
    "dec": "Decimal(18, 4)",
    "day": "Date",
    "at": "DateTime64(3, 'UTC')",
    "kind": "Enum8('a' = 1, 'b' = 2, 'c' = 3)",
    "uid": "UUID",
    "ip": "IPv4",
    "fix": "FixedString(3)",
    "yes": "Bool",
    "tup": "Tuple(a Int32, b String)",
    "arr": "Array(Int32)",
    "names": "Array(Nullable(String))",
    "m": "Map(String, UInt32)",
    "js": "JSON(a Int64)",
}
VALUES = """
number * ({version} + 1) AS id
{version}
number % 6
if(number % 4 = 0, NULL, number % 13)
'x' || toString(number % 3)
if(number % 5 = 0, NULL, 'y' || toString(number % 4))
number * 1.25
toDate('2024-01-01') + number % 50
toDateTime64('2024-01-01 00:00:00', 3, 'UTC') + number * 3600
CAST(['a', 'b', 'c'][number % 3 + 1], 'Enum8(\\'a\\' = 1, \\'b\\' = 2, \\'c\\' = 3)')
toUUID(concat('61f0c404-5cb3-11e7-907b-a6006ad3dba', toString(number % 3)))
toIPv4('10.0.0.0') + number % 20
'f' || toString(number % 2)
number % 2 = 1
(toInt32(number % 8), 'b' || toString(number % 2))
arrayMap(i -> toInt32(i), range(number % 5))
arrayMap(i -> if(i = 1, NULL, toString(i)), range(number % 4))
if(number % 3 = 0, map('a', toUInt32(number)), map('a', toUInt32(number), 'b', 1))
concat('{"a": ', toString(number % 9), ', "b": "t', toString(number % 2), '"}')
""".strip().splitlines()


def lines(name: str) -> list[str]:
    text = (Path(__file__).parent / "queries" / f"wide_{name}.sql").read_text()
    return [line.strip() for line in text.splitlines() if line.strip()]


def choices(text: str) -> list[str]:
    return text.split(" | ")


AGGREGATES, CONDITIONS, JOINS, SHAPES = map(lines, ("aggregates", "conditions", "joins", "shapes"))
KEYS = choices(
    "small | maybe | low | lown | dec | day | kind | ip | fix | yes | tup | tup.a | tup.b | arr | "
    "arr[1] | names | "
    "m['a'] | js.a | uid | id%5 | toString(maybe) | (small,low) | length(arr) | low='x1' | "
    "ifNull(maybe,-1) | "
    "toYYYYMM(at) | mapKeys(m) | js.b.:String | dec*2 | lower(lown)"
)
NUMBERS = choices("id | small | maybe | dec | tup.a | m['a'] | js.a | length(arr) | id%7")
ANYTHING = [*KEYS, "id", "at"]
MODIFIERS = ["", "", "", "", " FINAL", " SAMPLE 1/3", " SAMPLE 0.4 OFFSET 0.2", " FINAL SAMPLE 1/2"]
PREWHERES = ["small > 1", "low != 'x2'", "tup.a < 6 AND NOT yes", "lown IS NOT NULL"]
ENDS = ["", "", "", " SETTINGS max_threads = 2", " FORMAT JSONCompact", ";"]
ITEMS = choices(
    "* | id, small + 1 AS small | id, toString(low) AS low, dec * 2 AS dec | id AS x, x * 2 AS y | "
    "id, 2 AS maybe | 5 AS low, id, dec | "
    "id, arrayMap(x -> x + small, arr) AS r | * EXCEPT (js, names) | id, tuple(*).1 AS f | id, {c}, {c}"
)
ORDERS = choices("# | # DESC | low, # | maybe NULLS FIRST, # | dec DESC, # | tup, # | m['a'] % 5, #")
LIMITS = choices(
    " |  LIMIT 5 |  LIMIT 5 OFFSET 3 |  LIMIT 3, 4 |  LIMIT 2 BY low |  LIMIT 1 BY small, low LIMIT 4 | "
    " OFFSET 5 ROWS FETCH FIRST 4 ROWS ONLY |  LIMIT 1, 2 BY low"
)
GROUP_ENDS = choices(
    " |  LIMIT 7 |  LIMIT 3, 9 |  LIMIT 2 BY k0 |  LIMIT 1 BY k0 LIMIT 5 |  LIMIT 4 OFFSET 2"
)
WINDOWS = choices(
    "row_number() | sum(small) | rank() | dense_rank() | lagInFrame(low) | max(dec) | "
    "first_value(id) | count()"
)
OVERS = choices(
    "(PARTITION BY low ORDER BY id, v) | (PARTITION BY small, lown ORDER BY id DESC, v) | w | "
    "(ORDER BY id, v ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)"
)
QUALIFIES = choices(" |  |  QUALIFY r > 2 |  QUALIFY row_number() OVER (PARTITION BY low ORDER BY id, v) = 1")
JOIN_KINDS = choices(
    "JOIN | LEFT JOIN | RIGHT JOIN | FULL JOIN | GLOBAL JOIN | ALL INNER JOIN | GLOBAL LEFT JOIN | "
    "LEFT ANTI JOIN | "
    "LEFT SEMI JOIN | RIGHT SEMI JOIN"
)
OTHERS = choices(
    "people AS p | people AS p | people_here AS p | (SELECT * FROM people WHERE age > 20) AS p | "
    "(SELECT id, any(age) AS age, any(name) AS name FROM people GROUP BY id) AS p"
)
ONS = choices(
    "e.id = p.id | e.id = p.id AND e.small > 1 | e.id = p.id AND p.age > 30 | e.small = p.age | "
    "e.id * 3 = p.id"
)
ARRAYS = choices(
    "arr AS x | arr AS x, arrayEnumerate(arr) AS n | names AS x | mapKeys(m) AS x | "
    "arrayMap(i -> i * 2, arr) AS x"
)
VERBS = choices(
    "UNION ALL | UNION DISTINCT | INTERSECT | EXCEPT | INTERSECT DISTINCT | EXCEPT DISTINCT | EXCEPT ALL"
)
_PLACE = re.compile(r"\{(\w+)(?::([\w.]*))?\}")


class WideQuery:
    """One text from a seed. Every answer is determined by the rows, not by their order."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.one = self.rng.choice

    def text(self) -> str:
        shapes = [self.aggregation] * 3 + [self.rows] * 3 + [self.joined] * 2 + [self.shaped] * 8
        shapes += [self.grouping_sets, self.windows, self.distinct, self.sets]
        return self.one(shapes)() + self.one(ENDS)

    def some(self, listed: list[str], most: int, least: int = 1) -> list[str]:
        return self.rng.sample(listed, self.rng.randrange(least, most + 1))

    def filled(self, text: str, **more: str) -> str:
        def value(match: re.Match[str]) -> str:
            name, argument = match[1], match[2] or ""
            if name in more:
                return more[name]
            match name:
                case "s":
                    return self.source()
                case "w":
                    return self.where(argument)
                case "i":
                    return str(self.rng.randrange(80))
                case "few":
                    return str(self.rng.randrange(2, 7))
                case "c":
                    return self.one(ANYTHING)
                case "array_join":
                    return f"{self.one(['', 'LEFT '])}ARRAY JOIN {self.one(ARRAYS)}"
            raise KeyError(name)

        return _PLACE.sub(value, text)

    def condition(self, prefix: str = "") -> str:
        parts = [
            self.one(CONDITIONS).replace("{t}", prefix).replace("{i}", str(self.rng.randrange(200)))
            for _ in range(self.one([1, 1, 2, 3]))
        ]
        return self.one([" AND ", " AND ", " OR "]).join(f"({part})" for part in parts)

    def where(self, prefix: str = "") -> str:
        if self.rng.random() > 0.7:
            return ""
        if not prefix and self.rng.random() < 0.15:
            both = f" WHERE {self.condition()}" if self.rng.random() < 0.5 else ""
            return f" PREWHERE {self.one(PREWHERES)}{both}"
        return f" WHERE {self.condition(prefix)}"

    def source(self) -> str:
        return self.one(["wide", "wide", "wide", "one.wide", "`wide`"]) + self.one(MODIFIERS)

    def aggregates(self) -> str:
        return ", ".join(
            one.format(
                n=self.one(NUMBERS),
                c=self.one(ANYTHING),
                w=self.one([f"id > {self.rng.randrange(300)}", "small > 1", "low = 'x1'", "maybe > 5"]),
            )
            + f" AS a{number}"
            for number, one in enumerate(self.some(AGGREGATES, 4))
        )

    def aggregation(self) -> str:
        keys = self.some(KEYS, 3, 0)
        items = ", ".join([*(f"{key} AS k{n}" for n, key in enumerate(keys)), self.aggregates()])
        text = f"SELECT {items} FROM {self.source()}{self.where()}"
        if not keys:
            return text + self.one(["", "", " HAVING count() > 3"])
        names = ", ".join(self.one([f"k{n}", f"k{n}", key]) for n, key in enumerate(keys))
        modifier = self.one(
            ["", "", " WITH TOTALS", " WITH ROLLUP", " WITH CUBE", " WITH ROLLUP WITH TOTALS"]
        )
        text += " GROUP BY " + (names if modifier else self.one([names, names, "ALL"])) + modifier
        text += self.one(["", "", " HAVING count() > 2", " HAVING a0 IS NOT NULL AND max(id) > 20"])
        return f"{text} ORDER BY ALL{self.one(GROUP_ENDS)}"

    def grouping_sets(self) -> str:
        a, b = self.rng.sample(["small", "low", "kind", "tup.a", "lown", "dec"], 2)
        sets = self.one([f"({a}), ({b}), ()", f"({a}, {b}), ({a})", f"({a}, {b}), ()"])
        return (
            f"SELECT {a}, {b}, count() AS c, sum(id) AS s, grouping({a}) AS g FROM {self.source()}"
            f"{self.where()} GROUP BY GROUPING SETS ({sets}) ORDER BY ALL"
        )

    def rows(self) -> str:
        if self.rng.random() < 0.1:
            order = self.one(["small", "low", "maybe"])
            return f"SELECT {order} FROM {self.source()}{self.where()} ORDER BY {order} LIMIT 6 WITH TIES"
        items = self.filled(self.one(ITEMS))
        order = "y" if items.startswith("id AS x") else self.one(ORDERS).replace("#", "v * 1000 + id")
        return f"SELECT {items} FROM {self.source()}{self.where()} ORDER BY {order}{self.one(LIMITS)}"

    def windows(self) -> str:
        over = self.one(OVERS)
        named = " WINDOW w AS (PARTITION BY kind ORDER BY id, v)" if over == "w" else ""
        return (
            f"SELECT id, v, {self.one(WINDOWS)} OVER {over} AS r FROM {self.source()}{self.where()}{named}"
            f"{self.one(QUALIFIES)} ORDER BY ALL{self.one(['', ' LIMIT 9', ' LIMIT 2 BY r'])}"
        )

    def distinct(self) -> str:
        items = ", ".join(self.some(ANYTHING, 3))
        limit = self.one(["", " LIMIT 5"])
        return f"SELECT DISTINCT {items} FROM {self.source()}{self.where()} ORDER BY ALL{limit}"

    def sets(self) -> str:
        items = self.one(["id, low", "small, maybe", "tup", "low, dec", "id"])
        parts = [f"SELECT {items} FROM {self.source()}{self.where()}" for _ in range(self.one([2, 2, 3]))]
        text = parts[0] + "".join(f" {self.one(VERBS)} {part}" for part in parts[1:])
        return self.one(
            [
                f"SELECT * FROM ({text}) ORDER BY ALL",
                f"SELECT count() FROM ({text})",
                f"SELECT {items} FROM wide WHERE ({items}) IN ({parts[1]}) ORDER BY ALL",
            ]
        )

    def joined(self) -> str:
        kind = self.one(JOIN_KINDS)
        tables = f"wide AS e {kind} {self.one(OTHERS)} ON {self.one(ONS)}"
        left, right = "e.id, e.v, e.low", "p.id, p.name, p.age"
        if kind.startswith("RIGHT SEMI"):
            return f"SELECT {right} FROM {tables} ORDER BY ALL"
        if kind.endswith(("SEMI JOIN", "ANTI JOIN")):
            return f"SELECT {left} FROM {tables}{self.where('e.')} ORDER BY ALL"
        return self.filled(self.one(JOINS), tables=tables, kind=kind, left=left, right=right)

    def shaped(self) -> str:
        return self.filled(self.one(SHAPES))


@pytest.fixture(scope="module")
def wide(bench: Bench) -> Iterator[Bench]:
    columns = ", ".join(f"{name} {type_}" for name, type_ in WIDE.items())
    bench.tables["wide"] = WIDE
    bench.ask("CREATE TABLE people_here ENGINE = MergeTree ORDER BY id AS SELECT * FROM people")
    bench.ask("CREATE TABLE extra_ids ENGINE = Set AS SELECT number * 2 AS id FROM numbers(90)")
    bench.ask("CREATE TABLE extra_names ENGINE = Memory AS SELECT 'x' || toString(number) n FROM numbers(2)")
    for database in ("one", *(f"s{n}" for n in range(1, SHARDS + 1))):
        bench.ask(
            f"CREATE TABLE wide ({columns}) ENGINE = ReplacingMergeTree(v) ORDER BY (intHash32(id), id) "
            "SAMPLE BY intHash32(id)",
            database,
        )
        bench.ask(f"SYSTEM STOP MERGES {database}.wide")
    for version in (0, 1):
        values = ", ".join(VALUES).replace("{version}", str(version))
        bench.ask(f"INSERT INTO wide SELECT {values} FROM numbers(220)")
        for n in range(1, SHARDS + 1):
            bench.ask(
                f"INSERT INTO s{n}.wide SELECT * FROM one.wide WHERE v = {version} "
                f"AND cityHash64(id) % {SHARDS} = {n - 1}"
            )
    yield bench
    del bench.tables["wide"]


@pytest.mark.parametrize("seed", few_first(SEEDS, few=16))
def test_a_random_query_of_any_shape_answers_as_one_table_does(wide: Bench, seed: int) -> None:
    sql = WideQuery(seed).text()
    try:
        expected = wide.ask(sql)
    except SqlError:
        return  # ClickHouse refuses it
    text, _ = wide.distributed(sql)
    assert without_statistics(wide.ask(text)) == without_statistics(expected), f"seed {seed}: {sql}\n{text}"


def without_statistics(answer: str) -> str:
    """Of JSONCompact, the rows."""
    return answer.partition('"statistics"')[0].partition('"rows_before_limit')[0]
