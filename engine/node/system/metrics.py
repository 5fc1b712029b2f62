"""`system.metrics` and `system.asynchronous_metrics`: what a server counts and chDB does not know of.

chDB's own counters stay; those of replicated and Distributed tables, Keeper and the DDL queue, which are 0
there, are the node's. chDB has no `asynchronous_metrics`, since nothing collects any: a node measures when it
is asked.

Source: ClickHouse's CurrentMetrics, AsynchronousMetrics, ServerAsynchronousMetrics.
"""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from engine.names import quote_string
from engine.node.statements.statement import Asked
from engine.node.system.system_tables import Provide, Row, provide_as_it_is
from engine.sql import Token, parse_statement
from engine.sql.tokens import name_of
from engine.storage import Scope

Measures = Callable[[], Awaitable[Mapping[str, float]]]

_OF_TABLES = """SELECT
    (SELECT count() FROM system.databases) AS NumberOfDatabases,
    (SELECT count() FROM system.tables WHERE NOT is_temporary) AS NumberOfTables,
    (SELECT max(parts) FROM
        (SELECT count() AS parts FROM system.parts WHERE active GROUP BY database, table, partition_id)
    ) AS MaxPartCountForPartition,
    (SELECT count() FROM system.parts WHERE active) AS TotalPartsOfMergeTreeTables,
    (SELECT sum(rows) FROM system.parts WHERE active) AS TotalRowsOfMergeTreeTables,
    (SELECT sum(bytes_on_disk) FROM system.parts WHERE active) AS TotalBytesOfMergeTreeTables,
    uptime() AS Uptime"""


class MetricsView:
    """Implements SystemView."""

    name = "metrics"
    is_needed = True

    def __init__(self, gauges: Sequence[Callable[[], Awaitable[Mapping[str, int]]]]) -> None:
        self._gauges = gauges

    async def select(self, asked: Asked, tokens: list[Token]) -> str:
        values: dict[str, int] = {}
        for gauges in self._gauges:
            values |= await gauges()
        names = ", ".join(map(quote_string, values))
        numbers = ", ".join(map(str, values.values()))
        known = f"transform(metric, [{names}], [{numbers}]::Array(Int64), value)" if values else "value"
        # The table has it as an alias, which `*` does not show.
        name = ", metric AS name" if any(name_of(token) == "name" for token in tokens) else ""
        return f"SELECT metric, {known} AS value, description{name} FROM system.metrics"


class AsynchronousMetricsTable:
    """Implements SystemTable."""

    name = "asynchronous_metrics"
    columns = "metric String, value Float64, description String, name String ALIAS metric"

    def __init__(self, measures: Sequence[Measures]) -> None:
        self._measures = measures
        self.provide: Provide = provide_as_it_is
        """For the tables and parts that are counted."""

    async def rows(self, asked: Asked, tokens: list[Token]) -> Iterable[Row]:
        values = {**_of_the_process(), **await self._of_tables(asked)}
        for measures in self._measures:
            values |= await measures()
        return [
            {"metric": name, "value": value, "description": _DESCRIPTIONS[name]}
            for name, value in sorted(values.items())
        ]

    async def _of_tables(self, asked: Asked) -> Mapping[str, float]:
        inner = replace(asked, sql=_OF_TABLES, session=asked.session.clone())
        async with self.provide(inner, parse_statement(inner.sql)) as (sql, session):
            result = await session.query(sql, format="JSONEachRow", scope=Scope(database=asked.database))
        return {name: float(value or 0) for name, value in json.loads(result.text).items()}


def _of_the_process() -> Mapping[str, float]:
    virtual, resident, *_ = Path("/proc/self/statm").read_text().split()
    page_bytes = resource.getpagesize()
    loads = zip(("LoadAverage1", "LoadAverage5", "LoadAverage15"), os.getloadavg(), strict=True)
    return {
        **dict(loads),
        "MemoryVirtual": int(virtual) * page_bytes,
        "MemoryResident": int(resident) * page_bytes,
    }


_DESCRIPTIONS = {
    "LoadAverage1": "Processes that ran or waited for a processor in the last minute, of the whole machine.",
    "LoadAverage5": "The same of the last five minutes.",
    "LoadAverage15": "The same of the last fifteen minutes.",
    "MemoryResident": "Bytes of memory that the node's process uses.",
    "MemoryVirtual": "Bytes of address space that the node's process has.",
    "NumberOfDatabases": "Databases of the node.",
    "NumberOfTables": "Tables of the node, those of `system` among them.",
    "MaxPartCountForPartition": "Active parts of the partition that has most; too many delay INSERTs.",
    "TotalPartsOfMergeTreeTables": "Active parts of all tables of the MergeTree family.",
    "TotalRowsOfMergeTreeTables": "Rows in these parts.",
    "TotalBytesOfMergeTreeTables": "Bytes on disk of these parts.",
    "Uptime": "Seconds since the node's process has started.",
    "ReplicasMaxAbsoluteDelay": "Seconds that a replica is behind the newest insert, of the table with most.",
    "ReplicasMaxRelativeDelay": "Seconds that a replica is behind the best one, of the table with most.",
    "ReplicasMaxQueueSize": "Entries in the queue of the replica with most.",
    "ReplicasMaxInsertsInQueue": "Parts still to be fetched or attached, of the replica with most.",
    "ReplicasMaxMergesInQueue": "Merges still to be done, of the replica with most.",
    "ReplicasSumQueueSize": "Entries in the queues of all replicas.",
    "ReplicasSumInsertsInQueue": "Parts still to be fetched or attached, of all replicas.",
    "ReplicasSumMergesInQueue": "Merges still to be done, of all replicas.",
}
