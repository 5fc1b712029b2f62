"""optimize_skip_unused_shards: which shards can hold rows that meet the pushed conditions.

Only conditions `column = constant` and `column IN (constants)` on every column of the sharding key count; the
slots of the constants are evaluated by ClickHouse with the key itself. Everything else means all shards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.distributed.select import clauses
from engine.names import quote_identifier, quote_string
from engine.sql.cursor import Cursor
from engine.sql.tokens import TokenKind, literal_value

IS_EXACT = "__is_exact"


def key_columns(key: str, columns: Mapping[str, str]) -> tuple[str, ...]:
    """The columns that a sharding key uses."""
    found = {literal_value(t) for t in Cursor(key).tokens if t.is_name}
    return tuple(name for name in columns if name in found)


def rows_of_constants(conditions: Sequence[str], wanted: Sequence[str], columns: Mapping[str, str]) -> str:
    """A FROM clause with a row for every combination of values that the conditions leave to the key's
    columns; empty where they leave some column open. Where `IS_EXACT` is 0 the column may equal the constant
    and not be that value: 1.15 as Decimal is 1.14 and equals 1.15; 0 equals -0, whose hash is another."""
    values: dict[str, tuple[str, ...]] = {}
    for condition in conditions:
        found = _constants(condition)
        if found is not None and found[0] in wanted:
            values.setdefault(*found)
    if not wanted or any(name not in values for name in wanted):
        return ""
    # A subquery each: two arrayJoin of the same constants in one SELECT would be one.
    lists = [", ".join(_pair(value, columns[name]) for value in values[name]) for name in wanted]
    sources = " CROSS JOIN ".join(
        f"(SELECT arrayJoin([{pairs}]) AS __v{at}) AS __t{at}" for at, pairs in enumerate(lists)
    )
    items = ", ".join(f"__v{at}.1 AS {quote_identifier(name)}" for at, name in enumerate(wanted))
    are_exact = " AND ".join(f"__v{at}.2 = 1" for at in range(len(wanted)))
    return f"(SELECT {items}, {are_exact} AS {IS_EXACT} FROM {sources})"


def _pair(value: str, type_: str) -> str:
    """The value of the column's type, and whether no other value equals the constant."""
    cast = f"CAST({value}, {quote_string(type_)})"
    is_exact = f"{cast} = {value}"
    if "Float" in type_:
        is_exact += f" AND {cast} != 0"
    return f"({cast}, ifNull({is_exact}, 0))"


def _constants(condition: str) -> tuple[str, tuple[str, ...]] | None:
    """The column, and its values."""
    cursor = Cursor(condition)
    while cursor.word == "(" and _closes_at_end(cursor):
        cursor = Cursor(clauses.text_of(cursor, 1, len(cursor.tokens) - 1))
    tokens, words = cursor.tokens, cursor.words
    if len(tokens) < 5 or words[1] != "." or not tokens[0].text.startswith("__table"):
        return None
    column, alias = literal_value(tokens[2]), tokens[0].text
    if alias in [token.text for token in tokens[3:]]:
        return None
    if words[3] == "=":
        cursor.at = 4
        if cursor.skip_to("AND", "OR"):
            return None
        return column, (clauses.text_of(cursor, 4, len(tokens)),)
    if words[3] == "IN" and words[4] == "(" and words[-1] == ")" and tokens[5].kind is not TokenKind.LITERALS:
        ranges = clauses.split(cursor, 5, len(tokens) - 1, ",")
        return column, tuple(clauses.text_of(cursor, *place) for place in ranges)
    return None


def _closes_at_end(cursor: Cursor) -> bool:
    cursor.at = 0
    cursor.skip_brackets()
    closes = cursor.at == len(cursor.tokens)
    cursor.at = 0
    return closes
