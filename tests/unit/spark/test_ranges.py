"""Days and times that a column does not hold are refused: they would be stored as others."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from engine.errors import SqlError
from engine.names import TableName
from spark_apps.clickhouse_cluster.ranges import require_values
from spark_apps.clickhouse_cluster.target import Column
from spark_apps.clickhouse_cluster.years import FEW_YEARS, MANY_YEARS, Years

UTC = pa.timestamp("us", tz="UTC")


def check(kind: str, values: list[object], arrow: pa.DataType, years: Years = FEW_YEARS) -> None:
    require_values(pa.table({"a": pa.array(values, arrow)}), [Column("a", kind)], TableName("d", "t"), years)


@pytest.mark.parametrize(
    ("kind", "fits", "not_any_more"),
    [
        ("Date", "1970-01-01", "1969-12-31"),
        ("Date", "2149-06-06", "2149-06-07"),
        ("Nullable(Date)", "2149-06-06", "2149-06-07"),
        ("Date32", "1900-01-01", "1899-12-31"),
        ("Date32", "2299-12-31", "2300-01-01"),
    ],
)
def test_days(kind: str, fits: str, not_any_more: str) -> None:
    check(kind, [dt.date.fromisoformat(fits)], pa.date32())
    with pytest.raises(SqlError, match=f"a .*Date.* not {not_any_more}") as refused:
        check(kind, [dt.date(2000, 1, 1), dt.date.fromisoformat(not_any_more)], pa.date32())
    assert refused.value.code == 321


@pytest.mark.parametrize(
    ("kind", "fits", "not_any_more"),
    [
        ("DateTime", "1970-01-01 00:00:00", "1969-12-31 23:59:59"),
        ("DateTime('America/New_York')", "2106-02-07 06:28:15", "2106-02-07 06:28:16"),
        ("DateTime64(3, 'UTC')", "1900-01-01 00:00:00", "1899-12-31 23:59:59"),
        ("DateTime64(6)", "2299-12-31 23:59:59", "2300-01-01 00:00:00"),
        ("DateTime64(9)", "2262-04-11 00:00:00", "2262-04-12 00:00:00"),
    ],
)
@pytest.mark.parametrize("arrow", [UTC, pa.timestamp("us")], ids=str)
def test_times(kind: str, fits: str, not_any_more: str, arrow: pa.DataType) -> None:
    zone = dt.UTC if arrow.tz else None
    check(kind, [dt.datetime.fromisoformat(fits).replace(tzinfo=zone)], arrow)
    with pytest.raises(SqlError, match=f"not {not_any_more}"):
        check(kind, [dt.datetime.fromisoformat(not_any_more).replace(tzinfo=zone)], arrow)


@pytest.mark.parametrize(
    ("kind", "last", "not_any_more"),
    [
        ("DateTime64(3)", "9999-12-31 23:59:59", "253402300800 seconds after 1970"),
        ("DateTime64(8)", "4892-10-07 21:52:48", "4892-10-07 21:52:49"),
        ("DateTime64(9)", "2262-04-11 23:47:16", "2262-04-11 23:47:17"),
    ],
)
def test_a_server_of_many_years_takes_as_many_as_64_bits_hold(
    kind: str, last: str, not_any_more: str
) -> None:
    first = dt.datetime(1900 if kind.endswith("(9)") else 1, 1, 1)
    at = dt.datetime.fromisoformat(last)
    check(kind, [first, at], pa.timestamp("us"), MANY_YEARS)
    behind = (at - dt.datetime(1970, 1, 1)) // dt.timedelta(seconds=1) + 1
    seconds = pa.array([behind], pa.int64()).cast(pa.timestamp("s")).cast(pa.timestamp("us"))
    with pytest.raises(SqlError, match=f"to {at.date()}, not {not_any_more}"):
        require_values(pa.table({"a": seconds}), [Column("a", kind)], TableName("d", "t"), MANY_YEARS)
    days = [dt.date.min, dt.date.max]
    check("Array(Date32)", [days], pa.list_(pa.date32()), MANY_YEARS)
    with pytest.raises(SqlError, match="holds 1900-01-01 to 2299-12-31, not 0001-01-01"):
        check("Date32", [*days], pa.date32())


def test_days_in_arrays() -> None:
    days = pa.list_(pa.date32())
    check("Array(Date)", [[dt.date(2000, 1, 1)], []], days)
    with pytest.raises(SqlError, match="1969-12-31"):
        check("Array(Date)", [[dt.date(2000, 1, 1)], [dt.date(1969, 12, 31)]], days)


def test_columns_of_other_types_and_columns_of_nulls_pass() -> None:
    check("UInt32", [2**32 - 1], pa.int64())
    check("Nullable(Date)", [None], pa.date32())
    check("Date", [], pa.date32())


LISTS = pa.list_(pa.list_(pa.int64()))


@pytest.mark.parametrize(
    ("kind", "values", "arrow"),
    [
        ("Array(Array(UInt8))", [[[1], None]], LISTS),
        ("Array(Array(UInt8))", [[[1, None]]], LISTS),
        ("Map(String, Array(String))", [[("k", None)]], pa.map_(pa.string(), pa.list_(pa.string()))),
        ("Array(Map(String, String))", [[None]], pa.list_(pa.map_(pa.string(), pa.string()))),
        ("Map(String, String)", [None], pa.map_(pa.string(), pa.string())),
        ("Date", [None], pa.date32()),
    ],
)
def test_null_is_found_at_every_depth(kind: str, values: list[object], arrow: pa.DataType) -> None:
    with pytest.raises(SqlError, match=r"a .* takes no NULL there, and 1 ") as refused:
        check(kind, values, arrow)
    assert refused.value.code == 349


def test_null_stands_where_elements_are_nullable() -> None:
    check("Array(Array(Nullable(UInt8)))", [[[1, None], []]], LISTS)


def test_only_the_rows_of_a_slice_count() -> None:
    days = pa.map_(pa.string(), pa.date32())
    rows = pa.array([[("x", dt.date(1969, 1, 1))], [("y", dt.date(2024, 1, 1))]], days)
    column = [Column("a", "Map(String, Date)")]
    require_values(pa.table({"a": rows[1:]}), column, TableName("d", "t"))
    with pytest.raises(SqlError, match="1969-01-01"):
        require_values(pa.table({"a": rows[:1]}), column, TableName("d", "t"))


def test_the_number_of_an_enum_is_no_name_of_it() -> None:
    kind = r"Enum8('it\'s' = 1, '2' = 3)"
    check(f"Nullable({kind})", ["it's", "2", None], pa.string())
    with pytest.raises(SqlError, match="has no name '1', '3'") as refused:
        check(kind, ["3", "1", "2"], pa.string())
    assert refused.value.code == 691
