"""SYSTEM RESTORE REPLICA: a replica that Keeper has lost is made anew from its parts.

Safety argument. It is read-only, and Keeper does not know it: the server itself refuses otherwise. Its parts
go to `detached/` and are attached again or fetched; the server can be killed at any point, and the same
statement goes on. Where the whole table is gone from Keeper, who comes first decides what the table contains:
only the replica with the most rows may, and only while every host of its shard says which replicas it has, so
that nobody with more is forgotten. The others join it; rows that only they have stay in their `detached/`.
"""

from __future__ import annotations

from engine.client import NodeClient
from engine.errors import OnclusterError
from engine.names import HostId, TableName, quote_string
from engine.operations.repair.performing import Steps, Work


async def _is_unknown_to_keeper(work: Work) -> bool:
    replica = work.state.replica(work.replica)
    return replica.registered is None and replica.told is not None


async def _objection(work: Work) -> str:
    if work.state.exists:
        return ""
    silent = [
        host.readable
        for shard in work.site.topology_cluster.shards
        if work.host in (hosts := [replica.host_id for replica in shard.replicas])
        for host in hosts
        if not (work.state.hosts[host].is_answering and work.state.hosts[host].knows_replicas)
    ]
    if silent:
        return f"the table is gone from Keeper, and {', '.join(silent)}, which may have more rows, is silent"
    rows: dict[str, int] = {}
    for other in work.state.replicas.values():
        if other.told is not None and other.host is not None:
            rows[other.name] = await _rows(work, other.host, other.told.table)
    fullest = max(rows, key=lambda name: rows[name])
    if rows[fullest] > rows[work.replica]:
        return (
            f"the table is gone from Keeper, and replica {fullest} has more rows ({rows[fullest]}) than this "
            f"one ({rows[work.replica]}): that one has to be restored first"
        )
    return ""


async def _rows(work: Work, host: HostId, table: TableName) -> int:
    sql = (
        f"SELECT toUInt64(sum(rows)) FROM system.parts WHERE active AND "
        f"database = {quote_string(table.database)} AND table = {quote_string(table.table)}"
    )

    async def read(client: NodeClient) -> int:
        return int((await client.query_rows(sql)).scalar)

    answer = await work.site.ask(host, read)
    if isinstance(answer, OnclusterError):
        raise answer
    return answer


async def _restore(work: Work) -> None:
    await work.client.command(f"SYSTEM RESTORE REPLICA {work.table.quoted}")


RESTORE = Steps(needed=_is_unknown_to_keeper, objection=_objection, do=_restore)
