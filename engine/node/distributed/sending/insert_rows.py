"""The rows that an INSERT brings, in whichever form, given to chDB once or, if need be, from the start again.

An INSERT into a Distributed table is tried in memory first where it looks small. Whether it is shows when its
rows have come; then they have to be there for the stage on disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from engine.errors import Code, SqlError
from engine.node.distributed.sending.memory_stage import (
    MAX_BODY_BYTES,
    STATEMENT_BYTES,
    MemoryStages,
    TooMuchForMemory,
    fits,
)
from engine.node.statements.staged_insert import streaming
from engine.node.statements.statement import Asked, WriteInput
from engine.storage import QueryResult
from engine.storage.statement_text import InsertText, insert_with_rows

_STREAMING = streaming(block_bytes=64 << 20, part_bytes=64 << 20)
_PLAIN_FORMATS = ("Native", "RowBinary", "TabSeparated", "TSV", "CSV", "JSON", "Values")
"""Formats, by the beginning of their names, whose rows are not much larger in memory."""
_BLOCK_SETTINGS = frozenset(
    {
        "max_insert_block_size",
        "max_insert_block_size_rows",
        "max_insert_block_size_bytes",
        "min_insert_block_size_rows",
        "min_insert_block_size_bytes",
    }
)


class InsertRows(Protocol):
    """Of one statement."""

    @property
    def may_fit(self) -> bool:
        """Whether a stage in memory is worth trying."""
        ...

    async def write_small(self, asked: Asked, sql: str) -> QueryResult:
        """Run the INSERT whose text is given. Raises TooMuchForMemory, and nothing of the rows is lost;
        SqlError."""
        ...

    async def write(self, asked: Asked, sql: str) -> QueryResult:
        """Run the INSERT whose text is given. Raises SqlError."""
        ...


class RowsOfText:
    """INSERT … SELECT, and INSERT … VALUES that is one text with its rows."""

    def __init__(self, sql: str) -> None:
        insert = insert_with_rows(sql)
        self.may_fit = insert is not None and not insert.input_structure

    async def write_small(self, asked: Asked, sql: str) -> QueryResult:
        with _memory_is_short():
            return _checked(await self.write(asked, sql))

    async def write(self, asked: Asked, sql: str) -> QueryResult:
        return await asked.run(sql, is_harmless=True)


class RowsBehind:
    """INSERT … FORMAT, with rows that follow. `close` it."""

    def __init__(
        self, insert: InsertText, rows: AsyncIterator[bytes], write_input: WriteInput, memory: MemoryStages
    ) -> None:
        self._insert = insert
        self._rows = rows
        self._write_input = write_input
        self._memory = memory
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0
        self.may_fit = not insert.input_structure and insert.format.startswith(_PLAIN_FORMATS)

    async def write_small(self, asked: Asked, sql: str) -> QueryResult:
        with _memory_is_short():
            result = await asked.session.insert(
                sql,
                format=self._insert.format,
                rows=_Kept(self),
                params=asked.params,
                scope=_streaming(asked).scope,
            )
        result = _checked(result)
        self.close()
        return result

    async def write(self, asked: Asked, sql: str) -> QueryResult:
        asked, rows = _streaming(asked), self._from_start()
        if self._insert.input_structure:
            return await self._write_input(asked, replace(self._insert, head=sql), rows)
        return await asked.session.insert(
            sql, format=self._insert.format, rows=rows, params=asked.params, scope=asked.scope
        )

    def close(self) -> None:
        """Forget the rows."""
        self._kept.clear()
        self._memory.free_bytes += self._kept_bytes
        self._kept_bytes = 0

    async def next_kept(self) -> bytes:
        chunk = await anext(self._rows)
        self._kept.append(chunk)
        self._kept_bytes += len(chunk)
        self._memory.free_bytes -= len(chunk)
        if self._kept_bytes > MAX_BODY_BYTES or self._memory.free_bytes < 0:
            raise TooMuchForMemory
        return chunk

    async def _from_start(self) -> AsyncIterator[bytes]:
        while self._kept:
            yield self._kept.popleft()
        self.close()
        async for chunk in self._rows:
            yield chunk


class _Kept:
    """The rows, each chunk kept."""

    def __init__(self, rows: RowsBehind) -> None:
        self._rows = rows

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        return await self._rows.next_kept()


def may_be_staged_in_memory(settings: Mapping[str, str]) -> bool:
    """Not where the statement says itself how its rows are cut into blocks."""
    return not any(name in settings for name in _BLOCK_SETTINGS)


def for_memory(asked: Asked, settings: Mapping[str, str]) -> Asked:
    """The request with a limit to what it may use."""
    text = settings.get("max_memory_usage", "0")
    own = int(text) if text.isdigit() else 0
    limit = min(own, STATEMENT_BYTES) if own else STATEMENT_BYTES
    return replace(asked, settings={**asked.settings, "max_memory_usage": str(limit)})


@contextmanager
def _memory_is_short() -> Iterator[None]:
    """Whether that is the limit of the stage in memory or the user's own, the stage on disk will show."""
    try:
        yield
    except SqlError as error:
        if error.code == Code.MEMORY_LIMIT_EXCEEDED:
            raise TooMuchForMemory from error
        raise


def _streaming(asked: Asked) -> Asked:
    return replace(asked, settings={**_STREAMING, **asked.session.settings, **asked.settings})


def _checked(result: QueryResult) -> QueryResult:
    if not fits(result):
        raise TooMuchForMemory
    return result
