"""A script cut into its statements."""

from __future__ import annotations

from engine.errors import Code, SqlError
from engine.sql.tokens import TokenKind, scan


def split_statements(sql: str) -> list[str]:
    """The statements of a script, without their semicolons and the white space around them.

    Comments stay with the statement they precede; what holds no more than comments is dropped. A semicolon
    within strings, quoted identifiers, comments or heredocs separates nothing. Raises SqlError 62 as
    `tokenize` does.
    """
    statements: list[str] = []
    start = 0
    is_empty = True
    for token in scan(sql):
        if token.kind is TokenKind.PUNCTUATION and token.text == ";":
            if not is_empty:
                statements.append(sql[start : token.start].strip())
            start = token.end
            is_empty = True
        elif token.is_significant:
            is_empty = False
    if not is_empty:
        statements.append(sql[start:].strip())
    return statements


def require_one_statement(sql: str) -> None:
    """Raises SqlError 62 for several statements in one text."""
    if ";" in sql and len(split_statements(sql)) > 1:
        raise SqlError(Code.SYNTAX_ERROR, "Syntax error (Multi-statements are not allowed)")
