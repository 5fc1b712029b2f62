"""ClickHouse's lexical grammar: SQL text to tokens, and nothing lost.

The texts of the tokens, joined, are the input, byte for byte; every rewriting in this package is an edit of
character ranges that were found on tokens, so that all other text stays as the user wrote it.

Source: the behaviour of ClickHouse's lexer, checked against chDB's parser by
`tests/unit/sql/test_oracle.py`:

- comments: `--` and `//` to the end of the line, `#!` and `# ` likewise, `/* */`, which nest (in
  ClickHouse up to 22.2 they do not: a comment within a comment is best left out);
- strings: `'…'` with backslash escapes and doubled quotes, `‘…’` without escapes, `x'…'` and `b'…'`;
- identifiers: bare words of `[A-Za-z0-9_$]`, back-quoted, double-quoted, `“…”`;
- heredocs `$tag$…$tag$`; a `$tag$` that never comes again is a bare word;
- several Unicode spaces count as white space.
"""

from __future__ import annotations

import bisect
import enum
import re
from collections.abc import Iterator
from typing import NamedTuple

from engine.errors import Code, SqlError


class TokenKind(enum.Enum):
    """What a piece of text is to ClickHouse's lexer."""

    WHITESPACE = "whitespace"
    COMMENT = "comment"
    WORD = "word"
    """A bare identifier or keyword."""
    IDENTIFIER = "identifier"
    """A quoted identifier."""
    STRING = "string"
    HEREDOC = "heredoc"
    NUMBER = "number"
    PUNCTUATION = "punctuation"
    UNKNOWN = "unknown"
    """A character ClickHouse's lexer does not know; only ClickHouse itself can refuse it."""
    DATA = "data"
    """Rows in the text of an INSERT; only `parse_statement` and its kin make one, `tokenize` never."""
    LITERALS = "literals"
    """What a bracket of many constants holds, `1, 2, …` or `(1, 'a'), (2, 'b'), …`; where `scan` is asked for
    such."""


class Token(NamedTuple):
    """A piece of SQL text; `start` is its offset in characters."""

    kind: TokenKind
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    @property
    def is_name(self) -> bool:
        """It may name something; a word may be a keyword as well."""
        return self.kind is TokenKind.WORD or self.kind is TokenKind.IDENTIFIER

    @property
    def is_significant(self) -> bool:
        """Neither white space nor a comment."""
        return self.kind is not TokenKind.WHITESPACE and self.kind is not TokenKind.COMMENT


# The white space of ClickHouse's lexer beyond ASCII.
_UNICODE_SPACE = "\x85\xa0\u180e\u2000-\u200d\u2028\u2029\u202f\u205f\u2060\u3000\ufeff"

