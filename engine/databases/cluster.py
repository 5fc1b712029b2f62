"""A database's replicas as a cluster: shards by name, replicas by full name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.databases.paths import DROPPED, DatabasePaths, ReplicaName
from engine.ddl.text import decode_bytes
from engine.errors import Code, NoNode, SqlError
from engine.keeper.base import Keeper, Node
from engine.names import HostId

_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class ClusterReplica:
    name: ReplicaName
    host_id: HostId

    @property
    def full_name(self) -> str:
        return str(self.name)


@dataclass(frozen=True, slots=True)
class ClusterShard:
    name: str
    replicas: tuple[ClusterReplica, ...]


@dataclass(frozen=True, slots=True)
class DatabaseCluster:
    """A snapshot; empty before the first one."""

    shards: tuple[ClusterShard, ...] = ()

    @property
    def has_many_shards(self) -> bool:
        return len(self.shards) > 1

    @property
    def replicas(self) -> tuple[ClusterReplica, ...]:
        return tuple(replica for shard in self.shards for replica in shard.replicas)


async def read_cluster(keeper: Keeper, paths: DatabasePaths, group: str = "") -> DatabaseCluster:
    """The replicas of `group`. Raises SqlError 254 without any, 279 while they keep changing."""
    for _ in range(_ATTEMPTS):
        children = await keeper.children(paths.replicas)
        nodes = await keeper.get_many([paths.replica(name) for name in children.names])
        groups = await keeper.get_many([paths.replica(name, "replica_group") for name in children.names])
        if (await keeper.children(paths.replicas)).stat.cversion != children.stat.cversion:
            continue
        found: dict[str, list[ClusterReplica]] = {}
        for text, node, of_group in zip(children.names, nodes, groups, strict=True):
            if not isinstance(node, Node) or node.data == DROPPED:
                continue
            if (of_group.data.decode("utf-8", "replace") if isinstance(of_group, Node) else "") != group:
                continue
            name = ReplicaName.parse(text)
            found.setdefault(name.shard, []).append(ClusterReplica(name, host_id_in(node.data)))
        if not found:
            raise SqlError(Code.NO_ACTIVE_REPLICAS, f"No replicas of the database at {paths.root} found")
        shards = (
            ClusterShard(name, tuple(sorted(replicas, key=lambda r: r.full_name)))
            for name, replicas in sorted(found.items())
        )
        return DatabaseCluster(tuple(shards))
    raise SqlError(
        Code.ALL_CONNECTION_TRIES_FAILED, f"Cannot get a consistent list of the replicas at {paths.root}"
    )


def host_id_in(data: bytes) -> HostId:
    """Of a replica's value, `escaped_host:port:database_uuid`. Raises SqlError 62."""
    return HostId.parse(decode_bytes(data).rpartition(":")[0])


def database_uuid_in(data: bytes) -> str:
    return decode_bytes(data).rpartition(":")[2]


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """What Keeper says of a replica. `lag`: entries committed that it has not executed."""

    is_active: bool
    is_unsynced: bool
    lag: int


async def read_states(keeper: Keeper, paths: DatabasePaths) -> Mapping[str, ReplicaState]:
    """By full name. Raises NoNode for a database that is gone."""
    names = (await keeper.children(paths.replicas)).names
    newest = int((await keeper.get(paths.max_log_ptr)).data)
    active = await keeper.get_many([paths.replica(name, "active") for name in names])
    pointers = await keeper.get_many([paths.replica(name, "log_ptr") for name in names])
    return {
        name: ReplicaState(
            is_active=isinstance(is_there, Node),
            is_unsynced=isinstance(is_there, Node) and is_there.data.endswith(b"\tUNSYNCED"),
            lag=max(0, newest - int(pointer.data)) if isinstance(pointer, Node) else newest,
        )
        for name, is_there, pointer in zip(names, active, pointers, strict=True)
    }


async def is_there(keeper: Keeper, path: str) -> bytes | None:
    """A node's value; None without the node."""
    try:
        return (await keeper.get(path)).data
    except NoNode:
        return None
