"""Walking over significant tokens: the one place where token sequences become names and positions."""

from __future__ import annotations

import bisect
import enum
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from engine.names import TableName
from engine.sql.tokens import Token, TokenKind, literal_value, scan


class Role(enum.Enum):
    """Why a name stands where it stands."""

    OBJECT = "acted on"
    TARGET = "written to by the object, or the other table of a partition command"
    SOURCE = "read"


@dataclass(frozen=True, slots=True)
class NameRef:
    """A table's name in the text: `start` and `end` are offsets in characters."""

    start: int
    end: int
    name: TableName
    role: Role


_OPENING = frozenset("([{")
_CLOSING = frozenset(")]}")
_SHORT = 4096
_LONG = 1 << 16
"""In characters: the tokens of such a text take 4 MB."""
_LONGEST = 1 << 18
"""ClickHouse's `max_query_size`, as it is unless somebody sets it: 16 MB."""
_END = Token(TokenKind.PUNCTUATION, "", 0)


class Cursor:
    """A position in the significant tokens of one statement.

    `words[i]` is the upper-cased text of a bare word or the text of punctuation, and empty for anything
    quoted, so that comparing with a keyword can never meet a quoted identifier or a string.
    """

    __slots__ = ("_closing", "at", "sql", "tokens", "words")

    def __init__(self, sql: str) -> None:
        self.sql = sql
        self.at = 0
        self.tokens, self.words = _reader_of(sql)(sql)
        self._closing: dict[int, int] | None = None

    @property
    def word(self) -> str:
        """The current token as a keyword or punctuation; empty at the end and for anything quoted."""
        return self.words[self.at] if self.at < len(self.words) else ""

    @property
    def token(self) -> Token:
        return self.tokens[self.at] if self.at < len(self.tokens) else _END

    @property
    def at_end(self) -> bool:
        return self.at >= len(self.words)

    @property
    def last_end(self) -> int:
        """The offset in characters behind the token before the cursor."""
        return self.tokens[self.at - 1].end if self.at else 0

    def at_offset(self, offset: int) -> int:
        """The first token at or behind an offset in characters, wherever the cursor is."""
        return bisect.bisect_left(self.tokens, offset, key=lambda token: token.start)

    def looking_at(self, *words: str) -> bool:
        at = self.at
        return self.words[at : at + len(words)] == list(words)

    def accept(self, *words: str) -> bool:
        """Step over `words` if they come next."""
        if self.looking_at(*words):
            self.at += len(words)
            return True
        return False

    def accept_one_of(self, *words: str) -> str:
        """Step over the next token if it is one of `words`, and return it; empty otherwise."""
        word = self.word
        if word and word in words:
            self.at += 1
            return word
        return ""

    def identifier(self) -> str | None:
        """Step over one identifier or `{parameter:Identifier}`; None if there is none.

        A parameter's value is not known here, so it stands for itself.
        """
        token = self.token
        if token.is_name:
            self.at += 1
            return literal_value(token)
        if self.word == "{":
            start = self.at
            if self.skip_brackets():
                return self.sql[self.tokens[start].start : self.last_end]
        return None

    def setting_name(self) -> tuple[str, bool] | None:
        """Step over the name of a setting and the `=` behind it; None if there is none.

        Without `=` the setting is 1, and nothing of it follows: the second is False.
        """
        name = self.identifier()
        return None if name is None else (name, self.accept("="))

    def identifier_or_string(self) -> str | None:
        """Step over an identifier, a string or a heredoc; None if there is none."""
        token = self.token
        if token.kind in (TokenKind.STRING, TokenKind.HEREDOC):
            self.at += 1
            return literal_value(token)
        return self.identifier()

    def table(self, role: Role) -> NameRef | None:
        """Step over `[database.]table`; None, without a step, if there is none."""
        start = self.at
        first = self.identifier()
        if first is None:
            return None
        name = TableName("", first)
        if self.word == ".":
            self.at += 1
            second = self.identifier()
            if second is None:
                self.at = start
                return None
            name = TableName(first, second)
            while self.word == "." and self.at + 1 < len(self.tokens):
                # A name with more dots belongs to a catalogue; its first part is the database.
                self.at += 1
                more = self.identifier()
                if more is None:
                    self.at = start
                    return None
                name = TableName(first, f"{name.table}.{more}")
        return NameRef(self.tokens[start].start, self.last_end, name, role)

    def skip_brackets(self) -> bool:
        """Step over a bracketed group; False, without a step, if there is none or it does not close."""
        if self.word not in _OPENING:
            return False
        if self._closing is None:
            self._closing = _closing_brackets(self.words)
        end = self._closing.get(self.at)
        if end is None:
            return False
        self.at = end + 1
        return True

    def brackets_around(self, at: int) -> list[int]:
        """The opening brackets that token `at` stands in, the outermost first."""
        begun: list[int] = []
        for index, word in enumerate(self.words[:at]):
            if word in _OPENING:
                begun.append(index)
            elif word in _CLOSING and begun:
                begun.pop()
        return begun

    def skip_to(self, *words: str) -> bool:
        """Step forward, over bracketed groups, to the next token that is one of `words`."""
        while self.at < len(self.words):
            if self.words[self.at] in words:
                return True
            if not self.skip_brackets():
                self.at += 1
        return False


