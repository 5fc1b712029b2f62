"""Commands about partitions of replicated tables: from what the text says to what replication does.

A command may name several partitions (`ALL`); they are done one after another, and those before one that
fails stay done. The `fence` of a statement goes into the transaction of each.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import assert_never

from engine.errors import Code, KeeperAnswer, MultiFailed, NoNode, NotEmpty, SqlError
from engine.keeper.base import Remove
from engine.names import TableName
from engine.node.replicated.partition_sql import Action, PartitionCommand, Subject
from engine.node.replicated.runtime import ReplicatedTables
from engine.node.replicated.waiting import flag, settings_of, sync_of, wait_for_inactive_s
from engine.node.statement import Asked
from engine.part_storage import ChdbPartStore
from engine.replication.commands import partitions
from engine.replication.commands.partitions import Placement
from engine.replication.log_actions import RangeFate
from engine.replication.part_name import PartName
from engine.replication.replica.context import ReplicaContext
from engine.sql import expand_macros

_MAX_PATH_CHARS = 1024

OpenPlain = Callable[[TableName], Awaitable[ChdbPartStore]]
"""Opens a table that is not replicated, as a source of parts."""


class PartitionCommands:
    """Carries them out, one at a time."""

    def __init__(self, tables: ReplicatedTables, open_plain: OpenPlain) -> None:
        self._tables = tables
        self._open_plain = open_plain
        self._plain_lock = asyncio.Lock()

    async def run(self, ctx: ReplicaContext, asked: Asked, command: PartitionCommand) -> None:
        """Raises SqlError."""
        match command.action:
            case Action.DROP | Action.DETACH:
                await self._drop(ctx, asked, command)
            case Action.ATTACH:
                await self._attach(ctx, asked, command)
            case Action.ATTACH_FROM | Action.REPLACE_FROM:
                await self._replace(ctx, asked, command)
            case Action.MOVE_TO_TABLE:
                await self._move(ctx, asked, command)
            case Action.FETCH:
                await self._fetch(ctx, asked, command)
            case Action.FREEZE:
                ids = None if command.subject is Subject.TABLE else await _ids(ctx, command)
                name = command.backup or str(int(ctx.env.now_s() * 1000))
                await partitions.freeze(ctx, ids, name)
            case Action.UNFREEZE:
                what = f"PARTITION {command.what} " if command.what else ""
                name = command.backup.replace("\\", "\\\\").replace("'", "\\'")
                await asked.session.query(
                    f"ALTER TABLE {ctx.name.quoted} UNFREEZE {what}WITH NAME '{name}'",
                    format="Null",
                    scope=asked.scope,
                    multi=False,
                )
            case Action.DROP_DETACHED:
                await self._drop_detached(ctx, asked, command)
            case Action.FORGET:
                for partition_id in await _ids(ctx, command):
                    await _forget(ctx, asked, partition_id)
            case _:
                assert_never(command.action)

    async def _drop(self, ctx: ReplicaContext, asked: Asked, command: PartitionCommand) -> None:
        sync, wait_s = sync_of(asked), wait_for_inactive_s(asked)
        fate = RangeFate.DROP if command.action is Action.DROP else RangeFate.DETACH
        if command.subject is Subject.PART:
            await partitions.drop_part(
                ctx,
                PartName.parse(command.what),
                fate=fate,
                sync=sync,
                inactive_timeout_s=wait_s,
                fence=asked.fence,
            )
            return
        if _is_all(command) and fate is RangeFate.DROP:
            await partitions.truncate(ctx, sync=sync, inactive_timeout_s=wait_s, fence=asked.fence)
            return
        for partition_id in await _ids(ctx, command):
            await partitions.drop_partition(
                ctx, partition_id, fate=fate, sync=sync, inactive_timeout_s=wait_s, fence=asked.fence
            )

    async def _attach(self, ctx: ReplicaContext, asked: Asked, command: PartitionCommand) -> None:
        sync, wait_s = sync_of(asked), wait_for_inactive_s(asked)
        if command.subject is Subject.PART:
            await partitions.attach_part(
                ctx, command.what, sync=sync, inactive_timeout_s=wait_s, fence=asked.fence
            )
            return
        for partition_id in await _detached_ids(ctx, command):
            await partitions.attach_partition(
                ctx, partition_id, sync=sync, inactive_timeout_s=wait_s, fence=asked.fence
            )

    async def _replace(self, ctx: ReplicaContext, asked: Asked, command: PartitionCommand) -> None:
        source = self._other(asked, command)
        async with self._opened(source):
            placement = Placement.REPLACE if command.action is Action.REPLACE_FROM else Placement.ADD
            for partition_id in await self._ids_of_other(ctx, source, command):
                await partitions.replace_partition(
                    ctx,
                    partition_id,
                    source.database,
                    source.table,
                    placement=placement,
                    sync=sync_of(asked),
                    inactive_timeout_s=wait_for_inactive_s(asked),
                    fence=asked.fence,
                )

    @asynccontextmanager
    async def _opened(self, source: TableName) -> AsyncIterator[None]:
        """While this lasts, `other_table` finds the table, be it replicated or not. Raises SqlError 60."""
        if self._tables.find(source) is not None:
            yield
            return
        async with self._plain_lock:
            store = await self._open_plain(source)
            self._tables.plain_sources[source] = store
            try:
                yield
            finally:
                del self._tables.plain_sources[source]
                await store.close()

    async def _move(self, ctx: ReplicaContext, asked: Asked, command: PartitionCommand) -> None:
        name = self._other(asked, command)
        destination = self._tables.find(name)
        if destination is None:
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                f"Table {ctx.name} supports movePartitionToTable only for ReplicatedMergeTree family of "
                f"table engines, and {name} is not a replicated table of this node",
            )
        for partition_id in await _ids(ctx, command):
            await partitions.move_partition(
                ctx,
                partition_id,
                destination.ctx,
                sync=sync_of(asked),
                inactive_timeout_s=wait_for_inactive_s(asked),
                fence=asked.fence,
            )

    async def _fetch(self, ctx: ReplicaContext, asked: Asked, command: PartitionCommand) -> None:
        path = command.path.rstrip("/")
        if "{" in path:
            path = expand_macros(
                path, {**await _macros(asked), "database": ctx.name.database, "table": ctx.name.table}
            )
        if not path.startswith("/"):
            raise SqlError(
                Code.NOT_IMPLEMENTED if ":" in path else Code.BAD_ARGUMENTS,
                "FETCH PARTITION needs the absolute path of a table in this node's Keeper, not "
                f"'{path[:200]}'",
            )
        if len(path) > _MAX_PATH_CHARS:
            raise SqlError(Code.BAD_ARGUMENTS, "The path of FETCH PARTITION is too long")
        if command.subject is Subject.PART:
            await partitions.fetch_part(ctx, PartName.parse(command.what), path)
            return
        for partition_id in await _ids(ctx, command):
            await partitions.fetch_partition(ctx, partition_id, path)

    async def _drop_detached(self, ctx: ReplicaContext, asked: Asked, command: PartitionCommand) -> None:
        if not flag(settings_of(asked), "allow_drop_detached", False):
            raise SqlError(
                Code.SUPPORT_IS_DISABLED,
                "Cannot execute query: DROP DETACHED PART is disabled (see allow_drop_detached setting)",
            )
        if command.subject is Subject.PART:
            await partitions.drop_detached(ctx, directory=command.what)
            return
        for partition_id in await _detached_ids(ctx, command):
            await partitions.drop_detached(ctx, partition_id=partition_id)

    def _other(self, asked: Asked, command: PartitionCommand) -> TableName:
        other = command.other or TableName("", "")
        return TableName(other.database or asked.current_database, other.table)

    async def _ids_of_other(
        self, ctx: ReplicaContext, source: TableName, command: PartitionCommand
    ) -> Sequence[str]:
        """ALL means the partitions of the table that they come from."""
        store = ctx.other_table(source.database, source.table) if _is_all(command) else None
        return await (ctx.store if store is None else store).partition_ids(command.what)


def _is_all(command: PartitionCommand) -> bool:
    return command.subject is Subject.PARTITION and command.what.upper() == "ALL"


async def _ids(ctx: ReplicaContext, command: PartitionCommand) -> Sequence[str]:
    return await ctx.store.partition_ids(command.what)


async def _detached_ids(ctx: ReplicaContext, command: PartitionCommand) -> Sequence[str]:
    """ALL means those that there are in `detached/`."""
    if not _is_all(command):
        return await _ids(ctx, command)
    names = [part.name for part in await ctx.store.detached() if part.name is not None and not part.prefix]
    return sorted({name.partition_id for name in names})


async def _macros(asked: Asked) -> Mapping[str, str]:
    result = await asked.session.clone().query(
        "SELECT macro, substitution FROM system.macros", format="JSONCompactEachRow"
    )
    return {str(name): str(value) for name, value in map(json.loads, result.data.splitlines())}


async def _forget(ctx: ReplicaContext, asked: Asked, partition_id: str) -> None:
    """Remove what Keeper knows of an empty partition: its block numbers begin anew.

    As in ClickHouse this is for partitions that are never used again.
    """
    keeper = ctx.session()
    await keeper.sync(ctx.paths.block_numbers)
    if ctx.queue.virtual_parts.in_partition(partition_id):
        raise SqlError(Code.BAD_ARGUMENTS, f"Partition {partition_id} is not empty")
    try:
        await keeper.multi([Remove(ctx.paths.partition_block_numbers(partition_id)), *asked.fence])
    except MultiFailed as failed:
        if failed.index > 0:
            raise
        raise _cannot_forget(partition_id, failed.error) from None


def _cannot_forget(partition_id: str, error: KeeperAnswer) -> SqlError:
    if isinstance(error, NoNode):
        return SqlError(Code.BAD_ARGUMENTS, f"Partition {partition_id} is unknown")
    if isinstance(error, NotEmpty):
        return SqlError(Code.BAD_ARGUMENTS, f"Rows are being inserted into partition {partition_id}")
    return SqlError(Code.KEEPER_EXCEPTION, str(error))
