"""A statement with a place for every Distributed table it reads.

The user's text stays as it is but for these places and what a subquery cannot have where a table can:
FINAL and SAMPLE move into the subquery; PREWHERE becomes WHERE (`prewhere_text`; `prewhere` puts it before
FINAL where there is one); `db.t.column` becomes `t.column`, and with an alias `alias.column` (`own_names`);
and where a hidden column (MATERIALIZED, ALIAS, `_shard_num` and other virtual ones) is asked for by name, `*`
leaves it out as it would have done; what a server says of itself is a hidden column (`server_functions`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from engine.distributed.select import clauses
from engine.distributed.select.asterisks import Hidden, asterisk_edits, is_under_pattern
from engine.distributed.select.clauses import select_of
from engine.distributed.select.model import (
    ALIAS_PLACE,
    READ_WITH_PLACE,
    TABLE_PLACE,
    SourceColumn,
    SourceTable,
    virtual_columns,
)
from engine.distributed.select.own_names import database_edits, own_name_edits
from engine.distributed.select.prewhere_text import (
    CLAUSE_ENDS,
    Candidate,
    find_prewheres,
    with_moved,
)
from engine.distributed.select.server_functions import Call, server_calls
from engine.names import TableName, quote_identifier
from engine.sql.cursor import Cursor, NameRef
from engine.sql.edit import Edit, apply_edits
from engine.sql.sources import read_tables
from engine.sql.tokens import literal_value

_NO_ALIAS = CLAUSE_ENDS | frozenset(
    [
        "ALL",
        "AND",
        "ANTI",
        "ANY",
        "ARRAY",
        "AS",
        "ASC",
        "ASOF",
        "BETWEEN",
        "CROSS",
        "DESC",
        "ELSE",
        "END",
        "FINAL",
        "FULL",
        "GLOBAL",
        "ILIKE",
        "IN",
        "INNER",
        "IS",
        "JOIN",
        "LEFT",
        "LIKE",
        "LOCAL",
        "NATURAL",
        "NOT",
        "ON",
        "ONLY",
        "OR",
        "PARALLEL",
        "PASTE",
        "RIGHT",
        "SAMPLE",
        "SELECT",
        "SEMI",
        "THEN",
        "USING",
        "WHEN",
        "WITH",
    ]
)

_PLACE = re.compile("\x01(\\d+)\x01")


@dataclass(frozen=True, slots=True)
class Slot:
    """One place. `columns` are what the table has there; `read_with` is FINAL and SAMPLE as text."""

    table: SourceTable
    columns: tuple[SourceColumn, ...]
    read_with: str
    has_prewhere: bool = False
    """PREWHERE, whose condition is the argument of `identity` in WHERE, goes before FINAL."""
    prewhere: str = ""
    """Its condition as it is written, if it is understood so: columns of the table and functions of them."""
    condition: str = ""
    """Each row has to meet it before anything else is done with it, in the table's own names."""

    @property
    def source(self) -> str:
        """A subquery instead of the table; empty without one."""
        if not self.condition and not self.table.is_merged:
            return ""
        there = {c.name: c for c in self.columns}
        if any(ALIAS_PLACE in c.value for c in self.columns):
            there |= {c.name: c for c in self.table.columns}
        listed = ", ".join(quote_identifier(c.name) for c in there.values() if not c.value) or "1"
        columns = (*virtual_columns(), *self.table.columns)
        values = [((c.name,), c.value.replace(f"{ALIAS_PLACE}.", "")) for c in columns if c.value]
        condition = clauses.replaced(self.condition, values)
        where = f" WHERE {condition}" if condition else ""
        return f"(SELECT {listed} FROM {TABLE_PLACE}{READ_WITH_PLACE}{where})"

    @property
    def modifiers(self) -> str:
        """What stands behind the alias of the table, or of the subquery."""
        return "" if self.condition or self.table.is_merged else self.read_with


@dataclass(frozen=True, slots=True)
class Template:
    text: str
    slots: tuple[Slot, ...]
    asks_servers: bool = False
    """It has columns of `server_functions`."""

    def fill(self, expressions: Sequence[str]) -> str:
        """The statement with a table expression in each place."""
        return fill_places(self.text, expressions)


def place_text(number: int) -> str:
    """What stands in a template's text where slot `number` is read."""
    return f"\x01{number}\x01"


def fill_places(text: str, expressions: Sequence[str]) -> str:
    """A template's text with a table expression in each place."""
    return _PLACE.sub(lambda match: expressions[int(match.group(1))], text)


@dataclass(frozen=True, slots=True)
class Reference:
    """A table, or a call of a table function, in the text."""

    start: int
    end: int
    alias: str
    """What it is called when the text gives no alias; empty for a function."""
    table: SourceTable
    is_final: bool = False
    """The setting `final` is 1 there."""
    condition: str = ""
    """See `Slot`."""


