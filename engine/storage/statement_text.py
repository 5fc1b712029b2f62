"""Cutting SQL text where chDB needs it cut: a SELECT's output clauses, an INSERT's rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from engine.errors import Code, SqlError
from engine.names import quote_string
from engine.sql.tokens import Token, TokenKind, literal_value, scan, tokenize
from engine.storage.whole_databases import without_lazy_loading

_OPEN, _CLOSE = frozenset("([{"), frozenset(")]}")
_SPACE_BEFORE_ROWS = " \t\f"
LONG_TEXT = 1 << 16
"""Characters. More may be more bytes than chDB reads of a statement where `max_query_size` is not set."""


_HINT = re.compile(r"""\{[^{}'"]*\b(?:server|client)?[eE]rror\b""")
"""In a comment: `DROP TABLE t -- { serverError UNKNOWN_TABLE }` is a success to chDB, if there is no `t`."""
_NO_NEWLINE = re.compile(r"[^\n]")


def sendable(sql: str) -> str | bytes:
    """Text that came as bytes other than UTF-8 has surrogates in their places, and is sent as those bytes.
    Comments that tell ClickHouse's own tests which error to expect are blank: chDB would keep it back. No
    database loads its tables when they are read (`whole_databases`)."""
    if _HINT.search(sql):
        sql = _without_hints(sql)
    sql = without_lazy_loading(sql)
    try:
        sql.encode()
    except UnicodeEncodeError:
        return sql.encode("utf-8", "surrogateescape")
    return sql


def _without_hints(sql: str) -> str:
    try:
        tokens = tokenize(sql)
    except SqlError:  # chDB says so, too
        return sql
    return "".join(
        _NO_NEWLINE.sub(" ", token.text)
        if token.kind is TokenKind.COMMENT and _HINT.search(token.text)
        else token.text
        for token in tokens
    )


@dataclass(frozen=True, slots=True)
class SelectText:
    """A SELECT that writes to a file, and the format it was asked for. `takes_settings`: behind it a clause
    SETTINGS may be put. `described` asks for the names and types of its columns, `unwritten` is it without
    the file."""

    sql: str
    format: str
    takes_settings: bool
    described: str
    unwritten: str


def select_into(sql: str, file: str, *, default_format: str, native_as: str = "Native") -> SelectText:
    """Make `sql` write its result to `file`, which exists; `FORMAT x` of the text wins over the default, and
    what is asked for in Native is written in the format `native_as`.

    Raises SqlError 358 where the text has INTO OUTFILE itself, 62 as `tokenize`.
    """
    tokens = [token for token in tokenize(sql) if token.is_significant]
    while tokens and tokens[-1].text == ";":
        tokens.pop()
    words = [token.text.upper() if token.kind is TokenKind.WORD else "" for token in tokens]
    outside = _outside_brackets(tokens)
    format_at = None
    for at in reversed(range(len(tokens) - 1)):
        if not outside[at]:
            continue
        if tokens[at].text == ";":
            raise SqlError(
                Code.SYNTAX_ERROR,
                f"Syntax error (Multi-statements are not allowed): failed at position {tokens[at].start + 1}",
            )
        if words[at] == "INTO" and words[at + 1] == "OUTFILE":
            raise SqlError(Code.INTO_OUTFILE_NOT_ALLOWED, "INTO OUTFILE is not allowed")
        is_name = tokens[at + 1].is_name
        if words[at] == "FORMAT" and is_name and words[at + 2 : at + 3] in ([], ["SETTINGS"]):
            format_at = at
    clause = f"\nINTO OUTFILE {quote_string(file)} TRUNCATE "
    if format_at is None:
        select, name, behind = sql[: tokens[-1].end] if tokens else sql, default_format, ""
    else:
        select, name = sql[: tokens[format_at].start], tokens[format_at + 1].text.strip('`"')
        behind = sql[tokens[format_at + 1].end : tokens[-1].end]
    written = native_as if name.lower() == "native" else name
    return SelectText(
        f"{select}{clause}FORMAT {written}{behind}",
        name,
        takes_settings=not behind,
        described=f"DESCRIBE TABLE ({select}\n){behind}",
        unwritten=f"{select}\nFORMAT {name}{behind}",
    )


def _outside_brackets(tokens: list[Token]) -> list[bool]:
    depth = 0
    outside = []
    for token in tokens:
        if token.kind is TokenKind.PUNCTUATION and token.text in _CLOSE:
            depth -= 1
        outside.append(depth == 0)
        if token.kind is TokenKind.PUNCTUATION and token.text in _OPEN:
            depth += 1
    return outside


INPUT_TABLE = "_oncluster_input"


@dataclass(frozen=True, slots=True)
class InsertText:
    """An INSERT whose rows follow: the statement without them, their format, and where they start.

    With `input_structure` it is INSERT … SELECT … FROM input('structure') FORMAT …: `head` reads from the
    table `INPUT_TABLE` instead, which the rows have to be put into first.
    """

    head: str
    format: str
    rows_at: int
    input_structure: str = ""


def insert_with_rows(text: str) -> InsertText | None:
    """Where the rows of an INSERT start; None where none are expected in the text (most INSERT … SELECT).

    `text` may be cut off anywhere in the rows, and rows may be anything: nothing behind their start is
    read. `rows_at` is an offset in characters. Raises SqlError 62 as `tokenize`, 78 for FROM INFILE.
    Source: ClickHouse's ParserInsertQuery; after FORMAT the rows start behind blanks and one line break.
    """
    tokens = (token for token in scan(text) if token.is_significant)
    depth = 0
    is_after_format = False
    format_at = 0
    for token in _behind_name(tokens):
        if token.kind is TokenKind.PUNCTUATION:
            depth += (token.text in _OPEN) - (token.text in _CLOSE)
        if depth or not token.is_name:
            is_after_format = False
            continue
        if is_after_format:
            return InsertText(text[:format_at], token.text.strip('`"'), _after_format(text, token.end))
        word = token.text.upper() if token.kind is TokenKind.WORD else ""
        if word == "VALUES":
            return InsertText(text[: token.start], "Values", token.end)
        if word in ("SELECT", "WITH"):
            return _select_from_input(text, token, tokens)
        if word == "WATCH":
            return None
        if word == "INFILE":
            raise SqlError(Code.UNKNOWN_TYPE_OF_QUERY, "Query has infile and was send directly to server")
        is_after_format = word == "FORMAT"
        format_at = token.start
    return None


def _select_from_input(text: str, select: Token, tokens: Iterator[Token]) -> InsertText | None:
    """The rest of INSERT … SELECT, from `select` on: None unless it reads from `input('…')`."""
    recent: list[Token] = [select]
    head = structure = ""
    copied = depth = 0
    for token in tokens:
        if token.kind is TokenKind.PUNCTUATION:
            depth += (token.text in _OPEN) - (token.text in _CLOSE)
        recent = [*recent[-3:], token]
        words = [t.text.lower() for t in recent]
        if len(recent) == 4 and words[0] == "input" and words[1] == "(" and words[3] == ")":
            structure = literal_value(recent[2])
            head += text[copied : recent[0].start] + INPUT_TABLE
            copied = token.end
        is_name = token.is_name
        if structure and depth == 0 and is_name and words[-2:-1] == ["format"]:
            head += text[copied : recent[-2].start]
            return InsertText(head, token.text.strip('`"'), _after_format(text, token.end), structure)
    return None


def _behind_name(tokens: Iterator[Token]) -> Iterator[Token]:
    """The tokens behind INSERT INTO [TABLE | FUNCTION] name, whatever the name is."""
    token = next(tokens, None)
    while token is not None and token.text.upper() in ("INSERT", "INTO", "TABLE", "FUNCTION"):
        token = next(tokens, None)
    for token in tokens:
        if token.text == ".":
            next(tokens, None)
        else:
            yield token
            break
    yield from tokens


def _after_format(text: str, at: int) -> int:
    if text.startswith(";", at):
        raise SqlError(Code.SYNTAX_ERROR, "You have excessive ';' symbol before data for INSERT.")
    while at < len(text) and text[at] in _SPACE_BEFORE_ROWS:
        at += 1
    if text.startswith("\r", at):
        at += 1
    if text.startswith("\n", at):
        at += 1
    return at
