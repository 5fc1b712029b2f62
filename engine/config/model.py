"""What configuration says, as values. Loading from XML and YAML is `engine.config.load`.

Field names are those of ClickHouse's configuration; times are in the units their names say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.config.graphite import GraphiteRollup
from engine.config.health_model import HealthSettings
from engine.config.profiles import Constraint
from engine.config.quotas import Quota
from engine.errors import Code, ConfigError, SqlError
from engine.names import HostId, QueuePaths, shard_node_name

DEFAULT_HTTP_PORT = 8123
DEFAULT_HTTPS_PORT = 8443
EMPTY_PASSWORD_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@dataclass(frozen=True, slots=True)
class Replica:
    """One `<replica>` of `remote_servers`. `default_database` is empty where none is set. Of two replicas
    that failed equally often lately, the one with the lower `priority` is asked first.

    `http_host` and `http_port` say where the replica's HTTP interface is, for Distributed tables; ClickHouse
    has no such elements and passes them over.
    """

    host: str
    port: int
    default_database: str = ""
    user: str = "default"
    password: str = field(default="", repr=False)
    secure: bool = False
    http_host: str = ""
    http_port: int = 0
    priority: int = 1

    @property
    def host_id(self) -> HostId:
        return HostId(self.host, self.port)

    @property
    def http_address(self) -> tuple[str, int]:
        """Where the HTTP interface is: by default on the same host, port 8123, or 8443 with TLS."""
        return (
            self.http_host or self.host,
            self.http_port or (DEFAULT_HTTPS_PORT if self.secure else DEFAULT_HTTP_PORT),
        )


@dataclass(frozen=True, slots=True)
class Shard:
    """One `<shard>`; `number` counts from 1 in the order of the configuration."""

    number: int
    replicas: tuple[Replica, ...]
    weight: int = 1
    internal_replication: bool = False

    @property
    def node_name(self) -> str:
        """The shard's name under an entry's `shards/`."""
        return shard_node_name(replica.host_id for replica in self.replicas)


@dataclass(frozen=True, slots=True)
class Cluster:
    """One cluster of `remote_servers`, or the replicas of a Replicated database (`is_database`)."""

    name: str
    shards: tuple[Shard, ...]
    allow_distributed_ddl_queries: bool = True
    secret: str = field(default="", repr=False)
    is_database: bool = False

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """All replicas of all shards, in the order of the configuration."""
        return tuple(replica for shard in self.shards for replica in shard.replicas)

    @property
    def host_ids(self) -> tuple[HostId, ...]:
        return tuple(replica.host_id for replica in self.replicas)

    @property
    def is_circular(self) -> bool:
        """One address stands for several replicas, told apart by their default databases."""
        databases: dict[HostId, set[str]] = {}
        for replica in self.replicas:
            databases.setdefault(replica.host_id, set()).add(replica.default_database)
        return any(len(names) > 1 for names in databases.values())


@dataclass(frozen=True, slots=True)
class DistributedDdl:
    """One `distributed_ddl` section: one queue.

    `clusters` empty: the queue of every cluster that no other section names.
    """

    name: str = "default"
    path: str = "/clickhouse/task_queue/ddl"
    replicas_path: str = "/clickhouse/task_queue/replicas"
    profile: str = ""
    pool_size: int = 1
    task_max_lifetime_s: int = 7 * 24 * 3600
    cleanup_delay_period_s: int = 60
    max_tasks_in_queue: int = 1000
    host_name: str = ""
    clusters: tuple[str, ...] = ()

    @property
    def paths(self) -> QueuePaths:
        return QueuePaths(self.path, self.replicas_path)


def _host_list(hosts: Sequence[tuple[str, int]]) -> str:
    """As kazoo reads them."""
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts)


@dataclass(frozen=True, slots=True)
class ZooKeeper:
    """The `zookeeper` section. `root` is the chroot; `identity` is `user:password` (digest).

    `secure` is TLS to every host, whose certificate has to name it. `ca_file` empty trusts the system's
    authorities; `certificate_file` and `private_key_file` (PEM) are this client's own, if the server asks.
    """

    hosts: tuple[tuple[str, int], ...]
    session_timeout_ms: int = 30_000
    operation_timeout_ms: int = 10_000
    root: str = ""
    identity: str = field(default="", repr=False)
    secure: bool = False
    ca_file: str = ""
    certificate_file: str = ""
    private_key_file: str = ""

    @property
    def connect_string(self) -> str:
        return _host_list(self.hosts)


@dataclass(frozen=True, slots=True)
class Etcd:
    """The `etcd` section, which stands in the place of `zookeeper`: how to reach Keeper's tree in an etcd.

    `root` and `identity` are what they are for ZooKeeper; `user` and `password` are those of etcd itself.
    Every key in etcd begins with `key_prefix`. `max_txn_ops` is what etcd was started with
    (`--max-txn-ops`).
    """

    hosts: tuple[tuple[str, int], ...]
    session_timeout_ms: int = 30_000
    operation_timeout_ms: int = 10_000
    root: str = ""
    identity: str = field(default="", repr=False)
    user: str = ""
    password: str = field(default="", repr=False)
    secure: bool = False
    ca_file: str = ""
    certificate_file: str = ""
    private_key_file: str = ""
    key_prefix: str = "oncluster/"
    max_txn_ops: int = 128

    @property
    def connect_string(self) -> str:
        return _host_list(self.hosts)


KeeperSection = ZooKeeper | Etcd
"""Where the tree is kept."""


@dataclass(frozen=True, slots=True)
class User:
    """One entry of `users`. With an empty digest any password is right, as with ClickHouse's `no_password`.
    Digests are lower-case hex. `limits_not_kept` names what configuration says of the user in vain."""

    name: str
    password_sha256_hex: str = field(default="", repr=False)
    profile: str = "default"
    networks: tuple[str, ...] = ("::/0",)
    allow_distributed_ddl: bool = True
    quota: Quota | None = None
    limits_not_kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InterserverAccess:
    """`interserver_http_credentials`: what this node shows to other replicas, and what it asks of them.

    `old` are accepted, too, while a password is changed everywhere; with `allow_empty` also requests without
    credentials.
    """

    user: str
    password: str = field(default="", repr=False)
    old: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    allow_empty: bool = False


@dataclass(frozen=True, slots=True)
class Topology:
    """What may change while a node runs: clusters and macros. Re-read whole, replaced at once."""

    clusters: Mapping[str, Cluster] = field(default_factory=dict)
    macros: Mapping[str, str] = field(default_factory=dict)

    def cluster(self, name: str) -> Cluster:
        """Raises SqlError 701 CLUSTER_DOESNT_EXIST, naming the clusters there are."""
        try:
            return self.clusters[name]
        except KeyError:
            known = ", ".join(sorted(self.clusters)) or "none"
            raise SqlError(
                Code.CLUSTER_DOESNT_EXIST,
                f"Requested cluster '{name}' not found",
                hint=f"Known clusters: {known}.",
            ) from None


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Everything one node process is told. `tcp_port` is the port of its host id; nothing listens there.

    `max_connections` statements may run at once; more wait for one of them to end, but for those of clients
    beyond `max_concurrent_queries`, which are refused; 0 for none. An `interserver_http_port`
    of 0 is any free one: other replicas find it in Keeper. With `interserver_https_port` parts go over TLS.
    `default_replica_path` and `default_replica_name` are what a replicated engine without arguments means.
    `profiles` are whole: with the settings of their parents and of `default_profile`, which holds for all.
    `constraints` of profiles are whole, too.
    `ca_file` is whom this node trusts when it opens a connection; empty for the system's authorities.
    `uses_initial_user`: entries of version 8 name the user who asked, and are carried out for users known
    here.
    `umask` is what the process takes from others of the machine when it makes files and directories.
    `trusted_backups` are beginnings of addresses of backups whose definitions may be taken as they are.
    `health` is for who watches the cluster; the node does nothing with it.
    """

    path: str
    host_name: str = "localhost"
    listen_host: str = "127.0.0.1"
    http_port: int = 8123
    tcp_port: int = 9000
    tcp_port_secure: int = 0
    interserver_http_host: str = ""
    interserver_http_port: int = 0
    interserver_https_port: int = 0
    interserver_listen_host: str = ""
    interserver_access: InterserverAccess | None = None
    default_replica_path: str = "/clickhouse/tables/{uuid}/{shard}"
    default_replica_name: str = "{replica}"
    topology: Topology = field(default_factory=Topology)
    zookeeper: KeeperSection | None = None
    queues: tuple[DistributedDdl, ...] = ()
    users: Mapping[str, User] = field(default_factory=dict)
    profiles: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    default_profile: str = "default"
    constraints: Mapping[str, Mapping[str, Constraint]] = field(default_factory=dict)
    graphite: Mapping[str, GraphiteRollup] = field(default_factory=dict)
    max_connections: int = 32
    max_concurrent_queries: int = 0
    uses_initial_user: bool = False
    https_port: int = 0
    certificate_file: str = ""
    private_key_file: str = ""
    ca_file: str = ""
    umask: int = 0o077
    trusted_backups: tuple[str, ...] = ()
    health: HealthSettings = field(default_factory=HealthSettings)

    @property
    def default_settings(self) -> Mapping[str, str]:
        """Those of the default profile, by which also goes what no user asks for."""
        return self.profiles.get(self.default_profile, {})

    def settings_of_log(self, profile: str = "") -> Mapping[str, str]:
        """Settings for statements out of a queue or a log: the profile's that is named for them, or else the
        default one's but for the readonly mode of users."""
        if profile:
            return self.profiles.get(profile, {})
        return {name: value for name, value in self.default_settings.items() if name != "readonly"}

    def queue_of(self, cluster: str) -> DistributedDdl:
        """The queue for a cluster: the one that names it, else the one that names none.

        Raises ConfigError 139 when there is neither.
        """
        for queue in self.queues:
            if cluster in queue.clusters:
                return queue
        for queue in self.queues:
            if not queue.clusters:
                return queue
        raise ConfigError(
            f"There is no <distributed_ddl> section for cluster '{cluster}' in the configuration",
            hint="Add one, or name the cluster in the <clusters> of an existing one.",
        )
