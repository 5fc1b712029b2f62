"""`replicas/<host_id>/active`: which hosts are alive, and which server answers to a loopback name.

Safety argument. Only ephemeral nodes with this server's UUID are made, and only for names that resolve to
this machine. A node of our own that an earlier session left behind is removed first; one with another
server's UUID is left alone, and tried again later: it may be what a server that was replaced left behind,
and goes with its session. A crash leaves nodes that go with their session.

Source: ClickHouse's DDLWorker::markReplicasActive (`ddl-queue`, section 8).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from engine.config.model import Topology
from engine.ddl.identity import NodeIdentity, Resolver, is_local_address
from engine.errors import MultiFailed, NodeExists, NoNode, SqlError
from engine.keeper.base import Create, CreateMode, Keeper, SetData
from engine.keeper.recipes import create_ancestors, create_if_not_exists, try_remove
from engine.names import HostId, QueuePaths

logger = logging.getLogger(__name__)


def known_host_ids(topology: Topology, identity: NodeIdentity) -> tuple[HostId, ...]:
    """All hosts of all clusters, and this node's interserver address with its ports."""
    hosts = {host: None for cluster in topology.clusters.values() for host in cluster.host_ids}
    for name in (identity.interserver_http_host, identity.host_name):
        for port in sorted(identity.ports) if name else ():
            hosts.setdefault(HostId(name, port))
    return tuple(hosts)


class ReplicaMarker:
    """Marks this node's host ids in one session."""

    def __init__(self, keeper: Keeper, paths: QueuePaths, identity: NodeIdentity, resolver: Resolver) -> None:
        self._keeper = keeper
        self._paths = paths
        self._identity = identity
        self._resolver = resolver
        self._marked: set[HostId] = set()
        self._refused: set[HostId] = set()

    @property
    def refused(self) -> frozenset[HostId]:
        """Ids of this machine that another server holds at present."""
        return frozenset(self._refused)

    @property
    def marked(self) -> frozenset[HostId]:
        """Ids under which this node has declared itself active in this session."""
        return frozenset(self._marked)

    async def mark(self, topology: Topology) -> None:
        """At the start of a session, and whenever the clusters changed."""
        hosts = known_host_ids(topology, self._identity)
        await create_ancestors(self._keeper, self._paths.replica("x"))
        await self._make_dirs(hosts)
        try:
            present = (await self._keeper.children(self._paths.replicas_root)).names
        except NoNode:
            return
        own_port = [
            h for h in _parse_ids(present) if h.port in self._identity.ports and h not in self._marked
        ]
        await asyncio.gather(*(self._mark_if_ours(host) for host in own_port))

    async def is_claimed_by_us(self, host: HostId) -> bool:
        """Whether the id's `active` is this server's; claims it if it can be claimed."""
        if host not in self._marked:
            await create_ancestors(self._keeper, self._paths.replica("x"))
            await self._make_dirs([host])
            await self._mark_if_ours(host)
        return host in self._marked

    async def _make_dirs(self, hosts: Iterable[HostId]) -> None:
        hosts = list(hosts)
        present = await self._keeper.exists_many([self._paths.replica(host) for host in hosts])
        missing = [host for host, stat in zip(hosts, present, strict=True) if stat is None]
        await asyncio.gather(
            *(create_if_not_exists(self._keeper, self._paths.replica(host)) for host in missing)
        )

    async def _mark_if_ours(self, host: HostId) -> None:
        is_own_name = host.host == self._identity.host_name
        try:
            addresses = await self._resolver.resolve(host.host)
        except SqlError:
            addresses = frozenset()
        local = self._resolver.local_addresses()
        if not is_own_name and not any(is_local_address(address, local) for address in addresses):
            return
        if not await self._clear_the_way(host):
            self._refused.add(host)
            return
        path = self._paths.replica_active(host)
        try:
            await self._keeper.multi(
                [
                    Create(path, self._identity.stamp, CreateMode.EPHEMERAL),
                    SetData(self._paths.replica(host), b""),
                ]
            )
        except MultiFailed as refusal:
            if not isinstance(refusal.error, (NodeExists, NoNode)):
                raise
            stat = await self._keeper.exists(path)
            if stat is None or stat.ephemeral_owner != self._keeper.session_id:
                logger.warning("ddl.replica_not_marked host=%s error=%s", host, refusal)
                return
        self._marked.add(host)
        self._refused.discard(host)
        logger.info("ddl.replica_active host=%s", host)

    async def _clear_the_way(self, host: HostId) -> bool:
        """Remove what an earlier session left; False when the id belongs to another server."""
        path = self._paths.replica_active(host)
        try:
            node = await self._keeper.get(path)
        except NoNode:
            return True
        if node.stat.ephemeral_owner == self._keeper.session_id:
            return True
        if node.data != self._identity.stamp:
            logger.warning("ddl.replica_of_other host=%s stamp=%r", host, node.data[:60])
            return False
        await try_remove(self._keeper, path, version=node.stat.version)
        return True


def _parse_ids(names: Iterable[str]) -> list[HostId]:
    ids = []
    for name in names:
        try:
            ids.append(HostId.parse(name))
        except SqlError:
            continue  # somebody else's node; names that do not parse cannot be ours
    return ids
