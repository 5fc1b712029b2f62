"""A script cut into its statements."""

from __future__ import annotations

from engine.errors import Code, SqlError
from engine.sql.tokens import Token, TokenKind, scan


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


def leading_comments(sql: str) -> list[str]:
    """The comments before the first word, each without its marks and outer white space."""
    comments: list[str] = []
    for token in scan(sql):
        if token.is_significant:
            break
        if token.kind is TokenKind.COMMENT:
            comments.append(_comment_text(token))
    return comments


def _comment_text(token: Token) -> str:
    text = token.text
    if text.startswith("/*"):
        return text[2:-2].strip()
    return text[2:].strip()
