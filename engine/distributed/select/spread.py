"""What settings say of how much of a query the shards execute, and whether that changes its rows."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from engine.distributed.select import pushing
from engine.distributed.select.query_tree import Node, QueryTree

_LIMITING = frozenset({"LIMIT", "OFFSET", "LIMIT BY"})


class Merging(enum.Enum):
    """`distributed_group_by_no_merge`."""

    OF_ALL_SHARDS = 0
    NONE = 1
    OF_ROWS_ONLY = 2


@dataclass(frozen=True, slots=True)
class Spread:
    """What the settings say of the shards' part."""

    merging: Merging = Merging.OF_ALL_SHARDS
    is_local: bool = False
    """`distributed_product_mode` = 'local'."""


USUAL = Spread()


def has_rows_of_each_shard(tree: QueryTree, number: int, merging: Merging) -> bool:
    """Whether a query over slot `number` has other rows because those of shards are not merged."""
    for query in filter(None, map(query_of, pushing.nodes_of(tree, number))):
        titles = {child.kind for child in query.children if child.id < 0}
        is_grouped = "GROUP BY" in titles or called(query, "aggregate")
        is_limited = not titles.isdisjoint(_LIMITING) or query.fact("is_distinct") == "1"
        is_limited = is_limited or bool(called(query, "window"))
        if merging is not Merging.OF_ALL_SHARDS and is_grouped:
            return True
        if merging is Merging.NONE and is_limited:
            return True
    return False


def query_of(table: Node) -> Node | None:
    """The query that reads a table."""
    at = table.parent
    while at is not None and at.kind != "QUERY":
        at = at.parent
    return at


def own_nodes(query: Node) -> Iterator[Node]:
    """Without those of queries in it."""
    pending = list(query.children)
    while pending:
        node = pending.pop()
        if node.kind not in ("QUERY", "UNION"):
            yield node
            pending += node.children


def called(query: Node, kind: str) -> set[str]:
    """Functions of a kind that the query itself calls."""
    return {
        node.fact("function_name")
        for node in own_nodes(query)
        if node.kind == "FUNCTION" and node.fact("function_type") == kind
    }
