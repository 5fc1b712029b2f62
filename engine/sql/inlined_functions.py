"""Calls of SQL user functions, replaced by the functions' bodies, as ClickHouse does in a definition before
it is stored or sent to other replicas: these need not have the function, or have another one of that name.

What chDB will refuse is its affair: a wrong number of arguments, or a function that calls itself, leaves the
call as it is.

Source: ClickHouse's UserDefinedSQLFunctionVisitor, which replaces every identifier of a body that has a
parameter's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.sql.cursor import Cursor
from engine.sql.edit import Edit, apply_edits
from engine.sql.tokens import TokenKind, literal_value

_NAMED_HERE = frozenset({"INDEX", "PROJECTION", "EXISTS", "TABLE", "VIEW", "INTO", "FROM", "JOIN", "."})
"""What stands behind these, before a parenthesis, is no function that is called."""
_ALONE = frozenset({TokenKind.NUMBER, TokenKind.STRING, TokenKind.IDENTIFIER, TokenKind.WORD})


def inlined(sql: str, functions: Mapping[str, str]) -> str:
    """`sql` without calls of `functions`, which are their CREATE texts by name."""
    return _inlined(sql, functions, ())


@dataclass(frozen=True, slots=True)
class _Call:
    """Tokens `name` to `end`, which is behind the closing bracket."""

    name: int
    end: int
    arguments: tuple[str, ...]


def _inlined(sql: str, functions: Mapping[str, str], inside: Sequence[str]) -> str:
    """`inside`: the functions whose bodies this is in."""
    c = Cursor(sql)
    edits = []
    at = 0
    while at + 1 < len(c.tokens):
        call = _call_at(c, at) if _is_call(c, at, functions) else None
        body = None if call is None else _body_of(call, literal_value(c.tokens[at]), functions, inside)
        if call is None or body is None:
            at += 1
            continue
        edits.append(Edit(c.tokens[call.name].start, c.tokens[call.end - 1].end, _bracketed(body)))
        at = call.end
    return apply_edits(sql, edits)


def _is_call(c: Cursor, at: int, functions: Mapping[str, str]) -> bool:
    token = c.tokens[at]
    if not token.is_name or c.words[at + 1] != "(" or literal_value(token) not in functions:
        return False
    return at == 0 or c.words[at - 1] not in _NAMED_HERE


def _call_at(c: Cursor, at: int) -> _Call | None:
    c.at = at + 1
    if not c.skip_brackets():
        return None
    end = c.at
    return _Call(at, end, _separated(c, at + 2, end - 1))


def _separated(c: Cursor, begin: int, end: int) -> tuple[str, ...]:
    """The texts between the commas of a list."""
    texts, first = [], begin
    c.at = begin
    while c.at < end:
        if c.word == ",":
            texts.append(_text(c, first, c.at))
            first = c.at + 1
        if not c.skip_brackets():
            c.at += 1
    if first < end:
        texts.append(_text(c, first, end))
    return tuple(texts)


def _text(c: Cursor, begin: int, end: int) -> str:
    return c.sql[c.tokens[begin].start : c.tokens[end - 1].end] if begin < end else ""


def _body_of(call: _Call, name: str, functions: Mapping[str, str], inside: Sequence[str]) -> str | None:
    parsed = _parsed(functions[name])
    if parsed is None or name in inside:
        return None
    parameters, body = parsed
    if len(parameters) != len(call.arguments):
        return None
    arguments = [_bracketed(_inlined(text, functions, inside)) for text in call.arguments]
    return _replaced(
        _inlined(body, functions, (*inside, name)), dict(zip(parameters, arguments, strict=True))
    )


def _parsed(create: str) -> tuple[tuple[str, ...], str] | None:
    """Parameters and body of `CREATE FUNCTION f AS (a, b) -> a + b`, as chDB writes it."""
    c = Cursor(create)
    if not c.skip_to("AS"):
        return None
    c.at += 1
    first = c.at
    c.skip_to("->", "-")
    names = tuple(literal_value(token) for token in c.tokens[first : c.at] if token.is_name)
    while c.word in ("-", ">", "->"):
        c.at += 1
    return None if c.at_end else (names, create[c.token.start :].rstrip("; \t\r\n"))


def _replaced(body: str, arguments: Mapping[str, str]) -> str:
    c = Cursor(body)
    edits = []
    for at, token in enumerate(c.tokens):
        text = arguments.get(literal_value(token)) if token.is_name else None
        around = (c.words[at - 1] if at else "", c.words[at + 1] if at + 1 < len(c.words) else "")
        if text is not None and "." not in around and around[1] != "(" and around[0] != "AS":
            edits.append(Edit(token.start, token.end, text))
    return apply_edits(body, edits)


def _bracketed(text: str) -> str:
    """So that what stands around it does not take it apart."""
    c = Cursor(text)
    if len(c.tokens) == 1 and c.tokens[0].kind in _ALONE:
        return text
    if c.skip_brackets() and c.at_end:
        return text
    return f"({text})"
