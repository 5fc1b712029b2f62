"""`system.distribution_queue`: what waits to be sent, and why."""

from __future__ import annotations

from collections.abc import Iterable

from engine.node.distributed.sending.spools import Spools
from engine.node.statements.statement import Asked
from engine.node.system.system_tables import Row
from engine.sql import Token


class DistributionQueueTable:
    """Columns are chDB's. One row for each directory of each Distributed table."""

    name = "distribution_queue"
    columns = ""

    def __init__(self, spools: Spools) -> None:
        self._spools = spools

    async def rows(self, asked: Asked, tokens: list[Token]) -> Iterable[Row]:
        return [
            {
                "database": row.table.database,
                "table": row.table.table,
                "data_path": row.data_path,
                "is_blocked": int(row.facts.is_blocked),
                "error_count": row.facts.error_count,
                "data_files": row.facts.data_files,
                "data_compressed_bytes": row.facts.data_bytes,
                "broken_data_files": row.facts.broken_files,
                "broken_data_compressed_bytes": row.facts.broken_bytes,
                "last_exception": row.facts.last_exception,
                "last_exception_time": int(row.facts.last_exception_s),
            }
            for row in await self._spools.rows()
        ]
