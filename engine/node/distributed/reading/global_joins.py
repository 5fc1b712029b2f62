"""What stands on the right of GLOBAL JOIN in statements of which shards execute more
(`engine.distributed.select.on_shards`) is read first by this node, as in ClickHouse, and every shard gets the
rows with the text: other tables than Distributed ones, and subqueries with an IN or JOIN of each shard's own.
So is any side with groups of each shard that are not merged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from engine.distributed.select import IS_CHECKED, Spread
from engine.distributed.select.references import alias_behind
from engine.distributed.select.sides import is_between_tables
from engine.names import quote_identifier, quote_string
from engine.node.distributed.reading.scalar_subqueries import is_before_shards, tables_subquery
from engine.node.distributed.reading.subquery_values import ANSWERED
from engine.sql.cursor import Cursor
from engine.sql.edit import Edit, apply_edits
from engine.sql.sources import read_tables

_SHORTEST_ROW = len("(1),")
_ROWS = "__rows"
_WITHOUT_SUBQUERY = frozenset({"FINAL", "SAMPLE"})
"""What stands behind a table only."""
_SUBQUERIES = (["SELECT"], ["WITH"], ["FROM"], ["("])
"""What their brackets begin with."""
_MOST_OF_ALIAS = 2
"""Tokens."""

RowsOf = Callable[[str], Awaitable[str | None]]
"""A subquery, in brackets, with the rows of a SELECT; None leaves it as it is."""


@dataclass(frozen=True, slots=True)
class _Joined:
    """`at` is its first token, `start` and `end` are offsets; `called` is the table's name where it has no
    alias."""

    at: int
    start: int
    end: int
    select: str
    called: str = ""


async def with_rows_of_joins(sql: str, starts: Collection[int], rows: RowsOf, spread: Spread) -> str:
    """`starts` and `spread` are those of `with_values_of_scalars`."""
    edits = []
    cursor = Cursor(sql)
    end = 0
    for one in list(_joined(cursor)):
        is_within = one.start < end
        if is_within or not is_before_shards(cursor, one.at, one.start, one.end, starts, spread):
            continue
        end = one.end
        text = await rows(one.select)
        if text is not None:
            alias = f" AS {quote_identifier(one.called)}" if one.called else ""
            edits.append(Edit(one.start, one.end, text + alias))
    return apply_edits(sql, edits)


def question_of_rows(select: str, *, most: int) -> str:
    """What asks for the rows of a SELECT, as `question_of` does for a value; for no more than `most`
    characters could tell of."""
    rows = f"SELECT * FROM ({select}) LIMIT {most // _SHORTEST_ROW + 1}"
    return f"SELECT {ANSWERED} FROM (SELECT groupArray(tuple(*)) AS v FROM ({rows}))"


def rows_of(columns: Sequence[tuple[str, str]], array: str) -> str:
    """A subquery with the rows that an expression for an array of tuples has, whose columns are `columns`."""
    items = ", ".join(
        f"{_typed(f'{_ROWS}.{at}', type_)} AS {quote_identifier(name)}"
        for at, (name, type_) in enumerate(columns, start=1)
    )
    return f"(SELECT {items} FROM (SELECT arrayJoin({array}) AS {_ROWS}))"


def _typed(value: str, type_: str) -> str:
    """Out of an array no value is LowCardinality."""
    if "LowCardinality" not in type_:
        return value
    return f"{'_CAST' if IS_CHECKED.search(type_) else 'CAST'}({value}, {quote_string(type_)})"


def _begins_side(words: Sequence[str], at: int) -> bool:
    if words[at] == "," and words[at + 1] == "(" and words[at + 2 : at + 3] in _SUBQUERIES:
        return is_between_tables(words, at)
    return words[at] == "JOIN"


def _joined(cursor: Cursor) -> Iterator[_Joined]:
    """Those within others, too."""
    tokens, words = cursor.tokens, cursor.words
    refs = {ref.start: ref for ref in read_tables(cursor, 0)}
    for at in [at + 1 for at in range(len(words) - 1) if _begins_side(words, at)]:
        start = tokens[at].start
        if (ref := refs.get(start)) is not None:
            behind = cursor.at_offset(ref.end)
            if _WITHOUT_SUBQUERY.isdisjoint(words[behind : behind + _MOST_OF_ALIAS + 1]):
                called = "" if alias_behind(cursor.sql, ref.end) else ref.name.table
                yield _Joined(at, start, ref.end, f"SELECT * FROM {ref.name.quoted}", called)
        elif (select := tables_subquery(cursor, at)) is not None:
            yield _Joined(at, start, cursor.last_end, select)
