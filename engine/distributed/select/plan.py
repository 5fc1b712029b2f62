"""From a statement with places to one that chDB runs.

Every place gets a subquery over the shards. ClickHouse's own analysis of the statement, with empty tables in
the places, says what the shards may leave out; where it says nothing, whole tables are read, which is always
right.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from engine.distributed.select import pushing
from engine.distributed.select.array_joins import are_subcolumns_beside_array_join
from engine.distributed.select.asterisks import names_columns_of_asterisks
from engine.distributed.select.model import RemoteSelect, ShardSource, SourceColumn, TooLong, structure_of
from engine.distributed.select.on_shards import on_shards
from engine.distributed.select.prewhere import with_prewhere
from engine.distributed.select.query_tree import QueryTree, parse_query_tree
from engine.distributed.select.repeatable import is_repeatable
from engine.distributed.select.spread import USUAL, Spread
from engine.distributed.select.template import Template, fill_places, place_text
from engine.distributed.select.two_phase import PLACE, Describe, two_phases
from engine.errors import Code, SqlError
from engine.names import quote_identifier, quote_string
from engine.sql.cursor import Cursor
from engine.sql.output import without_output_clauses

Analyse = Callable[[str], Awaitable[str]]
"""The answer to a statement that reads no table; empty when ClickHouse refuses it."""

_EXPLAIN = "EXPLAIN QUERY TREE run_passes = 1, passes = 1, dump_ast = 1 "
_WHERE = re.compile(r"[.:] In (?:scope|query) .*", re.DOTALL)
"""What chDB quotes in an error is no user's text."""
_BEGINS = ("SELECT", "WITH", "(", "FROM")


@dataclass(frozen=True, slots=True)
class Plan:
    """`reads` says what the shards are asked, place by place; `is_two_phase` how it is put together.
    `takes_settings`: a clause SETTINGS may be put behind the text."""

    sql: str
    reads: tuple[RemoteSelect, ...]
    is_two_phase: bool = False
    takes_settings: bool = False


@dataclass(frozen=True, slots=True)
class Analysis:
    """What is known of a statement before anybody says where its shards are.

    `text` has a place for every Distributed table, with `columns` there, whatever is read. `choices` are the
    reads for each place, the best first; `phases` is the statement put together from states, which is better
    still.
    """

    text: str
    columns: tuple[tuple[SourceColumn, ...], ...]
    choices: tuple[tuple[RemoteSelect, ...], ...]
    phases: tuple[str, RemoteSelect] | None = None
    is_repeatable: bool = False
    """The same text will have the same analysis as long as the Distributed table's definition stays."""
    takes_settings: bool = False
    """The statement of `phases` is a SELECT that ends with it, without clauses about its output."""
    is_understood: bool = True
    """ClickHouse's analysis took the statement."""
    needs_tables: bool = False
    """What stands in the places has to be like a table, which a subquery is not: see `array_joins`."""

    @property
    def reads(self) -> Iterator[RemoteSelect]:
        """All that may be chosen but for `phases`."""
        return itertools.chain.from_iterable(self.choices)

    @property
    def has_one_row(self) -> bool:
        """The answer is at most one row of values of bounded size."""
        return self.is_repeatable and self.phases is not None and self.phases[1].has_one_row


async def plan_select(
    template: Template, analyse: Analyse, describe: Describe, *, allows_two_phases: bool = True
) -> Plan:
    """Raises SqlError as the tables' sources do."""
    analysis = await analyse_select(template, analyse, describe, allows_two_phases=allows_two_phases)
    return await fill(analysis, [slot.table.source for slot in template.slots])


async def analyse_select(
    template: Template,
    analyse: Analyse,
    describe: Describe,
    *,
    allows_two_phases: bool = True,
    spread: Spread = USUAL,
    null_for_empty: bool = False,
    limits_rows: bool = True,
) -> Analysis:
    """`limits_rows` is that of `pushing.read_of`. Raises SqlError as `describe` does, and 48 for what
    `spread` cannot be done with."""
    begin = select_begins(template.text)
    columns = tuple(slot.columns for slot in template.slots)
    tree = await _analysed(template, begin, analyse)
    if tree is not None:
        template = with_prewhere(template, tree)
    plain = [pushing.plain_read(slot, slot.columns) for slot in template.slots]
    if spread is not USUAL:
        if tree is None:
            await _check(template, begin, describe)
        analysis = await _spread(template, begin, tree, describe, spread)
        if analysis is not None:
            return analysis
    if tree is None:
        return Analysis(template.text, columns, tuple((read,) for read in plain), is_understood=False)
    phases = None
    if allows_two_phases and len(template.slots) == 1:
        phases = await _in_two_phases(template, begin, tree, describe, null_for_empty=null_for_empty)
    choices = tuple(
        (pushing.read_of(tree, slot, number, limits_rows=limits_rows), plain[number])
        for number, slot in enumerate(template.slots)
    )
    are_named = names_columns_of_asterisks(Cursor(template.text))
    columns = tuple(
        slot.columns if are_named or pushing.names_all_columns(tree, number) else ()
        for number, slot in enumerate(template.slots)
    )
    repeatable = is_repeatable(template.text, tree, places=len(template.slots))
    takes_settings = phases is not None and not begin and not _rest(template.text).strip()
    needs_tables = are_subcolumns_beside_array_join(tree, template.slots)
    return Analysis(
        template.text, columns, choices, phases, repeatable, takes_settings, needs_tables=needs_tables
    )


