"""Random queries over columns of types that are seldom used: shards against one table. A failure prints its
seed; `DISTRIBUTED_SELECT_FIRST=60 DISTRIBUTED_SELECT_SEEDS=3000` looks further."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from engine.errors import SqlError
from tests.few import few_first
from tests.unit.distributed.test_select_shapes import SHARDS, Bench, bench
from tests.unit.distributed.test_select_wide_property import choices

pytestmark = pytest.mark.slow

__all__ = ["bench"]

SEEDS = range(
    int(os.environ.get("DISTRIBUTED_SELECT_FIRST", "0")),
    int(os.environ.get("DISTRIBUTED_SELECT_SEEDS", "60")),
)
COLUMNS = {
    "id": ("UInt64", "number"),
    "big": ("Int256", "-bitShiftLeft(toInt256(number % 7), 130)"),
    "u128": ("UInt128", "number % 5"),
    "dec": ("Decimal(50, 10)", "number % 9 / 7"),
    "decn": ("Nullable(Decimal(9, 2))", "if(number % 3 = 0, NULL, number % 5 + 0.25)"),
    "at": ("DateTime64(6, 'Asia/Tokyo')", "toDateTime64('2024-03-30 22:00:00', 6, 'UTC') + number * 1000"),
    "sec": ("DateTime('Europe/Berlin')", "toDateTime('2024-03-30 22:00:00', 'UTC') + number * 900"),
    "d32": ("Date32", "toDate32('1925-01-01') + number % 40"),
    "e16": ("Enum16('a' = -1, 'it\\'s' = 300, 'c' = 9)", "[-1, 300, 9][number % 3 + 1]"),
    "ip6": ("IPv6", "toIPv6('2001:db8::' || toString(number % 4))"),
    "f": ("Float32", "[nan, 1.5, -inf, inf, 0][number % 5 + 1]"),
    "var": (
        "Variant(String, UInt64)",
        "if(number % 2 = 0, toUInt64(number % 5)::Variant(String, UInt64), 'v'::Variant(String, UInt64))",
    ),
    "dyn": ("Dynamic", "if(number % 3 = 0, CAST('text', 'Dynamic'), CAST(toUInt64(number % 4), 'Dynamic'))"),
    "named": (
        "Tuple(x Tuple(y Int32, `z w` String), `w` Nullable(Float64))",
        "((number % 3, 'z' || toString(number % 2)), if(number % 4 = 0, NULL, number % 4))",
    ),
    "nest.a": ("Array(Int32)", "range(number % 3)"),
    "nest.b": ("Array(LowCardinality(String))", "arrayMap(i -> toString(i), range(number % 3))"),
    "arrt": ("Array(Tuple(k String, v Nullable(Int8)))", "[('k', if(number % 2 = 0, NULL, number % 5))]"),
    "mapl": ("Map(LowCardinality(String), Array(UInt8))", "map('a', [number % 3], 'b', [])"),
    "point": ("Point", "(number % 3, number % 2)"),
    "lowd": ("LowCardinality(Nullable(FixedString(2)))", "if(number % 4 = 0, NULL, toString(number % 3))"),
    "simple": ("SimpleAggregateFunction(max, UInt64)", "number % 11"),
    "js": ("JSON(n.a UInt8)", 'concat(\'{"n": {"a": \', toString(number % 3), \'}, "t": [1, "x"]}\')'),
}
KEYS = choices(
    "big | u128 | dec | decn | at | sec | d32 | e16 | ip6 | f | named | named.x | named.w | nest.a | "
    "nest.b | arrt | arrt.v | mapl | mapl['a'] | point | lowd | simple | js.n.a | toString(var) | "
    "variantType(var) | dynamicType(dyn) | dyn.UInt64 | toHour(at) | toStartOfHour(sec) | toDate(at) | "
    "point.1 | id%4 | toString(dyn) | toTypeName(var) | e16='c' | variantElement(var, 'UInt64') | "
    "named.x.`z w`"
)
ORDERED = [key for key in KEYS if key not in ("f",)]
CONDITIONS = [
    "id > {i}",
    "big < 0",
    "dec > 0.5",
    "decn IS NULL",
    "decn = 1.25",
    "at > '2024-03-31 09:00:00'",
    "sec BETWEEN '2024-03-31 00:00:00' AND '2024-03-31 06:00:00'",
    "d32 < '1925-01-20'",
    "e16 IN ('c', 'it\\'s')",
    "ip6 = '2001:db8::2'",
    "isNaN(f)",
    "f > 1",
    "variantType(var) = 'String'",
    "dyn.String = 'text'",
    "named.x.y = 1",
    "named.w IS NOT NULL",
    "has(nest.a, 1)",
    "mapl['a'] = [1]",
    "lowd = '1'",
    "js.n.a = 2",
    "(id, u128) IN (SELECT id, u128 FROM odd WHERE id % 2 = 0)",
    "named IN (SELECT named FROM odd WHERE id < {i})",
    "dec >= (SELECT avg(dec) FROM odd)",
    "at < (SELECT max(at) FROM odd) - INTERVAL 9 HOUR",
    "e16 = (SELECT any(e16) FROM odd WHERE id = 2)",
    "ip6 IN (SELECT ip6 FROM odd WHERE id < 3)",
]
AGGREGATES = [
    "count()",
    "min({c})",
    "max({c})",
    "uniqExact({c})",
    "count({c})",
    "argMin(mapl, id)",
    "arraySort(groupUniqArray({c}))",
    "sum(big)",
    "sum(dec)",
    "avg(decn)",
    "sumIf(u128, big < 0)",
    "argMax(named, id)",
    "argMin(e16, (id, u128))",
    "maxIf(at, decn IS NULL)",
    "sumOrNull(decn)",
    "quantileExact(0.5)(sec)",
    "sumMap(nest.a, nest.a)",
    "maxArray(nest.a)",
    "groupBitOr(u128)",
    "toTypeName(max(dec))",
    "uniqExact(id, e16)",
    "minMap(map(e16, id))",
]


class OddQuery:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.one = self.rng.choice

    def text(self) -> str:
        return self.one(
            [self.aggregation, self.aggregation, self.rows, self.distinct, self.join, self.nested]
        )()

    def where(self, prefix: str = "") -> str:
        if self.rng.random() < 0.3:
            return ""
        parts = self.rng.sample(CONDITIONS, self.rng.randrange(1, 3))
        text = self.one([" AND ", " OR "]).join(f"({part})" for part in parts)
        return " WHERE " + text.replace("{i}", str(self.rng.randrange(150)))

    def aggregates(self) -> str:
        chosen = self.rng.sample(AGGREGATES, self.rng.randrange(1, 4))
        return ", ".join(f"{one.format(c=self.one(ORDERED))} AS a{n}" for n, one in enumerate(chosen))

    def aggregation(self) -> str:
        keys = self.rng.sample(KEYS, self.rng.randrange(0, 3))
        items = ", ".join([*(f"{key} AS k{n}" for n, key in enumerate(keys)), self.aggregates()])
        text = f"SELECT {items} FROM odd{self.where()}"
        if not keys:
            return text
        sets = self.one(["", "", "", " WITH TOTALS", " WITH ROLLUP", " WITH CUBE"])
        return f"{text} GROUP BY {', '.join(f'k{n}' for n in range(len(keys)))}{sets} ORDER BY ALL"

    def rows(self) -> str:
        items = self.one(
            ["*", "id, var, dyn, js", "* EXCEPT (js, dyn)", f"id, {', '.join(self.rng.sample(KEYS, 4))}"]
        )
        limit = self.one(["", " LIMIT 5", " LIMIT 5 OFFSET 3", f" LIMIT 2 BY {self.one(KEYS)}"])
        order = self.one(["id", "id DESC", f"{self.one(ORDERED)}, id", f"{self.one(ORDERED)} DESC, id"])
        return f"SELECT {items} FROM odd{self.where()} ORDER BY {order}{limit}"

    def distinct(self) -> str:
        return f"SELECT DISTINCT {', '.join(self.rng.sample(KEYS, 2))} FROM odd{self.where()} ORDER BY ALL"

    def join(self) -> str:
        on = self.one(["e16", "ip6", "u128", "dec", "decn", "at", "lowd", "d32", "named"])
        kind = self.one(["JOIN", "LEFT JOIN", "FULL JOIN", "LEFT ANTI JOIN", "ANY LEFT JOIN"])
        kept = "count(), sum(a.id), max(toString(a.dyn))" + (", sum(b.id)" if "FULL" in kind else "")
        few = "(SELECT * FROM odd WHERE id % 17 = 3)"
        return f"SELECT {kept} FROM odd AS a {kind} {few} AS b ON a.{on} = b.{on}"

    def nested(self) -> str:
        inner = f"SELECT * FROM odd{self.where()}"
        return self.one(
            [
                f"SELECT {self.one(KEYS)} AS k, count() AS c FROM ({inner}) GROUP BY k ORDER BY ALL",
                f"SELECT id, x, y FROM odd ARRAY JOIN nest.a AS x, nest.b AS y{self.where()} ORDER BY ALL",
                f"SELECT nest.a, nest.b, id FROM ({inner}) ARRAY JOIN nest ORDER BY ALL LIMIT 9",
                f"SELECT id, named.* FROM ({inner}) ORDER BY id LIMIT 7",
                f"WITH q AS ({inner}) SELECT count() FROM q AS a JOIN q AS b ON a.id = b.id",
                f"SELECT id, lagInFrame(e16) OVER (ORDER BY id) AS l FROM ({inner}) ORDER BY id",
                f"SELECT * FROM ({inner} UNION ALL {inner}) ORDER BY id LIMIT 3",
            ]
        )


@pytest.fixture(scope="module")
def odd(bench: Bench) -> Iterator[Bench]:
    bench.tables["odd"] = {name: type_ for name, (type_, _) in COLUMNS.items()}
    columns = ", ".join(f"`{name}` {type_}" for name, (type_, _) in COLUMNS.items())
    for database in ("one", *(f"s{n}" for n in range(1, SHARDS + 1))):
        bench.ask(f"CREATE TABLE odd ({columns}) ENGINE = MergeTree ORDER BY id", database)
    bench.ask(f"INSERT INTO odd SELECT {', '.join(value for _, value in COLUMNS.values())} FROM numbers(200)")
    for n in range(1, SHARDS + 1):
        bench.ask(f"INSERT INTO s{n}.odd SELECT * FROM one.odd WHERE cityHash64(id) % {SHARDS} = {n - 1}")
    yield bench
    del bench.tables["odd"]


@pytest.mark.parametrize("seed", few_first(SEEDS, few=16))
def test_a_random_query_over_odd_types_answers_as_one_table_does(odd: Bench, seed: int) -> None:
    sql = OddQuery(seed).text()
    try:
        expected = odd.ask(sql)
    except SqlError:
        return  # ClickHouse refuses it
    text, _ = odd.distributed(sql)
    assert odd.ask(text) == expected, f"seed {seed}: {sql}\n{text}"
