"""`max_rows_to_read` counts the rows of all shards, as at ClickHouse's initiator.

There every shard tells how many rows it is going to read, and the sum is compared. chDB reads shards by URLs
and is told nothing, and each shard knows its own rows only. So before such a statement begins, the shards are
asked for what they would tell: EXPLAIN ESTIMATE, which reads nothing.

What cannot be estimated counts as nothing: engines without an index, a query that ends with LIMIT and may
read less, a server that does not know the question. Then each shard's own count is what holds. It is so, too,
with `read_overflow_mode = 'break'`, and for bytes.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from engine.distributed.peers import Peer
from engine.errors import Code, OnclusterError, SqlError
from engine.node.distributed.peers.peer_health import PeerHealth
from engine.node.statements.asked_settings import number

log = logging.getLogger(__name__)

_LIMIT = re.compile(r"\bLIMIT\b", re.IGNORECASE)
_WAIT_S = 2.0
_OVERFLOW = ("max_rows_to_read", "max_bytes_to_read", "read_overflow_mode")


@dataclass(frozen=True, slots=True)
class ToRead:
    """What a statement with such a limit reads of one shard: on this node, in `database`, without `peer`."""

    peer: Peer | None
    sql: str
    max_rows: int
    database: str
    settings: tuple[tuple[str, str], ...]

    @classmethod
    def of(
        cls,
        statement: Mapping[str, str],
        peer: Peer | None,
        sql: str,
        database: str,
        settings: Mapping[str, str],
    ) -> ToRead | None:
        """None without a limit, as the settings of the statement say. `settings` are the shard's.

        Raises SqlError 36.
        """
        max_rows = int(number(statement, "max_rows_to_read", 0))
        if not max_rows or statement.get("read_overflow_mode", "throw") != "throw" or _LIMIT.search(sql):
            return None
        kept = {name: value for name, value in settings.items() if not name.startswith(_OVERFLOW)}
        return cls(peer, sql, max_rows, database, tuple(sorted(kept.items())))


async def check_rows_to_read(health: PeerHealth, reads: Collection[ToRead]) -> None:
    """Raises SqlError 158. One shard alone counts by itself."""
    if len(reads) < 2:
        return
    rows = sum(await asyncio.gather(*(_rows(health, read) for read in reads)))
    most = min(read.max_rows for read in reads)
    if rows > most:
        raise SqlError(
            Code.TOO_MANY_ROWS,
            f"Limit for rows (controlled by 'max_rows_to_read' setting) exceeded, max rows: {most}, "
            f"rows to read on {len(reads)} shards: {rows}",
            hint="Read less by WHERE, or raise max_rows_to_read; max_rows_to_read_leaf is for each shard.",
        )


async def _rows(health: PeerHealth, read: ToRead) -> int:
    sql, settings = f"EXPLAIN ESTIMATE {read.sql}", dict(read.settings)
    try:
        async with asyncio.timeout(_WAIT_S):
            if read.peer is None:
                found = await health.pool.query(
                    sql, format="TSVRaw", database=read.database, settings=settings
                )
                text = found.text
            else:
                text = await health.client(read.peer).query_text(sql, settings=settings)
        return sum(int(line.split("\t")[3]) for line in text.splitlines())
    except (OnclusterError, TimeoutError, ValueError, IndexError) as error:
        log.info("distributed.no_estimate replica=%s error=%s", read.peer and read.peer.name, error)
        return 0
