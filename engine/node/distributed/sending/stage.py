"""The rows of one INSERT into a Distributed table, split by shard before they leave the node.

chDB writes the rows into a table of the node's own, which has the Distributed table's columns and one more:
the slot's owner, computed from the sharding key once for each row. Nothing is delivered before the statement
has ended well. Rows pass through Python as bytes only. The table is dropped at the end, behind the
statement's answer; a crash leaves it to the next start, which removes the scratch database.

What chDB makes of one block of rows is one block to deliver for each shard. A stage on disk (`DiskStage`) has
room for any number of them; one in memory (`memory_stage`) takes a single one, and costs a fifth of the
processor time. Both cut the same rows into the same blocks, so that an INSERT that is repeated with its token
has the same blocks whichever it is given.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from engine.distributed.sharding import owner_expression, slot_count, slot_expression
from engine.env import Env
from engine.errors import Code, SqlError, ran_out
from engine.names import TableName, quote_identifier, quote_string
from engine.node.distributed.registry.create_sql import with_column
from engine.node.distributed.registry.tables import DistributedTable
from engine.part_storage import HIDDEN_SETTINGS, LIKE_ONE_THAT_IS_THERE, SCRATCH_DATABASE
from engine.storage import ChdbPool, ChdbSession
from engine.storage.scope import Scope

log = logging.getLogger(__name__)

_DROPS_AT_ONCE = 32
"""So many tables may wait to be dropped; then statements wait for them."""
SHARD_COLUMN = "_oncluster_shard"
_PAUSES_S = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Before each further attempt to drop a table."""
_READ = {"max_threads": "1", "preferred_block_size_bytes": "0", "max_block_size": "10000000"}
"""A part is read as one block of Native, so that the receiver has it whole."""
_ON_DISK = f"MergeTree PARTITION BY {quote_identifier(SHARD_COLUMN)} ORDER BY tuple() SETTINGS " + ", ".join(
    f"{name} = {value}" for name, value in HIDDEN_SETTINGS.items()
)


@dataclass(frozen=True, slots=True)
class StagedPart:
    """Rows of one block for one shard, whose index counts from 0. `name` is the stage's own."""

    name: str
    shard: int
    rows: int


class Stage(Protocol):
    """Where one INSERT's rows are, after the INSERT: all of them in `table`, on this node."""

    table: TableName

    async def parts(self) -> Sequence[StagedPart]:
        """In the order of their shards; within one, in the order of the rows."""
        ...

    def select(self, part: StagedPart) -> str:
        """SQL for the rows of a part, good on this node until the INSERT ends; empty where it is cheaper to
        take `rows`."""
        ...

    def rows(self, part: StagedPart) -> AsyncIterator[bytes]:
        """One part as Native, anew at each call. Raises SqlError."""
        ...


class DiskStage:
    """Implements `Stage`: partitioned by shard, so that each part is a block to deliver. `table` is what chDB
    has to write to."""

    def __init__(self, table: TableName, columns: Sequence[str], reader: Reader) -> None:
        self.table = table
        self._columns = ", ".join(map(quote_identifier, columns))
        self._reader = reader

    async def parts(self) -> Sequence[StagedPart]:
        text = await self._reader.run(
            "SELECT name, toUInt32(partition_id), rows FROM system.parts "
            f"WHERE active AND database = {quote_string(self.table.database)} "
            f"AND table = {quote_string(self.table.table)} ORDER BY 2, min_block_number",
            format="TSVRaw",
        )
        found = []
        for line in text.splitlines():
            name, shard, rows = line.split("\t")
            found.append(StagedPart(name, int(shard), int(rows)))
        return found

    def select(self, part: StagedPart) -> str:
        return f"SELECT {self._columns} FROM {self.table.quoted} WHERE _part = {quote_string(part.name)}"

    async def rows(self, part: StagedPart) -> AsyncIterator[bytes]:
        async for chunk in self._reader.stream(self.select(part)):
            yield chunk


