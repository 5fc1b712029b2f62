"""Aggregation in two phases: shards make states, the initiator merges them.

It is done only where the shape proves it right: one query without others in it, that reads one Distributed
table directly, with aggregate functions of `MERGEABLE` and without windows, arrayJoin, GROUPING SETS, WITH
FILL. GROUP BY keys and arguments are evaluated on the shards, everything else (HAVING, ORDER BY, LIMIT, WITH
TOTALS, ROLLUP, CUBE) on the initiator, on merged states. All else takes the way of `pushing`.

What the shards make are states, or plain values where merging is an aggregate function of values itself: a
count is the sum of counts. Of many groups plain values are several times cheaper than states. `min`, `max`
and `any` of no rows give a value that looks like one of a row, so they stay states where a shard can have a
group without rows: without GROUP BY, and with -If.

The text comes from ClickHouse's own resolved form of the query, in which every name is whole and `*` and
aliases are gone; the types of keys and states are asked of ClickHouse.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from engine.distributed.select import clauses, pushing
from engine.distributed.select.model import ROWS_PLACE, RemoteSelect, SourceColumn, names
from engine.distributed.select.query_tree import Node, QueryTree
from engine.distributed.select.template import Slot
from engine.sql.cursor import Cursor

MERGEABLE = names(
    "count sum min max avg any anyLast argMin argMax uniq uniqExact uniqCombined uniqCombined64 uniqHLL12 "
    "quantile quantiles quantileExact quantilesExact quantileTDigest quantilesTDigest quantileTiming "
    "quantilesTiming quantileDeterministic quantileExactWeighted quantileBFloat16 median groupArray "
    "groupUniqArray groupBitAnd groupBitOr groupBitXor stddevPop stddevSamp varPop varSamp covarPop "
    "covarSamp corr skewPop skewSamp kurtPop kurtSamp topK sumWithOverflow sumKahan sumMap minMap maxMap "
    "avgWeighted groupArraySorted deltaSumTimestamp"
)
_BOUNDED = names("count sum sumKahan avg min max stddevPop stddevSamp varPop varSamp covarPop covarSamp corr")
"""Functions whose states are as small as one value of the column."""
_VALUES = {
    "count": "sum",
    "countIf": "sum",
    "sum": "sum",
    "sumIf": "sum",
    "sumWithOverflow": "sumWithOverflow",
    "sumWithOverflowIf": "sumWithOverflow",
    "groupBitOr": "groupBitOr",
    "groupBitXor": "groupBitXor",
}
"""Functions of which the shards send values, and what makes one of them: no rows give its neutral element."""
_VALUES_OF_GROUPS = {name: name for name in ("min", "max", "any", "anyLast")}
"""Where every group has a row."""
_NOT_HERE = names(
    "arrayJoin rowNumberInAllBlocks rowNumberInBlock blockNumber runningDifference runningAccumulate "
    "neighbor rand rand32 rand64 randConstant generateUUIDv4 generateUUIDv7 hostName fqdn getSetting joinGet "
    "nowInBlock __actionName exists indexHint finalizeAggregation initializeAggregation "
    "toJSONString formatRow formatRowNoNewline"
)
"""Those of the last line write as the settings of output formats say, which are not the shards'."""

_SUSPICIOUS = re.compile(r"\bLowCardinality\((?!(?:Nullable\()?(?:Fixed)?String\b)")
"""A type that an expression may have, and that no column may be declared with."""

HAS_TOTALS = "is_group_by_with_totals: 1"
_OWN_NAME = re.compile(r"__[ga]\d")
"""What the columns of keys and states are called, unless the query uses such names itself."""
PLACE = ROWS_PLACE

Describe = Callable[[str], Awaitable[list[tuple[str, str]]]]
"""Names and types of a SELECT's columns, as chDB says."""


@dataclass(frozen=True, slots=True)
class TwoPhases:
    """`initiator` has `PLACE` where the shards' rows are read."""

    initiator: str
    remote: RemoteSelect


