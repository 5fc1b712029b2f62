"""INSERT into tables of which chDB only writes a stage: what both forms of a client's INSERT have in common.

An INSERT brings its rows in its text (VALUES, SELECT) or as a stream behind it. Either way the statement is
run with another table's name in it; which table that is, and what becomes of the rows, says the subclass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import ClassVar

from engine.node.replicated.rows.insert_sql import InsertSql
from engine.node.statements.statement import Answer, Asked, WriteInput
from engine.sql import Statement, StatementKind
from engine.storage import QueryResult
from engine.storage.statement_text import InsertText

Write = Callable[[Asked, str], Awaitable[QueryResult]]
"""Runs an INSERT whose text is given, with whatever rows belong to it."""


def streaming(*, block_bytes: int, part_bytes: int) -> Mapping[str, str]:
    """Settings for rows that come as a stream: a block is measured in bytes then, not only in rows. A million
    rows of a kilobyte are 2 GiB in chDB's memory, and parsing on several threads keeps several of them.
    Blocks are gathered until they have `part_bytes`, of which chDB holds some ten times as much."""
    return {
        "max_insert_block_size_bytes": str(block_bytes),
        "min_insert_block_size_bytes": str(part_bytes),
        "input_format_parallel_parsing": "0",
        "max_threads": "1",
    }


class StagedInserts(ABC):
    """Implements `ReplicatedStatements` for INSERT, and takes inserts whose rows come as a stream."""

    streaming_settings: ClassVar[Mapping[str, str]]

    @abstractmethod
    async def insert_into_stage(self, asked: Asked, text: InsertSql, write: Write) -> Answer | None:
        """None for a table that is somebody else's. Raises SqlError."""

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        """INSERT … SELECT, and INSERT … VALUES that is one text with its rows."""
        if statement.kind is not StatementKind.INSERT:
            return None

        async def write(asked: Asked, sql: str) -> QueryResult:
            return await asked.run(sql, is_harmless=True)

        return await self.insert_into_stage(asked, InsertSql(asked.sql), write)

    async def insert(
        self, asked: Asked, insert: InsertText, rows: AsyncIterator[bytes], write_input: WriteInput
    ) -> Answer | None:
        """INSERT … FORMAT, with rows that follow."""

        async def write(asked: Asked, head: str) -> QueryResult:
            settings = {**self.streaming_settings, **asked.session.settings, **asked.settings}
            asked = replace(asked, settings=settings)
            if insert.input_structure:
                return await write_input(asked, replace(insert, head=head), rows)
            return await asked.session.insert(
                head,
                format=insert.format,
                rows=rows,
                params=asked.params,
                scope=asked.scope,
                behind=asked.behind_insert,
            )

        return await self.insert_into_stage(asked, InsertSql(insert.head), write)
