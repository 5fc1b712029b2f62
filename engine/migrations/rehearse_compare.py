"""Two definitions of one object, as the server shows them: what differs, and whether it matters. Pure.

A table's indices, projections and constraints have no order that anybody could notice: a down file that makes
a removed one anew puts it behind the others, and has brought back what was there. Columns have one.
"""

from __future__ import annotations

import difflib
import re

from engine.sql import TokenKind, tokenize

_BOUNDARY = re.compile(
    r", | (?=\(`)| (?=(?:ENGINE|PARTITION BY|PRIMARY KEY|ORDER BY|TTL|SETTINGS|AS|FROM|WHERE|GROUP BY) )"
)
"""Between two columns or clauses of a definition, outside of the brackets of a type, a codec or a call."""
_LISTS = ("(`", "(SELECT ")
"""How a bracket begins that holds columns or clauses: of a table, of a subquery."""
_NAME = re.compile(r"`[^`]*`|\S+")
_WITHOUT_ORDER = ("INDEX ", "PROJECTION ", "CONSTRAINT ")


def means_the_same(left: str | None, right: str | None) -> bool:
    """None: there is no such object."""
    if left is None or right is None or left == right:
        return left == right
    return _parts(left) == _parts(right)


def changes(expected: str, found: str) -> list[str]:
    """What differs between two definitions, which may have hundreds of columns: a line for each piece. One
    that is there in both, at another place, is shown with the piece before it, or not at all where its place
    means nothing."""
    left, right = _pieces(expected), _pieces(found)
    gone, come = [], []
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if tag != "equal":
            gone.append(range(i1, i2))
            come.append(range(j1, j2))
    moved = {left[at] for span in gone for at in span} & {right[at] for span in come for at in span}

    meant_nothing = {piece for piece in moved if piece.startswith(_WITHOUT_ORDER)}

    def line(sign: str, pieces: list[str], at: int) -> str:
        before = _NAME.match(pieces[at - 1]) if pieces[at] in moved and at else None
        return f"  {sign} {pieces[at]}" + (f"   (behind {before[0]})" if before else "")

    return [
        shown
        for before, after in zip(gone, come, strict=True)
        for shown in [
            *(line("-", left, at) for at in before if left[at] not in meant_nothing),
            *(line("+", right, at) for at in after if right[at] not in meant_nothing),
        ]
    ]


def _pieces(definition: str) -> list[str]:
    inside = _insides(definition)
    pieces, begin = [], 0
    for boundary in _BOUNDARY.finditer(definition):
        if not inside[boundary.start()]:
            pieces.append(definition[begin : boundary.start()])
            begin = boundary.end()
    return [_without_list(piece) for piece in [*pieces, definition[begin:]]]


def _without_list(piece: str) -> str:
    """Without the bracket of the list that it begins or ends: any column may be the first or the last."""
    piece = piece[piece.startswith("(`") :]
    return piece.removesuffix(")") if piece.count(")") > piece.count("(") else piece


def _insides(definition: str) -> bytearray:
    """Of each character, whether it stands in a bracket that is no list, or in a quoted text or name."""
    inside = bytearray(len(definition))
    brackets: list[bool] = []
    for token in tokenize(definition):
        if token.kind is TokenKind.PUNCTUATION and token.text == "(":
            brackets.append(not definition.startswith(_LISTS, token.start))
        elif token.kind is TokenKind.PUNCTUATION and token.text == ")" and brackets:
            brackets.pop()
        if any(brackets) or token.kind in (TokenKind.STRING, TokenKind.IDENTIFIER):
            inside[token.start : token.end] = b"\1" * len(token.text)
    return inside


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
