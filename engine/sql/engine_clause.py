"""Where a statement names its engine, in tokens: in quotes or not, with `=` or without."""

from __future__ import annotations

from collections.abc import Sequence

from engine.sql.tokens import Token, TokenKind, literal_value


def engine_at(tokens: Sequence[Token], engine: str) -> int | None:
    """The index of the engine's name in the clause ENGINE; None if there is none of that name."""
    before = ""
    for at, token in enumerate(tokens):
        if not token.is_significant or (token.text == "=" and before == "ENGINE"):
            continue
        if before == "ENGINE" and literal_value(token) == engine:
            return at
        before = token.text.upper()
    return None


def behind_engine(tokens: Sequence[Token], engine: str) -> list[Token]:
    """The significant tokens behind the engine's name, its arguments first."""
    at = engine_at(tokens, engine)
    return [] if at is None else [token for token in tokens[at + 1 :] if token.is_significant]


def string_arguments(behind: Sequence[Token]) -> list[str]:
    """The values of the strings that open the argument list that `behind` begins with."""
    strings: list[str] = []
    for token in behind[1:] if behind and behind[0].text == "(" else ():
        if token.kind is TokenKind.STRING:
            strings.append(literal_value(token))
        elif token.text != ",":
            break
    return strings
