"""SQL user functions: what an expression says, together with the functions that it calls.

`CREATE FUNCTION f AS x -> rand() + x` puts its body in the place of every call, so whoever looks for
something in an expression has to look into the bodies, too.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.sql.cursor import Cursor
from engine.sql.tokens import literal_value


def called_in(text: str) -> list[str]:
    """Names that stand in front of a parenthesis: of functions, and a few keywords."""
    c = Cursor(text)
    behind = zip(c.tokens, c.words[1:], strict=False)
    return [literal_value(token) for token, word in behind if word == "(" and token.is_name]


def names_in(text: str) -> frozenset[str]:
    """All identifiers, quoted or not, and keywords, as they are written."""
    return frozenset(literal_value(token) for token in Cursor(text).tokens if token.is_name)


def with_bodies(text: str, functions: Mapping[str, str]) -> list[str]:
    """The text, and the bodies of all functions that are called in it and in these; `functions` are the
    CREATE texts by name."""
    found = {"": text}
    pending = [text]
    while pending:
        for name in called_in(pending.pop()):
            if name in functions and name not in found:
                body = functions[name].partition(" AS ")[2]
                found[name] = body
                pending.append(body)
    return list(found.values())
