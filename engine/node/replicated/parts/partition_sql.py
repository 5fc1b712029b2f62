"""ALTER TABLE, taken apart: its sub-commands as pieces of the text, and what those about partitions say.

Nothing is understood but names, literals and the words around them: expressions stay as they were written,
and chDB judges them.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import Code, SqlError
from engine.names import TableName
from engine.sql import AlterCommand, TokenKind
from engine.sql.cursor import Cursor, Role
from engine.sql.output import without_output_clauses
from engine.sql.parse import draft_of

_PARTITION_ENDS = ("FROM", "TO", ",", "WITH", "WHERE", "SETTINGS")


@dataclass(frozen=True, slots=True)
class AlterPiece:
    """One sub-command: what it is, and its text."""

    command: AlterCommand
    text: str


class Family(enum.Enum):
    """How a sub-command is carried out."""

    MUTATION = "mutation"
    PARTITION = "partition"
    METADATA = "metadata"


_A = AlterCommand
_PARTITIONS = frozenset(
    {
        _A.ATTACH_PARTITION,
        _A.ATTACH_PARTITION_FROM,
        _A.DETACH_PARTITION,
        _A.DROP_PARTITION,
        _A.DROP_DETACHED_PARTITION,
        _A.FORGET_PARTITION,
        _A.FETCH_PARTITION,
        _A.REPLACE_PARTITION,
        _A.MOVE_PARTITION,
        _A.MOVE_PARTITION_TO_TABLE,
        _A.MOVE_PARTITION_TO_SHARD,
        _A.FREEZE,
        _A.UNFREEZE,
        _A.UNLOCK_SNAPSHOT,
    }
)


def family_of(piece: AlterPiece) -> Family:
    """CLEAR … IN PARTITION writes parts anew and leaves the table as it is: a mutation."""
    if piece.command.is_mutation or (piece.command in _CLEARS and partition_of_mutation(piece.text)):
        return Family.MUTATION
    return Family.PARTITION if piece.command in _PARTITIONS else Family.METADATA


_CLEARS = frozenset({_A.CLEAR_COLUMN, _A.CLEAR_INDEX, _A.CLEAR_PROJECTION, _A.CLEAR_STATISTICS})


def column_drops(pieces: Sequence[AlterPiece]) -> list[str]:
    return [piece.text for piece in pieces if piece.command is _A.DROP_COLUMN]


def alter_pieces(sql: str) -> tuple[AlterPiece, ...]:
    """The sub-commands of an ALTER TABLE, without the clauses behind the last. Raises SqlError 62."""
    text = without_output_clauses(sql)
    d = draft_of(text)
    pieces = []
    for index, start in enumerate(d.alter_starts):
        in_parentheses = start > 0 and d.words[start - 1] == "("
        if in_parentheses:
            d.at = start - 1
            d.skip_brackets()
            end = d.at - 1
        elif index + 1 < len(d.alter_starts):
            behind = d.alter_starts[index + 1]
            # Before the next one stands a comma, and maybe a parenthesis.
            end = behind - (2 if d.words[behind - 1] == "(" else 1)
        else:
            end = len(d.tokens)
        if end <= start:
            raise SqlError(Code.SYNTAX_ERROR, "Syntax error: a sub-command of ALTER TABLE is empty.")
        pieces.append(
            AlterPiece(d.alter_commands[index], text[d.tokens[start].start : d.tokens[end - 1].end])
        )
    return tuple(pieces)


def partition_of_mutation(text: str) -> str | None:
    """The expression behind IN PARTITION of a mutation's sub-command; None without one."""
    c = Cursor(text)
    while c.skip_to("IN"):
        if c.accept("IN", "PARTITION"):
            return _expression(c)
        c.at += 1
    return None


# -- sub-commands about partitions ---------------------------------------------------------------------------


class Action(enum.Enum):
    ATTACH = "ATTACH"
    ATTACH_FROM = "ATTACH FROM"
    REPLACE_FROM = "REPLACE FROM"
    MOVE_TO_TABLE = "MOVE TO TABLE"
    MOVE_TO_PLACE = "MOVE TO DISK or VOLUME"
    DETACH = "DETACH"
    DROP = "DROP"
    DROP_DETACHED = "DROP DETACHED"
    FORGET = "FORGET"
    FETCH = "FETCH"
    FREEZE = "FREEZE"
    UNFREEZE = "UNFREEZE"


class Subject(enum.Enum):
    PARTITION = "PARTITION"
    PART = "PART"
    TABLE = "TABLE"
    """The whole table: FREEZE without a partition."""


