"""CREATE MATERIALIZED VIEW of a view with a table of its own, taken apart: the table's text and the view's.

chDB makes neither from the other: of a view that is attached it reads the engine's clause to show it, and
goes to its table by `TO INNER UUID`. So the view has the engine that its table shows, Replicated and with
path and replica name, as in ClickHouse, and its table is one like any other, under the name that ClickHouse
gives it.
"""

from __future__ import annotations

from uuid import UUID

from engine.errors import Code, SqlError
from engine.names import TableName
from engine.node.replicated.definitions.definition_sql import Definition
from engine.sql import TokenKind, literal_value
from engine.sql.cursor import Cursor

_GRANULARITY = "index_granularity"
_ITS_DEFAULT = f"{_GRANULARITY} = 8192"
"""ClickHouse writes it into every definition of a MergeTree."""
_INNER = ".inner_id."


def inner_name(view: TableName, uuid: UUID) -> TableName:
    """Of the table that the view of this UUID has of its own."""
    return TableName(view.database, f"{_INNER}{uuid}")


def is_inner(name: TableName) -> bool:
    """Whether `inner_name` made it."""
    return name.table.startswith(_INNER)


class ViewDefinition:
    """The text of a CREATE MATERIALIZED VIEW that has an engine. Raises SqlError 62 without a SELECT."""

    def __init__(self, sql: str) -> None:
        self._definition = Definition(sql)
        start, end = self._definition.storage
        self._storage = sql[start:end]
        cursor = Cursor(sql)
        self.inner_uuid: UUID | None = None
        """The table's, as the statement gives it."""
        self.columns = ""
        """The list of columns with its brackets; empty without one."""
        while not cursor.at_end and cursor.token.start < start:
            if cursor.accept("TO", "INNER", "UUID"):
                self.inner_uuid = UUID(literal_value(cursor.token))
            begins = cursor.token.start
            if cursor.word == "(" and cursor.skip_brackets():
                self.columns = sql[begins : cursor.last_end]
            else:
                cursor.at += 1
        self.populates = False
        between = Cursor(sql)
        between.at = between.at_offset(end)
        as_at = self._definition.as_at
        if as_at is None:
            raise SqlError(Code.SYNTAX_ERROR, "Syntax error: the view's SELECT is expected behind its engine")
        self._behind_storage = sql[end:as_at]
        while not between.at_end and between.token.start < as_at:
            if between.word == "POPULATE":
                self.populates = True
                token = between.token
                self._behind_storage = sql[end : token.start] + sql[token.end : as_at]
            between.at += 1
        self._behind = sql[as_at:].rstrip("; \t\r\n")

    @property
    def select(self) -> str:
        """What the view reads, without the comment behind it."""
        cursor = Cursor(self._behind)
        end = len(self._behind)
        if cursor.words[-2:-1] == ["COMMENT"] and cursor.tokens[-1].kind is TokenKind.STRING:
            end = cursor.tokens[-2].start
        return self._behind[cursor.tokens[0].end : end]

    def with_keeper_arguments(self, path: str, replica: str) -> ViewDefinition:
        """With these as the engine's first arguments."""
        return ViewDefinition(self._definition.with_keeper_arguments(path, replica))

    def of_table(self, name: TableName, uuid: UUID, columns: str) -> str:
        """CREATE TABLE of the view's own table."""
        return f"CREATE TABLE {name.quoted} UUID '{uuid}' {columns} {self._storage}"

    def of_view(self, name: TableName, uuid: UUID, inner_uuid: UUID, columns: str) -> str:
        """ATTACH of the view to its table, which is there."""
        storage = self._storage
        if not self._definition.settings:
            storage += f" SETTINGS {_ITS_DEFAULT}"
        elif _GRANULARITY not in self._definition.settings:
            storage += f", {_ITS_DEFAULT}"
        return (
            f"ATTACH MATERIALIZED VIEW {name.quoted} UUID '{uuid}' TO INNER UUID '{inner_uuid}' {columns} "
            f"{storage} {self._behind_storage} {self._behind}"
        )
