"""Which host of an entry this node is, and which replica of the cluster.

Source: ClickHouse's DDLTask.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from engine.config.model import Cluster, Replica, Shard
from engine.ddl.identity import NodeIdentity, Resolver, is_local_address, is_loopback, is_own_host
from engine.env import Env
from engine.errors import Code, SqlError
from engine.names import HostId

logger = logging.getLogger(__name__)

KEPT_S = 30.0
"""A name may mean another machine by then."""

IsClaimedByUs = Callable[[HostId], Awaitable[bool]]
"""Whether `replicas/<host_id>/active` holds this server's UUID."""


@dataclass(frozen=True, slots=True)
class Match:
    """`host` is this node among an entry's hosts, None if it is none of them.

    `unresolved` are hosts that DNS knew nothing about, while nothing else matched: one of them may be this
    node. `elsewhere`, without any such: what it takes for other machines, which may be out of date.
    """

    host: HostId | None
    unresolved: tuple[HostId, ...] = ()
    elsewhere: tuple[HostId, ...] = ()


class HostMatcher:
    """Finds this node in host lists; remembers the answer for a list until `forget`, for `KEPT_S` at most.

    An entry of a thousand hosts is matched once, not once for each entry.
    """

    def __init__(
        self,
        identity: NodeIdentity,
        resolver: Resolver,
        env: Env,
        *,
        host_name: str,
        is_claimed_by_us: IsClaimedByUs,
    ) -> None:
        self._env = env
        self._identity = identity
        self._resolver = resolver
        self._host_name = host_name
        self._is_claimed_by_us = is_claimed_by_us
        self._known: dict[tuple[HostId, ...], tuple[float, Match]] = {}

    def forget(self) -> None:
        """Names may mean something else now."""
        self._known.clear()

    async def check_host_name(self) -> None:
        """Raises SqlError 198 when the configured `distributed_ddl.host_name` is not this machine's."""
        name = self._host_name
        if name and name != self._identity.host_name and not await is_own_host(self._resolver, name):
            raise SqlError(
                Code.DNS_ERROR, f"distributed_ddl.host_name '{name}' is not a local address of this server"
            )

    async def match(self, hosts: tuple[HostId, ...]) -> Match:
        """The first host that is this node. A second one is only logged."""
        now_s = self._env.monotonic_s()
        until_s, match = self._known.get(hosts, (now_s, None))
        if match is not None and now_s < until_s:
            return match
        match = await self._search(hosts)
        if not match.unresolved:
            if len(self._known) > 1000:
                self._known.clear()
            self._known[hosts] = now_s + KEPT_S, match
        return match

    async def _search(self, hosts: Sequence[HostId]) -> Match:
        candidates = [host for host in hosts if host.port in self._identity.ports]
        if self._host_name:
            return Match(next((host for host in candidates if host.host == self._host_name), None))
        for host in candidates:
            if host.host == self._identity.host_name and not _is_loopback_name(host.host):
                return Match(host)
        unresolved: list[HostId] = []
        elsewhere: list[HostId] = []
        found: HostId | None = None
        for host in candidates:
            try:
                addresses = await self._resolver.resolve(host.host)
            except SqlError as error:
                logger.info("ddl.host_unresolved host=%s error=%s", host, error.message)
                unresolved.append(host)
                continue
            local = self._resolver.local_addresses()
            if not any(is_local_address(address, local) for address in addresses):
                elsewhere.append(host)
                continue
            # Every server is localhost to itself: only the one that has claimed the id may answer to it.
            if all(is_loopback(a) for a in addresses) and not await self._is_claimed_by_us(host):
                continue
            if found is not None:
                logger.warning("ddl.two_hosts_are_this_node first=%s second=%s", found, host)
                break
            found = host
        if found is not None:
            return Match(found)
        return Match(None, tuple(unresolved)) if unresolved else Match(None, elsewhere=tuple(elsewhere))


@dataclass(frozen=True, slots=True)
class ClusterPlace:
    """Where this node stands in the cluster. `is_circular`: it holds replicas of several shards, told
    apart by their default databases; then nothing runs once per shard."""

    cluster: Cluster
    shard: Shard
    replica: Replica
    is_circular: bool = False


async def find_place(
    cluster: Cluster | None,
    host: HostId,
    *,
    task: str,
    cluster_name: str,
    query_database: str,
    resolver: Resolver,
    ports: frozenset[int],
) -> ClusterPlace:
    """This node's replica in its own definition of the cluster, first by name, then by address.

    Raises SqlError 371 INCONSISTENT_CLUSTER_DEFINITION.
    """
    if cluster is None:
        raise _inconsistent(
            f"DDL task {task} contains current host {host.readable} in cluster {cluster_name}, but there is "
            "no such cluster here."
        )
    exact = [
        (s, r) for s in cluster.shards for r in s.replicas if r.host == host.host and r.port == host.port
    ]
    if len(exact) == 1:
        return ClusterPlace(cluster, *exact[0])
    if exact:
        return _circular_place(cluster, exact, host, task, query_database)
    resolved: list[tuple[Shard, Replica]] = []
    local = resolver.local_addresses()
    for shard in cluster.shards:
        for replica in shard.replicas:
            if replica.port not in ports:
                continue
            try:
                addresses = await resolver.resolve(replica.host)
            except SqlError:
                continue
            if any(is_local_address(address, local) for address in addresses):
                resolved.append((shard, replica))
    if len(resolved) > 1:
        raise _inconsistent(
            f"There are two the same ClickHouse instances in cluster {cluster.name} : "
            f"{resolved[0][1].host_id.readable} and {resolved[1][1].host_id.readable}"
        )
    if not resolved:
        raise _inconsistent(f"Not found host {host.readable} in definition of cluster {cluster.name}")
    logger.info("ddl.host_found_by_address host=%s replica=%s", host, resolved[0][1].host_id)
    return ClusterPlace(cluster, *resolved[0])


def _circular_place(
    cluster: Cluster, places: list[tuple[Shard, Replica]], host: HostId, task: str, query_database: str
) -> ClusterPlace:
    databases = [replica.default_database for _, replica in places]
    if len(set(databases)) < len(databases):
        raise _inconsistent(
            f"There are two exactly the same ClickHouse instances {host.readable} in cluster {cluster.name}"
        )
    if not query_database:
        raise _inconsistent(
            "For a distributed DDL on circular replicated cluster its table name must be qualified by "
            f"database name. (task {task})"
        )
    for shard, replica in places:
        if replica.default_database == query_database:
            return ClusterPlace(cluster, shard, replica, is_circular=True)
    raise _inconsistent(
        f"Not found host {host.readable} with default database {query_database} in definition of cluster "
        f"{cluster.name}"
    )


def _is_loopback_name(host: str) -> bool:
    return host == "localhost" or is_loopback(host.strip("[]"))


def _inconsistent(message: str) -> SqlError:
    return SqlError(Code.INCONSISTENT_CLUSTER_DEFINITION, message)
