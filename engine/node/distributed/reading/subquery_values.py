"""Subqueries over Distributed tables where chDB would have to read shards and cannot: what they give is asked
for first, and is written in their place.

    INSERT INTO t VALUES (1, (SELECT max(id) FROM d))      chDB takes no UNION among rows
    DELETE FROM t WHERE id IN (SELECT id FROM d)           chDB keeps the text, and runs it when it likes
    UPDATE t SET n = (SELECT max(id) FROM d) WHERE …       also after a restart
    SHOW TABLES WHERE name IN (SELECT name FROM d)         chDB makes a SELECT of it by itself

The values are those of the moment when the statement came, as of ClickHouse's own
`mutations_execute_subqueries_on_initiator`.
"""

from __future__ import annotations

import asyncio
import enum
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from engine.distributed.select import IS_CHECKED
from engine.errors import Code, SqlError
from engine.names import quote_string
from engine.sql import TokenKind
from engine.sql.cursor import Cursor
from engine.sql.edit import Edit, apply_edits
from engine.sql.kinds import AlterCommand
from engine.sql.parse import draft_of
from engine.sql.sources import is_behind_in, read_tables
from engine.sql.tokens import Token, scan

MOST_CHARACTERS = 10_000_000
"""Of one value."""
MOST_IN_KEEPER = 900_000
"""Of one value in what replicas have to do: Keeper keeps it, and takes requests of up to 1 MiB."""

MOST_IN_SHARDS = 100_000
"""Of one value that goes to shards, in a URL."""

