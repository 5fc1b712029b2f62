"""Query parameters, `{name:Type}`, in statements that are understood by their text.

chDB puts values into what it is given itself. But which table `DROP TABLE {t:Identifier}` means has to be
known before, and the other hosts of ON CLUSTER know nothing of the client's parameters.
Source: ClickHouse's ReplaceQueryParameterVisitor; values are written as in TabSeparated, with backslashes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from engine.errors import Code, SqlError
from engine.names import quote_identifier, quote_string
from engine.sql.cursor import Cursor
from engine.sql.edit import Edit, apply_edits
from engine.sql.kinds import StatementKind
from engine.sql.statement import Statement

_VALUES_STAY = frozenset({StatementKind.INSERT, StatementKind.CREATE_VIEW})
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?\Z")
_BEFORE_LITERALS = frozenset({"PARTITION", "PART", "ID", "LIMIT", "OFFSET"})
"""What follows is a literal: the grammar takes no expression there."""
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"b": "\b", "f": "\f", "r": "\r", "n": "\n", "t": "\t", "0": "\0", "a": "\a", "v": "\v"}


def with_parameters(sql: str, parameters: Mapping[str, str], statement: Statement) -> str:
    """`sql` with values in the places of `{name:Type}`.

    Of queries and INSERTs only identifiers are put in: their values are chDB's part. So are those of CREATE
    VIEW, being the view's parameters. Raises SqlError 456 for a parameter without a value.
    """
    only_names = statement.is_query or statement.kind in _VALUES_STAY
    if "{" not in sql or (only_names and "Identifier" not in sql):
        return sql
    cursor = Cursor(sql)
    edits = []
    for at, word in enumerate(cursor.words):
        if word != "{":
            continue
        cursor.at = at + 1
        name = cursor.identifier()
        if name is None or not cursor.accept(":"):
            continue
        begin = cursor.at
        while not cursor.at_end and cursor.word != "}":
            cursor.at += 1
        if cursor.at_end or cursor.at == begin:
            continue
        type_ = sql[cursor.tokens[begin].start : cursor.last_end]
        cursor.at += 1
        if only_names and type_ != "Identifier":
            continue
        if name not in parameters:
            raise SqlError(
                Code.UNKNOWN_QUERY_PARAMETER,
                f"Substitution `{name}` is not set.",
                hint=f"Over HTTP it is the URL's param_{name}.",
            )
        is_plain = at > 0 and cursor.words[at - 1] in _BEFORE_LITERALS
        value = _as_sql(parameters[name], type_, is_plain=is_plain)
        edits.append(Edit(cursor.tokens[at].start, cursor.last_end, value))
    return apply_edits(sql, edits)


def _as_sql(value: str, type_: str, *, is_plain: bool) -> str:
    text = _ESCAPE.sub(lambda match: _ESCAPED.get(match.group(1), match.group(1)), value)
    if type_ == "Identifier":
        return quote_identifier(text)
    if value == "\\N" and type_.startswith("Nullable"):
        return "NULL"
    if type_ == "String":
        return quote_string(text)
    if is_plain:
        return text if _NUMBER.match(text) else quote_string(text)
    return f"CAST({quote_string(text)}, {quote_string(type_)})"