class Reader:
    """Reads stages on threads of its own: statements of clients may wait for its results."""

    def __init__(self, pool: ChdbPool, *, threads: int = 8) -> None:
        self._pool = pool
        self._threads = pool.reserve(threads)

    async def run(self, sql: str, *, format: str = "Null") -> str:
        return (await ChdbSession(self._threads, one_shot=True).query(sql, format=format)).text

    async def stream(self, sql: str) -> AsyncIterator[bytes]:
        async with self.session(one_shot=True).stream(sql, format="Native") as result:
            while chunk := await result.read():
                yield chunk
            await result.finish()

    def session(self, *, one_shot: bool = False) -> ChdbSession:
        """One that reads parts as single blocks. The caller closes it."""
        return ChdbSession(self._threads, settings=_READ, one_shot=one_shot)


class Stages:
    """Makes stages on disk, and knows what all stages have in common."""

    def __init__(self, pool: ChdbPool, env: Env) -> None:
        self.env = env
        self.reader = Reader(pool)
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
            known = asked, await self.type_of(table.definition.sharding_key, table.as_source)
            self._key_types[table.name] = known
        return known[1]

    async def type_of(self, key: str, source: str) -> str:
        """`source` is SQL for a table with the columns. Raises as `key_type`."""
        text = await self.reader.run(f"DESCRIBE (SELECT {key} FROM {source})", format="TSVRaw")
        lines = text.splitlines()
        if len(lines) != 1:
            raise SqlError(
                Code.INCORRECT_NUMBER_OF_COLUMNS, "Sharding expression must return exactly one column"
            )
        return lines[0].split("\t")[1]

    async def owner_expression(self, table: DistributedTable, weights: Sequence[int]) -> str:
        """SQL for the index of the shard that a row belongs to."""
        count = slot_count(weights)
        slot = slot_expression(table.definition.sharding_key, await self.key_type(table), count)
        return owner_expression(slot, weights)

    @asynccontextmanager
    async def open(self, table: DistributedTable, owner: str) -> AsyncIterator[DiskStage]:
        """`owner` is SQL for the index of a row's shard."""
        name, create = self.new_table(table, owner, _ON_DISK)
        session = self.reader.session()
        try:
            await create_in_scratch(session, create)
        finally:
            await session.close()
        try:
            yield DiskStage(name, table.sent_columns, self.reader)
        finally:
            await self.later(self._drop(name))

    def new_table(self, table: DistributedTable, owner: str, engine: str) -> tuple[TableName, str]:
        """A name, and the CREATE of a stage of that name."""
        name = TableName(SCRATCH_DATABASE, f"distributed_{self.env.new_uuid().hex}")
        column = f"{quote_identifier(SHARD_COLUMN)} UInt32 MATERIALIZED {owner}"
        return name, with_column(table.create_query, name, column, engine)

    async def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Clean up behind the statement's answer; so much may wait for that, then statements wait for it."""
        drop = asyncio.create_task(work)
        self._drops.add(drop)
        drop.add_done_callback(self._drops.discard)
        if len(self._drops) > _DROPS_AT_ONCE:
            await asyncio.wait(set(self._drops), return_when=asyncio.FIRST_COMPLETED)

    async def _drop(self, name: TableName) -> None:
        session = self.reader.session()
        try:
            await drop_table(session, name, self.env)
        finally:
            await session.close()


async def create_in_scratch(session: ChdbSession, create: str) -> None:
    """CREATE TABLE, of the columns of another, in the scratch database, which is made if need be."""
    scope = Scope(settings=LIKE_ONE_THAT_IS_THERE)
    try:
        await session.query(create, format="Null", scope=scope)
    except SqlError as error:
        if error.code != Code.UNKNOWN_DATABASE:
            raise
        scratch = quote_identifier(SCRATCH_DATABASE)
        await session.query(f"CREATE DATABASE IF NOT EXISTS {scratch} ENGINE = Memory", format="Null")
        await session.query(create, format="Null", scope=scope)


async def drop_table(session: ChdbSession, name: TableName, env: Env) -> None:
    """Tried again where memory or descriptors ran out; else the rows would stay until the next start."""
    for pause_s in (*_PAUSES_S, None):
        try:
            await session.query(f"DROP TABLE IF EXISTS {name.quoted} SYNC", format="Null")
            return
        except SqlError as error:
            if pause_s is None or not ran_out(error):
                log.warning("distributed.stage_kept table=%s error=%s", name, error)
                return
        await env.sleep(pause_s)
