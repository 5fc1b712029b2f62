"""KILL QUERY: chDB's queries, and statements that wait for other hosts ON CLUSTER."""

from __future__ import annotations

import json
from dataclasses import replace

from engine.node.cluster_waits import ClusterWait, ClusterWaits, how_to_kill
from engine.node.hosts_answer import format_rows
from engine.node.session_commands import by_our_query_id
from engine.node.statement import Answer, Asked, WholeAnswer
from engine.sql import Statement, redact, without_output_clauses
from engine.storage import ChdbSession

_COLUMNS = tuple((name, "String") for name in ("kill_status", "query_id", "user", "query"))


async def kill_query(asked: Asked, statement: Statement, session: ChdbSession, waits: ClusterWaits) -> Answer:
    """The rows of both kinds, as ClickHouse has them. Raises SqlError."""
    chosen = await waits.chosen_by_kill(asked.sql, session, asked.params)
    format = statement.format or asked.format
    for_chdb = by_our_query_id(asked.sql)
    if not chosen:
        return WholeAnswer(await asked.run(for_chdb, session=session, is_harmless=False), format=format)
    for_chdb = by_our_query_id(without_output_clauses(asked.sql))
    theirs = await replace(asked, format="JSONCompactEachRow").run(
        for_chdb, session=session, is_harmless=False
    )
    rows = [tuple(json.loads(line)) for line in theirs.text.splitlines() if line]
    rows += await kill_waits(chosen, how_to_kill(asked.sql))
    return WholeAnswer(await format_rows(asked, _COLUMNS, rows, format=format), format=format)


async def kill_waits(chosen: list[ClusterWait], how: str) -> list[tuple[str, str, str, str]]:
    """SYNC returns when they have been answered."""
    if how == "TEST":
        return [_row("unknown_status", wait) for wait in chosen]
    for wait in chosen:
        wait.kill()
    if how == "ASYNC":
        return [_row("waiting", wait) for wait in chosen]
    for wait in chosen:
        await wait.ended.wait()
    return [_row("finished", wait) for wait in chosen]


def _row(status: str, wait: ClusterWait) -> tuple[str, str, str, str]:
    return status, wait.query_id, wait.user, redact(wait.query)
