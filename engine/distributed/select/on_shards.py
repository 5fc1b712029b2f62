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

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.distributed.select import clauses, pushing
from engine.distributed.select.hoisted import hoisted
from engine.distributed.select.model import (
    TABLE_PLACE,
    OfEach,
    OtherTable,
    RemoteSelect,
    SourceColumn,
)
from engine.distributed.select.query_tree import Node, QueryTree
from engine.distributed.select.template import Template, place_text
from engine.distributed.select.two_phase import (
    HAS_TOTALS,
    PLACE,
    Describe,
    calls_of,
    groups_of_each,
    keys_of,
    two_phases,
)
from engine.errors import Code, SqlError
from engine.names import quote_identifier, quote_string
from engine.sql.cursor import Cursor

_ENDS = frozenset({"UNION", "EXCEPT", "INTERSECT", "SETTINGS", "FORMAT", ";"})
_BEHIND_GROUPS = frozenset(
    {"HAVING", "WINDOW", "QUALIFY", "ORDER", "LIMIT", "OFFSET", "FETCH", "INTERPOLATE"}
)


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


@dataclass(frozen=True, slots=True)
class _Block:
    """One query in the resolved text, by indices of tokens; `place` is the string of its first table."""

    begin: int
    end: int
    place: int
    slot: int


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
        raise _refused("beside WITH RECURSIVE, or WITH that materializes or names columns")
    if any(slot.condition for slot in template.slots):
        raise _refused("with the setting additional_table_filters")
    if any(slot.table.is_merged for slot in template.slots):
        raise _refused("in merge() or a table of engine Merge")
    if any(slot.has_prewhere for slot in template.slots):
        raise _refused("with FINAL and PREWHERE")
    nodes = [node for number in range(len(template.slots)) for node in pushing.nodes_of(tree, number)]
    if not all(map(pushing.is_resolved, nodes)):
        raise _refused("in view(SELECT …)")
    cursor = Cursor(tree.text)
    places = _places(cursor, len(template.slots))
    if len({number for _, number in places}) < len(template.slots):
        raise _refused("in a subquery that is one value, or EXISTS")
    blocks = _blocks(cursor, places)
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
        pieces += (tree.text[copied:start], text)
        copied = cursor.tokens[block.end - 1].end
    pieces.append(tree.text[copied:])
    return _with_places("".join(pieces), len(template.slots)), reads


def _with_places(text: str, count: int) -> str:
    """The resolved text, where `null('…')` becomes the place of its slot again."""
    cursor = Cursor(text)
    replacements = []
    for at, number in _places(cursor, count):
        call = tuple(token.text for token in cursor.tokens[at - 2 : at + 2])
        replacements.append((call, place_text(number)))
    return clauses.replaced(text, replacements)


def _places(cursor: Cursor, count: int) -> list[tuple[int, int]]:
    """The tokens of the slots' strings, with the slots, in their order."""
    found = [
        (at, number) for number in range(count) for at in clauses.places_of_table(cursor, pushing.tag(number))
    ]
    return sorted(found)


def _blocks(cursor: Cursor, places: list[tuple[int, int]]) -> list[_Block]:
    """The queries whose first table is a slot, the outermost ones, in their order."""
    found = []
    for at, number in places:
        before = at - 3  # null ( '…'
        if cursor.words[before] != "FROM":
            continue
        begin = before
        while cursor.words[begin] != "SELECT":
            begin -= 1
            if cursor.words[begin] in (")", "]", "}"):
                begin = _opening(cursor, begin)
        end = at + 2
        cursor.at = end
        while cursor.at < len(cursor.words) and cursor.word not in _ENDS and cursor.word != ")":
            if not cursor.skip_brackets():
                cursor.at += 1
        found.append(_Block(begin, cursor.at, at, number))
    found.sort(key=lambda one: one.begin)
    return [one for one in found if not any(o.begin < one.begin < o.end for o in found)]


def _opening(cursor: Cursor, at: int) -> int:
    depth = 0
    while True:
        depth += (cursor.words[at] in (")", "]", "}")) - (cursor.words[at] in ("(", "[", "{"))
        if depth == 0:
            return at
        at -= 1


