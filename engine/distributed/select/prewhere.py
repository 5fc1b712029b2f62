"""PREWHERE of a table that is read with FINAL.

It takes rows away before FINAL chooses among them, so as WHERE it would be another condition. It goes to the
shards behind FINAL; here it stays as WHERE, which then holds for all rows. Without FINAL both are the same.
"""

from __future__ import annotations

from dataclasses import replace

from engine.distributed.select import clauses, pushing
from engine.distributed.select.query_tree import Node, QueryTree
from engine.distributed.select.template import Slot, Template
from engine.errors import Code, SqlError


def with_prewhere(template: Template, tree: QueryTree) -> Template:
    """The template whose slots have PREWHERE among their modifiers. Raises SqlError 48 for a condition that a
    shard cannot evaluate by itself."""
    if not any(slot.has_prewhere for slot in template.slots):
        return template
    return replace(template, slots=tuple(_moved(tree, n, slot) for n, slot in enumerate(template.slots)))


def _moved(tree: QueryTree, number: int, slot: Slot) -> Slot:
    if not slot.has_prewhere:
        return slot
    text = _condition(tree, number, slot) or slot.prewhere
    if not text:
        raise SqlError(
            Code.NOT_IMPLEMENTED,
            "PREWHERE is not supported with FINAL over a Distributed table here: it may use nothing but "
            "columns of the table and functions of them.",
            hint="Write it as WHERE if it depends on nothing but the sorting key, which is the same then.",
        )
    return replace(slot, read_with=f"{slot.read_with} PREWHERE {text}")


def _condition(tree: QueryTree, number: int, slot: Slot) -> str | None:
    nodes = pushing.nodes_of(tree, number)
    cursor, place = tree.cursor, pushing.place_of(tree, number)
    if len(nodes) != 1 or place is None or tree.has_unwritten_values:
        return None
    where = next((one for one in clauses.clauses_behind(cursor, place) if one.keyword == "WHERE"), None)
    call = _first_conjunct(nodes[0])
    if where is None or call is None or not _is_own(call, nodes[0].id):
        return None
    begin, end = clauses.split(cursor, where.begin, where.end, "AND")[0]
    while cursor.words[begin] == "(":
        begin, end = begin + 1, end - 1
    if cursor.words[begin] != "IDENTITY":
        return None
    alias = nodes[0].fact("alias")
    text = clauses.text_of(cursor, begin + 1, end)
    return clauses.replaced(pushing.remote_text(text, alias, slot.columns), [((alias, "."), "")])


def _first_conjunct(table: Node) -> Node | None:
    """The call of identity."""
    at = table.parent
    while at is not None and at.kind != "QUERY":
        at = at.parent
    section = at.section("WHERE") if at is not None else None
    top = section.children[0] if section is not None and section.children else None
    if top is not None and top.fact("function_name") == "and":
        arguments = top.section("ARGUMENTS")
        listed = arguments.children[0].children if arguments and arguments.children else []
        top = listed[0] if listed else None
    return top if top is not None and top.fact("function_name") == "identity" else None


def _is_own(call: Node, table: int) -> bool:
    """Nothing but columns of the table, constants and ordinary functions."""
    for node in call.walk():
        if node.kind == "COLUMN" and node.fact("source_id") != str(table):
            return False
        if node.kind == "FUNCTION" and node.fact("function_type") != "ordinary":
            return False
        if node.id >= 0 and node.kind not in ("COLUMN", "FUNCTION", "CONSTANT", "LIST"):
            return False
    return True
