"""INSERT INTO FUNCTION cluster(…), remote(…) and their kin: a Distributed table for the time of one INSERT.

As in ClickHouse such an INSERT ends when every shard has its rows: there is no spool of a table that is gone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from engine.config.model import Topology
from engine.distributed.definition import DistributedDefinition
from engine.distributed.peers import PeerShard, peers_of_cluster
from engine.names import HostId, TableName
from engine.node.distributed.functions.constant_arguments import with_constants
from engine.node.distributed.functions.read_place import ReadPlace
from engine.node.distributed.functions.table_functions import TableFunction, target_function
from engine.node.distributed.peers.peer_health import PeerHealth
from engine.node.distributed.reading.columns import described_elsewhere, described_rows, listed_for_create
from engine.node.distributed.registry.tables import Column, DistributedTable
from engine.node.statements.statement import Asked
from engine.part_storage import SCRATCH_DATABASE
from engine.sql.edit import Edit, apply_edits

_MAYBE = re.compile(r"\s*INSERT\s+INTO\s+(?:TABLE\s+)?FUNCTION\b", re.IGNORECASE)
_PLACE = TableName(SCRATCH_DATABASE, "function")
"""Stands in the text for the call."""


@dataclass(frozen=True, slots=True)
class FunctionTarget:
    """`sql` is the INSERT with a table's name in the place of the call."""

    table: DistributedTable
    shards: Sequence[PeerShard]
    sql: str


class FunctionTargets:
    """Finds what such an INSERT writes to."""

    def __init__(
        self, health: PeerHealth, *, topology: Callable[[], Topology], is_local: Callable[[HostId], bool]
    ) -> None:
        self._health = health
        self._topology = topology
        self._is_local = is_local

    async def of(self, asked: Asked, sql: str) -> FunctionTarget | None:
        """None for any other INSERT. Raises SqlError 701, 42, 36 for the arguments, 279 when no replica says
        which columns its table has."""
        if _MAYBE.match(sql) is None:
            return None
        sql = await with_constants(asked, sql)
        call = target_function(sql, self._topology, asked.current_database)
        if call is None:
            return None
        shards = peers_of_cluster(call.cluster, self._is_local)
        columns, listed = await self._described(call, shards)
        definition = DistributedDefinition(
            call.cluster.name, call.table.database, call.table.table, sharding_key=call.sharding_key
        )
        create = f"CREATE TABLE {_PLACE.quoted} ({listed}) ENGINE = Null"
        name = TableName("", sql[call.start : call.end])
        table = DistributedTable(UUID(int=0), name, definition, create, columns)
        return FunctionTarget(table, shards, apply_edits(sql, [Edit(call.start, call.end, _PLACE.quoted)]))

    async def _described(
        self, call: TableFunction, shards: Sequence[PeerShard]
    ) -> tuple[tuple[Column, ...], str]:
        """The columns of the table, and their list for CREATE TABLE."""
        answer = await described_elsewhere(self._health, ReadPlace(call.table), shards)
        columns = tuple(Column(column, type_, kind) for column, type_, kind, _ in described_rows(answer))
        return columns, listed_for_create(answer)
