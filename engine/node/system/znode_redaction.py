"""What a user who may only read sees of a znode's value: the value without the secrets of statements in it.

Statements stand in Keeper as they are carried out, with every password: in entries of the DDL queue and of
Replicated databases (`query: ` and the escaped text), in their tables' definitions, in commands of mutations
and in what is kept of users and named collections. ClickHouse shows all of it to whoever may read
`system.zookeeper`, and leaves it to GRANT who that is, which a node has not got.

Where it cannot be told what a text is, it is taken for SQL. Binary values (parts) are left alone unless words
in them look like secrets.
"""

from __future__ import annotations

import re

from engine.ddl.text import escape, unescape
from engine.errors import MalformedEntry
from engine.sql import redact, redact_bytes_as_text, redact_prose

_LINES = re.compile(r"(?:(?:columns |metadata )?format )?version: ")
_STATEMENT = re.compile(r"\s*(?:[A-Za-z]{2,}\s|/\*|--)")
_STATUS = re.compile(r"-?\d{1,5}\n(?=.)")
_MAY_HOLD_A_SECRET = re.compile(r"['\"`$=(:\\]|\bby\b", re.IGNORECASE)
"""Without any of it a text has none; most of what is in Keeper is told so at once."""
_NO_UTF8 = re.compile("[\ud800-\udfff]")
_LINE = re.compile(r"(?P<name>(?:[a-z_]+: )?)(?P<value>.*)", re.DOTALL)


def redacted_value(text: str) -> str:
    """A value with `[HIDDEN]` for secrets. What is no UTF-8 in it stands there as `decode_bytes` has it."""
    if not _MAY_HOLD_A_SECRET.search(text):
        return text
    if _NO_UTF8.search(text):
        return redact_bytes_as_text(text)
    if _LINES.match(text):
        return "\n".join(map(_redacted_line, text.split("\n")))
    if status := _STATUS.match(text):
        message = text[status.end() :]
        plain = _unescaped(message)
        shown = redact_prose(plain)
        return text if shown == plain else status.group() + escape(shown)
    return redact(text) if _STATEMENT.match(text) else redact_bytes_as_text(text)


def _redacted_line(line: str) -> str:
    r"""`query: CREATE USER u IDENTIFIED BY \'x\'`, or a line of settings, which is not escaped."""
    match = _LINE.fullmatch(line)
    assert match is not None
    name, value = match["name"], match["value"]
    is_escaped = name != "settings: "
    if not _MAY_HOLD_A_SECRET.search(value):
        return line
    plain = _unescaped(value) if is_escaped else value
    shown = redact(plain)
    if shown == plain:
        return line
    return name + (escape(shown) if is_escaped else shown)


def _unescaped(text: str) -> str:
    try:
        return unescape(text)
    except MalformedEntry:
        return text
