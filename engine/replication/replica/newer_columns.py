"""Parts that are newer than the table: a replica made them that has applied an ALTER which waits here.

A part may be fetched before the ALTER that comes before it in the log. What is made of it now would have the
table's columns: it would lose those that the ALTER adds, and if it were committed first, for every replica.

Source: ClickHouse's MergeFromLogEntryTask and MutateFromLogEntryTask compare metadata versions of parts;
those of older servers have none, so here their columns are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.replication.columns import Column, Columns
from engine.replication.log_actions import AlterMetadata
from engine.replication.part_name import PartName
from engine.replication.replica.context import ReplicaContext
from engine.replication.text import encode_bytes


async def why_too_early(ctx: ReplicaContext, sources: Sequence[PartName]) -> str:
    """Which ALTER has to be applied before anything is made of these parts; empty if none has."""
    waiting = [
        action
        for queued in ctx.queue.entries
        if isinstance(action := queued.entry.action, AlterMetadata)
        and action.alter_version > ctx.metadata_version
    ]
    if not waiting:
        return ""
    here = _types((await ctx.store.definition()).columns)
    for alter in sorted(waiting, key=lambda each: each.alter_version):
        newer = _types(Columns.from_bytes(encode_bytes(alter.columns), where="ALTER_METADATA")) - here
        for source in sources:
            part = ctx.store.active.get(source)
            if part is None or not newer or _is_older(ctx, source, alter.alter_version):
                continue
            if newer & _types(Columns.from_bytes(part.columns, where=str(source))):
                return f"Part {source} has columns of metadata version {alter.alter_version}, not applied yet"
    return ""


def _is_older(ctx: ReplicaContext, part: PartName, alter_version: int) -> bool:
    """Whether the part is still to be rewritten for an earlier ALTER: then it knows nothing of this one,
    whatever its columns are called, and this one waits for it."""
    return any(
        state.alter_version is not None
        and state.alter_version < alter_version
        and state.entry.applies_to(part)
        for state in ctx.queue.mutations.values()
    )


def _types(columns: Columns) -> frozenset[tuple[str, str]]:
    def key(column: Column) -> tuple[str, str]:
        return column.name, column.type

    return frozenset(map(key, columns.columns))
