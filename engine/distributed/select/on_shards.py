"""Queries of which the shards execute more than they would have to, because a setting asks for that.

- `distributed_group_by_no_merge` = 1: a query over a Distributed table is executed whole by every shard, and
  the answer is one after the other. = 2: the shards end at HAVING; the initiator evaluates what SELECT makes
  of groups, windows, DISTINCT, ORDER BY and LIMIT.
- `distributed_product_mode` = 'local': in IN and JOIN every shard reads its own table instead of the
  Distributed one. The shard executes FROM and WHERE, the initiator everything behind.

A query counts as one over a Distributed table if that is the first table of its FROM, as in ClickHouse. It is
cut out of ClickHouse's resolved text, in which every name is whole. Here nothing may be left to the way of
`pushing`, whose answer is another one: what cannot be cut out is refused.

Source: StorageDistributed::getQueryProcessingStage, InJoinSubqueriesPreprocessor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.distributed.select import clauses, pushing
from engine.distributed.select.blocks import Block, blocks_of, places_of_slots, with_places
from engine.distributed.select.hoisted import hoisted
from engine.distributed.select.model import (
    READ_WITH_PLACE,
    SHARD_PLACE,
    TABLE_PLACE,
    OfEach,
    OtherTable,
    RemoteSelect,
    SourceColumn,
)
from engine.distributed.select.query_tree import Node, QueryTree
from engine.distributed.select.sides import Side, sides_of
from engine.distributed.select.spread import (
    Merging,
    Spread,
    called,
    has_rows_of_each_shard,
    own_nodes,
    query_of,
)
from engine.distributed.select.template import Slot, Template, place_text
from engine.distributed.select.two_phase import (
    HAS_TOTALS,
    PLACE,
    Describe,
    calls_of,
    is_mergeable,
    keys_of,
    making_of,
    needs_rows,
)
from engine.distributed.select.unique_tables import with_unique_tables
from engine.errors import Code, SqlError
from engine.names import TableName, quote_identifier, quote_string
from engine.sql.cursor import Cursor
from engine.sql.sources import read_tables

_ONE = TableName("system", "one")
"""Every server has it."""
_NOTHING = (("toUInt8(0)", "__nothing"),)
"""Read where no column is."""
_BEHIND_GROUPS = frozenset(
    {"HAVING", "WINDOW", "QUALIFY", "ORDER", "LIMIT", "OFFSET", "FETCH", "INTERPOLATE"}
)


async def on_shards(
    template: Template, tree: QueryTree | None, spread: Spread, describe: Describe
) -> tuple[str, dict[int, RemoteSelect]]:
    """The statement's SELECT with places where the slots of the second are read.

    `tree` is None for a statement that ClickHouse does not analyse. Raises SqlError 48 for a shape that
    cannot be cut out.
    """
    if tree is None:
        raise _refused("in a statement that cannot be analysed; it may be wrong")
    if any(node.fact("is_cte") == "1" for node in tree.root.walk()):
        raise _refused("beside WITH RECURSIVE, or WITH that materializes")
    if any(slot.table.is_merged for slot in template.slots):
        raise _refused("in merge() or a table of engine Merge")
    if any(slot.has_prewhere for slot in template.slots):
        raise _refused("with FINAL and PREWHERE")
    nodes = [node for number in range(len(template.slots)) for node in pushing.nodes_of(tree, number)]
    if not all(map(pushing.is_resolved, nodes)):
        raise _refused("in view(SELECT …)")
    resolved = with_unique_tables(tree.text)
    cursor = Cursor(resolved)
    places = places_of_slots(cursor, len(template.slots))
    if len({number for _, number in places}) < len(template.slots):
        raise _refused("in a subquery that is one value, or EXISTS, and names columns around it")
    blocks = blocks_of(cursor, places)
    reads: dict[int, RemoteSelect] = {}
    pieces: list[str] = []
    copied = 0
    for block in blocks:
        others = sorted({number for at, number in places if block.begin < at < block.end} - {block.slot})
        if any(other.slot in others for other in blocks):
            raise _refused("in a subquery that is used in two queries")
        cut = await _Cut(template, tree, cursor, block, others, places, spread).made(describe)
        if cut is None:
            continue
        text, reads[block.slot] = cut
        start = cursor.tokens[block.begin].start
        pieces += (resolved[copied:start], text)
        copied = cursor.tokens[block.end - 1].end
    pieces.append(resolved[copied:])
    return with_places("".join(pieces), len(template.slots)), reads


@dataclass(frozen=True, slots=True)
class _Cut:
    """Makes of one block what the shards execute, and what is left."""

    template: Template
    tree: QueryTree
    cursor: Cursor
    block: Block
    others: list[int]
    places: list[tuple[int, int]]
    spread: Spread

    async def made(self, describe: Describe) -> tuple[str, RemoteSelect] | None:
        """The text in the block's place, and the read. None where the usual way gives the same answer."""
        query = self._query()
        is_grouped = query is not None and (
            query.section("GROUP BY") is not None or called(query, "aggregate")
        )
        match self.spread.merging:
            case Merging.NONE:
                return await self._whole(describe)
            case Merging.OF_ROWS_ONLY if is_grouped:
                return await self._groups(query, describe)
            case _ if self.others and self.spread.is_local:
                return await self._rows(query or self._query(), describe)
            case _:
                return None

    def _query(self) -> Node:
        nodes = pushing.nodes_of(self.tree, self.block.slot)
        query = query_of(nodes[0]) if len(nodes) == 1 else None
        if query is None:
            raise _refused("in a statement of this shape")
        return query

    async def _whole(self, describe: Describe) -> tuple[str, RemoteSelect]:
        """Every shard answers the query."""
        query = self._query()
        if HAS_TOTALS in query.rest:
            return await self._with_totals(query, describe)
        text = self._text(self.block.begin, self.block.end)
        columns = await self._described(text, describe)
        return self._read(columns, self._on_shard(text))

    async def _groups(self, query: Node, describe: Describe) -> tuple[str, RemoteSelect]:
        """Every shard answers up to HAVING."""
        if HAS_TOTALS in query.rest:
            return await self._with_totals(query, describe)
        names = called(query, "aggregate") | ({"grouping"} if query.fact("group_by_type") else set())
        cursor, block = self.cursor, self.block
        from_at = block.place - 3
        parts = {clause.keyword: clause for clause in clauses.clauses_behind(cursor, block.place)}
        behind = parts["HAVING"].end if "HAVING" in parts else self._behind(_BEHIND_GROUPS)
        select, upper = self._text(block.begin, from_at), self._text(behind, block.end)
        keys, _ = keys_of(cursor, parts.get("GROUP"))
        made = [(key, f"__g{number}") for number, key in enumerate(keys)]
        replacements = _by_length(made)
        calls = sorted(calls_of(f"{select} {upper}", names), key=lambda one: (-len(one.tokens), one.tokens))
        for number, call in enumerate(calls):
            made.append((f"{call.name}{call.rest}", f"__a{number}"))
            replacements.insert(0, (call.tokens, f"__a{number}"))
        text = f"SELECT {_listed(made or _NOTHING)} {self._text(from_at, behind)}"
        _, read = self._read(await self._described(text, describe), self._on_shard(text))
        text = f"{select} FROM {place_text(block.slot)} {upper}"
        return self._checked(clauses.replaced(text, replacements)), read

    async def _with_totals(self, query: Node, describe: Describe) -> tuple[str, RemoteSelect]:
        """Every shard answers with the states of its groups. An answer has rows only, so what is made of the
        groups of one shard, and their totals, is made here, with this node's dictionaries: the whole query,
        or its part up to HAVING."""
        cursor, block = self.cursor, self.block
        from_at, behind = block.place - 3, self._behind(_BEHIND_GROUPS)
        select, upper = self._text(block.begin, from_at), self._text(behind, block.end)
        parts = {clause.keyword: clause for clause in clauses.clauses_behind(cursor, block.place)}
        keys, end = keys_of(cursor, parts.get("GROUP"))
        if "GROUP" not in parts:
            end = parts["WITH"].begin - 1
        names = called(query, "aggregate")
        making = making_of(calls_of(f"{select} {upper}", names), has_keys=bool(keys), null_for_empty=True)
        made = [*((key, f"__g{number}") for number, key in enumerate(keys)), *making.states]
        if (
            not made
            or not all(map(is_mergeable, names))
            or any(map(needs_rows, own_nodes(query)))
            or any(self._aliases().isdisjoint(clauses.token_texts(key)) for key in keys)
        ):
            raise _refused("with WITH TOTALS in a query of this shape")
        text = f"SELECT {_listed(made)} {self._text(from_at, end)}"
        _, read = self._read(await self._described(text, describe), self._on_shard(text))
        of_keys = _by_length(made[: len(keys)])
        here = [*making.replacements, *of_keys]
        listed = [f"__g{number}" for number in range(len(keys))]
        groups = f"{PLACE} {'GROUP BY ' if keys else ''}{', '.join(listed)} {self._text(end, behind)}"
        if self.spread.merging is Merging.NONE:
            whole = f"{clauses.replaced(select, here)} FROM {groups} {clauses.replaced(upper, here)}"
            read = await self._of_each(whole, read, describe)
            return self._select_of(read), read
        listed += [f"{text} AS __v{number}" for number, (_, text) in enumerate(making.replacements)]
        having, upper = clauses.without_having(upper)
        part = f"SELECT {', '.join(listed)} FROM {groups} {clauses.replaced(having, here)}"
        read = await self._of_each(part, read, describe)
        values = [(tokens, f"__v{number}") for number, (tokens, _) in enumerate(making.replacements)]
        select, upper = (clauses.replaced(text, [*values, *of_keys]) for text in (select, upper))
        return self._checked(f"{select} FROM {place_text(block.slot)} {upper}"), read

    async def _of_each(self, select: str, remote: RemoteSelect, describe: Describe) -> RemoteSelect:
        """A read of what `select` makes of each shard's states here, where no shard's own table is."""
        count = len(self.template.slots)
        text = self._checked(select).replace(PLACE, f"null({quote_string(remote.structure)})")
        tables = {ref.name for ref in read_tables(Cursor(text), 0)} - {_ONE}
        if tables or (self.spread.is_local and places_of_slots(Cursor(text), count)):
            raise _refused("with WITH TOTALS and a subquery that reads a table of the shards")
        return replace(
            remote, of_each=OfEach(with_places(select, count), await self._described(text, describe))
        )

    def _select_of(self, read: RemoteSelect) -> str:
        listed = ", ".join(quote_identifier(column.name) for column in read.result)
        return f"SELECT {listed} FROM {place_text(self.block.slot)}"

    async def _rows(self, query: Node, describe: Describe) -> tuple[str, RemoteSelect]:
        """Every shard answers FROM and WHERE, and sends what the rest needs: columns, and expressions with
        subqueries."""
        cursor, block = self.cursor, self.block
        from_at = block.place - 3
        behind = self._behind(_BEHIND_GROUPS | {"GROUP"})
        select, upper = self._text(block.begin, from_at), self._text(behind, block.end)
        found = clauses.clauses_behind(cursor, block.place)
        names = called(query, "aggregate")
        is_distinct = cursor.words[block.begin + 1] == "DISTINCT"
        windows = called(query, "window")
        select_list = (block.begin + 1 + is_distinct, from_at)
        ranges = hoisted(cursor, select_list, found, aggregates=names, windows=windows)
        made = [(self._text(*one), f"__e{number}") for number, one in enumerate(ranges)]
        replacements = _by_length(made)
        rest = clauses.replaced(f"{select} {upper}", replacements)
        keywords = {clause.keyword for clause in found}
        has_upper = names or windows or not keywords.isdisjoint(("GROUP", "QUALIFY"))
        if not has_upper and "SELECT" in Cursor(rest[6:]).words:
            raise _refused("with a subquery behind ORDER BY")
        for number, tokens in enumerate(
            sorted(_columns(rest, self._aliases()), key=lambda one: (-len(one), one))
        ):
            made.append(("".join(tokens), f"__c{number}"))
            replacements.append((tokens, f"__c{number}"))
        text = f"SELECT {_listed(made or _NOTHING)} {self._text(from_at, behind)}"
        _, read = self._read(await self._described(text, describe), self._on_shard(text))
        text = f"{select} FROM {place_text(block.slot)} {upper}"
        return self._checked(clauses.replaced(text, replacements)), read

    def _behind(self, keywords: frozenset[str]) -> int:
        """The token of the first of `keywords` behind FROM."""
        cursor = self.cursor
        cursor.at = self.block.place + 2
        while cursor.at < self.block.end:
            if cursor.word in keywords:
                break
            if not cursor.skip_brackets():
                cursor.at += 1
        return cursor.at

    def _aliases(self) -> set[str]:
        """Of what stands in FROM."""
        cursor, found = self.cursor, set()
        end = self._behind(_BEHIND_GROUPS | {"GROUP"})
        cursor.at = self.block.place + 2
        while cursor.at < end:
            if cursor.word == "AS":
                found.add(cursor.tokens[cursor.at + 1].text)
            if not cursor.skip_brackets():
                cursor.at += 1
        return {name for name in found if name.startswith("__")}

    def _text(self, begin: int, end: int) -> str:
        return clauses.text_of(self.cursor, begin, end)

    def _is_local(self, at: int) -> bool:
        """Whether the table at token `at` is each shard's own."""
        sides = sides_of(self.cursor.words, at - 2, self.block.begin)
        if not self.spread.is_local or not sides:
            return False
        if sides[0] is Side.PLAIN and Side.GLOBAL in sides:
            raise _refused("on the right of IN or JOIN within that of GLOBAL IN or JOIN")
        return sides[0] is Side.PLAIN

    def _check_global(self) -> None:
        """A shard would read its own table of the name."""
        cursor, begin = self.cursor, self.block.begin
        for ref in read_tables(Cursor(self._text(begin, self.block.end)), 0):
            at = cursor.at_offset(cursor.tokens[begin].start + ref.start)
            if ref.name != _ONE and Side.GLOBAL in sides_of(cursor.words, at, begin):
                raise _refused(f"with GLOBAL and the table {ref.name}, which is none")

    def _on_shard(self, text: str) -> str:
        """A part of the block for the shards: places of tables instead of `null('…')`, FINAL and SAMPLE
        again, and what columns are that a shard has not."""
        self._check_global()
        cursor, template = self.cursor, self.template
        replacements = []
        for at, number in self.places:
            slot = template.slots[number]
            is_main = number == self.block.slot
            if not is_main and number not in self.others:
                continue
            place, modifiers = OtherTable.places(number)
            if is_main:
                place = slot.source.replace(READ_WITH_PLACE, slot.read_with) or TABLE_PLACE
                modifiers = slot.modifiers
            last, alias = at + 2, ""
            if cursor.words[last : last + 1] == ["AS"]:
                last, alias = last + 2, self._text(last, last + 2)
            tokens = tuple(token.text for token in cursor.tokens[at - 2 : last])
            replacements.append((tokens, f"{place} {alias}{modifiers}"))
            if alias and (is_main or self._is_local(at)):
                text = pushing.remote_text(text, cursor.tokens[last - 1].text, slot.columns)
        return clauses.replaced(text, replacements)

    async def _described(self, text: str, describe: Describe) -> tuple[SourceColumn, ...]:
        if self.tree.has_unwritten_values:
            raise _refused("beside a subquery that gives an array, or a state, of other tables")
        try:
            described = await describe(text)
        except SqlError as error:
            raise _refused("in a statement whose parts do not stand alone, such as with EXISTS") from error
        columns = tuple(SourceColumn(name, type_) for name, type_ in described)
        if len({column.name for column in columns}) != len(columns):
            raise _refused("with two columns of one name in the answer")
        return columns

    def _read(self, columns: tuple[SourceColumn, ...], inner: str) -> tuple[str, RemoteSelect]:
        others = []
        for number in self.others:
            slot = self.template.slots[number]
            at = next(at for at, one in self.places if one == number)
            is_local = self._is_local(at)
            if (
                not is_local
                and self.cursor.words[at - 3] == "FROM"
                and has_rows_of_each_shard(self.tree, number, self.spread.merging)
            ):
                raise _refused(
                    "on the right of IN or JOIN in a query whose rows would be those of each shard"
                )
            if not is_local and _is_of_one_shard(slot):
                raise _refused("with the setting additional_table_filters and columns that are no table's")
            if OtherTable.places(number)[0] in inner:
                plain = pushing.plain_read(slot, slot.columns)
                others.append(OtherTable(number, plain, slot.modifiers, is_local))
        read = RemoteSelect(
            tuple((quote_identifier(column.name), column) for column in columns),
            pruned_by=pushing.read_of(
                self.tree, self.template.slots[self.block.slot], self.block.slot
            ).pruned_by,
            block=inner,
            others=tuple(others),
        )
        return self._select_of(read), read

    def _checked(self, text: str) -> str:
        """Nothing may be left that only the shards know."""
        if not self._aliases().isdisjoint(clauses.token_texts(text)):
            raise _refused("with an expression that needs columns behind GROUP BY")
        return text


