"""What a CREATE that was cut short has left under a temporary name goes away.

It is an unfinished new table, or an old one that was exchanged out; its name, which has the new table's UUID,
says which. An old one is dropped as by DROP TABLE. The table of a materialized view is an unfinished one as
long as its record names the view and there is none of that UUID, attached or detached. A table that is not
replicated goes if it is an unfinished one; an old one stays, and Distributed tables are not looked at here.

Safety argument. An unfinished table has perhaps got a part of its rows, and other replicas may have joined it
meanwhile (ON CLUSTER makes all at once): they fetch what it has, and the same rows of their own were left out
as duplicates. So it runs on, under a name into which nobody writes, until another replica has each of its
parts (`needed_parts`), and is dropped then, its replica in Keeper with it. Without other replicas nothing of
the table remains, in Keeper neither. So the statement can be repeated: it makes the table anew, and where
others have it, blocks of the first attempt are duplicates. A statement that wants the place of an unfinished
table waits for that, and is refused with Busy after a while.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from engine.env import Env
from engine.errors import Busy, OnclusterError
from engine.lifetime import until_done
from engine.names import TableName
from engine.node.replicated.definitions.taking_place import PREFIX, is_temporary, temporary_name
from engine.node.replicated.running.catalog import TableRecord, TableState
from engine.node.replicated.running.lifecycle import TableLifecycle
from engine.replication.commands.needed_parts import part_needed_by_others
from engine.replication.paths import ReplicaPaths

log = logging.getLogger(__name__)

_RETRY_PAUSE_S = 1.0
_KEEPER_WAIT_S = 5.0
_PATIENCE_S = 30.0


def drop_leftovers(life: TableLifecycle, env: Env) -> None:
    """At the node's start, in the background: everything that is there."""
    for record in life.catalog.all():
        if _may_be_leftover(record):
            life.later(drop_leftover(life, env, record.name), f"drop {record.name}")
    life.later(_drop_unfinished_others(life), "drop unfinished tables")


async def _drop_unfinished_others(life: TableLifecycle) -> None:
    """Those that are not replicated. A Distributed table, a Merge to chDB, has a spool and a record."""
    for local in await life.local.beginning_with(PREFIX):
        is_unfinished = local.name == temporary_name(local.name, local.uuid)
        if not is_unfinished or local.engine == "Merge" or life.catalog.get(local.uuid) is not None:
            continue
        async with life.names.hold([local.name]):
            if await life.local.named(local.name) is None:
                continue  # a statement that went on meanwhile has put it in its place
            try:
                await life.local.drop(local.name, local.uuid)
            except OnclusterError as error:
                log.warning("replicated.leftover_stays table=%s error=%s", local.name, error)


def note_view(life: TableLifecycle, record: TableRecord) -> None:
    """The view is there that the table was made for."""
    record = replace(record, for_view=None)
    life.catalog.put(record)
    table = life.tables.by_uuid(record.uuid)
    if table is not None:
        table.record = record


async def clear_place(life: TableLifecycle, env: Env, me: ReplicaPaths) -> None:
    """As `clear`, for what has this replica in Keeper, if that is unfinished."""
    record = life.catalog.at(me)
    if record is not None and _may_be_leftover(record):
        await clear(life, env, record.name)


async def clear(life: TableLifecycle, env: Env, temporary: TableName) -> None:
    """Drop what has this name if it is replicated; that goes on in the background if it takes longer. The
    caller does not hold the name. Raises Busy."""
    record = life.catalog.named(temporary)
    if record is None:
        return
    dropping = life.later(drop_leftover(life, env, temporary), f"drop {temporary}")
    await asyncio.wait({dropping}, timeout=_PATIENCE_S)
    left = life.catalog.named(temporary)
    if left is not None and _may_be_leftover(left):
        raise Busy(
            f"Replica {record.me.root} is that of a CREATE that was cut short or goes on, table {temporary}.",
            holder=str(temporary),
            hint="An unfinished table goes by itself when other replicas have fetched its parts: try again. "
            "If they never will, DROP TABLE it.",
        )


async def drop_leftover(life: TableLifecycle, env: Env, temporary: TableName) -> None:
    """Until no replicated table has this name that is to go."""

    async def drop() -> None:
        async with life.names.hold([temporary]):
            record = life.catalog.named(temporary)
            if record is not None and await _is_leftover(life, record):
                await undo(life, record)

    await until_done(drop, f"drop {temporary}", env=env, pause_s=_RETRY_PAUSE_S)


async def undo(life: TableLifecycle, record: TableRecord) -> None:
    """Drop it if nobody needs it; the caller holds the name. Raises Busy, Unavailable, UnknownOutcome."""
    is_filled = record.state is not TableState.CREATING and _is_unfinished(record)
    if is_filled:
        keeper = await life.holder.get(timeout_s=_KEEPER_WAIT_S)
        if await life.is_ours(keeper, record):
            part = await part_needed_by_others(keeper, record.paths, record.me)
            if part is not None:
                raise Busy(
                    f"Part {part} of {record.name} is on no other replica of {record.zookeeper_path} yet.",
                    holder="the other replicas",
                    hint="They fetch it.",
                )
    await life.undo_create(record)


def _may_be_leftover(record: TableRecord) -> bool:
    return is_temporary(record.name) or record.for_view is not None


async def _is_leftover(life: TableLifecycle, record: TableRecord) -> bool:
    if record.for_view is not None and record.for_view in await life.local.defined():
        note_view(life, record)
        return False
    return _may_be_leftover(record)


def _is_unfinished(record: TableRecord) -> bool:
    """Else it is an old table, in whose place there is a new one now."""
    return record.for_view is not None or record.name == temporary_name(record.name, record.uuid)