async def two_phases(
    tree: QueryTree, slot: Slot, describe: Describe, *, null_for_empty: bool = False
) -> TwoPhases | None:
    """For the only slot of a query; None where the shape does not allow it. `null_for_empty` is the setting
    `aggregate_functions_null_for_empty`: a sum is Nullable then, and a count is not."""
    pieces = _take_apart(tree)
    if pieces is None:
        return None
    making = making_of(pieces.calls, has_keys=bool(pieces.keys), null_for_empty=null_for_empty)
    keyed = sorted(enumerate(pieces.keys), key=lambda one: -len(clauses.token_texts(one[1])))
    replacements = [
        *making.replacements,
        *((clauses.token_texts(key), f"__g{number}") for number, key in keyed),
    ]
    select = clauses.replaced(pieces.select, replacements)
    upper = clauses.replaced(pieces.upper, replacements)
    if pieces.alias in clauses.token_texts(select) or pieces.alias in clauses.token_texts(upper):
        return None  # a column is needed that is neither a key nor within an aggregate function
    remote = await _remote(pieces, making, slot, describe)
    if remote is None:
        return None
    group = ""
    if pieces.is_grouped:
        group = " GROUP BY " + ", ".join(f"__g{number}" for number in range(len(pieces.keys)))
        group += f" {pieces.behind_keys}" if pieces.behind_keys else ""
    return TwoPhases(f"{select} FROM {PLACE}{group} {upper}".rstrip(), remote)


@dataclass(frozen=True, slots=True)
class _Pieces:
    """A query of the right shape, taken apart. `names` are its aggregate functions, `calls` where it calls
    them; `source` is FROM with the table, `where` the text behind WHERE and `conditions` its parts joined by
    AND; `upper` is what stands behind the keys. `has_totals`: WITH TOTALS makes a second row."""

    alias: str
    names: set[str]
    calls: set[Call]
    select: str
    source: str
    where: str
    conditions: tuple[str, ...]
    is_grouped: bool
    keys: list[str]
    behind_keys: str
    upper: str
    has_totals: bool


def _take_apart(tree: QueryTree) -> _Pieces | None:
    nodes = pushing.nodes_of(tree, 0)
    if len(nodes) != 1 or not _has_the_shape(tree.root, nodes[0]) or _OWN_NAME.search(tree.text):
        return None
    if tree.has_unwritten_values:
        return None
    names = _aggregates(tree.root)
    if names is None:
        return None
    cursor, place = tree.cursor, pushing.place_of(tree, 0)
    if place is None or cursor.words[:1] != ["SELECT"]:
        return None
    alias = nodes[0].fact("alias")
    from_at = _outside(cursor, "FROM")
    if from_at is None or cursor.tokens[place].start < cursor.tokens[from_at].start:
        return None
    parts = clauses.clauses_behind(cursor, place)
    if any(clause.keyword in ("INTERPOLATE", "WINDOW", "QUALIFY", "UNION", "PREWHERE") for clause in parts):
        return None
    where = next((clause for clause in parts if clause.keyword == "WHERE"), None)
    group = next((clause for clause in parts if clause.keyword == "GROUP"), None)
    if not names and group is None:
        return None
    keys, behind = keys_of(cursor, group)
    if any(alias not in clauses.token_texts(key) for key in keys):
        return None
    upper_begin = group.end if group else where.end if where else _first_upper(cursor, parts)
    upper = clauses.text_of(cursor, upper_begin, len(cursor.words)) if upper_begin < len(cursor.words) else ""
    select = clauses.text_of(cursor, 0, from_at)
    conditions = clauses.split(cursor, where.begin, where.end, "AND") if where else []
    return _Pieces(
        alias=alias,
        names=names,
        calls=calls_of(select, names) | calls_of(upper, names),
        select=select,
        source=clauses.text_of(cursor, from_at, place + 2),
        where=clauses.text_of(cursor, where.begin, where.end) if where else "",
        conditions=tuple(clauses.text_of(cursor, *each) for each in conditions),
        is_grouped=group is not None,
        keys=keys,
        behind_keys=clauses.text_of(cursor, behind, group.end) if group else "",
        upper=upper,
        has_totals=HAS_TOTALS in tree.root.rest,
    )


