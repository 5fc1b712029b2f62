"""Whether a replica of which nobody knows may go: parts that it has alone would be lost with it.

Safety argument. Whatever a replica has recorded, others rely on: its log entries say that they get the part,
and an INSERT of the same rows elsewhere was left out as a duplicate of it. What is in another replica's
`parts/` is on that one's disk. So a replica into which nothing is inserted any more may go once each of its
parts is there, or in a part there that contains it. Merges do not change that: they contain what they merge.
"""

from __future__ import annotations

from engine.errors import NoNode
from engine.keeper.base import Keeper
from engine.replication.part_name import PartName
from engine.replication.paths import ReplicaPaths, TablePaths


async def part_needed_by_others(keeper: Keeper, paths: TablePaths, me: ReplicaPaths) -> PartName | None:
    """One that only `me` has; None when every part is somewhere else, too, or nobody else has the table."""
    await keeper.sync(paths.root)
    own = await _parts_of(keeper, me)
    try:
        names = (await keeper.children(paths.replicas)).names
    except NoNode:
        return None
    others = [paths.replica(name) for name in names if name != me.name]
    if not others:
        return None
    elsewhere: dict[str, set[PartName]] = {}
    for other in others:
        for part in await _parts_of(keeper, other):
            elsewhere.setdefault(part.partition_id, set()).add(part)
    for part in own:
        there = elsewhere.get(part.partition_id, set())
        if part not in there and not any(other.contains(part) for other in there):
            return part
    return None


async def _parts_of(keeper: Keeper, replica: ReplicaPaths) -> list[PartName]:
    try:
        names = (await keeper.children(replica.parts)).names
    except NoNode:
        return []
    return [part for name in names if (part := PartName.try_parse(name)) is not None]
