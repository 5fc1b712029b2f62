"""SETTINGS clauses of a statement: `SETTINGS name = value, …`, wherever one stands outside brackets."""

from __future__ import annotations

from dataclasses import dataclass

from engine.sql.cursor import Cursor
from engine.sql.tokens import TokenKind, literal_value


@dataclass(frozen=True, slots=True)
class TextSetting:
    """A setting, and where its value stands in the text; strings are without their quotes."""

    name: str
    value: str
    start: int
    end: int


def settings_in(cursor: Cursor) -> list[TextSetting]:
    """All settings from the cursor on, in order; none of MODIFY SETTING and of a column's SETTINGS (…)."""
    found: list[TextSetting] = []
    while cursor.skip_to("SETTINGS"):
        cursor.at += 1
        while (name := cursor.identifier()) is not None and cursor.accept("="):
            begins = cursor.at
            if not cursor.skip_brackets():
                cursor.at += 2 if cursor.word == "-" else 1
            if cursor.at > len(cursor.tokens):
                return found
            first = cursor.tokens[begins]
            start, end = first.start, cursor.last_end
            is_string = cursor.at == begins + 1 and first.kind in (TokenKind.STRING, TokenKind.HEREDOC)
            value = literal_value(first) if is_string else cursor.sql[start:end]
            found.append(TextSetting(name, value, start, end))
            if not cursor.accept(","):
                break
    return found


def settings_of_text(sql: str) -> dict[str, str]:
    """Name to value of all settings in a statement that is no CREATE."""
    return {setting.name: setting.value for setting in settings_in(Cursor(sql))}