@dataclass(frozen=True, slots=True)
class Making:
    """What the shards make of each call, with the column's name, and what the initiator makes of that.
    `is_sum`: each is one sum of theirs."""

    states: list[tuple[str, str]]
    replacements: list[tuple[tuple[str, ...], str]]
    is_sum: bool


def making_of(calls: set[Call], *, has_keys: bool, null_for_empty: bool) -> Making:
    """`null_for_empty` may be said wherever the setting is not known."""
    values = _VALUES | _VALUES_OF_GROUPS if has_keys else _VALUES
    if null_for_empty:
        values = {name: merge for name, merge in values.items() if name not in ("count", "countIf")}
    states: list[tuple[str, str]] = []
    replacements: list[tuple[tuple[str, ...], str]] = []
    for number, call in enumerate(sorted(calls, key=lambda one: (-len(one.tokens), one.tokens))):
        column = f"__a{number}"
        if merge := values.get(call.name):
            states.append((f"{call.name}{call.rest}", column))
            replacements.append((call.tokens, f"{merge}({column})"))
        else:
            states.append((f"{call.name}State{call.rest}", column))
            replacements.append((call.tokens, f"{call.name}Merge{call.parameters}({column})"))
    return Making(states, replacements, all(values.get(call.name) == "sum" for call in calls))


async def _remote(pieces: _Pieces, making: Making, slot: Slot, describe: Describe) -> RemoteSelect | None:
    """What the shards are asked; None where that is nothing, or no table can have such columns."""
    parts = [(key, f"__g{number}") for number, key in enumerate(pieces.keys)] + making.states
    if not parts:
        return None
    tail = f" WHERE {pieces.where}" if pieces.where else ""
    if pieces.keys:
        tail += f" GROUP BY {', '.join(pieces.keys)}"
    listed = ", ".join(f"{text} AS {name}" for text, name in parts)
    types = dict(await describe(f"SELECT {listed} {pieces.source} AS {pieces.alias}{tail}"))
    if any(_SUSPICIOUS.search(type_) for type_ in types.values()):
        return None
    has_one_row = not (pieces.is_grouped or pieces.has_totals) and all(
        name.removesuffix("If") in _BOUNDED for name in pieces.names
    )
    return RemoteSelect(
        tuple(
            (pushing.remote_text(text, pieces.alias, slot.columns), SourceColumn(name, types[name]))
            for text, name in parts
        ),
        f" AS {pieces.alias}{slot.modifiers}{pushing.remote_text(tail, pieces.alias, slot.columns)}",
        pruned_by=pieces.conditions,
        has_one_row=has_one_row,
        is_sum=has_one_row and making.is_sum,
        source=slot.source,
        read_with=slot.read_with,
    )


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    parameters: str
    rest: str
    tokens: tuple[str, ...]


def _has_the_shape(root: Node, table: Node) -> bool:
    if root.kind != "QUERY" or "GROUPING_SETS" in root.rest.upper() or "grouping_sets" in root.rest:
        return False
    if table.parent is None or table.parent.kind != "JOIN TREE" or table.parent.parent is not root:
        return False
    for node in root.walk():
        if node is not root and node.kind in ("QUERY", "UNION", "WINDOW", "INTERPOLATE", "ARRAY_JOIN"):
            return False
        if node is not table and node.kind in ("TABLE", "TABLE_FUNCTION"):
            return False  # the right side of IN, which is here and not on the shards
        if node.kind == "SORT" and "with_fill: 1" in node.rest:
            return False
        if node.kind == "FUNCTION" and _is_for_shards(node):
            return False
    return True


