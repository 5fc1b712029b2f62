"""Days and times that a column does not hold are refused: they would be stored as others."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from engine.errors import SqlError
from spark_apps.clickhouse_cluster.ranges import require_in_range
from spark_apps.clickhouse_cluster.target import Column

UTC = pa.timestamp("us", tz="UTC")


def check(kind: str, values: list[object], arrow: pa.DataType) -> None:
    require_in_range(pa.table({"a": pa.array(values, arrow)}), [Column("a", kind)])


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
    check(kind, [dt.date.fromisoformat(fits), None], pa.date32())
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
    check(kind, [dt.datetime.fromisoformat(fits).replace(tzinfo=zone), None], arrow)
    with pytest.raises(SqlError, match=f"not {not_any_more}"):
        check(kind, [dt.datetime.fromisoformat(not_any_more).replace(tzinfo=zone)], arrow)


def test_days_in_arrays() -> None:
    days = pa.list_(pa.date32())
    check("Array(Date)", [[dt.date(2000, 1, 1)], [], None], days)
    with pytest.raises(SqlError, match="1969-12-31"):
        check("Array(Date)", [[dt.date(2000, 1, 1)], [dt.date(1969, 12, 31)]], days)


def test_columns_of_other_types_and_columns_of_nulls_pass() -> None:
    check("UInt32", [2**32 - 1], pa.int64())
    check("Date", [None], pa.date32())
    check("Date", [], pa.date32())
