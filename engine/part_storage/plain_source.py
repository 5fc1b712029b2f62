"""A plain MergeTree table as a source of parts: ATTACH and REPLACE PARTITION … FROM.

The parts are those of one moment, under chDB's own names, as hard links: whatever the table merges or drops
meanwhile, they stay until `close`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Self

from engine.errors import Code, SqlError
from engine.names import TableName, quote_string
from engine.part_storage.part_files import link_part, read_part, remove_tree
from engine.part_storage.store import ChdbPartStore
from engine.part_storage.table_state import LocalPart
from engine.part_storage.takeable import check_takeable
from engine.part_storage.workers import PLAIN_KEY_PREFIX, Connection, Workers
from engine.replication.part_name import PartName
from engine.storage import ChdbPool

_MAX_TRIES = 5


class PlainSource(ChdbPartStore):
    """Good for `definition`, `active`, `partition_ids`, and as `of` in `stage_copy`; nothing is changed."""

    @classmethod
    async def of_table(cls, pool: ChdbPool, table: TableName, partitions: Collection[str] | None) -> Self:
        workers = Workers.of(pool)
        try:
            key = f"{PLAIN_KEY_PREFIX}{workers.next_number()}"
            source = await cls.open(pool, table, key)
        finally:
            await workers.release()
        try:
            await source._workers.run(lambda connection: source._take(connection, partitions))
        except BaseException:  # also a cancellation: the worker has to be given back
            await source.close()
            raise
        return source

    def _take(self, connection: Connection, partitions: Collection[str] | None) -> None:
        state = self._state
        wanted = "" if partitions is None else f" AND partition_id IN ({_listed(partitions)})"
        tries = 0
        while True:
            tries += 1
            rows = connection.rows(
                "SELECT name FROM system.parts WHERE active"
                f" AND database = {quote_string(state.table.database)}"
                f" AND table = {quote_string(state.table.table)}{wanted}"
            )
            found = []
            try:
                for (local_name,) in rows:
                    name = PartName.try_parse(local_name)
                    if name is None:
                        raise SqlError(Code.BAD_DATA_PART_NAME, f"Unexpected part name: {local_name}")
                    check_takeable(state.data / local_name, state.table, local_name)
                    target = state.staged_root / local_name
                    link_part(state.data / local_name, target, name=None)
                    found.append(LocalPart(read_part(target, name), target, target))
            except FileNotFoundError:  # merged away in this moment
                remove_tree(state.staged_root)
                if tries == _MAX_TRIES:
                    raise
                continue
            state.change_active(add=found)
            return

    async def close(self) -> None:
        """The links go, too."""
        await super().close()
        await asyncio.to_thread(remove_tree, self._state.staged_root)


async def open_plain(
    pool: ChdbPool, table: TableName, partitions: Collection[str] | None = None
) -> ChdbPartStore:
    """A store over the parts that a plain table has now, those of some partitions (by id) or all; `close` it.
    Raises SqlError 60, and 48 for parts that a replicated table cannot take."""
    return await PlainSource.of_table(pool, table, partitions)


def _listed(partitions: Collection[str]) -> str:
    return ", ".join(map(quote_string, partitions)) or "''"
