"""The session's current database, written before the names of dictionaries that functions ask.

An ALTER is carried out by connections that have no current database, on every replica. Source: ClickHouse's
AddDefaultDatabaseVisitor; a name with a dot has its database already.
"""

from __future__ import annotations

from engine.names import quote_identifier, quote_string
from engine.sql.edit import Edit, apply_edits
from engine.sql.tokens import Token, TokenKind, literal_value, scan

_ASKING = ("dictGet", "dictHas", "dictIsIn")
_NAMES = (TokenKind.WORD, TokenKind.IDENTIFIER)


def with_dictionary_database(sql: str, database: str) -> str:
    """`sql` with `database` before each dictionary's name that has none, as in `dictGet('d', …)`."""
    tokens = [token for token in scan(sql) if token.is_significant]
    edits: list[Edit] = []
    for function, bracket, name, behind in zip(tokens, tokens[1:], tokens[2:], tokens[3:], strict=False):
        if bracket.text != "(" or behind.text != "," or not _asks_dictionary(function):
            continue
        if name.kind is TokenKind.STRING and "." not in (told := literal_value(name)):
            edits.append(Edit(name.start, name.end, quote_string(f"{database}.{told}")))
        elif name.kind in _NAMES:
            edits.append(Edit(name.start, name.start, f"{quote_identifier(database)}."))
    return apply_edits(sql, edits)


def _asks_dictionary(function: Token) -> bool:
    return function.kind in _NAMES and literal_value(function).startswith(_ASKING)
