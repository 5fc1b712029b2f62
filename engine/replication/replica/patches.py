"""Patch parts, by which newer servers carry out lightweight UPDATEs. Nodes make none, and cannot show them.

A patch part is of a partition of its own, `patch-<hash of its columns>-<partition>`. It names the rows that
it changes by their parts and block numbers, and those that chDB has of a part on a node are others: with the
patch beside it a SELECT would show the rows as they were, without a word. So a node that shares a table with
servers which make patch parts does this:

1. A patch part is not fetched. Its entry stays in the queue with the reason, so that the replica is seen to
   be behind (`system.replication_queue`, health checks), until servers have merged the patches into parts.
2. What is made with patches, or of a part that they may concern, is fetched from who has them. Made here it
   would lack the UPDATEs, and if it were committed first, for every replica.

Source: ClickHouse's MergeTreePartInfo (`isPatch`) and PatchPartInfo.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import Code, SqlError
from engine.replication.part_name import PartName, is_patch_partition
from engine.replication.part_set import ActivePartSet


def refuse(part: PartName) -> None:
    """Raises SqlError 48 NOT_IMPLEMENTED if it is a patch part."""
    if part.patched_partition:
        raise SqlError(
            Code.NOT_IMPLEMENTED,
            f"Part {part} is the patch of a lightweight UPDATE on another server, which this node cannot "
            "apply: its replica is behind until the patch is merged",
            hint="OPTIMIZE TABLE … FINAL on a server that has the patch merges it into the others. Use "
            "ALTER TABLE … UPDATE for tables that nodes share with servers.",
        )


def patched(parts: ActivePartSet, partition_id: str) -> str:
    """Why a part of this partition may lack an UPDATE; empty if it lacks none. `parts` are those that the
    replica will have."""
    for each in filter(is_patch_partition, parts.partition_ids):
        for patch in parts.in_partition(each):
            if patch.patched_partition == partition_id and not patch.is_range:
                return f"patch part {patch} may concern it"
    return ""


def merged_with(sources: Sequence[PartName], patches: Sequence[str]) -> str:
    """Why a merge cannot be done here; empty if it can."""
    if patches:
        return f"{patches[0]} is applied by it"
    patch = next((source for source in sources if source.patched_partition), None)
    return f"source {patch} is a patch part" if patch is not None else ""
