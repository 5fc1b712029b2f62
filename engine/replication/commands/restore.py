"""SYSTEM RESTORE REPLICA: Keeper has lost the replica, the disk has not.

Safety argument. The replica is read-only, and there is nothing of it in Keeper.

0. What would refuse 2 refuses it now, while readers have all rows.
1. All parts go to `detached/restoring_…`. Numbers begin anew with a new table in Keeper, so no part may keep
   its name. A crash leaves some of them there; the statement again moves the rest. Staged parts go to
   `detached/ignored_…`: nobody can tell any more whether they were the replica's, so they are not attached,
   but an entry of the log that asks for one finds it there (`own_detached`). An INSERT that was to give
   one of them another name fails: in the new table that name may be another part's.
2. The replica is made in Keeper, with the table if that is gone, too (`commands.create`), or if no other
   replica is left of it. A crash after it leaves a replica that has no part yet; it starts as any new one.
3. It is activated. A replica that joined first gives what is in `detached/restoring_…` its bare name
   (`give_up_restoring`): from here on nobody will attach it, even if this replica makes the table another
   time. Then it clones from the others, and takes what it has under the same checksum from `detached/`
   instead of fetching it.
4. The replica that made the table attaches its parts as inserts do, in the order of their blocks, each with a
   block id of its own made of its directory's name. The directory goes after that. Of an attempt that crashed
   before that, the next term removes it (`startup_check.settle_attaching`), so nothing is attached twice.

Whether 4 is due is said by a node (`flags/restoring`) that the transaction makes which makes the table, and
that goes when all is attached. So if 2 did not come to pass, and Keeper has the replica as it was before (it
was another Keeper, or its data is back), nothing is attached: what Keeper knows takes its old place instead
of being fetched (`give_up_restoring`).

It never deletes a part that is not attached: what is left over stays in `detached/`.

Source: ClickHouse's StorageReplicatedMergeTree::restoreMetadataInZooKeeper.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from engine.errors import Code, MalformedEntry, NoNode, OnclusterError, SqlError
from engine.keeper.base import Keeper, Node
from engine.keeper.recipes import try_remove
from engine.replication.block_id import BlockId
from engine.replication.columns import Columns
from engine.replication.commands.create import (
    Created,
    check_structure,
    complete_table,
    create_replica,
    refuse_stranger,
)
from engine.replication.commands.insert_group import insert_group
from engine.replication.commands.insert_transaction import Pending, attach_part
from engine.replication.creation import FirstParts, NewReplica
from engine.replication.part_checksums import PartDiffers
from engine.replication.part_name import PartName
from engine.replication.part_store import DetachedPart, Fate, Part
from engine.replication.replica import peers
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.startup_check import settle_attaching
from engine.replication.table_definition import TableDefinition
from engine.replication.table_metadata import TableMetadata, Weight, check_metadata

log = logging.getLogger(__name__)

RESTORING = "restoring"
IGNORED = "ignored"
_RETRIES = 20


class Structure(enum.Enum):
    """What is done where the table in Keeper has another structure than this one."""

    REFUSE = "refuse it"
    ADOPT = "take over what an ALTER may have changed while this replica was not in Keeper"


async def restore_replica(
    ctx: ReplicaContext,
    keeper: Keeper,
    new: NewReplica,
    definition: TableDefinition,
    *,
    structure: Structure = Structure.REFUSE,
) -> Created:
    """Steps 0 to 2, while no background work of the replica runs. Activate it and call `attach_restored`
    then. Repeatable.

    Raises SqlError: 36 unless the replica is read-only and absent from Keeper, 253 if something else is at
    its path, 122 and 342 if it is a table of another structure (ADOPT: only one that no ALTER can have made);
    UnknownOutcome when Keeper does not answer.
    """
    is_made = await keeper.exists(ctx.me.root) is not None
    if is_made and not await _is_unfinished(ctx, keeper):
        raise SqlError(
            Code.BAD_ARGUMENTS,
            f"Replica path is present at {ctx.me.root} - nothing to restore.",
            hint="If you are sure that metadata is lost and that the path contains garbage, use SYSTEM DROP "
            "REPLICA first.",
        )
    if not ctx.is_readonly:
        raise SqlError(Code.BAD_ARGUMENTS, f"Replica of {ctx.name} must be readonly.")
    if is_made:  # then step 1 was finished, and what is active now was attached by step 4
        await complete_table(keeper, ctx.paths, new)
        return Created.REUSED
    await refuse_stranger(keeper, ctx.paths)
    await _refuse_other_structure(ctx, keeper, definition, structure)
    await ctx.in_flight.all_settled()  # a part shown from here on would have a name of the old table
    await settle_attaching(ctx, keeper)
    await ctx.store.remove(sorted(ctx.store.active), fate=Fate.DETACH, prefix=RESTORING)
    for name in sorted(ctx.store.staged):
        ctx.in_flight.let_go(name)  # its INSERT has no part any more
        await ctx.store.discard(name, prefix=IGNORED)
    if structure is Structure.ADOPT:
        definition = await _adopted(ctx, keeper, definition)
        new = replace(new, metadata=definition.metadata.to_bytes(), columns=definition.columns.to_bytes())
    new = replace(new, first_parts=FirstParts.PUT_ASIDE)
    created = await create_replica(keeper, ctx.paths, ctx.me, new, definition)
    log.info("replication.restored table=%s replica=%s what=%s", ctx.name, ctx.me.root, created.value)
    return created


async def _refuse_other_structure(
    ctx: ReplicaContext, keeper: Keeper, definition: TableDefinition, structure: Structure
) -> None:
    """Of the table that this replica would join. Raises SqlError 122 and 342."""
    try:
        names = (await keeper.children(ctx.paths.replicas)).names
        hosts = await keeper.exists_many([ctx.paths.replica(name).host for name in names])
        if all(host is None for host in hosts):
            return  # it is made anew
        if structure is Structure.REFUSE:
            await check_structure(keeper, ctx.paths, definition)
        else:
            await _their_structure(ctx, keeper, definition)
    except NoNode:
        return  # there is no table, or half of one goes right now


async def _their_structure(
    ctx: ReplicaContext, keeper: Keeper, definition: TableDefinition
) -> tuple[TableMetadata, Columns] | None:
    """Of the table in Keeper, if there is one. Raises SqlError 342 where no ALTER has made it of this one."""
    metadata, columns = await keeper.get_many([ctx.paths.metadata, ctx.paths.columns])
    if not isinstance(metadata, Node) or not isinstance(columns, Node):
        return None
    theirs = TableMetadata.from_bytes(metadata.data, where=ctx.paths.metadata)
    check_metadata(definition.metadata, theirs, table=ctx.paths.root, allowed=frozenset({Weight.ADOPTABLE}))
    return theirs, Columns.from_bytes(columns.data, where=ctx.paths.columns)


async def _adopted(ctx: ReplicaContext, keeper: Keeper, definition: TableDefinition) -> TableDefinition:
    """The structure that the table has in Keeper, if it has one; this table has it then, too. Its parts are
    in `detached/` already. Raises SqlError 342 for what no ALTER changes."""
    found = await _their_structure(ctx, keeper, definition)
    if found is None or found == (definition.metadata, definition.columns):
        return definition
    theirs, their_columns = found
    await ctx.store.apply_alter(their_columns, theirs, {})
    log.warning("replication.structure_adopted table=%s path=%s", ctx.name, ctx.paths.root)
    return await ctx.store.definition()


async def _is_unfinished(ctx: ReplicaContext, keeper: Keeper) -> bool:
    """Whether an attempt that made the replica crashed before all parts were attached."""
    return bool(await _put_aside(ctx)) and await is_founder(ctx, keeper)


async def is_founder(ctx: ReplicaContext, keeper: Keeper) -> bool:
    """Whether the table was made by a RESTORE of this replica that has not attached all its parts yet."""
    return await keeper.exists(ctx.me.restoring) is not None


async def give_up_restoring(ctx: ReplicaContext, keeper: Keeper) -> None:
    """What step 1 has put aside on a replica that joined a table, or that is in Keeper as it was before: bare
    names, before it gets other parts. What Keeper says is this replica's is staged, and shown by the check
    at start."""
    # On a founder `attach_restored` may hold the lock, and wait for the term that begins behind this.
    if not await _put_aside(ctx) or await is_founder(ctx, keeper):
        return
    async with ctx.attaching:
        for each in await _put_aside(ctx):
            if not await _take_back(ctx, keeper, each):
                await ctx.store.relabel_detached(each.directory, "")


async def _take_back(ctx: ReplicaContext, keeper: Keeper, detached: DetachedPart) -> bool:
    """Whether this is a part of the replica's, and is staged as one. The directory goes when it is shown."""
    name = detached.name
    if name is None:
        return False
    try:
        header = await peers.header(keeper, ctx.me, name)
        if header is None or detached not in await ctx.store.detached_with(header.digest.hash_text):
            return False
        staged = await ctx.store.stage_detached(detached.directory, name)
    except (PartDiffers, MalformedEntry, SqlError) as error:
        log.error("replication.not_taken_back table=%s part=%s error=%s", ctx.name, detached.directory, error)
        return False
    if staged.header != header:
        await ctx.store.discard(name)
        return False
    if name in ctx.store.active:  # step 1 had come to the copy and no further
        await ctx.store.remove_detached(detached.directory)
    log.info("replication.taken_back table=%s part=%s", ctx.name, name)
    return True


