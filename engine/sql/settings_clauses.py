"""SETTINGS clauses of a statement: `SETTINGS name = value, …`, wherever one stands outside brackets.

A name without a value means true: `SETTINGS insert_quorum_parallel, insert_quorum = 2`.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.setting_values import plain_number
from engine.sql.cursor import Cursor
from engine.sql.edit import Edit
from engine.sql.tokens import TokenKind, literal_value

TRUE = "1"
_BEHIND_BARE = frozenset(
    {
        *(",", ";", ")", "FORMAT", "INTO", "SETTINGS", "VALUES", "SELECT", "WITH", "PARALLEL"),
        *("AS", "EMPTY", "CLONE", "COMMENT", "POPULATE", "SQL", "DEFINER"),
    }
)


def is_bare(cursor: Cursor) -> bool:
    """Behind a setting's name: whether it has no value."""
    return cursor.at_end or cursor.word in _BEHIND_BARE


@dataclass(frozen=True, slots=True)
class TextSetting:
    """A setting, and where its value stands in the text, or where one would; strings are without their
    quotes."""

    name: str
    value: str
    start: int
    end: int

    def set_to(self, value: str) -> Edit:
        """`value` is a literal."""
        return Edit(self.start, self.end, value if self.start < self.end else f" = {value}")


def settings_in(cursor: Cursor) -> list[TextSetting]:
    """All settings from the cursor on, in order; none of MODIFY SETTING and of a column's SETTINGS (…)."""
    found: list[TextSetting] = []
    while cursor.skip_to("SETTINGS"):
        found += _clause(cursor)
    return found


def all_settings(sql: str) -> list[TextSetting]:
    """Those of every SETTINGS clause, also within brackets, and those of SET. DEFAULT is a value, too."""
    cursor = Cursor(sql)
    found: list[TextSetting] = []
    for at in range(len(cursor.tokens)):
        cursor.at = at
        if cursor.word == "SETTINGS" or (cursor.word == "SET" and at == 0):
            found += _clause(cursor)
    return found


def table_settings(sql: str) -> list[TextSetting]:
    """What a statement may make settings of a table: every SETTINGS clause, and MODIFY SETTING."""
    cursor = Cursor(sql)
    found: list[TextSetting] = []
    for at, word in enumerate(cursor.words):
        cursor.at = at
        if word == "SETTINGS" or (word == "SETTING" and cursor.words[at - 1] == "MODIFY"):
            found += _clause(cursor)
    return found


def _clause(cursor: Cursor) -> list[TextSetting]:
    """From the word SETTINGS, SETTING or SET on; the cursor is behind the last that can be read."""
    found: list[TextSetting] = []
    cursor.at += 1
    while (name := cursor.identifier()) is not None:
        if is_bare(cursor):
            found.append(TextSetting(name, TRUE, cursor.last_end, cursor.last_end))
            if cursor.accept(","):
                continue
            break
        if not cursor.accept("="):
            break
        begins = cursor.at
        if not cursor.skip_brackets():
            cursor.at += 2 if cursor.word == "-" else 1
        if cursor.at > len(cursor.tokens):
            break
        first = cursor.tokens[begins]
        start, end = first.start, cursor.last_end
        is_string = cursor.at == begins + 1 and first.kind in (TokenKind.STRING, TokenKind.HEREDOC)
        value = literal_value(first) if is_string else plain_number(cursor.sql[start:end])
        found.append(TextSetting(name, value, start, end))
        if not cursor.accept(","):
            break
    return found


def settings_of_text(sql: str) -> dict[str, str]:
    """Name to value of all settings in a statement that is no CREATE."""
    return {setting.name: setting.value for setting in settings_in(Cursor(sql))}
