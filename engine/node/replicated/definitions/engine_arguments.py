"""Path and replica name that are expressions: `ReplicatedMergeTree('/t/' || currentDatabase(), '{replica}')`.

ClickHouse writes what such an expression is worth into the definition when the table is created, and so is it
here.
"""

from __future__ import annotations

import json
from dataclasses import replace

from engine.errors import Code, SqlError
from engine.node.replicated.definitions.definition_sql import Definition, is_create_of_replicated
from engine.node.replicated.running.statements import ReplicatedStatements
from engine.node.statements.statement import Answer, Asked
from engine.sql import Statement, parse_statement


class EngineArguments:
    """Implements ReplicatedStatements: gives a definition to `others` with literals in their places."""

    def __init__(self, others: ReplicatedStatements) -> None:
        self._others = others

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        if not is_create_of_replicated(statement.kind, statement.engine):
            return None
        definition = Definition(asked.sql)
        expressions = definition.keeper_expressions()
        if expressions is None:
            return None
        result = await asked.session.query(
            f"SELECT {', '.join(expressions)}",
            format="JSONCompactEachRow",
            params=asked.params,
            scope=asked.scope,
            multi=False,
        )
        path, replica = json.loads(result.text)
        if not isinstance(path, str) or not isinstance(replica, str):
            raise SqlError(Code.BAD_ARGUMENTS, "Path in ZooKeeper and replica name have to be strings")
        sql = definition.with_keeper_arguments(path, replica)
        return await self._others.run(replace(asked, sql=sql), parse_statement(sql))
