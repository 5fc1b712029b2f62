"""The replicas of a cluster as Distributed tables reach them: over HTTP, or in process where it is this node.

Nodes and ClickHouse servers speak HTTP. Where a replica's interface is says the configuration
(`engine.config.model.Replica.http_address`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.config.model import Cluster, Topology
from engine.names import HostId, quote_identifier


@dataclass(frozen=True, slots=True)
class Peer:
    """One replica. `name` is its host and port as `remote_servers` has them; numbers count from 1."""

    name: HostId
    host: str
    http_port: int
    scheme: str = "http"
    user: str = "default"
    password: str = field(default="", repr=False)
    is_local: bool = False
    default_database: str = ""
    shard_number: int = 1
    replica_number: int = 1
    priority: int = 1

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host and not self.host.startswith("[") else self.host
        return f"{self.scheme}://{host}:{self.http_port}"

    def table(self, database: str, table: str) -> str:
        """The quoted name of a table there; an empty database is the replica's default one."""
        where = database or self.default_database
        return (f"{quote_identifier(where)}." if where else "") + quote_identifier(table)


@dataclass(frozen=True, slots=True)
class PeerShard:
    """One shard; `number` counts from 1."""

    number: int
    weight: int
    internal_replication: bool
    peers: tuple[Peer, ...]


def peers_of(topology: Topology, cluster: str, is_local: Callable[[HostId], bool]) -> Sequence[PeerShard]:
    """The shards of a cluster. Raises SqlError 701 CLUSTER_DOESNT_EXIST, naming the clusters there are."""
    return peers_of_cluster(topology.cluster(cluster), is_local)


def peers_of_cluster(cluster: Cluster, is_local: Callable[[HostId], bool]) -> Sequence[PeerShard]:
    return tuple(
        PeerShard(
            shard.number,
            shard.weight,
            shard.internal_replication,
            tuple(
                Peer(
                    name=replica.host_id,
                    host=replica.http_address[0],
                    http_port=replica.http_address[1],
                    scheme="https" if replica.secure else "http",
                    user=replica.user,
                    password=replica.password,
                    is_local=is_local(replica.host_id),
                    default_database=replica.default_database,
                    shard_number=shard.number,
                    replica_number=number,
                    priority=replica.priority,
                )
                for number, replica in enumerate(shard.replicas, start=1)
            ),
        )
        for shard in cluster.shards
    )