@dataclass(frozen=True, slots=True)
class PartitionCommand:
    """`what` is a partition's expression as written (with `ID` or `ALL`), or a part's name, without quotes.

    `other` is the table behind FROM or TO TABLE, `path` what FETCH takes it from, `backup` the name of
    FREEZE and UNFREEZE, `place` is the `DISK '…'` or `VOLUME '…'` of MOVE.
    """

    action: Action
    subject: Subject
    what: str = ""
    other: TableName | None = None
    path: str = ""
    backup: str = ""
    place: str = ""


def partition_command(piece: AlterPiece) -> PartitionCommand:
    """Raises SqlError 62 for what does not parse, 48 for what has no meaning for a replicated table here."""
    c = Cursor(piece.text)
    action = _action(c, piece)
    subject, what = _subject(c, action)
    other: TableName | None = None
    path = backup = place = ""
    if action is Action.FETCH:
        if not c.accept("FROM") or (found := c.identifier_or_string()) is None:
            raise _syntax(c, "FROM and a path in Keeper")
        path = found
    elif c.accept("FROM"):
        action, other = _from(c, action)
    elif c.accept("TO", "TABLE"):
        action, other = Action.MOVE_TO_TABLE, _table(c)
    elif piece.command is _A.MOVE_PARTITION:
        action, place = Action.MOVE_TO_PLACE, _place(c)
    elif c.accept("WITH", "NAME"):
        if (name := c.identifier_or_string()) is None:
            raise _syntax(c, "a name")
        backup = name
    if not c.at_end or (piece.command is _A.REPLACE_PARTITION and other is None):
        raise _syntax(c, "the end of the sub-command" if other or backup or path else "FROM and a table")
    if action is Action.UNFREEZE and not backup:
        raise _syntax(c, "WITH NAME and a name")
    return PartitionCommand(action, subject, what, other, path, backup, place)


def _action(c: Cursor, piece: AlterPiece) -> Action:
    if piece.command in (_A.MOVE_PARTITION_TO_SHARD, _A.UNLOCK_SNAPSHOT):
        raise SqlError(
            Code.NOT_IMPLEMENTED,
            f"{piece.command.value} is not supported for replicated tables: parts stay on their shard, and "
            "no disk of a node has snapshots.",
        )
    if c.accept("DROP", "DETACHED"):
        return Action.DROP_DETACHED
    word = c.accept_one_of(
        "ATTACH", "REPLACE", "MOVE", "DETACH", "DROP", "FORGET", "FETCH", "FREEZE", "UNFREEZE"
    )
    if word == "REPLACE":
        return Action.REPLACE_FROM
    return Action.MOVE_TO_TABLE if word == "MOVE" else Action(word)


def _subject(c: Cursor, action: Action) -> tuple[Subject, str]:
    if c.accept("PARTITION"):
        return Subject.PARTITION, _expression(c)
    if c.accept("PART"):
        name = c.identifier_or_string()
        if name is None:
            raise _syntax(c, "the name of a part")
        return Subject.PART, name
    if action in (Action.FREEZE, Action.UNFREEZE):
        return Subject.TABLE, ""
    raise _syntax(c, "PARTITION or PART")


def _from(c: Cursor, action: Action) -> tuple[Action, TableName]:
    if action not in (Action.ATTACH, Action.REPLACE_FROM):
        raise _syntax(c, "the end of the sub-command")
    return (Action.ATTACH_FROM if action is Action.ATTACH else action), _table(c)


def _place(c: Cursor) -> str:
    start = c.at
    if not c.accept("TO") or not c.accept_one_of("DISK", "VOLUME") or c.token.kind is not TokenKind.STRING:
        raise _syntax(c, "TO DISK or TO VOLUME and a name in quotes")
    c.at += 1
    return c.sql[c.tokens[start + 1].start : c.last_end]


def _table(c: Cursor) -> TableName:
    ref = c.table(Role.TARGET)
    if ref is None:
        raise _syntax(c, "the name of a table")
    return ref.name


def _expression(c: Cursor) -> str:
    """A partition's value, up to what follows it."""
    start = c.at
    while not c.at_end and c.word not in _PARTITION_ENDS:
        if not c.skip_brackets():
            c.at += 1
    if c.at == start:
        raise _syntax(c, "a partition")
    return c.sql[c.tokens[start].start : c.last_end]


def _syntax(c: Cursor, expected: str) -> SqlError:
    at = c.token.start if not c.at_end else len(c.sql)
    return SqlError(
        Code.SYNTAX_ERROR,
        f"Syntax error: failed at position {at + 1} ({c.token.text or 'end of query'}) of "
        f"'{c.sql[:200]}'. Expected {expected}",
    )
