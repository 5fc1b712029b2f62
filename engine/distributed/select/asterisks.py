"""`*` leaves out hidden columns (MATERIALIZED, ALIAS, virtual ones), which a subquery in the place of a table
has like any other where the text names them: `* EXCEPT (…)`. A pattern, `COLUMNS('…')` or `* LIKE '…'`, hides
virtual columns only, and `COLUMNS(a, b)` nothing.

So does only what stands for the columns of such a table: in a SELECT that reads it itself, and behind a dot
only if that is its name. A `*` around that SELECT shows what the SELECT shows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from engine.distributed.select.clauses import select_of
from engine.names import quote_identifier
from engine.sql.cursor import Cursor
from engine.sql.edit import Edit
from engine.sql.tokens import TokenKind, literal_value

_ITEM_BEGINS = frozenset({"SELECT", "DISTINCT", ",", "."})
_BEFORE_USED = frozenset({"USING", "(", ","})
_BEFORE_REPLACE = frozenset({"*", ")"})
"""Of `replace(…)`, the function, `*` stands there only in a product."""


@dataclass(frozen=True, slots=True)
class Hidden:
    """A table with hidden columns: its first token, what the text calls it, and those columns."""

    at: int
    names: frozenset[str]
    columns: Sequence[str]
    virtuals: Sequence[str] = field(default=())
    """Those of `columns` that no pattern shows."""


@dataclass(frozen=True, slots=True)
class _Asterisk:
    """A token that stands for columns, the offset behind it, and whether a pattern chooses them."""

    at: int
    end: int
    has_pattern: bool


def asterisk_edits(cursor: Cursor, tables: Sequence[Hidden]) -> list[Edit]:
    """What has to stand behind every `*` and COLUMNS('…') that would show hidden columns."""
    if not tables:
        return []
    by_select: dict[int, list[Hidden]] = {}
    for table in tables:
        by_select.setdefault(select_of(cursor, table.at), []).append(table)
    edits = []
    for one in list(_asterisks(cursor)):
        qualifier = _qualifier(cursor, one)
        select = select_of(cursor, one.at)
        left_out = {
            column
            for table in by_select.get(select, [])
            if qualifier is None or qualifier in table.names
            for column in (table.virtuals if one.has_pattern else table.columns)
        }
        if qualifier is None:
            left_out.difference_update(*_joined_by(cursor, select))
        if left_out:
            listed = ", ".join(map(quote_identifier, sorted(left_out)))
            edits.append(Edit(one.end, one.end, f" EXCEPT ({listed})"))
    return edits


def is_under_pattern(cursor: Cursor, table: int, names: AbstractSet[str]) -> bool:
    """Whether a pattern chooses among the columns of a table: its first token, and what the text calls it."""
    patterns = [one for one in list(_asterisks(cursor)) if one.has_pattern]
    return any(
        _qualifier(cursor, one) in (None, *names) and select_of(cursor, one.at) == select_of(cursor, table)
        for one in patterns
    )


def _joined_by(cursor: Cursor, select: int) -> Iterator[set[str]]:
    """The columns of each USING of a SELECT: its `*` shows them first, hidden or not."""
    words = cursor.words
    for at in [at for at, word in enumerate(words) if word == "USING"]:
        if select_of(cursor, at) == select:
            begin = at + 1 + (words[at + 1 : at + 2] == ["("])
            items = itertools.takewhile(
                lambda item: words[item - 1] in _BEFORE_USED, range(begin, len(words), 2)
            )
            yield {literal_value(cursor.tokens[item]) for item in items}


def names_columns_of_asterisks(cursor: Cursor) -> bool:
    """Whether columns that nothing reads have to be there: `* EXCEPT STRICT (a)` wants a column a, what
    `* APPLY (x -> 1)` and `* REPLACE (1 AS a)` make of columns need not read them, and with the latter an `a`
    elsewhere is what stands for that column."""
    words = cursor.words
    return not {"APPLY", "STRICT"}.isdisjoint(words) or any(
        word == "REPLACE" and before in _BEFORE_REPLACE for before, word in itertools.pairwise(words)
    )


def _qualifier(cursor: Cursor, one: _Asterisk) -> str | None:
    return literal_value(cursor.tokens[one.at - 2]) if cursor.words[one.at - 1] == "." else None


def _asterisks(cursor: Cursor) -> Iterator[_Asterisk]:
    """All but COLUMNS with names."""
    for at, word in enumerate(cursor.words):
        if word == "*" and at and cursor.words[at - 1] in _ITEM_BEGINS:
            has_pattern = cursor.words[at + 1 : at + 2] in (["LIKE"], ["ILIKE"])
            yield _Asterisk(at, cursor.tokens[at + 2 * has_pattern].end, has_pattern)
        elif at and cursor.tokens[at].text.upper() == "COLUMNS" and cursor.words[at + 1 : at + 2] == ["("]:
            cursor.at = at + 1
            if cursor.tokens[at + 2].kind is TokenKind.STRING and cursor.skip_brackets():
                yield _Asterisk(at, cursor.last_end, True)
