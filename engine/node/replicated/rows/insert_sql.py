"""The text of an INSERT: its table exchanged for another, its settings read. Rows are never looked at."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from engine.names import TableName
from engine.sql.cursor import Cursor
from engine.sql.edit import Edit, apply_edits
from engine.sql.parse import draft_of
from engine.sql.settings_clauses import TextSetting, settings_in
from engine.sql.tokens import literal_value

_FORCED_OFF = ("async_insert", "parts_to_delay_insert", "parts_to_throw_insert")
"""What may not be left to a text of the user: rows have to be in the table when the INSERT ends, and how many
parts there may be is said of another table."""
_SELECTS = ("SELECT", "WITH")


class InsertSql:
    """An INSERT, whole or without its rows. Raises SqlError 62 as `tokenize`."""

    def __init__(self, sql: str) -> None:
        self.sql = sql
        self._draft = draft_of(sql)
        self.table: TableName | None = self._draft.refs[0].name if self._draft.refs else None
        self._settings: list[TextSetting] = []
        self._select_at: int | None = None
        if self.table is not None:
            behind = self._draft.refs[0].end
            tokens = self._draft.tokens
            self._draft.at = next((i for i, t in enumerate(tokens) if t.start >= behind), len(tokens))
            begins = self._draft.at
            self._select_at = self._select()
            self._draft.at = begins
            self._settings = settings_in(self._draft)

    def _select(self) -> int | None:
        """Where in the text the SELECT begins that the rows come from; None for VALUES and formats."""
        d = self._draft
        while d.skip_to("SELECT", "WITH", "VALUES", "FORMAT", "("):
            start = d.token.start
            if d.accept("("):
                if d.word in _SELECTS:
                    return start
                d.at -= 1
                if not d.skip_brackets():
                    return None  # it never closes
            else:
                return start if d.word in _SELECTS else None
        return None

    @property
    def is_select(self) -> bool:
        return self._select_at is not None

    @property
    def has_stable_rows(self) -> bool:
        """Whether the rows are those of a SELECT that gives the same ones, in the same order, each time."""
        if self._select_at is None:
            return False
        c = Cursor(self.sql[self._select_at :])
        while c.skip_to("ORDER"):
            if c.accept("ORDER", "BY", "ALL"):
                return True
            c.at += 1
        return False

    @property
    def settings(self) -> dict[str, str]:
        """Of all SETTINGS clauses outside brackets; strings without their quotes."""
        return {setting.name: setting.value for setting in self._settings}

    def _qualifiers(self) -> list[Edit]:
        """Edits that take the table's own name from columns: `INSERT INTO db.t (t.* EXCEPT (a), db.t.b)`."""
        d, table = self._draft, self._draft.refs[0].name
        at = next((i for i, token in enumerate(d.tokens) if token.start >= d.refs[0].end), len(d.tokens))
        if d.words[at : at + 1] != ["("] or d.words[at + 1 : at + 2] in ([word] for word in _SELECTS):
            return []
        edits = []
        d.at = at + 1
        while not d.at_end and d.word != ")":
            begin = d.at
            parts = []
            while not d.at_end and d.token.is_name and d.words[d.at + 1 : d.at + 2] == ["."]:
                parts.append(literal_value(d.token))
                d.at += 2
            named = next((n for n in (1, 2) if _is_table(parts[:n], table)), 0)
            if named:
                edits.append(Edit(d.tokens[begin].start, d.tokens[begin + 2 * named - 1].end, ""))
            while not d.at_end and d.word not in (")", ","):
                if not d.skip_brackets():
                    d.at += 1  # also over one that never closes
            d.accept(",")
        return edits

    def into(self, table: TableName, *, unlimited: Collection[str] = ()) -> str:
        """The text with another table, run at once even if the text asks for `async_insert`. What the text
        says of limits named `unlimited` is not said of that table."""
        ref = self._draft.refs[0]
        edits = [Edit(ref.start, ref.end, table.quoted), *self._qualifiers()]
        off = {*_FORCED_OFF, *unlimited}
        edits += [setting.set_to("0") for setting in self._settings if setting.name in off]
        return apply_edits(self.sql, edits)


def _is_table(parts: Sequence[str], table: TableName) -> bool:
    """Whether names that stand before a column are the table's; its database may be the current one."""
    match parts:
        case [name]:
            return name == table.table
        case [database, name]:
            return name == table.table and table.database in ("", database)
    return False
