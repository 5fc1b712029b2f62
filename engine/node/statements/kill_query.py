"""KILL QUERY: chDB's queries, and statements that the node itself is busy with."""

from __future__ import annotations

import json
from dataclasses import replace

from engine.node.statements.hosts_answer import format_rows
from engine.node.statements.node_statements import NodeStatement, NodeStatements, how_to_kill
from engine.node.statements.session_commands import by_our_query_id
from engine.node.statements.statement import Answer, Asked, WholeAnswer
from engine.sql import Statement, redact, without_output_clauses
from engine.storage import ChdbSession

_COLUMNS = tuple((name, "String") for name in ("kill_status", "query_id", "user", "query"))


async def kill_query(
    asked: Asked, statement: Statement, session: ChdbSession, statements: NodeStatements
) -> Answer:
    """The rows of both kinds, as ClickHouse has them. Raises SqlError."""
    chosen = await statements.chosen_by_kill(asked.sql, session, asked.params)
    format = statement.format or asked.format
    for_chdb = by_our_query_id(asked.sql)
    if not chosen:
        return WholeAnswer(await asked.run(for_chdb, session=session, is_harmless=False), format=format)
    for_chdb = by_our_query_id(without_output_clauses(asked.sql))
    theirs = await replace(asked, format="JSONCompactEachRow").run(
        for_chdb, session=session, is_harmless=False
    )
    rows = [tuple(json.loads(line)) for line in theirs.text.splitlines() if line]
    rows += await kill_all(chosen, how_to_kill(asked.sql))
    return WholeAnswer(await format_rows(asked, _COLUMNS, rows, format=format), format=format)


async def kill_all(chosen: list[NodeStatement], how: str) -> list[tuple[str, str, str, str]]:
    """SYNC returns when they have been answered."""
    if how == "TEST":
        return [_row("unknown_status", each) for each in chosen]
    for each in chosen:
        each.kill()
    if how == "ASYNC":
        return [_row("waiting", each) for each in chosen]
    for each in chosen:
        await each.ended.wait()
    return [_row("finished", each) for each in chosen]


def _row(status: str, killed: NodeStatement) -> tuple[str, str, str, str]:
    asked = killed.asked
    return status, asked.query_id, asked.user.name, redact(asked.sql)
