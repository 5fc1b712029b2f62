"""Random tables and filters: what servers keep of a filter that travels is what Spark keeps of all rows."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Mapping
from decimal import Decimal

import pytest
from pyspark.sql import Column as SparkColumn
from pyspark.sql import SparkSession
from pyspark.sql import datasource as ds
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DateType, DecimalType, StringType, TimestampType

from spark_apps.clickhouse_cluster.options import Options
from spark_apps.clickhouse_cluster.reader import condition_of
from spark_apps.clickhouse_cluster.target import Target
from spark_apps.clickhouse_cluster.types import spark_type
from tests.few import few_first
from tests.spark.conftest import Servers

pytestmark = pytest.mark.slow

_ROWS, _FILTERS, _COLUMNS = 60, 250, 8
_TEXTS = ("", "a", "A", "ab", "ä", "%", "_", "it's", "\\", "\n", "🛫", "b\0", "a ", "ß", "\ufffd", "x")
_RAW = tuple(f"unhex('{one}')" for one in (*(text.encode().hex() for text in _TEXTS), "ff", "61ff", "c3"))
_DAYS = ("1970-01-01", "2024-02-29", "2105-12-31", "2149-06-06", "1900-01-01", "1969-12-31", "2299-12-31")
_SECONDS = (0, 1, 1_729_989_000, 1_729_992_600, 2**32 - 1)
"""Two of them are half past two in Berlin, before and after clocks are set back."""
_FRACTIONS = tuple(
    f"toDateTime64('{at}', 9, 'UTC')"
    for at in ("1900-01-01 00:00:00.1", "1969-12-31 23:59:59.999999", "2024-10-27 00:30:00.000000001")
)


def _ends(bits: int, *, is_signed: bool) -> tuple[int, ...]:
    least, behind = (-(1 << bits - 1), 1 << bits - 1) if is_signed else (0, 1 << bits)
    return (least, least + 1, behind - 1, behind - 2, behind >> 1, 1, 2)


_WHOLE = {
    f"{sign}{bits}": _ends(bits, is_signed=sign == "Int")
    for sign in ("Int", "UInt")
    for bits in (8, 16, 32, 64)
}
_VALUES: Mapping[str, tuple[str, ...]] = {
    **{name: tuple(f"to{name}('{one}')" for one in ends) for name, ends in _WHOLE.items()},
    "Float32": ("nan", "inf", "-inf", "-0.", "0", "1.5", "0.1"),
    "Float64": ("nan", "inf", "-inf", "-0.", "0", "1.5", "0.1"),
    "Bool": ("true", "false"),
    "String": _RAW,
    "LowCardinality(String)": _RAW,
    "FixedString(3)": ("'a'", "'abc'", "'ä'", "''", "unhex('ff00')"),
    "Date": tuple(f"toDate('{day}')" for day in _DAYS[:4]),
    "Date32": tuple(f"toDate32('{day}')" for day in _DAYS),
    "DateTime('UTC')": tuple(f"toDateTime({at})" for at in _SECONDS),
    "DateTime('Europe/Berlin')": tuple(f"toDateTime({at})" for at in _SECONDS),
    "DateTime64(3, 'UTC')": _FRACTIONS,
    "DateTime64(9, 'America/New_York')": _FRACTIONS,
    "Decimal(9, 2)": ("'0'", "'1.5'", "'-1.5'", "'0.01'", "'9999999.99'"),
    "Decimal(38, 10)": ("'0'", "'1.5'", "'-1.5'", "'0.01'", "'9999999.99'"),
    "Enum8('x' = 1, 'y' = -1)": ("'x'", "'y'"),
    "UUID": ("'61f0c404-5cb3-11e7-907b-a6006ad3dba0'", "'00000000-0000-0000-0000-000000000000'"),
    "IPv4": ("'1.2.3.4'", "'0.0.0.0'"),
    "Int128": ("'0'", "'-5'", "'170141183460469231731687303715884105727'"),
    "SimpleAggregateFunction(max, Int32)": ("0", "-5", "2147483647"),
    "Variant(String, UInt8)": ("'a'", "toUInt8(1)", "NULL"),
    "Array(Nullable(Int32))": ("[]", "[NULL]", "[1, NULL]"),
    "Map(String, UInt64)": ("map()", "map('a', 1)"),
}
_NEVER_NULL = ("Array", "Map", "Simple", "Variant")

_COMPARES: Mapping[type[ds.Filter], Callable[[SparkColumn, SparkColumn], SparkColumn]] = {
    ds.EqualTo: lambda column, value: column == value,
    ds.EqualNullSafe: lambda column, value: column.eqNullSafe(value),
    ds.GreaterThan: lambda column, value: column > value,
    ds.GreaterThanOrEqual: lambda column, value: column >= value,
    ds.LessThan: lambda column, value: column < value,
    ds.LessThanOrEqual: lambda column, value: column <= value,
}
_LOOKS_INTO: Mapping[type[ds.Filter], Callable[[SparkColumn, SparkColumn], SparkColumn]] = {
    ds.StringStartsWith: lambda column, value: column.startswith(value),
    ds.StringEndsWith: lambda column, value: column.endswith(value),
    ds.StringContains: lambda column, value: column.contains(value),
}


class Filters:
    """Random filters on a random column, each as Spark hands it to a source and as Spark evaluates it."""

    def __init__(self, dice: random.Random, columns: Mapping[str, str]) -> None:
        self._dice = dice
        self._columns = columns

    def one(self) -> tuple[ds.Filter, SparkColumn]:
        name = self._dice.choice(list(self._columns))
        return self._on(name, self._columns[name])

    def _on(self, name: str, kind: str) -> tuple[ds.Filter, SparkColumn]:
        dice, column, is_text = self._dice, F.col(name), isinstance(spark_type(kind), StringType)
        shape = dice.choice(("null", "not null", "not", "in", "looks into", *["compares"] * 4))
        if shape == "null" or kind.startswith(("Array", "Map")):
            return ds.IsNull((name,)), column.isNull()
        if shape == "not null":
            return ds.IsNotNull((name,)), column.isNotNull()
        if shape == "not":
            inner, evaluated = self._on(name, kind)
            return ds.Not(inner), ~evaluated
        if shape == "in":
            values = [self._value(kind) for _ in range(dice.choice((1, 2, 12)))] + [None] * dice.choice(
                (0, 0, 1)
            )
            return ds.In((name,), tuple(values)), column.isin([self._literal(one, kind) for one in values])
        filters = _LOOKS_INTO if shape == "looks into" and is_text else _COMPARES
        of = dice.choice(list(filters))
        value = self._value(kind)
        return of((name,), value), filters[of](column, self._literal(value, kind))  # type: ignore[call-arg]

    def _literal(self, value: object, kind: str) -> SparkColumn:
        # Spark's own way with a day before the year 1000 fails.
        given = value.isoformat() if isinstance(value, dt.date) else value
        return F.lit(given).cast(spark_type(kind))

    def _value(self, kind: str) -> object:
        """Of the column's type in Spark, also beyond what ClickHouse's has."""
        dice, of = self._dice, spark_type(kind)
        if kind == "UInt64":
            return Decimal(
                dice.choice((*_WHOLE[kind], 2**64, 2**64 + 1, 2**53 + 1, -1, 10**20 - 1, -(10**19)))
            )
        if kind in _WHOLE:
            return dice.choice((*_WHOLE[kind], *((-1, 256, 2**16) if kind == "UInt16" else ())))
        if isinstance(of, BooleanType):
            return dice.choice((True, False))
        if isinstance(of, StringType):
            return dice.choice((*_TEXTS, "1.2.3.4", "61f0c404-5cb3-11e7-907b-a6006ad3dba0"))
        if isinstance(of, DateType):
            return dt.date.fromisoformat(dice.choice((*_DAYS, "0001-01-01", "1899-12-31", "2300-01-01")))
        if isinstance(of, TimestampType):
            beyond = (
                dt.datetime(1, 1, 1),
                dt.datetime(2106, 2, 7, 6, 28, 16),
                dt.datetime(1970, 1, 1, 0, 0, 0, 1),
            )
            inside = [dt.datetime.fromtimestamp(at, dt.UTC) for at in _SECONDS]
            return dice.choice((*inside, *(at.replace(tzinfo=dt.UTC) for at in beyond)))
        if isinstance(of, DecimalType):
            return Decimal(dice.choice(("0", "1.5", "-1.5", "0.01", "9999999.99")))
        return (
            dice.choice((0, 1, -5)) if kind.startswith("Simple") else dice.choice((float("nan"), -0.0, 1.5))
        )


@pytest.mark.parametrize("seed", few_first(range(4), few=1))
def test_filters_that_travel_keep_the_rows_that_spark_keeps(
    spark: SparkSession, nodes: Servers, seed: int
) -> None:
    dice = random.Random(seed)
    kinds = dice.sample(list(_VALUES), _COLUMNS)
    columns = {f"c{number}": kind for number, kind in enumerate(kinds)}
    nullable = {
        name: kind if kind.startswith(_NEVER_NULL) or dice.random() < 0.5 else _nullable(kind)
        for name, kind in columns.items()
    }
    table = nodes.table(
        "k UInt32, " + ", ".join(f"{name} {kind}" for name, kind in nullable.items()),
        rest="ORDER BY k SETTINGS index_granularity = 4",
    )

    def value(name: str) -> str:
        is_null = nullable[name] != columns[name] and dice.random() < 0.2
        return "NULL" if is_null else dice.choice(_VALUES[columns[name]])

    rows = [f"({k}, {', '.join(map(value, columns))})" for k in range(_ROWS)]
    for number, shard in enumerate(nodes.shards):
        shard[0].execute(f"INSERT INTO {table} VALUES {', '.join(rows[number :: len(nodes.shards)])}")
    target = Target.find(Options.parse({"table": table, "shards": nodes.option}))
    some = Filters(dice, columns)
    filters = [some.one() for _ in range(_FILTERS)]
    travel = [(one, sql, kept) for one, kept in filters if (sql := condition_of(one, target)) is not None]
    assert len(travel) > _FILTERS // 20

    frame = spark.read.format("clickhouse_cluster").options(shards=nodes.option).load(table)
    flags = [F.coalesce(kept, F.lit(False)).alias(f"f{at}") for at, (_, _, kept) in enumerate(travel)]
    by_spark = frame.select("k", *flags).collect()
    bits = ", ".join(f"toUInt8(ifNull({sql}, 0))" for _, sql, _ in travel)
    by_servers = {
        k: bits for k, *bits in (line.split("\t") for line in nodes.ask(f"SELECT k, {bits} FROM {table}"))
    }
    assert len(by_spark) == len(by_servers) == _ROWS
    differing = {
        (travel[at][1], nullable[travel[at][0].attribute[0]] if hasattr(travel[at][0], "attribute") else "")
        for row in by_spark
        for at, bit in enumerate(by_servers[str(row.k)])
        if row[f"f{at}"] != (bit == "1")
    }
    assert differing == set()


def _nullable(kind: str) -> str:
    return "LowCardinality(Nullable(String))" if kind.startswith("LowCardinality") else f"Nullable({kind})"
