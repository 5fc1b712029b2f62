"""Subqueries that are asked for before their statement is planned.

Beside `distributed_group_by_no_merge` and its kin a SELECT runs on each shard as it is written. What it
compares with, and joins GLOBAL, is one answer for all of them, which a shard could not find. In any other
SELECT it is what WHERE compares with: without its value no shard could evaluate the condition, and all rows
would travel.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial

from engine.distributed.select import USUAL, Spread
from engine.errors import Code, SqlError
from engine.node.distributed.reading.analyst import Analyst
from engine.node.distributed.reading.failover import Failover
from engine.node.distributed.reading.global_joins import question_of_rows, rows_of, with_rows_of_joins
from engine.node.distributed.reading.scalar_subqueries import (
    with_values_of_conditions,
    with_values_of_scalars,
)
from engine.node.distributed.reading.settings_around import settings_around, with_settings
from engine.node.distributed.reading.subquery_values import (
    MOST_IN_SHARDS,
    Meaning,
    Subquery,
    literal,
    question_of,
    question_of_set,
)
from engine.node.statements.asked_settings import flag, settings_of, usual_answers
from engine.node.statements.statement import Asked
from engine.sql import Statement, parse_statement

Turn = Callable[[Failover], AbstractAsyncContextManager[None]]
"""Within it a prepared statement may run."""
_Question = Callable[[Asked, str], Awaitable[str]]
"""What asks for what a SELECT gives."""
_IS_PARSED = re.compile(r"\b(?:JSON|Object|AggregateFunction)\(?")
"""A type whose text may be read as another value."""


class SpreadValues:
    """Writes values, or rows, in the place of subqueries."""

    def __init__(
        self,
        analyst: Analyst,
        *,
        turn: Turn,
        failover: Callable[[Asked, Statement], Failover],
        prepare: Callable[[Asked, Statement, Failover], Awaitable[Asked]],
    ) -> None:
        self._analyst = analyst
        self._turn = turn
        self._failover = failover
        self._prepare = prepare

    async def written(
        self,
        asked: Asked,
        sql: str,
        settings: Mapping[str, str],
        starts: Sequence[int],
        spread: Spread,
        *,
        shown: Callable[[str], str],
    ) -> str:
        """The text with values; `starts` is where it names Distributed tables, and `shown` makes of a part of
        it what the client wrote. Once there are values of conditions, it has to be looked at anew before
        joins are. Raises SqlError."""
        of = self._compared if spread is USUAL else self._scalar

        async def value(subquery: Subquery) -> str | None:
            there = settings_around(sql, subquery.start, settings)
            return await of(asked, there, replace(subquery, select=shown(subquery.select)))

        async def rows(select: str) -> str | None:
            return await self._rows(asked, settings, shown(select))

        if spread is USUAL:
            if not asked.session.takes_settings:
                return sql  # an answer may have extremes, or be cut short
            return await with_values_of_conditions(sql, starts, value)
        text = await with_values_of_scalars(sql, starts, value, spread)
        if text != sql:
            return text
        return await with_rows_of_joins(sql, starts, rows, spread)

    async def _scalar(self, asked: Asked, settings: Mapping[str, str], subquery: Subquery) -> str | None:
        """What a subquery gives that stands alone; None for any other."""
        question = partial(self._question, subquery.meaning)
        answer = await self._answer(asked, settings, subquery.select, question)
        return None if answer is None else literal(answer, most=MOST_IN_SHARDS)

    async def _compared(self, asked: Asked, settings: Mapping[str, str], subquery: Subquery) -> str | None:
        """As `_scalar`, where chDB can find the value, too: None for one that cannot be written as it is."""
        question = partial(self._question, subquery.meaning)
        answer = await self._answer(asked, settings, subquery.select, question)
        if answer is None or _IS_PARSED.search(answer.partition("\t")[0]):
            return None
        try:
            return literal(answer, most=MOST_IN_SHARDS)
        except SqlError:
            return None

    async def _rows(self, asked: Asked, settings: Mapping[str, str], select: str) -> str | None:
        """A subquery with the rows of a SELECT; None if they cannot be written, or are too many."""
        columns: list[tuple[str, str]] = []

        async def question(asked: Asked, sql: str) -> str:
            columns.extend(await self._analyst.describe(asked)(sql))
            return question_of_rows(sql, most=MOST_IN_SHARDS)

        answer = await self._answer(asked, settings, select, question)
        try:
            return None if answer is None else rows_of(columns, literal(answer, most=MOST_IN_SHARDS))
        except SqlError:
            return None

    async def _answer(
        self, asked: Asked, settings: Mapping[str, str], select: str, question: _Question
    ) -> str | None:
        """The answer to what `question` makes of a SELECT that chDB can run; None for one that does not stand
        alone."""
        asked = replace(asked, sql=select, format="TabSeparatedRaw")
        asked = with_settings(asked, settings)
        asked = replace(asked, settings={**asked.settings, **usual_answers(asked)})
        statement = parse_statement(asked.sql)
        failover = self._failover(asked, statement)
        try:
            prepared = await self._prepare(asked, statement, failover)
            sql = await question(asked, prepared.sql)
            prepared = replace(
                prepared, early=None, has_one_row=False, takes_settings=False, is_readonly=False
            )
            async with self._turn(failover):
                with asked.session.left_open():
                    answer = await prepared.run(prepared.filled_in.of(sql), is_harmless=True)
        except SqlError as error:
            if error.code in (Code.UNKNOWN_IDENTIFIER, Code.UNKNOWN_FUNCTION, Code.NOT_IMPLEMENTED):
                return None
            raise
        return answer.text

    async def _question(self, meaning: Meaning, asked: Asked, select: str) -> str:
        if meaning is not Meaning.SET:
            return question_of(meaning, select)
        columns = len(await self._analyst.describe(asked)(select))
        with_nulls = flag(settings_of(asked), "transform_null_in", False)
        return question_of_set(select, columns=columns, with_nulls=with_nulls)
