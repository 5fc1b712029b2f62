"""What subqueries of a statement read of Distributed tables is asked for before the statement runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial

from engine.errors import Code, SqlError
from engine.names import TableName
from engine.node.distributed.definitions.guard import is_mutation
from engine.node.distributed.reading.failover import Failover
from engine.node.distributed.reading.selects import DistributedSelects
from engine.node.distributed.reading.settings_around import settings_of_statement
from engine.node.distributed.reading.subquery_values import (
    MOST_CHARACTERS,
    MOST_IN_KEEPER,
    MOST_IN_SHARDS,
    Meaning,
    Subquery,
    literal,
    question_of,
    question_of_set,
    with_values_in_conditions,
    with_values_in_rows,
)
from engine.node.distributed.reading.table_filters import (
    FILTERS,
    filters_text,
    table_filters,
    with_filters_in_text,
)
from engine.node.statements.asked_settings import flag, settings_of, usual_answers
from engine.node.statements.statement import Asked
from engine.sql import Statement, StatementKind, parse_statement

_WITH_CONDITION = frozenset(
    {StatementKind.SHOW, StatementKind.KILL_QUERY, StatementKind.KILL_MUTATION, StatementKind.KILL_OTHER}
)


_MOST_FILTERS = 8
"""So deep may filters of tables be that filters read."""


class AskedFirst:
    """Writes values in the place of subqueries."""

    def __init__(
        self,
        selects: DistributedSelects,
        turn: Callable[[Failover], AbstractAsyncContextManager[None]],
        is_replicated: Callable[[TableName], bool],
    ) -> None:
        """Within `turn` a prepared statement may run."""
        self._selects = selects
        self._turn = turn
        self._is_replicated = is_replicated

    async def with_values(self, asked: Asked, statement: Statement) -> Asked:
        """The request with values where chDB could not read the shards. Raises SqlError."""
        most = MOST_CHARACTERS
        if statement.kind is StatementKind.INSERT:
            sql = await with_values_in_rows(asked.sql, partial(self._value, asked, most))
        elif is_mutation(statement) or statement.kind in _WITH_CONDITION:
            if any(self._is_replicated(name.within(asked.current_database)) for name in statement.tables):
                most = MOST_IN_KEEPER
            sql = await with_values_in_conditions(asked.sql, partial(self._value, asked, most))
        else:
            return asked
        return asked if sql == asked.sql else asked.rewritten(sql)

    async def with_filters(self, asked: Asked, depth: int = 0) -> Asked:
        """The request with values in the conditions of `additional_table_filters` that the statement needs:
        a shard has not the tables of this node. Raises SqlError."""
        settings = settings_of(asked)
        if FILTERS not in asked.sql and not settings.get(FILTERS):
            return asked
        needed = await self._selects.names_of_filters(asked)

        async def with_values(name: str, condition: str) -> str:
            if name.rpartition(".")[2] not in needed:
                return condition
            if depth >= _MOST_FILTERS:
                raise SqlError(
                    Code.TOO_DEEP_RECURSION, f"The filter of {name} in {FILTERS} reads {name} itself."
                )
            value = partial(self._of_filter, asked, depth)
            return await with_values_in_conditions(condition, value)

        asked = replace(asked, sql=await with_filters_in_text(asked.sql, with_values))
        given = table_filters(settings)
        own = {name: await with_values(name, condition) for name, condition in given.items()}
        if own == given:
            return asked
        return replace(asked, settings={**asked.settings, FILTERS: filters_text(own)})

    async def _of_filter(self, asked: Asked, depth: int, subquery: Subquery) -> str:
        filters = settings_of_statement(asked, asked.sql).get(FILTERS, "")
        asked = replace(
            asked, sql=f"SELECT ({subquery.select})", settings={**asked.settings, FILTERS: filters}
        )
        asked = await self.with_filters(asked, depth + 1)
        return await self._asked(asked, MOST_IN_SHARDS, subquery)

    async def _value(self, asked: Asked, most: int, subquery: Subquery) -> str | None:
        if not await self._selects.reads_distributed(subquery.select, asked.current_database):
            return None
        return await self._asked(asked, most, subquery)

    async def _asked(self, asked: Asked, most: int, subquery: Subquery) -> str:
        select = subquery.select
        settings = {**asked.settings, **usual_answers(asked)}
        asked = replace(asked, format="TabSeparatedRaw", settings=settings)
        match subquery.meaning:
            case Meaning.VALUE | Meaning.EXISTENCE:
                sql = question_of(subquery.meaning, select)
            case Meaning.SET:
                describe = asked.rewritten(f"DESCRIBE ({select})")
                described = await describe.run(describe.sql, is_harmless=True)
                with_nulls = flag(settings_of(asked), "transform_null_in", False)
                columns = len(described.text.splitlines())
                sql = question_of_set(select, columns=columns, with_nulls=with_nulls)
        asked = asked.rewritten(sql)
        statement = parse_statement(sql)
        failover = self._selects.failover(asked, statement)
        prepared = await self._selects.prepare(asked, statement, failover)
        async with self._turn(failover):
            text = prepared.filled_in.of(prepared.sql)
            try:
                answer = await prepared.run(text, is_harmless=True)
            except SqlError as error:
                raise failover.explained(error) from error
        return literal(answer.text, most=most)
