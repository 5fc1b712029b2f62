"""The text of an INSERT: its table exchanged for another, its settings read. Rows are never looked at."""

from __future__ import annotations

from engine.names import TableName
from engine.node.replicated.text_settings import TextSetting, settings_in
from engine.sql.edit import Edit, apply_edits
from engine.sql.parse import draft_of

_FORCED_OFF = ("async_insert",)
"""What may not be left to a text of the user: rows have to be in the table when the INSERT ends."""


class InsertSql:
    """An INSERT, whole or without its rows. Raises SqlError 62 as `tokenize`."""

    def __init__(self, sql: str) -> None:
        self.sql = sql
        self._draft = draft_of(sql)
        self.table: TableName | None = self._draft.refs[0].name if self._draft.refs else None
        self._settings: list[TextSetting] = []
        if self.table is not None:
            behind = self._draft.refs[0].end
            tokens = self._draft.tokens
            self._draft.at = next((i for i, t in enumerate(tokens) if t.start >= behind), len(tokens))
            self._settings = settings_in(self._draft)

    @property
    def settings(self) -> dict[str, str]:
        """Of all SETTINGS clauses outside brackets; strings without their quotes."""
        return {setting.name: setting.value for setting in self._settings}

    def into(self, table: TableName) -> str:
        """The text with another table, run at once even if the text asks for `async_insert`."""
        ref = self._draft.refs[0]
        edits = [Edit(ref.start, ref.end, table.quoted)]
        edits += [Edit(s.start, s.end, "0") for s in self._settings if s.name in _FORCED_OFF]
        return apply_edits(self.sql, edits)
