"""SQL user functions in definitions, written out before they go into the log.

chDB stores a definition with the bodies of the functions that it calls, as ClickHouse does. With the calls in
the log, a replica that lacks a function could not carry the statement out, and one that has another of that
name would store another definition. The initiator carries out the same text, so that all store the same. What
chDB keeps as it is, a dictionary's expressions, stays.
"""

from __future__ import annotations

import json
from pathlib import Path

from engine.node.statements.statement import Asked
from engine.sql import StatementKind
from engine.sql.inlined_functions import inlined
from engine.sql.parse import draft_of


async def with_function_bodies(asked: Asked, sql: str, path: Path) -> str:
    """`path` is the node's data. Where nobody has made functions, chDB is not asked for them: it has 2,000
    others."""
    directory = path / "user_defined"
    if draft_of(sql).kind is StatementKind.CREATE_DICTIONARY:
        return sql
    if not directory.is_dir() or not any(directory.iterdir()):
        return sql
    found = await asked.session.clone(needs_database=False).query(
        "SELECT name, create_query FROM system.functions WHERE origin = 'SQLUserDefined'",
        format="JSONCompactEachRow",
    )
    return inlined(sql, dict(map(json.loads, found.data.splitlines())))