def _is_of_one_shard(slot: Slot) -> bool:
    """Only a shard that reads its own table can filter it."""
    return bool(slot.condition) and (SHARD_PLACE in slot.source or any(c.value for c in slot.columns))


def _listed(items: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{text} AS {name}" for text, name in items)


def _by_length(named: Sequence[tuple[str, str]]) -> list[tuple[tuple[str, ...], str]]:
    """To replace, the longest first: one may be a part of another."""
    found = [(clauses.token_texts(text), name) for text, name in named]
    return sorted(found, key=lambda one: -len(one[0]))


def _columns(text: str, aliases: set[str]) -> set[tuple[str, ...]]:
    """Every `alias.column` and `alias.column.part`."""
    tokens = [token.text for token in Cursor(text).tokens]
    found = set()
    for at, token in enumerate(tokens):
        if token not in aliases or tokens[at + 1 : at + 2] != ["."]:
            continue
        end = at + 3
        while tokens[end : end + 1] == ["."] and end + 1 < len(tokens):
            end += 2
        found.add(tuple(tokens[at:end]))
    return found


def _refused(what: str) -> SqlError:
    return SqlError(
        Code.NOT_IMPLEMENTED,
        "distributed_group_by_no_merge and distributed_product_mode = 'local' are not supported for a "
        f"Distributed table {what}.",
        hint="Reset the setting: groups are then merged, and both sides of IN and JOIN are read whole.",
    )
