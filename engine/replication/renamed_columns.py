"""Which columns the commands of a mutation rename. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from engine.sql.tokens import Token, TokenKind, literal_value, scan


def renamed_columns(commands: str) -> dict[str, str]:
    """Old name to new, of all `RENAME COLUMN [IF EXISTS] a TO b` in the commands of a mutation."""
    tokens = [token for token in scan(commands) if token.is_significant]
    renames: dict[str, str] = {}
    words = [token.text.upper() if token.kind is TokenKind.WORD else "" for token in tokens]
    at = 0
    while at + 4 < len(tokens):
        if words[at : at + 2] != ["RENAME", "COLUMN"]:
            at += 1
            continue
        name_at = at + 4 if words[at + 2 : at + 4] == ["IF", "EXISTS"] else at + 2
        old, at = _column_name(tokens, name_at)
        if at < len(tokens) and words[at] == "TO":
            new, at = _column_name(tokens, at + 1)
            renames[old] = new
    return renames


def _column_name(tokens: Sequence[Token], at: int) -> tuple[str, int]:
    """The name that begins at `at`, possibly of a nested column (`n.a`), and where it ends."""
    name = _plain(tokens[at]) if at < len(tokens) else ""
    at += 1
    while at + 1 < len(tokens) and tokens[at].text == ".":
        name += "." + _plain(tokens[at + 1])
        at += 2
    return name, at


def _plain(token: Token) -> str:
    return literal_value(token) if token.kind is TokenKind.IDENTIFIER else token.text
