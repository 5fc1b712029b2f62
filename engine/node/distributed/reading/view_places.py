"""Where a statement reads a view, by its name or with arguments, and what is written there instead.

That is the view's SELECT as a subquery: FINAL and SAMPLE behind a view mean nothing, as in ClickHouse. Beside
ARRAY JOIN it is `view(SELECT …)` if the text names parts of the view's columns (see `array_joins`), whose
query nobody looks into, so that the shards send what it reads whole.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from engine.distributed.select.array_join_text import has_array_join, names_subcolumns
from engine.distributed.select.own_names import database_edits, own_name_edits
from engine.distributed.select.references import alias_behind, without_modifiers
from engine.names import TableName, quote_identifier
from engine.sql.cursor import Cursor
from engine.sql.edit import Edit


@dataclass(frozen=True, slots=True)
class ViewPlace:
    """Offsets in the text, and the whole name of the view."""

    start: int
    end: int
    view: TableName

    def is_beside_array_join(self, sql: str) -> bool:
        cursor = Cursor(sql)
        return not self._is_set(cursor) and has_array_join(cursor, cursor.at_offset(self.start))

    def edits(self, sql: str, select: str, columns: Collection[str]) -> list[Edit]:
        """Puts the SELECT there. `columns` are those of a view beside ARRAY JOIN, if they are known."""
        cursor = Cursor(sql)
        called = alias_behind(sql, self.end)
        own = "" if called or self._is_set(cursor) else f" AS {quote_identifier(self.view.table)}"
        is_like_table = self.is_beside_array_join(sql) and names_subcolumns(
            cursor, {called, self.view.table}, columns
        )
        text = f"{'view' * is_like_table}({select}){own}"
        return [Edit(self.start, self.end, text), *without_modifiers(sql, self.end)]

    def _is_set(self, cursor: Cursor) -> bool:
        at = cursor.at_offset(self.start)
        return at > 0 and cursor.words[at - 1] == "IN"


def whole_names(sql: str, places: Sequence[ViewPlace]) -> list[Edit]:
    """`db.view.column` and `view.column` of `view AS x` get the name that the subquery has."""
    cursor = Cursor(sql)
    edits: list[Edit] = []
    for place in places:
        alias = alias_behind(sql, place.end)
        if alias and [one.view for one in places].count(place.view) == 1:
            within = range(cursor.at_offset(place.start), cursor.at_offset(place.end))
            called = quote_identifier(alias)
            edits += own_name_edits(cursor, place.view, tables=within, alias=called, columns=())
    return edits + database_edits(
        cursor, [place.view for place in places], [(place.start, place.end) for place in places]
    )
