"""Which settings hold where a table stands in a statement: `SETTINGS` of a subquery hold inside it.

Of the SELECTs of a UNION each has its own. Those behind the last one of the whole statement hold for all of
it; in a subquery they do not. `session_timezone` does nothing in a subquery. All of it as in ClickHouse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from engine.distributed.select.clauses import is_set_operator
from engine.errors import Code, SqlError
from engine.node.statements.statement import Asked
from engine.sql.cursor import Cursor
from engine.sql.settings_clauses import settings_in

_ZONE = "session_timezone"
_OF_STATEMENT = {"distributed_group_by_no_merge": ("", "0"), "distributed_product_mode": ("",)}
"""And what they are where nothing is said."""


def settings_of_statement(asked: Asked, sql: str) -> Mapping[str, str]:
    """What holds for the whole of `sql`, which is the statement with its views put in."""
    given = {**asked.session.settings, **asked.settings}
    if "SETTINGS" not in Cursor(sql).words:
        return given
    cursor = Cursor(sql)
    last = _selects(cursor, 0, len(cursor.tokens))[-1]
    return {**given, **_own(cursor, *last)}


def with_settings(asked: Asked, whole: Mapping[str, str]) -> Asked:
    """The request for what is asked about the statement in other words, which have none of its SETTINGS."""
    of_session = asked.session.settings
    own = {name: value for name, value in whole.items() if of_session.get(name) != value}
    return replace(asked, settings=own)


def settings_around(sql: str, start: int, whole: Mapping[str, str]) -> Mapping[str, str]:
    """What holds for the table at offset `start`; `whole` holds for the statement.

    Raises SqlError 48 for a setting that can only be followed if it holds for all of the statement.
    """
    cursor = Cursor(sql)
    if "SETTINGS" not in cursor.words:
        return whole
    at = cursor.at_offset(start)
    found = dict(whole)
    for begin, end in _levels(cursor, at):
        of_table = next(one for one in _selects(cursor, begin, end) if one[0] <= at <= one[1])
        found |= _own(cursor, *of_table)
    if _ZONE in whole:
        found[_ZONE] = whole[_ZONE]
    else:
        found.pop(_ZONE, None)
    for name, usual in _OF_STATEMENT.items():
        said, of_whole = found.get(name, ""), whole.get(name, "")
        if said != of_whole and not (said in usual and of_whole in usual):
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                f"Setting {name} is not supported in a part of a SELECT over Distributed tables.",
                hint="Write SETTINGS at the end of the statement, or give it with the request.",
            )
    return found


def _levels(cursor: Cursor, at: int) -> Sequence[tuple[int, int]]:
    """The ranges of tokens of the brackets around token `at`, the whole text first."""
    words = cursor.words
    found = [(0, len(words))]
    for begin in cursor.brackets_around(at):
        cursor.at = begin
        is_closed = cursor.skip_brackets()
        found.append((begin + 1, cursor.at - 1 if is_closed else len(words)))
    return found


def _selects(cursor: Cursor, begin: int, end: int) -> list[tuple[int, int]]:
    """The ranges between UNION, EXCEPT and INTERSECT of a range of tokens."""
    words = cursor.words
    found = []
    cursor.at = start = begin
    while cursor.at < end:
        if is_set_operator(words, cursor.at):
            found.append((start, cursor.at))
            start = cursor.at = cursor.at + 1
        elif not cursor.skip_brackets():
            cursor.at += 1
    return [*found, (start, end)]


def _own(cursor: Cursor, begin: int, end: int) -> dict[str, str]:
    if begin >= end:
        return {}
    text = cursor.sql[cursor.tokens[begin].start : cursor.tokens[end - 1].end]
    return {setting.name: setting.value for setting in settings_in(Cursor(text))}
