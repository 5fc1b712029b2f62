"""SET, read back: a session has to know what it was set to."""

from __future__ import annotations

from engine.sql.tokens import Token, TokenKind, literal_value, tokenize


def settings_of_set(sql: str) -> dict[str, str]:
    """`SET a = 1, b = 'x'` as a mapping of texts. What is no `name = value` is left out."""
    tokens = [token for token in tokenize(sql) if token.is_significant and token.text != ";"]
    settings: dict[str, str] = {}
    for clause in _split(tokens[1:]):
        if len(clause) >= 3 and clause[1].text == "=":
            settings[literal_value(clause[0])] = _value(clause[2:])
        elif len(clause) == 1 and clause[0].kind is TokenKind.WORD:
            settings[clause[0].text] = "1"
    return settings


def _split(tokens: list[Token]) -> list[list[Token]]:
    """At the commas outside brackets."""
    clauses: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        if token.kind is TokenKind.PUNCTUATION:
            depth += (token.text in "([{") - (token.text in ")]}")
            if token.text == "," and depth == 0:
                clauses.append([])
                continue
        clauses[-1].append(token)
    return clauses


def _value(tokens: list[Token]) -> str:
    if len(tokens) == 1:
        return literal_value(tokens[0])
    return "".join(token.text for token in tokens)
