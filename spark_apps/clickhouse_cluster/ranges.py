"""Values that a column cannot hold. A server would store others in their place, and say nothing.

Integers into integers need no such check: chDB's `accurateCast` refuses them. It does not look at digits of
decimals, Float32 makes infinity of what is too large, an enum takes "1" for the name with that number, and an
array that is NULL within another becomes an empty one. Source: ClickHouse's documentation of Date, Date32,
DateTime, DateTime64, Decimal and Float.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa

from engine.errors import Code, SqlError
from engine.names import TableName
from engine.sql.tokens import literal_value, tokenize
from spark_apps.clickhouse_cluster.numbers_in_text import first_that_does_not_fit
from spark_apps.clickhouse_cluster.target import Column
from spark_apps.clickhouse_cluster.types import ChType
from spark_apps.clickhouse_cluster.years import FEW_YEARS, Years

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
_RANGES = {
    "Date": _Range(_EPOCH, _EPOCH + dt.timedelta(days=2**16 - 1) + _END_OF_DAY),
    "DateTime": _Range(_EPOCH, _EPOCH + dt.timedelta(seconds=2**32) - dt.timedelta(microseconds=1)),
}
_OF_64_BITS = {8: dt.datetime(4892, 10, 7, 21, 52, 48), 9: dt.datetime(2262, 4, 11, 23, 47, 16)}
"""Where 64 bits end that count so small parts of a second; with fewer digits years end before."""


def require_values(
    rows: pa.Table, columns: Sequence[Column], table: TableName, years: Years = FEW_YEARS
) -> None:
    """Look at these columns, and into their arrays and maps. `years` are those of Date32 and DateTime64.

    Raises SqlError, which names the column: 349 for NULL where there can be none, 691 for no name of an enum,
    321 for what is out of range.
    """
    wrong = []
    for column in columns:
        for kind, values in _parts(ChType.parse(column.type), rows[column.name]):
            if values.null_count and not kind.is_nullable:
                raise _null(column, values.null_count, table)
            if kind.name in ("Enum8", "Enum16"):
                _require_names(kind, values, column)
            wrong += [f"{column.name} {column.type} {text}" for text in _out_of_range(kind, values, years)]
    if wrong:
        raise SqlError(
            Code.VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE,
            f"Rows do not fit: {'; '.join(dict.fromkeys(wrong))}.",
            hint="Filter them in Spark, or use a type with a wider range.",
        )


def _null(column: Column, count: int, table: TableName) -> SqlError:
    where = "rows" if ChType.parse(column.type).name not in ("Array", "Map") else "values"
    return SqlError(
        Code.CANNOT_INSERT_NULL_IN_ORDINARY_COLUMN,
        f"{column.name} {column.type} of {table} takes no NULL there, and {count} {where} have it.",
        hint="Filter or fill them in Spark, or make the column Nullable.",
    )


def _parts(kind: ChType, values: pa.ChunkedArray) -> Iterator[tuple[ChType, pa.ChunkedArray]]:
    """The values, and what arrays and maps are made of."""
    import pyarrow.compute as pc  # takes longer to load than all the rest: only where rows are

    yield kind, values
    if kind.name == "Array" and pa.types.is_list(values.type):
        yield from _parts(ChType.parse(kind.arguments[0]), pc.list_flatten(values))
    elif kind.name == "Map" and pa.types.is_map(values.type):
        # Keys and items of a map are those of all rows that lie in memory; a list's are its own.
        entry = pa.struct([("key", values.type.key_type), ("value", values.type.item_type)])
        entries = pc.list_flatten(values.cast(pa.list_(entry)))
        for number, argument in enumerate(kind.arguments):
            yield from _parts(ChType.parse(argument), pc.struct_field(entries, number))


def _require_names(kind: ChType, values: pa.ChunkedArray, column: Column) -> None:
    names = {literal_value(tokenize(argument)[0]) for argument in kind.arguments}
    others = sorted({str(name) for name in values.unique().to_pylist() if name is not None} - names)
    if others:
        raise SqlError(
            Code.UNKNOWN_ELEMENT_OF_ENUM,
            f"{column.name} {column.type} has no name {', '.join(map(repr, others[:5]))}.",
        )


def _out_of_range(kind: ChType, values: pa.ChunkedArray, years: Years) -> Iterator[str]:
    if kind.is_wide_number and (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        if (text := first_that_does_not_fit(kind, values)) is not None:
            yield f"cannot hold the number {text[:100]!r}"
    elif pa.types.is_date(values.type) or pa.types.is_timestamp(values.type):
        yield from _wrong_times(kind, values, years)
    elif (limit := _limit(kind, values.type)) is not None:
        for value in _ends_of_numbers(values):
            if not -limit < value < limit:
                yield f"cannot hold {value}"


def _wrong_times(kind: ChType, values: pa.ChunkedArray, years: Years) -> Iterator[str]:
    holds = _range_of(kind, years)
    if holds is None:
        return
    for value in _ends_of_times(values):
        if not _micros(holds.first) <= value <= _micros(holds.last):
            yield (
                f"holds {holds.first.date()} to {holds.last.date()}, "
                f"not {_shown(value, is_day=pa.types.is_date(values.type))}"
            )


def _shown(micros: int, *, is_day: bool) -> str:
    """Spark has years that Python has not."""
    try:
        at = _EPOCH + dt.timedelta(microseconds=micros)
    except OverflowError:
        return f"{micros // 1_000_000} seconds after 1970"
    return str(at.date() if is_day else at)


def _range_of(kind: ChType, years: Years) -> _Range | None:
    if kind.name not in ("Date32", "DateTime64"):
        return _RANGES.get(kind.name)
    last = dt.datetime(years.last, 12, 31) + _END_OF_DAY
    if kind.name == "DateTime64" and kind.arguments:
        last = min(last, _OF_64_BITS.get(int(kind.arguments[0]), last))
    is_short = last.year < 2299
    return _Range(dt.datetime(FEW_YEARS.first if is_short else years.first, 1, 1), last)


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
