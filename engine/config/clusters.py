"""`remote_servers` and `macros`: what may change while a node runs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from engine.config import reading
from engine.config.element import Element
from engine.config.model import Cluster, Replica, Shard, Topology
from engine.errors import ConfigError
from engine.names import HostId

logger = logging.getLogger(__name__)

DEFAULT_PORT = 9000
DEFAULT_SECURE_PORT = 9440
_REPLICA_ELEMENTS = frozenset(
    {
        "host",
        "port",
        "default_database",
        "user",
        "password",
        "secure",
        "compression",
        "priority",
        "bind_host",
        "proto_send_chunked",
        "proto_recv_chunked",
        "http_host",
        "http_port",
    }
)
_SHARD_ELEMENTS = frozenset({"weight", "internal_replication", "name"})
_CLUSTER_ELEMENTS = frozenset({"secret", "allow_distributed_ddl_queries"})
_ADDRESS_ELEMENTS = frozenset({"host", "port", "http_host", "http_port"})
_MAX_WEIGHT = 2**32 - 1


def read_topology(root: Element) -> Topology:
    """All clusters and macros. Raises ConfigError; a section given twice is merged as if it were one.

    `<http_addresses>` is this project's own: where the HTTP interfaces of hosts are that have none in their
    `<replica>`, for clusters whose file is shared with servers, or whose hosts share one machine.
    """
    addresses = _http_addresses(root)
    clusters: dict[str, Cluster] = {}
    for servers in root.all("remote_servers"):
        for element in servers.children:
            if element.name in clusters:
                raise ConfigError(f"{element.source}: cluster <{element.name}> is given twice")
            clusters[element.name] = _with_addresses(_cluster(element, root), addresses)
    macros: dict[str, str] = {}
    for section in root.all("macros"):
        for element in section.children:
            macros.setdefault(element.name, element.text)  # the first counts, as in ClickHouse
    return Topology(clusters, macros)


def _http_addresses(root: Element) -> dict[HostId, tuple[str, int]]:
    found: dict[HostId, tuple[str, int]] = {}
    for section in root.all("http_addresses"):
        for child in section.children:
            reading.refuse_unknown(child, _ADDRESS_ELEMENTS)
            host = reading.required_text(child, "host")
            port = reading.port(child, "port", DEFAULT_PORT, at_least=1)
            http_host = reading.text(child, "http_host")
            found[HostId(host, port)] = (http_host, reading.port(child, "http_port", 0))
    return found


def _with_addresses(cluster: Cluster, addresses: Mapping[HostId, tuple[str, int]]) -> Cluster:
    def known(replica: Replica) -> Replica:
        address = addresses.get(replica.host_id)
        if address is None or replica.http_host or replica.http_port:
            return replica
        return replace(replica, http_host=address[0], http_port=address[1])

    if not addresses:
        return cluster
    shards = (replace(shard, replicas=tuple(map(known, shard.replicas))) for shard in cluster.shards)
    return replace(cluster, shards=tuple(shards))


def _cluster(element: Element, root: Element) -> Cluster:
    if element.first("discovery") is not None:
        raise ConfigError(
            f"{element.source}: cluster <{element.name}> uses <discovery>, which is not supported",
            hint="List its shards and replicas.",
        )
    # ClickHouse goes by how the names begin, so that <shard1> and <node_a> are fine.
    reading.refuse_unknown(element, _CLUSTER_ELEMENTS, prefixes=("shard", "node"))
    shards: list[Shard] = []
    for child in element.children:
        if child.name.startswith("node"):
            weight = reading.integer(child, "weight", 1, at_most=_MAX_WEIGHT)
            _warn_unknown(child, _REPLICA_ELEMENTS | {"weight"})
            shards.append(Shard(len(shards) + 1, (_replica(child, root),), weight))
        elif child.name.startswith("shard"):
            shards.append(_shard(child, len(shards) + 1, root))
    if not shards:
        raise ConfigError(
            f"{element.source}: cluster <{element.name}> has no shards",
            hint="Give it at least one <shard> with a <replica>, or a <node>.",
        )
    cluster = Cluster(
        element.name,
        tuple(shards),
        allow_distributed_ddl_queries=reading.boolean(element, "allow_distributed_ddl_queries", True),
        secret=reading.text(element, "secret"),
    )
    _note_duplicates(cluster, element)
    return cluster


def _shard(element: Element, number: int, root: Element) -> Shard:
    reading.refuse_unknown(element, _SHARD_ELEMENTS, prefixes=("replica",))
    replicas: list[Replica] = []
    for child in element.children:
        if child.name.startswith("replica"):
            _warn_unknown(child, _REPLICA_ELEMENTS)
            replicas.append(_replica(child, root))
    if not replicas:
        raise ConfigError(f"{element.source}: a shard without replicas", hint="Give it a <replica>.")
    return Shard(
        number,
        tuple(replicas),
        weight=reading.integer(element, "weight", 1, at_most=_MAX_WEIGHT),
        internal_replication=reading.boolean(element, "internal_replication", False),
    )


def _replica(element: Element, root: Element) -> Replica:
    secure = reading.boolean(element, "secure", False)
    # As in ClickHouse: without a port of its own, a replica has this server's.
    server_port = (
        reading.port(root, "tcp_port_secure", DEFAULT_SECURE_PORT)
        if secure
        else reading.port(root, "tcp_port", DEFAULT_PORT)
    )
    return Replica(
        host=reading.required_text(element, "host"),
        port=reading.port(element, "port", server_port, at_least=1),
        default_database=reading.text(element, "default_database"),
        user=reading.text(element, "user") or "default",
        password=reading.text(element, "password"),
        secure=secure,
        http_host=reading.text(element, "http_host"),
        http_port=reading.port(element, "http_port", 0),
        priority=reading.integer(element, "priority", 1, at_most=_MAX_WEIGHT),
    )


def _warn_unknown(element: Element, known: frozenset[str]) -> None:
    for child in element.children:
        if child.name not in known:
            logger.warning(
                "config.unknown_element element=%s in=%s at=%s known=%s",
                child.name,
                element.name,
                child.source,
                ",".join(sorted(known)),
            )


def _note_duplicates(cluster: Cluster, element: Element) -> None:
    """Equal addresses are noted and not refused, because ClickHouse's own sample clusters have them.

    With different default databases they are circular replication; with equal ones an ON CLUSTER query fails
    with 371 on the host concerned.
    """
    count: Counter[tuple[HostId, str]] = Counter(
        (replica.host_id, replica.default_database) for replica in cluster.replicas
    )
    for (host, database), times in count.items():
        if times > 1:
            logger.warning(
                "config.duplicate_replica cluster=%s host=%s default_database=%s times=%d at=%s "
                "consequence='ON CLUSTER queries of this cluster fail on that host with code 371'",
                cluster.name,
                host.readable,
                database,
                times,
                element.source,
            )
