"""Files of goose and dbmate, which hold both directions, under a name that promises one. Pure.

    -- +goose Down        (goose: in capitals or not, with any blanks)
    -- migrate:down       (dbmate)

To golang-migrate's grammar these lines are comments. A file that was renamed and not divided would be run
whole: what it makes is dropped again at once, and on the way up nobody expects that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from engine.sql import Token, TokenKind

_MARKER = re.compile(r"--[ \t]*(?:\+goose[ \t]+(up|down)[ \t\r]*\Z|migrate:(up|down)\b)", re.IGNORECASE)


def where_it_turns(text: str, tokens: Iterable[Token], direction: str) -> tuple[int, str] | None:
    """The line of the marker behind which statements of the other direction follow, and what to do; None
    where there are none. `direction` is the file's: `up` or `down`."""
    marker: Token | None = None
    for token in tokens:
        if token.kind is TokenKind.COMMENT:
            if found := _MARKER.match(token.text):
                marker = token if (found[1] or found[2]).lower() != direction else None
        elif marker is not None and token.is_significant:
            return text.count("\n", 0, marker.start) + 1, (
                f"what follows `{marker.text.strip()}` is the other direction's, and would be run with what "
                "stands before it: make two files of this one"
            )
    return None