_BEGINS = r"\(\s*(?:SELECT|WITH|FROM)\b"
_MAY_BE_IN_ROWS = re.compile(_BEGINS, re.IGNORECASE)
_WITHOUT = re.compile(
    rf"(?: [^'\"`$\#/(-]++ | '(?:[^'\\]++|\\.)*+' | -(?!-) | /(?![/*]) | (?!{_BEGINS})\( )*+",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
"""Rows up to the first subquery, or to what only a lexer can tell from one. It is fast: rows may be many, and
the text in them may say anything."""
_MAY_BE_IN_CONDITIONS = re.compile(rf"{_BEGINS}|\bIN\b", re.IGNORECASE)
_CHANGES_OF_ROWS = (AlterCommand.DELETE, AlterCommand.UPDATE)
_SECONDS = re.compile(r"DateTime|Nullable\(DateTime\)")
"""As a number it is the same on servers of every version."""
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'")
_OF_ANY_TYPE = re.compile(r"\b(Variant(?=\()|Dynamic\b)")
_WORDS = frozenset({"SELECT", "WITH", "FROM"})
_SET_OPERATIONS = frozenset({"UNION", "EXCEPT", "INTERSECT"})


def _type_in_utc() -> str:
    """SQL for the type of v with all times in UTC: elsewhere an hour comes twice when clocks are set back,
    and text does not say which of the two."""
    zone = "'UTC'"
    type_ = "toTypeName(v)"
    for pattern, by in (
        (r"\bDateTime64\((\d)(?:, '[^']*')?\)", rf"DateTime64(\1, {zone})"),
        (r"\bDateTime\('[^']*'\)", f"DateTime({zone})"),
        (r"\bDateTime(\)|,|$)", rf"DateTime({zone})\1"),
    ):
        type_ = f"replaceRegexpAll({type_}, {quote_string(pattern)}, {quote_string(by)})"
    return type_


ANSWERED = (
    f"toTypeName(v), isNull(v), ifNull(hex(toString(_CAST(v, {_type_in_utc()}))), ''), {_type_in_utc()}"
)
"""The type of v, whether it is NULL, its text, and the type of that."""


class Meaning(enum.Enum):
    """What a subquery is for."""

    VALUE = enum.auto()
    SET = enum.auto()
    """The right side of IN."""
    EXISTENCE = enum.auto()
    """The argument of EXISTS."""


_MEANINGS = {"IN": Meaning.SET, "EXISTS": Meaning.EXISTENCE}


@dataclass(frozen=True, slots=True)
class Subquery:
    """`start` and `end` are offsets of its brackets, of EXISTS too, or of the table's name behind IN."""

    start: int
    end: int
    select: str
    meaning: Meaning = Meaning.VALUE


ValueOf = Callable[[Subquery], Awaitable[str | None]]
"""An expression for what it gives; None leaves the subquery as it is."""


async def with_values_in_rows(sql: str, value: ValueOf) -> str:
    """An INSERT with values for subqueries among its rows, behind VALUES or FORMAT Values. The rows are no
    tokens of the statement: they may be many, and are seldom SQL."""
    if _MAY_BE_IN_ROWS.search(sql) is None:
        return sql
    tokens = Cursor(sql).tokens
    if len(tokens) < 2 or tokens[-1].kind is not TokenKind.DATA or tokens[-2].text.upper() != "VALUES":
        return sql
    begin = tokens[-1].start
    if _WITHOUT.fullmatch(sql, begin):
        return sql
    found = await asyncio.to_thread(lambda: list(_subqueries(sql, scan(sql[begin:]), begin)))
    return await _with_values(sql, found, value)


async def with_values_in_conditions(sql: str, value: ValueOf) -> str:
    """A DELETE, UPDATE or KILL with values for subqueries, and tables behind IN, anywhere in it, but for what
    an ALTER does besides; a SHOW with values for those of its condition and its LIMIT."""
    if _MAY_BE_IN_CONDITIONS.search(sql) is None:
        return sql
    cursor = Cursor(sql)
    begin = 0
    if cursor.word == "SHOW":
        cursor.skip_to("WHERE", "LIMIT")
        begin = cursor.at
    found = list(_subqueries(sql, cursor.tokens[begin:], 0))
    found += [
        Subquery(ref.start, ref.end, f"SELECT * FROM {ref.name.quoted}", Meaning.SET)
        for ref in read_tables(cursor, begin)
        if is_behind_in(cursor, cursor.at_offset(ref.start))
        and not any(one.start <= ref.start < one.end for one in found)
    ]
    kept = _kept_by_alter(sql) if found else []
    found = [one for one in found if not any(begin <= one.start < end for begin, end in kept)]
    return await _with_values(sql, found, value)


def _kept_by_alter(sql: str) -> list[tuple[int, int]]:
    """Where the commands of an ALTER stand whose text becomes the table's: in a TTL, constraint or default a
    value would stay for ever what it was once."""
    draft = draft_of(sql)
    starts = [draft.tokens[at].start for at in draft.alter_starts]
    ranges = zip(draft.alter_commands, starts, [*starts, len(sql)][1:], strict=True)
    return [(begin, end) for command, begin, end in ranges if command not in _CHANGES_OF_ROWS]


async def _with_values(sql: str, subqueries: Iterable[Subquery], value: ValueOf) -> str:
    edits = []
    for subquery in subqueries:
        text = await value(subquery)
        if text is not None:
            edits.append(Edit(subquery.start, subquery.end, text))
    return apply_edits(sql, edits)


def question_of(meaning: Meaning, select: str) -> str:
    """What asks for the value of a subquery, or whether it gives a row; `literal` reads the answer in the
    format TabSeparatedRaw."""
    if meaning is Meaning.EXISTENCE:
        select = f"SELECT count() > 0 FROM (SELECT 1 FROM ({select}) LIMIT 1)"
    return f"SELECT {ANSWERED} FROM (SELECT ({select}) AS v)"


def question_of_set(select: str, *, columns: int, with_nulls: bool) -> str:
    """What asks for the rows of a subquery behind IN, as `question_of` does. `with_nulls`: NULL equals
    NULL (`transform_null_in`)."""
    rows = "groupUniqArray(*)"
    if columns > 1:
        rows = "groupUniqArray(tuple(*))"
    elif with_nulls:
        rows = "arrayMap(one -> one.1, groupUniqArray(tuple(*)))"
    return f"SELECT {ANSWERED} FROM (SELECT {rows} AS v FROM ({select}))"


def literal(answer: str, *, most: int) -> str:
    """An expression of the same value and type. Raises SqlError 48 for one of more than `most` characters,
    and for one that text does not tell from another."""
    type_, is_null, digits, written = answer.rstrip("\n").split("\t")
    if (found := _OF_ANY_TYPE.search(_STRING.sub("", type_))) is not None and is_null != "1":
        raise SqlError(
            Code.NOT_IMPLEMENTED,
            f"What a subquery gives here may not be of type {found[1]}: its text does not say what it is.",
            hint="CAST it to the type that it has.",
        )
    raw = bytes.fromhex(digits)
    if is_map := type_.startswith("Map("):
        raw = b"[" + raw + b"]"
        digits = raw.hex()
    value = quote_string(raw.decode()) if raw.isascii() else f"unhex({quote_string(digits)})"
    if len(value) > most:
        raise SqlError(
            Code.NOT_IMPLEMENTED,
            f"What a subquery gives here may not be longer than {most} characters.",
            hint="Write what is read into a table of this node first, and read that.",
        )
    cast = "_CAST" if IS_CHECKED.search(type_) else "CAST"
    if is_null == "1":
        value = "NULL"
    elif is_map:  # chDB reads one as a part of another text only
        value = f"{cast}({value}, {quote_string(f'Array({written})')})[1]"
    elif _SECONDS.fullmatch(type_):
        value = str(int(datetime.fromisoformat(f"{raw.decode()}+00:00").timestamp()))
    elif written != type_:
        value = f"{cast}({value}, {quote_string(written)})"
        cast = "_CAST"  # CAST to a time without a zone would leave UTC in the type
    return f"{cast}({value}, {quote_string(type_)})"


def _subqueries(sql: str, tokens: Iterable[Token], offset: int) -> Iterator[Subquery]:
    """The outermost ones in brackets. `offset` is where the text of the tokens begins in `sql`."""
    found = [token for token in tokens if token.is_significant]
    words = [token.text.upper() if token.kind is TokenKind.WORD else token.text for token in found]
    at = 0
    while at < len(words):
        begin = at
        while words[at : at + 1] == ["("]:
            at += 1
        if at == begin or words[at : at + 1] == [] or words[at] not in _WORDS:
            at += at == begin
            continue
        before = words[begin - 1] if begin else ""
        meaning = _MEANINGS.get(before, Meaning.VALUE)
        first, last = _outermost(words, begin, at - 1, is_alone=meaning is not Meaning.VALUE)
        if first > begin:
            meaning = Meaning.VALUE  # `IN ((SELECT 1), 2)`
        start = found[begin - 1 if meaning is Meaning.EXISTENCE else first].start
        select = sql[offset + found[first].end : offset + found[last].start]
        yield Subquery(offset + start, offset + found[last].end, select, meaning)
        at = last + 1


def _outermost(words: Sequence[str], begin: int, at: int, *, is_alone: bool) -> tuple[int, int]:
    """The brackets of a subquery that opens at `at`, with those around it, from `begin` on, in which it is
    joined to others, and if it `is_alone` those around nothing else. Where one never closes, the end."""
    last = _closing(words, at)
    while at > begin:
        behind = words[last + 1] if last + 1 < len(words) else ""
        if not (behind in _SET_OPERATIONS or (is_alone and behind == ")")):
            break
        at -= 1
        last = _closing(words, at)
    return at, last


def _closing(words: Sequence[str], at: int) -> int:
    depth = 0
    for index in range(at, len(words)):
        depth += (words[index] == "(") - (words[index] == ")")
        if not depth:
            return index
    return len(words) - 1
