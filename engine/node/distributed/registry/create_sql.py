"""CREATE TABLE of Distributed tables, taken apart and put together on tokens.

Three forms of one definition: as the user wrote it; as chDB has it (`PLACEHOLDER`, which keeps columns and
their defaults, and refuses to be read and to be written to); as everybody is shown it (chDB's text with the
engine clause again).
Everything outside the engine clause stays byte for byte.
"""

from __future__ import annotations

from uuid import UUID

from engine.errors import Code, SqlError
from engine.names import TableName
from engine.node.distributed.registry.overlooked import PLACEHOLDER
from engine.sql.cursor import Cursor
from engine.sql.edit import Edit, apply_edits
from engine.sql.parse import draft_of
from engine.sql.tokens import TokenKind

_BEHIND_STORAGE = ("AS", "EMPTY", "CLONE", "COMMENT", "FORMAT", "INTO", "SQL", "DEFINER", "PARALLEL")


class CreateText:
    """A user's CREATE TABLE … ENGINE = Distributed(…), whole. Raises SqlError 62 as `tokenize`."""

    def __init__(self, sql: str) -> None:
        self._sql = sql
        self._d = d = draft_of(sql)
        self._name = d.refs[0]
        begin = max(self._name.end, d.cluster_span[1] if d.cluster_span else 0)
        d.at = next((i for i, token in enumerate(d.tokens) if token.start >= begin), len(d.tokens))
        if d.accept("UUID"):
            d.at += 1
        d.accept_on_cluster()
        self.has_columns = d.word == "("
        self.source: TableName | None = None
        """`AS other_table`, before or behind the engine."""
        self._as_at: int | None = None
        self._select_from: int | None = None
        self._is_empty = False
        self._read_source(d)
        self._engine_from = self._engine_to = len(sql)
        self._clause_from = len(sql)
        if d.skip_to("ENGINE"):
            self._engine_from = d.token.start
            d.at += 1
            d.accept("=")
            self._clause_from = d.token.start
            d.skip_to(*_BEHIND_STORAGE)
            self._engine_to = d.last_end
            self._read_source(d)

    def _read_source(self, d: Cursor) -> None:
        at = d.at
        if d.skip_to("AS", "ENGINE") and d.word == "AS":
            self._as_at = d.token.start
            self._is_empty = self._is_empty or d.words[d.at - 1 : d.at] == ["EMPTY"]
            d.at += 1
            if d.word in ("SELECT", "WITH", "(", "FROM"):
                self._select_from = d.token.start
            elif (first := d.identifier()) is not None:
                self.source = TableName("", first)
                if d.accept("."):
                    self.source = TableName(first, d.identifier() or "")
        d.at = at

    @property
    def has_select(self) -> bool:
        """AS SELECT, also behind EMPTY."""
        return self._select_from is not None

    @property
    def select(self) -> str | None:
        """The SELECT whose rows the table gets; None without one, and with EMPTY AS."""
        if self._select_from is None or self._is_empty:
            return None
        return self._sql[self._select_from : self._behind_select()].rstrip("; \t\r\n")

    def _behind_select(self) -> int:
        """A comment on the table may stand last of all."""
        tokens = [token for token in self._d.tokens if token.text != ";"]
        is_comment = tokens[-1].kind is TokenKind.STRING and tokens[-2].text.upper() == "COMMENT"
        return tokens[-2].start if is_comment else len(self._sql)

    @property
    def is_bare_replace(self) -> bool:
        """REPLACE TABLE, which needs a table to be replaced."""
        return self._d.words[:1] == ["REPLACE"]

    @property
    def clause(self) -> str:
        """The engine clause, from the engine's name to the end of its settings."""
        return self._sql[self._clause_from : self._engine_to]

    def for_chdb(self, uuid: UUID, name: TableName, *, columns: str = "") -> str:
        """CREATE TABLE of the placeholder, the whole name and the UUID: never more than CREATE, and no rows.
        `columns` stand in for missing ones."""
        has_uuid = self._d.uuid is not None
        text = name.quoted + ("" if has_uuid else f" UUID '{uuid}'")
        edits = [Edit(self._name.start, self._name.end, text), *self._plain_verb()]
        if self._select_from is not None and self._as_at is not None and not self._is_empty:
            edits.append(Edit(self._as_at, self._as_at, "EMPTY "))
        if self._d.cluster_span is not None:
            edits.append(Edit(*self._d.cluster_span, ""))
        edits.append(Edit(self._engine_from, self._engine_to, f"{columns} ENGINE = {PLACEHOLDER}"))
        return apply_edits(self._sql, edits)

    def _plain_verb(self) -> list[Edit]:
        """CREATE, without OR REPLACE."""
        tokens, words = self._d.tokens, self._d.words
        if words[:1] == ["REPLACE"]:
            return [Edit(tokens[0].start, tokens[0].end, "CREATE")]
        if words[1:3] == ["OR", "REPLACE"]:
            return [Edit(tokens[1].start, tokens[2].end, "")]
        return []


def _engine_span(create_query: str) -> tuple[int, int]:
    """Where the engine is in chDB's own text: the placeholder, or Null in tables of older nodes."""
    c = Cursor(create_query)
    if not c.skip_to("ENGINE"):
        raise SqlError(Code.LOGICAL_ERROR, f"No engine in {create_query}")
    start = c.token.start
    c.at += 1
    c.accept("=")
    c.identifier()
    c.skip_brackets()
    return start, c.last_end


def with_engine(create_query: str, engine_full: str) -> str:
    """chDB's text as the user made the table."""
    start, end = _engine_span(create_query)
    return apply_edits(create_query, [Edit(start, end, f"ENGINE = {engine_full}")])


def columns_of(create_query: str) -> str:
    """The bracketed list of columns in chDB's text."""
    c = Cursor(create_query)
    c.skip_to("(")
    start = c.token.start
    c.skip_brackets()
    return create_query[start : c.last_end]


def with_column(create_query: str, name: TableName, column: str, engine: str) -> str:
    """CREATE of a table with the same columns and one more, at the end."""
    columns = columns_of(create_query).rstrip()
    return f"CREATE TABLE {name.quoted} {columns[:-1]}, {column}) ENGINE = {engine}"


def on_scratch(create_query: str, name: TableName) -> str:
    """CREATE of a table with the same columns and comment whose engine allows every ALTER."""
    text = with_engine(create_query, "MergeTree ORDER BY tuple()")
    ref = draft_of(text).refs[0]
    return apply_edits(text, [Edit(ref.start, ref.end, name.quoted)])


def as_create(attach: str) -> str:
    """ATTACH TABLE with a whole definition, as CREATE TABLE."""
    first = Cursor(attach).tokens[0]
    return apply_edits(attach, [Edit(first.start, first.end, "CREATE")])
