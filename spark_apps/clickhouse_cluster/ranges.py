"""Values that a column cannot hold. A server would store others in their place, and say nothing.

Integers into integers need no such check: chDB's `accurateCast` refuses them. It does not look at digits of
decimals, and Float32 makes infinity of what is too large. Source: ClickHouse's documentation of Date, Date32,
DateTime, DateTime64, Decimal and Float.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa

from engine.errors import SqlError
from spark_apps.clickhouse_cluster.target import Column
from spark_apps.clickhouse_cluster.types import ChType

VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE = 321
_EPOCH = dt.datetime(1970, 1, 1)
_Number = int | float | Decimal
_WHOLE_NUMBERS_OF_DOUBLES = 2**53
"""Up to here each is a Float64 of its own."""
_INFINITE_FLOAT32 = 2**128 - 2**103
"""The least that is rounded to infinity."""


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
    """Look at these columns. Raises SqlError 321 that names the column and a value."""
    wrong = []
    for column in columns:
        for kind, values in _simple(ChType.parse(column.type), rows[column.name]):
            is_day = pa.types.is_date(values.type)
            if is_day or pa.types.is_timestamp(values.type):
                wrong += [f"{column.name} {column.type} {text}" for text in _wrong_times(kind, values)]
            elif (limit := _limit(kind, values.type)) is not None:
                wrong += [
                    f"{column.name} {column.type} cannot hold {value}"
                    for value in _ends_of_numbers(values)
                    if not -limit < value < limit
                ]
    if wrong:
        raise SqlError(
            VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE,
            f"Rows do not fit: {'; '.join(wrong)}.",
            hint="Filter them in Spark, or use a type with a wider range.",
        )


def _simple(kind: ChType, values: pa.ChunkedArray) -> Iterator[tuple[ChType, pa.ChunkedArray]]:
    """The values, or what arrays and maps are made of."""
    import pyarrow.compute as pc  # takes longer to load than all the rest: only where rows are

    if kind.name == "Array" and pa.types.is_list(values.type):
        yield from _simple(ChType.parse(kind.arguments[0]), pc.list_flatten(values))
    elif kind.name == "Map" and pa.types.is_map(values.type):
        keys = pa.chunked_array([chunk.keys for chunk in values.chunks], values.type.key_type)
        items = pa.chunked_array([chunk.items for chunk in values.chunks], values.type.item_type)
        for argument, some in zip(kind.arguments, (keys, items), strict=True):
            yield from _simple(ChType.parse(argument), some)
    else:
        yield kind, values


def _wrong_times(kind: ChType, values: pa.ChunkedArray) -> Iterator[str]:
    holds = _range_of(kind)
    if holds is None:
        return
    for value in _ends_of_times(values):
        if not _micros(holds.first) <= value <= _micros(holds.last):
            shown = _EPOCH + dt.timedelta(microseconds=value)
            yield (
                f"holds {holds.first:%Y-%m-%d} to {holds.last:%Y-%m-%d}, "
                f"not {shown if pa.types.is_timestamp(values.type) else shown.date()}"
            )


def _range_of(kind: ChType) -> _Range | None:
    if kind.name == "DateTime64" and kind.arguments and int(kind.arguments[0]) > 8:
        return _NANOSECONDS
    return _RANGES.get(kind.name)


def _ends_of_times(values: pa.ChunkedArray) -> list[int]:
    """The least and the greatest, in microseconds since 1970, if there are any."""
    import pyarrow.compute as pc

    if pa.types.is_date32(values.type):
        found, unit = pc.min_max(values.cast(pa.int32())), 24 * 3600 * 1_000_000
    else:
        # Casting the type alone changes no value, whatever the time zone.
        found, unit = pc.min_max(values.cast(pa.timestamp("us")).cast(pa.int64())), 1
    return [end.as_py() * unit for end in found.values() if end.is_valid]


def _limit(kind: ChType, given: pa.DataType) -> int | None:
    """What the amount of a value has to be below, where something given as this may be above."""
    if kind.decimal is not None:
        digits, scale = kind.decimal
        return int(10 ** (digits - scale))
    if kind.name == "Float64" and pa.types.is_int64(given):
        return _WHOLE_NUMBERS_OF_DOUBLES + 1
    return _INFINITE_FLOAT32 if kind.name == "Float32" and pa.types.is_float64(given) else None


def _ends_of_numbers(values: pa.ChunkedArray) -> list[_Number]:
    """The least and the greatest that are finite, if there are any."""
    import pyarrow.compute as pc

    if pa.types.is_float64(values.type):
        values = values.filter(pc.is_finite(values))
    return [end.as_py() for end in pc.min_max(values).values() if end.is_valid]


def _micros(at: dt.datetime) -> int:
    return (at - _EPOCH) // dt.timedelta(microseconds=1)
