"""A stage in memory, for an INSERT of few rows: at most one block for each shard.

Limits. The rows that a client sends are at most `MAX_BODY_BYTES`, and what they become is less than the block
that chDB would cut from them on disk. Bodies of all statements together have `MEMORY_BYTES`; what does not
find room in them, or would be more than a block, goes to disk. Besides the body, a statement holds its rows
once as columns and once as Native at most.

A stage whose INSERT has ended well is emptied and serves the next INSERT into the same table: to make one and
drop it costs as much as all that is done with it for a row. After any other end somebody may still write to
it, so it is dropped.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from engine.env import Env
from engine.errors import SqlError
from engine.names import TableName, quote_identifier
from engine.node.distributed.registry.tables import DistributedTable
from engine.node.distributed.sending.stage import (
    SHARD_COLUMN,
    Reader,
    StagedPart,
    Stages,
    create_in_scratch,
    drop_table,
)
from engine.storage import ChdbSession, QueryResult

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 32 << 20
MEMORY_BYTES = 128 << 20
STATEMENT_BYTES = 256 << 20
"""`max_memory_usage` of the statement that fills the stage."""
_MAX_ROWS = 1_048_000
_MAX_BYTES = 60_000_000
"""chDB cuts a block on disk at 1,048,449 rows or 64 MiB (`streaming`)."""
_AT_ONCE_ROWS = 4096
_AT_ONCE_BYTES = 1 << 20
"""So few rows are read before anybody asks for them, all on one connection."""
_FEW_SHARDS = 4
_MAX_KEPT = 4
"""Empty stages with their connections."""
_CHUNK_BYTES = 256 << 10


class TooMuchForMemory(Exception):
    """The INSERT has to be staged on disk."""


def fits(result: QueryResult) -> bool:
    """Whether what an INSERT has written would have been one block on disk."""
    return result.written_rows <= _MAX_ROWS and result.written_bytes <= _MAX_BYTES


class MemoryStage:
    """Implements `Stage`. Tell it of the INSERT's result before it is asked for parts."""

    def __init__(
        self, table: TableName, columns: Sequence[str], reader: Reader, session: ChdbSession, shards: int
    ) -> None:
        self.table = table
        self._columns = ", ".join(map(quote_identifier, columns))
        self._reader = reader
        self._session = session
        self._shards = shards
        self._read: dict[int, bytes] = {}
        self.written: QueryResult | None = None

    async def parts(self) -> Sequence[StagedPart]:
        written = self.written
        if written is None or not written.written_rows:
            return ()
        if self._shards == 1:
            return [_part(0, written.written_rows)]
        is_small = written.written_rows <= _AT_ONCE_ROWS and written.written_bytes <= _AT_ONCE_BYTES
        if is_small and self._shards <= _FEW_SHARDS:
            return await self._read_all(written.written_rows)
        text = await self._session.query(
            f"SELECT {SHARD_COLUMN}, count() FROM {self.table.quoted} GROUP BY 1 ORDER BY 1", format="TSVRaw"
        )
        lines = [line.split("\t") for line in text.text.splitlines()]
        return [_part(int(shard), int(rows)) for shard, rows in lines]

    async def _read_all(self, total: int) -> Sequence[StagedPart]:
        found: list[StagedPart] = []
        for shard in range(self._shards):
            if sum(part.rows for part in found) == total:
                break
            result = await self._session.query(self._select(shard), format="Native")
            if result.result_rows:
                found.append(_part(shard, result.result_rows))
                self._read[shard] = result.data
        return found

    async def rows(self, part: StagedPart) -> AsyncIterator[bytes]:
        data = self._read.get(part.shard)
        if data is None and part.rows > _AT_ONCE_ROWS:
            # The receiver reads them while they are still written here.
            async for chunk in self._reader.stream(self._select(part.shard)):
                yield chunk
            return
        if data is None:
            # On a connection of its own: shards are read at the same time.
            result = await self._reader.session(one_shot=True).query(
                self._select(part.shard), format="Native"
            )
            data = result.data
        for at in range(0, len(data), _CHUNK_BYTES):
            yield data[at : at + _CHUNK_BYTES]

    def select(self, part: StagedPart) -> str:
        return "" if part.shard in self._read else self._select(part.shard)

    def _select(self, shard: int) -> str:
        return f"SELECT {self._columns} FROM {self.table.quoted} WHERE {SHARD_COLUMN} = {shard}"


def _part(shard: int, rows: int) -> StagedPart:
    return StagedPart(f"shard {shard}", shard, rows)


class MemoryStages:
    """Makes them."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._env = stages.env
        self.free_bytes = MEMORY_BYTES
        """Of bodies of all statements; whoever keeps one takes from it and gives back."""
        self._kept: list[_Kept] = []

    @asynccontextmanager
    async def open(self, table: DistributedTable, owner: str, *, shards: int) -> AsyncIterator[MemoryStage]:
        """`owner` is SQL for the index of a row's shard."""
        kept = self._take((table.create_query, owner)) or await self._made(table, owner)
        stage = MemoryStage(kept.name, table.sent_columns, self._stages.reader, kept.session, shards)
        is_over = False
        try:
            yield stage
            is_over = stage.written is not None
        finally:
            await self._stages.later(self._keep(kept) if is_over else kept.drop(self._env))

    async def close(self) -> None:
        """Drop what is kept. No INSERT may come any more."""
        while self._kept:
            await self._kept.pop().drop(self._env)

    def _take(self, key: tuple[str, str]) -> _Kept | None:
        for at, kept in enumerate(self._kept):
            if kept.key == key:
                return self._kept.pop(at)
        return None

    async def _made(self, table: DistributedTable, owner: str) -> _Kept:
        name, create = self._stages.new_table(table, owner, "Memory")
        session = self._stages.reader.session()
        try:
            await create_in_scratch(session, create)
        except SqlError:
            await session.close()
            raise
        return _Kept((table.create_query, owner), name, session)

    async def _keep(self, kept: _Kept) -> None:
        try:
            await kept.session.query(f"TRUNCATE TABLE {kept.name.quoted}", format="Null")
        except SqlError as error:
            log.warning("distributed.stage_not_emptied table=%s error=%s", kept.name, error)
            await kept.drop(self._env)
            return
        self._kept.append(kept)
        if len(self._kept) > _MAX_KEPT:
            await self._kept.pop(0).drop(self._env)


@dataclass(frozen=True, slots=True)
class _Kept:
    """An empty stage. `key` is what it was made from: the table's definition, and whose a row is."""

    key: tuple[str, str]
    name: TableName
    session: ChdbSession

    async def drop(self, env: Env) -> None:
        try:
            await drop_table(self.session, self.name, env)
        finally:
            await self.session.close()
