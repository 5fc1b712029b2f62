"""Days and times that a column cannot hold. A server would store others in their place, and say nothing.

Numbers need no such check: chDB's `accurateCast` refuses them. Source: ClickHouse's documentation of Date,
Date32, DateTime and DateTime64.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from engine.errors import SqlError
from spark_apps.clickhouse_cluster.target import Column
from spark_apps.clickhouse_cluster.types import ChType

VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE = 321
_EPOCH = dt.datetime(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class _Range:
    """Both ends included, in UTC."""

    first: dt.datetime
    last: dt.datetime


_END_OF_DAY = dt.timedelta(days=1, microseconds=-1)
_WIDE = _Range(dt.datetime(1900, 1, 1), dt.datetime(2299, 12, 31) + _END_OF_DAY)
_RANGES = {
    "Date": _Range(_EPOCH, _EPOCH + dt.timedelta(days=2**16 - 1) + _END_OF_DAY),
    "Date32": _WIDE,
    "DateTime": _Range(_EPOCH, _EPOCH + dt.timedelta(seconds=2**32) - dt.timedelta(microseconds=1)),
    "DateTime64": _WIDE,
}
# Its 64 bits count nanoseconds.
_NANOSECONDS = _Range(_WIDE.first, dt.datetime(2262, 4, 11, 23, 47, 16))


def require_in_range(rows: pa.Table, columns: Sequence[Column]) -> None:
    """Look at these columns. Raises SqlError 321 that names the column, its range and a value."""
    wrong = []
    for column in columns:
        kind = ChType.parse(column.type)
        values = rows[column.name]
        while kind.name == "Array" and pa.types.is_list(values.type):
            kind, values = ChType.parse(kind.arguments[0]), pc.list_flatten(values)
        holds = _range_of(kind)
        if holds is None or not (pa.types.is_date(values.type) or pa.types.is_timestamp(values.type)):
            continue
        least, most = _ends(values)
        for value in (least, most):
            if value is not None and not _micros(holds.first) <= value <= _micros(holds.last):
                shown = _EPOCH + dt.timedelta(microseconds=value)
                wrong.append(
                    f"{column.name} {column.type} holds {holds.first:%Y-%m-%d} to {holds.last:%Y-%m-%d}, "
                    f"not {shown if pa.types.is_timestamp(values.type) else shown.date()}"
                )
    if wrong:
        raise SqlError(
            VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE,
            f"Rows do not fit: {'; '.join(wrong)}.",
            hint="Filter them in Spark, or use a type with a wider range.",
        )


def _range_of(kind: ChType) -> _Range | None:
    if kind.name == "DateTime64" and kind.arguments and int(kind.arguments[0]) > 8:
        return _NANOSECONDS
    return _RANGES.get(kind.name)


def _ends(values: pa.ChunkedArray) -> tuple[int | None, int | None]:
    """The least and the greatest, in microseconds since 1970; None when there are only NULLs."""
    if pa.types.is_date32(values.type):
        found, unit = pc.min_max(values.cast(pa.int32())), 24 * 3600 * 1_000_000
    else:
        # Casting the type alone changes no value, whatever the time zone.
        found, unit = pc.min_max(values.cast(pa.timestamp("us")).cast(pa.int64())), 1
    least, most = found["min"].as_py(), found["max"].as_py()
    return (None, None) if least is None else (least * unit, most * unit)


def _micros(at: dt.datetime) -> int:
    return (at - _EPOCH) // dt.timedelta(microseconds=1)
