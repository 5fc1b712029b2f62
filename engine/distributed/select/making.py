"""A statement with a place for every Distributed table it reads.

The user's text stays as it is but for these places and what a subquery cannot have where a table can:
FINAL and SAMPLE move into the subquery; PREWHERE becomes WHERE (`prewhere_text`; `prewhere` puts it before
FINAL where there is one); `db.t.column` becomes `t.column`, and with an alias `alias.column` (`own_names`);
and where a hidden column (MATERIALIZED, ALIAS, `_shard_num` and other virtual ones) is asked for by name, `*`
leaves it out as it would have done; what a server says of itself is a hidden column (`server_functions`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from engine.distributed.select.array_join_text import has_array_join, names_subcolumns
from engine.distributed.select.asterisks import Hidden, asterisk_edits, is_under_pattern
from engine.distributed.select.clauses import select_of
from engine.distributed.select.model import SourceColumn
from engine.distributed.select.own_names import database_edits, own_name_edits
from engine.distributed.select.prewhere_text import Candidate, find_prewheres, with_moved
from engine.distributed.select.references import Behind, Reference, read_behind
from engine.distributed.select.server_functions import Call, server_calls
from engine.distributed.select.template import Slot, Template, place_text
from engine.names import TableName, quote_identifier
from engine.sql.cursor import Cursor
from engine.sql.edit import Edit, apply_edits
from engine.sql.sources import is_behind_in
from engine.sql.tokens import literal_value


def make_template(
    sql: str, refs: Sequence[Reference], *, databases: Mapping[int, TableName], asks_servers: bool = True
) -> Template:
    """`databases` says which whole name the reference that starts at an offset means. Without `asks_servers`
    functions of `server_functions` are this server's."""
    return _Maker(sql, refs, databases, asks_servers=asks_servers).made()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a reference stands, by indices of tokens: from `first` to `behind.begin`."""

    number: int
    ref: Reference
    first: int
    behind: Behind
    called: frozenset[str]
    """By what names the text may call it."""
    is_in: bool
    """`IN t`: all its columns, and no alias."""

    @property
    def tokens(self) -> range:
        return range(self.first, self.behind.begin)

    @property
    def columns(self) -> frozenset[str]:
        """What PREWHERE may name: columns, and Nested ones as a whole."""
        all_columns = [column.name for column in (*self.ref.table.columns, *self.ref.table.virtuals)]
        return frozenset([*all_columns, *(name.partition(".")[0] for name in all_columns)])


class _Maker:
    """One template in the making: what the text needs is collected place by place."""

    def __init__(
        self, sql: str, refs: Sequence[Reference], databases: Mapping[int, TableName], *, asks_servers: bool
    ) -> None:
        self._sql = sql
        self._databases = databases
        self._cursor = _cursor(sql)
        self._mentioned = {literal_value(token) for token in self._cursor.tokens if token.is_name}
        self._places = [self._place(number, ref) for number, ref in enumerate(refs)]
        self._prewheres = find_prewheres(
            self._cursor, [Candidate(place.first, place.called, place.columns) for place in self._places]
        )
        self._calls = self._server_calls() if asks_servers else []
        self._slots: list[Slot] = []
        self._edits: list[Edit] = []
        self._own_names: list[Edit] = []
        self._with_final: dict[int, int] = {}
        """The numbers of slots that are read so, by first tokens."""
        self._hidden: list[Hidden] = []

    def made(self) -> Template:
        for place in self._places:
            columns = self._columns(place)
            self._note_hidden(place, columns)
            text = place_text(place.number)
            text = f"(SELECT * FROM {text})" if place.is_in else self._in_from(place, text)
            self._edits.append(Edit(place.ref.start, place.ref.end, text))
            modifiers = "" if place.is_in else place.behind.modifiers(self._cursor)
            self._slots.append(Slot(place.ref.table, columns, modifiers, condition=place.ref.condition))
        self._move_prewheres()
        self._give_names()
        edits = [*self._edits, *asterisk_edits(self._cursor, self._hidden)]
        return Template(with_moved(apply_edits(self._sql, edits)), tuple(self._slots), bool(self._calls))

    def _place(self, number: int, ref: Reference) -> _Place:
        first, at = self._cursor.at_offset(ref.start), self._cursor.at_offset(ref.end)
        behind = read_behind(self._cursor, at)
        called = frozenset({behind.alias(self._cursor) or ref.alias, ref.alias} - {""})
        is_in = is_behind_in(self._cursor, first)
        return _Place(number, ref, first, behind, called, is_in)

    def _server_calls(self) -> list[Call]:
        read = {place.first: place for place in self._places if not place.is_in}
        columns = {
            first: frozenset(column.name for column in place.ref.table.columns)
            for first, place in read.items()
        }
        return list(server_calls(self._cursor, columns))

    def _columns(self, place: _Place) -> tuple[SourceColumn, ...]:
        """What the table has there: hidden columns only if they are asked for."""
        table = place.ref.table
        if place.is_in:
            return tuple(column for column in table.columns if not column.is_hidden)
        shows_all = is_under_pattern(self._cursor, place.first, place.called)
        there = {column.name for column in table.columns}
        called = {call.column.name: call.column for call in self._calls if call.table == place.first}
        return (
            *(
                column
                for column in table.columns
                if shows_all or not column.is_hidden or _begins_with(column.name, self._mentioned)
            ),
            *(c for c in table.virtuals if c.name in self._mentioned and c.name not in there),
            *called.values(),
        )

    def _note_hidden(self, place: _Place, columns: Sequence[SourceColumn]) -> None:
        hidden = tuple(column.name for column in columns if column.is_hidden)
        if hidden:
            of_table = {column.name for column in place.ref.table.columns}
            virtuals = tuple(name for name in hidden if name not in of_table)
            self._hidden.append(Hidden(place.first, place.called, hidden, virtuals))

    def _in_from(self, place: _Place, text: str) -> str:
        """The place of a table that FROM or JOIN names, with the alias that it needs, and without FINAL and
        SAMPLE."""
        cursor, ref, behind = self._cursor, place.ref, place.behind
        own = self._own_alias(place)
        alias = "" if behind.has_alias or not own else f" AS {quote_identifier(own)}"
        is_final = ref.is_final or "FINAL" in behind.modifiers(cursor).upper()
        if is_final:
            self._with_final[place.first] = place.number
        if (edit := behind.without_modifiers(cursor)) is not None:
            self._edits.append(edit)
        if behind.has_alias and ref.start in self._databases:
            self._rename(place, range(place.first, behind.alias_end), behind.alias_text(cursor))
        elif not behind.has_alias and own != ref.alias and self._is_only_one_without_alias(place):
            tables = [at for one in self._places for at in one.tokens]
            self._rename(place, tables, quote_identifier(own))
        for prewhere in self._prewheres:
            if prewhere.is_of_join and prewhere.table == place.first:
                called = f" AS {behind.alias_text(cursor)}" if behind.has_alias else alias
                around = prewhere.around(text + called, is_final=is_final)
                return "view" * self._has_to_be_like_a_table(place) + around + alias
        return text + alias

    def _rename(self, place: _Place, tables: Sequence[int], alias: str) -> None:
        """`t.column` becomes `alias.column`; `tables` are tokens that are no columns."""
        columns = [column.name for one in self._places for column in one.ref.table.columns]
        name = self._databases[place.ref.start]
        self._own_names += own_name_edits(
            self._cursor, name, first=place.first, tables=tables, alias=alias, columns=columns
        )

    def _own_alias(self, place: _Place) -> str:
        """What a table without an alias is called: by its name, and the second one of a SELECT by its whole
        name, as in the columns of the answer of `SELECT * FROM t JOIN t USING (a)`."""
        ref = place.ref
        before = [one for one in self._places[: place.number] if one.ref.alias == ref.alias and not one.is_in]
        if not ref.alias or not before or ref.start not in self._databases:
            return ref.alias
        if "*" not in self._cursor.words and self._is_only_one_without_alias(place):
            return ref.alias  # else `t.column` of `FROM t AS a JOIN t` would mean nothing
        select = select_of(self._cursor, place.first)
        same = sum(select_of(self._cursor, one.first) == select for one in before)
        return f"{self._databases[ref.start].database}." * same + ref.alias

    def _is_only_one_without_alias(self, place: _Place) -> bool:
        """Of the tables that are called so."""
        same = [one for one in self._places if one.ref.alias == place.ref.alias and one is not place]
        return all(one.behind.has_alias for one in same)

    def _has_to_be_like_a_table(self, place: _Place) -> bool:
        """See `array_joins`."""
        if not has_array_join(self._cursor, place.first):
            return False
        columns = {column.name for column in (*place.ref.table.columns, *place.ref.table.virtuals)}
        return names_subcolumns(self._cursor, place.called, columns)

    def _move_prewheres(self) -> None:
        for prewhere in self._prewheres:
            number = self._with_final.get(prewhere.table)
            if number is not None:
                slot = self._slots[number]
                of_shards = [column.name for column in slot.columns if not column.value]
                names = {*of_shards, *(name.partition(".")[0] for name in of_shards)}
                written = prewhere.as_written(self._cursor, self._places[number].called, names)
                self._slots[number] = replace(slot, has_prewhere=True, prewhere=written)
            self._edits += prewhere.edits(self._cursor, is_final=number is not None)

    def _give_names(self) -> None:
        """Tables by their aliases, and what servers say of themselves as columns, where nothing else has
        taken the text already."""
        of_names = [*self._own_names, *(call.edit for call in self._calls)]
        self._edits += [one for one in of_names if not any(e.start <= one.start < e.end for e in self._edits)]
        taken = {(edit.start, edit.end) for edit in self._edits}
        self._edits += database_edits(self._cursor, self._databases.values(), taken)


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
