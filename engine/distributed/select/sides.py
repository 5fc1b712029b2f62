"""On the right of which IN and JOIN a table stands, and whether these are GLOBAL."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

from engine.distributed.select.model import names

_JOIN_WORDS = names("ANY ALL LEFT RIGHT INNER OUTER FULL CROSS SEMI ANTI ASOF PASTE")
_CLAUSES = names("FROM SELECT WITH PREWHERE WHERE BY HAVING QUALIFY LIMIT SETTINGS ON USING")


class Side(enum.Enum):
    """Of an IN or JOIN."""

    PLAIN = enum.auto()
    GLOBAL = enum.auto()


def sides_of(words: Sequence[str], at: int, begin: int = 0) -> list[Side]:
    """The sides, from the innermost on, that token `at` is in, of those behind token `begin`."""
    found = []
    while at > begin:
        before = at - 1
        if words[before] == "IN":
            before -= 1 + (words[before - 1] == "NOT")
            found.append(_side(words[before]))
        elif words[before] == "JOIN":
            while words[before - 1] in _JOIN_WORDS:
                before -= 1
            found.append(_side(words[before - 1]))
        elif words[before] == "," and is_between_tables(words, before):
            found.append(Side.PLAIN)
        at = _bracket_around(words, at)
    return found


def has_product(words: Sequence[str], tables: Iterable[int], begin: int) -> bool:
    """Whether one of `tables`, tokens, stands behind token `begin` on a side without GLOBAL."""
    return any(sides_of(words, at, begin)[:1] == [Side.PLAIN] for at in tables)


def is_between_tables(words: Sequence[str], comma: int) -> bool:
    """Whether the comma stands in FROM."""
    depth = 0
    for i in range(comma - 1, -1, -1):
        depth += (words[i] == ")") - (words[i] == "(")
        if depth < 0:
            return False
        if depth == 0 and (words[i] in _CLAUSES or words[i - 1 : i + 1] == ["ARRAY", "JOIN"]):
            return words[i] == "FROM"
    return False


def _side(word: str) -> Side:
    return Side.GLOBAL if word == "GLOBAL" else Side.PLAIN


def _bracket_around(words: Sequence[str], at: int) -> int:
    """The index of the bracket that is open at `at`; 0 without one."""
    depth = 0
    for i in range(at - 1, 0, -1):
        depth += (words[i] == ")") - (words[i] == "(")
        if depth < 0:
            return i
    return 0