def _closing_brackets(words: list[str]) -> dict[int, int]:
    """Where each group that begins at a token ends: one pass, however many groups there are."""
    ends: dict[int, int] = {}
    begun: list[int] = []
    for at, word in enumerate(words):
        if word in _OPENING:
            begun.append(at)
        elif word in _CLOSING and begun:
            ends[begun.pop()] = at
    return ends


@lru_cache(maxsize=32)
def _remembered(sql: str) -> tuple[list[Token], list[str]]:
    """As `significant`: a statement passes several hands, and each reads it. Nobody changes the lists."""
    return significant(sql)


@lru_cache(maxsize=3)
def _remembered_long(sql: str) -> tuple[list[Token], list[str]]:
    """The same of what a SELECT over many shards becomes, read once for every table that it names."""
    return significant(sql)


@lru_cache(maxsize=2)
def _remembered_longest(sql: str) -> tuple[list[Token], list[str]]:
    """The same of a statement that is as long as a user may make it, and of what it is rewritten to."""
    return significant(sql)


def _reader_of(sql: str) -> Callable[[str], tuple[list[Token], list[str]]]:
    size = len(sql)
    if size <= _SHORT:
        return _remembered
    if size <= _LONG:
        return _remembered_long
    return _remembered_longest if size <= _LONGEST else significant


def significant(sql: str) -> tuple[list[Token], list[str]]:
    """The significant tokens of one statement and their words, as `Cursor` describes them.

    The rows of an INSERT with VALUES or FORMAT are one DATA token: they may be large, and need not be SQL.
    In a text above 64 KiB long lists of constants are one token each, too: they are what makes it long, and
    a token for each constant would keep the event loop busy for seconds. A semicolon that ends the statement
    is left out.
    """
    tokens: list[Token] = []
    words: list[str] = []
    is_insert = is_select = False
    depth = 0
    for token in scan(sql, folds_lists=len(sql) > _LONG):
        kind, text, start = token
        if kind is TokenKind.WHITESPACE or kind is TokenKind.COMMENT:
            continue
        if kind is TokenKind.WORD:
            word = text.upper()
        elif kind is TokenKind.PUNCTUATION:
            word = text
        else:
            word = ""
        tokens.append(token)
        words.append(word)
        if len(words) == 1:
            is_insert = word == "INSERT"
        if is_insert:
            if word == "(":
                depth += 1
            elif word == ")":
                depth -= 1
            elif depth == 0:
                here = len(words) - 1
                behind = start + len(text)
                is_select = is_select or (word == "SELECT" and words[here - 1] not in (".", "INTO", "TABLE"))
                if (
                    word == "VALUES"
                    and not is_select
                    and here > 1
                    and words[here - 1] not in (".", "INTO", "TABLE")
                ):
                    pass
                elif here > 2 and words[here - 1] == "FORMAT" and kind is TokenKind.WORD:
                    if words[here - 2] in (".", "INTO", "TABLE") or not _inserts_rows(words):
                        continue
                else:
                    continue
                if sql[behind:].strip(" \t\r\n;"):
                    tokens.append(Token(TokenKind.DATA, sql[behind:], behind))
                    words.append("")
                break
    while words and words[-1] == ";":
        tokens.pop()
        words.pop()
    return tokens, words


def _inserts_rows(words: list[str]) -> bool:
    """Not an INSERT … SELECT, whose FORMAT is the format of nothing."""
    return "SELECT" not in words and "INFILE" not in words
