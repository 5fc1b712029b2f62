"""Commands about partitions of replicated tables: from what the text says to what replication does.

A command may name several partitions (`ALL`); they are done one after another, and those before one that
fails stay done. Each is a step of the statement's `fence`; what an earlier attempt has committed is not done
again: rows that came since would go with it, or come twice.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import assert_never

from engine.errors import Code, KeeperAnswer, MultiFailed, NoNode, NotEmpty, SqlError
from engine.keeper.base import Op, Remove
from engine.names import TableName, quote_string
from engine.node.replicated.parts.local_parts import on_local_parts
from engine.node.replicated.parts.partition_sql import Action, PartitionCommand, Subject
from engine.node.replicated.running.drop_limits import check_part, check_partition, check_table
from engine.node.replicated.running.runtime import ReplicatedTables
from engine.node.replicated.running.waiting import sync_of, wait_for_inactive_s
from engine.node.statements.asked_settings import flag, number, settings_of
from engine.node.statements.statement import Asked
from engine.node.statements.temporary_tables import is_temporary
from engine.part_storage import ChdbPartStore
from engine.replication.commands import partitions
from engine.replication.commands.drop_range import StepFence
from engine.replication.commands.partitions import Placement
from engine.replication.commands.table_size import check_table_size
from engine.replication.log_actions import RangeFate
from engine.replication.part_name import PartName
from engine.replication.replica.context import ReplicaContext
from engine.sql import expand_macros

_MAX_PATH_CHARS = 1024
_ATTEMPTS = "max_fetch_partition_retries_count"

OpenPlain = Callable[[TableName, Sequence[str] | None], Awaitable[ChdbPartStore]]
"""Opens a table that is not replicated, as a source of parts."""


class PartitionCommands:
    """Carries them out, one at a time."""

    def __init__(self, tables: ReplicatedTables, open_plain: OpenPlain) -> None:
        self._tables = tables
        self._open_plain = open_plain
        self._plain_lock = asyncio.Lock()

    async def run_all(self, ctx: ReplicaContext, asked: Asked, commands: Sequence[PartitionCommand]) -> None:
        """One after another. Raises SqlError."""
        for at, command in enumerate(commands):

            def step(name: str, *, of: int, at: int = at) -> Sequence[Op] | None:
                return asked.fence.step(f"{at} {name}", of=of * len(commands))

            await self._run(ctx, asked, command, step)

    async def _run(
        self, ctx: ReplicaContext, asked: Asked, command: PartitionCommand, step: StepFence
    ) -> None:
        match command.action:
            case Action.DROP | Action.DETACH:
                await self._drop(ctx, asked, command, step)
            case Action.ATTACH:
                await check_table_size(ctx)
                await self._attach(ctx, asked, command, step)
            case Action.ATTACH_FROM | Action.REPLACE_FROM:
                if command.action is Action.ATTACH_FROM:
                    await check_table_size(ctx)
                await self._replace(ctx, asked, command, step)
            case Action.MOVE_TO_TABLE:
                await self._move(ctx, asked, command, step)
            case Action.MOVE_TO_PLACE:
                await self._move_to_place(ctx, asked, command)
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
                    await _forget(ctx, step, partition_id)
            case _:
                assert_never(command.action)

    async def _drop(
        self, ctx: ReplicaContext, asked: Asked, command: PartitionCommand, step: StepFence
    ) -> None:
        sync, wait_s = sync_of(asked), wait_for_inactive_s(asked)
        fate = RangeFate.DROP if command.action is Action.DROP else RangeFate.DETACH
        if command.subject is Subject.PART:
            name = PartName.parse(command.what)
            check_part(ctx, asked, name)
            if (fence := step(command.what, of=1)) is not None:
                await partitions.drop_part(
                    ctx,
                    name,
                    fate=fate,
                    sync=sync,
                    inactive_timeout_s=wait_s,
                    fence=fence,
                )
            return
        if _is_all(command) and fate is RangeFate.DROP:
            check_table(ctx, asked)
            await partitions.truncate(ctx, sync=sync, inactive_timeout_s=wait_s, fence_of=step)
            return
        ids = await _ids(ctx, command)
        for partition_id in ids:
            check_partition(ctx, asked, partition_id)
        for partition_id, fence in _fenced(step, ids):
            await partitions.drop_partition(
                ctx, partition_id, fate=fate, sync=sync, inactive_timeout_s=wait_s, fence=fence
            )

    async def _attach(
        self, ctx: ReplicaContext, asked: Asked, command: PartitionCommand, step: StepFence
    ) -> None:
        sync, wait_s = sync_of(asked), wait_for_inactive_s(asked)
        if command.subject is Subject.PART:
            if (fence := step(command.what, of=1)) is not None:
                await partitions.attach_part(
                    ctx, command.what, sync=sync, inactive_timeout_s=wait_s, fence=fence
                )
            return
        for partition_id, fence in _fenced(step, await _detached_ids(ctx, command)):
            await partitions.attach_partition(
                ctx, partition_id, sync=sync, inactive_timeout_s=wait_s, fence=fence
            )

    async def _replace(
        self, ctx: ReplicaContext, asked: Asked, command: PartitionCommand, step: StepFence
    ) -> None:
        source = await self._other(asked, command)
        # ALL means the partitions of the table that they come from.
        named = None if _is_all(command) else await _ids(ctx, command)
        async with self._opened(source, named):
            placement = Placement.REPLACE if command.action is Action.REPLACE_FROM else Placement.ADD
            ids = await self._all_of_other(ctx, source, command) if named is None else named
            if placement is Placement.REPLACE:
                for partition_id in ids:
                    check_partition(ctx, asked, partition_id)
                    _check_not_empty(ctx, asked, source, partition_id)
            for partition_id, fence in _fenced(step, ids):
                await partitions.replace_partition(
                    ctx,
                    partition_id,
                    source.database,
                    source.table,
                    placement=placement,
                    sync=sync_of(asked),
                    inactive_timeout_s=wait_for_inactive_s(asked),
                    fence=fence,
                )

    @asynccontextmanager
    async def _opened(self, source: TableName, partitions: Sequence[str] | None) -> AsyncIterator[None]:
        """While this lasts, `other_table` finds the table, be it replicated or not, with these partitions (by
        id) or all. Raises SqlError 60."""
        if self._tables.find(source) is not None:
            yield
            return
        async with self._plain_lock:
            store = await self._open_plain(source, partitions)
            self._tables.plain_sources[source] = store
            try:
                yield
            finally:
                del self._tables.plain_sources[source]
                await store.close()

    async def _move(
        self, ctx: ReplicaContext, asked: Asked, command: PartitionCommand, step: StepFence
    ) -> None:
        name = await self._other(asked, command)
        destination = self._tables.find(name)
        if destination is None:
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                f"Table {ctx.name} supports movePartitionToTable only for ReplicatedMergeTree family of "
                f"table engines, and {name} is not a replicated table of this node",
            )
        await check_table_size(destination.ctx)
        ids = await _ids(ctx, command)
        for partition_id in ids:
            check_partition(ctx, asked, partition_id)
        for partition_id, fence in _fenced(step, ids):
            await partitions.move_partition(
                ctx,
                partition_id,
                destination.ctx,
                sync=sync_of(asked),
                inactive_timeout_s=wait_for_inactive_s(asked),
                most_parts=int(number(settings_of(asked), "max_parts_to_move", 1000)),
                fence=fence,
            )

    async def _move_to_place(self, ctx: ReplicaContext, asked: Asked, command: PartitionCommand) -> None:
        """On this node only; chDB knows its disks and volumes."""
        table = self._tables.find(ctx.name)
        if table is None:
            raise SqlError(Code.UNKNOWN_TABLE, f"Table {ctx.name} does not exist: it is not attached.")

        async def run(local: Mapping[str, str]) -> object:
            what = quote_string(local[command.what]) if command.subject is Subject.PART else command.what
            return await asked.session.query(
                f"ALTER TABLE {ctx.name.quoted} MOVE {command.subject.value} {what} TO {command.place}",
                format="Null",
                params=asked.params,
                scope=asked.scope,
                multi=False,
            )

        await on_local_parts(table, [command.what] if command.subject is Subject.PART else [], run)

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
        given = settings_of(asked)
        attempts = int(number(given, _ATTEMPTS, 0)) if _ATTEMPTS in given else None
        if command.subject is Subject.PART:
            await partitions.fetch_part(ctx, PartName.parse(command.what), path, attempts=attempts)
            return
        for partition_id in await _ids(ctx, command):
            await partitions.fetch_partition(ctx, partition_id, path, attempts=attempts)

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

    async def _other(self, asked: Asked, command: PartitionCommand) -> TableName:
        """Raises SqlError 48 for a temporary table, which another of its name must not stand for."""
        other = command.other or TableName("", "")
        if await is_temporary(asked, other):
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                f"{other} is a temporary table: its partitions stay in it.",
                hint="Name the database of the table if you mean another one, or use INSERT … SELECT.",
            )
        return other.within(asked.current_database)

    async def _all_of_other(
        self, ctx: ReplicaContext, source: TableName, command: PartitionCommand
    ) -> Sequence[str]:
        store = ctx.other_table(source.database, source.table)
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
        "SELECT macro, substitution FROM system.macros", format="JSONCompactEachRow", is_harmless=True
    )
    return {str(name): str(value) for name, value in map(json.loads, result.data.splitlines())}


def _fenced(step: StepFence, ids: Sequence[str]) -> Iterator[tuple[str, Sequence[Op]]]:
    """The partitions that are still to be done, each with what its transaction takes along."""
    for partition_id in ids:
        if (fence := step(partition_id, of=len(ids))) is not None:
            yield partition_id, fence


async def _forget(ctx: ReplicaContext, step: StepFence, partition_id: str) -> None:
    """Remove what Keeper knows of an empty partition: its block numbers begin anew.

    As in ClickHouse this is for partitions that are never used again.
    """
    keeper = ctx.session()
    if (fence := step(partition_id, of=2)) is None:
        return
    await keeper.sync(ctx.paths.block_numbers)
    if ctx.queue.virtual_parts.in_partition(partition_id):
        raise SqlError(Code.CANNOT_FORGET_PARTITION, f"Partition {partition_id} is not empty")
    try:
        await keeper.multi([Remove(ctx.paths.partition_block_numbers(partition_id)), *fence])
    except MultiFailed as failed:
        if failed.index > 0:
            raise
        raise _cannot_forget(partition_id, failed.error) from None


def _cannot_forget(partition_id: str, error: KeeperAnswer) -> SqlError:
    if isinstance(error, NoNode):
        return SqlError(Code.CANNOT_FORGET_PARTITION, f"Partition {partition_id} is unknown")
    if isinstance(error, NotEmpty):
        return SqlError(
            Code.CANNOT_FORGET_PARTITION, f"Rows are being inserted into partition {partition_id}"
        )
    return SqlError(Code.KEEPER_EXCEPTION, str(error))


def _check_not_empty(ctx: ReplicaContext, asked: Asked, source: TableName, partition_id: str) -> None:
    """Raises SqlError 36 where nothing would come in the place of what goes."""
    store = ctx.other_table(source.database, source.table)
    if store is None or any(part.partition_id == partition_id for part in store.active):
        return
    if not flag(settings_of(asked), "allow_replace_partition_from_empty_source", False):
        raise SqlError(
            Code.BAD_ARGUMENTS,
            f"Source table {source} has no parts in partition {partition_id}: refusing `REPLACE PARTITION` "
            "because it would silently drop the destination partition's data",
            hint="Set allow_replace_partition_from_empty_source = 1, or use ALTER TABLE … DROP PARTITION.",
        )
