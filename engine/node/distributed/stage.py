"""The rows of one INSERT into a Distributed table, split by shard before they leave the node.

chDB writes the rows into a table of the node's own, which has the Distributed table's columns and one more:
the slot's owner, computed from the sharding key. The table is partitioned by it, so that what chDB makes of
each block it writes is one part per shard; a part is a block to deliver. Rows are on disk, not in memory, and
pass through Python as bytes only. The table is dropped at the end, behind the statement's answer; a crash
leaves it to the next start, which removes the scratch database.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from engine.distributed.sharding import slot_expression, slots
from engine.env import Env
from engine.errors import Code, SqlError
from engine.names import TableName, quote_identifier, quote_string
from engine.node.distributed.create_sql import with_column
from engine.node.distributed.tables import DistributedTable
from engine.part_storage import HIDDEN_SETTINGS, SCRATCH_DATABASE
from engine.storage import ChdbPool, ChdbSession

log = logging.getLogger(__name__)

_DROPS_AT_ONCE = 32
"""So many tables may wait to be dropped; then statements wait for them."""
SHARD_COLUMN = "_oncluster_shard"
_READ = {"max_threads": "1", "preferred_block_size_bytes": "0", "max_block_size": "10000000"}
"""A part is read as one block of Native, so that the receiver has it whole."""


@dataclass(frozen=True, slots=True)
class StagedPart:
    """Rows of one block for one shard, whose index counts from 0."""

    name: str
    shard: int
    rows: int
    size_bytes: int


class Stage:
    """Where one INSERT's rows are. `table` is what chDB has to write them to."""

    def __init__(self, table: TableName, columns: Sequence[str], reader: Reader) -> None:
        self.table = table
        self.columns = tuple(columns)
        self._reader = reader

    async def parts(self) -> Sequence[StagedPart]:
        """In the order of their shards; within one, in the order of the rows."""
        return await self._reader.parts(self.table)

    async def rows(self, part: StagedPart) -> AsyncIterator[bytes]:
        """One part as Native. Raises SqlError."""
        columns = ", ".join(map(quote_identifier, self.columns))
        sql = f"SELECT {columns} FROM {self.table.quoted} WHERE _part = {quote_string(part.name)}"
        async for chunk in self._reader.stream(sql):
            yield chunk


class Reader:
    """Reads stages on threads of its own: statements of clients may wait for its results."""

    def __init__(self, pool: ChdbPool, *, threads: int = 8) -> None:
        self._pool = pool
        self._threads = pool.reserve(threads)

    async def run(self, sql: str, *, format: str = "Null") -> str:
        return (await ChdbSession(self._threads, one_shot=True).query(sql, format=format)).text

    async def parts(self, table: TableName) -> Sequence[StagedPart]:
        text = await self.run(
            "SELECT name, toUInt32(partition_id), rows, data_uncompressed_bytes FROM system.parts "
            f"WHERE active AND database = {quote_string(table.database)} "
            f"AND table = {quote_string(table.table)} ORDER BY 2, min_block_number",
            format="TSVRaw",
        )
        found = []
        for line in text.splitlines():
            name, shard, rows, size = line.split("\t")
            found.append(StagedPart(name, int(shard), int(rows), int(size)))
        return found

    async def stream(self, sql: str) -> AsyncIterator[bytes]:
        session = ChdbSession(self._threads, settings=_READ, one_shot=True)
        async with session.stream(sql, format="Native") as result:
            while chunk := await result.read():
                yield chunk
            await result.finish()


class Stages:
    """Makes stages."""

    def __init__(self, pool: ChdbPool, env: Env) -> None:
        self._env = env
        self._reader = Reader(pool)
        self._key_types: dict[TableName, tuple[tuple[str, str], str]] = {}
        self._drops: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Return when all stages are dropped."""
        await asyncio.gather(*self._drops)

    async def key_type(self, table: DistributedTable) -> str:
        """The type of the sharding key. Raises SqlError 18 unless it is one column, 47 and others of chDB."""
        asked = (table.definition.sharding_key, table.create_query)
        known = self._key_types.get(table.name)
        if known is None or known[0] != asked:
            known = asked, await self.type_of(table.definition.sharding_key, table.name)
            self._key_types[table.name] = known
        return known[1]

    async def type_of(self, key: str, table: TableName) -> str:
        text = await self._reader.run(f"DESCRIBE (SELECT {key} FROM {table.quoted})", format="TSVRaw")
        lines = text.splitlines()
        if len(lines) != 1:
            raise SqlError(
                Code.INCORRECT_NUMBER_OF_COLUMNS, "Sharding expression must return exactly one column"
            )
        return lines[0].split("\t")[1]

    async def owner_expression(self, table: DistributedTable, weights: Sequence[int]) -> str:
        """SQL for the index of the shard that a row belongs to."""
        owners = slots(weights)
        slot = slot_expression(table.definition.sharding_key, await self.key_type(table), len(owners))
        if list(owners) == list(range(len(owners))):
            return slot
        owners_text = ", ".join(map(str, owners))
        return f"toUInt32([{owners_text}][{slot} + 1])"

    @asynccontextmanager
    async def open(self, table: DistributedTable, owner: str) -> AsyncIterator[Stage]:
        """`owner` is SQL for the index of a row's shard."""
        name = TableName(SCRATCH_DATABASE, f"distributed_{self._env.new_uuid().hex}")
        settings = ", ".join(f"{n} = {v}" for n, v in HIDDEN_SETTINGS.items())
        create = with_column(
            table.create_query,
            name,
            f"{quote_identifier(SHARD_COLUMN)} UInt32 MATERIALIZED {owner}",
            f"MergeTree PARTITION BY {quote_identifier(SHARD_COLUMN)} ORDER BY tuple() SETTINGS {settings}",
        )
        try:
            await self._reader.run(create)
        except SqlError as error:
            if error.code != Code.UNKNOWN_DATABASE:
                raise
            await self._reader.run(
                f"CREATE DATABASE IF NOT EXISTS {quote_identifier(SCRATCH_DATABASE)} ENGINE = Memory"
            )
            await self._reader.run(create)
        try:
            yield Stage(name, table.sent_columns, self._reader)
        finally:
            drop = asyncio.create_task(self._drop(name))
            self._drops.add(drop)
            drop.add_done_callback(self._drops.discard)
            if len(self._drops) > _DROPS_AT_ONCE:
                await asyncio.wait(set(self._drops), return_when=asyncio.FIRST_COMPLETED)

    async def _drop(self, name: TableName) -> None:
        try:
            await self._reader.run(f"DROP TABLE IF EXISTS {name.quoted} SYNC")
        except SqlError as error:
            log.warning("distributed.stage_kept table=%s error=%s", name, error)
