"""The session's current database, written before the names of dictionaries that functions ask.

What is carried out elsewhere or later has no current database. A name with a dot has its database already.
Source: ClickHouse's AddDefaultDatabaseVisitor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from engine.names import quote_identifier, quote_string
from engine.sql.edit import Edit, apply_edits
from engine.sql.tokens import Token, TokenKind, literal_value, scan

_ASKING = ("dictGet", "dictHas", "dictIsIn")
_NAMES = (TokenKind.WORD, TokenKind.IDENTIFIER)


def with_dictionary_database(sql: str, database: str, *, only: Collection[str] | None = None) -> str:
    """`sql` with `database` before each dictionary's name that has none, as in `dictGet('d', …)`; before
    those names `only`, if they are given."""
    edits: list[Edit] = []
    for name in _short_names(sql):
        if only is not None and literal_value(name) not in only:
            continue
        if name.kind is TokenKind.STRING:
            edits.append(Edit(name.start, name.end, quote_string(f"{database}.{literal_value(name)}")))
        else:
            edits.append(Edit(name.start, name.start, f"{quote_identifier(database)}."))
    return apply_edits(sql, edits)


def short_dictionary_names(sql: str) -> frozenset[str]:
    """Those without a database."""
    return frozenset(literal_value(name) for name in _short_names(sql))


def _short_names(sql: str) -> Iterator[Token]:
    if "dict" not in sql:
        return
    tokens = [token for token in scan(sql) if token.is_significant]
    for function, bracket, name, behind in zip(tokens, tokens[1:], tokens[2:], tokens[3:], strict=False):
        if bracket.text != "(" or behind.text != "," or not _asks_dictionary(function):
            continue
        is_string = name.kind is TokenKind.STRING and "." not in literal_value(name)
        if is_string or name.kind in _NAMES:
            yield name


def _asks_dictionary(function: Token) -> bool:
    return function.kind in _NAMES and literal_value(function).startswith(_ASKING)
