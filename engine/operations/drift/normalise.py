"""A definition in parts that can be compared, whatever server wrote its text. Pure.

Servers write the text of a definition themselves (`create_table_query`), so one version writes one way.
Between versions it differs in quoting, line breaks, `UUID`, empty parentheses and in settings that are
written though they have their default. What remains after these is compared token by token, part by part:
each column, index, constraint, projection and setting by its name, each clause as a whole.

Not compared, because it belongs to one host: the UUID, and the Keeper path and replica name of a replicated
engine (paths are compared within a shard, by `engine.operations.drift.compare`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine.errors import SqlError
from engine.names import quote_identifier, quote_string
from engine.sql import Token, TokenKind, literal_value, redact, tokenize
from engine.sql.secret_texts import HIDDEN

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
_KINDS = ("TABLE", "VIEW", "DICTIONARY", "DATABASE", "FUNCTION")
_REPLICATED = re.compile(r"(?:Replicated|Shared)\w*\Z")
_PLAIN_DATABASES = frozenset({"Atomic", "Ordinary", "Overlay"})
"""Databases that hold tables and nothing else: which of them a server makes depends on its version."""

_DEFAULT_SETTINGS = {
    "index_granularity": "8192",
    "index_granularity_bytes": "10485760",
    "storage_policy": "'default'",
    "min_bytes_for_wide_part": "10485760",
    "enable_mixed_granularity_parts": "1",
}
_CLAUSES = (
    *(("ENGINE",), ("PARTITION", "BY"), ("PRIMARY", "KEY"), ("ORDER", "BY"), ("SAMPLE", "BY"), ("TTL",)),
    *(("SETTINGS",), ("COMMENT",), ("TO",), ("AS",), ("SOURCE",), ("LAYOUT",), ("LIFETIME",), ("RANGE",)),
    *(("REFRESH",), ("DEFINER",), ("SQL", "SECURITY"), ("POPULATE",), ("INNER", "ENGINE")),
)
_NAMED = {"INDEX": "index", "CONSTRAINT": "constraint", "PROJECTION": "projection"}
_DEFAULTS = frozenset({"DEFAULT", "MATERIALIZED", "ALIAS"})
_UNWRAPPED = frozenset({"partition by", "primary key", "order by", "sample by", "ttl"})


@dataclass(frozen=True, slots=True)
class Definition:
    """One object's definition on one host.

    `parts` are compared; `sql` is the server's text; `fragments` has the text of the parts as it wrote them.
    `engine` is empty for what has none. Secrets are in none of them: old servers show passwords, and what is
    here goes into plans, findings and alerts. `hidden` has digests of the parts that had one, for comparing.
    """

    kind: str
    engine: str
    parts: Mapping[str, str]
    sql: str
    fragments: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    hidden: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def has_secret(self) -> bool:
        """Whether the text is not what would make the object again."""
        return bool(self.hidden) or HIDDEN in self.sql

    def is_same(self, part: str, other: Definition) -> bool:
        """Whether a part is equal, also in what is hidden of it."""
        return self.parts.get(part) == other.parts.get(part) and self.hidden.get(part) == other.hidden.get(
            part
        )

    @property
    def digest(self) -> str:
        """Equal for equal definitions."""
        text = json.dumps([sorted(self.parts.items()), sorted(self.hidden.items())], ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def is_replicated(self) -> bool:
        return bool(_REPLICATED.match(self.engine)) and self.kind == "table"


def normalise(sql: str, *, engine: str = "") -> Definition:
    """Read the text of one object. What cannot be read as a definition is compared as a whole.

    `engine` is what the server says beside the text.
    """
    actual = _read(sql, engine)
    shown_sql = redact(sql)
    if shown_sql == sql:
        return actual
    is_text = "text" in actual.parts
    shown = _as_text(shown_sql, engine) if is_text else _read(shown_sql, engine)
    hidden = {
        part: hashlib.sha256(text.encode()).hexdigest()
        for part, text in actual.parts.items()
        if text != shown.parts.get(part)
    }
    return replace(shown, hidden=hidden)


def _read(sql: str, engine: str) -> Definition:
    try:
        tokens = [token for token in tokenize(sql) if token.is_significant]
    except SqlError:
        return _as_text(sql, engine)
    while tokens and tokens[-1].text == ";":
        tokens.pop()
    return _Reader(sql, tokens).read(engine)


def _as_text(sql: str, engine: str) -> Definition:
    return Definition("unknown", engine, {"text": " ".join(sql.split())}, sql)


def database_definition(engine: str, sql: str) -> Definition:
    """Of a database: which engine it has, all plain ones alike."""
    name = engine.partition("(")[0].strip()
    shown = "plain" if name in _PLAIN_DATABASES else name
    return Definition("database", name, {"engine": shown}, sql)


def canonical(tokens: Sequence[Token]) -> str:
    """Tokens as text, one way for all ways of writing them."""
    return " ".join(map(_canonical, tokens))


def canonical_text(sql: str) -> str:
    """As `canonical`. Text that is no SQL stays as it is, but for white space."""
    try:
        return canonical([token for token in tokenize(sql) if token.is_significant])
    except SqlError:
        return " ".join(sql.split())


def _canonical(token: Token) -> str:
    match token.kind:
        case TokenKind.IDENTIFIER:
            name = literal_value(token)
            return name if _PLAIN.match(name) else quote_identifier(name)
        case TokenKind.STRING | TokenKind.HEREDOC:
            return quote_string(literal_value(token))
        case _:
            return token.text


class _Reader:
    """Walks over one text."""

    def __init__(self, sql: str, tokens: list[Token]) -> None:
        self._sql = sql
        self._tokens = tokens
        self._parts: dict[str, str] = {}
        self._fragments: dict[str, str] = {}
        self._columns: list[str] = []

    def read(self, engine: str) -> Definition:
        kind, at = self._header()
        if at < len(self._tokens) and self._tokens[at].text == "(" and kind != "function":
            end = self._closing(at)
            self._list(self._tokens[at + 1 : end])
            at = end + 1
        if kind == "function":
            self._put("body", self._tokens[at:])
        else:
            at = self._clauses(at)
        self._parts["kind"] = kind
        if self._columns:
            self._parts["order of columns"] = ", ".join(self._columns)
        name = engine or self._parts.get("engine", "").partition(" ")[0]
        return Definition(kind, name, self._parts, self._sql, self._fragments, tuple(self._columns))

    def _header(self) -> tuple[str, int]:
        words = [token.text.upper() for token in self._tokens]
        at = next((i for i, word in enumerate(words) if word in _KINDS), None)
        if at is None:
            return "unknown", 0
        kind = " ".join(word for word in words[1 : at + 1] if word not in ("OR", "REPLACE")).lower()
        at += 1
        if words[at : at + 3] == ["IF", "NOT", "EXISTS"]:
            at += 3
        at += 1  # the name
        while at + 1 < len(words) and words[at] == ".":
            at += 2
        if at + 1 < len(words) and words[at] == "UUID":
            at += 2
        if words[at : at + 1] == ["TO"]:  # a materialized view says where to before its columns
            end = at + 2
            while end + 1 < len(words) and words[end] == ".":
                end += 2
            if words[at + 1 : at + 2] != ["INNER"]:
                self._put("to", self._tokens[at + 1 : end])
            at = end
        return kind, at

    def _list(self, tokens: list[Token]) -> None:
        for item in _by_commas(tokens):
            if not item:
                continue
            named = _NAMED.get(item[0].text) if item[0].kind is TokenKind.WORD and len(item) > 2 else None
            if named is not None and item[1].text != "(":
                self._put(f"{named} {_name(item[1])}", item[2:])
            elif item[0].text == "PRIMARY" and len(item) > 1 and item[1].text == "KEY":
                self._put("primary key", item[2:])
            else:
                self._columns.append(_name(item[0]))
                self._put(f"column {_name(item[0])}", item[1:])
                self._parts[f"column {_name(item[0])}"] = canonical(_without_cast(item[1:]))

    def _clauses(self, at: int) -> int:
        tokens = self._tokens
        while at < len(tokens):
            words = self._clause_at(at)
            if words is None:
                self._put("rest", tokens[at:])
                return len(tokens)
            begin = at + len(words)
            if words == ("AS",):
                self._put("query", tokens[begin:])
                return len(tokens)
            end = self._end_of_clause(begin)
            self._clause(" ".join(words).lower(), tokens[begin:end])
            at = end
        return at

    def _clause_at(self, at: int) -> tuple[str, ...] | None:
        for words in _CLAUSES:
            if tuple(token.text for token in self._tokens[at : at + len(words)]) == words:
                return words
        return None

    def _end_of_clause(self, begin: int) -> int:
        depth = 0
        for at in range(begin, len(self._tokens)):
            token = self._tokens[at]
            before = self._tokens[at - 1]
            may_begin = before.kind is not TokenKind.PUNCTUATION or before.text in _CLOSING
            is_keyword = token.kind is TokenKind.WORD and not depth and may_begin and at > begin
            if is_keyword and self._clause_at(at) is not None:
                return at
            depth += (token.text in _OPENING) - (token.text in _CLOSING)
        return len(self._tokens)

    def _clause(self, name: str, tokens: list[Token]) -> None:
        match name:
            case "engine" | "inner engine":
                self._put(name, _engine(tokens))
            case "settings":
                for item in _by_commas(_unwrapped(tokens)):
                    if len(item) > 2 and item[1].text == "=":
                        setting = _name(item[0])
                        if canonical(item[2:]) != _DEFAULT_SETTINGS.get(setting):
                            self._put(f"setting {setting}", item[2:])
            case "ttl" if not tokens:
                pass
            case _:
                self._put(name, _unwrapped(tokens) if name in _UNWRAPPED else tokens)

    def _put(self, part: str, tokens: Sequence[Token]) -> None:
        self._parts[part] = canonical(tokens)
        if tokens:
            self._fragments[part] = self._sql[tokens[0].start : tokens[-1].end]

    def _closing(self, opening: int) -> int:
        depth = 0
        for at in range(opening, len(self._tokens)):
            depth += (self._tokens[at].text in _OPENING) - (self._tokens[at].text in _CLOSING)
            if not depth:
                return at
        return len(self._tokens)


def _without_cast(column: list[Token]) -> list[Token]:
    """`T DEFAULT CAST(x, 'T')` as `T DEFAULT x`: old servers write a column's type into its default."""
    at = next((i for i, token in enumerate(column) if token.text in _DEFAULTS), None)
    if at is None or [token.text for token in column[at + 1 : at + 3]] != ["CAST", "("]:
        return column
    depth = 0
    for end in range(at + 2, len(column)):
        depth += (column[end].text in _OPENING) - (column[end].text in _CLOSING)
        if not depth:
            inner = list(_by_commas(column[at + 3 : end]))
            is_own = len(inner) == 2 and len(inner[1]) == 1 and inner[1][0].kind is TokenKind.STRING
            if is_own and canonical_text(literal_value(inner[1][0])) == canonical(column[:at]):
                return [*column[: at + 1], *inner[0], *column[end + 1 :]]
            break
    return column


