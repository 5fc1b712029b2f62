"""Clauses of a query in ClickHouse's own resolved text, found on tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.distributed.select.model import names
from engine.sql.cursor import Cursor
from engine.sql.tokens import TokenKind, literal_value

_ENDS = names(
    "PREWHERE WHERE GROUP HAVING WINDOW QUALIFY ORDER LIMIT OFFSET FETCH SETTINGS UNION INTERSECT INTERPOLATE"
)


_WITHOUT_KEYS = names("TOTALS ROLLUP CUBE")
_OPERATORS = names("UNION EXCEPT INTERSECT")
_BEHIND_OPERATOR = names("ALL DISTINCT SELECT WITH FROM")


@dataclass(frozen=True, slots=True)
class Clause:
    """`begin` and `end` are indices of tokens, behind the keyword and behind the last token."""

    keyword: str
    begin: int
    end: int


def is_set_operator(words: Sequence[str], at: int) -> bool:
    """UNION, EXCEPT or INTERSECT between two SELECTs, and not the EXCEPT of `* EXCEPT (…)`."""
    behind = at + 1
    while words[behind : behind + 1] == ["("]:
        behind += 1
    return words[at] in _OPERATORS and behind < len(words) and words[behind] in _BEHIND_OPERATOR


def select_of(cursor: Cursor, at: int) -> int:
    """The first token of the SELECT that token `at` belongs to; -1 without one."""
    words = cursor.words
    begins = [0]
    for index in range(at):
        if words[index] in ("(", "[", "{"):
            begins.append(index + 1)
        elif words[index] in (")", "]", "}") and len(begins) > 1:
            begins.pop()
    for begin in reversed(begins):
        start, is_select = begin, False
        cursor.at = begin
        while cursor.at < len(words) and words[cursor.at] not in (")", "]", "}"):
            if is_set_operator(words, cursor.at):
                if cursor.at > at:
                    break
                start, is_select = cursor.at + 1, False
            is_select = is_select or words[cursor.at] == "SELECT"
            if not cursor.skip_brackets():
                cursor.at += 1
        if is_select:
            return start
    return -1


def strings_by_spaces(cursor: Cursor) -> Mapping[int, Sequence[int]]:
    """The tokens of all strings, by the number of spaces at their end."""
    found: dict[int, list[int]] = {}
    for at, token in enumerate(cursor.tokens):
        if token.kind is TokenKind.STRING:
            found.setdefault(spaces_behind(literal_value(token)), []).append(at)
    return found


def spaces_behind(text: str) -> int:
    return len(text) - len(text.rstrip(" "))


def clauses_behind(cursor: Cursor, at: int) -> list[Clause]:
    """The clauses of the query whose FROM holds token `at`, which is inside `null(…)`'s brackets. WITH TOTALS
    and its like are one where there is no GROUP BY, else a part of that."""
    words = cursor.words
    cursor.at = at + 2  # behind the string and the bracket
    found: list[Clause] = []
    keyword, begin = "", cursor.at
    while cursor.at < len(words) and words[cursor.at] not in (")", ";"):
        word = words[cursor.at]
        if _begins_clause(cursor, keyword) and not (keyword == word == "LIMIT" and begin == cursor.at):
            found.append(Clause(keyword, begin, cursor.at))
            keyword, begin = word, cursor.at + 1
            if word in ("GROUP", "ORDER"):
                begin += 1
            cursor.at += 1
        elif not cursor.skip_brackets():
            cursor.at += 1
    found.append(Clause(keyword, begin, cursor.at))
    return found[1:]


def _begins_clause(cursor: Cursor, before: str) -> bool:
    """Whether a clause begins at the cursor, behind one of keyword `before`."""
    if cursor.word == "WITH" and before in ("", "WHERE", "PREWHERE"):
        return cursor.words[cursor.at + 1] in _WITHOUT_KEYS
    return cursor.word in _ENDS


def text_of(cursor: Cursor, begin: int, end: int) -> str:
    return cursor.sql[cursor.tokens[begin].start : cursor.tokens[end - 1].end] if end > begin else ""


def end_of(cursor: Cursor, begin: int) -> int:
    """The token behind the clause whose first one is `begin`."""
    cursor.at = begin
    while not cursor.at_end and cursor.word not in _ENDS and cursor.word not in (")", ";"):
        if not cursor.skip_brackets():
            cursor.at += 1
    return cursor.at


def split(cursor: Cursor, begin: int, end: int, separator: str) -> list[tuple[int, int]]:
    """The ranges of tokens between `separator` outside brackets."""
    ranges = []
    cursor.at = start = begin
    while cursor.at < end:
        if cursor.words[cursor.at] == separator:
            ranges.append((start, cursor.at))
            start = cursor.at = cursor.at + 1
        elif not cursor.skip_brackets():
            cursor.at += 1
    return [*ranges, (start, end)]


def without_having(text: str) -> tuple[str, str]:
    """HAVING, and the rest, of what stands behind GROUP BY."""
    cursor = Cursor(text)
    if cursor.word != "HAVING":
        return "", text
    end_of(cursor, 1)
    end = cursor.last_end
    return text[:end], text[end:]


def replaced(text: str, replacements: Sequence[tuple[Sequence[str], str]]) -> str:
    """`text` with every run of tokens that equals one of `replacements` replaced, the longest that fits."""
    if not replacements:
        return text
    texts: dict[tuple[str, ...], str] = {}
    sizes: dict[str, set[int]] = {}
    for run, by in replacements:
        texts.setdefault(tuple(run), by)
        sizes.setdefault(run[0], set()).add(len(run))
    longest_first = {first: sorted(of_first, reverse=True) for first, of_first in sizes.items()}
    cursor = Cursor(text)
    tokens = [token.text for token in cursor.tokens]
    pieces: list[str] = []
    at = copied = 0
    while at < len(tokens):
        may_begin = at == 0 or tokens[at - 1] != "."
        for size in longest_first.get(tokens[at], ()) if may_begin else ():
            wanted = tuple(tokens[at : at + size])
            if wanted in texts:
                pieces += (text[copied : cursor.tokens[at].start], texts[wanted])
                at += len(wanted)
                copied = cursor.tokens[at - 1].end
                break
        else:
            at += 1
    return "".join([*pieces, text[copied:]])


def token_texts(text: str) -> tuple[str, ...]:
    return tuple(token.text for token in Cursor(text).tokens)
