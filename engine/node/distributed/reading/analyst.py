"""What chDB says of a statement before it runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from engine.distributed.select.plan import Analyse
from engine.distributed.select.references import table_names
from engine.distributed.select.two_phase import Describe
from engine.errors import SqlError
from engine.node.statements.asked_settings import settings_of, usual_answers
from engine.node.statements.statement import Asked
from engine.storage import Scope
from engine.storage.text_limits import OF_TEXT

_MAX_DESCRIBED = 256
"""Types of states and keys are remembered by the text that they come from, unless it names a table."""


class Analyst:
    """Asks in sessions of their own, with the settings and parameters of a statement; where temporary tables
    are, in the statement's."""

    def __init__(self) -> None:
        self._described: dict[tuple[str, str], list[tuple[str, str]]] = {}

    def analyse(self, asked: Asked) -> Analyse:
        async def analyse(sql: str) -> str:
            try:
                return await _answer(asked, sql, "TSVRaw")
            except SqlError:
                return ""  # nothing is known then, and the query itself says what is wrong with it

        return analyse

    def describe(self, asked: Asked) -> Describe:
        async def describe(sql: str) -> list[tuple[str, str]]:
            key = (sql, repr(sorted({**settings_of(asked), **asked.params}.items())))
            if key in self._described:
                return self._described[key]
            described = [(row[0], row[1]) for row in await _rows(asked, f"DESCRIBE ({sql})")]
            if table_names(sql):
                return described
            if len(self._described) >= _MAX_DESCRIBED:
                self._described.clear()
            self._described[key] = described
            return described

        return describe

    async def columns(self, asked: Asked, table: str) -> Sequence[tuple[str, str, str, str]]:
        """Names, types, kinds and default expressions of the columns of a table or table function."""
        rows = await _rows(asked, f"DESCRIBE TABLE {table}")
        return [(name, type_, kind, expression) for name, type_, kind, expression, *_ in rows]


async def _rows(asked: Asked, sql: str) -> Sequence[Sequence[str]]:
    rows: Sequence[Sequence[str]] = json.loads(await _answer(asked, sql, "JSONCompact"))["data"]
    return rows


async def _answer(asked: Asked, sql: str, format_: str) -> str:
    asked = replace(asked, settings={**asked.settings, **usual_answers(asked)})
    if asked.session.may_have_temporary_tables:
        with asked.session.left_open():
            result = await asked.session.query(
                sql, format=format_, params=asked.params, scope=scope_of(asked.rewritten(sql))
            )
        return result.text
    session = asked.session.clone(for_text=sql)
    settings = {name: value for name, value in asked.settings.items() if name not in OF_TEXT}
    asked = replace(asked, settings=settings)
    try:
        result = await session.query(sql, format=format_, params=asked.params, scope=scope_of(asked))
    finally:
        await session.close()
    return result.text


def scope_of(asked: Asked) -> Scope:
    return Scope(settings=asked.settings, database=asked.current_database)
