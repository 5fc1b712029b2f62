"""Statements by which a person looks at what runs, and ends it: they wait for nobody's thread.

With all of a node's threads taken, who wants to know by what would wait like everybody else. So KILL QUERY,
SHOW PROCESSLIST and SELECTs of nothing but `system.processes` have threads of their own. ClickHouse counts
the same statements in none of its limits.
"""

from __future__ import annotations

import re

from engine.distributed.select.references import tables_of
from engine.names import TableName
from engine.sql import Statement, StatementKind
from engine.sql.cursor import Cursor

THREADS = 2
_MAY_BE = re.compile(r"\bprocess(?:list|es)\b", re.IGNORECASE)
_MORE_TABLES = re.compile(r"(?:\s+AS)?\s+`?\w+`?\s*,|\s*,", re.IGNORECASE)
_PROCESSES = TableName("system", "processes")


def is_urgent(sql: str, statement: Statement) -> bool:
    """Whether the statement is one of these."""
    if statement.kind is StatementKind.KILL_QUERY:
        return statement.on_cluster is None
    if not statement.is_query or _MAY_BE.search(sql) is None:
        return False
    cursor = Cursor(sql)
    words = cursor.words
    if statement.kind is not StatementKind.SELECT:
        return words[:2] == ["SHOW", "PROCESSLIST"] or words[:3] == ["SHOW", "FULL", "PROCESSLIST"]
    names = tables_of(cursor)
    if [ref.name for ref in names] != [_PROCESSES] or words.count("FROM") != 1 or "JOIN" in words:
        return False
    return _MORE_TABLES.match(sql, names[0].end) is None
