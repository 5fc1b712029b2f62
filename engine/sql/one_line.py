"""A statement as one readable line."""

from __future__ import annotations

import re

from engine.sql.tokens import scan

_IS_ONE_LINE = re.compile(r"[^\s;#/-]++(?: [^\s;#/-]++)*+\Z", re.ASCII)
"""Nothing that white space beyond single spaces, a comment or a last semicolon could begin with."""


def one_line(sql: str) -> str:
    """`sql` on one line: each run of white space and comments is one space, the last semicolons go.

    Literals and quoted names stay byte for byte, so a line break within one stays too.
    """
    if sql.isascii() and _IS_ONE_LINE.match(sql):
        return sql  # the usual case: no need to take it apart
    pieces: list[str] = []
    gap = False
    for token in scan(sql):
        if token.is_significant:
            if gap and pieces:
                pieces.append(" ")
            pieces.append(token.text)
            gap = False
        else:
            gap = True
    while pieces and (pieces[-1] == ";" or pieces[-1] == " "):
        pieces.pop()
    return "".join(pieces)
