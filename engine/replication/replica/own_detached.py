"""Parts that nobody else has any more, but this replica's `detached/`.

Source: ClickHouse's StorageReplicatedMergeTree::attachPartHelperFoundValidPart, which ATTACH_PART asks.
"""

from __future__ import annotations

import logging

from engine.errors import SqlError
from engine.replication.part_checksums import PartDiffers
from engine.replication.part_name import PartName
from engine.replication.replica.context import ReplicaContext

log = logging.getLogger(__name__)

_MAX_TRIED = 16
_OWN_PREFIXES = ("", "restoring", "ignored")
"""What a user detached, what SYSTEM RESTORE REPLICA did, and what Keeper did not know then."""


async def stage_own_detached(ctx: ReplicaContext, part: PartName, checksum: str) -> bool:
    """Stage `part` from a directory in `detached/` that is whole and has this checksum (hexadecimal).

    Whether there is one. It stays there until the part is shown (`commit_part.publish`).
    """
    checksum = checksum.lower()
    candidates = [
        each
        for each in await ctx.store.detached_with(checksum)
        if each.prefix in _OWN_PREFIXES
        and each.name is not None
        and each.name.partition_id == part.partition_id
    ]
    candidates.sort(key=lambda each: (each.name != part, each.directory))
    for candidate in candidates[:_MAX_TRIED]:
        try:
            staged = await ctx.store.stage_detached(candidate.directory, part)
        except (PartDiffers, SqlError) as error:
            log.info(
                "replica.detached_unfit table=%s directory=%s error=%s", ctx.name, candidate.directory, error
            )
            continue
        if staged.digest.hash_text == checksum:
            return True
        await ctx.store.discard(part)  # somebody has put another one there meanwhile
    return False
