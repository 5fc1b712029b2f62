"""Two definitions of one object, as the server shows them: what differs, and whether it matters. Pure.

A table's indices, projections and constraints have no order that anybody could notice: a down file that makes
a removed one anew puts it behind the others, and has brought back what was there. Columns have one.
"""

from __future__ import annotations

import difflib
import re

from engine.sql import TokenKind, tokenize

_PIECES = re.compile(
    r", | (?=\(`)| (?=(?:ENGINE|PARTITION BY|PRIMARY KEY|ORDER BY|TTL|SETTINGS|AS|FROM|WHERE|GROUP BY) )"
)
"""Between two columns or clauses of a definition."""
_WITHOUT_ORDER = ("INDEX ", "PROJECTION ", "CONSTRAINT ")


def means_the_same(left: str | None, right: str | None) -> bool:
    """None: there is no such object."""
    if left is None or right is None or left == right:
        return left == right
    return _parts(left) == _parts(right)


def changes(expected: str, found: str) -> list[str]:
    """What differs between two definitions, which may have hundreds of columns: a line for each piece."""
    left, right = _PIECES.split(expected), _PIECES.split(found)
    lines = []
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if tag != "equal":
            lines += [f"  - {piece}" for piece in left[i1:i2]] + [f"  + {piece}" for piece in right[j1:j2]]
    return lines


def _parts(definition: str) -> tuple[str, list[str], list[str], str]:
    """What stands before a table's elements, those with an order, those without, and what stands behind."""
    if not definition.startswith("CREATE TABLE "):
        return definition, [], [], ""
    begin, depth = 0, 0
    elements: list[str] = []
    for token in tokenize(definition):
        if token.kind is not TokenKind.PUNCTUATION:
            continue
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if token.text == "(" and depth == 1:
            begin, opening = token.end, token.start
        elif depth == (0 if token.text == ")" else 1) and token.text in (",", ")"):
            elements.append(definition[begin : token.start].strip())
            begin = token.end
            if token.text == ")":
                break
    else:
        return definition, [], [], ""
    free = [element for element in elements if element.startswith(_WITHOUT_ORDER)]
    kept = [element for element in elements if not element.startswith(_WITHOUT_ORDER)]
    return definition[:opening], kept, sorted(free), definition[begin:]
