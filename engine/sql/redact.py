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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from engine.errors import SqlError
from engine.sql.edit import Edit
from engine.sql.secret_arguments import Argument, finder_of, takes_words
from engine.sql.secret_texts import (
    HIDDEN,
    SUSPICIOUS,
    clean_literal,
    clean_sentence,
    clean_text,
    is_secret_name,
)
from engine.sql.syntax_errors import hide_in_syntax_errors
from engine.sql.tokens import Token, TokenKind, literal_value, scan

_HIDDEN_LITERAL = f"'{HIDDEN}'"
_TWICE = re.compile(rf"(?:{re.escape(HIDDEN)}){{2,}}")

_STRINGS = frozenset({TokenKind.STRING, TokenKind.HEREDOC})
_LITERALS = _STRINGS | {TokenKind.NUMBER}
_QUOTED = _STRINGS | {TokenKind.IDENTIFIER}
_EQUALS = ("=", "==")

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
    hidden = _Finder([t for t in tokens if t.is_significant]).secrets()
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


@dataclass(slots=True)
class _Finder:
    """Which of the significant tokens are secrets."""

    tokens: list[Token]
    words: list[str] = field(init=False)
    closing: list[int] = field(init=False)
    """For each opening bracket the place of its closing one; the number of tokens if nothing closes it."""
    whole: set[int] = field(default_factory=set)
    steps: list[int] = field(init=False)
    """How many secret ranges begin less how many end at each token."""
    quoted_steps: list[int] = field(init=False)
    """The same of ranges of which numbers are no secrets: `encrypt('m', substring(x, 1, 2), 'k')`."""

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

    def secrets(self) -> set[int]:
        """Where they start in the text."""
        in_collection, source_end, call_ends = False, -1, list[int]()
        database = ""
        words = self.words
        for at, token in enumerate(self.tokens):
            while call_ends and call_ends[-1] <= at:
                call_ends.pop()
            before = words[at - 1] if at else ""
            if token.kind is TokenKind.WORD:
                word = words[at]
                if word == "COLLECTION" and before == "NAMED":
                    in_collection = True
                elif word == "DATABASE":
                    database = "clear" if at < 2 or before in ("CREATE", "ATTACH") else "doubt"
                elif word in ("TABLE", "DICTIONARY", "VIEW") and before in ("CREATE", "ATTACH", "REPLACE"):
                    database = ""
                elif word == "PARALLEL":
                    in_collection, database = False, ""
                elif word in ("BY", "SALT"):
                    self._behind_by(at)
                elif word == "SOURCE" and self._opens(at + 1):
                    source_end = self.closing[at + 1]
            elif token.text == ";" and token.kind is TokenKind.PUNCTUATION:
                in_collection, database = False, ""
            if token.text in _EQUALS and at:
                if in_collection:
                    self._value(at + 1, words_too=True)
                elif is_secret_name(self.tokens[at - 1]):
                    self._value(at + 1, words_too=bool(call_ends))
                elif at + 1 < len(words) and self.tokens[at - 1].kind in _STRINGS:
                    following = self.tokens[at + 1]
                    if following.is_name and is_secret_name(following) and not self._opens(at + 2):
                        self.whole.add(at - 1)
            elif token.is_name and is_secret_name(token):
                self._behind_name(at, in_source=at < source_end)
            if token.is_name and self._opens(at + 1):
                is_engine = "ENGINE" in words[max(0, at - 2) : at]
                if self._call(at, database if is_engine else ""):
                    call_ends.append(self.closing[at + 1])
        return set(self._hidden())

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

    def _call(self, at: int, database: str) -> bool:
        """Whether it is one whose arguments are looked at, and takes bare words for strings."""
        name = literal_value(self.tokens[at])
        found = False
        for of_database in {"clear": (True,), "doubt": (True, False)}.get(database, (False,)):
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


_BY_OF_QUERIES = frozenset({"GROUP", "ORDER", "PARTITION", "SAMPLE", "PRIMARY", "CLUSTER", "TTL"})
