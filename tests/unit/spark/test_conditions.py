"""Which of Spark's filters travel to the servers, as which SQL, and which are left to Spark."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from pyspark.sql import datasource as ds

from spark_apps.clickhouse_cluster.reader import condition_of
from spark_apps.clickhouse_cluster.split import chdb_query, close_chdb
from spark_apps.clickhouse_cluster.target import Column
from tests.unit.spark.test_schema import target

TARGET = target(
    Column("i", "Nullable(Int16)"),
    Column("u", "UInt64"),
    Column("s", "String"),
    Column("l", "LowCardinality(Nullable(String))"),
    Column("f", "Float64"),
    Column("m", "Decimal(9, 2)"),
    Column("b", "Bool"),
    Column("d", "Date"),
    Column("w", "Date32"),
    Column("t", "DateTime('Europe/Berlin')"),
    Column("t6", "DateTime64(6)"),
    Column("e", "Enum8('x' = 1)"),
    Column("id", "UUID"),
    Column("r", "Array(String)"),
    Column("odd `name", "UInt8"),
)
NOON = datetime(2024, 10, 27, 12, 0, 0)
IN_BERLIN = datetime(2024, 10, 27, 2, 30, tzinfo=timezone(timedelta(hours=1)))


@pytest.mark.parametrize(
    ("given", "sql"),
    [
        (ds.EqualTo(("i",), -3), "`i` = -3"),
        (ds.EqualNullSafe(("i",), 3), "`i` = 3"),
        (ds.GreaterThan(("i",), 3), "`i` > 3"),
        (ds.GreaterThanOrEqual(("i",), 3), "`i` >= 3"),
        (ds.LessThan(("i",), 3), "`i` < 3"),
        (ds.LessThanOrEqual(("i",), 3), "`i` <= 3"),
        (ds.IsNull(("i",)), "isNull(`i`)"),
        (ds.IsNotNull(("f",)), "isNotNull(`f`)"),
        (ds.In(("i",), (1, 2)), "`i` IN (1, 2)"),
        (ds.Not(ds.EqualTo(("i",), 3)), "isNotNull(`i`) AND NOT (`i` = 3)"),
        (ds.Not(ds.In(("s",), ("x", ""))), "isNotNull(`s`) AND NOT (`s` IN ('x', ''))"),
        (ds.Not(ds.IsNull(("i",))), "NOT (isNull(`i`))"),
        (ds.Not(ds.IsNotNull(("i",))), "NOT (isNotNull(`i`))"),
        (ds.StringStartsWith(("s",), "a%"), "startsWith(`s`, 'a%')"),
        (ds.StringEndsWith(("l",), "_"), "endsWith(`l`, '_')"),
        (ds.StringContains(("s",), "'"), r"position(`s`, '\'') > 0"),
        (ds.Not(ds.StringStartsWith(("l",), "a")), "isNotNull(`l`) AND NOT (startsWith(`l`, 'a'))"),
        (ds.EqualTo(("u",), Decimal(2**64 - 1)), f"`u` = {2**64 - 1}"),
        (ds.GreaterThan(("u",), -1), "`u` > -1"),
        (ds.EqualTo(("b",), True), "`b` = 1"),
        (ds.EqualTo(("d",), date(1970, 1, 1)), "`d` = toDate('1970-01-01')"),
        (ds.LessThan(("w",), date(1900, 1, 1)), "`w` < toDate32('1900-01-01')"),
        (ds.EqualTo(("t",), NOON), f"`t` = toDateTime({1_730_030_400})"),
        (ds.EqualTo(("t",), NOON.replace(tzinfo=UTC)), f"`t` = toDateTime({1_730_030_400})"),
        (ds.EqualTo(("t",), IN_BERLIN), f"`t` = toDateTime({1_729_992_600})"),
        (ds.EqualTo(("odd `name",), 1), r"`odd \`name` = 1"),
    ],
    ids=str,
)  # fmt: skip
def test_filters_that_servers_evaluate_as_spark_does_travel(given: ds.Filter, sql: str) -> None:
    assert condition_of(given, TARGET) == sql


@pytest.mark.parametrize(
    "given",
    [
        ds.EqualTo(("i",), None),
        ds.EqualNullSafe(("i",), None),
        ds.In(("i",), (1, None)),
        ds.In(("i",), ()),
        ds.In(("d",), (date(2024, 1, 1), date(2106, 1, 1))),
        ds.Not(ds.EqualNullSafe(("i",), 3)),
        ds.Not(ds.Not(ds.EqualTo(("i",), 3))),
        ds.Not(ds.EqualTo(("f",), 1.5)),
        ds.EqualTo(("f",), 1.5),  # NaN equals NaN in Spark
        ds.EqualTo(("f",), 1),
        ds.EqualTo(("m",), Decimal("1.5")),
        ds.EqualTo(("u",), Decimal("1.5")),
        ds.EqualTo(("i",), True),
        ds.EqualTo(("b",), 1),
        ds.EqualTo(("d",), date(1969, 12, 31)),
        ds.GreaterThan(("d",), date(2106, 1, 1)),
        ds.EqualTo(("t",), datetime(1969, 12, 31, 23, 59, 59)),
        ds.EqualTo(("t",), datetime(2106, 2, 7, 6, 28, 16)),
        ds.LessThan(("t",), NOON.replace(microsecond=1)),
        ds.EqualTo(("t",), date(2024, 1, 1)),
        ds.EqualTo(("d",), NOON),
        ds.EqualTo(("t6",), NOON),
        ds.EqualTo(("e",), "x"),
        ds.EqualTo(("id",), "61f0c404-5cb3-11e7-907b-a6006ad3dba0"),
        ds.StringStartsWith(("e",), "x"),
        ds.StringContains(("s",), ""),
        ds.StringContains(("id",), "6"),
        ds.EqualTo(("r",), ["x"]),
        ds.EqualTo(("s",), 1),
        ds.EqualTo(("s", "inner"), "x"),
        ds.EqualTo(("nothing",), 1),
        ds.IsNull(("nothing",)),
    ],
    ids=str,
)
def test_filters_where_servers_might_differ_are_left_to_spark(given: ds.Filter) -> None:
    assert condition_of(given, TARGET) is None


TEXTS = (
    "",
    "it's",
    'say "ä"',
    "back\\slash",
    "\\",
    "\\'",
    "line\nbreak\ttab",
    "\0",
    "`",
    "%_",
    "' OR 1 = 1 --",
    "🛫",
)


def test_a_text_is_compared_as_it_is_whatever_is_in_it() -> None:
    """chDB, which reads SQL as servers do, finds exactly that text among all."""
    rows = " UNION ALL ".join(f"SELECT unhex('{text.encode().hex()}') AS s" for text in TEXTS)
    try:
        for text in TEXTS:
            for given in (ds.EqualTo(("s",), text), ds.In(("s",), (text,))):
                found = chdb_query(
                    f"SELECT hex(s) FROM ({rows}) WHERE {condition_of(given, TARGET)}", "TSVRaw"
                )
                assert found.decode().strip() == text.encode().hex().upper()
    finally:
        close_chdb()
