"""A Replicated database as a cluster: for `cluster('d', …)`, Distributed tables and ON CLUSTER d.

Keeper says of a replica under which name and port it listens. How it is reached by HTTP, and with which user,
the configuration knows if the replica is in any cluster of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.config.model import Cluster, Replica, Shard
from engine.databases import DatabaseCluster


def cluster_of(name: str, found: DatabaseCluster, known: Mapping[str, Cluster]) -> Cluster:
    """Shards and replicas in ClickHouse's order."""
    reachable = {replica.host_id: replica for cluster in known.values() for replica in cluster.replicas}
    shards = tuple(
        Shard(
            number=number,
            replicas=tuple(
                reachable.get(replica.host_id) or Replica(replica.host_id.host, replica.host_id.port)
                for replica in shard.replicas
            ),
            internal_replication=True,
        )
        for number, shard in enumerate(found.shards, start=1)
    )
    return Cluster(name=name, shards=shards, is_database=True)
