"""PREWHERE in the text of a statement: it becomes WHERE, since subqueries have none.

Of a join it takes rows of one table away before the join sees them, so it becomes WHERE of a subquery around
that table: the one that the condition qualifies its columns with, or the first that has them; the first table
of all for a condition without columns.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from engine.distributed.select.model import names
from engine.sql.cursor import Cursor
from engine.sql.edit import Edit, apply_edits
from engine.sql.tokens import literal_value

CLAUSE_ENDS = names(
    "WHERE GROUP HAVING ORDER LIMIT OFFSET FETCH UNION EXCEPT INTERSECT SETTINGS FORMAT INTO WINDOW QUALIFY "
    "PREWHERE"
)
_BEFORE_OPERAND = names("AND OR NOT IN LIKE ILIKE BETWEEN DIV MOD AS = == != <> < > <= >= + - * / % || ,")
_BEFORE_NAME = names("AS FROM JOIN ,")
_OPERATORS = names("AND OR NOT IN IS NULL LIKE ILIKE BETWEEN TRUE FALSE DIV MOD")
_MOVED = re.compile("\x02(\\d+)\x02(.*?)\x03\\1\x03", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A table that PREWHERE may be about: its first token, what the text calls it, and its columns."""

    at: int
    names: frozenset[str]
    columns: frozenset[str]


@dataclass(frozen=True, slots=True)
class Prewhere:
    """By indices of tokens: the keyword, the end of its condition, and its table."""

    at: int
    end: int
    table: int
    is_of_join: bool

    def around(self, table: str, *, is_final: bool) -> str:
        """A subquery over the table, of a join; the condition gets its place by `with_moved`."""
        return f"(SELECT * FROM {table} WHERE {'identity' * is_final}(\x04{self.at}\x04))"

    def edits(self, cursor: Cursor, *, is_final: bool) -> list[Edit]:
        """`PREWHERE a WHERE b` becomes `WHERE (a) AND (b)`, `identity(a)` with FINAL; that of a join is
        marked, to be moved."""
        words, tokens = cursor.words, cursor.tokens
        keyword, behind = tokens[self.at], tokens[self.end - 1].end
        if self.is_of_join:
            marks = (f"\x02{self.at}\x02", f"\x03{self.at}\x03")
            return [Edit(keyword.start, keyword.end, marks[0]), Edit(behind, behind, marks[1])]
        found = [Edit(keyword.start, keyword.end, f"WHERE {'identity' * is_final}(")]
        end = self.end
        if end < len(words) and words[end] == "WHERE":
            found.append(Edit(tokens[end].start, tokens[end].end, ") AND ("))
            end = _clause_end(cursor, end + 1)
        return [*found, Edit(tokens[end - 1].end, tokens[end - 1].end, ")")]

    def removal(self, cursor: Cursor) -> Edit:
        """Takes it away, if it has gone elsewhere."""
        return Edit(cursor.tokens[self.at].start, cursor.tokens[self.end - 1].end, "")

    def as_written(self, cursor: Cursor, called: Collection[str], columns: Collection[str]) -> str:
        """The condition without what the text calls the table, if it names nothing but `columns`, which
        nothing else in the text is called like, and functions; else empty."""
        aliases = {
            literal_value(cursor.tokens[at])
            for at in range(1, len(cursor.tokens))
            if cursor.words[at - 1] == "AS" and cursor.tokens[at].is_name
        }
        words = cursor.words
        begin, end = cursor.tokens[self.at].end, cursor.tokens[self.end - 1].end
        edits: list[Edit] = []
        for at in range(self.at + 1, self.end):
            token, word = cursor.tokens[at], words[at]
            is_part = words[at - 1] == "." and not (edits and edits[-1].end == token.start - begin)
            if not token.is_name or word in _OPERATORS or is_part:
                continue
            if word == "SELECT" or words[at + 1 : at + 2] == ["->"]:
                return ""
            name = literal_value(token)
            if name in called and words[at + 1 : at + 2] == ["."]:
                edits.append(Edit(token.start - begin, cursor.tokens[at + 2].start - begin, ""))
            elif words[at + 1 : at + 2] != ["("] and (name not in columns or name in aliases):
                return ""
        return apply_edits(cursor.sql[begin:end], edits).strip()


