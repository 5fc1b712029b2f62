"""Views with parameters, `FROM view(name = value)`, put into a statement as subqueries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.distributed.definition import engine_arguments
from engine.errors import Code, SqlError
from engine.names import TableName, quote_string
from engine.sql.cursor import Cursor, Role
from engine.sql.edit import Edit, apply_edits

_BEFORE = ("FROM", "JOIN", ",")


@dataclass(frozen=True, slots=True, eq=False)
class ViewCall:
    """Where it stands in the text, and its arguments as they are written."""

    start: int
    end: int
    name: TableName
    arguments: Mapping[str, str]


def view_calls(sql: str) -> Sequence[ViewCall]:
    """What may be one: a name in FROM with arguments of the form `name = value`."""
    found = []
    cursor = Cursor(sql)
    for at, word in enumerate(cursor.words):
        if word not in _BEFORE:
            continue
        cursor.at = at + 1
        ref = cursor.table(Role.SOURCE)
        if ref is None or cursor.word != "(":
            continue
        arguments = [_argument(text) for text in engine_arguments(cursor)]
        given = {name: value for name, value in arguments if name}
        if given and len(given) == len(arguments):
            found.append(ViewCall(ref.start, cursor.last_end, _split(ref.name), given))
    return found


def _split(name: TableName) -> TableName:
    """chDB takes a dot in the name for one between database and view: in a view's text it writes
    `database.view`(…)."""
    database, dot, view = name.table.partition(".")
    return TableName(database, view) if dot and not name.database else name


def _argument(text: str) -> tuple[str, str]:
    cursor = Cursor(text)
    name = cursor.identifier()
    if name is None or not cursor.accept("=") or cursor.at_end:
        return "", ""
    return name, text[cursor.token.start :]


def with_arguments(select: str, call: ViewCall) -> str:
    """A view's SELECT with values in the places of `{name:Type}`. Raises SqlError 456 for one that is not
    given."""
    cursor = Cursor(select)
    edits = []
    for at, word in enumerate(cursor.words):
        if word != "{":
            continue
        start = cursor.tokens[at].start
        cursor.at = at + 1
        name = cursor.identifier()
        if name is None or not cursor.accept(":"):
            continue
        begin = cursor.token.start
        while not cursor.at_end and cursor.word != "}":
            cursor.at += 1
        type_ = select[begin : cursor.token.start].strip()
        cursor.at += 1
        value = call.arguments.get(name)
        if value is None:
            raise SqlError(
                Code.UNKNOWN_QUERY_PARAMETER, f"Parameter {name} of view {call.name} is not given."
            )
        text = value if type_ == "Identifier" else f"CAST({value}, {quote_string(type_)})"
        edits.append(Edit(start, cursor.last_end, text))
    return apply_edits(select, edits)