def _is_for_shards(function: Node) -> bool:
    """Whether it has to be called where the rows are, and with all of them."""
    return (
        function.fact("function_type") == "window"
        or needs_rows(function)
        or function.fact("function_name").startswith(("dictGet", "dictHas"))
    )


def needs_rows(function: Node) -> bool:
    """Whether it is another one where the rows are."""
    return function.fact("function_name") in _NOT_HERE


def is_mergeable(aggregate: str) -> bool:
    """Whether its states can be merged here."""
    return aggregate.removesuffix("If") in MERGEABLE


def _aggregates(root: Node) -> set[str] | None:
    """The names of aggregate functions; None if one cannot be merged."""
    names: set[str] = set()
    for node in root.walk():
        if node.kind == "FUNCTION" and node.fact("function_type") == "aggregate":
            name = node.fact("function_name")
            if not is_mergeable(name):
                return None
            names.add(name)
    return names


def _outside(cursor: Cursor, word: str) -> int | None:
    cursor.at = 0
    return cursor.at if cursor.skip_to(word) else None


def _first_upper(cursor: Cursor, parts: list[clauses.Clause]) -> int:
    """The token where what stands behind FROM begins."""
    if not parts:
        return len(cursor.words)
    first = parts[0]
    return first.begin - (2 if first.keyword in ("GROUP", "ORDER") else 1)


def keys_of(cursor: Cursor, group: clauses.Clause | None) -> tuple[list[str], int]:
    """The keys of GROUP BY, also of GROUPING SETS, each once, and the token behind them, which may be that of
    WITH TOTALS and its like.

    `GROUP BY a, (b, a)` has `a` twice in the resolved text. ClickHouse counts it once, and so ROLLUP and CUBE
    do not leave it out by itself: two columns of the same value would be two keys to them.
    """
    if group is None:
        return [], 0
    cursor.at = group.begin
    end = group.end
    while cursor.at < group.end:
        if cursor.word == "WITH":
            end = cursor.at
            break
        if not cursor.skip_brackets():
            cursor.at += 1
    keys: dict[tuple[str, ...], str] = {}
    ranges = clauses.split(cursor, group.begin, end, ",")
    if cursor.words[group.begin : group.begin + 2] == ["GROUPING", "SETS"]:
        sets = clauses.split(cursor, group.begin + 3, end - 1, ",")
        inner = [(a + 1, b - 1) if cursor.words[a] == "(" else (a, b) for a, b in sets]
        ranges = [one for a, b in inner if b > a for one in clauses.split(cursor, a, b, ",")]
    for begins, ends in ranges:
        alias = clauses.split(cursor, begins, ends, "AS")
        key = clauses.text_of(cursor, *alias[0])
        keys.setdefault(clauses.token_texts(key), key)
    return list(keys.values()), end


def calls_of(text: str, names: set[str]) -> set[Call]:
    """Every call of an aggregate function of `names`, as it is written; also within calls with OVER."""
    cursor = Cursor(text)
    found: set[Call] = set()
    at = 0
    while at < len(cursor.tokens):
        name = cursor.tokens[at].text
        if (
            name not in names
            or cursor.words[at + 1 : at + 2] != ["("]
            or (at and cursor.words[at - 1] == ".")
        ):
            at += 1
            continue
        cursor.at = at + 1
        cursor.skip_brackets()
        first_end = cursor.at
        parameters = ""
        if cursor.word == "(":
            parameters = clauses.text_of(cursor, at + 1, first_end)
            cursor.skip_brackets()
        end = cursor.at
        if cursor.word == "OVER":
            at += 1
            continue
        tokens = tuple(token.text for token in cursor.tokens[at:end])
        found.add(Call(name, parameters, clauses.text_of(cursor, at + 1, end), tokens))
        at = end
    return found
