"""The text of an INSERT: its table exchanged for another, its settings read. Rows are never looked at."""

from __future__ import annotations

from engine.names import TableName
from engine.sql import TokenKind, literal_value
from engine.sql.draft import Draft
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
        self._settings = _settings(self._draft) if self.table is not None else []

    @property
    def settings(self) -> dict[str, str]:
        """Of all SETTINGS clauses outside brackets; strings without their quotes."""
        return {name: value for name, value, _ in self._settings}

    def into(self, table: TableName) -> str:
        """The text with another table, run at once even if the text asks for `async_insert`."""
        ref = self._draft.refs[0]
        edits = [Edit(ref.start, ref.end, table.quoted)]
        edits += [Edit(start, end, "0") for name, _, (start, end) in self._settings if name in _FORCED_OFF]
        return apply_edits(self.sql, edits)


def _settings(d: Draft) -> list[tuple[str, str, tuple[int, int]]]:
    """Name, value, and where the value stands."""
    found: list[tuple[str, str, tuple[int, int]]] = []
    d.at = next((i for i, token in enumerate(d.tokens) if token.start >= d.refs[0].end), len(d.tokens))
    while d.skip_to("SETTINGS"):
        d.at += 1
        while (name := d.identifier()) is not None and d.accept("="):
            begins = d.at
            if not d.skip_brackets():
                d.at += 2 if d.word == "-" else 1
            if d.at > len(d.tokens) or begins >= len(d.tokens):
                return found
            span = (d.tokens[begins].start, d.last_end)
            first = d.tokens[begins]
            is_string = d.at == begins + 1 and first.kind in (TokenKind.STRING, TokenKind.HEREDOC)
            found.append((name, literal_value(first) if is_string else d.sql[slice(*span)], span))
            if not d.accept(","):
                break
    return found
