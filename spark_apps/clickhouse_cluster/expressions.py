"""SQL between a column's type and what Arrow and Spark have in its place.

Conversions that ClickHouse makes in silence are taken from it. CAST makes NULL of a text that is no UUID or
address, or is too long for a FixedString, where the column is Nullable, and rounds times before 1970 up;
Arrow has numbers for enums and IPv4, and bytes for UUID, IPv6 and numbers of 128 bits and more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.names import quote_identifier, quote_string
from spark_apps.clickhouse_cluster.target import Column
from spark_apps.clickhouse_cluster.types import INTEGERS, SIMPLE, ChType, stored_type

_A_VALUE = {
    "UUID": "00000000-0000-0000-0000-000000000000",
    "IPv4": "0.0.0.0",
    "IPv6": "::",
    "FixedString": "",
}
_MICROSECONDS = 6
"""Digits of a time in Spark."""


def select_list(columns: Sequence[Column], *, binary: frozenset[str] = frozenset()) -> str:
    """Columns under their names; those that are `binary` as their bytes."""
    return ", ".join(
        f"{name if column.name in binary else read_expression(name, column.type)} AS {name}"
        for column in columns
        if (name := quote_identifier(column.name))
    )


def read_expression(value: str, text: str) -> str:
    """SQL that gives `value`, of this ClickHouse type, in a form that Arrow and Spark have."""
    text = stored_type(text)
    kind = ChType.parse(text)
    if kind.name in ("DateTime", "DateTime64"):
        return f"toDateTime64({value}, {_MICROSECONDS}, 'UTC')"
    if kind.name == "Date":
        return f"toDate32({value})"
    if kind.name == "UInt64":
        return f"toDecimal128({value}, 0)"
    if kind.name in ("Array", "Map"):
        return _within(value, kind, read_expression)
    if kind.name in SIMPLE or (kind.decimal is not None and not kind.is_wide_number):
        is_low_cardinality = text.startswith("LowCardinality")
        nullable = "Nullable(String)" if kind.is_nullable else "String"
        return f"CAST({value}, '{nullable}')" if is_low_cardinality and kind.name == "String" else value
    if kind.is_variant:  # toString makes an empty text of NULL
        return f"CAST({value}, 'Nullable(String)')"
    return f"toString({value})"


def write_expression(value: str, text: str) -> str:
    """SQL that turns `value`, as Spark has it, into this ClickHouse type; fails for what does not fit."""
    text = stored_type(text)
    how = "accurateCast" if _has_numbers(ChType.parse(text)) else "CAST"
    return f"{how}({_unchanged(value, text)}, {quote_string(text)})"


def _unchanged(value: str, text: str) -> str:
    """SQL of which the cast to this type changes nothing in silence, or fails."""
    kind = ChType.parse(text)
    if kind.name in ("Array", "Map"):
        return _within(value, kind, _unchanged)
    if kind.name in _A_VALUE and kind.is_nullable:
        given = f"({kind.arguments[0]})" if kind.arguments else ""
        parsed = f"CAST(ifNull({value}, '{_A_VALUE[kind.name]}'), '{kind.name}{given}')"
        return f"if(isNull({value}), NULL, {parsed})"
    if kind.name == "DateTime64" and (lost := _MICROSECONDS - int(kind.arguments[0])) > 0:
        return f"{value} - toIntervalMicrosecond(positiveModulo(toUnixTimestamp64Micro({value}), {10**lost}))"
    if kind.name == "Float32":  # accurateCast would refuse digits that a Float32 has not
        return f"toFloat32({value})"
    return value


def _has_numbers(kind: ChType) -> bool:
    if kind.name in ("Array", "Map"):
        return any(_has_numbers(ChType.parse(argument)) for argument in kind.arguments)
    return kind.name in INTEGERS or kind.decimal is not None


def _within(value: str, kind: ChType, of: Callable[[str, str], str]) -> str:
    """An array or map with `of` of all that it is made of, or itself where that changes nothing."""
    if kind.name == "Array":
        inner = of("x", kind.arguments[0])
        return value if inner == "x" else f"arrayMap(x -> {inner}, {value})"
    key, item = of("k", kind.arguments[0]), of("v", kind.arguments[1])
    return value if (key, item) == ("k", "v") else f"mapApply((k, v) -> ({key}, {item}), {value})"
