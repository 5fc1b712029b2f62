"""INSERTs of parts into a replica without chDB."""

from __future__ import annotations

from engine.replication.commands.insert import Inserted, Inserter, InsertOptions
from engine.replication.part_name import PartName
from tests.unit.replication.replica_bench import Replica

PLAIN = InsertOptions(deduplicate=False)
DEDUP = InsertOptions()


async def insert(
    replica: Replica, *values: int, partition: str = "all", options: InsertOptions = DEDUP
) -> list[Inserted]:
    parts = [await replica.write(value, partition) for value in values]
    return list(await Inserter(replica.ctx).commit(parts, options))


def name(text: str) -> PartName:
    return PartName.parse(text)
