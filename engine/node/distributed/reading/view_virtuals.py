"""`_table` and `_database` of a view over Distributed tables: its own name, as ClickHouse has it.

The subquery in the view's place has them as columns where the text names them, and `*` leaves them out.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.distributed.select.asterisks import Hidden, asterisk_edits
from engine.distributed.select.references import alias_behind
from engine.names import TableName, quote_identifier, quote_string
from engine.sql.cursor import Cursor, NameRef
from engine.sql.edit import Edit
from engine.sql.sources import is_behind_in
from engine.sql.tokens import literal_value

_NAMES = ("_table", "_database")


class Virtuals:
    """Those of the views in a text; `columns` are each view's own, empty where the text names no virtual."""

    def __init__(self, sql: str, columns: Mapping[TableName, frozenset[str]]) -> None:
        self._sql = sql
        self._columns = columns
        self._cursor = Cursor(sql)
        self._hidden: list[Hidden] = []
        mentioned = set(map(literal_value, self._cursor.tokens)) if columns else set()
        self._mentioned = [name for name in _NAMES if name in mentioned]

    @staticmethod
    def may_be_in(sql: str) -> bool:
        """Whether the text may name one."""
        return any(name in sql for name in _NAMES)

    def with_them(self, ref: NameRef, name: TableName, select: str) -> str:
        """The SELECT that a view is, with those that the text names."""
        at = self._cursor.at_offset(ref.start)
        taken = self._columns.get(name, frozenset())
        names = [one for one in self._mentioned if one not in taken]
        if not names or is_behind_in(self._cursor, at):
            return select
        called = alias_behind(self._sql, ref.end) or ref.name.table
        self._hidden.append(Hidden(at, frozenset({called}), names))
        values = {"_table": name.table, "_database": name.database}
        added = ", ".join(
            f"toLowCardinality({quote_string(values[one])}) AS {quote_identifier(one)}" for one in names
        )
        return f"SELECT *, {added} FROM ({select})"

    def edits(self) -> list[Edit]:
        """What `*` leaves out."""
        return asterisk_edits(self._cursor, self._hidden)
