"""From a statement with places to one that chDB runs.

Every place gets a subquery over the shards. ClickHouse's own analysis of the statement, with empty tables in
the places, says what the shards may leave out; where it says nothing, whole tables are read, which is always
right.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from engine.distributed.select import pushing
from engine.distributed.select.model import RemoteSelect, TooLong, structure_of
from engine.distributed.select.query_tree import QueryTree, parse_query_tree
from engine.distributed.select.template import Slot, Template
from engine.distributed.select.two_phase import PLACE, Describe, two_phases
from engine.errors import Code, SqlError
from engine.names import quote_identifier, quote_string
from engine.sql.cursor import Cursor
from engine.sql.output import without_output_clauses

Analyse = Callable[[str], Awaitable[str]]
"""The answer to a statement that reads no table; empty when ClickHouse refuses it."""

_EXPLAIN = "EXPLAIN QUERY TREE run_passes = 1, passes = 1, dump_ast = 1 "
_BEGINS = ("SELECT", "WITH", "(", "FROM")


@dataclass(frozen=True, slots=True)
class Plan:
    """`reads` says what the shards are asked, place by place; `is_two_phase` how it is put together."""

    sql: str
    reads: tuple[RemoteSelect, ...]
    is_two_phase: bool = False


async def plan_select(
    template: Template, analyse: Analyse, describe: Describe, *, allows_two_phases: bool = True
) -> Plan:
    """Raises SqlError as the tables' sources do."""
    begin = select_begins(template.text)
    plain = [pushing.plain_read(slot, slot.columns) for slot in template.slots]
    tree = await _analysed(template, begin, analyse)
    if tree is None:
        return await _filled(template, [(read,) for read in plain])
    if allows_two_phases and len(template.slots) == 1:
        try:
            plan = await _in_two_phases(template, begin, tree, describe)
        except TooLong:
            plan = None
        if plan is not None:
            return plan
    return await _filled(
        template,
        [(pushing.read_of(tree, slot, number), plain[number]) for number, slot in enumerate(template.slots)],
    )


async def _filled(template: Template, reads: Sequence[Sequence[RemoteSelect]]) -> Plan:
    """In each place the first of several reads whose text is not too long."""
    chosen: list[RemoteSelect] = []
    expressions: list[str] = []
    for slot, choices in zip(template.slots, reads, strict=True):
        for at, read in enumerate(choices):
            try:
                expression = await slot.table.source.table_expression(read)
            except TooLong:
                if at + 1 == len(choices):
                    raise SqlError(
                        Code.NOT_IMPLEMENTED, "The table has more columns than one request can name."
                    ) from None
                continue
            chosen.append(read)
            expressions.append(_with_all_columns(slot, read, expression))
            break
    return Plan(template.fill(expressions), tuple(chosen))


async def _analysed(template: Template, begin: int, analyse: Analyse) -> QueryTree | None:
    text = template.fill(
        [
            f"null({quote_string(structure_of(slot.columns) + pushing.tag(number))})"
            for number, slot in enumerate(template.slots)
        ]
    )
    return parse_query_tree(await analyse(_EXPLAIN + without_output_clauses(text[begin:])))


async def _in_two_phases(template: Template, begin: int, tree: QueryTree, describe: Describe) -> Plan | None:
    slot = template.slots[0]
    phases = await two_phases(tree, slot, describe)
    if phases is None:
        return None
    select = template.text[begin:]
    bare = without_output_clauses(select).rstrip("; \t\r\n")
    if not select.startswith(bare):
        return None
    initiator = phases.initiator.replace(PLACE, await slot.table.source.table_expression(phases.remote))
    return Plan(
        template.text[:begin] + initiator + " " + select[len(bare) :], (phases.remote,), is_two_phase=True
    )


def _with_all_columns(slot: Slot, read: RemoteSelect, expression: str) -> str:
    """Columns that nobody reads keep their names: on them depends what a join calls the others."""
    present = {column.name for _, column in read.columns}
    if present.issuperset(column.name for column in slot.columns):
        return expression
    items = ", ".join(
        quote_identifier(column.name)
        if column.name in present
        else f"defaultValueOfTypeName({quote_string(column.type)}) AS {quote_identifier(column.name)}"
        for column in slot.columns
    )
    return f"(SELECT {items} FROM {expression})"


def select_begins(sql: str) -> int:
    """The offset in characters where the SELECT of a statement begins."""
    cursor = Cursor(sql)
    if cursor.word in _BEGINS:
        return 0
    is_insert, is_explain = cursor.word == "INSERT", cursor.word == "EXPLAIN"
    while cursor.at < len(cursor.words):
        if cursor.word in ("SELECT", "WITH") or (is_explain and cursor.word == "("):
            return cursor.token.start
        if (
            cursor.word == "("
            and (cursor.words[cursor.at + 1 : cursor.at + 2] in (["SELECT"], ["WITH"]))
            and is_insert
        ):
            return cursor.token.start
        if not cursor.skip_brackets():
            cursor.at += 1
    return 0
