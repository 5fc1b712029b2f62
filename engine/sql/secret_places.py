"""Where the secrets stand in a statement, or in what may be one.

By tokens, not by a parse: behind `BY` and `SALT`, behind names such as `password`, in named collections, and
as arguments of engines and functions (`engine.sql.secret_arguments`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from engine.sql.secret_arguments import Argument, finder_of, takes_words
from engine.sql.secret_texts import is_secret_name
from engine.sql.tokens import Token, TokenKind, literal_value

_STRINGS = frozenset({TokenKind.STRING, TokenKind.HEREDOC})
_LITERALS = _STRINGS | {TokenKind.NUMBER}
_QUOTED = _STRINGS | {TokenKind.IDENTIFIER}
_EQUALS = ("=", "==")
_BY_OF_QUERIES = frozenset({"GROUP", "ORDER", "PARTITION", "SAMPLE", "PRIMARY", "CLUSTER", "TTL"})


class _Database(Enum):
    """Whether an engine is a database's: those have arguments of their own. The value is what to look up."""

    NONE = (False,)
    PERHAPS = (True, False)
    CERTAIN = (True,)


@dataclass(slots=True)
class SecretPlaces:
    """Which of a text's significant tokens are secrets, found in one pass over them."""

    tokens: list[Token]
    words: list[str] = field(init=False)
    closing: list[int] = field(init=False)
    """For each opening bracket the place of its closing one; the number of tokens if nothing closes it."""
    whole: set[int] = field(default_factory=set)
    steps: list[int] = field(init=False)
    """How many secret ranges begin less how many end at each token."""
    quoted_steps: list[int] = field(init=False)
    """The same of ranges of which numbers are no secrets: `encrypt('m', substring(x, 1, 2), 'k')`."""

    in_collection: bool = False
    database: _Database = _Database.NONE
    source_end: int = -1
    """Where the brackets of a dictionary's SOURCE close."""
    call_ends: list[int] = field(default_factory=list)
    """Where the calls close that take bare words for strings; the innermost one last."""

    def __post_init__(self) -> None:
        self.words = [t.text.upper() if t.kind is TokenKind.WORD else t.text for t in self.tokens]
        self.steps = [0] * (len(self.tokens) + 1)
        self.quoted_steps = [0] * (len(self.tokens) + 1)
        self.closing = [len(self.tokens)] * len(self.tokens)
        opened: list[int] = []
        for at, token in enumerate(self.tokens):
            if token.kind is TokenKind.PUNCTUATION and token.text in ("(", "[", "{"):
                opened.append(at)
            elif opened and token.kind is TokenKind.PUNCTUATION and token.text in (")", "]", "}"):
                self.closing[opened.pop()] = at

    def starts(self) -> set[int]:
        """Where the secret tokens begin in the text."""
        for at, token in enumerate(self.tokens):
            while self.call_ends and self.call_ends[-1] <= at:
                self.call_ends.pop()
            if token.kind is TokenKind.WORD:
                self._keyword(at)
            elif token.text == ";" and token.kind is TokenKind.PUNCTUATION:
                self.in_collection, self.database = False, _Database.NONE
            if token.text in _EQUALS and at:
                self._assignment(at)
            elif token.is_name and is_secret_name(token):
                self._behind_name(at, in_source=at < self.source_end)
            if token.is_name and self._opens(at + 1):
                is_engine = "ENGINE" in self.words[max(0, at - 2) : at]
                if self._call(at, self.database if is_engine else _Database.NONE):
                    self.call_ends.append(self.closing[at + 1])
        return set(self._hidden())

    def _keyword(self, at: int) -> None:
        """What it says about the tokens behind it."""
        word, before = self.words[at], self.words[at - 1] if at else ""
        if word == "COLLECTION" and before == "NAMED":
            self.in_collection = True
        elif word == "DATABASE":
            is_certain = at < 2 or before in ("CREATE", "ATTACH")
            self.database = _Database.CERTAIN if is_certain else _Database.PERHAPS
        elif word in ("TABLE", "DICTIONARY", "VIEW") and before in ("CREATE", "ATTACH", "REPLACE"):
            self.database = _Database.NONE
        elif word == "PARALLEL":
            self.in_collection, self.database = False, _Database.NONE
        elif word in ("BY", "SALT"):
            self._behind_by(at)
        elif word == "SOURCE" and self._opens(at + 1):
            self.source_end = self.closing[at + 1]

    def _assignment(self, at: int) -> None:
        """`password = 'x'`, and `'x' = password`."""
        before, following = self.tokens[at - 1], self.tokens[at + 1 : at + 2]
        is_name_of_secret = bool(following) and following[0].is_name and is_secret_name(following[0])
        if self.in_collection:
            self._value(at + 1, words_too=True)
        elif is_secret_name(before):
            self._value(at + 1, words_too=bool(self.call_ends))
        elif before.kind in _STRINGS and is_name_of_secret and not self._opens(at + 2):
            self.whole.add(at - 1)

    def _hidden(self) -> Iterator[int]:
        depth = quoted_depth = 0
        for at, token in enumerate(self.tokens):
            depth += self.steps[at]
            quoted_depth += self.quoted_steps[at]
            is_quoted = token.kind in _QUOTED
            is_number = token.kind is TokenKind.NUMBER
            if at in self.whole or (is_quoted and (depth or quoted_depth)) or (is_number and depth):
                yield token.start

    def _opens(self, at: int) -> bool:
        return at < len(self.words) and self.words[at] == "("

    def _range(self, start: int, end: int, *, numbers_too: bool = True) -> None:
        steps = self.steps if numbers_too else self.quoted_steps
        steps[start] += 1
        steps[min(end, len(self.tokens))] -= 1

    def _behind_by(self, at: int) -> None:
        words = self.words
        if at + 1 >= len(words) or (at and words[at - 1] in _BY_OF_QUERIES):
            return
        if "LIMIT" in words[max(0, at - 6) : at]:
            return
        following = self.tokens[at + 1]
        if following.kind in _QUOTED or (words[at] == "SALT" and following.kind is TokenKind.NUMBER):
            self.whole.add(at + 1)
        elif following.kind in (TokenKind.WORD, TokenKind.NUMBER) and words[at] == "BY":
            is_password = any(word.startswith("IDENTIF") for word in words[max(0, at - 4) : at])
            self.whole.update([at + 1] if is_password else [])

    def _behind_name(self, at: int, *, in_source: bool) -> None:
        """As in a dictionary's SOURCE: `PASSWORD 'x'`."""
        if at + 1 >= len(self.tokens):
            return
        following = self.tokens[at + 1]
        if following.kind in _LITERALS:
            self._value(at + 1, words_too=False)
        elif in_source and following.is_name:
            self._value(at + 1, words_too=True)

    def _value(self, at: int, *, words_too: bool) -> None:
        """One value: operands with `||` or `+` between them, each of which may be a call or in brackets."""
        while at < len(self.tokens):
            token = self.tokens[at]
            if token.text in ("-", "+") and token.kind is TokenKind.PUNCTUATION:
                at += 1
                continue
            is_call = token.is_name and self._opens(at + 1)
            if is_call or token.text in ("(", "["):
                end = self.closing[at + is_call]
                self._range(at + is_call, end)
                at = end + 1
            elif token.kind in _LITERALS or (words_too and token.is_name):
                self.whole.add(at)
                at += 1
            elif token.kind is TokenKind.IDENTIFIER and token.text[0] == '"':
                if at + 1 >= len(self.tokens) or self.words[at + 1] != ".":
                    self.whole.add(at)
                at += 1
            else:
                return
            if at >= len(self.tokens) or self.words[at] not in ("||", "+"):
                return
            at += 1

    def _call(self, at: int, database: _Database) -> bool:
        """Whether it is one whose arguments are looked at, and takes bare words for strings."""
        name = literal_value(self.tokens[at])
        found = False
        for of_database in database.value:
            finder = finder_of(name, of_database=of_database)
            if finder is None:
                continue
            found = True
            for secret in finder(self._arguments(at + 1)):
                self._hide(secret, words_too=takes_words(name))
        return found and takes_words(name)

    def _hide(self, argument: Argument, *, words_too: bool) -> None:
        if len(argument) == 1 and words_too and (argument[0][1].is_name or argument[0][1].kind in _LITERALS):
            self.whole.add(argument[0][0])
        elif argument:
            self._range(argument[0][0], argument[-1][0] + 1, numbers_too=words_too)

    def _arguments(self, opening: int) -> list[Argument]:
        """The arguments of the call whose bracket opens there. What is within further brackets is left out,
        so that calls within calls cost no more time than their length."""
        arguments: list[Argument] = [[]]
        end = self.closing[opening]
        at = opening + 1
        while at < end:
            token = self.tokens[at]
            if token.text == "," and token.kind is TokenKind.PUNCTUATION:
                arguments.append([])
            else:
                arguments[-1].append((at, token))
                if token.kind is TokenKind.PUNCTUATION and token.text in ("(", "[", "{"):
                    at = self.closing[at]
                    if at < end:
                        arguments[-1].append((at, self.tokens[at]))
            at += 1
        return arguments
