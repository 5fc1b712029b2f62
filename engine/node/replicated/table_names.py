"""Replicated tables whose tables in chDB have other names now: RENAME and EXCHANGE are chDB's.

Repeatable: it goes by the UUIDs. What a crash leaves undone the next start does (`lifecycle`).
"""

from __future__ import annotations

import logging
from dataclasses import replace

from engine.errors import OnclusterError
from engine.names import TableName
from engine.node.replicated.lifecycle import TableLifecycle
from engine.node.replicated.runtime import RunningTable

log = logging.getLogger(__name__)


async def announce_names(life: TableLifecycle) -> None:
    """Take over the names that chDB's tables have, also in Keeper. Peers fetch by the replica's path, so an
    old name in `host` misleads people only."""
    for table in await _refresh(life):
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
