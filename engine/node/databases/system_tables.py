"""`system.database_replicas`, and what `system.clusters` says of a database's replicas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine.node.databases.running import ReplicatedDatabases
from engine.node.statements.statement import Asked
from engine.node.system.system_tables import Row
from engine.sql import Token


class DatabaseReplicasTable:
    """Columns are chDB's."""

    name = "database_replicas"
    columns = ""

    def __init__(self, databases: ReplicatedDatabases) -> None:
        self._databases = databases

    async def rows(self, asked: Asked, tokens: list[Token]) -> Iterable[Row]:
        rows = []
        for database in self._databases.all():
            place, core = database.record.place, database.core
            status = await core.status()
            rows.append(
                {
                    "database": database.name,
                    "is_readonly": int(core.is_readonly),
                    "max_log_ptr": status.max_log_ptr,
                    "replica_name": place.replica,
                    "replica_path": f"{place.path}/replicas/{place.full_name}",
                    "zookeeper_path": place.path,
                    "shard_name": place.shard,
                    "log_ptr": status.log_ptr,
                    "total_replicas": status.total_replicas,
                    "zookeeper_exception": status.keeper_error,
                    "is_session_expired": int(status.is_session_expired),
                }
            )
        return rows


class ClusterFacts:
    """The columns of `system.clusters` that only a database's replicas have."""

    def __init__(self, databases: ReplicatedDatabases) -> None:
        self._databases = databases

    async def of(self, cluster: str) -> Mapping[tuple[int, int], Mapping[str, object]]:
        """By the numbers of shard and replica; empty for a cluster of the configuration."""
        database = self._databases.find(cluster)
        if database is None:
            return {}
        states = await database.core.replica_states()
        facts: dict[tuple[int, int], Mapping[str, object]] = {}
        for shard_number, shard in enumerate(database.core.cluster.shards, start=1):
            for number, replica in enumerate(shard.replicas, start=1):
                state = states.get(replica.full_name)
                facts[shard_number, number] = {
                    "shard_name": shard.name,
                    "database_shard_name": shard.name,
                    "database_replica_name": replica.name.replica,
                    **(
                        {}
                        if state is None
                        else {
                            "is_active": int(state.is_active),
                            "unsynced_after_recovery": int(state.is_unsynced),
                            "replication_lag": state.lag,
                        }
                    ),
                }
        return facts