# The quantifiers are possessive: no text makes the scan go back over what it has matched. The
# commonest words come first; `x'…'` and `b'…'` are strings, and a word may begin with a digit.
_MASTER = re.compile(
    rf"""
      (?P<KEYWORD> (?![xXbB]')[A-Za-z_][A-Za-z0-9_$]*+ )
    | (?P<WHITESPACE> [ \t\n\r\f\v{_UNICODE_SPACE}]++ )
    | (?P<COMMENT> (?: --|//|\#[ !] ) [^\n]*+ )
    | (?P<BLOCK> /\* )
    | (?P<STRING> [xX]'[0-9a-fA-F]*+' | [bB]'[01]*+' | ‘[^’]*+’
                | '[^'\\]*+(?:(?:\\(?s:.)|'')[^'\\]*+)*+' )
    | (?P<NUMBER> (?: 0[xX][0-9a-fA-F_]++(?:\.[0-9a-fA-F_]*+)?(?:[pP][+-]?[0-9]++)?
                    | 0[bB][01_]++
                    | [0-9][0-9_]*+(?:\.[0-9_]*+)?(?:[eE][+-]?[0-9]++)?
                    | \.[0-9][0-9_]*+(?:[eE][+-]?[0-9]++)? ) (?![A-Za-z0-9_$]) )
    | (?P<WORD> [A-Za-z0-9_][A-Za-z0-9_$]*+ )
    | (?P<IDENTIFIER> `[^`\\]*+(?:(?:\\(?s:.)|``)[^`\\]*+)*+`
                    | "[^"\\]*+(?:(?:\\(?s:.)|"")[^"\\]*+)*+" | “[^”]*+” )
    | (?P<DOLLAR> \$ )
    | (?P<UNCLOSED> ['`"] )
    | (?P<PUNCTUATION> <=> | :: | -> | \|\| | == | != | <> | <= | >= | @@ | \\G
                    | [()\[\]{{}},;.:*+\-/%=<>!?|^@] | − )
    | (?P<UNKNOWN> (?s:.) )
    """,
    re.VERBOSE,
)
_LITERAL = r"(?: [+-]?[0-9]++(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)? | '[^'\\]*+(?:(?:\\(?s:.)|'')[^'\\]*+)*+' )"
_ITEM = rf"(?: {_LITERAL} | \( \s*+ {_LITERAL} (?: \s*+ , \s*+ {_LITERAL} )*+ \s*+ \) )"
_LITERALS = re.compile(
    rf"\s*+ {_ITEM} (?: \s*+ , \s*+ {_ITEM} ){{63,}}+ (?= \s* [)\]] )", re.VERBOSE | re.ASCII
)
"""At least 64. What does not look so simple is no such list, and read as anything else is."""
_TAG = re.compile(r"\$([A-Za-z0-9_]*+)(?=\$)")
_DOLLAR_WORD = re.compile(r"\$[A-Za-z0-9_$]++")
_AFTER_DOT = re.compile(r"[0-9]++(?![A-Za-z_$])")
_UNCLOSED = {
    "'": "Single quoted string",
    "`": "Back quoted string",
    '"': "Double quoted string",
}
_OPERANDS = frozenset({TokenKind.WORD, TokenKind.IDENTIFIER, TokenKind.NUMBER})
_KINDS = {kind.name: kind for kind in TokenKind} | {"KEYWORD": TokenKind.WORD}


class _Heredocs:
    """Where each `$tag$` stands, found in one pass so that no text makes the scan quadratic."""

    def __init__(self, sql: str) -> None:
        self._places: dict[str, list[int]] = {}
        for match in _TAG.finditer(sql):
            self._places.setdefault(match.group(1), []).append(match.start())

    def end(self, sql: str, start: int) -> int | None:
        """The end of the heredoc that begins at `start`; None if none does."""
        match = _TAG.match(sql, start)
        if match is None:
            return None
        places = self._places[match.group(1)]
        body = match.end() + 1
        at = bisect.bisect_left(places, body)
        return places[at] + len(match.group(1)) + 2 if at < len(places) else None


def scan(sql: str, *, folds_lists: bool = False) -> Iterator[Token]:
    """Tokens of `sql`, one by one; see `tokenize`. With `folds_lists` there are LITERALS among them."""
    at, size = 0, len(sql)
    match_at, new = _MASTER.match, tuple.__new__
    heredocs: _Heredocs | None = None
    after_dot = after_operand = False
    while at < size:
        match = match_at(sql, at)
        assert match is not None  # UNKNOWN matches any character
        group = match.lastgroup
        assert group is not None
        end = match.end()
        # Three in four tokens are words and white space: they take the short way.
        if group == "KEYWORD":
            yield new(Token, (TokenKind.WORD, match.group(), at))
            at, after_dot, after_operand = end, False, True
            continue
        if group == "WHITESPACE":
            yield new(Token, (TokenKind.WHITESPACE, match.group(), at))
            at = end
            continue
        if group == "NUMBER" and (after_dot or (after_operand and sql[at] == ".")):
            # `a.1.2` is two accesses to tuple elements: a dot behind an operand begins no number.
            if sql[at] == ".":
                kind, end = TokenKind.PUNCTUATION, at + 1
            else:
                plain = _AFTER_DOT.match(sql, at)
                kind, end = TokenKind.NUMBER, end if plain is None else plain.end()
        elif group == "DOLLAR":
            heredocs = heredocs or _Heredocs(sql)
            heredoc_end = heredocs.end(sql, at)
            word = _DOLLAR_WORD.match(sql, at)
            if heredoc_end is not None:
                kind, end = TokenKind.HEREDOC, heredoc_end
            elif sql.startswith("$$", at):
                raise SqlError(Code.SYNTAX_ERROR, _where(sql, at, "Heredoc is not closed"))
            elif word is not None:
                kind, end = TokenKind.WORD, word.end()
            else:
                kind = TokenKind.UNKNOWN
        elif group == "BLOCK":
            kind, end = TokenKind.COMMENT, _end_of_comment(sql, at)
        elif group == "UNCLOSED":
            raise SqlError(Code.SYNTAX_ERROR, _where(sql, at, f"{_UNCLOSED[match.group()]} is not closed"))
        else:
            kind = _KINDS[group]
        text = sql[at:end]
        if kind is not TokenKind.COMMENT:
            after_dot = text == "."
            after_operand = kind in _OPERANDS or text in (")", "]")
        yield Token(kind, text, at)
        at = end
        if folds_lists and text in ("(", "[") and (folded := _LITERALS.match(sql, at)):
            yield Token(TokenKind.LITERALS, folded.group(), at)
            at = folded.end()