def table_names(sql: str, begin: int = 0) -> list[NameRef]:
    """Every name of a table that the statement reads, from token `begin` on."""
    return read_tables(Cursor(sql), begin)


def alias_behind(sql: str, end: int) -> str:
    """What the text calls the table whose name ends at an offset; empty without an alias."""
    cursor = Cursor(sql)
    at = cursor.at_offset(end)
    behind, _ = _alias(cursor, at, "")
    return literal_value(cursor.tokens[behind - 1]) if behind > at else ""


def make_template(
    sql: str, refs: Sequence[Reference], *, databases: Mapping[int, TableName], asks_servers: bool = True
) -> Template:
    """`databases` says which whole name the reference that starts at an offset means. Without `asks_servers`
    functions of `server_functions` are this server's."""
    cursor = _cursor(sql)
    tokens, words = cursor.tokens, cursor.words
    by_start = {token.start: at for at, token in enumerate(tokens)}
    mentioned = {literal_value(token) for token in tokens if token.is_name}
    edits: list[Edit] = []
    slots: list[Slot] = []
    with_final: dict[int, int] = {}
    hidden: list[Hidden] = []
    own_names: list[Edit] = []
    called_so: dict[str, list[int]] = {}
    all_columns = [column.name for ref in refs for column in ref.table.columns]
    candidates = [_candidate(cursor, by_start[ref.start], ref) for ref in refs]
    prewheres = find_prewheres(cursor, candidates)
    of_joins = {one.table: one for one in prewheres if one.is_of_join}
    calls = list(_server_calls(cursor, by_start, refs)) if asks_servers else []
    for number, ref in enumerate(refs):
        first = by_start[ref.start]
        at = _behind(cursor, first, ref)
        is_in = first > 0 and words[first - 1] == "IN"
        shows_all = not is_in and is_under_pattern(cursor, first, candidates[number].names)
        columns = [
            c
            for c in ref.table.columns
            if not c.is_hidden or shows_all or (_begins_with(c.name, mentioned) and not is_in)
        ]
        if not is_in:
            there = {c.name for c in ref.table.columns}
            columns += [c for c in ref.table.virtuals if c.name in mentioned and c.name not in there]
        columns += {call.column.name: call.column for call in calls if call.table == first}.values()
        if not is_in and any(c.is_hidden for c in columns):
            not_shown = tuple(c.name for c in columns if c.is_hidden)
            of_table = {c.name for c in ref.table.columns}
            virtuals = tuple(name for name in not_shown if name not in of_table)
            hidden.append(Hidden(first, candidates[number].names, not_shown, virtuals))
        modifiers = ""
        text = place_text(number)
        if is_in:
            text = f"(SELECT * FROM {text})"
        else:
            own = _own_alias(cursor, ref, called_so, databases)
            if own != ref.alias and "*" not in words and _is_only_one_without_alias(cursor, ref, refs):
                own = ref.alias  # else `t.column` of `FROM t AS a JOIN t` would mean nothing
            behind, alias = _alias(cursor, at, own)
            modifiers, upto = _modifiers(cursor, behind)
            is_final = ref.is_final or "FINAL" in modifiers.upper()
            if (prewhere := of_joins.get(first)) is not None:
                called = alias or f" AS {tokens[behind - 1].text}" * (behind > at)
                text = prewhere.around(text + called, is_final=is_final)
            text += alias
            if behind > at and ref.start in databases:
                called = cursor.sql[tokens[behind - 1].start : tokens[behind - 1].end]
                name, table = databases[ref.start], range(first, behind)
                own_names += own_name_edits(cursor, name, tables=table, alias=called, columns=all_columns)
            elif own != ref.alias and _is_only_one_without_alias(cursor, ref, refs):
                called = quote_identifier(own)
                tables = [at for one in refs for at in _tokens_of(cursor, by_start[one.start], one)]
                name = databases[ref.start]
                own_names += own_name_edits(cursor, name, tables=tables, alias=called, columns=all_columns)
            at = behind
            if upto > at:
                edits.append(Edit(tokens[at].start, tokens[upto - 1].end, ""))
            if is_final:
                with_final[first] = number
        edits.append(Edit(ref.start, ref.end, text))
        slots.append(Slot(ref.table, tuple(columns), modifiers, condition=ref.condition))
    for prewhere in prewheres:
        slot = with_final.get(prewhere.table)
        if slot is not None:
            written = prewhere.as_written(cursor, {column.name for column in slots[slot].columns})
            slots[slot] = replace(slots[slot], has_prewhere=True, prewhere=written)
        edits += prewhere.edits(cursor, is_final=slot is not None)
    of_names = [*own_names, *(call.edit for call in calls)]
    edits += [one for one in of_names if not any(e.start <= one.start < e.end for e in edits)]
    edits += database_edits(cursor, databases.values(), {(e.start, e.end) for e in edits})
    edits += asterisk_edits(cursor, hidden)
    return Template(with_moved(apply_edits(sql, edits)), tuple(slots), bool(calls))


