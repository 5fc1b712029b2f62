"""`select_sequential_consistency = 1`: a SELECT sees no row that a quorum has not confirmed.

Which blocks are confirmed is asked of Keeper before the statement begins; parts beyond them are left out by
`additional_table_filters` on the UUID that carries their names. A table in which no part is beyond them,
which is the usual case, is read as it is. A view is looked through: the filters hold for the tables that its
SELECT reads, and a materialized view has those of its target under its own name. `merge()` and a table of
engine Merge have those of all that is merged, by the names of the tables that rows come from.

`apply_mutations_on_fly = 1` (see `mutated_reads`) holds for the same tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from engine.errors import Code, SqlError
from engine.names import quote_string
from engine.node.replicated.rows import mutated_reads
from engine.node.replicated.rows.read_tables import Readings, ReadTables
from engine.node.replicated.running.local_tables import LocalTables
from engine.node.replicated.running.runtime import ReplicatedTables, RunningTable
from engine.node.statements.asked_settings import flag, settings_of
from engine.node.statements.statement import Asked
from engine.part_storage.part_uuid import uuid_of
from engine.replication.commands.consistent_read import max_blocks
from engine.sql import Statement, StatementKind

_READING = frozenset(
    {StatementKind.SELECT, StatementKind.INSERT, StatementKind.EXPLAIN, StatementKind.CREATE_TABLE}
)
_SETTING = "select_sequential_consistency"
_FILTERS = "additional_table_filters"


class ConsistentReads:
    """Adds the filters to statements that ask for them."""

    def __init__(self, tables: ReplicatedTables, local: LocalTables) -> None:
        self._tables = tables
        self._read = Readings(tables, local)

    async def prepare(self, asked: Asked, statement: Statement) -> Asked:
        """The request with its filters. Raises SqlError 289 when this replica lacks confirmed parts, 242
        without Keeper, 236 and 341 as `wait_for_mutations`."""
        if statement.kind not in _READING or not self._tables:
            return asked
        if not any(_may_be_set(asked, name) for name in (_SETTING, mutated_reads.SETTING)):
            return asked  # nearly always, and the text need not be taken apart
        settings = settings_of(asked)
        is_mutated, is_sequential = (
            flag(settings, name, False) for name in (mutated_reads.SETTING, _SETTING)
        )
        if not is_mutated and not is_sequential:
            return asked
        read = await self._read.of(asked)
        if is_mutated:
            await mutated_reads.wait_for_mutations(_all_of(read))
        if not is_sequential:
            return asked
        filters = await self._new_filters(read)
        if not filters:
            return asked
        if settings.get(_FILTERS, "") not in ("", "{}"):
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                f"{_FILTERS} and {_SETTING} together are not supported.",
            )
        return replace(asked, settings={**asked.settings, _FILTERS: _as_map(filters)})

    async def _new_filters(self, read: ReadTables) -> Mapping[str, str]:
        """By the names of what they are for. Raises SqlError 48 for calls of merge() that cannot have one."""
        hidden = {table: await self._unconfirmed(table) for table in _all_of(read)}
        filters = {
            str(name): f"_part_uuid NOT IN ({', '.join(hidden[table])})"
            for name, table in read.tables.items()
            if hidden[table]
        }
        for name in {merge.name for merge in read.merges}:
            merges = [merge for merge in read.merges if merge.name == name]
            rows = sorted(
                f"({quote_string(member.database)}, {quote_string(member.table)}, {uuid})"
                for merge in merges
                for member, table in merge.tables.items()
                for uuid in hidden[table]
            )
            if rows and not all(merge.has_parts for merge in merges):
                raise SqlError(
                    Code.NOT_IMPLEMENTED,
                    f"{_SETTING} is not supported for merge() beside merge() of views alone.",
                    hint="Name the views, with UNION ALL between.",
                )
            if rows:
                filters[str(name)] = f"(_database, _table, _part_uuid) NOT IN ({', '.join(rows)})"
        return filters

    async def _unconfirmed(self, table: RunningTable) -> list[str]:
        limits = await max_blocks(table.ctx)
        return [
            f"'{uuid_of(part)}'"
            for part in sorted(table.store.active)
            if part.max_block > limits.get(part.partition_id, -1)
        ]


def _may_be_set(asked: Asked, name: str) -> bool:
    return name in asked.settings or name in asked.session.settings or name in asked.sql


def _all_of(read: ReadTables) -> set[RunningTable]:
    return {*read.tables.values(), *(table for merge in read.merges for table in merge.tables.values())}


def _as_map(filters: Mapping[str, str]) -> str:
    items = ", ".join(f"{quote_string(name)}: {quote_string(text)}" for name, text in filters.items())
    return f"{{{items}}}"
