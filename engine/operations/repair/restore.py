"""SYSTEM RESTORE REPLICA: a replica that Keeper has lost is made anew from its parts.

Safety argument. It is read-only, and Keeper does not know it: the server itself refuses otherwise. Its parts
go to `detached/` and are attached again or fetched; the server can be killed at any point, and the same
statement goes on. Where the whole table is gone from Keeper, who comes first decides what the table contains:
only the replica with the most rows may, and only while every host that may have one says which replicas it
has, so that nobody with more is forgotten. That is every host of the cluster, because shards may share a
path, but those of another shard of which a host says that it has the table under another one. The others join
the first; rows that only they have stay in their `detached/`.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    if silent := await _silent(work):
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


async def _silent(work: Work) -> list[str]:
    """Hosts that do not say what they have, and may have a replica of the table."""
    silent: dict[str, None] = {}
    for shard in work.site.topology_cluster.shards:
        hosts = [replica.host_id for replica in shard.replicas]
        mute = [host for host in hosts if not _tells(work, host)]
        if not mute or (work.host not in hosts and await _has_its_own_path(work, hosts)):
            continue
        silent |= dict.fromkeys(host.readable for host in mute)
    return list(silent)


def _tells(work: Work, host: HostId) -> bool:
    told = work.state.hosts[host]
    return told.is_answering and told.knows_replicas


async def _has_its_own_path(work: Work, hosts: Sequence[HostId]) -> bool:
    """Whether a host of another shard has the table, and none there has it under the path of this one."""
    database, table = quote_string(work.table.database), quote_string(work.table.table)
    sql = f"SELECT zookeeper_path FROM system.replicas WHERE database = {database} AND table = {table}"

    async def read(client: NodeClient) -> list[str]:
        return [str(path).rstrip("/") for (path,) in (await client.query_rows(sql)).rows]

    paths = {r.path for host in hosts for r in work.state.hosts[host].replicas}
    for host in hosts:
        if _tells(work, host):
            answer = await work.site.ask(host, read)
            paths |= set() if isinstance(answer, OnclusterError) else set(answer)
    return bool(paths) and work.path not in paths


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