async def _put_aside(ctx: ReplicaContext) -> list[DetachedPart]:
    return [each for each in await ctx.store.detached() if each.prefix == RESTORING]


async def attach_restored(ctx: ReplicaContext) -> int:
    """Step 4, in a term; also once in each term, for an attempt that crashed. Returns how many were attached.

    A damaged part stays in `detached/`, as a broken one, and is logged. Raises as `insert_group`; repeatable.
    """
    async with ctx.attaching:
        if not await is_founder(ctx, ctx.session()):
            return 0
        waiting = [(each.name, each) for each in await _put_aside(ctx) if each.name is not None]
        attached = 0
        for name, each in sorted(waiting, key=lambda found: (found[0], found[1].directory)):
            part = Pending(
                name.partition_id, _identity(name, each), _stage(ctx, each), attach_part, level=each.level
            )
            try:
                await insert_group(ctx, [part], None, max_retries=_RETRIES)
            except PartDiffers as error:
                log.error(
                    "replication.not_restored table=%s part=%s error=%s", ctx.name, each.directory, error
                )
                await ctx.store.relabel_detached(each.directory, "broken")
                continue
            await ctx.store.remove_detached(each.directory)
            attached += 1
        with suppress(OnclusterError):  # all is done; the next term removes it
            await try_remove(ctx.session(), ctx.me.restoring)
        return attached


def _identity(name: PartName, detached: DetachedPart) -> BlockId:
    """By this a part that was attached before is known again."""
    return BlockId.of_bytes(name.partition_id, f"restored {detached.directory}".encode())


def _stage(ctx: ReplicaContext, detached: DetachedPart) -> Callable[[PartName], Awaitable[Part]]:
    """Stages one directory of `detached/` under the name that it is given."""

    async def stage(name: PartName) -> Part:
        return await ctx.store.stage_detached(detached.directory, name)

    return stage
