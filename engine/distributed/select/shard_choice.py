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

_NAMES = (TokenKind.WORD, TokenKind.IDENTIFIER)
_NOT_DETERMINISTIC = ("RAND", "RAND32", "RAND64", "NOW", "GENERATEUUIDV4", "RANDCONSTANT", "TODAY")


def is_deterministic(key: str) -> bool:
    """Whether the key says the same for the same row every time."""
    return not any(word in _NOT_DETERMINISTIC for word in Cursor(key).words)


def key_columns(key: str, columns: Mapping[str, str]) -> tuple[str, ...]:
    """The columns that a sharding key uses."""
    found = {literal_value(t) for t in Cursor(key).tokens if t.kind in _NAMES}
    return tuple(name for name in columns if name in found)


def rows_of_constants(conditions: Sequence[str], wanted: Sequence[str], columns: Mapping[str, str]) -> str:
    """A FROM clause with a row for every combination of values that the conditions leave to the key's
    columns; empty where they leave some column open."""
    values: dict[str, str] = {}
    for condition in conditions:
        found = _constants(condition)
        if found is not None and found[0] in wanted:
            values.setdefault(*found)
    if not wanted or any(name not in values for name in wanted):
        return ""
    items = ", ".join(
        f"CAST(arrayJoin([{values[name]}]), {quote_string(columns[name])}) AS {quote_identifier(name)}"
        for name in wanted
    )
    # Each arrayJoin of its own: two in one SELECT multiply, as they should here.
    return f"(SELECT {items})"


def _constants(condition: str) -> tuple[str, str] | None:
    """The column, and its values with commas between."""
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
        return column, clauses.text_of(cursor, 4, len(tokens))
    if words[3] == "IN" and words[4] == "(" and words[-1] == ")":
        return column, clauses.text_of(cursor, 5, len(tokens) - 1)
    return None


def _closes_at_end(cursor: Cursor) -> bool:
    cursor.at = 0
    cursor.skip_brackets()
    closes = cursor.at == len(cursor.tokens)
    cursor.at = 0
    return closes
