"""Where a statement names a table that it reads, and what stands behind the name: an alias, FINAL, SAMPLE."""

from __future__ import annotations

from dataclasses import dataclass

from engine.distributed.select.model import SourceTable, names
from engine.distributed.select.prewhere_text import CLAUSE_ENDS
from engine.distributed.select.table_aliases import without_aliases
from engine.sql.cursor import Cursor, NameRef
from engine.sql.edit import Edit
from engine.sql.sources import read_tables
from engine.sql.tokens import literal_value

_NO_ALIAS = CLAUSE_ENDS | names(
    "ALL AND ANTI ANY ARRAY AS ASC ASOF BETWEEN CROSS DESC ELSE END FINAL FULL GLOBAL ILIKE IN INNER IS JOIN "
    "LEFT LIKE LOCAL NATURAL NOT ON ONLY OR PARALLEL PASTE RIGHT SAMPLE SELECT SEMI THEN USING WHEN WITH"
)


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


@dataclass(frozen=True, slots=True)
class Behind:
    """What stands behind a table's name, by indices of tokens: an alias from `begin` to `alias_end`, then
    FINAL and SAMPLE up to `end`; either may be empty."""

    begin: int
    alias_end: int
    end: int

    @property
    def has_alias(self) -> bool:
        return self.alias_end > self.begin

    def alias_text(self, cursor: Cursor) -> str:
        """As it is written; empty without one."""
        return cursor.tokens[self.alias_end - 1].text if self.has_alias else ""

    def alias(self, cursor: Cursor) -> str:
        """What it means; empty without one."""
        return literal_value(cursor.tokens[self.alias_end - 1]) if self.has_alias else ""

    def modifiers(self, cursor: Cursor) -> str:
        """FINAL and SAMPLE, with a blank before them; empty without either."""
        if self.end == self.alias_end:
            return ""
        return " " + cursor.sql[cursor.tokens[self.alias_end].start : cursor.tokens[self.end - 1].end]

    def without_modifiers(self, cursor: Cursor) -> Edit | None:
        """Takes them away; None without any."""
        if self.end == self.alias_end:
            return None
        return Edit(cursor.tokens[self.alias_end].start, cursor.tokens[self.end - 1].end, "")


def table_names(sql: str, begin: int = 0) -> list[NameRef]:
    """Every name of a table that the statement reads, from token `begin` on."""
    return tables_of(Cursor(sql), begin)


def tables_of(cursor: Cursor, begin: int = 0) -> list[NameRef]:
    """The same of a statement that is split into tokens already."""
    return without_aliases(cursor, read_tables(cursor, begin), _NO_ALIAS)


def alias_behind(sql: str, end: int) -> str:
    """What the text calls the table whose name ends at an offset; empty without an alias."""
    cursor = Cursor(sql)
    return read_behind(cursor, cursor.at_offset(end)).alias(cursor)


def modifiers_behind(sql: str, end: int) -> tuple[str, list[Edit]]:
    """FINAL and SAMPLE behind the table whose name, or call, ends at an offset, and what takes them away."""
    cursor = Cursor(sql)
    behind = read_behind(cursor, cursor.at_offset(end))
    edit = behind.without_modifiers(cursor)
    return behind.modifiers(cursor), [] if edit is None else [edit]


def read_behind(cursor: Cursor, at: int) -> Behind:
    """What stands behind a name that ends before token `at`."""
    alias_end = _alias_end(cursor, at)
    return Behind(at, alias_end, _modifiers_end(cursor, alias_end))


def _alias_end(cursor: Cursor, at: int) -> int:
    tokens, words = cursor.tokens, cursor.words
    if at + 1 < len(tokens) and words[at] == "AS":
        return at + 2
    if at < len(tokens) and tokens[at].is_name and words[at] not in _NO_ALIAS:
        return at + 1
    return at


def _modifiers_end(cursor: Cursor, at: int) -> int:
    words = cursor.words
    if words[at : at + 1] == ["FINAL"]:
        at += 1
    if words[at : at + 1] == ["SAMPLE"]:
        at = _ratio_end(cursor, at + 1)
        if words[at : at + 1] == ["OFFSET"]:
            at = _ratio_end(cursor, at + 1)
    return at


def _ratio_end(cursor: Cursor, at: int) -> int:
    at += 1
    if cursor.words[at : at + 1] == ["/"]:
        at += 2
    return min(at, len(cursor.words))  # the text may end before the number