async def _spread(
    template: Template, begin: int, tree: QueryTree | None, describe: Describe, spread: Spread
) -> Analysis | None:
    """None where nothing is left to the shards that they do not do anyway: the user's own text is better than
    ClickHouse's resolved one, which not even ClickHouse reads everywhere."""
    text, reads = await on_shards(template, tree, spread, describe)
    if not reads:
        return None
    texts = [text, *(read.of_each.select for read in reads.values() if read.of_each)]
    rest = _rest(template.text[begin:])
    columns: list[tuple[SourceColumn, ...]] = []
    choices: list[tuple[RemoteSelect, ...]] = []
    for number, slot in enumerate(template.slots):
        if number in reads:
            columns.append(())
            choices.append((reads[number],))
        else:
            columns.append(slot.columns)
            is_there = any(place_text(number) in one for one in texts)
            choices.append((pushing.read_of(tree, slot, number),) if tree and is_there else ())
    filled = f"{template.text[:begin]}{text} {rest}"
    return Analysis(filled, tuple(columns), tuple(choices), is_understood=tree is not None)


async def fill(analysis: Analysis, sources: Sequence[ShardSource]) -> Plan:
    """The statement with a subquery over `sources` in each place. Raises SqlError as they do."""
    if analysis.phases is not None:
        text, remote = analysis.phases
        try:
            expression = await sources[0].table_expression(remote)
        except TooLong:
            pass
        else:
            sql = text.replace(PLACE, expression)
            return Plan(sql, (remote,), is_two_phase=True, takes_settings=analysis.takes_settings)
    return await _filled(analysis, sources)


async def _filled(analysis: Analysis, sources: Sequence[ShardSource]) -> Plan:
    """In each place the first of several reads whose text is not too long."""
    chosen: list[RemoteSelect] = []
    expressions: list[str] = []
    for columns, choices, source in zip(analysis.columns, analysis.choices, sources, strict=True):
        if not choices:
            expressions.append("")
        for at, read in enumerate(choices):
            try:
                expression = await source.table_expression(read, sources)
            except TooLong:
                if at + 1 == len(choices):
                    raise SqlError(
                        Code.NOT_IMPLEMENTED, "What a shard would be asked is longer than a request may be."
                    ) from None
                continue
            chosen.append(read)
            whole = _with_all_columns(columns, read, expression)
            expressions.append(f"view{whole}" if analysis.needs_tables else whole)
            break
    # What is made of each shard's rows may read other tables.
    expressions = [fill_places(expression, expressions) for expression in expressions]
    return Plan(fill_places(analysis.text, expressions), tuple(chosen))


async def _analysed(template: Template, begin: int, analyse: Analyse) -> QueryTree | None:
    return parse_query_tree(await analyse(_EXPLAIN + _over_nothing(template, begin)))


async def _check(template: Template, begin: int, describe: Describe) -> None:
    """Raises SqlError for a SELECT that is wrong."""
    try:
        await describe(_over_nothing(template, begin))
    except SqlError as error:
        raise SqlError(error.code, _WHERE.sub("", error.message), name=error.name) from error


def _over_nothing(template: Template, begin: int) -> str:
    """The SELECT, without the clauses about its output."""
    return without_output_clauses(over_nothing(template)[begin:])


def over_nothing(template: Template) -> str:
    """The statement over tables without rows."""
    return template.fill(
        [
            f"null({quote_string(structure_of(slot.columns) + pushing.tag(number))})"
            for number, slot in enumerate(template.slots)
        ]
    )


async def _in_two_phases(
    template: Template, begin: int, tree: QueryTree, describe: Describe, *, null_for_empty: bool
) -> tuple[str, RemoteSelect] | None:
    """The statement with `PLACE` where the shards' states are read."""
    phases = await two_phases(tree, template.slots[0], describe, null_for_empty=null_for_empty)
    if phases is None:
        return None
    rest = _rest(template.text[begin:])
    return f"{template.text[:begin]}{phases.initiator} {rest}", phases.remote


def _rest(select: str) -> str:
    """The clauses about a SELECT's output."""
    return select[len(without_output_clauses(select).rstrip("; \t\r\n")) :]


def _with_all_columns(columns: Sequence[SourceColumn], read: RemoteSelect, expression: str) -> str:
    """Columns that nobody reads keep their names: on them depends what a join calls the others."""
    present = {column.name for _, column in read.columns}
    if present.issuperset(column.name for column in columns):
        return expression
    items = ", ".join(
        quote_identifier(column.name)
        if column.name in present
        else f"defaultValueOfTypeName({quote_string(column.type)}) AS {quote_identifier(column.name)}"
        for column in columns
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
        if cursor.word == "FROM" and not cursor.looking_at("FROM", "INFILE"):
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
