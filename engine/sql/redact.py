"""Secrets out of SQL text, for everything that is shown or kept: logs, the ledger, tables, notifications.

What is *executed* needs the secret: never run what this returns. The rules go by tokens, not by a parse, so
they also hold for statements nobody understands, and where they doubt they hide: a name too many hidden is a
nuisance, a password shown is a leak.

Hidden are: what stands behind `BY` and `SALT`; values of names such as `password = 'x'` and dictionaries'
`PASSWORD 'x'`; every value of a named collection; the secret arguments of engines, table functions and
functions; and what `secret_texts` knows. Strings and comments may hold SQL themselves: the same goes for it.

Everything is found in one pass per level of strings within strings.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from engine.errors import SqlError
from engine.sql.edit import Edit
from engine.sql.secret_places import SecretPlaces
from engine.sql.secret_texts import (
    HIDDEN,
    SUSPICIOUS,
    clean_literal,
    clean_sentence,
    clean_text,
)
from engine.sql.syntax_errors import hide_in_syntax_errors
from engine.sql.tokens import Token, TokenKind, literal_value, scan

_HIDDEN_LITERAL = f"'{HIDDEN}'"
_TWICE = re.compile(rf"(?:{re.escape(HIDDEN)}){{2,}}")

_STRINGS = frozenset({TokenKind.STRING, TokenKind.HEREDOC})
_QUOTED = _STRINGS | {TokenKind.IDENTIFIER}

_MOST_LEVELS = 4
"""Strings within strings deeper than this are hidden whole, if they have anything suspicious in them."""

_MOST_PASSES = 5

_MAY_BE_SQL = re.compile(r"['\"`$=(:\\]")


def redact(sql: str) -> str:
    """`sql` with its secrets replaced by `[HIDDEN]`.

    Never raises: of text that cannot be tokenized, what comes behind the fault is hidden whole.
    """
    return _until_nothing_changes(_redact, sql)


# --- sentences ----------------------------------------------------------------------------------------------

_APOSTROPHE = re.compile(r"(?<=[a-z0-9])(?<!\bby)'(?=(?:s|t|re|ll|ve|d)\b(?!'))")
# `hosts' answers`: only where no other quote stands, since it may as well end a string.
_APOSTROPHE_OF_MANY = re.compile(r"(?<=[a-z]s)'(?=[\s.,;:)])")
_QUOTE = re.compile(r"['\"`$]")
_STANDS_FOR_ONE = "\ue027"
# In a sentence these begin no comment: what stands behind an address or an option is looked at, too.
_COMMENTS = {"//": "\ue02f\ue02f", "--": "\ue02d\ue02d", "#": "\ue023", "/*": "\ue02f\ue02a"}
_SYNTAX_ERROR = re.compile(
    r"syntax error|syntax_error|code: 62\b|failed at position|\bexpected [^:'\"]{1,80} in: ", re.IGNORECASE
)


def redact_prose(text: str) -> str:
    """The same for sentences in which SQL may stand, such as errors: the apostrophe of `the queue's` begins
    no string, and `//` no comment. Where a quote is left that nothing ends, it cannot be told what is within
    quotes and what is between them: all from the first one on is hidden. A syntax error quotes a statement
    that has no known form, from the middle of it: all its strings are hidden, and words where a secret may be
    one."""
    return _until_nothing_changes(_redact_prose, text)


def redact_bytes_as_text(text: str) -> str:
    """The same for what may be no text at all, such as values in Keeper: it is left alone unless words in it
    look like those around a secret."""
    return redact_prose(text) if SUSPICIOUS.search(text) or clean_text(text) != text else text


def _until_nothing_changes(redact_once: Callable[[str, int], str], text: str) -> str:
    """What hides a part of an odd text may leave a quote without its other end."""
    for _ in range(_MOST_PASSES):
        shown = _TWICE.sub(HIDDEN, redact_once(text, 0))
        if shown == text:
            break
        text = shown
    return text


def _redact_prose(text: str, level: int) -> str:
    protected = _APOSTROPHE.sub(_STANDS_FOR_ONE, hide_in_syntax_errors(text))
    if protected.count("'") == 1:
        protected = _APOSTROPHE_OF_MANY.sub(_STANDS_FOR_ONE, protected)
    for marker, stand_in in _COMMENTS.items():
        protected = protected.replace(marker, stand_in)
    broken = _SYNTAX_ERROR.search(protected)
    at = broken.start() if broken is not None else len(protected)
    try:
        tokens = list(scan(protected))
    except SqlError:
        protected = _QUOTE.split(protected, maxsplit=1)[0] + HIDDEN
    else:
        protected = _applied(
            protected,
            [
                Edit(token.start, token.end, _HIDDEN_LITERAL)
                for token in tokens
                if token.start >= at and token.kind in _STRINGS
            ],
        )
    shown = _redact(protected, level).replace(_STANDS_FOR_ONE, "'")
    for marker, stand_in in _COMMENTS.items():
        shown = shown.replace(stand_in, marker)
    return clean_sentence(shown)


# --- one level ----------------------------------------------------------------------------------------------


def _redact(sql: str, level: int) -> str:
    tokens: list[Token] = []
    tail = ""
    try:
        for token in scan(sql):
            tokens.append(token)
    except SqlError:
        end = tokens[-1].end if tokens else 0
        tail = HIDDEN
        sql = sql[:end]
    hidden = SecretPlaces([t for t in tokens if t.is_significant]).starts()
    edits: list[Edit] = []
    for token in tokens:
        if token.start in hidden:
            edits.append(Edit(token.start, token.end, _HIDDEN_LITERAL))
        elif token.kind in _QUOTED or token.kind is TokenKind.COMMENT:
            cleaned = _cleaned(token, level)
            if cleaned != token.text:
                edits.append(Edit(token.start, token.end, cleaned))
    return _applied(sql, edits) + tail


def _applied(sql: str, edits: list[Edit]) -> str:
    """Two literals side by side stay two: `''` within quotes would be a quote."""
    pieces: list[str] = []
    at, last = 0, ""
    for edit in sorted(edits):
        between = sql[at : edit.start]
        before = between[-1:] or last
        if last == "'" and between.startswith("'"):
            between = f" {between}"
        pieces += [between, " " if before == "'" == edit.text[:1] else "", edit.text]
        at, last = edit.end, edit.text[-1:]
    rest = sql[at:]
    pieces += [" " if last == "'" == rest[:1] else "", rest]
    return "".join(pieces)


def _cleaned(token: Token, level: int) -> str:
    """A literal, quoted identifier or comment that is not hidden as a whole."""
    text = token.text
    if not _MAY_BE_SQL.search(text, 1, len(text) - 1):
        return text
    if token.kind is TokenKind.COMMENT:
        return _cleaned_comment(text, level)
    value = literal_value(token)
    cleaned = _redacted_within(clean_literal(value), level)
    if cleaned == value:
        return text
    if token.kind is TokenKind.HEREDOC:
        tag = text[: text.index("$", 1) + 1]
        return f"{tag}{cleaned}{tag}"
    quote = text[0] if text[0] in "`\"'" else "'"
    return quote + cleaned.replace("\\", "\\\\").replace(quote, f"\\{quote}") + quote


def _redacted_within(value: str, level: int) -> str:
    """The value of a string, which may be a statement or a part of one."""
    if not _MAY_BE_SQL.search(value) or not SUSPICIOUS.search(value):
        return value
    if level >= _MOST_LEVELS:
        return HIDDEN
    try:
        for _ in scan(value):
            pass
    except SqlError:
        return _redact_prose(value, level + 1)
    return _redact(value, level + 1)


def _cleaned_comment(text: str, level: int) -> str:
    is_block = text.startswith("/*")
    marker = "/*" if is_block else text[: 1 if text[0] == "#" else 2]
    body = text[len(marker) : -2] if is_block else text[len(marker) :]
    cleaned = clean_text(body)
    if SUSPICIOUS.search(cleaned):
        cleaned = HIDDEN if level >= _MOST_LEVELS else _redact_prose(cleaned, level + 1)
    if cleaned == body:
        return text
    if is_block:  # What was within quotes may have opened or closed a comment within this one.
        cleaned = cleaned.replace("/*", "/ *").replace("*/", "* /")
    return f"{marker}{cleaned}*/" if is_block else f"{marker}{cleaned}"
