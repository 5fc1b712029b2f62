"""Replicated tables whose tables in chDB have other names now: RENAME and EXCHANGE are chDB's.

Safety argument. A store changes what readers see by the name of its table: while chDB renames, the stores
stand still, until they know their names, or a merge would be published in the table that has the name now.
What a crash leaves undone the next start does (`lifecycle`): it goes by the UUIDs.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from engine.errors import OnclusterError
from engine.names import TableName
from engine.node.replicated.running.lifecycle import TableLifecycle
from engine.node.replicated.running.runtime import RunningTable

log = logging.getLogger(__name__)


@asynccontextmanager
async def renaming(
    life: TableLifecycle, tables: Iterable[RunningTable | None], names: Iterable[TableName]
) -> AsyncIterator[None]:
    """The block has chDB give `tables` other names, of `names`, which are theirs everywhere then, also in
    Keeper. Peers fetch by the replica's path, so an old name in `host` misleads people only. The caller holds
    the names."""
    renamed: list[RunningTable] = []
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(life.tables.local_writes.taking(names))
        for table in tables:
            if table is not None:
                await stack.enter_async_context(table.store.renaming())
        try:
            yield
        finally:  # of several renames some may have been done
            renamed += await _refresh(life)
    for table in renamed:
        keeper = table.ctx.keeper
        if keeper is None:
            continue
        try:
            await keeper.set(table.ctx.me.host, table.ctx.host.to_bytes())
        except OnclusterError as error:
            log.warning("replicated.host_not_written table=%s error=%s", table.name, error)


async def _refresh(life: TableLifecycle) -> list[RunningTable]:
    """The tables that were renamed."""
    found = await life.local.by_uuid([record.uuid for record in life.catalog.all()])
    renamed = []
    for uuid, local in found.items():
        record = life.catalog.get(uuid)
        if record is not None and record.name != local.name:
            life.catalog.put(replace(record, name=local.name))
        table = life.tables.by_uuid(uuid)
        if table is not None and table.ctx.name != local.name:
            _rename(life, table, local.name)
            renamed.append(table)
    life.on_change()
    return renamed


def _rename(life: TableLifecycle, table: RunningTable, name: TableName) -> None:
    table.record = replace(table.record, name=name)
    life.tables.rename(table, name)
    table.ctx.host = replace(table.ctx.host, database=name.database, table=name.table)
    table.store.renamed(name)
