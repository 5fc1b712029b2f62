"""Where the shards of a cluster are: their replicas' HTTP interfaces, weights and default databases.

Asked of a server's `system.clusters`, or read from a cluster file, which also knows HTTP ports.
"""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

from engine.errors import Code, ConfigError, SqlError
from engine.names import TableName, quote_string
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.options import Options


def default_database(databases: Set[str], name: TableName) -> str:
    """What an empty database in the definition of `name` means. Raises ConfigError where replicas differ."""
    found = sorted({database or "default" for database in databases})
    if len(found) > 1:
        raise ConfigError(
            f"{name} leaves the database to its replicas, and they have several: {', '.join(found)}.",
            hint="Name the replicas of one database with the option shards, and its local table.",
        )
    return found[0]


def shards_of(
    server: Server, cluster: str, options: Options
) -> tuple[tuple[tuple[int, tuple[Server, ...]], ...], Set[str]]:
    """Weight and replicas of each shard, and the default databases of all, empty where none is set."""
    if options.cluster_file:
        from engine.config.load import load_topology  # workers need none of it

        topology = load_topology(Path(options.cluster_file))
        known_cluster = topology.cluster(cluster)
        shards = tuple(
            (
                shard.weight,
                tuple(
                    Server(
                        *replica.http_address,
                        "https" if replica.secure else "http",
                        options.user,
                        options.password,
                    )
                    for replica in shard.replicas
                ),
            )
            for shard in known_cluster.shards
        )
        return shards, {replica.default_database for replica in known_cluster.replicas}
    has_http = server.text(
        "SELECT count() FROM system.columns "
        "WHERE database = 'system' AND table = 'clusters' AND name = 'http_port'"
    )
    http = ", http_host, http_port" if has_http != "0" else ""
    rows = server.rows(
        f"SELECT shard_num, shard_weight, host_name, default_database{http} FROM system.clusters "
        f"WHERE cluster = {quote_string(cluster)} ORDER BY shard_num, replica_num"
    )
    if not rows:
        known = server.text("SELECT DISTINCT cluster FROM system.clusters ORDER BY cluster").split()
        raise SqlError(
            Code.CLUSTER_DOESNT_EXIST,
            f"{server} knows no cluster {cluster}.",
            hint=f"Known clusters: {', '.join(known) or 'none'}.",
        )
    found: dict[int, tuple[int, list[Server]]] = {}
    for row in rows:
        _, replicas = found.setdefault(int(row["shard_num"]), (int(row["shard_weight"]), []))
        host = str(row.get("http_host") or row["host_name"])
        port = int(row.get("http_port") or options.http_port)
        replicas.append(Server(host, port, options.servers[0].scheme, options.user, options.password))
    shards = tuple((weight, tuple(replicas)) for _, (weight, replicas) in sorted(found.items()))
    return shards, {str(row["default_database"]) for row in rows}
