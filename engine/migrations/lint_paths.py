"""Two tables of a folder with one replication path: every host refuses to make the second one (253).

A rehearsal cannot see it, because there is no Keeper in it. `CREATE TABLE b AS a` is the usual way to it:
where the path of `a` is written out, `b` gets the same. Pure.

Source: ClickHouse's StorageReplicatedMergeTree::createReplica; `{database}` and `{table}` are kept as what
they stood for when the table was made, `{uuid}` is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.errors import Code
from engine.migrations.files import ScriptStatement
from engine.names import TableName
from engine.sql import Statement, StatementKind, Token, literal_value, parse_statement, tokenize
from engine.sql.cursor import Role
from engine.sql.engine_clause import behind_engine, string_arguments
from engine.sql.parse import draft_of

_RULE = "replicated-path"
_K = StatementKind

Note = tuple[str, str, int]
"""Rule, message, ClickHouse's code."""
Place = tuple[str, str]
"""Path and name of the replica."""


@dataclass(slots=True)
class ReplicaPaths:
    """Those of the tables that the folder's statements have made so far. Give it them in their order."""

    _of: dict[TableName, Place] = field(default_factory=dict)

    def follow(self, statement: ScriptStatement) -> Iterator[Note]:
        """What is to be said of the statement."""
        parsed = parse_statement(statement.sql)
        database = statement.options.database
        tables = [t if t.database else TableName(database, t.table) for t in parsed.tables]
        match parsed.kind:
            case _K.CREATE_TABLE if tables and not parsed.or_replace and tables[0] not in self._of:
                yield from self._made(tables[0], statement, parsed)
            case _K.RENAME_TABLE | _K.EXCHANGE_TABLES:
                for one, other in zip(tables[::2], tables[1::2], strict=False):
                    moved = {other: self._of.pop(one, None), one: self._of.pop(other, None)}
                    self._of |= {table: place for table, place in moved.items() if place is not None}
            case _K.DROP_TABLE:
                for table in tables:
                    self._of.pop(table, None)
            case _K.DROP_DATABASE | _K.RENAME_DATABASE:
                for table in [table for table in self._of if table.database == parsed.database]:
                    place = self._of.pop(table)
                    if parsed.new_database:
                        self._of[TableName(parsed.new_database, table.table)] = place
            case _:
                pass

    def _made(self, table: TableName, statement: ScriptStatement, parsed: Statement) -> Iterator[Note]:
        words = [token for token in tokenize(statement.sql) if token.is_significant]
        if parsed.engine:
            place = _place(table, parsed.engine, words)
        else:
            source = _source(statement.sql, statement.options.database)
            place = self._of.get(source) if source is not None else None
        if place is None:
            return
        others = [str(other) for other, theirs in self._of.items() if theirs == place]
        if others:
            text = f"{table} has the replication path of {others[0]}, {place[0]}: every host refuses it"
            yield _RULE, text, int(Code.REPLICA_ALREADY_EXISTS)
        self._of[table] = place


def _place(table: TableName, engine: str, words: list[Token]) -> Place | None:
    """None where the path is not written out, or is the table's own by its UUID."""
    strings = string_arguments(behind_engine(words, engine))
    if not engine.startswith("Replicated") or len(strings) < 2:
        return None
    path, replica = (
        text.replace("{database}", table.database).replace("{table}", table.table) for text in strings[:2]
    )
    return None if "{uuid}" in path else (path.rstrip("/"), replica)


def _source(sql: str, database: str) -> TableName | None:
    """The table whose definition the new one takes."""
    found = next((ref for ref in draft_of(sql).refs if ref.role is Role.SOURCE), None)
    if found is None:
        return None
    names = [literal_value(token) for token in tokenize(sql[found.start : found.end]) if token.is_name]
    return TableName(names[0], names[1]) if len(names) == 2 else TableName(database, names[0])
