"""`WITH … INSERT INTO t SELECT …`, which is `INSERT INTO t WITH … SELECT …`.

Source: ClickHouse's ParserInsertQuery, which takes both.
"""

from __future__ import annotations

from engine.errors import Code, SqlError
from engine.sql.cursor import Cursor
from engine.sql.tokens import TokenKind

_BEGINS = ("SELECT", "WITH", "FROM")
_VALUES = (TokenKind.WORD, TokenKind.IDENTIFIER, TokenKind.STRING, TokenKind.HEREDOC, TokenKind.NUMBER)


def insert_behind_with(cursor: Cursor) -> int | None:
    """The token of the INSERT of a statement that begins with WITH; None for any other statement."""
    if cursor.words[:1] != ["WITH"]:
        return None
    cursor.at = 1
    while not cursor.at_end and cursor.word not in ("SELECT", "FROM"):
        if cursor.looking_at("INSERT", "INTO") and _ends_item(cursor):
            return cursor.at
        if not cursor.skip_brackets():
            cursor.at += 1
    return None


def with_behind_insert(sql: str) -> str:
    """The statement in the usual order; any other as it is. Raises SqlError 62 for rows instead of a SELECT,
    for which WITH means nothing."""
    cursor = Cursor(sql)
    insert = insert_behind_with(cursor)
    if insert is None:
        return sql
    cursor.at = insert
    while not cursor.at_end and cursor.word not in _BEGINS:
        if not cursor.skip_brackets():
            cursor.at += 1
    if cursor.at_end or cursor.looking_at("FROM", "INFILE"):
        raise SqlError(Code.SYNTAX_ERROR, "Syntax error: WITH in front of an INSERT that has no SELECT.")
    begin, into, select = (cursor.tokens[at].start for at in (0, insert, cursor.at))
    return f"{sql[:begin]}{sql[into:select]}{sql[begin:into]}{sql[select:]}"


def _ends_item(cursor: Cursor) -> bool:
    """Whether an item of WITH's list may end in front of the token."""
    before = cursor.tokens[cursor.at - 1]
    is_open = cursor.words[cursor.at - 1] in ("WITH", "AS") and before.kind is TokenKind.WORD
    return before.text in (")", "]", "}") or (before.kind in _VALUES and not is_open)
