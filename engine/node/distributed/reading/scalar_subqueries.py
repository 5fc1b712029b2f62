"""What is evaluated first in statements of which shards execute more (`engine.distributed.select.on_shards`):
subqueries over Distributed tables that are one value, or EXISTS, and those of GLOBAL IN over other tables, or
with an IN or JOIN of each shard's own.

As in ClickHouse the node that has the statement does it, with the statement's settings, and every shard gets
the value. So with `distributed_group_by_no_merge` a value that is a row of each shard is error 125, as there,
and a set of groups, or what is joined, has those of each shard.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from engine.distributed.select import USUAL, Merging, Spread
from engine.distributed.select.clauses import select_of
from engine.distributed.select.model import names
from engine.distributed.select.sides import Side, has_product, is_between_tables, sides_of
from engine.distributed.select.two_phase import is_mergeable
from engine.node.distributed.reading.subquery_values import Meaning, Subquery, ValueOf
from engine.sql.cursor import Cursor
from engine.sql.edit import Edit, apply_edits
from engine.sql.sources import ctes, is_behind_in, read_tables

_BEGINS = names("SELECT WITH FROM")
_GROUPING = names("GROUP HAVING")
_LIMITING = names("LIMIT OFFSET FETCH OVER DISTINCT QUALIFY")
_SET_OPERATIONS = names("UNION EXCEPT INTERSECT")
_BEHIND = _SET_OPERATIONS | {")"}
_BEFORE_VALUE = names(
    "SELECT WITH WHERE PREWHERE HAVING QUALIFY BY ON AND OR XOR NOT CASE WHEN THEN ELSE BETWEEN IS LIKE "
    "ILIKE DIV MOD LIMIT OFFSET STEP TO"
)
_CLAUSES = names(
    "SELECT WITH FROM JOIN ON USING WHERE PREWHERE BY HAVING QUALIFY LIMIT OFFSET SETTINGS WINDOW"
)
_NO_CALL = _BEFORE_VALUE | names("IN FROM JOIN EXISTS VIEW")


async def with_values_of_scalars(
    sql: str, starts: Collection[int], value: ValueOf, spread: Spread = USUAL
) -> str:
    """`starts` are the offsets of the Distributed tables in the text."""
    cursor = Cursor(sql)
    found = {one.start: one for start in starts if (one := _around(cursor, cursor.at_offset(start)))}
    for at, one in list(_sets(cursor)):
        if is_before_shards(cursor, at, one.start, one.end, starts, spread):
            found[one.start] = one
    edits = []
    for start, one in found.items():
        if any(other.start < start < other.end for other in found.values()):
            continue
        text = await value(one)
        if text is not None:
            edits.append(Edit(start, one.end, text))
    return apply_edits(sql, edits)


async def with_values_of_conditions(sql: str, starts: Collection[int], value: ValueOf) -> str:
    """The text of a usual SELECT with values for what its WHERE compares with: a shard can evaluate such a
    condition, and groups can be made in two phases. A text with common table expressions stays: the subquery
    may name one."""
    cursor = Cursor(sql)
    if ctes(cursor)[0]:
        return sql
    around = [(start, _around(cursor, cursor.at_offset(start))) for start in starts]
    found = {
        one.start: one
        for _, one in around
        if one and one.meaning is Meaning.VALUE and _is_in_where(cursor, cursor.at_offset(one.start))
    }
    if all(one and one.start in found for _, one in around):
        return sql  # no shard is read by the statement itself
    edits = []
    for one in found.values():
        if (text := await value(one)) is not None:
            edits.append(Edit(one.start, one.end, text))
    return apply_edits(sql, edits)


def _is_in_where(cursor: Cursor, at: int) -> bool:
    """Whether the clause that token `at` is in, also within brackets, is WHERE or PREWHERE."""
    depth = 0
    for word in reversed(cursor.words[:at]):
        if word in (")", "]", "}"):
            depth += 1
        elif word in ("(", "[", "{"):
            depth = max(0, depth - 1)
        elif not depth and word in _CLAUSES:
            return word in ("WHERE", "PREWHERE")
    return False


def _sets(cursor: Cursor) -> Iterator[tuple[int, Subquery]]:
    """The right sides of IN that read tables, with their first tokens."""
    words = cursor.words
    for ref in read_tables(cursor, 0):
        at = cursor.at_offset(ref.start)
        if is_behind_in(cursor, at):
            yield at, Subquery(ref.start, ref.end, f"SELECT * FROM {ref.name.quoted}", Meaning.SET)
    for at in [at + 1 for at, word in enumerate(words) if word == "IN"]:
        if (select := tables_subquery(cursor, at)) is not None:
            yield at, Subquery(cursor.tokens[at].start, cursor.last_end, select, Meaning.SET)


def tables_subquery(cursor: Cursor, at: int) -> str | None:
    """The SELECT in the brackets that open at token `at`, if it reads tables and stands alone; the cursor is
    behind it then."""
    if cursor.words[at : at + 1] != ["("] or not _is_subquery(cursor, at):
        return None
    cursor.at = at
    cursor.skip_brackets()
    begin, end = cursor.tokens[at].end, cursor.tokens[cursor.at - 1].start
    _, of_ctes = ctes(Cursor(cursor.sql))
    if any(begin < ref.start < end for ref, _ in of_ctes):
        return None
    select = cursor.sql[begin:end]
    return select if read_tables(Cursor(select), 0) else None


def is_before_shards(
    cursor: Cursor, at: int, start: int, end: int, tables: Collection[int], spread: Spread
) -> bool:
    """Whether what stands on the right of IN or JOIN, at token `at` and between two offsets, is evaluated
    before shards are asked: on a GLOBAL side, what reads none of `tables`, or one that its own shards have to
    join; and on any, groups and rows of each shard that are not merged."""
    is_global = sides_of(cursor.words, at)[:1] == [Side.GLOBAL]
    within = [cursor.at_offset(table) for table in tables if start <= table < end]
    if is_global and (
        not within or (spread.is_local and has_product(cursor.words, within, cursor.at_offset(start)))
    ):
        return True
    is_own = spread.is_local and not is_global
    return (
        bool(within)
        and not is_own
        and _is_of_each_shard(cursor, start, end, spread)
        and _is_on_shards(cursor, at, tables)
    )


def _is_on_shards(cursor: Cursor, at: int, tables: Collection[int]) -> bool:
    """Whether token `at` is in a query whose first table is one of `tables`, which shards execute."""
    firsts = [place for place in map(cursor.at_offset, tables) if cursor.words[place - 1] == "FROM"]
    queries = {select_of(cursor, place) for place in firsts}
    return any(select_of(cursor, one) in queries for one in (at, *cursor.brackets_around(at)))


def _is_of_each_shard(cursor: Cursor, start: int, end: int, spread: Spread) -> bool:
    """Whether a subquery may have other rows because those of shards are not merged."""
    if spread.merging is Merging.OF_ALL_SHARDS:
        return False
    makers = _GROUPING if spread.merging is Merging.OF_ROWS_ONLY else _GROUPING | _LIMITING
    begin, behind = cursor.at_offset(start), cursor.at_offset(end)
    for at in range(begin, min(behind, len(cursor.words))):
        is_call = cursor.words[at + 1 : at + 2] == ["("]
        if cursor.words[at] in makers or (is_call and is_mergeable(cursor.tokens[at].text)):
            return True
    return False


def _around(cursor: Cursor, at: int) -> Subquery | None:
    """The outermost such subquery around token `at`."""
    tokens = cursor.tokens
    for begin in cursor.brackets_around(at):
        meaning = _meaning(cursor, begin)
        if meaning is None:
            continue
        cursor.at = begin
        if not cursor.skip_brackets():
            return None
        select = cursor.sql[tokens[begin].end : tokens[cursor.at - 1].start]
        first = begin - (meaning is Meaning.EXISTENCE)
        return Subquery(tokens[first].start, cursor.last_end, select, meaning)
    return None


def _meaning(cursor: Cursor, begin: int) -> Meaning | None:
    """Of the subquery in the brackets that open at token `begin`; None for anything else."""
    words = cursor.words
    if not begin or not _is_subquery(cursor, begin):
        return None
    before = begin - 1
    match words[before]:
        case "EXISTS":
            return Meaning.EXISTENCE
        case ")" | "]" | "}":
            return None
        case "(":
            is_value = _is_argument(cursor, begin)
        case ",":
            is_value = not is_between_tables(words, before)
        case "DISTINCT":
            is_value = words[before - 1] not in _SET_OPERATIONS
        case word:
            is_value = word in _BEFORE_VALUE or not cursor.tokens[before].is_name
    return Meaning.VALUE if is_value else None


def _is_subquery(cursor: Cursor, begin: int) -> bool:
    """Whether there is nothing else in the brackets than one, or several with UNION and its like between."""
    at = begin
    while cursor.words[at] == "(":
        cursor.at = at
        if at > begin and (not cursor.skip_brackets() or cursor.word not in _BEHIND):
            return False
        at += 1
        if at >= len(cursor.words):
            return False
    return at > begin and cursor.words[at] in _BEGINS


def _is_argument(cursor: Cursor, begin: int) -> bool:
    """Whether a subquery behind a bracket is one of several in that, or the argument of a call; else it is
    what the brackets around it are."""
    cursor.at = begin
    cursor.skip_brackets()
    if cursor.word in _SET_OPERATIONS:
        return False
    is_name = begin > 1 and cursor.tokens[begin - 2].is_name
    return cursor.word != ")" or (is_name and cursor.words[begin - 2] not in _NO_CALL)
