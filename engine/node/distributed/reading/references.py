"""What a statement reads that is spread over shards: Distributed tables, merged ones, and what `cluster()`,
`remote()` and their kin name."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from engine.config.model import Topology
from engine.distributed.peers import PeerShard, peers_of_cluster
from engine.distributed.select import Analysis, SourceColumn, SourceTable
from engine.distributed.select.model import virtual_columns
from engine.distributed.select.references import Reference, alias_behind
from engine.names import HostId, TableName
from engine.node.distributed.functions.inner_calls import InnerCalls
from engine.node.distributed.functions.read_place import ReadPlace, place_of
from engine.node.distributed.functions.table_functions import refused_to_readers, table_functions
from engine.node.distributed.peers.peer_health import PeerHealth
from engine.node.distributed.reading.analyst import Analyst
from engine.node.distributed.reading.chdb_request import DEPTH
from engine.node.distributed.reading.columns import columns_elsewhere, columns_of, elsewhere
from engine.node.distributed.reading.failover import Failover
from engine.node.distributed.reading.merges import MergeReader, Merges, check_filters_of_members
from engine.node.distributed.reading.settings_around import settings_around, settings_of_statement
from engine.node.distributed.reading.shard_reader import ShardReader
from engine.node.distributed.reading.table_filters import filter_of
from engine.node.distributed.reading.views import names_read
from engine.node.distributed.registry.tables import DistributedTable, DistributedTables
from engine.node.distributed.sending.policy import skipping_of
from engine.node.statements.asked_settings import flag
from engine.node.statements.merged_tables import Merge, merge_calls
from engine.node.statements.statement import Asked
from engine.node.statements.temporary_tables import is_temporary

_FUNCTION = re.compile(r"\b(?:cluster|clusterAllReplicas|remote|remoteSecure)\s*\(", re.IGNORECASE)

Planned = tuple[Asked, Sequence[Reference], Analysis]
Plan = Callable[[Asked, Failover], Awaitable[Planned | None]]
"""Makes a request one that chDB can run; None for one that is so already."""


def has_table_functions(sql: str) -> bool:
    """Whether the text may call `cluster()` or one of its kin."""
    return _FUNCTION.search(sql) is not None


class References:
    """Finds them, with what reads each."""

    def __init__(
        self,
        tables: DistributedTables,
        merges: Merges,
        health: PeerHealth,
        analyst: Analyst,
        *,
        topology: Callable[[], Topology],
        is_local: Callable[[HostId], bool],
        shards_of: Callable[[str], Sequence[PeerShard]],
        plan: Plan,
    ) -> None:
        self._tables = tables
        self._merges = merges
        self._health = health
        self._analyst = analyst
        self._topology = topology
        self._is_local = is_local
        self._shards_of = shards_of
        self._plan = plan

    async def of(
        self, asked: Asked, sql: str, failover: Failover, inner: InnerCalls
    ) -> tuple[list[Reference], Mapping[int, str]] | None:
        """Everything to be replaced, and by its offset what chDB itself would read there, if anything.
        `inner` has what was hidden of `sql`."""
        whole = settings_of_statement(asked, sql)
        match = DEPTH.match(asked.sql)
        depth = int(match[1]) if match else 0
        known = frozenset([table.name for table in await self._tables.all()])
        refs: list[Reference] = []
        names: dict[int, str] = {}
        for ref in names_read(sql):
            table = await self._tables.find_for(asked, ref.name)
            if table is None:
                continue
            settings = settings_around(sql, ref.start, whole)
            reader = self.reader(asked, table, settings, depth, known, failover)
            virtuals = virtual_columns(table.name)
            source = SourceTable(columns_of(table, settings), reader, virtuals=virtuals)
            is_final = flag(settings, "final", False)
            condition = self._condition(asked, settings, sql, ref.end, table.name)
            refs.append(Reference(ref.start, ref.end, ref.name.table, source, is_final, condition))
            names[ref.start] = table.name.quoted
        for merged in await self._merged(asked, sql, failover):
            refs.append(merged)
            names[merged.start] = sql[merged.start : merged.end]
        if has_table_functions(sql):
            for call in table_functions(sql, self._topology, asked.current_database):
                if asked.session.is_readonly:
                    raise refused_to_readers()
                settings = settings_around(sql, call.start, whole)
                place = place_of(asked, call.table, inner)
                shards = peers_of_cluster(call.cluster, self._is_local)
                columns = await columns_elsewhere(self._health, place, shards)
                reader = ShardReader(
                    shards,
                    place,
                    self._health,
                    settings,
                    failover,
                    depth,
                    sharding_key="" if _reads_all_replicas(sql, call.start) else call.sharding_key,
                    column_types={column.name: column.type for column in columns},
                    is_distributed_here=known.__contains__,
                    current_database=asked.current_database,
                    skipping=skipping_of(settings, None),
                    elsewhere=inner.shown(sql[call.start : call.end]),
                )
                source = SourceTable(columns, reader, virtuals=virtual_columns())
                refs.append(
                    Reference(
                        call.start,
                        call.end,
                        "",
                        source,
                        flag(settings, "final", False),
                        self._condition(asked, settings, sql, call.end, None),
                    )
                )
        return (sorted(refs, key=lambda one: one.start), names) if refs else None

    async def _merged(self, asked: Asked, sql: str, failover: Failover) -> Sequence[Reference]:
        """merge() and tables of engine Merge that read Distributed tables."""
        if not len(self._tables):
            return ()
        current = asked.current_database
        places = [(call.start, call.end, "", call.merge) for call in merge_calls(sql)]
        found = [ref for ref in names_read(sql) if not await is_temporary(asked, ref.name)]
        named = [ref.name.within(current) for ref in found]
        merges = await self._merges.named(named)
        for ref, name in zip(found, named, strict=True):
            if (merge := merges[name]) is not None:
                places.append((ref.start, ref.end, ref.name.table, merge))
        refs = []
        for start, end, alias, merge in places:
            settings = settings_around(sql, start, settings_of_statement(asked, sql))
            table = await self._merged_table(asked, merge, settings, failover)
            if table is None:
                continue
            check_filters_of_members(settings, table)
            condition = self._condition(asked, settings, sql, end, merge.own)
            refs.append(Reference(start, end, alias, table, flag(settings, "final", False), condition))
        return refs

    async def _merged_table(
        self, asked: Asked, merge: Merge, settings: Mapping[str, str], failover: Failover
    ) -> SourceTable | None:
        match = DEPTH.match(asked.sql)
        known = frozenset([table.name for table in await self._tables.all()])

        async def reader_of(name: TableName) -> tuple[ShardReader, Sequence[SourceColumn]] | None:
            table = await self._tables.find(name)
            if table is None:
                return None
            depth = int(match[1]) if match else 0
            reader = self.reader(asked, table, settings, depth, known, failover)
            return reader, columns_of(table, settings)

        async def rewritten(select: str) -> str:
            planned = await self._plan(replace(asked, sql=select), failover)
            return select if planned is None else planned[0].sql

        return await self._merges.source(
            merge,
            asked.current_database,
            reader_of=reader_of,
            rewritten=rewritten,
            described=lambda text: self._analyst.columns(asked, text),
        )

    def _condition(
        self, asked: Asked, settings: Mapping[str, str], sql: str, end: int, name: TableName | None
    ) -> str:
        """What `additional_table_filters` says of the table whose name in the text ends at `end`."""
        alias = alias_behind(sql, end)
        return filter_of(settings, name, alias=alias, current=asked.current_database)

    def reader(
        self,
        asked: Asked,
        table: DistributedTable,
        settings: Mapping[str, str],
        depth: int,
        known: frozenset[TableName],
        failover: Failover,
    ) -> ShardReader:
        definition = table.definition
        return ShardReader(
            self._shards_of(definition.cluster),
            ReadPlace(TableName(definition.database, definition.table)),
            self._health,
            settings,
            failover,
            depth,
            sharding_key=definition.sharding_key,
            column_types={column.name: column.type for column in table.columns},
            is_distributed_here=known.__contains__,
            current_database=asked.current_database,
            skipping=skipping_of(settings, definition),
            elsewhere=elsewhere(table),
            own=table.name,
            may_set=asked.session.takes_settings and asked.settings.get("readonly") != "1",
        )


def _reads_all_replicas(sql: str, start: int) -> bool:
    """Replicas of a shard have the same rows, whatever the key says of one among all replicas."""
    return sql[start:].upper().startswith("CLUSTERALLREPLICAS")


def readers_of(refs: Sequence[Reference]) -> Sequence[ShardReader]:
    """Of all Distributed tables, also of those that are merged."""
    found: list[ShardReader] = []
    for ref in refs:
        source = ref.table.source
        if isinstance(source, ShardReader):
            found.append(source)
        elif isinstance(source, MergeReader):
            found += source.readers
    return found
