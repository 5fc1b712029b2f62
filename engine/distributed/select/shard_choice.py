"""optimize_skip_unused_shards: which shards can hold rows that meet the pushed conditions.

Only conditions `column = constant` and `column IN constants` on every column of the sharding key count, also
where they are joined by AND and OR; ClickHouse evaluates the slots of the constants with the key itself.
Everything else means all shards.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.distributed.select import clauses
from engine.names import quote_identifier, quote_string
from engine.sql.cursor import Cursor
from engine.sql.tokens import TokenKind, literal_value

IS_EXACT = "__is_exact"
_VALUE = "__value"
_MOST_OF_TUPLE = 100
"""Each element is written as one of the whole."""


def key_columns(key: str, columns: Mapping[str, str]) -> tuple[str, ...]:
    """The columns that a sharding key uses."""
    found = {literal_value(t) for t in Cursor(key).tokens if t.is_name}
    return tuple(name for name in columns if name in found)


def rows_of_constants(conditions: Sequence[str], wanted: Sequence[str], columns: Mapping[str, str]) -> str:
    """A FROM clause with a row for every combination of values that the conditions leave to the key's
    columns; empty where they leave some column open. Where `IS_EXACT` is 0 the column may equal the constant
    and not be that value: 1.15 as Decimal is 1.14 and equals 1.15; 0 equals -0, whose hash is another."""
    values: dict[str, _Constants] = {}
    for condition in conditions:
        for column, constants in _of_condition(Cursor(condition)).items():
            if column in wanted:
                values.setdefault(column, constants)
    if not wanted or any(name not in values for name in wanted):
        return ""
    # A subquery each: two arrayJoin of the same constants in one SELECT would be one.
    arrays = [values[name].pairs(columns[name]) for name in wanted]
    sources = " CROSS JOIN ".join(
        f"(SELECT arrayJoin({array}) AS __v{at}) AS __t{at}" for at, array in enumerate(arrays)
    )
    items = ", ".join(f"__v{at}.1 AS {quote_identifier(name)}" for at, name in enumerate(wanted))
    are_exact = " AND ".join(f"__v{at}.2 = 1" for at in range(len(wanted)))
    return f"(SELECT {items}, {are_exact} AS {IS_EXACT} FROM {sources})"


@dataclass(frozen=True, slots=True)
class _Constants:
    """The values that a condition leaves to a column, as SQL: single ones, and arrays of them."""

    single: tuple[str, ...] = ()
    arrays: tuple[str, ...] = ()

    def __or__(self, other: _Constants) -> _Constants:
        return _Constants(self.single + other.single, self.arrays + other.arrays)

    def pairs(self, type_: str) -> str:
        """An array of `_pair`. What is not Nullable is no NULL, whatever a set has."""
        single, arrays = self.single, self.arrays
        if "Nullable(" not in type_:
            single = tuple(value for value in single if value != "NULL")
            arrays = tuple(f"arrayFilter({_VALUE} -> {_VALUE} IS NOT NULL, {array})" for array in arrays)
        listed = f"[{', '.join(_pair(value, type_) for value in single)}]"
        of_arrays = [f"arrayMap({_VALUE} -> {_pair(_VALUE, type_)}, {array})" for array in arrays]
        return f"arrayConcat({', '.join([listed, *of_arrays])})" if of_arrays else listed


def _pair(value: str, type_: str) -> str:
    """The value of the column's type, and whether no other value equals the constant."""
    cast = f"CAST({value}, {quote_string(type_)})"
    is_exact = f"{cast} = {value}"
    if "Float" in type_:
        is_exact += f" AND {cast} != 0"
    return f"({cast}, ifNull({is_exact}, 0))"


def _of_condition(cursor: Cursor) -> Mapping[str, _Constants]:
    """By column, what the condition leaves to it; nothing of columns that it leaves open."""
    while cursor.word == "(" and _closes_at_end(cursor):
        cursor = Cursor(clauses.text_of(cursor, 1, len(cursor.tokens) - 1))
    for separator in ("OR", "AND"):
        ranges = clauses.split(cursor, 0, len(cursor.tokens), separator)
        if len(ranges) > 1:
            parts = [_of_condition(Cursor(clauses.text_of(cursor, *place))) for place in ranges]
            if separator == "AND":
                return {column: part[column] for part in reversed(parts) for column in part}
            common = set(parts[0]).intersection(*parts[1:])
            return {column: functools.reduce(operator.or_, (p[column] for p in parts)) for column in common}
    return _of_comparison(cursor)


def _of_comparison(cursor: Cursor) -> Mapping[str, _Constants]:
    words, end = cursor.words, len(cursor.tokens)
    sides = clauses.split(cursor, 0, end, "=")
    if len(sides) == 2:
        for column, constant in (sides, reversed(sides)):
            if (name := _column(cursor, *column, of=end)) is not None:
                return {name: _Constants((clauses.text_of(cursor, *constant),))}
    at = 3 + (words[3:4] == ["GLOBAL"])
    name = _column(cursor, 0, 3, of=end)
    if name is None or words[at : at + 1] != ["IN"]:
        return {}
    found = _of_set(cursor, at + 1)
    return {name: found} if found is not None else {}


def _column(cursor: Cursor, begin: int, end: int, *, of: int) -> str | None:
    """The column that stands there alone, if the rest of the tokens up to `of` has no other of the table."""
    tokens = cursor.tokens
    if end - begin != 3 or cursor.words[begin + 1] != "." or not tokens[begin].text.startswith("__table"):
        return None
    others = [tokens[at].text for at in range(of) if at != begin]
    return None if tokens[begin].text in others else literal_value(tokens[begin + 2])


def _of_set(cursor: Cursor, at: int) -> _Constants | None:
    """The right side of IN, which begins at token `at`. A set that is no literal stands there as
    `_CAST(value, type)`, in which a tuple is written in brackets or as a call."""
    tokens, words, end = cursor.tokens, cursor.words, len(cursor.tokens)
    if at + 1 >= end or words[-1] != ")":
        return None
    if words[at] == "(":
        if tokens[at + 1].kind is TokenKind.LITERALS:
            return None
        return _Constants(_texts(cursor, at + 1, end - 1))
    if tokens[at].text != "_CAST" or len(parts := clauses.split(cursor, at + 2, end - 1, ",")) != 2:
        return None
    whole, (begin, behind) = clauses.text_of(cursor, at, end), parts[0]
    type_ = literal_value(tokens[parts[1][0]])
    if type_.startswith("Array("):
        return _Constants(arrays=(whole,))
    if type_.startswith("Tuple("):
        begin += words[begin] == "TUPLE"
        texts = _texts(cursor, begin + 1, behind - 1)
        if len(texts) > _MOST_OF_TUPLE:
            return None
        return _Constants(
            tuple("NULL" if text == "NULL" else f"({whole}).{n}" for n, text in enumerate(texts, start=1))
        )
    return _Constants((whole,))


def _texts(cursor: Cursor, begin: int, end: int) -> tuple[str, ...]:
    return tuple(clauses.text_of(cursor, *place) for place in clauses.split(cursor, begin, end, ","))


def _closes_at_end(cursor: Cursor) -> bool:
    cursor.at = 0
    cursor.skip_brackets()
    closes = cursor.at == len(cursor.tokens)
    cursor.at = 0
    return closes
