"""`replicas/<host_id>/active`: which hosts are alive, and which server answers to a loopback name.

Safety argument. Only ephemeral nodes with this server's UUID are made, and only for names that resolve to
this machine. A node of our own that an earlier session left behind is removed first; one of a living session
of this server, another queue's, is as good as one's own until that session ends; one with another server's
UUID is left alone, and tried again later: it may be what a server that was replaced left behind, and goes
with its session. A crash leaves nodes that go with their session.

Source: ClickHouse's DDLWorker::markReplicasActive.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from engine.config.model import Topology
from engine.ddl.identity import NodeIdentity, Resolver, is_own_host
from engine.ddl.own_sessions import OwnSessions
from engine.env import Env
from engine.errors import MultiFailed, NodeExists, NoNode, SqlError
from engine.keeper.base import Create, CreateMode, Keeper, SetData
from engine.keeper.recipes import create_ancestors, create_if_not_exists, remove_unowned, try_remove
from engine.names import HostId, QueuePaths

logger = logging.getLogger(__name__)

_SPREAD_S = 2.0


def known_host_ids(topology: Topology, identity: NodeIdentity) -> tuple[HostId, ...]:
    """All hosts of all clusters, and this node's interserver address with its ports."""
    hosts = {host: None for cluster in topology.clusters.values() for host in cluster.host_ids}
    for name in (identity.interserver_http_host, identity.host_name):
        for port in sorted(identity.ports) if name else ():
            hosts.setdefault(HostId(name, port))
    return tuple(hosts)


class ReplicaMarker:
    """Marks this node's host ids in one session."""

    def __init__(
        self,
        keeper: Keeper,
        env: Env,
        paths: QueuePaths,
        identity: NodeIdentity,
        resolver: Resolver,
        own_sessions: OwnSessions,
    ) -> None:
        self._keeper = keeper
        self._env = env
        self._paths = paths
        self._identity = identity
        self._resolver = resolver
        self._own_sessions = own_sessions
        self._marked: set[HostId] = set()
        self._marked_by_siblings: set[HostId] = set()
        self._refused: set[HostId] = set()
        self._own_names = {identity.host_name, identity.interserver_http_host}

    @property
    def refused(self) -> frozenset[HostId]:
        """Ids of this machine that another server holds at present."""
        return frozenset(self._refused)

    @property
    def marked(self) -> frozenset[HostId]:
        """Ids under which this node has declared itself active."""
        return frozenset(self._marked)

    def forget_siblings(self) -> None:
        """Another of this server's sessions has ended, and what it had marked has to be marked anew."""
        self._marked -= self._marked_by_siblings
        self._marked_by_siblings.clear()

    async def mark(self, topology: Topology) -> None:
        """At the start of a session, and whenever the clusters changed: this node's own names. Asks no
        DNS."""
        hosts = known_host_ids(topology, self._identity)
        own = [h for h in hosts if h.host in self._own_names and h.port in self._identity.ports]
        present = await self._present()
        await self._create([host for host in own if str(host) not in present])
        await asyncio.gather(*(self._mark_if_ours(host) for host in own if host not in self._marked))

    async def mark_others(self, topology: Topology) -> None:
        """Directories for all hosts of all clusters, and whatever else resolves to this machine.

        Not urgent, and DNS may take its time. A random pause first: of a thousand nodes that start
        together the first few make the directories, and the rest find them.
        """
        await self._env.sleep(self._env.rng.uniform(0.0, _SPREAD_S))
        present = await self._present()
        missing = [h for h in known_host_ids(topology, self._identity) if str(h) not in present]
        await self._create(missing)
        hosts = [h for h in (*_parse_ids(present), *missing) if h.port in self._identity.ports]
        await asyncio.gather(*(self._mark_if_ours(host) for host in hosts if host not in self._marked))

    async def is_claimed_by_us(self, host: HostId) -> bool:
        """Whether the id's `active` is this server's; claims it if it can be claimed."""
        if host not in self._marked:
            await self._create([host])
            await self._mark_if_ours(host)
        return host in self._marked

    async def _present(self) -> frozenset[str]:
        try:
            return frozenset((await self._keeper.children(self._paths.replicas_root)).names)
        except NoNode:
            return frozenset()

    async def _create(self, hosts: Iterable[HostId]) -> None:
        await create_ancestors(self._keeper, self._paths.replica("x"))
        await asyncio.gather(
            *(create_if_not_exists(self._keeper, self._paths.replica(host)) for host in hosts)
        )

    async def _mark_if_ours(self, host: HostId) -> None:
        if host.host not in self._own_names and not await is_own_host(self._resolver, host.host):
            return
        if (stamp := await self._clear_the_way(host)) is not None:
            if host not in self._refused:
                level = logging.WARNING if host.host in self._own_names else logging.INFO
                uuid = stamp.decode(errors="replace")
                logger.log(level, "ddl.name_of_another_server host=%s its_uuid=%s", host, uuid)
            self._refused.add(host)
            return
        if host in self._marked:
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
            if stat is not None and self._note_sibling(host, stat.ephemeral_owner):
                return
            if stat is None or stat.ephemeral_owner != self._keeper.session_id:
                logger.warning("ddl.replica_not_marked host=%s error=%s", host, refusal)
                return
        self._marked.add(host)
        self._refused.discard(host)
        logger.info("ddl.replica_active host=%s", host)

    async def _clear_the_way(self, host: HostId) -> bytes | None:
        """Remove what an earlier session left; the stamp of another server that has the id."""
        path = self._paths.replica_active(host)
        try:
            node = await self._keeper.get(path)
        except NoNode:
            return None
        if node.stat.ephemeral_owner == self._keeper.session_id:
            return None
        if self._note_sibling(host, node.stat.ephemeral_owner):
            return None
        if node.data == self._identity.stamp:
            await try_remove(self._keeper, path, version=node.stat.version)
        elif not await remove_unowned(self._keeper, path):
            return node.data[:60]
        return None

    def _note_sibling(self, host: HostId, owner: int) -> bool:
        """Whether the id is marked by a living session of this server; then it is ours."""
        if owner == self._keeper.session_id or owner not in self._own_sessions:
            return False
        self._marked.add(host)
        self._marked_by_siblings.add(host)
        self._refused.discard(host)
        return True


def _parse_ids(names: Iterable[str]) -> list[HostId]:
    ids = []
    for name in names:
        try:
            ids.append(HostId.parse(name))
        except SqlError:
            continue  # somebody else's node; names that do not parse cannot be ours
    return ids
