"""Where a statement reads a view, by its name or with arguments, and what is written there instead.

That is the view's SELECT as a subquery. FINAL, SAMPLE and PREWHERE of a materialized view are those of its
target; FINAL and SAMPLE of any other mean nothing, as in ClickHouse. Beside ARRAY JOIN it is `view(SELECT …)`
if the text names parts of the view's columns (see `array_joins`), whose query nobody looks into, so that the
shards send what it reads whole.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from engine.distributed.select.array_join_text import has_array_join, names_subcolumns
from engine.distributed.select.own_names import database_edits, own_name_edits
from engine.distributed.select.prewhere_text import Candidate, find_prewheres
from engine.distributed.select.references import alias_behind, modifiers_behind
from engine.names import TableName, quote_identifier
from engine.sql.cursor import Cursor
from engine.sql.edit import Edit
from engine.sql.sources import is_behind_in

OF_TARGET = "/* FINAL, SAMPLE, PREWHERE */"
"""Where they stand in the SELECT of a materialized view."""


@dataclass(frozen=True, slots=True)
class ViewPlace:
    """Offsets in the text, and the whole name of the view."""

    start: int
    end: int
    view: TableName

    def needs_columns(self, sql: str, select: str) -> bool:
        """Whether `edits` does."""
        has_prewhere = OF_TARGET in select and "PREWHERE" in Cursor(sql).words
        return has_prewhere or self._is_beside_array_join(Cursor(sql))

    def edits(self, sql: str, select: str, columns: Collection[str]) -> list[Edit]:
        """Puts the SELECT there. `columns` are those of the view, if they are needed and known."""
        cursor = Cursor(sql)
        alias = alias_behind(sql, self.end)
        called = frozenset({alias or self.view.table, self.view.table})
        own = "" if alias or self._is_set(cursor) else f" AS {quote_identifier(self.view.table)}"
        is_like_table = self._is_beside_array_join(cursor) and names_subcolumns(cursor, called, columns)
        modifiers, edits = modifiers_behind(sql, self.end)
        if OF_TARGET in select:
            candidate = Candidate(cursor.at_offset(self.start), called, frozenset(columns))
            for prewhere in find_prewheres(cursor, [candidate]):
                if condition := prewhere.as_written(cursor, called, columns):
                    modifiers += f" PREWHERE {condition}"
                    edits.append(prewhere.removal(cursor))
        text = f"{'view' * is_like_table}({select.replace(OF_TARGET, modifiers)}){own}"
        return [Edit(self.start, self.end, text), *edits]

    def _is_beside_array_join(self, cursor: Cursor) -> bool:
        return not self._is_set(cursor) and has_array_join(cursor, cursor.at_offset(self.start))

    def _is_set(self, cursor: Cursor) -> bool:
        return is_behind_in(cursor, cursor.at_offset(self.start))


def whole_names(sql: str, places: Sequence[ViewPlace], others: Sequence[Edit]) -> list[Edit]:
    """`db.view.column` and `view.column` of `view AS x` get the name that the subquery has, but in
    what `others` replace."""
    cursor = Cursor(sql)
    taken = [(edit.start, edit.end) for edit in others]
    edits: list[Edit] = []
    for place in places:
        alias = alias_behind(sql, place.end)
        if alias:
            first = cursor.at_offset(place.start)
            within = range(first, cursor.at_offset(place.end))
            called = quote_identifier(alias)
            edits += own_name_edits(cursor, place.view, first=first, tables=within, alias=called, columns=())
    edits = [edit for edit in edits if not any(start <= edit.start < end for start, end in taken)]
    return edits + database_edits(cursor, [place.view for place in places], taken)
