"""The queries of a statement that shards execute, found in ClickHouse's resolved text."""

from __future__ import annotations

from dataclasses import dataclass

from engine.distributed.select import clauses, pushing
from engine.distributed.select.template import place_text
from engine.sql.cursor import Cursor

_ENDS = frozenset({"UNION", "EXCEPT", "INTERSECT", "SETTINGS", "FORMAT", ";"})


@dataclass(frozen=True, slots=True)
class Block:
    """One query in the resolved text, by indices of tokens; `place` is the string of its first table."""

    begin: int
    end: int
    place: int
    slot: int


def with_places(text: str, count: int) -> str:
    """The resolved text, where `null('…')` becomes the place of its slot again."""
    cursor = Cursor(text)
    replacements = []
    for at, number in places_of_slots(cursor, count):
        call = tuple(token.text for token in cursor.tokens[at - 2 : at + 2])
        replacements.append((call, place_text(number)))
    return clauses.replaced(text, replacements)


def places_of_slots(cursor: Cursor, count: int) -> list[tuple[int, int]]:
    """The tokens of the slots' strings, with the slots, in their order."""
    strings = clauses.strings_by_spaces(cursor)
    return sorted((at, number) for number in range(count) for at in strings.get(pushing.SPACES + number, ()))


def blocks_of(cursor: Cursor, places: list[tuple[int, int]]) -> list[Block]:
    """The queries whose first table is a slot, the outermost ones, in their order."""
    found = []
    for at, number in places:
        before = at - 3  # null ( '…'
        if cursor.words[before] != "FROM":
            continue
        begin = before
        while cursor.words[begin] != "SELECT":
            begin -= 1
            if cursor.words[begin] in (")", "]", "}"):
                begin = _opening(cursor, begin)
        end = at + 2
        cursor.at = end
        while cursor.at < len(cursor.words) and cursor.word not in _ENDS and cursor.word != ")":
            if not cursor.skip_brackets():
                cursor.at += 1
        found.append(Block(begin, cursor.at, at, number))
    found.sort(key=lambda one: one.begin)
    return [one for one in found if not any(o.begin < one.begin < o.end for o in found)]


def _opening(cursor: Cursor, at: int) -> int:
    depth = 0
    while True:
        depth += (cursor.words[at] in (")", "]", "}")) - (cursor.words[at] in ("(", "[", "{"))
        if depth == 0:
            return at
        at -= 1
