"""`*` and COLUMNS(…) leave out hidden columns (MATERIALIZED, ALIAS, virtual ones), which a subquery in the
place of a table has like any other where the text names them: `* EXCEPT (…)`.

So does only what stands for the columns of such a table: in a SELECT that reads it itself, and behind a dot
only if that is its name. A `*` around that SELECT shows what the SELECT shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.distributed.select.clauses import select_of
from engine.names import quote_identifier
from engine.sql.cursor import Cursor
from engine.sql.edit import Edit
from engine.sql.tokens import literal_value

_ITEM_BEGINS = frozenset({"SELECT", "DISTINCT", ",", "."})


@dataclass(frozen=True, slots=True)
class Hidden:
    """A table with hidden columns: its first token, what the text calls it, and those columns."""

    at: int
    names: frozenset[str]
    columns: Sequence[str]


def asterisk_edits(cursor: Cursor, tables: Sequence[Hidden]) -> list[Edit]:
    """What has to stand behind every `*` and COLUMNS(…) that would show hidden columns."""
    if not tables:
        return []
    by_select: dict[int, list[Hidden]] = {}
    for table in tables:
        by_select.setdefault(select_of(cursor, table.at), []).append(table)
    edits = []
    for at, end in list(_asterisks(cursor)):
        shown = by_select.get(select_of(cursor, at), [])
        if cursor.words[at - 1] == ".":
            qualifier = literal_value(cursor.tokens[at - 2])
            shown = [one for one in shown if qualifier in one.names]
        if shown:
            listed = sorted({column for one in shown for column in one.columns})
            edits.append(Edit(end, end, f" EXCEPT ({', '.join(map(quote_identifier, listed))})"))
    return edits


def _asterisks(cursor: Cursor) -> Iterator[tuple[int, int]]:
    """The token, and the offset behind it."""
    for at, word in enumerate(cursor.words):
        if word == "*" and at and cursor.words[at - 1] in _ITEM_BEGINS:
            yield at, cursor.tokens[at].end
        elif word == "COLUMNS" and cursor.words[at + 1 : at + 2] == ["("]:
            cursor.at = at + 1
            if cursor.skip_brackets():
                yield at, cursor.last_end