def _engine(tokens: list[Token]) -> list[Token]:
    """Without `=`, empty parentheses, and what a replicated engine has for itself."""
    if tokens and tokens[0].text == "=":
        tokens = tokens[1:]
    if not tokens:
        return []
    name, arguments = tokens[0], tokens[1:]
    if len(arguments) < 2 or arguments[0].text != "(":
        return tokens
    inner = arguments[1:-1]
    if name.text == "Replicated":
        inner = []
    elif _REPLICATED.match(name.text):
        items = list(_by_commas(inner))
        if len(items) >= 2 and all(len(item) == 1 and item[0].kind is TokenKind.STRING for item in items[:2]):
            inner = inner[4:] if len(items) > 2 else []
    return [name] if not inner else [name, arguments[0], *inner, arguments[-1]]


def _unwrapped(tokens: list[Token]) -> list[Token]:
    """Without parentheses around one whole expression."""
    while len(tokens) > 2 and tokens[0].text == "(" and tokens[-1].text == ")":
        inner = tokens[1:-1]
        depth = 0
        for token in inner:
            depth += (token.text in _OPENING) - (token.text in _CLOSING)
            if depth < 0:
                return tokens
        if len(list(_by_commas(inner))) > 1:
            return tokens
        tokens = inner
    return tokens


def _by_commas(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    item: list[Token] = []
    depth = 0
    for token in tokens:
        depth += (token.text in _OPENING) - (token.text in _CLOSING)
        if token.text == "," and not depth and token.kind is TokenKind.PUNCTUATION:
            yield item
            item = []
        else:
            item.append(token)
    if item:
        yield item


def _name(token: Token) -> str:
    return literal_value(token) if token.kind is TokenKind.IDENTIFIER else token.text
