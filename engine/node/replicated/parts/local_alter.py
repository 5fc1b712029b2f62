"""What of an ALTER TABLE concerns one replica only: settings, and the comment of the table.

Keeper does not know of them, as in ClickHouse. Some settings are replication's own in chDB, so that it never
merges by itself; what a user wants of those is for this node's merges, and kept in the record of the table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from engine.errors import Code, SqlError
from engine.names import quote_identifier
from engine.node.replicated.parts.partition_sql import AlterPiece
from engine.sql import AlterCommand, literal_value
from engine.sql.cursor import Cursor


@dataclass(frozen=True, slots=True)
class LocalChanges:
    """`settings` and `hidden` are literals by name (None resets one), `comment` is the new one if there is
    one; `pieces` are the sub-commands left."""

    settings: dict[str, str | None]
    hidden: dict[str, str | None]
    comment: str | None
    pieces: tuple[AlterPiece, ...]


def take_out(pieces: Sequence[AlterPiece], hidden: Collection[str]) -> LocalChanges:
    """Raises SqlError 62."""
    settings: dict[str, str | None] = {}
    hidden_ones: dict[str, str | None] = {}
    comment: str | None = None
    left = []
    for piece in pieces:
        if piece.command is AlterCommand.MODIFY_COMMENT:
            comment = literal_value(Cursor(piece.text).tokens[-1])
        elif piece.command in (AlterCommand.MODIFY_SETTING, AlterCommand.RESET_SETTING):
            for name, value in _clauses(piece):
                (hidden_ones if name in hidden else settings)[name] = value
        else:
            left.append(piece)
    return LocalChanges(settings, hidden_ones, comment, tuple(left))


def settings_commands(settings: Mapping[str, str | None]) -> str:
    """The sub-commands that make these changes."""
    changed = [f"{quote_identifier(name)} = {value}" for name, value in settings.items() if value is not None]
    reset = [quote_identifier(name) for name, value in settings.items() if value is None]
    commands = [f"MODIFY SETTING {', '.join(changed)}"] if changed else []
    commands += [f"RESET SETTING {', '.join(reset)}"] if reset else []
    return ", ".join(commands)


def _clauses(piece: AlterPiece) -> list[tuple[str, str | None]]:
    """Name and value of each setting; None where it is reset."""
    c = Cursor(piece.text)
    c.at = 2
    is_reset = piece.command is AlterCommand.RESET_SETTING
    found: list[tuple[str, str | None]] = []
    while True:
        setting = c.setting_name()
        if setting is None:
            raise SqlError(Code.SYNTAX_ERROR, f"Syntax error: '{piece.text[:200]}' is no list of settings")
        name, has_value = setting
        value = None if is_reset else "1"
        if has_value:
            begins = c.at
            while not c.at_end and c.word != ",":
                if not c.skip_brackets():
                    c.at += 1
            value = c.sql[c.tokens[begins].start : c.last_end] if c.at > begins else ""
        found.append((name, value))
        if not c.accept(","):
            return found