def _begins_with(column: str, names: AbstractSet[str]) -> bool:
    """Whether it is a name, or of the Nested that is one: `n.a` is written so or quoted, or is among `n`."""
    return column in names or ("." in column and column.partition(".")[0] in names)


def _cursor(sql: str) -> Cursor:
    """What stands behind a dot is a name there, such as in `t.limit`, and no keyword."""
    cursor = Cursor(sql)
    before = ["", *cursor.words]
    cursor.words = [
        "" if last == "." and token.is_name else word
        for last, token, word in zip(before, cursor.tokens, cursor.words, strict=False)
    ]
    return cursor


def _server_calls(cursor: Cursor, by_start: Mapping[int, int], refs: Sequence[Reference]) -> Iterator[Call]:
    firsts = {by_start[ref.start]: frozenset(column.name for column in ref.table.columns) for ref in refs}
    read = {first: names for first, names in firsts.items() if first == 0 or cursor.words[first - 1] != "IN"}
    return server_calls(cursor, read)


def _behind(cursor: Cursor, first: int, ref: Reference) -> int:
    """The token behind a reference that begins at token `first`."""
    tokens = cursor.tokens
    return next((i for i in range(first, len(tokens)) if tokens[i].start >= ref.end), len(tokens))


def _tokens_of(cursor: Cursor, first: int, ref: Reference) -> range:
    return range(first, _behind(cursor, first, ref))


def _candidate(cursor: Cursor, first: int, ref: Reference) -> Candidate:
    at = _behind(cursor, first, ref)
    behind, _ = _alias(cursor, at, "")
    called = literal_value(cursor.tokens[behind - 1]) if behind > at else ref.alias
    columns = [column.name for column in (*ref.table.columns, *ref.table.virtuals)]
    of_nested = [name.partition(".")[0] for name in columns]
    return Candidate(first, frozenset({called, ref.alias} - {""}), frozenset([*columns, *of_nested]))


def _alias(cursor: Cursor, at: int, own: str) -> tuple[int, str]:
    """The position behind an alias, and the alias to add where the text has none."""
    tokens, words = cursor.tokens, cursor.words
    if at + 1 < len(tokens) and words[at] == "AS":
        return at + 2, ""
    if at < len(tokens) and tokens[at].is_name and words[at] not in _NO_ALIAS:
        return at + 1, ""
    return at, f" AS {quote_identifier(own)}" if own else ""


def _own_alias(
    cursor: Cursor, ref: Reference, called: dict[str, list[int]], databases: Mapping[int, TableName]
) -> str:
    """What a table without an alias is called: by its name, and the second one of a SELECT by its whole name,
    as in the columns of the answer of `SELECT * FROM t JOIN t USING (a)`. `called` are the tables before."""
    first = cursor.at_offset(ref.start)
    before = called.setdefault(ref.alias, [])
    before.append(first)
    if not ref.alias or len(before) == 1 or ref.start not in databases:
        return ref.alias
    select = select_of(cursor, first)
    same = sum(select_of(cursor, at) == select for at in before) - 1
    return f"{databases[ref.start].database}." * same + ref.alias


def _is_only_one_without_alias(cursor: Cursor, ref: Reference, refs: Sequence[Reference]) -> bool:
    """Of the tables that are called so."""
    same = [one for one in refs if one.alias == ref.alias and one is not ref]
    return all(alias_behind(cursor.sql, one.end) for one in same)


def _modifiers(cursor: Cursor, at: int) -> tuple[str, int]:
    """FINAL and SAMPLE from token `at` on, and where they end."""
    tokens, words = cursor.tokens, cursor.words
    begin = at
    if at < len(words) and words[at] == "FINAL":
        at += 1
    if at < len(words) and words[at] == "SAMPLE":
        at += 1
        at = _ratio(cursor, at)
        if at < len(words) and words[at] == "OFFSET":
            at = _ratio(cursor, at + 1)
    if at == begin:
        return "", at
    return " " + cursor.sql[tokens[begin].start : tokens[at - 1].end], at


def _ratio(cursor: Cursor, at: int) -> int:
    at += 1
    if at < len(cursor.words) and cursor.words[at] == "/":
        at += 2
    return min(at, len(cursor.words))  # the text may end before the number
