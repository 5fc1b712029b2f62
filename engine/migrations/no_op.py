"""`SELECT 1;`: how other tools' migrations say that there is nothing to do. Pure.

Their drivers refuse a text without statements, so this stands in down files of what cannot be undone, and in
files that were emptied later. It reads no table: leaving it out changes nothing. Any other SELECT may be a
check, which no queue carries out.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.sql import Token, TokenKind

_LITERALS = frozenset({TokenKind.NUMBER, TokenKind.STRING})
_NAMES = frozenset({TokenKind.WORD, TokenKind.IDENTIFIER})


def is_no_op(words: Sequence[Token]) -> bool:
    """Whether a statement of these significant tokens is a SELECT of one literal, `AS` something or not."""
    if len(words) not in (2, 4) or words[0].text.upper() != "SELECT":
        return False
    if words[1].kind not in _LITERALS and words[1].text.upper() != "NULL":
        return False
    return len(words) == 2 or (words[2].text.upper() == "AS" and words[3].kind in _NAMES)
