"""The configuration files of a cluster on one machine.

    DIR/cluster.xml                   a link to the cluster file given; may be edited while nodes run
    DIR/config.d/zookeeper.xml        replaces the servers of its <zookeeper> by the embedded one
    DIR/config.d/http_addresses.xml   where the HTTP interfaces of the nodes are
    DIR/nodes/node01/config.xml       what is node01's own: paths, ports, host name, macros (`macros_node01`
    of
                                      the cluster file, else made up)
    DIR/nodes/node01/config.d/        links to the three files above

Like a ClickHouse server, a node reads the files in `config.d` next to its configuration on top of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from engine.config.load import load_node_config, load_topology
from engine.config.model import Topology, ZooKeeper
from engine.errors import ConfigError

DEFAULT_CLUSTER_FILE = Path(__file__).resolve().parents[2] / "config" / "cluster.xml"
HOST = "127.0.0.1"
TCP_PORT = 9000


@dataclass(frozen=True, slots=True)
class ClusterFiles:
    """Where the files stand; made by `write`."""

    directory: Path
    cluster_file: Path

    @property
    def shared(self) -> Path:
        """The file for clients: clusters, queue, and the address of ZooKeeper."""
        return self.directory / f"cluster{self.cluster_file.suffix}"

    def node_directory(self, host: str) -> Path:
        return self.directory / "nodes" / host

    def node_config(self, host: str) -> Path:
        return self.node_directory(host) / "config.xml"

    def topology(self) -> Topology:
        return load_topology(self.cluster_file)

    def hosts(self) -> tuple[str, ...]:
        """Every host that a cluster names, once, in order of first mention. Raises ConfigError if none."""
        names: dict[str, None] = {}
        for cluster in self.topology().clusters.values():
            names.update((replica.host, None) for replica in cluster.replicas)
        if not names:
            raise ConfigError(f"{self.cluster_file} names no cluster.", hint="Add <remote_servers>.")
        return tuple(names)

    def zookeeper(self, port: int, *, session_timeout_ms: int | None = None) -> ZooKeeper:
        """As the cluster file has it (root, identity, timeouts), with the embedded server for its servers."""
        given = load_node_config(self.cluster_file).zookeeper or ZooKeeper(())
        return ZooKeeper(
            ((HOST, port),),
            session_timeout_ms=session_timeout_ms or given.session_timeout_ms,
            operation_timeout_ms=given.operation_timeout_ms,
            root=given.root,
            identity=given.identity,
        )

    def write(self, *, zookeeper: ZooKeeper, http_ports: Mapping[str, int]) -> None:
        """Write everything. `http_ports` names the nodes to be run, which may be fewer than the hosts."""
        topology = self.topology()
        overlay = self.directory / "config.d"
        overlay.mkdir(parents=True, exist_ok=True)
        _link(self.shared, self.cluster_file.resolve())
        _write(overlay / "zookeeper.xml", [_zookeeper_element(zookeeper)])
        addresses = ElementTree.Element("http_addresses")
        for replica in dict.fromkeys(r.host_id for c in topology.clusters.values() for r in c.replicas):
            if replica.host in http_ports:
                address = ElementTree.SubElement(addresses, "address")
                _add(address, "host", replica.host)
                _add(address, "port", replica.port)
                _add(address, "http_host", HOST)
                _add(address, "http_port", http_ports[replica.host])
        _write(overlay / "http_addresses.xml", [addresses])
        for host, port in http_ports.items():
            own = self.node_directory(host)
            (own / "config.d").mkdir(parents=True, exist_ok=True)
            _write(self.node_config(host), self._node_elements(host, port, topology))
            _link(own / "config.d" / f"10-{self.shared.name}", self.shared)
            _link(own / "config.d" / "20-zookeeper.xml", overlay / "zookeeper.xml")
            _link(own / "config.d" / "30-http_addresses.xml", overlay / "http_addresses.xml")

    def _node_elements(self, host: str, port: int, topology: Topology) -> list[ElementTree.Element]:
        values = {
            "path": str(self.node_directory(host) / "data"),
            "host_name": host,
            "listen_host": HOST,
            "http_port": port,
            "tcp_port": TCP_PORT,
        }
        elements = [_element(name, value) for name, value in values.items()]
        # With its name in each queue section (sections meet in their order) the node asks no resolver about
        # entries for others. Nobody could answer, and a slow resolver would hold up the queue.
        for _ in load_node_config(self.cluster_file).queues:
            section = ElementTree.Element("distributed_ddl")
            _add(section, "host_name", host)
            elements.append(section)
        if f"macros_{host}" in self.cluster_file.read_text("utf-8", "replace"):
            elements.append(_element("include_from", self.shared))
            elements.append(ElementTree.Element("macros", {"incl": f"macros_{host}"}))
            return elements
        macros = ElementTree.Element("macros")
        for name, text in macros_of(host, topology).items():
            _add(macros, name, text)
        return [*elements, macros]


def macros_of(host: str, topology: Topology) -> dict[str, str]:
    """Macros for a node for which the file has none as `macros_<host>`: `replica`, and `<cluster>_shard`
    with two digits for each cluster that it is in.

    Of a cluster's name a trailing `_cluster` is left out: order_cluster gives `order_shard`. The names that
    most migrations use are there where they can only mean one thing: `shard`, where no host is in different
    shards of two clusters, and `cluster`, where there is one.
    """
    macros = {"replica": host}
    for cluster, shard in _places(host, topology):
        macros[f"{cluster.removesuffix('_cluster')}_shard"] = f"{shard:02d}"
    hosts = {replica.host for cluster in topology.clusters.values() for replica in cluster.replicas}
    if all(len({shard for _, shard in _places(each, topology)}) == 1 for each in hosts):
        macros["shard"] = f"{_places(host, topology)[0][1]:02d}"
    if len(topology.clusters) == 1:
        macros["cluster"] = next(iter(topology.clusters))
    return macros


def _places(host: str, topology: Topology) -> list[tuple[str, int]]:
    """(cluster, number of the shard) of each shard that the host is in."""
    return [
        (cluster.name, shard.number)
        for cluster in topology.clusters.values()
        for shard in cluster.shards
        if any(replica.host == host for replica in shard.replicas)
    ]


def clusters_xml(clusters: Mapping[str, Sequence[Sequence[str]]]) -> str:
    """A cluster file for tests: cluster → shards → host names, with `:port` where that is not `TCP_PORT`."""
    root = ElementTree.Element("clickhouse")
    servers = ElementTree.SubElement(root, "remote_servers")
    for name, shards in clusters.items():
        cluster = ElementTree.SubElement(servers, name)
        for hosts in shards:
            shard = ElementTree.SubElement(cluster, "shard")
            _add(shard, "internal_replication", "true")
            for host in hosts:
                replica = ElementTree.SubElement(shard, "replica")
                name, _, port = host.partition(":")
                _add(replica, "host", name)
                _add(replica, "port", port or TCP_PORT)
    queue = ElementTree.SubElement(root, "distributed_ddl")
    _add(queue, "path", "/clickhouse/task_queue/ddl")
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _zookeeper_element(config: ZooKeeper) -> ElementTree.Element:
    section = ElementTree.Element("zookeeper", {"replace": "replace"})
    for host, port in config.hosts:
        node = ElementTree.SubElement(section, "node")
        _add(node, "host", host)
        _add(node, "port", port)
    _add(section, "session_timeout_ms", config.session_timeout_ms)
    _add(section, "operation_timeout_ms", config.operation_timeout_ms)
    if config.root:
        _add(section, "root", config.root)
    if config.identity:
        _add(section, "identity", config.identity)
    return section


def _element(name: str, value: object) -> ElementTree.Element:
    element = ElementTree.Element(name)
    element.text = str(value)
    return element


def _add(parent: ElementTree.Element, name: str, value: object) -> None:
    ElementTree.SubElement(parent, name).text = str(value)


def _write(path: Path, elements: list[ElementTree.Element]) -> None:
    root = ElementTree.Element("clickhouse")
    root.extend(elements)
    ElementTree.indent(root)
    path.touch(mode=0o600)  # an identity is a password
    path.write_text(ElementTree.tostring(root, encoding="unicode") + "\n", "utf-8")


def _link(link: Path, target: Path) -> None:
    """Point `link` at `target`, replacing what stood there; a copy where `target` is the link itself."""
    if link.resolve() == target and not link.is_symlink():
        return
    link.unlink(missing_ok=True)
    link.symlink_to(target)
