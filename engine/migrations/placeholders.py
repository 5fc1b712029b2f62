"""Files in which another tool fills something in before it sends them. Pure.

    ${DATABASE}     goose between `-- +goose ENVSUB ON` and `OFF`, there also as $DATABASE; Flyway
    {{ .Prefix }}   Go's templates and Jinja, as `{% if … %}`
    {prefix}        programs with a list of replacements; `{name:Type}` is a query parameter, which is SQL

Here the text is sent as it stands. Nothing of this can be SQL outside of quotes; to say so beats a syntax
error that names a character. In a string it may be meant, and in a quoted name nobody means it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from engine.sql import Token, TokenKind

_BARE = re.compile(r"\$\{[^}\n]*\}?|\{\{[^\n]*?(?:\}\}|$)|\{%[^\n]*?(?:%\}|$)|\{\s*\w+\s*\}", re.MULTILINE)
_IN_A_NAME = re.compile(r"\$\{\w+[^}\n]*\}|\{\{[^\n]*?\}\}")
_OF_ENVSUB = re.compile(r"\$(?:\{\w+[^}\n]*\}|[A-Za-z_]\w*)")
_ENVSUB = re.compile(r"--[ \t]*\+goose[ \t]+envsub[ \t]+(on|off)\b", re.IGNORECASE)
_SHOWN = 60


def where_filled_in(text: str, tokens: Iterable[Token]) -> tuple[int, str] | None:
    """The line of the first placeholder, and what to do; None where there is none."""
    is_envsub = False
    for token in tokens:
        if token.kind is TokenKind.COMMENT:
            if switch := _ENVSUB.match(token.text):
                is_envsub = switch[1].lower() == "on"
        elif found := _found(text, token, is_envsub=is_envsub):
            return text.count("\n", 0, found.start()) + 1, (
                f"`{found[0][:_SHOWN]}` is filled in by another tool; here the text is sent as it stands: "
                "write what it stands for"
            )
    return None


def _found(text: str, token: Token, *, is_envsub: bool) -> re.Match[str] | None:
    if token.text in ("$", "{"):
        return _BARE.match(text, token.start)
    if is_envsub and token.is_significant:
        return _OF_ENVSUB.search(text, token.start, token.end)
    if token.kind is TokenKind.IDENTIFIER:
        return _IN_A_NAME.search(text, token.start, token.end)
    return None
