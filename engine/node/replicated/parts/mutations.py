"""KILL MUTATION of replicated tables; of others it is chDB's.

    KILL MUTATION WHERE <condition on system.mutations> [SYNC | ASYNC | TEST] [FORMAT f]

The rows that the condition chooses are shown with what became of them, as ClickHouse does: `waiting`,
`cant_cancel`, or with TEST `waiting` without doing anything.

Source: ClickHouse's InterpreterKillQueryQuery.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from engine.errors import Code, SqlError
from engine.names import TableName, quote_string
from engine.node.replicated.parts.parts_view import MutationsView
from engine.node.replicated.running.runtime import ReplicatedTables
from engine.node.statements.statement import Answer, Asked, WholeAnswer
from engine.node.system.system_tables import SystemTables
from engine.replication.commands.mutate import kill_mutation
from engine.sql import Statement, StatementKind, parse_statement
from engine.sql.cursor import Cursor
from engine.sql.output import without_output_clauses
from engine.storage import QueryResult

_COLUMNS = ("kill_status", "database", "table", "mutation_id", "command")


@dataclass(frozen=True, slots=True)
class _Chosen:
    table: TableName
    mutation_id: str
    command: str


class KillMutationStatements:
    """Implements ReplicatedStatements."""

    def __init__(self, tables: ReplicatedTables) -> None:
        self._tables = tables
        self._system_tables = SystemTables([MutationsView(tables)])

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        if statement.kind is not StatementKind.KILL_MUTATION or not self._tables.all():
            return None
        condition, is_test = parse_kill(asked.sql)
        rows: list[dict[str, str]] = []
        for chosen in await self._chosen(asked, condition):
            ours = self._tables.find(chosen.table)
            if ours is None:
                status = await self._kill_plain(asked, chosen, is_test=is_test)
            elif is_test:
                status = "unknown_status"  # as chDB says of its tables
            else:
                number = int(chosen.mutation_id) if chosen.mutation_id.isdigit() else -1
                status = "waiting" if await kill_mutation(ours.ctx, number) else "finished"
            rows.append(
                dict(
                    zip(
                        _COLUMNS,
                        (
                            status,
                            chosen.table.database,
                            chosen.table.table,
                            chosen.mutation_id,
                            chosen.command,
                        ),
                        strict=True,
                    )
                )
            )
        return WholeAnswer(await _shown(asked, rows), format=statement.format or asked.format)

    async def _chosen(self, asked: Asked, condition: str) -> list[_Chosen]:
        sql = f"SELECT database, table, mutation_id, command FROM system.mutations WHERE {condition}"
        question = replace(asked, sql=sql)
        async with self._system_tables.provide(question, parse_statement(sql)) as (text, session):
            result = await session.query(
                text, format="JSONCompactEachRow", params=asked.params, scope=asked.scope
            )
        found = [json.loads(line) for line in result.data.splitlines()]
        return [_Chosen(TableName(row[0], row[1]), row[2], row[3]) for row in found]

    async def _kill_plain(self, asked: Asked, chosen: _Chosen, *, is_test: bool) -> str:
        """The mutation of a table that is chDB's."""
        sql = (
            f"KILL MUTATION WHERE database = {quote_string(chosen.table.database)} AND table = "
            f"{quote_string(chosen.table.table)} AND mutation_id = {quote_string(chosen.mutation_id)}"
            + (" TEST" if is_test else "")
        )
        result = await asked.session.query(sql, format="JSONCompactEachRow", scope=asked.scope, multi=False)
        lines = result.data.splitlines()
        return str(json.loads(lines[0])[0]) if lines else "finished"


def parse_kill(sql: str) -> tuple[str, bool]:
    """The condition, and whether it is only a TEST. Raises SqlError 62."""
    c = Cursor(without_output_clauses(sql))
    if not c.skip_to("WHERE"):
        raise SqlError(Code.SYNTAX_ERROR, "Syntax error: KILL MUTATION needs WHERE")
    c.at += 1
    start, end = c.at, len(c.tokens)
    mode = c.words[-1] if c.words[-1] in ("SYNC", "ASYNC", "TEST") else ""
    if mode:
        end -= 1
    if end <= start:
        raise SqlError(Code.SYNTAX_ERROR, "Syntax error: KILL MUTATION needs a condition behind WHERE")
    return c.sql[c.tokens[start].start : c.tokens[end - 1].end], mode == "TEST"


async def _shown(asked: Asked, rows: list[dict[str, str]]) -> QueryResult:
    """The rows in the format that was asked for."""
    structure = ", ".join(f"{name} String" for name in _COLUMNS)
    lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    sql = f"SELECT * FROM format(JSONEachRow, {quote_string(structure)}, {quote_string(lines)})"
    format_ = parse_statement(asked.sql).format or asked.format
    return await asked.session.clone(for_text=sql).query(sql, format=format_)