@dataclass(frozen=True, slots=True)
class _Cut:
    """Makes of one block what the shards execute, and what is left."""

    template: Template
    tree: QueryTree
    cursor: Cursor
    block: _Block
    others: list[int]
    places: list[tuple[int, int]]
    spread: Spread

    async def made(self, describe: Describe) -> tuple[str, RemoteSelect] | None:
        """The text in the block's place, and the read. None where the usual way gives the same answer."""
        query = self._query()
        is_grouped = query is not None and (query.section("GROUP BY") is not None or _aggregates(query))
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
        at = nodes[0].parent if len(nodes) == 1 else None
        while at is not None and at.kind != "QUERY":
            at = at.parent
        if at is None:
            raise _refused("in a statement of this shape")
        return at

    async def _whole(self, describe: Describe) -> tuple[str, RemoteSelect]:
        """Every shard answers the query."""
        if HAS_TOTALS in self._query().rest:
            phases = await two_phases(self.tree, self.template.slots[self.block.slot], describe)
            if phases is None:
                raise _refused("with WITH TOTALS in a query of this shape")
            read = await self._of_each(phases.initiator, phases.remote, describe)
            return self._select_of(read), read
        text = self._text(self.block.begin, self.block.end)
        columns = await self._described(text, describe)
        return self._read(columns, self._text_with_others(self.block.begin, self.block.end))

    async def _groups(self, query: Node, describe: Describe) -> tuple[str, RemoteSelect]:
        """Every shard answers up to HAVING."""
        if HAS_TOTALS in query.rest:
            phases = await groups_of_each(self.tree, self.template.slots[self.block.slot], describe)
            if phases is None:
                raise _refused("with WITH TOTALS in a query of this shape")
            read = await self._of_each(phases.groups, phases.remote, describe)
            return phases.initiator.replace(PLACE, place_text(self.block.slot)), read
        names = _aggregates(query) | ({"grouping"} if query.fact("group_by_type") else set())
        windows = {n.fact("function_name") for n in query.walk() if n.fact("function_type") == "window"}
        cursor, block = self.cursor, self.block
        from_at = block.place - 3
        behind = self._behind(_BEHIND_GROUPS)
        select, upper = self._text(block.begin, from_at), self._text(behind, block.end)
        if names & windows or "SELECT" in Cursor(f"{select[6:]} {upper}").words:
            raise _refused("with this use of window functions or subqueries")
        parts = {clause.keyword: clause for clause in clauses.clauses_behind(cursor, block.place)}
        keys, _ = keys_of(cursor, parts.get("GROUP"))
        made = [(key, f"__g{number}") for number, key in enumerate(keys)]
        replacements = [(clauses.token_texts(key), name) for key, name in made]
        replacements.sort(key=lambda one: -len(one[0]))  # one key may be a part of another
        calls = sorted(calls_of(f"{select} {upper}", names), key=lambda one: (-len(one.tokens), one.tokens))
        for number, call in enumerate(calls):
            made.append((f"{call.name}{call.rest}", f"__a{number}"))
            replacements.insert(0, (call.tokens, f"__a{number}"))
        columns = await self._described(f"SELECT {_listed(made)} {self._text(from_at, behind)}", describe)
        having = "HAVING" in parts
        having_text = self._clause(parts["HAVING"]) if having else ""
        inner = f"SELECT {self._on_shard(_listed(made))} {self._text_with_others(from_at, behind)}"
        _, read = self._read(columns, inner)
        upper_text = clauses.replaced(self._without_having(behind, parts), replacements)
        where = f" WHERE {clauses.replaced(having_text, replacements)}" if having else ""
        text = f"{clauses.replaced(select, replacements)} FROM {place_text(block.slot)}{where} {upper_text}"
        return self._checked(text), read

    async def _of_each(self, select: str, remote: RemoteSelect, describe: Describe) -> RemoteSelect:
        """A read of what `select` makes of each shard's states."""
        nothing = f"null({quote_string(remote.structure)})"
        of_each = OfEach(select, await self._described(select.replace(PLACE, nothing), describe))
        return replace(remote, of_each=of_each, has_one_row=False, is_sum=False)

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
        names = _aggregates(query)
        is_distinct = cursor.words[block.begin + 1] == "DISTINCT"
        ranges = hoisted(cursor, (block.begin + 1 + is_distinct, from_at), found, aggregates=names)
        made = [(self._text_with_others(*one), f"__e{number}") for number, one in enumerate(ranges)]
        described = [(self._text(*one), name) for one, (_, name) in zip(ranges, made, strict=True)]
        replacements = [(clauses.token_texts(text), name) for text, name in described]
        replacements.sort(key=lambda one: -len(one[0]))
        rest = clauses.replaced(f"{select} {upper}", replacements)
        is_grouped = bool(names) or any(clause.keyword == "GROUP" for clause in found)
        if not is_grouped and "SELECT" in Cursor(rest[6:]).words:
            raise _refused("with a subquery in LIMIT BY or behind ORDER BY")
        aliases = {
            cursor.tokens[at + 1].text
            for at in range(from_at, behind - 1)
            if cursor.words[at] == "AS" and cursor.tokens[at + 1].text.startswith("__")
        }
        for number, tokens in enumerate(sorted(_columns(rest, aliases), key=lambda one: (-len(one), one))):
            text, name = "".join(tokens), f"__c{number}"
            described.append((text, name))
            made.append((self._on_shard(text), name))
            replacements.append((tokens, name))
        nothing = [("toUInt8(0)", "__nothing")]
        source = self._text(from_at, behind)
        columns = await self._described(f"SELECT {_listed(described or nothing)} {source}", describe)
        source = self._text_with_others(from_at, behind)
        _, read = self._read(columns, f"SELECT {_listed(made or nothing)} {source}")
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

    def _without_having(self, behind: int, parts: dict[str, clauses.Clause]) -> str:
        having = parts.get("HAVING")
        return self._text(having.end if having else behind, self.block.end)

    def _clause(self, clause: clauses.Clause) -> str:
        return self._text(clause.begin, clause.end)

    def _text(self, begin: int, end: int) -> str:
        return clauses.text_of(self.cursor, begin, end)

    def _text_with_others(self, begin: int, end: int) -> str:
        """For the shards: places of tables in the place of `null('…')`, FINAL and SAMPLE again."""
        cursor = self.cursor
        pieces: list[str] = []
        copied = cursor.tokens[begin].start
        for at, number in self.places:
            if not begin <= at < end:
                continue
            slot = self.template.slots[number]
            is_main = number == self.block.slot
            place, modifiers = (TABLE_PLACE, slot.modifiers) if is_main else OtherTable.places(number)
            has_alias = cursor.words[at + 2 : at + 3] == ["AS"]
            last = at + 3 if has_alias else at + 1
            alias = self._text(at + 2, at + 4) if has_alias else ""
            pieces += (cursor.sql[copied : cursor.tokens[at - 2].start], f"{place} {alias}{modifiers}")
            copied = cursor.tokens[last].end
        return self._on_shard("".join([*pieces, cursor.sql[copied : cursor.tokens[end - 1].end]]))

    def _on_shard(self, text: str) -> str:
        alias = self.cursor.tokens[self.block.place + 3].text
        return pushing.remote_text(text, alias, self.template.slots[self.block.slot].columns)

    async def _described(self, text: str, describe: Describe) -> tuple[SourceColumn, ...]:
        try:
            described = await describe(text)
        except SqlError as error:
            raise _refused("in a statement whose parts do not stand alone, such as with EXISTS") from error
        columns = tuple(SourceColumn(name, type_) for name, type_ in described)
        if len({column.name for column in columns}) != len(columns):
            raise _refused("with two columns of one name in the answer")
        return columns

    def _read(self, columns: tuple[SourceColumn, ...], inner: str) -> tuple[str, RemoteSelect]:
        others = tuple(
            OtherTable(number, pushing.plain_read(slot, slot.columns), slot.modifiers)
            for number, slot in enumerate(self.template.slots)
            if number in self.others
        )
        read = RemoteSelect(
            tuple((quote_identifier(column.name), column) for column in columns),
            pruned_by=pushing.read_of(
                self.tree, self.template.slots[self.block.slot], self.block.slot
            ).pruned_by,
            block=inner,
            others=others,
            reads_others_locally=self.spread.is_local,
        )
        return self._select_of(read), read

    def _checked(self, text: str) -> str:
        """Nothing may be left that only the shards know."""
        cursor = self.cursor
        alias = cursor.tokens[self.block.place + 3].text
        if alias in clauses.token_texts(text):
            raise _refused("with an expression that needs columns behind GROUP BY")
        return text


def _listed(items: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{text} AS {name}" for text, name in items)


def _aggregates(query: Node) -> set[str]:
    """Aggregate functions of the query itself."""
    found = set()
    pending = list(query.children)
    while pending:
        node = pending.pop()
        if node.kind in ("QUERY", "UNION"):
            continue
        if node.kind == "FUNCTION" and node.fact("function_type") == "aggregate":
            found.add(node.fact("function_name"))
        pending += node.children
    return found


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
