"""The Replicated database engine: definitions of tables that are the same on all replicas.

`ReplicatedDatabase` follows a database's log in Keeper and proposes entries for it; what it changes is behind
`LocalSchema`.
"""

from engine.databases.cluster import ClusterReplica, ClusterShard, DatabaseCluster, ReplicaState
from engine.databases.database import DatabaseStatus, ReplicatedDatabase
from engine.databases.digest import digest_of
from engine.databases.joining import drop_other_replica
from engine.databases.outcomes import OUTPUT_COLUMNS, ReplicaRow
from engine.databases.paths import DatabasePaths, ReplicaName
from engine.databases.replica import DatabaseReplica
from engine.databases.schema import Commit, LocalSchema
from engine.databases.settings import DatabaseSettings

__all__ = [
    "OUTPUT_COLUMNS",
    "ClusterReplica",
    "ClusterShard",
    "Commit",
    "DatabaseCluster",
    "DatabasePaths",
    "DatabaseReplica",
    "DatabaseSettings",
    "DatabaseStatus",
    "LocalSchema",
    "ReplicaName",
    "ReplicaRow",
    "ReplicaState",
    "ReplicatedDatabase",
    "digest_of",
    "drop_other_replica",
]
