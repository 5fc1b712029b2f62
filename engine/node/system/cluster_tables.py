"""`system.clusters`, `system.macros`, `system.distributed_ddl_queue`: rows from configuration and queue."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from engine.config.model import Topology
from engine.ddl.queue_table import QUEUE_COLUMNS, QueueRow
from engine.names import HostId
from engine.node.statements.statement import Asked
from engine.node.system.system_tables import Row
from engine.sql import Token


class ReplicaFacts(Protocol):
    """Columns of replicas of Replicated databases."""

    async def of(self, cluster: str) -> Mapping[tuple[int, int], Mapping[str, object]]:
        """By the numbers of shard and replica; empty for a cluster of the configuration."""
        ...


class ClustersTable:
    """Columns are chDB's. `host_address` is filled where the configuration has addresses; names are not
    resolved for it, because a name that DNS does not know would hold up the query."""

    name = "clusters"
    columns = ""

    def __init__(
        self,
        topology: Callable[[], Topology],
        is_local: Callable[[HostId], bool],
        failures_of: Callable[[HostId], tuple[int, int]] = lambda _: (0, 0),
        facts: ReplicaFacts | None = None,
    ) -> None:
        """`failures_of` says how many failures of a host count, and the seconds until none does; `facts` what
        is known of the replicas of a Replicated database."""
        self._facts = facts
        self._topology = topology
        self._is_local = is_local
        self._failures_of = failures_of

    async def rows(self, asked: Asked, tokens: list[Token]) -> Iterable[Row]:
        clusters = self._topology().clusters.values()
        facts = {}
        if self._facts is not None:
            facts = {cluster.name: await self._facts.of(cluster.name) for cluster in clusters}
        return [
            {
                **facts.get(cluster.name, {}).get((shard.number, number), {}),
                "errors_count": failures,
                "estimated_recovery_time": recovery_s,
                "cluster": cluster.name,
                "shard_num": shard.number,
                "shard_weight": shard.weight,
                "internal_replication": int(shard.internal_replication),
                "replica_num": number,
                "host_name": replica.host,
                "host_address": _address(replica.host),
                "port": replica.port,
                "is_local": int(self._is_local(replica.host_id)),
                "user": replica.user,
                "default_database": replica.default_database,
            }
            for cluster in clusters
            for shard in cluster.shards
            for number, replica in enumerate(shard.replicas, start=1)
            for failures, recovery_s in [self._failures_of(replica.host_id)]
        ]


def _address(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return "127.0.0.1" if host == "localhost" else ""


class MacrosTable:
    name = "macros"
    columns = ""

    def __init__(self, topology: Callable[[], Topology]) -> None:
        self._topology = topology

    async def rows(self, asked: Asked, tokens: list[Token]) -> Iterable[Row]:
        macros: Mapping[str, str] = self._topology().macros
        return [{"macro": name, "substitution": value} for name, value in sorted(macros.items())]


class Queues(Protocol):
    """The DDL queues this node knows."""

    async def queue_rows(self) -> list[QueueRow]: ...


class QueueTable:
    name = "distributed_ddl_queue"
    columns = ", ".join(f"`{name}` {type_}" for name, type_ in QUEUE_COLUMNS)

    def __init__(self, queues: Queues) -> None:
        self._queues = queues

    async def rows(self, asked: Asked, tokens: list[Token]) -> Iterable[Row]:
        names = [name for name, _ in QUEUE_COLUMNS]
        return [dict(zip(names, row.values(), strict=True)) for row in await self._queues.queue_rows()]
