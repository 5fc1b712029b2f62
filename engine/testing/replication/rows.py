"""Rows of a model table, and the small language of its mutations.

A row is a tuple of (column, value), sorted; a part holds a multiset of rows, which is a sorted tuple. The
commands are those of a mutation entry, several joined with commas:

    DELETE WHERE k = 1            UPDATE v = 2 WHERE k = 1            UPDATE v = v + 2 WHERE 1
    CLEAR COLUMN v                (0 in every row, and the part remembers it)
    DROP COLUMN c · RENAME COLUMN a TO b · MODIFY COLUMN c Type       (rows stay; the part remembers it)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engine.errors import Code, SqlError

Value = int | str
Row = tuple[tuple[str, Value], ...]
Rows = tuple[Row, ...]

_START = re.compile(r"(?:DELETE|UPDATE|DROP|RENAME|MODIFY|CLEAR|MATERIALIZE)\b", re.IGNORECASE)
_NEXT = re.compile(
    r"\)?\s*,\s*\(?(?=(?:DELETE|UPDATE|DROP|RENAME|MODIFY|CLEAR|MATERIALIZE)\b)", re.IGNORECASE
)
_NAME = r"`?(\w+)`?"
_VALUE = r"(-?\d+|'[^']*')"
_DELETE = re.compile(r"DELETE WHERE (.+)\Z", re.IGNORECASE)
_UPDATE = re.compile(rf"UPDATE {_NAME} = (?:{_NAME} \+ )?{_VALUE}(?: WHERE (.+))?\Z", re.IGNORECASE)
_CLEAR = re.compile(rf"CLEAR COLUMN {_NAME}", re.IGNORECASE)
_CONDITION = re.compile(rf"(?:{_NAME} = {_VALUE}|(1)|(0))\Z")


def row_of(values: Mapping[str, Value]) -> Row:
    return tuple(sorted(values.items()))


def rows_of(rows: Iterable[Mapping[str, Value]]) -> Rows:
    """A multiset: the order in which they came does not matter."""
    return tuple(sorted((row_of(row) for row in rows), key=repr))


def rows_to_bytes(rows: Rows) -> bytes:
    return json.dumps(rows).encode()


def rows_from_bytes(data: bytes) -> Rows:
    return tuple(tuple((name, value) for name, value in row) for row in json.loads(data))


@dataclass(frozen=True, slots=True)
class Mutated:
    """Rows after a mutation. `marks` are the commands that change no rows but the part."""

    rows: Rows
    marks: tuple[str, ...]


def mutated(rows: Rows, commands: str) -> Mutated:
    """Apply the commands in order. Raises SqlError 62 for what the model does not understand."""
    marks: list[str] = []
    for command in split_commands(commands):
        if match := _DELETE.match(command):
            rows = tuple(row for row in rows if not _holds(match.group(1), row))
        elif match := _UPDATE.match(command):
            column, other, value, condition = match.groups()
            rows = _updated(rows, column, other, _literal(value), condition or "1")
        elif command.split(" ", 1)[0].upper() in ("DROP", "RENAME", "MODIFY", "CLEAR", "MATERIALIZE"):
            marks.append(command)
            if match := _CLEAR.match(command):
                name = match.group(1)
                rows = rows_of({**dict(row), name: 0} if name in dict(row) else dict(row) for row in rows)
        else:
            raise _unknown(command)
    return Mutated(rows, tuple(marks))


def split_commands(commands: str) -> list[str]:
    """Single commands; each may stand in parentheses."""
    if not _START.match(commands.strip().lstrip("(")):
        raise _unknown(commands)
    return [piece.strip().strip("()").strip() for piece in _NEXT.split(commands.strip())]


def _updated(rows: Rows, column: str, other: str | None, value: Value, condition: str) -> Rows:
    found: list[Row] = []
    for row in rows:
        if not _holds(condition, row):
            found.append(row)
            continue
        values = dict(row)
        if column == "_row_exists":  # a lightweight DELETE
            continue
        if other is None:
            values[column] = value
        else:
            values[column] = int(values.get(other, 0)) + int(value)
        found.append(row_of(values))
    return tuple(sorted(found, key=repr))


def _holds(condition: str, row: Row) -> bool:
    for part in condition.split(" AND "):
        match = _CONDITION.match(part.strip().strip("()").strip())
        if not match:
            raise _unknown(condition)
        column, value, always, never = match.groups()
        if never or (not always and dict(row).get(column, 0) != _literal(value)):
            return False
    return True


def _literal(text: str) -> Value:
    return text[1:-1] if text.startswith("'") else int(text)


def _unknown(text: str) -> SqlError:
    return SqlError(Code.SYNTAX_ERROR, f"The model does not understand {text[:200]!r}")