def _end_of_comment(sql: str, start: int) -> int:
    """The end of the block comment that begins at `start`."""
    depth, at, closing = 1, start + 2, -1
    while depth:
        if closing < at:
            closing = sql.find("*/", at)
        if closing < 0:
            raise SqlError(Code.SYNTAX_ERROR, _where(sql, start, "Multiline comment is not closed"))
        opening = sql.find("/*", at, closing + 1)  # in `/*/` the star opens, and closes nothing
        depth += 1 if opening >= 0 else -1
        at = (opening if opening >= 0 else closing) + 2
    return at


def tokenize(sql: str) -> list[Token]:
    """All tokens of `sql`, white space and comments included; their texts joined are `sql`.

    Raises SqlError 62 when a string, a quoted identifier, a comment or a `$$` heredoc is not closed, and for
    nothing else.
    """
    return list(scan(sql))


def _where(sql: str, at: int, what: str) -> str:
    line = sql.count("\n", 0, at) + 1
    return f"Syntax error: {what}: failed at position {at + 1} (line {line})"


ESCAPES = {
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "0": "\0",
    "a": "\a",
    "v": "\v",
    "e": "\x1b",
}
"""What a letter after a backslash stands for, in literals of SQL and in escaped text alike."""

_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|(?s:(.)))|(''|``|\"\")")


def name_of(token: Token) -> str:
    """What a word or a quoted identifier names; empty for any other token."""
    return literal_value(token) if token.is_name else ""


def literal_value(token: Token) -> str:
    """The value of a string, heredoc or quoted identifier; the text itself of any other token."""
    text = token.text
    match token.kind:
        case TokenKind.HEREDOC:
            tag = text.index("$", 1) + 1
            return text[tag:-tag]
        case TokenKind.STRING | TokenKind.IDENTIFIER:
            if text[0] in "‘“":
                return text[1:-1]
            if text[0] in "xX":
                return bytes.fromhex(text[2:-1].rjust(len(text[2:-1]) + len(text[2:-1]) % 2, "0")).decode(
                    "utf-8", "surrogateescape"
                )
            if text[0] in "bB":
                bits = text[2:-1]
                return int(bits or "0", 2).to_bytes((len(bits) + 7) // 8, "big").decode("latin-1")
            body = text[1:-1]
            if "\\" not in body and text[0] not in body:
                return body
            quote = text[0]
            return _ESCAPE.sub(lambda m: _unescape(m, quote), body)
        case _:
            return text


def _unescape(match: re.Match[str], quote: str) -> str:
    if match.group(1) is not None:
        return chr(int(match.group(1), 16))
    if match.group(2) is not None:
        # An escape ClickHouse does not know keeps its backslash, but a quote or a backslash loses it.
        return ESCAPES.get(match.group(2)) or (
            match.group(2) if match.group(2) in "\\'\"`/=" else match.group(0)
        )
    return quote if match.group(3)[0] == quote else match.group(3)
