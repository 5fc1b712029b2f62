"""Executes ALTER_METADATA: gives the replica's table the columns and metadata of the entry.

Safety argument. The queue lets ALTERs through one after another, in the order of their versions.

1. The table on the disk gets its new definition (`apply_alter`, which may be repeated). Old parts are read
   through it from then on; rewriting them is the business of the mutation that belongs to the ALTER.
2. One multi sets the replica's `columns`, `metadata` and `metadata_version`. A crash between 1 and 2 leaves
   the entry in the queue, and the next execution repeats 1 and does 2. A reply that was lost is as good as
   none: the values are the same.
3. The entry leaves the queue after that. An entry whose version is not above the applied one has been done,
   or came with a clone that is newer: passing it over never takes a table back.

Renamed columns cannot be told from the new columns alone; they stand in the mutation of the same version,
which is made in one transaction with the entry and was therefore read before it.

Source: ClickHouse's StorageReplicatedMergeTree::executeMetadataAlter.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from engine.errors import MultiFailed, NoNode
from engine.keeper.base import SetData
from engine.keeper.recipes import create_if_not_exists
from engine.replication.columns import Columns
from engine.replication.log_actions import AlterMetadata
from engine.replication.mutation_entry import MutationEntry
from engine.replication.renamed_columns import renamed_columns
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.queue import loader as queue_loader
from engine.replication.replica.queue.queue import QueuedEntry
from engine.replication.table_metadata import TableMetadata
from engine.replication.text import encode_bytes

log = logging.getLogger(__name__)


async def execute_alter(ctx: ReplicaContext, queued: QueuedEntry) -> None:
    """Raises MalformedEntry for texts that this version does not understand, SqlError of the disk."""
    action = queued.entry.action
    assert isinstance(action, AlterMetadata)
    if action.alter_version <= ctx.metadata_version:
        log.info("replica.alter_passed_over table=%s version=%d", ctx.name, action.alter_version)
        return
    keeper = ctx.session()
    columns_bytes, metadata_bytes = encode_bytes(action.columns), encode_bytes(action.metadata)
    where = f"ALTER_METADATA {queued.name} of {ctx.me.root}"
    columns = Columns.from_bytes(columns_bytes, where=where)
    metadata = TableMetadata.from_bytes(metadata_bytes, where=where)
    renames: Mapping[str, str] = {}
    mutation: Mapping[str, int] = {}
    if action.have_mutation:
        await queue_loader.load_mutations(ctx, keeper)
        entries = _mutations_of(ctx, action.alter_version)
        renames = renamed_columns(", ".join(entry.commands for entry in entries))
        mutation = {partition: number for entry in entries for partition, number in entry.block_numbers}
    await ctx.store.apply_alter(columns, metadata, renames, mutation)
    version = str(action.alter_version).encode()
    while True:
        try:
            await keeper.multi(
                [
                    SetData(ctx.me.columns, columns_bytes),
                    SetData(ctx.me.metadata, metadata_bytes),
                    SetData(ctx.me.metadata_version, version),
                ]
            )
            break
        except MultiFailed as failed:
            # A replica made by a server before 20.1 has no such node.
            if not isinstance(failed.error, NoNode) or failed.error.path != ctx.me.metadata_version:
                raise
            await create_if_not_exists(keeper, ctx.me.metadata_version)
    ctx.metadata_version = action.alter_version
    ctx.mutation_news.announce()  # its data may be rewritten now
    ctx.merge_wanted.set()
    log.info("replica.altered table=%s version=%d", ctx.name, action.alter_version)


def _mutations_of(ctx: ReplicaContext, alter_version: int) -> Sequence[MutationEntry]:
    """The mutation that belongs to the ALTER; none if it was killed."""
    return [
        state.entry for state in ctx.queue.mutations.values() if state.entry.alter_version == alter_version
    ]
