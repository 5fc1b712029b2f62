"""A replicated table becomes a plain MergeTree table of this node: `ATTACH TABLE … AS NOT REPLICATED`.

Safety argument. The table is detached, and what it has is what readers saw of it: work that waits in the
replica's queue is not done any more. Nothing that belongs to the table is removed.

1. chDB attaches the table, and the store loads it, as at every start: what is dead, but still on the disk,
   is known then. A staged part that Keeper has recorded belongs to the table and is not visible yet, a broken
   one may be another replica's to repair: both are refused, and the table is detached again. Staged parts of
   which Keeper knows nothing are thrown away, as at every start. Where Keeper cannot tell, it is refused.
2. chDB detaches it. A crash until here leaves a replicated table.
3. Directories of parts that are dead are removed: chDB alone would take them for living ones.
4. The record is LEAVING. From here on every start goes on with 5 and 6, both of which can be repeated.
5. `uuid.txt`, which is the replicated name, is removed from each part, and chDB attaches the table.
6. The settings that kept chDB's own merges away are reset; what the store kept beside the table goes, and
   last the record.

The replica in Keeper stays, as with ClickHouse, and is inactive: SYSTEM DROP REPLICA removes it.

Source: ClickHouse's InterpreterCreateQuery::convertMergeTreeTableIfPossible.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from engine.env import Env
from engine.errors import Code, NoNode, OnclusterError, SqlError
from engine.names import TableName, quote_identifier
from engine.node.replicated.running.catalog import TableRecord, TableState
from engine.node.replicated.running.lifecycle import TableLifecycle
from engine.node.replicated.running.runtime import RunningTable
from engine.part_storage.hidden_settings import HIDDEN_SETTINGS
from engine.part_storage.part_files import is_local_name, remove_tree
from engine.part_storage.part_uuid import UUID_FILE

log = logging.getLogger(__name__)

_KEEPER_WAIT_S = 5.0
_IN_USE_PAUSE_S = 0.2
_MAX_TRIES = 50


class Unconverter:
    """`finish_interrupted` once, at the node's start."""

    def __init__(self, life: TableLifecycle, env: Env) -> None:
        self._life = life
        self._env = env

    async def attach(self, name: TableName) -> None:
        """Raises SqlError: 57 for a table that is not detached, 60 for none, 36 for one that is not
        replicated or has parts to be settled first, 242 where only Keeper could tell; it stays detached."""
        life = self._life
        if await life.local.named(name) is not None:
            raise SqlError(
                Code.TABLE_ALREADY_EXISTS, f"Table {name} is attached.", hint="DETACH TABLE it first."
            )
        record = life.catalog.named(name)
        detached = await life.local.detached()
        if record is None and name in detached.values():
            raise SqlError(
                Code.BAD_ARGUMENTS, f"Table {name} is not replicated.", hint="ATTACH TABLE is enough."
            )
        if record is None or record.uuid not in detached:
            raise SqlError(Code.UNKNOWN_TABLE, f"Table {name} does not exist.")
        await life.local.run(f"ATTACH TABLE {name.quoted}")
        try:
            [local] = (await life.local.by_uuid([record.uuid])).values()
            table = await life.make(record, local)
            try:
                living = await self._settled(table)
            finally:
                await table.store.close()
        finally:
            await life.local.run(f"DETACH TABLE {name.quoted}")
        for path in local.data_paths:
            await asyncio.to_thread(_remove_dead, Path(path), living)
        record = replace(record, state=TableState.LEAVING)
        life.catalog.put(record)
        await self._finish(record, local.data_paths)

    async def finish_interrupted(self) -> None:
        """At the node's start: steps 5 and 6 where a crash came between."""
        for record in self._life.catalog.all():
            if record.state is TableState.LEAVING:
                try:
                    await self._finish(record)
                except OnclusterError as error:
                    log.error("replicated.not_left table=%s error=%s", record.name, error)

    async def _settled(self, table: RunningTable) -> Collection[str]:
        """Step 1: the directories of what readers see."""
        loaded = await table.store.load()
        if loaded.broken:
            raise _unsettled(table, f"parts {', '.join(loaded.broken)} are broken")
        if staged := sorted(table.store.staged):
            recorded = await self._recorded(table)
            if belonging := [str(part) for part in staged if str(part) in recorded]:
                raise _unsettled(table, f"parts {', '.join(belonging)} are not visible yet")
            for part in staged:
                await table.store.discard(part)
        return table.store.directories().values()

    async def _recorded(self, table: RunningTable) -> Collection[str]:
        """The parts of this replica in Keeper."""
        keeper = await self._life.holder.get(timeout_s=_KEEPER_WAIT_S)
        try:
            if await self._life.is_ours(keeper, table.record):
                return (await keeper.children(table.ctx.me.parts)).names
        except NoNode:
            pass
        raise SqlError(
            Code.TABLE_IS_READ_ONLY,
            f"{len(table.store.staged)} parts of table {table.name} are written and not visible yet, and its "
            "replica is not in Keeper, which would say whether they belong to the table.",
            hint="ATTACH TABLE it, SYSTEM RESTORE REPLICA, and DETACH TABLE; then try again.",
        )

    async def _finish(self, record: TableRecord, paths: Collection[str] = ()) -> None:
        """Steps 5 and 6; `paths` are the directories of a table that is detached."""
        life = self._life
        local = (await life.local.by_uuid([record.uuid])).get(record.uuid)
        if local is None and record.uuid not in await life.local.detached():
            life.catalog.remove(record.uuid)  # it was dropped in the meantime
            return
        for path in paths if local is None else local.data_paths:
            await asyncio.to_thread(_forget_names, Path(path))
        if local is None:
            await self._attach_unused(record.name)
            [local] = (await life.local.by_uuid([record.uuid])).values()
        if own := record.user_settings:
            values = ", ".join(f"{quote_identifier(n)} = {value}" for n, value in own.items())
            await life.local.run(f"ALTER TABLE {local.name.quoted} MODIFY SETTING {values}")
        reset = ", ".join(name for name in HIDDEN_SETTINGS if name not in own)
        await life.local.run(f"ALTER TABLE {local.name.quoted} RESET SETTING {reset}")
        await life.local.forget(record.uuid)
        life.catalog.remove(record.uuid)
        life.on_change()
        log.info("replicated.left table=%s replica=%s", local.name, record.me.root)

    async def _attach_unused(self, name: TableName) -> None:
        """chDB refuses (57) while a query still reads what was attached for a moment."""
        for _ in range(_MAX_TRIES):
            try:
                await self._life.local.run(f"ATTACH TABLE {name.quoted}")
                return
            except SqlError as error:
                if error.code != Code.TABLE_ALREADY_EXISTS:
                    raise
            await self._env.sleep(_IN_USE_PAUSE_S)
        raise SqlError(Code.TABLE_ALREADY_EXISTS, f"Table {name} is still read.", hint="Restart the node.")


def _remove_dead(directory: Path, living: Collection[str]) -> None:
    for part in sorted(directory.iterdir()):
        if is_local_name(part.name) and part.name not in living:
            remove_tree(part)


def _forget_names(directory: Path) -> None:
    for part in sorted(directory.iterdir()):
        if is_local_name(part.name):
            (part / UUID_FILE).unlink(missing_ok=True)


def _unsettled(table: RunningTable, why: str) -> SqlError:
    return SqlError(
        Code.BAD_ARGUMENTS,
        f"Table {table.name} cannot become a plain one now: {why}.",
        hint="ATTACH TABLE it, wait until it is not read-only, and DETACH TABLE; then try again.",
    )
