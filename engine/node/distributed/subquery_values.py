"""Subqueries over Distributed tables where chDB would have to read shards and cannot: what they give is asked
for first, and is written in their place.

    INSERT INTO t VALUES (1, (SELECT max(id) FROM d))      chDB takes no UNION among rows
    DELETE FROM t WHERE id IN (SELECT id FROM d)           chDB keeps the text, and runs it when it likes
    UPDATE t SET n = (SELECT max(id) FROM d) WHERE …       also after a restart

The values are those of the moment when the statement came, as of ClickHouse's own
`mutations_execute_subqueries_on_initiator`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass

from engine.errors import Code, SqlError
from engine.names import quote_string
from engine.sql import TokenKind
from engine.sql.cursor import Cursor
from engine.sql.edit import Edit, apply_edits
from engine.sql.tokens import Token, scan

MOST_CHARACTERS = 100_000
"""Of one value. chDB reads statements of up to 256 KiB, and Keeper keeps what a replica has to do."""

_BEGINS = re.compile(r"\(\s*(?:SELECT|WITH|FROM)\b", re.IGNORECASE)
_WORDS = frozenset({"SELECT", "WITH", "FROM"})


@dataclass(frozen=True, slots=True)
class Subquery:
    """`start` and `end` are offsets of its brackets; `is_set`: it is the right side of IN."""

    start: int
    end: int
    select: str
    is_set: bool = False


ValueOf = Callable[[Subquery], Awaitable[str | None]]
"""An expression for what it gives; None leaves the subquery as it is."""


async def with_values_in_rows(sql: str, value: ValueOf) -> str:
    """An INSERT with values for subqueries among its rows, behind VALUES or FORMAT Values. The rows are no
    tokens of the statement: they may be many, and are seldom SQL."""
    if _BEGINS.search(sql) is None:
        return sql
    tokens = Cursor(sql).tokens
    if len(tokens) < 2 or tokens[-1].kind is not TokenKind.DATA or tokens[-2].text.upper() != "VALUES":
        return sql
    begin = tokens[-1].start
    return await _with_values(sql, _subqueries(sql, scan(sql[begin:]), begin), value)


async def with_values_in_conditions(sql: str, value: ValueOf) -> str:
    """A DELETE or UPDATE with values for subqueries anywhere in it."""
    if _BEGINS.search(sql) is None:
        return sql
    return await _with_values(sql, _subqueries(sql, Cursor(sql).tokens, 0), value)


async def _with_values(sql: str, subqueries: Iterable[Subquery], value: ValueOf) -> str:
    edits = []
    for subquery in subqueries:
        text = await value(subquery)
        if text is not None:
            edits.append(Edit(subquery.start, subquery.end, text))
    return apply_edits(sql, edits)


def question_of_value(select: str) -> str:
    """What asks for the value of a subquery; `literal` reads the answer in the format TabSeparatedRaw."""
    return f"SELECT toTypeName(v), isNull(v), ifNull(hex(toString(v)), '') FROM (SELECT ({select}) AS v)"


def question_of_set(select: str, *, columns: int) -> str:
    """What asks for the rows of a subquery behind IN, as `question_of_value` does. NULL equals nothing."""
    rows = "tuple(*)" if columns > 1 else "*"
    return (
        f"SELECT toTypeName(v), 0, hex(toString(v)) FROM (SELECT groupUniqArray({rows}) AS v FROM ({select}))"
    )


def literal(answer: str) -> str:
    """An expression of the same value and type. Raises SqlError 48 for one that is too long."""
    type_, is_null, digits = answer.rstrip("\n").split("\t")
    raw = bytes.fromhex(digits)
    value = quote_string(raw.decode()) if raw.isascii() else f"unhex({quote_string(digits)})"
    if len(value) > MOST_CHARACTERS:
        raise SqlError(
            Code.NOT_IMPLEMENTED,
            "What a subquery over a Distributed table gives to DELETE, UPDATE or INSERT … VALUES is longer "
            f"than {MOST_CHARACTERS} characters.",
            hint="Write what is read into a table of this node first, and read that.",
        )
    return f"CAST({'NULL' if is_null == '1' else value}, {quote_string(type_)})"


def _subqueries(sql: str, tokens: Iterable[Token], offset: int) -> Iterator[Subquery]:
    """The outermost ones in brackets. `offset` is where the text of the tokens begins in `sql`."""
    depth = start = 0
    is_set = False
    before = behind = ""  # the word before, and the one before that
    for token in tokens:
        if not token.is_significant:
            continue
        word = token.text.upper() if token.kind is TokenKind.WORD else token.text
        if depth:
            depth += (word == "(") - (word == ")")
            if not depth:
                begin, end = offset + start, offset + token.end
                yield Subquery(begin, end, sql[begin + 1 : end - 1], is_set)
        elif before == "(" and word in _WORDS and behind != "EXISTS":
            depth, is_set = 1, behind == "IN"
        elif word == "(":
            start = token.start
        before, behind = word, before
