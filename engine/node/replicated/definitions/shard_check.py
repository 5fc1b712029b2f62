"""Whether a path in Keeper belongs to another shard's table: two shards with one path would have the same
rows.

What is known of a replica's server, best first: the names in the clusters under which it is alive (the DDL
queue's `replicas/`), the name that a node of ours wrote into its replica at its last activation, its
interserver address, which may be such a name. Of a real ClickHouse server that is down and whose address is
no name of a cluster Keeper holds nothing but its UUID, which nothing binds to a cluster: it is not told
apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from engine.config.model import Topology
from engine.errors import Code, KeeperAnswer, MalformedEntry, NoNode, SqlError
from engine.keeper.base import Keeper, Node
from engine.names import HostId
from engine.replication.host import ReplicaHost
from engine.replication.paths import TablePaths


@dataclass(frozen=True, slots=True)
class Defaults:
    """Of the configuration: what an engine without arguments means, and who this server is."""

    replica_path: str
    replica_name: str
    server_uuid: UUID
    host_id: HostId
    replicas_roots: tuple[str, ...] = ()
    """Where the servers of the clusters say that they are alive."""


async def check_shard(
    keeper: Keeper, paths: TablePaths, topology: Topology, defaults: Defaults, *, database: str
) -> None:
    """Raises SqlError 36 when the table in Keeper has replicas on another shard, and only there. `database`
    is that of the new replica."""
    try:
        names = (await keeper.children(paths.replicas)).names
    except NoNode:
        return
    nodes = await keeper.get_many([paths.replica(name).creator_info for name in names])
    servers = {_server_of(node) for node in nodes if isinstance(node, Node)}
    others = await _hosts_of(keeper, defaults, servers - {str(defaults.server_uuid)})
    # Of a server that is not alive only its address is left, which may be the name that clusters use.
    addresses = await keeper.get_many([paths.replica(name).host for name in names])
    others += [host for node in addresses if (host := _address(node)) is not None]
    # A node has written its name in the clusters into its replica's own node (`replica.term`).
    named = await keeper.get_many([paths.replica(name).root for name in names])
    others += [host for node in named if (host := _host_id(node)) is not None]
    for other in others:
        cluster = shard_conflict(topology, defaults.host_id, other, database=database)
        if cluster:
            raise SqlError(
                Code.BAD_ARGUMENTS,
                f"Path {paths.root} is that of another shard's table: {other.readable} has a "
                f"replica there, and is of another shard of cluster '{cluster}'. Two shards with one "
                "path would have the same rows.",
                hint="Put {shard} into the path. A table that all shards have as one, as migration tools "
                "make for their records, needs a cluster in which its hosts are one shard.",
            )


async def _hosts_of(keeper: Keeper, defaults: Defaults, servers: set[str]) -> list[HostId]:
    """Under which names of the clusters these servers are alive (`engine.ddl.replicas`)."""
    hosts = []
    for root in defaults.replicas_roots if servers else ():
        try:
            names = (await keeper.children(root)).names
        except NoNode:
            continue
        nodes = await keeper.get_many([f"{root}/{name}/active" for name in names])
        for name, node in zip(names, nodes, strict=True):
            if isinstance(node, Node) and node.data.decode("utf-8", "replace") in servers:
                hosts.append(HostId.parse(name))
    return hosts


def shard_conflict(topology: Topology, me: HostId, other: HostId, *, database: str) -> str:
    """A cluster in which the two hosts are replicas of different shards; empty if there is none, or if any
    cluster has them in one shard. Only shards whose replicas replicate by themselves count, and those of a
    Replicated database only for its own tables."""
    found = ""
    for cluster in topology.clusters.values():
        shards = [{r.host_id for r in s.replicas} for s in cluster.shards if s.internal_replication]
        mine = [shard for shard in shards if me in shard]
        theirs = [shard for shard in shards if other in shard]
        if any(other in shard for shard in mine):
            return ""
        if mine and theirs and (not cluster.is_database or cluster.name == database):
            found = found or cluster.name
    return found


def _address(node: Node | KeeperAnswer) -> HostId | None:
    """A replica's `host`; None for one that was not activated yet, or has text that nobody can read."""
    if not isinstance(node, Node) or not node.data:
        return None
    try:
        host = ReplicaHost.from_bytes(node.data)
    except MalformedEntry:
        return None
    return HostId(host.host, host.tcp_port)


def _host_id(node: Node | KeeperAnswer) -> HostId | None:
    """What a node of ours has written into its replica; None for any other server's, which is empty."""
    if not isinstance(node, Node) or not node.data:
        return None
    try:
        return HostId.parse(node.data.decode("utf-8", "replace"))
    except SqlError:
        return None


def _server_of(node: Node) -> str:
    """The server's UUID in `creator_info`."""
    return node.data.decode("utf-8", "replace").partition("|")[2]
