"""A statement with a place for every Distributed table it reads (`make_template`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from engine.distributed.select import clauses
from engine.distributed.select.model import (
    ALIAS_PLACE,
    READ_WITH_PLACE,
    TABLE_PLACE,
    SourceColumn,
    SourceTable,
    virtual_columns,
)
from engine.names import quote_identifier

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
