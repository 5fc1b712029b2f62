"""Random columns and values, written and read back: each comes as it was given. The seed names it."""

from __future__ import annotations

import datetime as dt
import random
import string
import uuid
from collections.abc import Callable
from decimal import Decimal
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from spark_apps.clickhouse_cluster.options import Options
from spark_apps.clickhouse_cluster.reader import ClusterReader
from spark_apps.clickhouse_cluster.target import Column
from spark_apps.clickhouse_cluster.types import spark_schema
from tests.few import few_first
from tests.spark.conftest import Servers
from tests.spark.test_values import load

pytestmark = pytest.mark.slow

ZONES = ("UTC", "Asia/Tokyo", "America/New_York", "Europe/Berlin")
TEXT = string.ascii_letters + string.punctuation + "äß漢\U0001f600\t\n\0 "
_Value = Callable[[random.Random], Any]
_INTEGERS = {
    f"{sign}Int{bits}": (0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for sign in ("", "U")
    for bits in (8, 16, 32, 64)
}


def text(random: random.Random) -> str:
    return "".join(random.choices(TEXT, k=random.choice((0, 1, 3, 20))))


def integer(name: str) -> _Value:
    first, last = _INTEGERS[name]

    def value(random: random.Random) -> Any:
        found = random.choice((first, last, 0, random.randint(first, last)))
        return Decimal(found) if name == "UInt64" else found

    return value


def decimal(digits: int, scale: int) -> _Value:
    def value(random: random.Random) -> Decimal:
        most = 10**digits - 1
        sign, *rest = Decimal(random.choice((most, -most, 0, random.randint(-most, most)))).as_tuple()
        return Decimal((sign, rest[0], -scale))  # type: ignore[arg-type]

    return value


def time(first: dt.datetime, last: dt.datetime, digits: int) -> _Value:
    def value(random: random.Random) -> dt.datetime:
        second = first + dt.timedelta(seconds=random.randint(0, int((last - first).total_seconds())))
        fraction = random.randint(0, 10**digits - 1) * 10 ** (6 - digits)
        return second.replace(tzinfo=dt.UTC) + dt.timedelta(microseconds=fraction)

    return value


def day(first: dt.date, last: dt.date) -> _Value:
    return lambda random: (
        first + dt.timedelta(days=random.choice((0, random.randint(0, (last - first).days))))
    )


def leaf(random: random.Random, *, is_key: bool) -> tuple[str, _Value]:
    """A type without others in it; `is_key`: that a map can have as its keys."""
    digits = random.randint(1, 38)
    scale, fraction = random.randint(0, digits), random.randint(0, 6)
    zone = random.choice(ZONES)
    found: list[tuple[str, _Value]] = [
        *((name, integer(name)) for name in _INTEGERS),
        ("String", text),
        ("LowCardinality(String)", text),
        ("Date", day(dt.date(1970, 1, 1), dt.date(2149, 6, 6))),
        (f"DateTime('{zone}')", time(dt.datetime(1970, 1, 1), dt.datetime(2106, 2, 7), 0)),
        ("UUID", lambda random: str(uuid.UUID(int=random.getrandbits(128)))),
        ("Enum8('x' = 1, 'it''s' = -5, '' = 0)", lambda random: random.choice(("x", "it's", ""))),
    ]
    if not is_key:
        times = time(dt.datetime(1901, 1, 1), dt.datetime(2299, 12, 30), fraction)
        found += [
            ("Float64", lambda random: random.choice((float("inf"), -0.0, 1e-300, random.uniform(-9, 9)))),
            ("Float32", lambda random: random.choice((float("-inf"), 0.5, random.randint(-999, 999) / 8))),
            ("Bool", lambda random: random.random() < 0.5),
            ("Date32", day(dt.date(1900, 1, 1), dt.date(2299, 12, 31))),
            (f"DateTime64({fraction}, '{zone}')", times),
            (f"Decimal({digits}, {scale})", decimal(digits, scale)),
            ("IPv4", lambda random: str(IPv4Address(random.getrandbits(32)))),
            ("IPv6", lambda random: str(IPv6Address(random.getrandbits(128)))),
            ("FixedString(5)", lambda random: "".join(random.choices(string.ascii_letters, k=5))),
        ]
    return random.choice(found)


def column(random: random.Random, depth: int = 0) -> tuple[str, _Value]:
    shape = random.choice(("leaf", "leaf", "null", "array", "map") if depth < 3 else ("leaf", "null"))
    size = random.choice((0, 1, 4))
    if shape == "array":
        inner, of = column(random, depth + 1)
        return f"Array({inner})", lambda random: [of(random) for _ in range(size)]
    if shape == "map":
        (key, of_key), (item, of_item) = leaf(random, is_key=True), column(random, depth + 1)
        return f"Map({key}, {item})", lambda random: list(
            {of_key(random): of_item(random) for _ in range(size)}.items()
        )
    name, value = leaf(random, is_key=False)
    if shape == "null":
        name = name.replace("LowCardinality(String)", "String")
        return f"Nullable({name})", lambda random: None if random.random() < 0.4 else value(random)
    if not depth and random.random() < 0.2:
        name = f"SimpleAggregateFunction(anyLast, {name})"
    return name, value


@pytest.mark.parametrize("seed", few_first(range(3), few=1))
def test_random_values_are_read_as_they_were_written(nodes: Servers, seed: int) -> None:
    chosen = random.Random(seed)
    columns, makers = [Column("a", "UInt32")], list[_Value]()
    for number in range(8):
        kind, maker = column(chosen)
        columns.append(Column(f"c{number}", kind))
        makers.append(maker)
    rows = [(a, *(maker(chosen) for maker in makers)) for a in range(chosen.choice((1, 12)))]
    schema: StructType = spark_schema(columns)
    arrow = to_arrow_schema(schema, timezone="UTC")
    given = {field.name: pa.array([row[at] for row in rows], field.type) for at, field in enumerate(arrow)}
    what = ", ".join(f"{one.name} {one.type}" for one in columns)
    table = nodes.table(what, rest="PARTITION BY a % 2 ORDER BY a")
    load(nodes, table, given)

    reader = ClusterReader(Options.parse({"table": table, "shards": nodes.option}), schema)
    found = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    found.sort(key=lambda row: int(row["a"]))
    for name, values in given.items():
        kind = next(one.type for one in columns if one.name == name)
        assert repr([row[name] for row in found]) == repr(values.to_pylist()), (name, kind)
