"""Errors of an INSERT whose rows go into a stage first, as if they had gone to the table itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from engine.errors import Code, SqlError
from engine.names import TableName
from engine.node.statements.statement import Asked

_MOST_CHECKED = 100_000
"""In characters. chDB checks a text as a literal in another one."""


@asynccontextmanager
async def errors_about(asked: Asked, table: TableName, stage: TableName) -> AsyncIterator[None]:
    """chDB's error, with the table that the user knows in the place of the stage, and with the place in the
    user's text where a syntax error is. Raises SqlError."""
    try:
        yield
    except SqlError as error:
        if error.code == Code.SYNTAX_ERROR and len(asked.sql) <= _MOST_CHECKED:
            await asked.check_syntax()
        message = error.message.replace(stage.quoted, table.quoted).replace(str(stage), str(table))
        raise error.reworded(message) from error
