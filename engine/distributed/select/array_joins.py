"""ARRAY JOIN beside `tuple.part`, `json.path` and other subcolumns.

    SELECT a, t.x FROM (SELECT a, t FROM …) ARRAY JOIN a

ClickHouse looks for `x` in what `a` is made of, where the rows come from a subquery: that is an error, or if
there is one, another value. From a table, and from `view(SELECT …)`, it reads `t.x`.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.distributed.select import pushing
from engine.distributed.select.query_tree import QueryTree
from engine.distributed.select.template import Slot


def are_subcolumns_beside_array_join(tree: QueryTree, slots: Sequence[Slot]) -> bool:
    """Whether a statement has both, or may have: within `view(SELECT …)` names are not resolved."""
    if not any(node.kind == "ARRAY_JOIN" for node in tree.root.walk()):
        return False
    for number, slot in enumerate(slots):
        known = {column.name for column in slot.columns}
        for node in pushing.nodes_of(tree, number):
            if not pushing.is_resolved(node) or not known.issuperset(tree.columns.get(str(node.id), ())):
                return True
    return False
