"""CREATE TABLE of Distributed tables, taken apart and put together on tokens.

Three forms of one definition: as the user wrote it; as chDB has it (`ENGINE = Null`, which keeps columns and
their defaults and never holds a row); as everybody is shown it (chDB's text with the engine clause again).
Everything outside the engine clause stays byte for byte.
"""

from __future__ import annotations

from uuid import UUID

from engine.errors import Code, SqlError
from engine.names import TableName
from engine.sql.cursor import Cursor
from engine.sql.edit import Edit, apply_edits
from engine.sql.parse import draft_of

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
            d.at += 1
            if d.word in ("SELECT", "WITH", "(", "FROM"):
                raise SqlError(
                    Code.NOT_IMPLEMENTED,
                    "CREATE TABLE … AS SELECT is not supported for Distributed tables.",
                    hint="Create the table first, then INSERT INTO … SELECT.",
                )
            first = d.identifier()
            if first is not None:
                self.source = TableName("", first)
                if d.accept("."):
                    self.source = TableName(first, d.identifier() or "")
        d.at = at

    @property
    def clause(self) -> str:
        """The engine clause, from the engine's name to the end of its settings."""
        return self._sql[self._clause_from : self._engine_to]

    def for_chdb(self, uuid: UUID, name: TableName, *, columns: str = "") -> str:
        """CREATE TABLE with engine Null, the whole name and the UUID. `columns` stand in for missing ones."""
        has_uuid = self._d.uuid is not None
        text = name.quoted + ("" if has_uuid else f" UUID '{uuid}'")
        edits = [Edit(self._name.start, self._name.end, text)]
        if self._d.cluster_span is not None:
            edits.append(Edit(*self._d.cluster_span, ""))
        edits.append(Edit(self._engine_from, self._engine_to, f"{columns} ENGINE = Null"))
        return apply_edits(self._sql, edits)


def _engine_span(create_query: str) -> tuple[int, int]:
    """Where `ENGINE = Null` is in chDB's own text."""
    c = Cursor(create_query)
    if not c.skip_to("ENGINE"):
        raise SqlError(Code.LOGICAL_ERROR, f"No engine in {create_query}")
    start = c.token.start
    c.at += 1
    c.accept("=")
    c.identifier()
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
