"""CREATE OR REPLACE TABLE, REPLACE TABLE and CREATE TABLE … AS SELECT of, or by, replicated tables.

Safety argument. The new table has its own UUID and, if it is replicated, its own replica in Keeper: one that
the old table has is refused before anything is changed. A table that is there under its name has its rows.

1. The new table is created, and filled, under a temporary name that its UUID gives. An error undoes it.
2. EXCHANGE TABLES gives it the old one's name and the old one the temporary name, at one moment; without an
   old table it is a RENAME. Readers see the one or the other.
3. What has the temporary name now is dropped.

A crash leaves a table under the temporary name: an unfinished new one, or an old one that is to go. The next
start drops it if it is replicated or a new one (`leftovers`); so does the statement when it comes again for
the same replica, or with the same UUID, as from the queue, which tells whether 2 was done. No other goes.

Source: ClickHouse's InterpreterCreateQuery::doCreateOrReplaceTable.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

from engine.env import Env
from engine.errors import Code, OnclusterError, SqlError, Unavailable, UnknownOutcome
from engine.names import TableName
from engine.node.replicated.definitions.leftovers import clear, clear_place, drop_leftover, undo
from engine.node.replicated.definitions.table_names import renaming
from engine.node.replicated.definitions.taking_place import Taking, check_place, temporary_name
from engine.node.replicated.running.catalog import TableState
from engine.node.replicated.running.drop_limits import check_replaced
from engine.node.replicated.running.lifecycle import Leaves, TableLifecycle
from engine.node.statements.statement import Asked
from engine.replication.paths import ReplicaPaths


async def replace_table(
    life: TableLifecycle,
    env: Env,
    asked: Asked,
    name: TableName,
    uuid: UUID,
    me: ReplicaPaths | None,
    *,
    make: Callable[[TableName], Awaitable[None]],
    taking: Taking,
) -> None:
    """All steps. `make` creates and fills the table under the name that it is given; `me` is its replica, if
    it is to have one. The caller holds the lock of `name`.

    Raises SqlError: 60 and 57 as `taking` says, 359 for an old table that is too large to go, 253 when the
    new replica is the old one's or another table's of this node, and what `make` and chDB raise; Busy when
    what an earlier attempt left cannot go yet.
    """
    temporary = temporary_name(name, uuid)
    await clear(life, env, temporary)
    async with life.names.hold([temporary]):  # against what goes on since the node's start
        old = await life.local.named(name)
        if old is not None and old.uuid == uuid:  # the queue executes its entry once more
            await _drop(life, temporary)
            return
        check_place(name, old, taking)
        if old is not None:
            await check_replaced(life.local, asked, name)
        await _drop(life, temporary)
        if me is not None:
            await clear_place(life, env, me)
            _refuse_conflict(life, me)
        try:
            await make(temporary)
            async with renaming(life, map(life.tables.find, (temporary, name)), [name]):
                if old is None:
                    await life.local.run(f"RENAME TABLE {temporary.quoted} TO {name.quoted}")
                else:
                    await life.local.run(f"EXCHANGE TABLES {temporary.quoted} AND {name.quoted}")
        except OnclusterError:
            await _undo_or_later(life, env, temporary)
            raise
        except BaseException:  # cancelled, perhaps behind the exchange
            _drop_later(life, env, temporary)
            raise
        if old is not None:
            await _drop(life, temporary)


async def _undo_or_later(life: TableLifecycle, env: Env, temporary: TableName) -> None:
    record = life.catalog.named(temporary)
    if record is None:
        await _drop(life, temporary)
        return
    try:
        await undo(life, record)
    except (Unavailable, UnknownOutcome):
        _drop_later(life, env, temporary)


def _drop_later(life: TableLifecycle, env: Env, temporary: TableName) -> None:
    life.later(drop_leftover(life, env, temporary), f"drop {temporary}")


def _refuse_conflict(life: TableLifecycle, me: ReplicaPaths) -> None:
    record = life.catalog.at(me)
    if record is not None and record.state is not TableState.DROPPING:
        raise SqlError(
            Code.REPLICA_ALREADY_EXISTS,
            f"Replica {me.root} already exists: it is table {record.name} of this node, which stays until "
            "the new one is complete.",
            hint="Put {uuid} into the path and use ON CLUSTER, or use another path.",
        )


async def _drop(life: TableLifecycle, name: TableName) -> None:
    local = await life.local.named(name)
    if local is None:
        return
    record = life.catalog.get(local.uuid)
    if record is None:
        await life.local.drop(local.name, local.uuid)
        return
    await life.drop(record, lambda: life.local.drop(local.name, local.uuid), leaves=Leaves.NOTHING)
