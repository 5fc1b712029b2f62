"""Compares the table's columns with those that Keeper says this replica has, when a term begins.

They are the same but for an ALTER that waits in the queue, or was cut while it was executed: that one leads
the table to its own columns, from whatever it has. Any other difference means that the data directory or
Keeper was restored from a copy that is older than an ALTER. Whoever went on then would lose values: a merge
gives its result the columns that the table has here, and whoever is first decides for all replicas.

Safety argument. It runs while `is_active` is ours, the log is copied and nothing is executed yet.

1. Which of the two is older nobody can tell, so nothing is done: the replica stays read-only (122), and
   readers have what they had.
2. With the flag `force_restore_data` Keeper is right: the table gets Keeper's columns and metadata, by what
   an ALTER does (`apply_alter`, which may be repeated). The flag goes at the end of the activation only.

Compared are names and types of columns, and by how many expressions rows are sorted (an ALTER can but add
some and take them away again): what a merge depends on, and what every version of chDB writes alike. The text
of an expression may be another one after an upgrade, which is no reason to be read-only.

Source: ClickHouse's StorageReplicatedMergeTree::checkTableStructure, which it calls when it attaches a table.
"""

from __future__ import annotations

import logging

from engine.errors import Code, MalformedEntry, SqlError
from engine.keeper.base import Keeper, Node
from engine.replication.columns import Columns
from engine.replication.log_actions import AlterMetadata
from engine.replication.replica.context import ReplicaContext
from engine.replication.table_definition import TableDefinition
from engine.replication.table_metadata import TableMetadata
from engine.sql.tokens import scan

log = logging.getLogger(__name__)


async def check_structure(ctx: ReplicaContext, keeper: Keeper, *, is_forced: bool) -> None:
    """Raises SqlError 122 INCOMPATIBLE_COLUMNS unless they agree, or are made to."""
    if _is_to_be_altered(ctx):
        return
    stored = await _stored(ctx, keeper)
    if stored is None:
        return
    columns, metadata = stored
    try:
        here = await ctx.store.definition()
    except SqlError:  # of a GraphiteMergeTree, whose rules stand elsewhere
        return
    if not (difference := _difference(here, columns, metadata)):
        return
    if is_forced:
        log.warning("replica.structure_of_keeper table=%s difference=%s", ctx.name, difference)
        await ctx.store.apply_alter(columns, metadata, {})
        return
    raise SqlError(
        Code.INCOMPATIBLE_COLUMNS,
        f"Table {ctx.name} is not as Keeper knows it ({ctx.me.columns}): {difference}. No ALTER that waits "
        "explains it: Keeper, or this server's data directory, was restored from a copy older than an ALTER",
        hint=f"If the data directory is the older one, create {ctx.me.force_restore_data} in Keeper, or the "
        "file flags/force_restore_data: the table gets Keeper's columns. If it is Keeper, that would take "
        "away columns with their values: SYSTEM DROP REPLICA for all replicas and SYSTEM RESTORE REPLICA on "
        "them make the table anew in Keeper as it is here.",
    )


def _is_to_be_altered(ctx: ReplicaContext) -> bool:
    return any(
        isinstance(queued.entry.action, AlterMetadata)
        and queued.entry.action.alter_version > ctx.metadata_version
        for queued in ctx.queue.entries
    )


async def _stored(ctx: ReplicaContext, keeper: Keeper) -> tuple[Columns, TableMetadata] | None:
    """None where older servers have left it out, or newer ones have written it in another way."""
    columns, metadata = await keeper.get_many([ctx.me.columns, ctx.me.metadata])
    if not isinstance(columns, Node) or not isinstance(metadata, Node):
        return None
    try:
        return (
            Columns.from_bytes(columns.data, where=ctx.me.columns),
            TableMetadata.from_bytes(metadata.data, where=ctx.me.metadata),
        )
    except MalformedEntry as error:
        log.warning("replica.structure_unreadable table=%s error=%s", ctx.name, error)
        return None


def _difference(here: TableDefinition, columns: Columns, metadata: TableMetadata) -> str:
    ours = {column.name: column.type for column in here.columns.columns}
    theirs = {column.name: column.type for column in columns.columns}
    found = [f"column {name} is not in Keeper" for name in ours.keys() - theirs.keys()]
    found += [f"column {name} is in Keeper only" for name in theirs.keys() - ours.keys()]
    found += [
        f"column {name} is {ours[name]} here and {theirs[name]} in Keeper"
        for name in ours.keys() & theirs.keys()
        if ours[name] != theirs[name]
    ]
    sorted_here = here.metadata.sorting_key or here.metadata.primary_key
    sorted_there = metadata.sorting_key or metadata.primary_key
    if _expressions(sorted_here) != _expressions(sorted_there):
        found.append(f"its sorting key is ({sorted_here}) here and ({sorted_there}) in Keeper")
    return "; ".join(sorted(found))


def _expressions(key: str) -> int:
    """How many a key consists of."""
    depth, commas = 0, 0
    for token in scan(key):
        depth += (token.text in ("(", "[")) - (token.text in (")", "]"))
        commas += token.text == "," and depth == 0
    return commas + 1 if key else 0