def find_prewheres(cursor: Cursor, tables: Sequence[Candidate]) -> list[Prewhere]:
    """Those about one of `tables`."""
    found = []
    for at, word in enumerate(cursor.words):
        if word != "PREWHERE" or _is_name(cursor.words, at):
            continue
        begin = _from_before(cursor.words, at)
        before = [place for place, _ in _outside_brackets(cursor, begin + 1, at)]
        is_behind = any(
            _is_clause(cursor.words, one)
            and cursor.words[one] != "OFFSET"
            and not _is_name(cursor.words, one)
            for one in before
        )
        if begin < 0 or is_behind:
            continue  # `SELECT prewhere`, `ORDER BY prewhere`; there may be SAMPLE … OFFSET before the clause
        end = _clause_end(cursor, at + 1)
        is_of_join = any(word in ("JOIN", ",") for _, word in _outside_brackets(cursor, begin, at))
        table: int | None = begin + 1
        if is_of_join:
            listed = {place for place, _ in _outside_brackets(cursor, begin, at)}
            among = [one for one in tables if one.at in listed]
            table = _meant(cursor, range(at + 1, end), among, first=begin + 1)
        if table is not None and any(one.at == table for one in tables):
            found.append(Prewhere(at, end, table, is_of_join))
    return found


def _is_name(words: Sequence[str], at: int) -> bool:
    """Whether a keyword is that of a table, a column or an alias where it stands, as in `FROM order`."""
    return words[at - 1] in _BEFORE_NAME or words[at + 1 : at + 2] == ["."]


def _meant(cursor: Cursor, condition: range, tables: Sequence[Candidate], *, first: int) -> int | None:
    """Which table of a join the condition is about."""
    qualifiers: set[str] = set()
    columns: set[str] = set()
    for at in condition:
        is_call = cursor.words[at + 1 : at + 2] == ["("]
        is_column = cursor.tokens[at].is_name and cursor.words[at] not in _OPERATORS and not is_call
        if is_column and cursor.words[at - 1] != ".":
            name = literal_value(cursor.tokens[at])
            columns.add(name)
            if cursor.words[at + 1 : at + 2] == ["."]:
                qualifiers.add(name)
    if not columns:
        return first
    by_name = (one.at for one in tables if one.names & qualifiers)
    by_column = (one.at for one in tables if one.columns & columns)
    return next(by_name, next(by_column, None))


def with_moved(text: str) -> str:
    """What was marked, in its place."""
    while (match := _MOVED.search(text)) is not None:
        text = text[: match.start()] + text[match.end() :]
        text = text.replace(f"\x04{match[1]}\x04", match[2])
    return text


def _outside_brackets(cursor: Cursor, begin: int, end: int) -> Iterator[tuple[int, str]]:
    """The tokens of a range that are in no bracket."""
    cursor.at = begin
    while cursor.at < end:
        if not cursor.skip_brackets():
            yield cursor.at, cursor.word
            cursor.at += 1


def _from_before(words: Sequence[str], at: int) -> int:
    """The FROM that a clause at `at` belongs to; -2 without one."""
    depth = 0
    for i in range(at - 1, -1, -1):
        depth += (words[i] in (")", "]")) - (words[i] in ("(", "["))
        if depth < 0:
            return -2
        if depth == 0 and words[i] == "FROM":
            return i
    return -2


def _is_clause(words: Sequence[str], at: int) -> bool:
    """Whether a clause begins there; else the word is a name, such as in `a = limit` and in `AS limit`."""
    return words[at] in CLAUSE_ENDS and words[at - 1] not in _BEFORE_OPERAND


def _clause_end(cursor: Cursor, at: int) -> int:
    cursor.at = at
    while cursor.at < len(cursor.words) and cursor.word not in (")", ";"):
        if cursor.at > at and _is_clause(cursor.words, cursor.at):
            break
        if not cursor.skip_brackets():
            cursor.at += 1
    return cursor.at
