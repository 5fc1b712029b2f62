"""SHOW CREATE TABLE and EXISTS of tables of `system`, whose text ClickHouse makes up and chDB does not have.

Source: ClickHouse's DatabaseMemory of system tables, as `SHOW CREATE TABLE system.one` shows it.
"""

from __future__ import annotations

import json

from engine.names import TableName, quote_identifier, quote_string
from engine.node.statements.session_commands import split_at_commas
from engine.node.statements.statement import Asked
from engine.node.system.shown_tables import table_of_exists, table_of_show_create
from engine.sql import Statement, StatementKind, tokenize
from engine.sql.tokens import literal_value

_FORMAT = "JSONCompactEachRow"
_ABSENT = {"zookeeper": "SystemZooKeeper", "asynchronous_metrics": "SystemAsynchronousMetrics"}
"""Engines of the tables that chDB does not have."""


_TABLE_OF = {StatementKind.SHOW: table_of_show_create, StatementKind.EXISTS: table_of_exists}


def system_table_shown(asked: Asked, statement: Statement) -> str:
    """The name of the table of `system` that SHOW CREATE TABLE or EXISTS asks for; empty for any other
    statement."""
    table_of = _TABLE_OF.get(statement.kind)
    name = None if table_of is None else table_of(asked.sql)
    shown = None if name is None else name.within(asked.current_database)
    return shown.table if shown is not None and shown.database == "system" else ""


async def system_table_as_select(asked: Asked, statement: Statement, table: str, *, own_columns: str) -> str:
    """A SELECT of what the statement asks for. `own_columns` are those of a table that chDB may not have. A
    table that it has a text of, or that is not there, is left to it."""
    if statement.kind is StatementKind.EXISTS:
        return f"SELECT 1 AS result{_format(statement)}" if own_columns else asked.sql
    session = asked.session.clone()
    where = f"database = 'system' AND name = {quote_string(table)}"
    found = await session.query(f"SELECT engine, comment FROM system.tables WHERE {where}", format=_FORMAT)
    engine, comment = json.loads(found.text) if found.text else ("", "")
    if own_columns:
        tokens = [token for token in tokenize(own_columns) if token.is_significant]
        columns = [
            f"{quote_identifier(literal_value(name))} {own_columns[type_[0].start : type_[-1].end]}"
            for name, *type_ in split_at_commas(tokens)
        ]
    elif engine.startswith("System"):
        name = TableName("system", table).quoted
        rows = (await session.query(f"DESCRIBE TABLE {name}", format=_FORMAT)).text.splitlines()
        columns = [_column(*json.loads(row)[:5]) for row in rows]
    else:
        return asked.sql
    engine = engine or _ABSENT[table]
    text = f"CREATE TABLE system.{table}\n(\n    " + ",\n    ".join(columns) + f"\n)\nENGINE = {engine}"
    text += f"\nCOMMENT {quote_string(comment)}" if comment else ""
    return f"SELECT {quote_string(text)} AS statement{_format(statement)}"


def _format(statement: Statement) -> str:
    return f" FORMAT {statement.format}" if statement.format else ""


def _column(name: str, type_: str, kind: str, expression: str, comment: str) -> str:
    default = f" {kind} {expression}" if kind else ""
    return f"{quote_identifier(name)} {type_}{default}" + (
        f" COMMENT {quote_string(comment)}" if comment else ""
    )
