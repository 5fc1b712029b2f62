"""`WITH … INSERT INTO t SELECT …`, which is `INSERT INTO t WITH … SELECT …`; to rows it means nothing.

Source: ClickHouse's ParserInsertQuery, which takes both.
"""

from __future__ import annotations

from engine.errors import SqlError
from engine.sql.cursor import Cursor
from engine.sql.tokens import TokenKind, scan

_BEGINS = ("SELECT", "WITH", "FROM")
_VALUES = (TokenKind.WORD, TokenKind.IDENTIFIER, TokenKind.STRING, TokenKind.HEREDOC, TokenKind.NUMBER)


def insert_begin(text: str) -> int | None:
    """Where an INSERT begins: behind its WITH, 0 without one, None for another statement. Behind INTO nothing
    is read: there may be rows, and `text` may be cut off."""
    depth, is_first = 0, True
    try:
        for token in scan(text):
            if not token.is_significant:
                continue
            word = token.text.upper() if token.kind is TokenKind.WORD else ""
            if is_first and word != "WITH":
                return 0 if word == "INSERT" else None
            is_first = False
            if token.kind is TokenKind.PUNCTUATION:
                depth += (token.text in "([{") - (token.text in ")]}")
            if depth == 0 and word in ("SELECT", "FROM"):
                return None
            if depth == 0 and word == "INTO":
                cursor = Cursor(text[: token.end])
                if (at := insert_behind_with(cursor)) is not None:
                    return cursor.tokens[at].start
    except SqlError:
        pass
    return None


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
    """The statement in the usual order, without WITH where it has no SELECT; any other as it is."""
    cursor = Cursor(sql)
    insert = insert_behind_with(cursor)
    if insert is None:
        return sql
    cursor.at = insert
    while not cursor.at_end and cursor.word not in _BEGINS:
        if not cursor.skip_brackets():
            cursor.at += 1
    if cursor.at_end or cursor.looking_at("FROM", "INFILE"):
        return sql[cursor.tokens[insert].start :]
    begin, into, select = (cursor.tokens[at].start for at in (0, insert, cursor.at))
    return f"{sql[:begin]}{sql[into:select]}{sql[begin:into]}{sql[select:]}"


def _ends_item(cursor: Cursor) -> bool:
    """Whether an item of WITH's list may end in front of the token."""
    before = cursor.tokens[cursor.at - 1]
    is_open = cursor.words[cursor.at - 1] in ("WITH", "AS") and before.kind is TokenKind.WORD
    return before.text in (")", "]", "}") or (before.kind in _VALUES and not is_open)
