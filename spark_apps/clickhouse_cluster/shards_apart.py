"""Shards that are one table, because a cluster lists the replicas of a shard as shards.

Each row would be in that table, and on the shard that the key says only by name. A load that replaces a
partition on one of them would remove what it has just written by way of the other.

Two tables may have one path in Keeper if they are in different ones: nodes of one Keeper agree on the
transaction that has made it (`czxid`, and when that was).
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import ConfigError
from engine.names import quote_string
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.target import Shard, Target


def require_shards_apart(target: Target) -> None:
    """Raises ConfigError where two shards are one table; SqlError and NodeUnavailable where that has to be
    asked and nobody says."""
    by_server: dict[tuple[str, int], int] = {}
    for shard in target.shards:
        for server in shard.replicas:
            other = by_server.setdefault((server.host, server.port), shard.number)
            if other != shard.number:
                raise _one(target, (other, shard.number), f"both have {server}")
    by_path: dict[str, list[Shard]] = {}
    for shard, path in zip(target.shards, target.keeper_paths, strict=True):
        if path:
            by_path.setdefault(path, []).append(shard)
    for path, shards in by_path.items():
        if len(shards) > 1:
            _require_other_keepers(target, path, shards)


def _require_other_keepers(target: Target, path: str, shards: Sequence[Shard]) -> None:
    seen: dict[tuple[str, str], int] = {}
    for shard in shards:
        other = seen.setdefault(_made(shard.replica, path), shard.number)
        if other != shard.number:
            raise _one(target, (other, shard.number), f"their replicas have one path in Keeper, {path}")


def _made(server: Server, path: str) -> tuple[str, str]:
    parent, _, name = path.rstrip("/").rpartition("/")
    rows = server.rows(
        "SELECT toString(czxid) AS number, toString(toUnixTimestamp(ctime)) AS at FROM system.zookeeper "
        f"WHERE path = {quote_string(parent or '/')} AND name = {quote_string(name)}"
    )
    return (str(rows[0]["number"]), str(rows[0]["at"])) if rows else (str(server), "")


def _one(target: Target, numbers: tuple[int, int], why: str) -> ConfigError:
    return ConfigError(
        f"Shards {numbers[0]} and {numbers[1]} of {target.name} are one table {target.table}: {why}.",
        hint="Write by way of a cluster that has the replicas of a table in one shard, or list them with the "
        "option shards: replicas with commas, shards with semicolons.",
    )
