"""Which expressions can be sharding keys: those that give one integer for each row, from that row.

Whatever else an expression can be in a SELECT list fails with the first INSERT, when rows are on their way.
So it is refused when the table is made, as by ClickHouse, whose codes these are where it refuses it at that
time; where ClickHouse fails with the first INSERT as well, it is error 36. Functions that are not
deterministic are allowed, as there: `rand()` is one. A table that is there already is never asked.

Source: ClickHouse's registerStorageDistributed and buildShardingKeyExpression.
"""

from __future__ import annotations

from engine.distributed.select.query_tree import Node, parse_query_tree
from engine.distributed.sharding import slot_expression
from engine.errors import Code, SqlError
from engine.node.distributed.sending.stage import Stages
from engine.sql.cursor import Cursor

_HINT = "Write an expression that gives one integer for each row, such as cityHash64(column)."
_BEFORE_ASTERISK = frozenset({"", "(", ",", "."})


async def check_sharding_key(stages: Stages, key: str, source: str) -> None:
    """`source` is SQL for a table with the columns.

    Raises SqlError 53 for another type than an integer's, 18 for several columns, 184 for an aggregate
    function, 47 for a window function or an asterisk, 36 for arrayJoin and subqueries, and chDB's own.
    """
    if _has_asterisk(key):
        raise _refused(Code.UNKNOWN_IDENTIFIER, f"`*` and COLUMNS are not allowed in a sharding key: {key}")
    slot_expression(key, await stages.type_of(key, source), 1)
    dump = await stages.reader.run(
        f"EXPLAIN QUERY TREE dump_ast = 1 SELECT {key} FROM {source}", format="TSVRaw"
    )
    tree = parse_query_tree(dump)
    projection = tree.root.section("PROJECTION") if tree is not None else None
    for node in projection.walk() if projection is not None else ():
        _check_node(node, key)


def _check_node(node: Node, key: str) -> None:
    name = node.fact("function_name")
    match node.kind, node.fact("function_type"):
        case "FUNCTION", "aggregate":
            raise _refused(
                Code.ILLEGAL_AGGREGATION,
                f"Aggregate function {name} is found in wrong place in query: sharding key {key}",
            )
        case "FUNCTION", "window":
            raise _refused(
                Code.UNKNOWN_IDENTIFIER,
                f"A sharding key knows nothing of other rows, as {name}() OVER does: {key}",
            )
        case "FUNCTION", _ if name == "arrayJoin":
            raise _refused(
                Code.BAD_ARGUMENTS, f"arrayJoin gives several values for a row, in sharding key {key}"
            )
        case (("QUERY" | "UNION" | "TABLE" | "TABLE_FUNCTION"), _):
            raise _refused(Code.BAD_ARGUMENTS, f"A sharding key cannot read tables or subqueries: {key}")


def _has_asterisk(key: str) -> bool:
    words = Cursor(key).words
    for at, word in enumerate(words):
        before = words[at - 1] if at else ""
        if word == "*" and before in _BEFORE_ASTERISK:
            return True
        if word == "COLUMNS" and words[at + 1 : at + 2] == ["("]:
            return True
    return False


def _refused(code: Code, message: str) -> SqlError:
    return SqlError(code, message, hint=_HINT)
